"""What `csub plan` shows of plans whose length nobody measured."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from slurm_colloc.model.plan import PeakSource, Policy, SharingMode, UsageProfile
from slurm_colloc.planning.explanation import PlanExplanation
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.planning.plan_reasons import build_explanation
from slurm_colloc.report.plan_view import (
    build_plan_json,
    compute_plan_figures,
    draw_bar,
    render_budget,
    render_comparison,
    render_plan,
)
from slurm_colloc.report.terminal_tables import format_span
from tests.planning.known_jobs import (
    CALIBRATION,
    LARGE,
    POLICY,
    ROOMY,
    SATURATING,
    SMALL,
    build_call,
)

UNTIMED = dataclasses.replace(SMALL, run_s=None)


def explain(*profiles: UsageProfile) -> PlanExplanation:
    jobs, known = build_call(*(("small", profile) for profile in profiles))
    made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
    return build_explanation(made, jobs, known, ROOMY, POLICY, CALIBRATION)


def test_a_length_that_was_measured_is_shown() -> None:
    found = explain(SMALL, SMALL)
    text = render_plan(found, 120)
    assert text.startswith("2 jobs in 1 pack: 10 min")
    assert "20 min 00 s one after the other" in text
    assert "ends after 10 min" in text
    value = build_plan_json(found)
    assert value["figures"]["serial_gpu_hours"] == 1200 / 3600
    assert value["packs"][0]["members"][0]["run_s"] == 600


@pytest.mark.parametrize("mode", [SharingMode.MPS, SharingMode.MIG])
def test_what_packs_take_adds_up_to_what_the_plan_takes(mode: SharingMode) -> None:
    policy = dataclasses.replace(POLICY, mode=mode, modes=(mode,))
    tiny = dataclasses.replace(SMALL, sm_activity=0.04, dram_activity=0.01)
    huge = dataclasses.replace(LARGE, gpu_memory_peak_mb=120_000)
    found = explain_by(policy, ("a", tiny), ("b", tiny), ("huge", huge))
    assert [pack.mode for pack in found.packs] == [mode, SharingMode.EXCLUSIVE]
    value = build_plan_json(found)
    held = [pack["predicted_finish_s"] for pack in value["packs"]]
    assert value["figures"]["gpu_hours"] == pytest.approx(sum(held) / 3600)
    assert value["figures"]["finish_s"] == max(held)
    (together,) = explain_by(policy, ("a", tiny), ("b", tiny)).packs
    text = render_plan(explain_by(policy, ("a", tiny), ("b", tiny)), 120)
    span = format_span(together.predicted_finish_s)
    assert text.startswith(f"2 jobs in 1 pack: {span} of GPU time")
    assert f"ends after {span}" in text


def test_long_spans_are_rounded_to_the_minute() -> None:
    spans = [format_span(7200 + seconds) for seconds in (-31, -29, 0, 29, 31)]
    assert spans == ["1 h 59 min", "2 h 00 min", "2 h 00 min", "2 h 00 min", "2 h 01 min"]


def test_a_reason_that_several_parts_of_a_call_have_is_told_once() -> None:
    found = dataclasses.replace(explain(SMALL, SMALL), reasons=("one", "two", "one"))
    text = render_plan(found, 80, explain=True)
    assert [line for line in text.splitlines() if line.startswith("Plan: ")] == [
        "Plan: one",
        "Plan: two",
    ]
    assert build_plan_json(found)["reasons"] == ["one", "two"]


def test_a_guessed_length_is_shown_nowhere() -> None:
    for profiles in ((UNTIMED, UNTIMED), (SMALL, UNTIMED)):
        found = explain(*profiles)
        text = render_plan(found, 120, explain=True)
        assert text.startswith("2 jobs in 1 pack; how long they hold a GPU is not known yet")
        assert "one after the other" not in text
        assert "ends after" not in text
        assert "how long is not known yet, time limit " in text
        assert "members run alone has not been measured" in text
        value = json.loads(json.dumps(build_plan_json(found)))
        figures = value["figures"]
        assert (figures["gpu_hours"], figures["serial_gpu_hours"], figures["finish_s"]) == (
            None,
            None,
            None,
        )
        assert figures["mean_slowdown"] > 1
        assert value["packs"][0]["predicted_finish_s"] is None
        lengths = [member["run_s"] for member in value["packs"][0]["members"]]
        assert sorted(lengths, key=str) == sorted((p.run_s for p in profiles), key=str)


def explain_by(policy: Policy, *kinds: tuple[str, UsageProfile | None]) -> PlanExplanation:
    jobs, known = build_call(*kinds)
    made = plan(jobs, known, ROOMY, policy, CALIBRATION)
    return build_explanation(made, jobs, known, ROOMY, policy, CALIBRATION)


def find_rows(text: str, name: str) -> list[str]:
    return [line.split(name)[0].strip() for line in text.splitlines() if f" {name} " in line]


def test_packs_that_are_alike_show_the_members_of_all() -> None:
    policy = dataclasses.replace(POLICY, degree=2, degree_is_asked=True)
    text = render_plan(explain_by(policy, *[("small", SMALL)] * 6), 80)
    assert "Packs 1-3, alike: 2 members each, 2 at once" in text
    assert find_rows(text, "small") == ["1-6"]
    alone = dataclasses.replace(POLICY, degree=1, degree_max=1)
    text = render_plan(explain_by(alone, *[("small", SMALL), ("large", LARGE)] * 2), 80)
    assert "Packs 1,3, alike: one job each, alone" in text
    assert find_rows(text, "small") == ["1,3"]
    assert find_rows(text, "large") == ["2,4"]


def test_many_numbers_of_members_go_on_and_the_last_are_counted() -> None:
    alone = dataclasses.replace(POLICY, degree=1, degree_max=1)
    for most, cells in (
        (7, ["1,4,9,16,25,", "36,49"]),
        (16, ["1,4,9,16,25,", "36,49,64,81,", "100,121,144,", "and 4 more"]),
    ):
        squares = [n * n for n in range(1, most + 1)]
        kinds = [
            ("small", SMALL) if number in squares else ("large", LARGE)
            for number in range(1, squares[-1] + 1)
        ]
        text = render_plan(explain_by(alone, *kinds), 80)
        shown = text.partition("GPU_MEM\n")[2].partition("\n\n")[0].splitlines()
        assert [re.split(" {2,}| small", line.strip())[0] for line in shown] == cells
        assert max(map(len, text.splitlines())) <= 80


def test_pairs_of_one_name_are_told_by_their_numbers() -> None:
    policy = dataclasses.replace(POLICY, degree=3, degree_is_asked=True)
    found = explain_by(policy, *[("small", SMALL)] * 6)
    text = " ".join(render_plan(found, 80, explain=True).split())
    assert "small 1 and small 4 (with small 2-3), 9 such pairs: 4 would run at once" in text
    (value,) = build_plan_json(found)["not_together"]
    assert (value["first"], value["first_number"], value["second_number"]) == ("small", 1, 4)
    assert value["pack_indices"] == (0, 1, 2)
    found = explain_by(POLICY, ("one", SATURATING), ("two", SATURATING))
    assert "  one and two: two would be" in render_plan(found, 80, explain=True)


def test_a_bar_and_its_figures_stay_on_one_line() -> None:
    heavy = dataclasses.replace(SMALL, gpu_memory_peak_mb=52_500)
    text = render_plan(explain_by(POLICY, ("a", heavy), ("b", heavy)), 80)
    (line,) = [line for line in text.splitlines() if "GPU memory" in line]
    assert line.endswith("125.0 GB of 133.4 GB")
    assert len(line) <= 80


def test_the_comparison_shows_energy() -> None:
    found = explain_by(POLICY, ("a", SMALL), ("b", SMALL))
    alone = explain_by(
        dataclasses.replace(POLICY, degree=1, degree_max=1), ("a", SMALL), ("b", SMALL)
    )
    text = render_comparison(found, alone, "degree=1", 80)
    (row,) = [line for line in text.splitlines() if line.startswith("GPU energy (Wh)")]
    packed_wh, apart_wh = map(float, row.split()[-2:])
    assert apart_wh == 53.3, "160 W for 1200 s"
    assert packed_wh < apart_wh
    assert build_plan_json(alone)["figures"]["energy_wh"] == 160 * 1200 / 3600
    dark = dataclasses.replace(SMALL, power_w=None)
    unknown = explain_by(POLICY, ("a", SMALL), ("b", dark))
    text = render_comparison(found, unknown, "nothing", 80)
    (row,) = [line for line in text.splitlines() if line.startswith("GPU energy (Wh)")]
    assert row.split()[-1] == "unknown"
    assert build_plan_json(unknown)["figures"]["energy_wh"] is None


def test_the_last_job_ends_when_as_many_packs_ran_as_may() -> None:
    kinds = [("small", SMALL)] * 12
    policy = dataclasses.replace(POLICY, degree=2, degree_is_asked=True)
    free = compute_plan_figures(explain_by(policy, *kinds))
    limited = dataclasses.replace(policy, running_limit=4)
    held = compute_plan_figures(explain_by(limited, *kinds))
    assert (free.packs, held.packs) == (6, 6)
    assert free.finish_s is not None
    assert held.finish_s == 3 * free.finish_s
    head = render_plan(explain_by(limited, *kinds), 80).partition("\n\n")[0].replace("\n", " ")
    assert head.endswith(
        f"; 2 packs at a time, the last ends {format_span(held.finish_s)} after the first has "
        "started"
    )
    assert "at a time" not in render_plan(explain_by(policy, *kinds), 80)
    assert held.gpu_hours == free.gpu_hours == pytest.approx(6 * free.finish_s / 3600)


def test_the_last_job_ends_when_as_many_packs_ran_as_there_are_gpus() -> None:
    kinds = [("small", SMALL)] * 12
    policy = dataclasses.replace(POLICY, degree=2, degree_is_asked=True)
    found = explain_by(policy, *kinds)
    free = compute_plan_figures(found)
    assert free.finish_s is not None
    for gpus, rounds in ((2, 3), (1, 6), (6, 1), (50, 1), (None, 1)):
        figures = compute_plan_figures(dataclasses.replace(found, gpus=gpus))
        assert figures.finish_s == pytest.approx(rounds * free.finish_s)
    limited = explain_by(dataclasses.replace(policy, running_limit=4), *kinds)
    one = compute_plan_figures(dataclasses.replace(limited, gpus=1))
    assert one.finish_s == pytest.approx(6 * free.finish_s)


def test_a_mean_is_never_above_the_worst() -> None:
    for count in range(2, 12):
        figures = compute_plan_figures(explain_by(POLICY, *[("small", SMALL)] * count))
        assert figures.mean_slowdown is not None
        assert figures.worst_slowdown is not None
        assert figures.mean_slowdown <= figures.worst_slowdown


def test_who_shares_with_whom_is_told_where_packs_are_alike() -> None:
    policy = dataclasses.replace(POLICY, degree=3, degree_is_asked=True)
    text = render_plan(explain_by(policy, *[("small", SMALL)] * 9), 80)
    assert "  pack 1 has 1-3; 2 has 4-6; 3 has 7-9\n" in text
    many = render_plan(explain_by(policy, *[("small", SMALL)] * 60), 80)
    assert "12 has 34-36; and 8 more" in " ".join(many.split())
    assert "has" not in render_plan(explain_by(POLICY, *[("small", SMALL)] * 3), 80)


def test_a_screen_shows_some_pairs_and_counts_the_others_and_json_has_more() -> None:
    kinds = [
        (f"j{n}", dataclasses.replace(SMALL, gpu_memory_peak_mb=80_000 + 100 * n))
        for n in range(1, 17)
    ]
    explanation = explain_by(POLICY, *kinds)
    assert len(build_plan_json(explanation)["not_together"]) == 120
    assert build_plan_json(explanation)["not_together_left_out"] == 0
    text = render_plan(explanation, 100, explain=True)
    shown = text.partition("Not together:")[2]
    assert shown.count(" MB are usable") == 50
    assert "  and 70 more pairs of jobs\n" in text


def test_pairs_with_one_job_in_common_and_one_reason_are_told_in_one_sentence() -> None:
    huge = dataclasses.replace(SMALL, gpu_memory_peak_mb=130_000)
    kinds = [("a", SMALL), ("b", LARGE), ("new", None), ("huge", huge), ("b", LARGE)]
    found = explain_by(POLICY, *kinds)
    text = " ".join(render_plan(found, 80, explain=True).partition("Not together:")[2].split())
    # With the two that are alike, five pairs.
    assert "new and each of a, b 2, huge, 4 such pairs: what new uses of a GPU is not" in text
    assert text.count("is not known yet") == 1
    value = build_plan_json(found)["not_together"]
    assert sum("what new uses" in pair["text"] for pair in value) == 3, "JSON has all"


def test_of_many_jobs_in_one_sentence_some_are_named() -> None:
    kinds = [(f"j{n}", dataclasses.replace(SMALL, run_s=70.0 * n)) for n in range(1, 13)]
    found = explain_by(POLICY, *kinds, ("new", None))
    text = " ".join(render_plan(found, 80, explain=True).partition("Not together:")[2].split())
    names = ", ".join(f"j{n}" for n in range(1, 9))
    assert text.startswith(f"new and each of {names} and 4 more: what new uses of a GPU")


def test_a_bar_ends_where_all_is_taken_and_its_figure_goes_on() -> None:
    assert [draw_bar(share, 10) for share in (-0.1, 0.0, 0.5, 1.0, 1.37)] == [
        "----------",
        "----------",
        "#####-----",
        "##########",
        "##########",
    ]
    (pack,) = explain(SMALL, SMALL).packs
    over = dataclasses.replace(pack, sm_activity=1.37)
    (line,) = [line for line in render_budget(over, 80) if line.startswith("SM")]
    assert line == f"SM          {'#' * 37}  137 %"


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    found = dataclasses.replace(explain(SMALL, SMALL), reasons=("it takes 7200 s or 5 % of it",))
    for width in range(20, 60):
        text = render_plan(found, width, explain=True)
        lines = text[text.index("Plan: ") :].splitlines()
        assert not {"s", "%"} & {word for line in lines for word in line.split()[:1]}
        assert "7200 s" in text
        assert "5 %" in text


def test_a_plan_says_who_told_the_gpu_memory_that_it_rests_on() -> None:
    true = dataclasses.replace(SMALL, gpu_memory_by=PeakSource.ALLOCATOR)
    silent = dataclasses.replace(SMALL, gpu_memory_peak_mb=None)
    jobs, known = build_call(("a", true), ("b", SMALL), ("c", SMALL), ("d", silent))
    jobs[2] = dataclasses.replace(jobs[2], gpu_memory_mb=7000)
    made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
    found = build_explanation(made, jobs, known, ROOMY, POLICY, CALIBRATION)
    members = [member for pack in found.packs for member in pack.members]
    by = {member.name: (member.gpu_memory_by, member.gpu_memory_mb) for member in members}
    assert by == {
        "a": ("allocator", 8824),
        "b": ("nvml", 8824),
        "c": ("stated", 7000),
        "d": (None, None),
    }
    text = " ".join(render_plan(found, 200, explain=True).split())
    assert "the peak of earlier runs by PyTorch's allocator (a)" in text
    assert "the peak of earlier runs by NVML's readings (b)" in text
    assert "--gpu-mem (c)" in text
    assert "GPU memory: " not in render_plan(found, 200)
    value = json.loads(json.dumps(build_plan_json(found)))
    shown = {m["name"]: m["gpu_memory_by"] for pack in value["packs"] for m in pack["members"]}
    assert shown == {name: word for name, (word, _) in by.items()}
