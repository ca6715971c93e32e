"""Packs whose members were paused in turn: paused time is in no figure of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.measured_curve import (
    CurvePoint,
    DegreeDecision,
    DegreeState,
    RateAlone,
    RateSource,
)
from slurm_colloc.report.member_figures import compute_figures
from slurm_colloc.report.pack_run import read_run
from slurm_colloc.report.solo_rates import find_briefly_alone_start
from slurm_colloc.store.member_states import NAME, PARKED, append_change
from slurm_colloc.store.runner_requests import DegreeRecord, write_degree

from .generated import (
    T0,
    Truth,
    build_summary,
    make_gpu_rows,
    make_pack,
    render_report,
    write_stops,
)

Windows = list[tuple[float, float]]

TURNS = {1: [(60.0, 62.5)], 2: [(64.0, 66.5)], 3: [(68.0, 70.5)]}
"""When each of three members ran while the two others were stopped."""


def list_stops(turns: dict[int, Windows], member: int) -> Windows:
    return sorted(w for other, windows in turns.items() if other != member for w in windows)


def make_members(
    turns: dict[int, Windows] = TURNS,
    rate: Callable[[float], float] = lambda _at: 10,
    **fields: Any,
) -> list[Truth]:
    return [
        Truth(number, 0, 200, rate, stops=list_stops(turns, number), **fields) for number in turns
    ]


def measure(members: Sequence[int] = (1, 2, 3), **fields: Any) -> DegreeRecord:
    """What their runner has measured: each makes 10 steps a second alone."""
    rates = tuple(RateAlone(number, 10.0, 0.02, 2.2, T0 + 62) for number in members)
    changes: dict[str, Any] = {"rates_alone": rates, "cost_s": 5.0, "degree": 3, "places": 3}
    return DegreeRecord(1, DegreeState.SETTLED, **{**changes, **fields})


def build(pack: Path, record: DegreeRecord | None = None) -> Any:
    if record is not None:
        write_degree(pack, record)
    return build_summary(pack, pack.parent.parent)


def test_members_that_were_paused_in_turn_are_as_fast_as_alone(tmp_path: Path) -> None:
    truths = make_members()
    pack = make_pack(tmp_path, truths)
    write_stops(pack, truths)
    summary = build(pack, measure())
    for member in summary["members"]:
        assert member["rate"]["steps_per_s"] == pytest.approx(10, rel=0.01)
        assert member["rate"]["shared_steps_per_s"] == pytest.approx(10, rel=0.01)
        assert member["solo"]["source"] == "pausing"
        assert member["slowdown"] == pytest.approx(1.0, rel=0.01)
        assert member["rate"]["paused_s"] == 0
        assert member["stopped_s"] == pytest.approx(5.0)
        assert member["stall"]["data"] == pytest.approx(0.1, abs=0.02)
        assert member["cpu_cores"] == pytest.approx(1.5, rel=0.01)
        assert member["interference"] == []
        # What the GPU did while it was alone, by which its energy is split.
        assert member["sm_share"]["value"] == pytest.approx(0.5, rel=0.05)
        assert member["energy_j"]["attribution"] == "modelled"
        assert member["solo_time_s"] == pytest.approx(195, rel=0.02)
    figures = summary["pack"]
    assert figures["stp"] == pytest.approx(3.0, rel=0.02)
    assert figures["members_most"] == 3
    # In each turn one alone ran.
    assert figures["overlap_s"] == pytest.approx(200 - 3 * 2.5, abs=0.1)
    assert summary["window"]["to"] - summary["window"]["from"] == pytest.approx(200, abs=0.1)


def test_what_is_said_of_a_run_with_pauses_is_what_is_said_of_it_without(tmp_path: Path) -> None:
    # All three are stopped together: nothing but time has passed.
    stops = [(50.0, 50.5), (80.0, 83.0), (120.0, 140.0)]
    stopped = [Truth(n, 0, 223.5, lambda _at: 8, stops=stops) for n in (1, 2, 3)]
    whole = [Truth(n, 0, 200, lambda _at: 8) for n in (1, 2, 3)]
    with_stops = make_pack(tmp_path / "a", stopped)
    write_stops(with_stops, stopped)
    found, expected = build(with_stops), build(make_pack(tmp_path / "b", whole))
    for one, other in zip(found["members"], expected["members"], strict=True):
        assert one["steps"] == pytest.approx(other["steps"], abs=2)
        for name in ("steps_per_s", "shared_steps_per_s", "warm_up_s", "window_s"):
            assert one["rate"][name] == pytest.approx(other["rate"][name], rel=0.02, abs=1.1)
        assert one["rate"]["paused_s"] == other["rate"]["paused_s"] == 0
        assert one["cpu_cores"] == pytest.approx(other["cpu_cores"], rel=0.01)
        assert one["stall"]["data"] == pytest.approx(other["stall"]["data"], abs=0.02)
        assert one["stopped_s"] == pytest.approx(23.5)
        assert other["stopped_s"] == 0
    assert found["pack"]["overlap_s"] == pytest.approx(expected["pack"]["overlap_s"], abs=0.1)


def test_without_what_its_runner_wrote_a_long_stop_would_be_a_pause_of_its_own(
    tmp_path: Path,
) -> None:
    truths = [Truth(1, 0, 200, lambda _at: 10, stops=[(80, 120)]), Truth(2, 0, 200, lambda _at: 10)]
    pack = make_pack(tmp_path, truths)
    assert build(pack)["members"][0]["rate"]["paused_s"] == pytest.approx(40, abs=1)
    write_stops(pack, truths, PARKED)
    one, two = build(pack)["members"]
    assert one["rate"]["paused_s"] == 0
    assert one["rate"]["steps_per_s"] == pytest.approx(10, rel=0.01)
    # The other had the GPU to itself for all of that time.
    assert two["solo"]["source"] == "this run"
    assert two["slowdown"] == pytest.approx(1.0, rel=0.01)


def test_who_is_parked_has_gone_for_the_others(tmp_path: Path) -> None:
    # It makes 20 steps a second as long as the other is parked.
    first = Truth(1, 0, 300, lambda at: 20 if 100 <= at < 200 else 10)
    second = Truth(2, 0, 300, lambda _at: 9, stops=[(100, 200)])
    pack = make_pack(tmp_path, [first, second])
    write_stops(pack, [first, second], PARKED)
    summary = build(pack)
    one = summary["members"][0]
    assert one["solo"]["steps_per_s"] == pytest.approx(20, rel=0.01)
    assert one["slowdown"] == pytest.approx(2.0, rel=0.01)
    assert [(e["came"], e["went"]) for e in one["interference"]] == [([], [2]), ([2], [])]
    assert summary["pack"]["overlap_s"] == pytest.approx(200, abs=0.1)


def test_a_pause_that_did_not_end_lasts_as_long_as_the_member(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 120, lambda _at: 10), Truth(2, 0, 100, lambda _at: 10, stops=[(80, 100)])]
    pack = make_pack(tmp_path, truths)
    append_change(pack, T0 + 80, paused=[(2, 1), (7, 1)])
    one, two = build(pack)["members"]
    assert one["stopped_s"] == 0
    assert two["stopped_s"] == pytest.approx(20, abs=0.1)
    assert two["rate"]["steps_per_s"] == pytest.approx(10, rel=0.01)
    # What is no record changes nothing.
    for begin, end in (("NaN", T0), (T0, "NaN"), ("1" * 400, T0), (T0 + 300, "Infinity")):
        lines = [
            f'{{"schema": 1, "at": {begin}, "paused": [[2, 1]], "resumed": [], "reason": "x"}}',
            f'{{"schema": 1, "at": {end}, "paused": [], "resumed": [[2, 1]], "reason": "x"}}',
            "[" * 100_000,
            "\0" * 100,
        ]
        (pack / NAME).write_text("\n".join(lines))
        assert build(pack)["members"][1]["stopped_s"] == 0, begin
    forever = '{"schema": 1, "at": -Infinity, "paused": [[2, 1]], "resumed": []}'
    (pack / NAME).write_text(forever.replace("}", ', "reason": "parked"}'))
    assert build(pack)["members"][1]["stopped_s"] == pytest.approx(100, abs=0.1)


def test_a_rate_alone_counts_only_with_all_of_the_gpu_and_if_it_is_its_own(tmp_path: Path) -> None:
    truths = make_members()
    pack = make_pack(tmp_path, truths)
    write_stops(pack, truths)
    rates = (
        RateAlone(1, 12.0, at=T0 + 62, source=RateSource.FIRST, thread_percentage=100),
        RateAlone(2, 12.0, at=T0 + 66, thread_percentage=50),
        RateAlone(3, 12.0, at=T0 + 70, source=RateSource.FAMILY),
    )
    one, two, three = build(pack, measure(rates_alone=rates))["members"]
    assert one["slowdown"] == pytest.approx(1.2, rel=0.01)
    assert one["solo"]["measured_by"] == "pausing"
    assert two["slowdown"] is None
    assert three["slowdown"] is None
    assert "not measured while all others were paused" in three["unknown"]["slowdown"]


def test_the_family_of_a_member_that_was_measured_goes_by_it(tmp_path: Path) -> None:
    truths = make_members(rate=lambda _at: 8)
    pack = make_pack(tmp_path, truths, one_family=True)
    write_stops(pack, truths)
    members = build(pack, measure([1]))["members"]
    assert [m["solo"]["source"] for m in members] == ["pausing", "family", "family"]
    assert [m["solo"]["measured_by"] for m in members] == ["pausing"] * 3
    assert [m["slowdown"] for m in members] == [pytest.approx(1.25, rel=0.01)] * 3


def test_the_report_says_which_degree_was_best_and_what_measuring_cost(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, make_members())
    summary = build(pack)
    assert summary["degree"] is None
    assert "Degree:" not in render_report(summary, 140)
    why = (
        "no more than 2 run at once: 2 together make 1.9 times the progress of one alone, 3 make "
        "1.8, and member 2 would be 1.7 times slower than alone (1.5 is accepted)"
    )
    curve = (CurvePoint(2, 1.9), CurvePoint(3, 1.8, 0.05, 1.7, 2, 1.5, 2.0, (1, 2, 3)))
    decision = DegreeDecision(T0 + 70, DegreeState.SETTLED, 3, 2, 1.9, why)
    record = measure(
        curve=curve, degree=2, places=4, room=0, parked=(3,), decisions=(decision,), cost_s=3.4
    )
    summary = build(pack, record)
    text = " ".join(render_report(summary, 140).split())
    assert f"Degree: {why}; measuring cost 3.4 s of the pack's work (1.7 %)" in text
    degree = summary["degree"]
    assert (degree["state"], degree["degree"], degree["places"]) == ("SETTLED", 2, 4)
    assert (degree["room"], degree["parked"], degree["why"]) == (0, [3], why)
    assert degree["cost_share"] == pytest.approx(3.4 / 200, rel=0.01)
    assert degree["curve"][1]["members"] == (1, 2, 3)
    assert degree["rates_alone"][0]["source"] == "pausing"
    assert degree["decisions"][0]["stp"] == 1.9
    summary["degree"] = None
    assert "Degree:" not in render_report(summary, 140)
    (pack / "degree.json").write_text("{")
    summary = build(pack)
    assert summary["degree"] is None
    assert any("degree.json is damaged" in note for note in summary["notes"])


def test_a_member_makes_no_step_and_takes_nothing_of_the_gpu_while_it_is_stopped(
    tmp_path: Path,
) -> None:
    truth = Truth(1, 0, 200, lambda _at: 10, stops=[(60.3, 62.6), (80, 120)])
    gpu = make_gpu_rows(200, sm=lambda at: 0.0 if 80 < at < 120 else 0.5)
    pack = make_pack(tmp_path, [truth, Truth(2, 190, 200, lambda _at: 10)], gpu=gpu)
    write_stops(pack, [truth])
    one = compute_figures(read_run(pack, tmp_path))[0]
    assert one.steps_at[T0 + 62.6] == one.steps_at[T0 + 60.3]
    made = sum(step <= T0 + 60.3 for step in truth.make_steps())
    assert one.steps_at[T0 + 60.3] == pytest.approx(made, abs=1)
    alone = make_pack(tmp_path / "alone", [truth], gpu=gpu)
    write_stops(alone, [truth])
    (member,) = build(alone)["members"]
    assert member["sm_share"] == {"value": pytest.approx(0.5, rel=0.01), "attribution": "exact"}


def test_a_stop_of_a_moment_is_no_coming_and_going(tmp_path: Path) -> None:
    first = Truth(1, 0, 200, lambda at: 20 if at < 100 else 12)
    second = Truth(2, 0, 200, lambda _at: 10, stops=[(100, 101)])
    pack = make_pack(tmp_path, [first, second])
    write_stops(pack, [second])
    assert build(pack)["members"][0]["interference"] == []


def test_a_moment_alone_is_away_from_comings_goings_and_first_steps(tmp_path: Path) -> None:
    others = [(60.0, 66.0), (30.0, 34.0)]
    truths = [
        Truth(1, 0, 200, lambda _at: 10),
        Truth(2, 20, 200, lambda _at: 10, stops=others),
        # It ended while the second was stopped.
        Truth(3, 40, 61, lambda _at: 10),
    ]
    pack = make_pack(tmp_path, truths)
    write_stops(pack, truths)
    write_degree(pack, measure([1, 3]))
    run = read_run(pack, tmp_path)
    found = find_briefly_alone_start(run, run.members[0])
    assert found is not None
    first_step_at = truths[0].make_steps()[0] + 2
    expected = [(first_step_at, T0 + 18), (T0 + 30.3, T0 + 34), (T0 + 63, T0 + 66)]
    assert len(found.windows) == len(expected)
    for window, truth in zip(found.windows, expected, strict=True):
        assert window == pytest.approx(truth, abs=0.1)
    never = find_briefly_alone_start(run, run.members[2])
    assert never is not None
    assert never.windows == ()
    assert find_briefly_alone_start(run, run.members[1]) is None, "its rate was not measured"
