"""Why a waiting member does not start: each reason, and that csub says what the runner does."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.job_values import ConditionOutlook
from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState, WaitKind, WaitReason
from slurm_colloc.model.why_not_now import describe_wait, say_why
from slurm_colloc.report.member_survey import (
    survey_packs,
)
from slurm_colloc.report.member_views import (
    PackView,
)
from slurm_colloc.report.why_line import Facts, explain_why, read_wait
from slurm_colloc.runtime import may_start
from slurm_colloc.runtime.members import Member, PackPlace
from slurm_colloc.runtime.pack_instances import PackInstances
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc.slurm.slurm_commands import SlurmJob
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import (
    Retries,
    StateRecord,
    read_state,
    remove_held,
    write_held,
    write_state,
)
from slurm_colloc.store.pack_directory import read_spec, write_spec
from slurm_colloc.store.runner_requests import read_degree

from .degree_stage import Stage, share
from .mig_bench import build_gpu

LATE = WaitReason(WaitKind.TIME, left_s=59, limit_s=60)
IS_LATE = (
    "the pack has only 0:59 left, and it may take 1:00: it is submitted again once the pack has "
    "ended"
)
ONE_RUNS = WaitReason(WaitKind.DEGREE, told="no more than 1 runs at once")
NO_MEMORY = WaitReason(WaitKind.MEMORY, count=2, taken_mb=70, usable_mb=80)

REASONS = [
    (LATE, IS_LATE),
    (WaitReason(WaitKind.HELD), "held by csub hold"),
    (WaitReason(WaitKind.MOVED), "it was submitted again in another pack"),
    (WaitReason(WaitKind.AGAIN), "it starts as soon as its pack has a place for it"),
    (WaitReason(WaitKind.ALONE), "it starts as soon as it has the GPU to itself"),
    (
        WaitReason(WaitKind.PLACES, count=2, names=("4711/1", "4711/2")),
        "starts when one of 4711/1, 4711/2 ends (Degree 2)",
    ),
    (
        WaitReason(WaitKind.PLACES, names=("4711/1",), left_s=90),
        "starts when 4711/1 ends (at most 1:30 left) (its GPU takes one member at a time)",
    ),
    (
        WaitReason(WaitKind.PLACE, name="4711/3", count=8),
        "4711/3 is next, and waits for a place with 8 CPUs",
    ),
    (ONE_RUNS, "no more than 1 runs at once"),
    (
        NO_MEMORY,
        (
            "the GPU has no memory left for it: 70 of 80 MB are reserved for 2, and what it takes "
            "is not known"
        ),
    ),
    (
        dataclasses.replace(NO_MEMORY, need_mb=30),
        "the GPU has no memory left for it: 70 of 80 MB are reserved for 2, and it may take 30 MB",
    ),
    (
        WaitReason(WaitKind.DEPENDENCY, name="afterok:4711/3"),
        "Dependency afterok:4711/3",
    ),
    (
        WaitReason(WaitKind.MEASURING, count=1),
        "the pack is being measured with 1 member",
    ),
    (WaitReason(WaitKind.DOOR, name="4711/2"), "one at the door goes first: 4711/2"),
    (
        WaitReason(WaitKind.INSTANCE, told="{20} MB"),
        "its GPU has no free MIG instance with {20} MB",
    ),
    (WaitReason(WaitKind.PREPARING), "its GPU is being prepared"),
    (
        WaitReason(WaitKind.SIGNALLED),
        "it was signalled, and Slurm has not shown yet whether its pack goes on",
    ),
    (WaitReason(WaitKind.ENDING, told="the node failed"), "the node failed"),
]


@pytest.mark.parametrize(("reason", "words"), REASONS)
def test_a_reason_has_its_words_and_comes_back_from_its_file(
    reason: WaitReason, words: str, tmp_path: Path
) -> None:
    assert describe_wait(reason) == words
    (tmp_path / "members" / "0001").mkdir(parents=True)
    write_state(tmp_path, 1, StateRecord(MemberState.PENDING, 1, waits=reason))
    record = read_state(tmp_path, 1, 1)
    assert record is not None
    assert record.waits == reason


def test_each_kind_of_reason_is_in_the_table() -> None:
    assert {reason.kind for reason, _ in REASONS} == set(WaitKind)


# What the runner gathers, and what csub reads of it ---------------------------------------------


def look(stage: Stage) -> PackView:
    """The pack as csub sees it, from its files."""
    state = State(stage.pack.parent.parent, "here")
    (stage.pack / "slurm_job_id").write_text("1\n")
    job = SlurmJob("1", SlurmJobState.RUNNING, "1:00", "9:00", "n1", "", "")
    [view] = survey_packs(state, ["s.0"], {"1": job})
    return dataclasses.replace(view, record=dataclasses.replace(view.record, degree=4))


def compare(stage: Stage, number: int) -> str | None:
    """Why a member does not start, as its runner says it, which is what csub says."""
    view = look(stage)
    facts = Facts(time.time(), degree=read_degree(stage.pack, stage.attempt))
    read = read_wait(view, view.members[number - 1], facts)
    told = None if read is None else say_why(read)
    found = stage.explain(number)
    assert told == (None if found is None else say_why(found))
    # Who is before whom a runner need not know: it asks for one after the other.
    said = str(explain_why(view, view.members[number - 1], facts))
    assert (told or "start").split(" (Degree")[0] in said
    return told


def change(stage: Stage, number: int, **plan: Any) -> Member:
    """Plan a member otherwise, on disk and in its runner."""
    member = stage.members.by_number[number]
    spec = read_spec(stage.pack, number)
    write_spec(
        stage.pack / "members" / f"{number:04d}",
        dataclasses.replace(spec, plan=dataclasses.replace(spec.plan, **plan)),
    )
    member.spec = dataclasses.replace(
        member.spec, plan=dataclasses.replace(member.spec.plan, **plan)
    )
    return member


def test_nothing_is_in_the_way(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.start()
    assert compare(stage, 2) is None


def test_a_held_member_lets_those_behind_it_pass(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.start()
    write_held(stage.pack, 2)
    assert compare(stage, 2) == "held by csub hold"
    assert stage.start() == 3
    remove_held(stage.pack, 2)
    assert stage.start() == 2


def test_all_places_are_taken(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, members=5)
    assert [stage.start() for _ in range(5)] == [1, 2, 3, 4, None]
    assert compare(stage, 5) == "starts when one of 1/1, 1/2, 1/3, 1/4 ends (Degree 4)"
    assert stage.members.by_number[5].record.waits is None


def test_a_neighbour_has_the_gpu_to_itself(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    first = stage.members.by_number[1]
    stage.states.write(first, MemberState.PENDING, retries=Retries(alone=True))
    assert [stage.start() for _ in range(2)] == [1, None]
    assert compare(stage, 2) == "starts when 1/1 ends (Degree 4)"


def test_its_share_was_not_enough(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    second = stage.members.by_number[2]
    stage.start()
    stage.states.write(second, MemberState.PENDING, starts=1, retries=Retries(alone=True))
    assert compare(stage, 2) == "it starts as soon as it has the GPU to itself"
    stage.states.write(second, MemberState.PENDING, retries=Retries(gpu_memory_mb=900))
    assert compare(stage, 2) is None


def test_the_next_needs_a_larger_place(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.members.places = [PackPlace(0, 8, ()), *(PackPlace(n, 2, ()) for n in (1, 2, 3))]
    change(stage, 2, cpus=8)
    # In the free places together there are not as many CPUs: smaller ones go before it.
    assert stage.start_all() == [1, 3, 4]
    why = "waits: 1/2 is next, and waits for a place with 8 CPUs"
    assert compare(stage, 2) == why
    place = WaitReason(WaitKind.PLACE, name="1/2", count=8)
    waits = [member.record.waits for member in stage.members.list_members()]
    assert waits == [None, place, None, None]
    stage.members.vacate(1)
    stage.members.by_number[1].process = None
    assert stage.start() == 2


def test_unknown_ones_have_generous_parts_of_what_is_left(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, known_mb=None, members=8, places=8)
    assert stage.start_all() == [1, 2, 3, 4, 5, 6]
    limits = [stage.members.by_number[n].gpu.gpu_memory_limit_mb for n in range(1, 7)]  # type: ignore[union-attr]
    assert limits == [20_000, 15_000, 11_250, 10_000, 10_000, 10_000]
    stage.loading = set(range(1, 7))
    stage.pass_time(0.5)
    assert compare(stage, 7) == (
        "waits: the GPU has no memory left for it: 76250 of 80000 MB are reserved for 6, and what "
        "it takes is not known"
    )
    # It has ended: that is not why they wait any more.
    stage.end(1)
    assert stage.start() == 7
    assert stage.members.by_number[7].record.waits is None


def test_without_limits_an_unknown_one_shows_first_what_it_takes(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, known_mb=None, enforces=False)
    assert stage.start_all() == [1]
    assert compare(stage, 2) == (
        "waits: the GPU has no memory left for it: 80000 of 80000 MB are reserved for 1, and what "
        "it takes is not known"
    )


def test_one_whose_mig_instance_is_taken_waits_for_it(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    instances = PackInstances(build_gpu("3g.40gb", "1g.10gb"))
    stage.gpu_mode.instances = instances
    for number in (1, 2):
        change(stage, number, instance="3g", gpu_memory_limit_mb=30_000)
    first = stage.members.by_number[1]
    assert stage.start() == 1
    instances.seats.take(first)
    write_held(stage.pack, 3)
    write_held(stage.pack, 4)
    assert stage.start() is None
    assert compare(stage, 2) == "waits: its GPU has no free MIG instance with 30000 MB"


def test_as_many_run_as_may(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, members=6)
    assert stage.start_all() == [1, 2, 3, 4]
    while not stage.measured_degree.is_measuring:
        stage.pass_time(0.05)
    stage.end(4)
    stage.pass_time(40, share(1.0))
    assert stage.start() is None
    why = compare(stage, 5)
    assert why is not None
    assert why.startswith("waits: no more than 1 runs")


def test_too_little_time_is_left(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, time_limit_s=200)
    stage.start()
    stage.now += 141.0
    assert stage.start() is None
    why = compare(stage, 2)
    assert why is not None
    assert why.startswith("waits: the pack has only 0:59 left")
    events = (stage.pack / "events.jsonl").read_text()
    assert stage.start() is None
    # It is told once.
    assert (stage.pack / "events.jsonl").read_text() == events


@pytest.mark.parametrize("outlook", [ConditionOutlook.OPEN, ConditionOutlook.NEVER])
def test_a_dependency_that_does_not_hold(
    outlook: ConditionOutlook,
    tmp_path: Path,
    process: StartedProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(tmp_path, process)
    first, queue = stage.members.by_number[1], stage.start_queue
    job = dataclasses.replace(first.spec.job, depends=(("afterok", "9/1"),))
    first.spec = dataclasses.replace(first.spec, job=job)
    stage.outlook = (ConditionOutlook.OPEN, "afterok:9/1")
    # It may just not be seen yet. Meanwhile the next may start.
    found = stage.explain(1)
    assert found is not None
    assert say_why(found) == "waits for afterok:9/1 (Dependency)"
    assert (stage.start(), queue.is_undecided) == (2, True)
    stage.outlook = (outlook, "afterok:9/1")
    monkeypatch.setattr(may_start, "PATIENCE_S", 0.0)
    assert (stage.start(), queue.is_undecided) == (3, False)
    if outlook is ConditionOutlook.OPEN:
        assert first.record.dependency == "afterok:9/1"
        assert compare(stage, 1) == "held, waits for afterok:9/1 (Dependency)"
    else:
        assert first.record.reason == "afterok:9/1"
        assert first.record.state is MemberState.CANCELLED
        assert first.record.exit_code == ExitCode(0, 15)


def test_a_satisfied_dependency_is_judged_once(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, known_mb=None, enforces=False)
    second = stage.members.by_number[2]
    job = dataclasses.replace(second.spec.job, depends=(("afterok", "9/1"),))
    second.spec = dataclasses.replace(second.spec, job=job)
    assert [stage.start(), stage.start()] == [1, None]
    stage.outlook = (ConditionOutlook.NEVER, "afterok:9/1")
    assert stage.start() is None
    assert second.record.state is MemberState.PENDING


def unsettle(stage: Stage) -> None:
    stage.gpu_mode._settled.mode = None


def signal(stage: Stage) -> None:
    stage.slurm_decision.open("")


def end(stage: Stage) -> None:
    # Without Slurm a TERM is a cancel.
    stage.slurm_decision.terminate()
    stage.slurm_decision.follow()


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (unsettle, "its GPU is being prepared"),
        (signal, "it was signalled, and Slurm has not shown yet whether its pack goes on"),
        (end, "the pack was cancelled"),
    ],
)
def test_none_of_the_pack_starts(
    happens: Callable[[Stage], None], why: str, tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    happens(stage)
    waits = stage.look.describe_pack_wait()
    assert waits is not None
    assert describe_wait(waits) == why
    first = stage.members.by_number[1]
    found = stage.explain(1)
    assert found is not None
    assert say_why(found) == f"waits: {why}"
    assert stage.start() is None
    # It lasts for moments, and is not written down.
    assert first.record.waits is None


def test_why_a_member_starts_again_is_kept(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, known_mb=None, enforces=False)
    second = stage.members.by_number[2]
    again = "its share of the GPU memory was not enough"
    stage.states.write(second, MemberState.PENDING, starts=1, reason=again)
    assert [stage.start(), stage.start()] == [1, None]
    assert second.record.reason == again
    view = look(stage)
    facts = Facts(time.time(), degree=read_degree(stage.pack, stage.attempt))
    assert f"1/2 PENDING: to be started again ({again})" in str(
        explain_why(view, view.members[1], facts)
    )


def test_a_gpu_that_is_not_ready_is_told_until_a_member_runs(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    facts = Facts(time.time(), is_gpu_unprepared=True)
    view = look(stage)
    assert str(explain_why(view, view.members[0], facts)) == (
        "1/1 PENDING: waits: its GPU is being prepared"
    )
    stage.start()
    view = look(stage)
    assert "about to start" in str(explain_why(view, view.members[1], facts))
    one = Facts(time.time(), takes_one=True)
    assert "starts when 1/1" in str(explain_why(view, view.members[1], one))
