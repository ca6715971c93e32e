"""The ramp of a running pack: whom it holds back, what it writes down, whom it stops."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.model.degree.ramp_decision import Decision, RampState, is_time_reason
from slurm_colloc.model.job import SignalRequest
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.runtime.launch.step_command import StartedProcess
from slurm_colloc.runtime.outcome.verdict import StopReason, judge_process_end
from slurm_colloc.runtime.queue.members import Member, PackPlace
from slurm_colloc.runtime.queue.time_left import TimeLeft
from slurm_colloc.runtime.watch import latest_json
from slurm_colloc.store.pack.ramp_record import RampRecord, read_ramp, write_ramp

from ..store.builders import build_pack
from .ramp_stage import RATE, Stage


@pytest.fixture(autouse=True)
def _time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor's clock runs ahead of the machine's here."""
    monkeypatch.setattr(latest_json, "AHEAD_S", 1e6)


def test_the_next_waits_until_those_before_it_are_measured(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    assert [stage.start(), stage.start()] == [1, None]
    waiting = stage.members.by_number[2]
    assert waiting.record.reason == "the pack is being measured with 1 member"
    kept = read_ramp(stage.pack, stage.attempt)
    assert kept is not None
    assert (kept.state, kept.target, kept.reason) == (RampState.RAMPING, 1, "")
    stage.pass_time(20, lambda _: RATE)
    assert [stage.start(), stage.start()] == [2, None]
    assert waiting.record.reason != stage.members.by_number[3].record.reason
    assert stage.members.by_number[3].record.reason == "the pack is being measured with 2 members"
    assert [event["target"] for event in stage.events()] == [2]
    # The second brings nothing.
    stage.pass_time(60, lambda running: RATE / running)
    assert stage.start() is None
    kept = read_ramp(stage.pack, stage.attempt)
    assert kept is not None
    assert (kept.state, kept.target, len(kept.decisions)) == (RampState.SETTLED, 1, 2)
    assert stage.members.by_number[3].record.reason == kept.reason
    assert kept.reason == stage.events()[-1]["reason"]
    assert read_ramp(stage.pack, stage.attempt + 1) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"solo": None}, "the rate alone of none of them is known"),
        ({"unwatched": "monitor = false"}, "nothing is measured: monitor = false"),
    ],
)
def test_what_cannot_be_measured_holds_nobody_back(
    options: dict[str, Any], reason: str, tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, **options)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]
    (event,) = stage.events()
    assert event["reason"] == f"all may run at once: {reason}"
    assert read_ramp(stage.pack, stage.attempt) is None
    assert not any(member.record.reason for member in stage.members.by_number.values())


def test_nobody_is_held_back_until_its_time_is_too_short(
    tmp_path: Path, process: StartedProcess
) -> None:
    # Each may take 60 s.
    stage = Stage(tmp_path / "long", process, time_limit_s=200)
    assert [stage.start(), stage.start()] == [1, None]
    stage = Stage(tmp_path / "short", process, time_limit_s=70)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]
    assert stage.events() == []
    # What they show is looked at all the same.
    stage.pass_time(30, lambda running: RATE / running)
    assert stage.events()[0]["running"] == 4


def test_where_time_is_short_one_starts_after_the_other(
    tmp_path: Path, process: StartedProcess
) -> None:
    # Each may take 60 s alone, and 120 beside others; the pack has 60 s more.
    stage = Stage(tmp_path, process, time_limit_s=180)
    for member in stage.members.by_number.values():
        plan = dataclasses.replace(member.spec.plan, wall_limit_s=120)
        member.spec = dataclasses.replace(member.spec, plan=plan)
    assert [stage.start(), stage.start()] == [1, None]
    stage.clock = 39.0
    assert stage.start() is None
    stage.clock = 41.0
    assert [stage.start(), stage.start()] == [2, None]
    stage.clock = 70.0
    assert stage.start() is None
    # What the last one shows decides about the next: it brings nothing.
    stage.pass_time(40, lambda running: RATE / running)
    assert stage.events()[-1]["state"] == "SETTLED"
    stage.clock = 75.0
    assert stage.start() is None
    # Nothing would be left of what their time was stretched by.
    stage = Stage(tmp_path / "shorter", process, time_limit_s=109)
    for member in stage.members.by_number.values():
        plan = dataclasses.replace(member.spec.plan, wall_limit_s=120)
        member.spec = dataclasses.replace(member.spec, plan=plan)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]


def test_who_waits_for_a_larger_place_keeps_nobody_from_being_measured(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, start=2)
    stage.members.places = [PackPlace(0, 8, ()), *(PackPlace(index, 2, ()) for index in (1, 2, 3))]
    for number in (3, 4):
        member = stage.members.by_number[number]
        plan = dataclasses.replace(member.spec.plan, cpus=8)
        member.spec = dataclasses.replace(member.spec, plan=plan)
    assert [stage.start(), stage.start(), stage.start()] == [1, 2, None]
    assert stage.members.find_place(8) is None
    # Nobody else can start, so what is found out is said of those that run.
    stage.pass_time(20, lambda _: RATE)
    stage.pass_time(200, lambda _: 0.1 * RATE)
    last = stage.events()[-1]
    assert (last["state"], last["target"]) == ("STEPPED_BACK", 1)


def test_nobody_that_runs_counts_steps(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    for member in stage.members.by_number.values():
        job = dataclasses.replace(member.spec.job, instrument=False)
        member.spec = dataclasses.replace(member.spec, job=job)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]
    assert stage.events()[0]["reason"].endswith("nothing counts their steps")


def test_a_planned_pack_starts_whole(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, start=None)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]
    assert not (stage.pack / "ramp.json").exists()


@pytest.mark.parametrize(
    ("has_mps", "activity", "at_once"),
    [
        (True, {"sm_active": 0.35, "dram_active": 0.1, "engine_active": 0.9}, 2),
        # No further window for the last one alone.
        (True, {"sm_active": 0.3, "dram_active": 0.1, "engine_active": 0.9}, 4),
        (False, {"sm_active": 0.1, "dram_active": 0.1, "engine_active": 0.9}, 2),
        (False, {"sm_active": 0.1, "dram_active": 0.1, "engine_active": 0.25}, 4),
        (True, {"sm_active": 0.1, "dram_active": 0.5, "engine_active": 0.2}, 2),
        (True, {"sm_active": 0.1, "dram_active": 0.1, "pcie_rx_mib_s": 30_000.0}, 2),
        (True, {"sm_active": 0.1, "dram_active": 0.1, "pcie_tx_mib_s": 900.0}, 4),
        (True, {"engine_active": 0.2}, 2),
    ],
)
def test_after_the_first_as_many_start_as_there_is_room_for(
    has_mps: bool, activity: dict[str, float], at_once: int, tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, has_mps=has_mps)
    assert [stage.start(), stage.start()] == [1, None]
    stage.pass_time(20, lambda _: RATE, **activity)
    assert stage.events()[0]["target"] == at_once


def test_who_differs_from_the_first_is_not_judged_by_it(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, has_mps=True)
    assert [stage.start(), stage.start()] == [1, None]
    other = stage.members.by_number[4]
    job = dataclasses.replace(other.spec.job, arguments=("--big",))
    other.spec = dataclasses.replace(other.spec, job=job)
    stage.pass_time(20, lambda _: RATE, sm_active=0.1, dram_active=0.1)
    assert stage.events()[0]["target"] == 2


def test_the_bound_of_the_policy_is_that_of_who_has_none(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    for _ in range(4):
        stage.start()
        stage.pass_time(20, lambda running: RATE / (1 + 0.3 * (running - 1)))
    assert "times slower than alone, and 1.5 times is accepted" in stage.events()[-1]["reason"]
    assert len(stage.members.running()) == 3


def test_who_would_be_ended_half_way_is_not_started(
    tmp_path: Path, process: StartedProcess
) -> None:
    # Each may take 60 s, and the pack 200.
    stage = Stage(tmp_path, process, start=None, time_limit_s=200)
    first, second, third, fourth = stage.members.by_number.values()
    stage.clock = 150.0
    # None has run: another pack would be no better.
    assert not stage.time_left.describe(first)
    stage.clock = 100.0
    assert stage.start() == 1
    assert not stage.time_left.describe(second)
    # Those would not be submitted again.
    allow_signal(third, requeue=False)
    fourth.record = dataclasses.replace(fourth.record, starts=1)
    stage.clock = 141.0
    assert stage.start() == 3
    text = second.record.reason
    assert text == (
        "the pack has only 0:59 left, and it may take 1:00: "
        "it is submitted again once the pack has ended"
    )
    assert is_time_reason(text)
    stage.clock = 160.0
    assert stage.start() == 4
    assert second.record.reason == text


@pytest.mark.parametrize(
    ("limit_s", "changes"),
    [
        (None, {}),
        # No pack of that limit has more time.
        (70, {}),
        (200, {"carried": True}),
        (200, {"local": True}),
        (200, {"resubmissions": 3}),
    ],
)
def test_who_is_started_however_little_time_is_left(
    limit_s: int | None, changes: dict[str, Any], tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, start=None)
    stage.start()
    record = dataclasses.replace(
        build_pack("s").record, request=PackRequest(1, None, 2, None, limit_s), **changes
    )
    now = 0.0
    left = TimeLeft(stage.pack, record, stage.members, site_requeues=True, clock=lambda: now)
    now = 195.0
    assert not left.describe(stage.members.by_number[2])


def test_the_rate_of_a_probed_member_is_that_of_its_family(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, solo=None)
    assert stage.start() == 1
    stage.probe_window.rates[1] = RATE
    assert stage.start() is None
    stage.pass_time(20, lambda _: RATE)
    assert stage.start() == 2
    stage.pass_time(30, lambda _: RATE)
    assert stage.events()[-1]["stp"] == pytest.approx(2.0, abs=0.05)


def test_what_the_probe_window_shows_is_not_measured_again(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, solo=None, has_mps=True, probes=True)
    assert [stage.start(), stage.start()] == [1, None]
    assert stage.probe_window.is_open
    stage.pass_time(30, lambda _: RATE, sm_active=0.2, dram_active=0.1)
    assert not (stage.pack / "ramp.json").exists()
    # One look, and as many start as there is room for.
    stage.steady = True
    stage.pass_time(2, lambda _: RATE, sm_active=0.2, dram_active=0.1)
    assert [event["target"] for event in stage.events()] == [4]
    assert [stage.start() for _ in range(3)] == [2, 3, 4]


def allow_signal(member: Member, *, batch_shell: bool = True, **changes: Any) -> None:
    request = SignalRequest(10, 60, batch_shell)
    job = dataclasses.replace(member.spec.job, signal=request, **changes)
    member.spec = dataclasses.replace(member.spec, job=job)


def test_the_newest_that_can_go_on_later_is_stopped(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, start=None)
    for _ in range(4):
        stage.start()
    allow_signal(stage.members.by_number[1])
    allow_signal(stage.members.by_number[2])
    allow_signal(stage.members.by_number[3], requeue=False)
    # Nothing of it would get the signal.
    allow_signal(stage.members.by_number[4], batch_shell=False)
    stage.pass_time(200, lambda running: 0.8 * RATE / running)
    assert stage.stopped[0] == 2
    assert stage.events()[-1]["state"] == "STEPPED_BACK"


def test_who_is_stopped_goes_back_to_waiting_however_it_ends() -> None:
    for status in (0, 7 << 8, 15):
        record = {"wait_status": status, "foreign_signals": []}
        verdict = judge_process_end(
            record, started=True, srun_status=0, log="", asked=StopReason.STEPPED_BACK
        )
        assert verdict.state is MemberState.PENDING
        assert verdict.exit_code == ExitCode.from_wait_status(status)
        assert verdict.reason == "stopped so that fewer run at once"


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": ["x"]},
        {"at": "then"},
        {"stp": "much"},
        {"stp": float("inf")},
        {"running": 1.5},
        {"target": None},
        {"state": 3},
        {"stops_one": "yes"},
    ],
)
def test_a_decision_of_other_hands_is_told(changes: dict[str, Any], tmp_path: Path) -> None:
    decision = Decision(1.0, RampState.SETTLED, 2, 2, 1.9, "no more than 2 run at once", True)
    record = RampRecord(1, RampState.SETTLED, 2, 4, (decision,))
    write_ramp(tmp_path, record)
    assert read_ramp(tmp_path, 1) == record
    value = json.loads((tmp_path / "ramp.json").read_text())
    value["decisions"][0].update(changes)
    (tmp_path / "ramp.json").write_text(json.dumps(value))
    with pytest.raises(StateError, match=r"ramp.json is damaged"):
        read_ramp(tmp_path, 1)


def test_a_record_of_other_hands_is_told(tmp_path: Path) -> None:
    record = RampRecord(1, RampState.SETTLED, 2, 4)
    write_ramp(tmp_path, record)
    assert read_ramp(tmp_path, 1) == record
    (tmp_path / "ramp.json").write_text('{"schema": 1, "attempt": 1, "state": "SLEEPING"}')
    with pytest.raises(StateError, match=r"ramp.json is damaged"):
        read_ramp(tmp_path, 1)
