"""The line of `csub why` in situations that are hard to bring about on a real cluster."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.top_command import LatestReading, render_top
from slurm_colloc.model.job import Job
from slurm_colloc.model.measured_curve import (
    CurvePoint,
    DegreeDecision,
    DegreeState,
    RateAlone,
    RateSource,
)
from slurm_colloc.model.member import (
    ExitCode,
    MemberState,
    SlurmJobState,
    WaitKind,
    WaitReason,
    describe_taken_at_once,
)
from slurm_colloc.model.plan import Policy, SharingReasons
from slurm_colloc.planning.pack_request import build_lone_pack
from slurm_colloc.planning.plan_packs import compute_reason_to_run_alone
from slurm_colloc.report.member_survey import (
    survey_packs,
)
from slurm_colloc.report.member_views import (
    PackView,
)
from slurm_colloc.report.queue_rows import build_member_json, build_table
from slurm_colloc.report.show_view import render_pack
from slurm_colloc.report.state_meanings import explain_member
from slurm_colloc.report.why_line import (
    Facts,
    describe_closed,
    explain_why,
    fold_lines,
)
from slurm_colloc.slurm.slurm_commands import SlurmJob
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import (
    PARKED,
    GpuUse,
    Retries,
    StateRecord,
    append_change,
    begin_attempt,
    write_held,
    write_state,
)
from slurm_colloc.store.pack_directory import read_spec, write_ended, write_spec
from slurm_colloc.store.runner_requests import DegreeRecord, WorkersAdvice, write_degree
from slurm_colloc.store.written_ends import RunnerKill, write_kill

from ..packs import build_pack

NOW = time.mktime((2026, 11, 21, 10, 30, 0, 0, 0, -1))
HOUR_AGO = NOW - 3600


CURVE = (CurvePoint(2, 1.9), CurvePoint(3, 1.8, None, 1.7, 3, 1.5))
BEST = (
    "no more than 2 run at once: 2 together make 1.9 times the progress of one alone, 3 make 1.8, "
    "and member 3 would be 1.7 times slower than alone (1.5 is accepted)"
)


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A state directory with one pack of three members, job 4711 of cluster `here`."""
    state = State(tmp_path / "state", "here")
    state.prepare()
    with state.writing([build_pack("s", members=3, cluster="here")]) as _:
        pass
    state.record_job([build_pack("s", cluster="here").record], "4711")
    return state


def look(state: State, slurm: str | None, reason: str = "", **changes: Any) -> PackView:
    """The pack as it is while its Slurm job is in a state."""
    jobs = None
    if slurm is not None:
        job = SlurmJob("4711", SlurmJobState(slurm), "1:00", "9:00", "n1", reason, "")
        jobs = {"4711": job} if slurm != "ABSENT" else {}
    [view] = survey_packs(state, ["s.0"], jobs)
    return dataclasses.replace(view, record=dataclasses.replace(view.record, **changes))


def write(state: State, number: int, member_state: MemberState, **fields: Any) -> None:
    path = state.pack_path("s.0")
    record = StateRecord(member_state, 1, node="n1", gpus=("0",), **fields)
    write_state(path, number, record)


def run(state: State, *numbers: int, limit_s: int | None = 7200) -> None:
    begin_attempt(state.pack_path("s.0"), 1)
    for number in numbers:
        write(state, number, MemberState.RUNNING, starts=1, started_at=HOUR_AGO,
              wall_limit_s=limit_s)  # fmt: skip


def line(view: PackView, number: int, **facts: Any) -> str:
    return str(explain_why(view, view.members[number - 1], Facts(NOW, **facts)))


def test_waiting_for_slurm(state: State) -> None:
    fields = {"NumCPUs": "4", "Partition": "gpu", "StartTime": "2026-11-21T12:00:00"}
    assert line(look(state, "PENDING", "Resources"), 1, fields=fields) == (
        "4711/1 PENDING: waits for 4 CPUs on a node of partition gpu to become free (Resources); "
        "Slurm expects to start it at 2026-11-21 12:00:00"
    )
    assert line(look(state, "PENDING", "Priority"), 1) == (
        "4711/1 PENDING: jobs with a higher priority come first (Priority); "
        "Slurm has not planned its start yet"
    )
    fields = {"Dependency": "afterok:12(unfulfilled)"}
    assert line(look(state, "PENDING", "Dependency"), 1, fields=fields) == (
        "4711/1 PENDING: waits for afterok:12(unfulfilled) (Dependency)"
    )


@pytest.mark.parametrize(
    ("limits_mb", "began_s", "is_told"),
    [
        ((None, 2000), (0, 60), True),
        # All have limits, or none has one.
        ((3000, 2000), (0, 60), False),
        ((None, None), (0, 60), False),
        # It came later itself.
        ((None, 2000), (60, 0), False),
    ],
)
def test_one_that_began_alone_is_told_what_others_have_changed(
    state: State, limits_mb: tuple[int | None, ...], began_s: tuple[int, ...], is_told: bool
) -> None:
    begin_attempt(state.pack_path("s.0"), 1)
    for number, (limit_mb, s) in enumerate(zip(limits_mb, began_s, strict=True), 1):
        write(state, number, MemberState.RUNNING, starts=1, started_at=HOUR_AGO + s,
              gpu=GpuUse("mps", gpu_memory_limit_mb=limit_mb))  # fmt: skip
    told = line(look(state, "RUNNING"), 1)
    text = "; it began alone and has no limit of GPU memory, those that came later have theirs"
    assert (text in told) is is_told


def test_waiting_for_a_member_of_another_pack_names_that_member(state: State) -> None:
    path = state.pack_path("s.0") / "members" / "0001"
    spec = read_spec(state.pack_path("s.0"), 1)
    depends = (("afterok", "12/3"), ("afterany", "14"))
    write_spec(path, dataclasses.replace(spec, job=dataclasses.replace(spec.job, depends=depends)))
    fields = {"Dependency": "afterany:12(unfulfilled),afterany:14(unfulfilled)"}
    assert line(look(state, "PENDING", "Dependency"), 1, fields=fields) == (
        "4711/1 PENDING: waits for afterok:12/3,afterany:14 (Dependency)"
    )
    # Its pack has begun too early, and its runner holds it.
    begin_attempt(state.pack_path("s.0"), 1)
    waits = WaitReason(WaitKind.DEPENDENCY, name="afterok:12/3")
    write(state, 1, MemberState.PENDING, waits=waits)
    write_held(state.pack_path("s.0"), 1)
    view = look(state, "RUNNING")
    assert line(view, 1) == (
        "4711/1 PENDING: held, waits for afterok:12/3 (Dependency); csub release 4711/1 lets it "
        "go on"
    )
    assert "It is held" in explain_member(view, view.members[0], Facts(NOW))


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (0, "without workers its DataLoader cannot use 10 cores"),
        (1, "1 worker cannot use 10 cores"),
        (2, "2 workers cannot use 10 cores"),
    ],
)
def test_too_few_workers_for_the_cores_that_there_are(
    state: State, workers: int, said: str
) -> None:
    run(state, 1, 2)
    view = look(state, "RUNNING", degree=2)
    degree = DegreeRecord(1, workers=(WorkersAdvice(1, workers, 10, 8),))
    assert f"; {said}: num_workers=8" in line(view, 1, degree=degree)
    assert "num_workers" not in line(view, 2, degree=degree)
    assert "num_workers" not in line(view, 1, degree=DegreeRecord(1))


def test_waiting_in_a_pack(state: State) -> None:
    assert "the pack is starting" in line(look(state, "RUNNING"), 1)
    run(state, 1, 2)
    view = look(state, "RUNNING", degree=2)
    assert line(view, 3) == (
        "4711/3 PENDING: starts when one of 4711/1, 4711/2 ends (at most 1:00:00 left) (Degree 2)"
    )
    run(state, 1, limit_s=None)
    assert "starts when one of 4711/1, 4711/2 ends (at most" in line(
        look(state, "RUNNING", degree=2), 3
    )
    view = look(state, "RUNNING", degree=3)
    assert "it is about to start" in line(view, 3)


def test_what_came_of_measuring_is_said_and_not_that_it_is_going_on(state: State) -> None:
    run(state, 1, 2, limit_s=None)
    view = look(state, "RUNNING", degree=4)
    degree = DegreeRecord(1, DegreeState.MEASURING, 2, 4)
    assert line(view, 1, degree=degree).endswith("; the pack is being measured")
    late = dataclasses.replace(degree, cost_s=15.0)
    assert line(view, 1, degree=late).endswith(
        "; measuring was cut short as members came or went, and is tried again later"
    )
    why = "nothing is measured: their steps come too seldom"
    off = DegreeDecision(NOW, DegreeState.OFF, 2, 4, None, why)
    given_up = dataclasses.replace(degree, state=DegreeState.OFF, decisions=(off,))
    assert line(view, 1, degree=given_up).endswith(f"; {why}")
    # One alone is not measured, and nothing is said to be.
    write(state, 2, MemberState.COMPLETED)
    alone = look(state, "RUNNING", degree=4)
    assert "measured" not in line(alone, 1, degree=degree)


def test_what_was_measured_of_a_pack(state: State) -> None:
    run(state, 1, 2, limit_s=None)
    view = look(state, "RUNNING", degree=4)
    degree = DegreeRecord(1, DegreeState.MEASURING, 2, 4)
    assert line(view, 3, degree=degree) == (
        "4711/3 PENDING: waits: the pack is being measured with 2 members"
    )
    # Who may start is about to.
    assert "it is about to start" in line(view, 3, degree=dataclasses.replace(degree, degree=3))
    settled = dataclasses.replace(degree, state=DegreeState.SETTLED, curve=CURVE)
    assert line(view, 3, degree=settled) == f"4711/3 PENDING: waits: {BEST}"
    assert line(view, 1, degree=settled).endswith(f"; {BEST}")
    # What its runner gave as its reason is no other one, or comes after the numbers.
    reason = "no more than 2 run at once: 2 together make 1.8"
    for best, said in (
        (None, BEST),
        (4, f"{BEST}; with 4 at once the last would end later"),
    ):
        decision = DegreeDecision(NOW, DegreeState.SETTLED, 3, 2, 1.91, reason, best)
        decided = dataclasses.replace(settled, decisions=(decision,))
        assert line(view, 3, degree=decided) == f"4711/3 PENDING: waits: {said}"
        told = dataclasses.replace(decided, curve=())
        assert line(view, 3, degree=told) == f"4711/3 PENDING: waits: {reason}"
    full = look(state, "RUNNING", degree=2)
    assert line(full, 3, degree=dataclasses.replace(settled, places=2)) == (
        f"4711/3 PENDING: starts when one of 4711/1, 4711/2 ends (Degree 2); {BEST}"
    )
    # More can be there than were planned to run, because some of them are parked.
    assert line(full, 3, degree=dataclasses.replace(settled, places=8)).startswith(
        f"4711/3 PENDING: waits: {BEST}"
    )
    stopped = "its share was not enough"
    write(state, 3, MemberState.PENDING, starts=1, reason=stopped)
    view = look(state, "RUNNING", degree=4)
    assert line(view, 3, degree=settled) == (
        f"4711/3 PENDING: to be started again ({stopped}): waits: {BEST}"
    )
    everyone = dataclasses.replace(settled, state=DegreeState.OFF, degree=4)
    assert "waits" not in line(view, 3, degree=everyone)
    # An attempt before this one says nothing of a pack that is in the queue again.
    queued = look(state, "PENDING", "Priority", degree=4)
    assert "at once" not in line(queued, 3, degree=settled)


def test_a_member_at_the_door_runs_and_shares_with_none(state: State) -> None:
    run(state, 1, 2)
    reason = "at the door: its program is loaded, and it waits: no more than 1 runs at once"
    write(state, 3, MemberState.RUNNING, starts=1, started_at=HOUR_AGO, reason=reason, at_door=True)
    view = look(state, "RUNNING")
    assert line(view, 3) == (f"4711/3 RUNNING: on n1:0 since 09:30:00, {reason}")
    assert line(view, 1) == (
        "4711/1 RUNNING: on n1:0 since 09:30:00, sharing with 4711/2 (since 09:30:00) by time "
        "slices; 4711/3 is at the door; at most 1:00:00 left"
    )
    # It says nothing of one that has ended.
    write(state, 3, MemberState.COMPLETED, starts=1, started_at=HOUR_AGO, at_door=True)
    assert "at the door" not in line(look(state, "RUNNING"), 1)


def test_a_parked_member_runs_and_is_said_to_be_paused(state: State) -> None:
    run(state, 1, 2, 3)
    path = state.pack_path("s.0")
    record = DegreeRecord(1, DegreeState.SETTLED, 2, 4, parked=(2,), curve=CURVE, cost_s=3.42)
    write_degree(path, record)
    (path / "report").mkdir()
    append_change(path, HOUR_AGO - 60, paused=[(2, 1), (3, 7)], reason=PARKED)
    append_change(path, HOUR_AGO + 100, resumed=[(2, 1)], paused=[(3, 1)])
    append_change(path, HOUR_AGO + 400, resumed=[(3, 1)])
    append_change(path, NOW - 600, paused=[(2, 1)], reason=PARKED)
    view = look(state, "RUNNING", degree=4)
    assert [member.is_parked for member in view.members] == [False, True, False]
    assert [member.reason for member in view.members] == ["", "parked", ""]
    # Of two hours one has passed; 700 and 300 s of that do not count.
    header, rows = build_table([(view, view.members)], NOW)
    columns = [header.index(name) for name in ("STATE", "TIME", "LEFT", "REASON")]
    assert [[row[column] for column in columns] for row in rows] == [
        ["RUNNING", "1:00:00", "1:00:00", ""],
        ["RUNNING", "1:00:00", "1:11:40", "parked"],
        ["RUNNING", "1:00:00", "1:05:00", ""],
    ]
    two = build_member_json(view, view.members[1], NOW)
    assert (two["state"], two["reason"], two["parked"]) == ("RUNNING", "parked", True)
    assert two["elapsed_s"] == 3600
    assert build_member_json(view, view.members[0], NOW)["parked"] is False
    assert line(view, 2, degree=record) == (
        "4711/2 RUNNING: on n1:0 since 09:30:00, parked: its processes are paused until a place is "
        f"free for it; at most 1:11:40 left; {BEST}"
    )
    assert line(view, 1, degree=record) == (
        "4711/1 RUNNING: on n1:0 since 09:30:00, sharing with 4711/3 (since 09:30:00) by time "
        f"slices; 4711/2 is parked; at most 1:00:00 left; {BEST}"
    )
    assert f"  Degree:   {BEST}; measuring cost 3.4 s of the pack's work\n" in render_pack(
        view, state, NOW
    )
    assert "4711/2  job2  RUNNING  (parked)  1:00:00" in render_pack(view, state, NOW)
    latest = {"at": NOW, "members": {str(n): {"steps": 7, "steps_per_s": 2.5} for n in (1, 2)}}
    shown = [row.split() for row in render_top([LatestReading(view, latest)], NOW, 120).split("\n")]
    assert [row[3] for row in shown if row and row[0].startswith("4711/")] == ["2.5", "parked"]
    # Where its Slurm job is over, it is not parked any more.
    gone = look(state, "ABSENT")
    assert not any(member.is_parked for member in gone.members)
    write_degree(path, dataclasses.replace(record, parked=(2, 3)))
    alone = look(state, "RUNNING", degree=4)
    assert "the only running member of its pack; 4711/2 and 4711/3 are parked" in line(alone, 1)


def test_running_with_partners_says_nothing_of_a_slowdown_that_is_not_known(state: State) -> None:
    run(state, 1, 2)
    told = (
        "4711/1 RUNNING: on n1:0 since 09:30:00, sharing with 4711/2 (since 09:30:00) by time "
        "slices; at most 1:00:00 left"
    )
    assert line(look(state, "RUNNING"), 1) == told
    assert line(look(state, "RUNNING"), 1, latest=build_latest(steps_per_s=4.0)) == told
    assert "suspended by Slurm" in line(look(state, "SUSPENDED"), 1)
    assert "its Slurm job is suspended" in line(look(state, "SUSPENDED"), 3)


def build_latest(**figures: Any) -> dict[str, Any]:
    member = {"start": 1, "steps_per_s": 3.2, "window_s": 10.02, **figures}
    return {"schema": 1, "at": NOW - 1, "members": {"1": member}, "gpus": {}}


def know(state: State, **plan: Any) -> None:
    """Plan the first member as one of a job that is known."""
    path = state.pack_path("s.0")
    spec = read_spec(path, 1)
    planned = dataclasses.replace(spec.plan, **plan)
    write_spec(path / "members" / "0001", dataclasses.replace(spec, plan=planned))


def test_running_with_partners_says_how_much_slower_than_alone_it_is(state: State) -> None:
    run(state, 1, 2)
    know(state, solo_steps_per_s=5.0, predicted_slowdown=1.3)
    view = look(state, "RUNNING")
    told = line(view, 1, latest=build_latest())
    assert (
        "by time slices, 1.56 times slower than alone (3.2 of 5 steps/s, over the last 10 s); at "
        "most 1:00:00 left" in told
    )
    assert "by time slices, as fast as alone (5.1 of 5 steps/s, over" in line(
        view, 1, latest=build_latest(steps_per_s=5.1)
    )
    predicted = "by time slices, predicted to be 1.30 times slower than alone while all run; at"
    assert predicted in line(view, 1)
    nothing_new: list[Any] = [
        build_latest(start=2), build_latest(steps_per_s=0.0), build_latest(steps_per_s=None),
        build_latest(steps_per_s="fast"), build_latest(steps_per_s=True),
        build_latest(steps_per_s=float("nan")), build_latest(window_s=3.0),
        build_latest(steps_per_s=10**400), build_latest(steps_per_s=5e-324),
        {**build_latest(), "at": NOW - 60}, {**build_latest(), "at": NOW + 60},
        {**build_latest(), "at": None}, {"members": [1]}, {**build_latest(), "members": {"1": 3}},
    ]  # fmt: skip
    for latest in nothing_new:
        assert predicted in line(view, 1, latest=latest), latest


def test_how_fast_a_member_is_goes_without_its_pauses(state: State) -> None:
    run(state, 1, 2)
    path = state.pack_path("s.0")
    (path / "report").mkdir()
    # Of the ten seconds of its window, which ended at its last step, it ran for eight.
    append_change(path, NOW - 30, paused=[(1, 1)])
    append_change(path, NOW - 11, resumed=[(1, 1)])
    append_change(path, NOW - 6, paused=[(1, 1)])
    append_change(path, NOW - 5, resumed=[(1, 1)])
    figures = {"start": 1, "steps_per_s": 8.0, "window_s": 10.0, "last_step_age_s": 2.0}
    latest = {"at": NOW, "members": {"1": figures, "2": figures}}
    alone = (
        RateAlone(1, 99.0, at=NOW - 600),
        RateAlone(1, 15.0, at=NOW - 60),
        RateAlone(2, 16.0, at=NOW - 60, source=RateSource.FAMILY),
    )
    degree = DegreeRecord(1, DegreeState.MEASURING, 2, 4, rates_alone=alone)
    view = look(state, "RUNNING", degree=4)
    assert "1.50 times slower than alone (10 of 15 steps/s, over the last 8 s)" in line(
        view, 1, latest=latest, degree=degree
    )
    assert "2.00 times slower than alone (8 of 16 steps/s, over the last 10 s)" in line(
        view, 2, latest=latest, degree=degree
    )
    # Nothing is known of how fast it is alone, or it ran for too short a time.
    assert "steps/s" not in line(view, 1, latest=latest)
    brief = {"at": NOW, "members": {"1": {**figures, "window_s": 7.0}}}
    assert "over the last 6 s" in line(view, 1, latest=brief, degree=degree)
    append_change(path, NOW - 4, paused=[(1, 1)])
    paused = look(state, "RUNNING", degree=4)
    assert "steps/s" not in line(paused, 1, latest=brief, degree=degree)


def test_refused_partners_are_named(state: State) -> None:
    view = look(
        state, "PENDING", "Priority",
        sharing=SharingReasons(full="12 CPUs would exceed 8"),
        refusals=("pack 12: 5 members would exceed 4",),
    )  # fmt: skip
    told = line(view, 1)
    assert told.endswith("; it did not join pack 12: 5 members would exceed 4")
    # That its own pack takes no more is for those that came too late.
    assert "takes no more members" not in told
    late = line(view, 3, left_out=describe_closed(view.record, ["4711/1", "4711/2"]))
    assert late.endswith("; the pack of 4711/1-2 takes no more members: 12 CPUs would exceed 8")
    closed = look(state, "PENDING", "Priority", closed="it asks for 2 GPUs", request=None)
    assert "it runs alone: it asks for 2 GPUs" in line(closed, 1)


def test_who_runs_alone_is_told_the_real_reason_first(state: State) -> None:
    reason = "slowdown 1.54 with others is more than 1.5"
    view = look(
        state, "PENDING", "Priority", request=None, closed="it is an element of a job array",
        sharing=SharingReasons(alone=reason),
    )  # fmt: skip
    assert line(view, 1).endswith(f"; it runs alone: {reason}")
    same = look(
        state, "PENDING", "Priority", request=None, closed="it asks for 2 GPUs",
        sharing=SharingReasons(alone="it asks for 2 GPUs, a pack shares one"),
    )  # fmt: skip
    assert line(same, 1).endswith("; it runs alone: it asks for 2 GPUs, a pack shares one")
    # That a single script may be joined is no reason where it may not.
    job = Job(1, "a.sh", "a.sh", (), "/", gpus=2)
    single = compute_reason_to_run_alone(job, Policy(degree=2))
    told = build_lone_pack(0, job, single).sharing
    view = look(state, "PENDING", "Priority", request=None, sharing=told)
    assert line(view, 1).endswith(f"; it runs alone: {single}")
    view = look(state, "PENDING", "Priority", request=None, sharing=told, closed="it asks for 2")
    assert line(view, 1).endswith("; it runs alone: it asks for 2")
    # Nor where it has tried to join.
    tried = ("pack 12: all 3 places are taken",)
    view = look(state, "PENDING", "Priority", request=None, sharing=told, refusals=tried)
    assert "it runs alone" not in line(view, 1)
    assert line(view, 1).endswith("; it did not join pack 12: all 3 places are taken")


def test_equal_lines_are_one_and_what_is_so_of_a_pack_is_said_once(state: State) -> None:
    view = look(state, "PENDING", "Priority", closed="it is an element of a job array")
    lines = [explain_why(view, member, Facts(NOW)) for member in view.members]
    (folded,) = fold_lines(lines)
    assert folded.startswith("4711/1-3 PENDING: jobs with a higher priority come first (Priority)")
    assert "no job may join" not in folded
    run(state, 1, 2)
    view = look(state, "RUNNING", degree=2)
    degree = DegreeRecord(1, DegreeState.SETTLED, 2, 4, curve=CURVE)
    facts = Facts(NOW, degree=degree)
    lines = [explain_why(view, m, facts) for m in view.members]
    told = fold_lines(lines)
    assert told[-1] == f"4711/1-3: {BEST}"
    # Who waits for that has it as the reason.
    assert [text for text in told[:-1] if BEST in text] == [f"4711/3 PENDING: waits: {BEST}"]
    assert fold_lines(lines[:1]) == [str(lines[0])], "one line stays as it is"


def test_what_was_measured_is_still_said_when_the_pack_has_ended(state: State) -> None:
    run(state, 1, 2)
    write(state, 1, MemberState.COMPLETED, starts=1, started_at=HOUR_AGO, ended_at=NOW - 60)
    view = look(state, "COMPLETED", degree=4)
    degree = DegreeRecord(1, DegreeState.SETTLED, 2, 4, curve=CURVE)
    assert line(view, 1, degree=degree).endswith(f"ended 10:29:00; in its pack {BEST}")
    assert line(view, 3, degree=degree).endswith(f"it never started; in its pack {BEST}")
    # Where nobody was kept waiting it explains nothing.
    for other in (
        dataclasses.replace(degree, degree=4),
        dataclasses.replace(degree, state=DegreeState.OFF, degree=4),
        dataclasses.replace(degree, state=DegreeState.MEASURING),
    ):
        assert "in its pack" not in line(view, 1, degree=other)
    left = "the pack has only 5:00 left, and it may take 6:40: it is submitted again once "
    left += "the pack has ended"
    late = WaitReason(WaitKind.TIME, left_s=300, limit_s=400)
    write(state, 3, MemberState.PENDING, waits=late)
    view = look(state, "RUNNING", degree=4)
    assert line(view, 3, degree=degree) == f"4711/3 PENDING: waits: {left}; in its pack {BEST}"
    assert "Degree:   " not in render_pack(view, state, NOW)
    write_degree(state.pack_path("s.0"), degree)
    assert f"  Degree:   {BEST}\n" in render_pack(view, state, NOW)
    (state.pack_path("s.0") / "degree.json").write_text("{")
    damaged = look(state, "RUNNING", degree=4)
    assert "Degree:   " not in render_pack(damaged, state, NOW)
    assert not any(member.is_parked for member in damaged.members)


def test_what_is_only_known_from_the_files(state: State) -> None:
    run(state, 1)
    view = look(state, None)
    told = line(view, 1, unreachable="Slurm's controller does not answer")
    assert told.startswith("4711/1 RUNNING: on n1:0 since 09:30:00, alone in its pack")
    assert told.endswith("; as last recorded: Slurm's controller does not answer")
    assert "it had not started" in line(view, 2, unreachable="no answer")
    away = State(state.root, "there")
    [view] = survey_packs(away, ["s.0"], {})
    assert line(view, 1).endswith("as last recorded: ask csub on the cluster here")


@pytest.mark.parametrize(
    ("member_state", "fields", "told"),
    [
        ("COMPLETED", {}, "ran on n1:0 for 59:00; ended 10:29:00"),
        ("FAILED", {"exit_code": ExitCode(3)}, "exit code 3; ran on n1:0 for 59:00; ended"),
        (
            "TIMEOUT",
            {"exit_code": ExitCode(0, 15), "reason": "its time limit was reached"},
            "its time limit was reached, signal 15; ran on",
        ),
        (
            "OUT_OF_MEMORY",
            {"exit_code": ExitCode(0, 9), "reason": "it used more host memory than its limit"},
            "it used more host memory than its limit, signal 9; ran on",
        ),
    ],
)
def test_how_it_ended(state: State, member_state: str, fields: dict[str, Any], told: str) -> None:
    run(state, 1)
    write(state, 1, MemberState(member_state), starts=1, started_at=HOUR_AGO, ended_at=NOW - 60,
          **fields)  # fmt: skip
    assert line(look(state, "COMPLETED"), 1).startswith(f"4711/1 {member_state}: {told}")


@pytest.mark.parametrize("member_state", ["RUNNING", "FAILED"])
def test_who_took_all_it_may_take_at_once_is_told_what_to_do(
    state: State, member_state: str
) -> None:
    run(state, 1, 2)
    taken = describe_taken_at_once(9000.0, 10_000)
    write(
        state, 1, MemberState(member_state), starts=1, started_at=HOUR_AGO,
        evidence=("its output: CUDA error", taken), taken_at_once=taken,
    )  # fmt: skip
    view = look(state, "RUNNING")
    assert f"; {taken}" in line(view, 1)
    assert "CUDA error" not in line(view, 1)
    assert "at once" not in line(view, 2)


@pytest.mark.parametrize(
    ("slurm", "member_state", "told"),
    [
        ("PREEMPTED", "PREEMPTED", "its Slurm job: PREEMPTED; ran on n1:0"),
        ("NODE_FAIL", "NODE_FAIL", "its Slurm job: NODE_FAIL; ran on n1:0"),
        ("ABSENT", "LOST", "its Slurm job is gone, and how it ended is not known; ran on n1:0"),
    ],
)
def test_an_end_that_nobody_saw_has_no_time(
    state: State, slurm: str, member_state: str, told: str
) -> None:
    run(state, 1)
    write_ended(state.pack_path("s.0"), SlurmJobState(slurm))
    assert line(look(state, slurm), 1) == f"4711/1 {member_state}: {told}"
    assert line(look(state, slurm), 2).endswith("; it never started")


def test_a_pack_that_waits_because_its_runner_was_killed_says_so(state: State) -> None:
    run(state, 1)
    path = state.pack_path("s.0")
    kill = RunnerKill(0, 1, 9, HOUR_AGO)
    write_kill(path, kill)
    view = look(state, "PENDING", "BeginTime")
    fields = {"StartTime": "2026-11-21T12:00:00"}
    assert line(view, 1, fields=fields) == (
        "4711/1 PENDING: to be started again (its runner was killed by signal 9): "
        "may begin at 2026-11-21 12:00:00"
    )
    assert line(view, 2, fields=fields) == "4711/2 PENDING: may begin at 2026-11-21 12:00:00"
    told = "  Runner:   killed by signal 9 at 2026-11-21T09:30:00; its pack was requeued\n"
    assert told in render_pack(view, state, NOW)
    # Once it runs again, and where it waits for another reason, that is not the news.
    assert "its runner" not in line(look(state, "RUNNING"), 1)
    begin_attempt(path, 1)
    assert "its runner" not in line(look(state, "PENDING", "BeginTime"), 1, fields=fields)
    write_kill(path, dataclasses.replace(kill, attempt=2, refusal="it may not be requeued"))
    assert "its runner" not in line(look(state, "PENDING", "BeginTime"), 1, fields=fields)


def test_members_that_are_lost_with_their_runner_say_why_they_do_not_start_again(
    state: State,
) -> None:
    run(state, 1)
    path = state.pack_path("s.0")
    kill = RunnerKill(0, 1, 9, HOUR_AGO)
    write_kill(path, kill)
    write_ended(path, SlurmJobState.FAILED)
    # Slurm was asked to requeue it; nobody knows why it did not.
    assert line(look(state, "FAILED"), 1) == (
        "4711/1 LOST: its runner was killed by signal 9; ran on n1:0"
    )
    write_kill(path, dataclasses.replace(kill, refusal="it may not be requeued"))
    why = "4711/1 LOST: its runner was killed by signal 9; it may not be requeued; ran on n1:0"
    assert line(look(state, "FAILED"), 1) == why
    # csub has fenced the attempt off meanwhile; the member ran in the one before.
    begin_attempt(path, 1)
    assert line(look(state, "FAILED"), 1) == why
    # In a later one nobody saw what happened.
    write_state(path, 1, StateRecord(MemberState.RUNNING, 2, starts=2, started_at=HOUR_AGO))
    assert "how it ended is not known" in line(look(state, "FAILED"), 1)


def test_a_member_that_was_submitted_again(state: State) -> None:
    with state.writing([build_pack("t", cluster="here")]) as _:
        pass
    note = '{"schema": 1, "pack_id": "t.0", "number": 2}'
    (state.pack_path("s.0") / "members" / "0002" / "moved.json").write_text(note)
    view = look(state, "NODE_FAIL")
    assert line(view, 2, moved="4720/2") == (
        "4711/2 REQUEUED: it never started and was submitted again as 4720/2"
    )


def test_a_held_member(state: State) -> None:
    (state.pack_path("s.0") / "members" / "0002" / "held").touch()
    view = look(state, "PENDING", "Priority")
    assert line(view, 2) == "4711/2 PENDING: held by csub hold; csub release 4711/2 lets it go on"
    assert "jobs with a higher priority" in line(view, 1)
    assert "It is held" in explain_member(view, view.members[1], Facts(NOW))


def test_every_state_of_a_member_has_its_line_and_explanation(state: State) -> None:
    run(state, 1)
    for member_state in MemberState:
        view = look(state, "RUNNING")
        member = dataclasses.replace(view.members[0], state=member_state, reason="")
        assert str(explain_why(view, member, Facts(NOW))).startswith(
            f"4711/1 {member_state.value}: "
        )
        text = explain_member(view, member, Facts(NOW))
        assert text.splitlines()[0] == str(explain_why(view, member, Facts(NOW)))
        assert all(label in text for label in ("Means:", "Next:", "You can:"))
        assert "{" not in text


FAULT = "a fault on the GPU hit members 1, 2, 3, and MPS does not say whose it was"


@pytest.mark.parametrize(
    ("running", "alone", "words"),
    [
        ((1, 2), False, "it starts as soon as its pack has a place for it"),
        ((1,), True, "it starts as soon as it has the GPU to itself"),
        ((), True, "it starts as soon as its pack has a place for it"),
    ],
)
def test_a_member_that_is_to_run_again_says_why_and_what_it_waits_for(
    state: State, running: tuple[int, ...], alone: bool, words: str
) -> None:
    run(state, *running)
    write(
        state,
        3,
        MemberState.PENDING,
        starts=1,
        reason=f"{FAULT}; it runs again apart from MPS",
        cause="MPS fault: culprit or victim",
        evidence=("MPS server: [...] Client {PID: 7, Context: 1} encountered a fatal GPU error.",),
        retries=Retries(faults=1, apart=True, alone=alone),
    )
    view = look(state, "RUNNING", degree=3)
    assert line(view, 3) == (
        f"4711/3 PENDING: to be started again ({FAULT}; it runs again apart from MPS): {words}"
    )
    explained = explain_member(view, view.members[2], Facts(NOW)).splitlines()
    assert explained[1] == "  Before:    MPS fault: culprit or victim"
    assert explained[2].startswith("  Shown by:  MPS server: ")
    assert explained[3].startswith("  Means:     A fault on the GPU ended all clients of MPS")


def test_a_chain_that_its_time_limit_has_ended_says_at_which_link(state: State) -> None:
    begin_attempt(state.pack_path("s.0"), 1)
    for number, end in ((1, MemberState.TIMEOUT), (2, MemberState.COMPLETED)):
        write(state, number, end, started_at=HOUR_AGO, ended_at=NOW - 60)
    view = look(state, "ABSENT")
    for number, told in ((1, "; link 5 of at most 5"), (2, "")):
        member = view.members[number - 1]
        why = str(explain_why(view, member, Facts(NOW, chain="link 5 of at most 5")))
        assert why.endswith(f"ended 10:29:00{told}")


def test_an_end_that_its_exit_code_does_not_tell_is_named(state: State) -> None:
    begin_attempt(state.pack_path("s.0"), 1)
    common: dict[str, Any] = {"started_at": HOUR_AGO, "ended_at": NOW - 60}
    write(state, 1, MemberState.FAILED, starts=2, exit_code=ExitCode(1),
          cause="MPS fault: culprit",
          reason="exit code 1: its fault on the GPU came again when it ran apart",
          **common)  # fmt: skip
    write(state, 2, MemberState.FAILED, starts=1, exit_code=ExitCode(3), cause="exit code",
          reason="exit code 3", **common)  # fmt: skip
    write(state, 3, MemberState.COMPLETED, starts=2, exit_code=ExitCode(0), cause="success",
          evidence=("the fault was that of member 4711/1",), **common)  # fmt: skip
    view = look(state, "ABSENT")
    assert line(view, 1) == (
        "4711/1 FAILED: MPS fault: culprit: exit code 1: its fault on the GPU came again when it "
        "ran apart; ran on n1:0 for 59:00 in its last start; ended 10:29:00; started 2 times"
    )
    assert line(view, 2) == ("4711/2 FAILED: exit code 3; ran on n1:0 for 59:00; ended 10:29:00")
    assert line(view, 3) == (
        "4711/3 COMPLETED: ran on n1:0 for 59:00 in its last start; ended 10:29:00; started 2 times"
    )
    explained = explain_member(view, view.members[0], Facts(NOW))
    assert "  End:       MPS fault: culprit\n" in explained
    assert "until it has succeeded alone once" in explained
    explained = explain_member(view, view.members[2], Facts(NOW))
    assert "  Shown by:  the fault was that of member 4711/1\n" in explained
    assert "  Means:     Its script ended with exit code 0.\n" in explained


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "on a node of partition gpu"),
        ({"ReqNodeList": "n1"}, "on n1, which --nodelist names"),
        ({"ExcNodeList": "n2"}, "on a node of partition gpu, without n2 (--exclude)"),
        ({"Features": "a100"}, "on a node of partition gpu with a100 (--constraint)"),
        (
            {"ReqNodeList": "n1", "ExcNodeList": "(null)", "Features": "ib"},
            "on n1, which --nodelist names with ib (--constraint)",
        ),
    ],
)
def test_what_holds_a_job_back_although_nodes_are_idle_is_named(
    state: State, fields: dict[str, str], where: str
) -> None:
    asked = {"NumCPUs": "4", "Partition": "gpu", **fields}
    told = line(look(state, "PENDING", "Resources"), 1, fields=asked)
    assert f"waits for 4 CPUs {where} to become free (Resources)" in told
