"""Which rows of squeue and sacct stand for packs, and the tasks that belong in their place."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slurm_colloc.cli.handed_to_slurm import ask_slurm, find_command
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.cli.standard_streams import has_reader
from slurm_colloc.errors import CollocError, NotFound
from slurm_colloc.model.job_ids import parse_job_id
from slurm_colloc.model.member import Selection, SlurmJobState, is_guest
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.resubmitted_members import find_again, list_packs_to_follow
from slurm_colloc.report.slurm_tasks import SlurmTask
from slurm_colloc.slurm.tables.command_words import split_ids
from slurm_colloc.store.pack.pack_directory import read_slurm_job_id

Answer = tuple[int, list[str] | None]
"""Exit status and lines; None for lines that Slurm's command is to write alone."""


def answer_with_tasks(name: str, argv: Sequence[str], answer: Callable[[Session], Answer]) -> int:
    """Write an answer of Slurm's with tasks in it; where there is none, Slurm's own.

    Args:
        name: Slurm's command.
        argv: Its arguments.
        answer: Makes the answer.

    Returns:
        The exit status.

    Raises:
        SlurmUnreachable: There is no command of this name of Slurm's in PATH.
    """
    find_command(name)
    try:
        session = Session.open()
        session.tells_upkeep = has_reader()
        status, lines = answer(session) if session.state.list_all() else (0, None)
    except (CollocError, OSError) as error:
        note(f"{error}; packs are shown as Slurm knows them")
        lines = None
    if lines is None:
        return ask_slurm(name, argv)
    write_rows(lines)
    return status


def write_rows(lines: Sequence[str]) -> None:
    """Write rows to standard output: to a terminal what it can show, to a program each byte."""
    if sys.stdout.isatty():
        say("\n".join(map(escape_controls, lines)))
        return
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))


class JobChoice:
    """The jobs that were asked for by their ids.

    Args:
        session: Tells which of them are csub's.
        text: Ids as the user wrote them, with commas between; None where all are meant.
    """

    def __init__(self, session: Session, text: str | None) -> None:
        self._words = None if text is None else split_ids(text)
        self._selections: list[Selection] = []
        self._known: dict[str, list[str]] = {}
        for word in self._words or ():
            with contextlib.suppress(ValueError):
                if found := parse_job_id(word):
                    self._selections.append(Selection(*found))
        state = session.state
        for selection in self._selections:
            with contextlib.suppress(NotFound):
                takers = state.list_takers(selection.job)
                for pack_id in state.find_packs(selection.job):
                    record = state.read_pack(pack_id)
                    if record is None:
                        continue
                    own = self._known.setdefault(selection.job, [])
                    is_alone = pack_id not in takers and record.request is None
                    if selection.ranges is None or not is_alone:
                        own.append(read_slurm_job_id(state.pack_path(pack_id)) or "")

    def translate(self, text: str) -> str:
        """The same ids for Slurm: with a task comes the job of the pack in which it may be."""
        words = split_ids(text)
        for word in list(words):
            with contextlib.suppress(ValueError):
                if found := parse_job_id(word):
                    words += self._known.get(found[0], [])
        return ",".join(dict.fromkeys(filter(None, words)))

    def is_named(self, *names: str) -> bool:
        """Whether a job of Slurm's that is no pack was asked for, by one of its ids."""
        if self._words is None or any(name in self._words for name in names):
            return True
        for name in names:
            with contextlib.suppress(ValueError):
                array, ranges = parse_job_id(name) or ("", None)
                for one in self._selections:
                    of_it = [number for first, last in ranges or () for number in (first, last)]
                    is_within = one.ranges is None or any(map(one.includes, of_it))
                    if one.job == array and is_within:
                        return True
        return False

    @property
    def jobs(self) -> list[str]:
        """The submissions of csub's that were named."""
        return list(self._known)

    def wants(self, task: SlurmTask, pack: Iterable[str]) -> bool:
        """Whether a task was asked for.

        Args:
            task: It.
            pack: The ids of its pack's own job.
        """
        if self._words is None:
            return True
        # The id of a submission means its own tasks, wherever they are.
        if any(name in self._words and name not in self._known for name in pack):
            return True
        return any(
            selection.job == task.job and (task.is_alone or selection.includes(task.index))
            for selection in self._selections
        )


class PackedTasks:
    """The packs behind some jobs of Slurm's, and their tasks.

    Args:
        session: What is asked.
        jobs: The ids of jobs and arrays that Slurm has told of.
        environment: For SLURM_TIME_FORMAT.
    """

    def __init__(
        self, session: Session, jobs: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._views = {
            view.record.pack_id: view
            for view in _survey_jobs(session, jobs)
            if view.job_id and not view.is_elsewhere and not view.record.local
        }
        for problem in session.damaged:
            note(f"{problem}; it is shown as Slurm knows it")
        self._time_format = environment.get("SLURM_TIME_FORMAT", "")
        self._now = time.time()
        self._tasks: dict[str, list[SlurmTask]] = {}
        for view in self._views.values():
            if is_shared(view):
                # The GPU sets of one job are packs with the same id.
                self._tasks.setdefault(view.job_id, []).extend(self._list_tasks(view))

    def find(self, job_id: str, rows: Collection[str]) -> list[SlurmTask] | None:
        """The tasks that a row of Slurm's stands for.

        Args:
            job_id: The row's job, `4711_1000`, or `4711_[1000-1002]` for some that wait.
            rows: All jobs that have a row.

        Returns:
            None where it is no pack of several.
        """
        array, folded, _ = job_id.partition("_[")
        if not folded:
            return self._tasks.get(job_id)
        waiting = (v for v in self._views.values() if v.slurm_state is SlurmJobState.PENDING)
        own = [view for view in waiting if view.own_id == array and view.job_id not in rows]
        names = dict.fromkeys(view.job_id for view in own if view.job_id in self._tasks)
        if not names:
            return None
        tasks = [task for name in names for task in self._tasks[name]]
        # Tasks that are elements of their own wait in the same row.
        alone = [
            task for view in own if view.job_id not in names for task in self._list_tasks(view)
        ]
        return [*tasks, *alone]

    def names(self) -> frozenset[str]:
        """The ids of all tasks that are in packs."""
        return frozenset(task.name_for_slurm for tasks in self._tasks.values() for task in tasks)

    def _list_tasks(self, view: PackView) -> list[SlurmTask]:
        tasks = []
        for member in view.members:
            where, found = self._follow(view, member)
            is_alone = member.names_alone
            tasks.append(
                SlurmTask(
                    where,
                    found,
                    member.member,
                    self._now,
                    is_alone=is_alone,
                    time_format=self._time_format,
                )
            )
        return sorted(tasks, key=lambda task: (len(task.job), task.job, task.index))

    def _follow(self, view: PackView, member: MemberView) -> tuple[PackView, MemberView]:
        """A member where it was submitted again, or as it is."""
        seen: set[str] = set()
        while member.moved_to is not None and member.moved_to not in seen:
            seen.add(member.moved_to)
            found = find_again(member, self._views.values())
            if found is None:
                break
            view, member = found
        return view, member


def _survey_jobs(session: Session, names: Sequence[str]) -> list[PackView]:
    """The packs of submissions and Slurm jobs, and those in which their members are now.

    Args:
        session: What is asked.
        names: Their ids; those that csub does not know are passed over.
    """
    jobs = session.refresh()
    found: dict[str, PackView] = {}
    left: list[str] = []
    for name in names:
        with contextlib.suppress(NotFound):
            left += session.state.find_packs(name)
    looked_at: set[str] = set()
    while left:
        looked_at.update(left)
        views = survey_packs(session.state, dict.fromkeys(left), jobs, session.damaged)
        found |= {view.record.pack_id: view for view in views}
        moved = {member.moved_to or "" for view in views for member in view.members} - {""}
        more = (name for pack in moved for name in list_packs_to_follow(session.state, pack))
        left = [pack_id for pack_id in more if pack_id not in looked_at]
    return list(found.values())


def is_shared(view: PackView) -> bool:
    """Slurm's row of a pack stands for other jobs than the one that it names."""
    if view.is_numbered_pack or len(view.members) > 1:
        return True
    return any(is_guest(member.place) for member in view.members)
