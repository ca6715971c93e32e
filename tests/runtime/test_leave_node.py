"""What the first node's guard makes of another node whose step has ended."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime import sister_packs as job_sets_module
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.collect_ends import SlurmDecision
from slurm_colloc.runtime.serve_requests import AttemptFence, Fenced
from slurm_colloc.runtime.start_runners import LeftNode
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store import inbox
from slurm_colloc.store.member_states import read_state
from slurm_colloc.store.pack_directory import GpuDivision, write_division
from slurm_colloc.store.written_ends import RunnerKill, list_kills, write_kill

from ..packs import build_pack
from .gpu_set_job import GpuSetJob, begin_sets
from .pack_contexts import build_context
from .stepped_submission import run_plainly
from .test_requeue_after_kill import RUNNING

ALLOCATION = Allocation("7", "7", "n1", 0, 4, (), (), {})


class OneJob(SlurmAccess):
    """Slurm, as it shows the job."""

    def __init__(self, fields: dict[str, str] | None, requeues: str = "1") -> None:
        super().__init__()
        self.fields = fields
        self.requeues = requeues

    def read_job(self, job_id: str) -> dict[str, str] | None:
        assert job_id == "7"
        if self.fields is None:
            raise SlurmUnreachable("no answer")
        return self.fields

    def read_config(self) -> dict[str, str]:
        return {"JobRequeue": self.requeues}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[GpuSetJob]:
    found = GpuSetJob(tmp_path)
    yield found
    found.close()


def leave(job: GpuSetJob, slurm: OneJob | None = None) -> bool:
    slurm = slurm or OneJob(RUNNING)
    return LeftNode(job.path(1), ALLOCATION, slurm, fence_s=0.0).settle()


def start(job: GpuSetJob, monkeypatch: pytest.MonkeyPatch, **values: Any) -> list[list[int]]:
    """Two sets on two nodes, two of four members of each run."""
    job.submit_sets(4, 4, set_nodes=(0, 1), **values)
    started = begin_sets(job, monkeypatch, 0, 1)
    for number in (0, 1):
        job.turn(number)
    for number, members in enumerate(started):
        for member in members:
            record = job.parts[number].members.by_number[member]
            job.parts[number].states.write(record, MemberState.RUNNING, starts=1)
    write_division(job.path(1), GpuDivision(0, "n2"))
    return started


def test_members_of_a_node_that_has_left_start_again_on_the_other(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(job, monkeypatch)
    assert (first, second) == ([1, 2], [5, 6])
    assert leave(job)
    (kill,) = list_kills(job.path(1))
    assert str(kill) == "its runner was on n2, which left the job"
    for number in second:
        record = read_state(job.path(1), number, 1)
        assert record is not None
        assert (record.state, record.cause) == (MemberState.PENDING, "node failure")
        assert record.reason == "n2 has left the job; it runs again"
    # They start there as its own end.
    for ended in (1, 2, 3, 4):
        job.turn(0)
        job.end_member(0, ended)
    for _ in range(4):
        job.turn(0)
        for member in list(job.parts[0].members.running()):
            job.end_member(0, member.number)
    assert sorted(first) == list(range(1, 9))
    assert set(job.where().values()) == {0}


def test_who_had_ended_before_its_node_was_missed_has_ended(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (ended, other) = start(job, monkeypatch)
    folder = job.path(1) / "members" / inbox.format_number(ended)
    (folder / "run.1.1.started").write_text("{}")
    (folder / "run.1.1.exit").write_text(json.dumps({"schema": 1, "wait_status": 0, "at": 7.0}))
    leave(job)
    for number, state in ((ended, MemberState.COMPLETED), (other, MemberState.PENDING)):
        record = read_state(job.path(1), number, 1)
        assert record is not None
        assert record.state is state


def test_what_ends_with_its_job_or_has_ended_well_is_left_as_it_is(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(job, monkeypatch)
    assert not leave(job, OneJob({**RUNNING, "JobState": "COMPLETING"}))
    assert not leave(job, OneJob({**RUNNING, "Restarts": "1"}))
    assert list_kills(job.path(1)) == []
    # Its own guard has seen it die, and Slurm refused to start the job again.
    kill = RunnerKill(0, 1, 9, 1.0, "it may not be requeued")
    write_kill(job.path(1), kill)
    assert not leave(job)
    assert list_kills(job.path(1)) == [kill]
    record = read_state(job.path(1), 5, 1)
    assert record is not None
    assert record.state is MemberState.RUNNING


def test_a_slurm_without_an_answer_lets_no_member_wait_for_ever(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(job, monkeypatch)
    assert leave(job, OneJob(None))
    assert inbox.list_taken(str(job.path(1))) != []
    assert not job.parts[0].job_sets._has_runner(job.path(1))


def test_who_may_not_be_requeued_has_ended_with_the_node(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(
        job,
        monkeypatch,
        change=lambda one: dataclasses.replace(one, requeue=False if one.number == 5 else None),
    )
    assert not leave(job)
    gone, other = (read_state(job.path(1), number, 1) for number in (5, 6))
    assert gone is not None
    assert other is not None
    assert (gone.state, other.state) == (MemberState.NODE_FAIL, MemberState.PENDING)
    assert gone.reason == "n2 has left the job; it may not be requeued"


def test_none_closes_while_members_of_a_node_are_about_to_be_set_free(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(job, monkeypatch)
    sets = job.parts[0].job_sets
    assert sets._is_busy(job.path(1))
    moment = [1000.0]
    monkeypatch.setattr(time, "time", lambda: moment[0])
    write_kill(job.path(1), RunnerKill(0, 1, 0, 1000.0, "the others go on", "n2"))
    assert sets._is_busy(job.path(1))
    # Whatever became of that guard.
    moment[0] += job_sets_module.LEFT_S + 1
    assert not sets._is_busy(job.path(1))


@pytest.mark.parametrize(
    ("nodes", "has_nodes", "reason"),
    [
        ("n1", True, "this node has left the job"),
        ("n[1,3-4]", True, "this node has left the job"),
        ("n[1-2]", True, None),
        ("n1", False, None),
    ],
)
def test_what_slurm_has_killed_on_a_node_that_has_left_is_not_judged_there(
    tmp_path: Path, nodes: str, has_nodes: bool, reason: str | None
) -> None:
    allocation = dataclasses.replace(ALLOCATION, node="n2")
    slurm = OneJob({**RUNNING, "NodeList": nodes})
    with (tmp_path / "log").open("w") as log:
        record = build_pack("s", set_nodes=(0, 1) if has_nodes else ()).record
        decision = SlurmDecision(
            pack=build_context(tmp_path, record=record, allocation=allocation, slurm=slurm),
            slurm_log=log.fileno(),
        )
        decision.open("")
        goes_on = decision.follow()
    assert goes_on is (reason is None)
    assert (decision.ending and decision.ending.reason) == reason
    assert decision.ending is None or decision.ending.state is None


def test_a_runner_that_is_cut_off_ends_its_members(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(job, monkeypatch)
    ended: list[int] = []
    monkeypatch.setattr(
        "slurm_colloc.runtime.serve_requests.kill", lambda member: ended.append(member.number)
    )
    fence = job.parts[1].fence
    fence.check()
    assert leave(job)
    with pytest.raises(Fenced, match="this node counts as one that has left the job"):
        fence.check()
    assert ended == [5, 6]
    # After a restart the kill of before does not count.
    restarted = dataclasses.replace(fence.pack.allocation, restarts=1)
    AttemptFence(pack=dataclasses.replace(fence.pack, allocation=restarted)).check()


def test_a_runner_of_another_node_counts_as_alive_until_its_guard_says_otherwise(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.submit_sets(1, 1, 1, set_nodes=(0, 0, 1))
    run_plainly(monkeypatch, job.begin(0))
    sets = job.parts[0].job_sets
    assert not sets._has_runner(job.path(1))
    assert sets._has_runner(job.path(2))
    write_kill(job.path(2), RunnerKill(0, 1, 9, 1.0, "it may not be requeued"))
    assert not sets._has_runner(job.path(2))
