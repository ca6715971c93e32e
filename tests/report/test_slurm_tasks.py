"""Members as squeue and sacct list tasks: what is not known of one is not told by its pack's."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_colloc.cli.tasks_listed import PackedTasks
from slurm_colloc.model.member import GUESTS_FROM, MemberState, SlurmJobState
from slurm_colloc.report.slurm_tasks import (
    SlurmTask,
    choose_account_cell,
    choose_relative_form,
    find_queue_cell,
)
from slurm_colloc.session.session import Session
from slurm_colloc.slurm.slurm_commands import SlurmJob
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    HomeRecord,
    StateRecord,
    begin_attempt,
    write_home,
    write_state,
)
from slurm_colloc.store.pack_directory import write_moved

from ..packs import build_pack

NOW = time.time()


class ListedPacks:
    """A state directory, and what Slurm says of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.state = State(folder, "here")
        self.state.prepare()
        self.jobs: dict[str, SlurmJob] = {}

    def submit(self, job_id: str, members: int = 3) -> Path:
        """A pack whose job runs."""
        name = f"20261126-120000-{job_id:0>8}"
        pack = build_pack(name, members=members)
        with self.state.writing([pack]):
            self.state.record_job([pack.record], job_id)
        comment = f"[csub-pack={name}]"
        self.jobs[job_id] = SlurmJob(
            job_id, SlurmJobState.RUNNING, "1:00", "9:00", "node1", "", comment
        )
        path = self.state.pack_path(pack.record.pack_id)
        begin_attempt(path, 1)
        return path

    def list_tasks(self, job_id: str, **environment: str) -> list[SlurmTask]:
        """The tasks in the place of a job's row."""
        session = SimpleNamespace(state=self.state, damaged=[], refresh=lambda: self.jobs)
        tasks = PackedTasks(cast(Session, session), [job_id], environment).find(job_id, ())
        return tasks or []


@pytest.fixture
def bed(tmp_path: Path) -> ListedPacks:
    return ListedPacks(tmp_path)


def say(pack: Path, number: int, state: MemberState, **values: Any) -> None:
    """Write a member's state as its runner does."""
    write_state(pack, number, StateRecord(state, 1, starts=1, **values))


def test_without_a_limit_of_its_own_a_task_has_what_is_left_of_its_pack(bed: ListedPacks) -> None:
    pack = bed.submit("1")
    say(pack, 1, MemberState.RUNNING, started_at=NOW - 5)
    say(pack, 2, MemberState.RUNNING, started_at=time.time() - 5, wall_limit_s=3600)
    one, two, _ = bed.list_tasks("1")
    assert find_queue_cell(one, "timeleft") is None
    assert (find_queue_cell(two, "timeleft") or "").startswith("59:")


def test_how_long_a_task_ran_whose_end_was_not_seen_is_not_told(bed: ListedPacks) -> None:
    pack = bed.submit("1")
    say(pack, 1, MemberState.RUNNING, started_at=NOW - 5)
    say(pack, 2, MemberState.COMPLETED, started_at=NOW - 50, ended_at=NOW - 30)
    bed.jobs.clear()
    one, two, _ = bed.list_tasks("1")
    assert one.state is MemberState.NODE_FAIL
    assert [find_queue_cell(one, "timeused"), find_queue_cell(two, "timeused")] == ["", "0:20"]
    assert [
        choose_account_cell(one, "elapsed", "", ""),
        choose_account_cell(two, "elapsed", "", ""),
    ] == ["", "00:00:20"]
    assert [
        choose_account_cell(one, "elapsedraw", "", ""),
        choose_account_cell(two, "elapsedraw", "", ""),
    ] == ["", "20"]


FORMS = {"relative": "%H:%M:%S", "standard": "%Y-%m-%dT%H:%M:%S", "odd": "%Y-%m-%dT%H:%M:%S"}


@pytest.mark.parametrize("form", FORMS)
def test_in_a_form_that_is_no_pattern_a_task_has_its_own_times_all_the_same(
    bed: ListedPacks, form: str
) -> None:
    pack = bed.submit("1")
    say(pack, 1, MemberState.RUNNING, started_at=NOW)
    task = bed.list_tasks("1", SLURM_TIME_FORMAT=form)[0]
    shown = time.strftime(FORMS[form], time.localtime(NOW))
    assert find_queue_cell(task, "starttime") == shown
    assert choose_account_cell(task, "start", "", "") == shown


@pytest.mark.parametrize(
    ("day", "shown"),
    [
        ("2025-05-01", "1 May 2025"), ("2026-06-11", "11 Jun 12:00"), ("2026-06-15", "12:00:00"),
        ("2026-06-14", "Ystday 12:00"), ("2026-06-16", "Tomorr 12:00"), ("2026-06-18", "Thu 12:00"),
        ("2026-06-22", "22 Jun 12:00"), ("2027-01-01", "1 Jan 2027"),
    ],
)  # fmt: skip
def test_relative_times_are_those_of_slurm(day: str, shown: str) -> None:
    noon = time.strptime(f"{day} 12:00", "%Y-%m-%d %H:%M")
    now = time.strptime("2026-06-15 18:00", "%Y-%m-%d %H:%M")
    assert time.strftime(choose_relative_form(noon, now), noon) == shown


def test_a_task_that_was_submitted_again_is_followed_to_where_it_is(bed: ListedPacks) -> None:
    first, again, third = bed.submit("1", 2), bed.submit("2", 2), bed.submit("3", 2)
    write_moved(first, 1, again.name)
    say(again, 1, MemberState.RUNNING, started_at=NOW)
    assert bed.list_tasks("1")[0].state is MemberState.RUNNING
    # Its new pack has given it to another one, and has one of the same number as a guest.
    guest, there = GUESTS_FROM + 1, GUESTS_FROM + 2
    say(third, 1, MemberState.COMPLETED, started_at=NOW)
    say(again, 1, MemberState.FAILED, started_at=NOW)
    for source, taker, number, job in ((again, third, there, "2"), (third, again, guest, "3")):
        home = HomeRecord(job=job, number=1, pack_id=source.name)
        bed.state.note_taker(source.name, job, taker.name)
        folder = source / "members" / format_number(1)
        folder.rename(taker / "members" / format_number(number))
        write_home(taker, number, home)
    assert bed.list_tasks("1")[0].state is MemberState.FAILED
