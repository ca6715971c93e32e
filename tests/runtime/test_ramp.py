"""The ramp of a running pack: whom it holds back, what it writes down, whom it stops."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.job import SignalRequest
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.model.ramp_decision import RampState, is_time_reason
from slurm_colloc.runtime import lookout
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launcher import Process, start_process
from slurm_colloc.runtime.ledger import Ledger
from slurm_colloc.runtime.lookout import Lookout
from slurm_colloc.runtime.probing import Probing
from slurm_colloc.runtime.ramp import Ramping
from slurm_colloc.runtime.roster import Member, Place, Roster
from slurm_colloc.runtime.time_left import TimeLeft
from slurm_colloc.runtime.verdict import Asked, judge_end
from slurm_colloc.store.directory import read_spec
from slurm_colloc.store.files import write_json
from slurm_colloc.store.packs import State
from slurm_colloc.store.ramp import RampRecord, read_ramp, write_ramp
from slurm_colloc.store.states import StateRecord, begin_attempt

from ..store.builders import build_pack


@pytest.fixture(autouse=True)
def _time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor's clock runs ahead of the machine's here."""
    monkeypatch.setattr(lookout, "AHEAD_S", 1e6)


RATE = 10.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Something that runs."""
    running = start_process(
        [sys.executable, "-c", "import time; time.sleep(300)"], {}, str(tmp_path / "log")
    )
    yield running
    running.kill()
    while running.poll() is None:
        time.sleep(0.01)


class Stage:
    """A pack of four places, with its files and without Slurm.

    Args:
        folder: Where its state is.
        process: What every member that runs is given as its process.
        members: How many there are.
        start: Members that start without being measured.
        solo: The rate alone by their plans.
        unwatched: Why nothing is measured.
        time_limit_s: The pack's.
        has_mps: They share through MPS.
        probes: The first runs alone first.
    """

    def __init__(
        self,
        folder: Path,
        process: Process,
        *,
        members: int = 4,
        start: int | None = 1,
        solo: float | None = RATE,
        unwatched: str = "",
        time_limit_s: int | None = None,
        has_mps: bool = False,
        probes: bool = False,
    ) -> None:
        state = State(folder / "state", "here")
        state.prepare()
        with state.writing([build_pack("s", members=members)]):
            pass
        self.pack = state.pack_path("s.0")
        self.attempt = begin_attempt(self.pack, 1)
        self.process = process
        self.roster = Roster([Place(index, 2, ()) for index in range(4)])
        ledger = Ledger(self.pack, self.attempt)
        journal = Journal(self.pack)
        for number in range(1, members + 1):
            spec = read_spec(self.pack, number)
            spec = dataclasses.replace(
                spec,
                job=dataclasses.replace(spec.job, time_limit_s=3600 if probes else 60),
                plan=dataclasses.replace(spec.plan, solo_steps_per_s=solo),
            )
            record = StateRecord(MemberState.PENDING, self.attempt)
            self.roster.members[number] = Member(number, spec, record)
            self.roster.waiting.append(number)
        self.stopped: list[int] = []
        self.probing = Probing(
            pack=self.pack, shown_id="1", roster=self.roster, ledger=ledger, journal=journal,
            is_wanted=probes, instruments=True, find_gpu_model=lambda: "NVIDIA H200",
            why_unwatched=lambda: "", end=lambda _: None,
        )  # fmt: skip
        lookout = Lookout(
            self.pack, self.roster, self.probing, instruments=True, has_mps=lambda: has_mps,
            find_gpu_memory_mb=lambda: 80_000, bound=1.5,
        )  # fmt: skip
        planned = state.read_pack("s.0")
        assert planned is not None
        request = PackRequest(1, None, 2, None, time_limit_s)
        self.clock = 0.0
        self.time_left = TimeLeft(
            self.pack, dataclasses.replace(planned, request=request), self.roster, ledger, journal,
            site_requeues=True, clock=lambda: self.clock,
        )  # fmt: skip
        self.ramping = Ramping(
            pack=self.pack, attempt=self.attempt, start_degree=start, time_left=self.time_left,
            roster=self.roster, ledger=ledger, journal=journal, probing=self.probing,
            site_requeues=True, why_unwatched=lambda: unwatched, lookout=lookout,
            step_back=lambda member: self.stopped.append(member.number),
        )  # fmt: skip
        self.at = time.time() + 1
        self.steady = False

    def start(self) -> int | None:
        """Start the next member, if it is not held back."""
        if self.probing.holds(self.roster.members[self.roster.waiting[0]]):
            return None
        if self.ramping.holds(self.roster.members[self.roster.waiting[0]]):
            self.ramping.tell_waiting()
            return None
        number = self.roster.waiting.popleft()
        member = self.roster.members[number]
        member.process, member.pid = self.process, self.process.pid
        member.record = dataclasses.replace(
            member.record, state=MemberState.RUNNING, starts=1, started_at=self.at + number
        )
        next(place for place in self.roster.places if place.occupant is None).occupant = number
        return number

    def pass_time(self, seconds: float, rate: Callable[[int], float], **activity: float) -> None:
        """The monitor writes its figures every two seconds: steps per second for so many."""
        end = self.at + seconds
        done: dict[int, float] = getattr(self, "done", {})
        while self.at < end:
            self.at += 2
            running = self.roster.running()
            for member in running:
                done[member.number] = done.get(member.number, 0.0) + 2 * rate(len(running))
            rows = {
                str(member.number): {
                    "start": 1, "steps": int(done[member.number]), "steady": self.steady,
                    "steps_per_s": rate(len(running)),
                    "last_step_age_s": 0.0, "gpu_memory_mb": 5000.0,
                }
                for member in running
            }  # fmt: skip
            value: dict[str, Any] = {
                "at": self.at,
                "gpus": {"GPU-1": activity},
                "problems": {},
                "members": rows,
            }
            write_json(f"{self.pack}/latest.json", value)
            self.probing.work()
            self.ramping.work()
        self.done = done

    def events(self) -> list[dict[str, Any]]:
        lines = (self.pack / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "ramp"]


def test_the_next_waits_until_those_before_it_are_measured(
    tmp_path: Path, process: Process
) -> None:
    stage = Stage(tmp_path, process)
    assert [stage.start(), stage.start()] == [1, None]
    waiting = stage.roster.members[2]
    assert waiting.record.reason == "the pack is being measured with 1 member"
    kept = read_ramp(stage.pack, stage.attempt)
    assert kept is not None
    assert (kept.state, kept.target, kept.reason) == (RampState.RAMPING, 1, "")
    stage.pass_time(20, lambda _: RATE)
    assert [stage.start(), stage.start()] == [2, None]
    assert waiting.record.reason != stage.roster.members[3].record.reason
    assert stage.roster.members[3].record.reason == "the pack is being measured with 2 members"
    assert [event["target"] for event in stage.events()] == [2]
    # The second brings nothing.
    stage.pass_time(60, lambda running: RATE / running)
    assert stage.start() is None
    kept = read_ramp(stage.pack, stage.attempt)
    assert kept is not None
    assert (kept.state, kept.target, len(kept.decisions)) == (RampState.SETTLED, 1, 2)
    assert stage.roster.members[3].record.reason == kept.reason
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
    options: dict[str, Any], reason: str, tmp_path: Path, process: Process
) -> None:
    stage = Stage(tmp_path, process, **options)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]
    (event,) = stage.events()
    assert event["reason"] == f"all may run at once: {reason}"
    assert read_ramp(stage.pack, stage.attempt) is None
    assert not any(member.record.reason for member in stage.roster.members.values())


def test_nobody_is_held_back_until_its_time_is_too_short(tmp_path: Path, process: Process) -> None:
    # Each may take 60 s.
    stage = Stage(tmp_path / "long", process, time_limit_s=200)
    assert [stage.start(), stage.start()] == [1, None]
    stage = Stage(tmp_path / "short", process, time_limit_s=70)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]
    assert stage.events() == []
    # What they show is looked at all the same.
    stage.pass_time(30, lambda running: RATE / running)
    assert stage.events()[0]["running"] == 4


def test_nobody_that_runs_counts_steps(tmp_path: Path, process: Process) -> None:
    stage = Stage(tmp_path, process)
    for member in stage.roster.members.values():
        job = dataclasses.replace(member.spec.job, instrument=False)
        member.spec = dataclasses.replace(member.spec, job=job)
    assert [stage.start() for _ in range(4)] == [1, 2, 3, 4]
    assert stage.events()[0]["reason"].endswith("nothing counts their steps")


def test_a_planned_pack_starts_whole(tmp_path: Path, process: Process) -> None:
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
        (True, {"engine_active": 0.2}, 2),
    ],
)
def test_after_the_first_as_many_start_as_there_is_room_for(
    has_mps: bool, activity: dict[str, float], at_once: int, tmp_path: Path, process: Process
) -> None:
    stage = Stage(tmp_path, process, has_mps=has_mps)
    assert [stage.start(), stage.start()] == [1, None]
    stage.pass_time(20, lambda _: RATE, **activity)
    assert stage.events()[0]["target"] == at_once


def test_who_differs_from_the_first_is_not_judged_by_it(tmp_path: Path, process: Process) -> None:
    stage = Stage(tmp_path, process, has_mps=True)
    assert [stage.start(), stage.start()] == [1, None]
    other = stage.roster.members[4]
    job = dataclasses.replace(other.spec.job, arguments=("--big",))
    other.spec = dataclasses.replace(other.spec, job=job)
    stage.pass_time(20, lambda _: RATE, sm_active=0.1, dram_active=0.1)
    assert stage.events()[0]["target"] == 2


def test_the_bound_of_the_policy_is_that_of_who_has_none(tmp_path: Path, process: Process) -> None:
    stage = Stage(tmp_path, process)
    for _ in range(4):
        stage.start()
        stage.pass_time(20, lambda running: RATE / (1 + 0.3 * (running - 1)))
    assert "times slower than alone, and 1.5 times is accepted" in stage.events()[-1]["reason"]
    assert len(stage.roster.running()) == 3


def test_who_would_be_ended_half_way_is_not_started(tmp_path: Path, process: Process) -> None:
    # Each may take 60 s, and the pack 200.
    stage = Stage(tmp_path, process, start=None, time_limit_s=200)
    first, second, third, fourth = stage.roster.members.values()
    stage.clock = 150.0
    # Nobody has run: another pack would be no better.
    assert not stage.time_left.holds(first)
    stage.clock = 100.0
    assert stage.start() == 1
    assert not stage.time_left.holds(second)
    stage.clock = 141.0
    assert stage.time_left.holds(second)
    text = second.record.reason
    assert text == (
        "the pack has only 0:59 left, and it may take 1:00: "
        "it is submitted again once the pack has ended"
    )
    assert is_time_reason(text)
    stage.clock = 160.0
    assert stage.time_left.holds(second)
    assert second.record.reason == text
    # Nobody would submit these again.
    allow_signal(third, requeue=False)
    assert not stage.time_left.holds(third)
    fourth.record = dataclasses.replace(fourth.record, starts=1)
    assert not stage.time_left.holds(fourth)


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
    limit_s: int | None, changes: dict[str, Any], tmp_path: Path, process: Process
) -> None:
    stage = Stage(tmp_path, process, start=None)
    stage.start()
    record = dataclasses.replace(
        build_pack("s").record, request=PackRequest(1, None, 2, None, limit_s), **changes
    )
    now = 0.0
    left = TimeLeft(
        stage.pack, record, stage.roster, Ledger(stage.pack, 1), Journal(stage.pack),
        site_requeues=True, clock=lambda: now,
    )  # fmt: skip
    now = 195.0
    assert not left.holds(stage.roster.members[2])


def test_the_rate_of_a_probed_member_is_that_of_its_family(
    tmp_path: Path, process: Process
) -> None:
    stage = Stage(tmp_path, process, solo=None)
    assert stage.start() == 1
    stage.probing.rates[1] = RATE
    assert stage.start() is None
    stage.pass_time(20, lambda _: RATE)
    assert stage.start() == 2
    stage.pass_time(30, lambda _: RATE)
    assert stage.events()[-1]["stp"] == pytest.approx(2.0, abs=0.05)


def test_what_the_probe_window_shows_is_not_measured_again(
    tmp_path: Path, process: Process
) -> None:
    stage = Stage(tmp_path, process, solo=None, has_mps=True, probes=True)
    assert [stage.start(), stage.start()] == [1, None]
    assert stage.probing.is_open
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


def test_the_newest_that_can_go_on_later_is_stopped(tmp_path: Path, process: Process) -> None:
    stage = Stage(tmp_path, process, start=None)
    for _ in range(4):
        stage.start()
    allow_signal(stage.roster.members[1])
    allow_signal(stage.roster.members[2])
    allow_signal(stage.roster.members[3], requeue=False)
    # Nothing of it would get the signal.
    allow_signal(stage.roster.members[4], batch_shell=False)
    stage.pass_time(200, lambda running: 0.8 * RATE / running)
    assert stage.stopped[0] == 2
    assert stage.events()[-1]["state"] == "STEPPED_BACK"


def test_who_is_stopped_goes_back_to_waiting_however_it_ends() -> None:
    for status in (0, 7 << 8, 15):
        record = {"wait_status": status, "foreign_signals": []}
        verdict = judge_end(record, started=True, srun_status=0, log="", asked=Asked.STEPPED_BACK)
        assert verdict.state is MemberState.PENDING
        assert verdict.exit_code == ExitCode.from_wait_status(status)
        assert verdict.reason == "stopped so that fewer run at once"


def test_a_record_of_other_hands_is_told(tmp_path: Path) -> None:
    record = RampRecord(1, RampState.SETTLED, 2, 4)
    write_ramp(tmp_path, record)
    assert read_ramp(tmp_path, 1) == record
    (tmp_path / "ramp.json").write_text('{"schema": 1, "attempt": 1, "state": "SLEEPING"}')
    with pytest.raises(Exception, match=r"ramp.json is damaged"):
        read_ramp(tmp_path, 1)
