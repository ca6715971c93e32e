"""csub under the name squeue: tasks of packs have rows of their own, all else is as squeue says.

Also: which rows of squeue and sacct stand for packs, and the tasks that belong in their place; csub
under the name sacct: tasks of packs have rows of their own, all else is as sacct says.

A program that has an array from csub under the name sbatch looks for its tasks. Slurm knows none of
those in a pack, so squeue is asked with marks between its fields (`slurm.marked_tables`), and
the row of a pack becomes one for each task, with the task's values.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from slurm_colloc.cli.sbatch_call import ask_slurm, find_command
from slurm_colloc.errors import CollocError, NotFound
from slurm_colloc.model.job_ids import format_task_runs, is_own_number, parse_job_id
from slurm_colloc.model.member import Selection, SlurmJobState, is_guest
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.member_views import MemberView, PackView, find_again, list_packs_to_follow
from slurm_colloc.report.slurm_tasks import (
    SlurmTask,
    choose_account_cell,
    find_queue_cell,
    sort_tasks,
)
from slurm_colloc.runtime.programs.member_commands import read_output
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.session.standard_streams import has_reader
from slurm_colloc.slurm.marked_tables import (
    AccountColumn,
    AccountQuestion,
    AccountRow,
    QueueField,
    QueueQuestion,
    QueueRow,
    build_account_question,
    build_queue_question,
    parse_columns,
    parse_rows,
    split_rows,
)
from slurm_colloc.slurm.scontrol_records import split_ids
from slurm_colloc.store.pack_directory import read_slurm_job_id

# ---- Which rows of squeue and sacct stand for packs, and the tasks that belong in their place ----

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
        self._named: dict[str, Selection] = {}
        self._known: dict[str, list[str]] = {}
        for word in self._words or ():
            with contextlib.suppress(ValueError):
                if found := parse_job_id(word):
                    self._named[word] = self._resolve(session, Selection(*found))
        self._selections = list(self._named.values())
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

    @staticmethod
    def _resolve(session: Session, selection: Selection) -> Selection:
        with contextlib.suppress(NotFound):
            return session.state.resolve(selection)
        return selection

    def translate(self, text: str) -> str:
        """The same ids for Slurm: with a task comes the job of the pack in which it may be."""
        words = split_ids(text)
        found = [self._known.get(named.job, []) for w, named in self._named.items() if w in words]
        # Slurm refuses the whole question where it does not know an id.
        words = [word for word in words if not self._is_own(word)]
        return ",".join(dict.fromkeys(filter(None, [*words, *itertools.chain(*found)])))

    def _is_own(self, word: str) -> bool:
        named = self._named.get(word)
        return named is not None and str(named) != word and is_own_number(word)

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
        return any(map(task.is_meant, self._selections))


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
    return any(is_guest(member.place) or member.member.joined_as for member in view.members)


# ----
# csub under the name squeue: tasks of packs have rows of their own, all else is as squeue says.

_HEAD = {"A": "jobid", "i": "jobarrayid", "U": "userid"}
_UNFOLDED = frozenset({"r", "array-unique"})
_QUEUE_FILTERS = {"t": "SQUEUE_STATES", "n": "SQUEUE_NAMES"}
"""What a task may meet and its pack not; each may stand in the environment, too."""


def run_squeue(argv: Sequence[str]) -> int:
    """Do what `squeue ARGUMENTS` asks; the exit status.

    Raises:
        SlurmUnreachable: There is no squeue of Slurm's in PATH.
    """
    question = build_queue_question(argv, os.environ, _HEAD)
    if question is None:
        return ask_slurm("squeue", argv)

    def answer(session: Session) -> Answer:
        found = _QueueAnswer(session, question)
        return found.status, found.lines

    return answer_with_tasks("squeue", argv, answer)


class _QueueAnswer:
    """squeue's answer with tasks in it.

    Args:
        session: The state.
        question: What was asked.

    Attributes:
        status: squeue's exit status.
        lines: The lines; None where they cannot be told apart.
    """

    def __init__(self, session: Session, question: QueueQuestion) -> None:
        self._question = question
        # The last ids count, and a word behind `-j` before all.
        ids = question.operands[0] if question.operands else question.value("j")
        self._choice = JobChoice(session, ids)
        self._filters = {
            key: question.value(key) or os.environ.get(name) for key, name in _QUEUE_FILTERS.items()
        }
        self.lines: list[str] | None = None
        self.status, rows = self._ask()
        if self.status or rows is None:
            self.lines = None if rows is None else [row.text() for row in rows]
            return
        packs: list[QueueRow] | None = rows
        if any(self._filters.values()):
            # By names and states packs are not chosen, but their tasks.
            more = ["--states=all"] if self._filters["t"] else []
            self.status, packs = self._ask(tuple(_QUEUE_FILTERS), more)
        if self.status or packs is None:
            # Without them it would look as if tasks were gone.
            self.lines = None if packs is None else []
            return
        own = [row for row in [*rows, *packs] if _is_own(row)]
        arrays = [row.head[1].partition("_")[0] for row in own]
        jobs = [*self._choice.jobs, *dict.fromkeys(arrays)]
        self._tasks = PackedTasks(session, jobs, os.environ)
        self.lines = self._merge(rows, packs)

    def _ask(
        self, left_out: Sequence[str] = (), more: Sequence[str] = ()
    ) -> tuple[int, list[QueueRow] | None]:
        words = self._question.build_words(self._choice.translate, left_out, more)
        unset = {_QUEUE_FILTERS[key] for key in left_out}
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        status, text = read_output(find_command("squeue"), ["squeue", *words], environment)
        return status, split_rows(text.removesuffix("\n"), self._question.fields) if text else []

    def _merge(self, rows: Sequence[QueueRow], packs: Sequence[QueueRow]) -> list[str]:
        """The rows of squeue in their order, tasks where their packs were, others behind."""
        known = {row.head[1] for row in [*rows, *packs] if row.head}
        names = self._tasks.names()
        waiting = _WaitingTasks(self._question)
        lines: list[str | _Folded] = []
        shown: set[str] = set()
        for row in rows:
            elements = self._find_packs(row, known)
            if elements is None:
                is_double = _is_own(row) and row.head[1] in names
                lines += [] if is_double else [row.text()]
            else:
                chosen = next((pack for pack in packs if pack.head[1:2] == row.head[1:2]), row)
                shown.add(row.head[1])
                lines += self._render(chosen, elements, waiting)
        for row in packs:
            elements = self._find_packs(row, known)
            if elements is not None and row.head[1] not in shown:
                lines += self._render(row, elements, waiting)
        return [line if isinstance(line, str) else line.text() for line in lines]

    def _find_packs(self, row: QueueRow, known: set[str]) -> list[SlurmTask] | None:
        """The tasks that a row stands for; None where it is no pack's."""
        return self._tasks.find(row.head[1], known) if _is_own(row) else None

    def _render(
        self, row: QueueRow, tasks: Sequence[SlurmTask], waiting: _WaitingTasks
    ) -> Iterator[str | _Folded]:
        order = self._question.value("S") or os.environ.get("SQUEUE_SORT", "")
        for task in sort_tasks(tasks, order):
            if not self._choice.wants(task, row.head[:2]) or not self._passes(task):
                continue
            if task.is_pending and not task.is_alone:
                if (folded := waiting.add(row, task)) is not None:
                    yield folded
            else:
                yield _render_row(row, self._question.fields, task)

    def _passes(self, task: SlurmTask) -> bool:
        states, names = self._filters["t"], self._filters["n"]
        if names and task.name not in names.split(","):
            return False
        if self._question.value("w") and not task.nodes:
            return False
        if not states:
            return not task.is_final
        chosen = {word.strip().upper() for word in states.split(",")}
        return "ALL" in chosen or bool(chosen & task.state_words)


class _Folded:
    """Waiting tasks of an array in one row, `4711_[1-4,7]`, as squeue has them."""

    def __init__(self, row: QueueRow, task: SlurmTask, fields: Sequence[QueueField]) -> None:
        self._row = row
        self._task = task
        self._fields = fields
        self.numbers: list[int] = []

    def text(self) -> str:
        if len(self.numbers) == 1:
            return _render_row(self._row, self._fields, self._task)
        runs = _cut_runs(format_task_runs(sorted(self.numbers)))
        folded = {"jobarrayid": f"{self._task.job}_[{runs}]", "arraytaskid": runs}
        return _render_row(self._row, self._fields, self._task, folded)


class _WaitingTasks:
    """Those that are alike but for their numbers share a row, unless `--array` was asked for."""

    def __init__(self, question: QueueQuestion) -> None:
        self._fields = question.fields
        is_unfolded = _UNFOLDED.intersection(key for key, _, _ in question.options)
        self._folds = not is_unfolded and "SQUEUE_ARRAY" not in os.environ
        self._rows: dict[object, _Folded] = {}

    def add(self, row: QueueRow, task: SlurmTask) -> _Folded | None:
        """The row of a task; None where it has joined one that is there."""
        unnumbered = {"jobarrayid": "", "arraytaskid": ""}
        key = (task.job, _render_row(row, self._fields, task, unnumbered))
        found = self._rows.get(key) if self._folds else None
        folded = found or _Folded(row, task, self._fields)
        folded.numbers.append(task.index)
        self._rows[key] = folded
        return None if found else folded


def _is_own(row: QueueRow) -> bool:
    return len(row.head) == len(_HEAD) and row.head[2] == str(os.geteuid())


def _render_row(
    row: QueueRow,
    fields: Sequence[QueueField],
    task: SlurmTask,
    others: Mapping[str, str] | None = None,
) -> str:
    """The row of a task's pack with the task's values, and with others that count more."""
    text = row.prefix
    for cell, field in zip(row.cells, fields, strict=True):
        value = (others or {}).get(field.name, find_queue_cell(task, field.name))
        text += cell if value is None else field.render(value)
    return text


def _cut_runs(runs: str) -> str:
    """No longer than SLURM_BITSTR_LEN says, 64 where it says nothing (`xlate_array_task_str`)."""
    text = os.environ.get("SLURM_BITSTR_LEN", "")
    limit = min(int(text), 4096) if text.isascii() and text.isdigit() else 64
    return runs if limit == 0 or len(runs) <= limit - 3 else f"{runs[: max(limit - 4, 0)]}..."


# ----
# csub under the name sacct: tasks of packs have rows of their own, all else is as sacct says.
#
# As with squeue (`in_place_of_squeue`), the rows of a pack's job become those of its tasks: one for
# the job and, unless only allocations are asked for, one for its batch script. What Slurm has
# measured of the pack's job, such as MaxRSS, is no task's, and is left empty.

_ACCOUNT_FILTERS = ("s", "name")
"""What a task may meet and its pack not."""

_SCRIPT_STEPS = frozenset({"batch", "extern"})
"""Steps of a job's script; the others of a pack's job may be of any member."""


def run_sacct(argv: Sequence[str]) -> int:
    """Do what `sacct ARGUMENTS` asks; the exit status.

    Raises:
        SlurmUnreachable: There is no sacct of Slurm's in PATH.
    """
    question = build_account_question(argv, os.environ)
    if question is None:
        return ask_slurm("sacct", argv)

    def answer(session: Session) -> Answer:
        found = _AccountAnswer(session, question)
        lines = found.list_lines()
        return found.status, lines

    return answer_with_tasks("sacct", argv, answer)


class _AccountAnswer:
    """sacct's answer with tasks in it.

    Args:
        session: The state.
        question: What was asked.

    Attributes:
        status: sacct's exit status.
    """

    def __init__(self, session: Session, question: AccountQuestion) -> None:
        self.status = 0
        self._session = session
        self._question = question
        ids = question.values("j")
        self._steps = {one.partition(".")[2] for one in split_ids(ids or "")}
        self._choice = JobChoice(session, ids and _name_jobs(ids))
        self._filters = {key: question.values(key) for key in _ACCOUNT_FILTERS}
        self._titles: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._columns: list[AccountColumn] = []

    def list_lines(self) -> list[str] | None:
        """The lines; None where sacct is to answer alone."""
        rows = packs = self._ask(())
        if rows is not None and any(self._filters.values()):
            packs = self._ask(_ACCOUNT_FILTERS)
        if rows is None or packs is None:
            # What was wrong sacct has said.
            return [] if self.status else None
        own = [row for row in [*rows, *packs] if self._is_here(row)]
        arrays = [_name_job(row).partition("_")[0] for row in own]
        jobs = [*self._choice.jobs, *dict.fromkeys(arrays)]
        tasks = PackedTasks(self._session, jobs, os.environ)
        known = {row.job_id for row in [*rows, *packs]}
        if not any(tasks.find(row.job_id, known) for row in own):
            return None
        header: list[str] = []
        if self._question.is_table:
            words = self._question.build_header_words()
            status, text = read_output(find_command("sacct"), ["sacct", *words], os.environ)
            self._columns = parse_columns(text)
            if status or len(self._columns) != len(self._names):
                return None
            header = text.split("\n")[:2]
        elif self._question.has_header:
            header = [self._question.write_row(self._titles, ())]
        lines = list(header) if self._question.has_header else []
        return lines + list(self._merge(rows, packs, tasks, known))

    def _ask(self, left_out: Sequence[str]) -> list[AccountRow] | None:
        words = self._question.build_words(
            lambda ids: self._choice.translate(_name_jobs(ids)), left_out
        )
        self.status, text = read_output(find_command("sacct"), ["sacct", *words], os.environ)
        read = None if self.status else parse_rows(text)
        if read is None:
            return None
        self._titles = read[0]
        self._names = tuple(title.lower() for title in self._titles)
        return read[1]

    def _is_here(self, row: AccountRow) -> bool:
        """Its job is of the cluster that the state tells of."""
        return row.cluster == self._session.state.cluster or not self._session.state.cluster

    def _merge(
        self,
        rows: Sequence[AccountRow],
        packs: Sequence[AccountRow],
        tasks: PackedTasks,
        known: set[str],
    ) -> Iterator[str]:
        """The rows of sacct in their order, tasks where their packs were, others behind."""
        names = tasks.names()
        shown = set()
        seen = frozenset(rows)
        behind = [row for row in packs if row not in seen]
        for number, source in enumerate((rows, behind)):
            for job_id, group in itertools.groupby(source, _name_job):
                own = list(group)
                found = tasks.find(job_id, known) if self._is_here(own[0]) else None
                if found is not None:
                    whole = [row for row in packs if _name_job(row) == job_id]
                    if job_id not in shown:
                        # What waited at the first question may have begun at the second.
                        yield from self._render(whole or own, found)
                    shown.add(job_id)
                elif number == 0 and not (self._is_here(own[0]) and job_id in names):
                    yield from (
                        self._question.write_row(row.cells, self._columns)
                        for row in own
                        if self._has_step(row)
                    )

    def _render(self, rows: Sequence[AccountRow], tasks: Sequence[SlurmTask]) -> Iterator[str]:
        ids = {_name_job(rows[0]), rows[0].raw_id.partition(".")[0]}
        for task in tasks:
            if not self._choice.wants(task, ids) or not self._passes(task):
                continue
            for row in rows:
                step = row.job_id.partition(".")[2]
                if step and (task.is_pending or step not in _SCRIPT_STEPS):
                    continue
                if not self._has_step(row):
                    continue
                chosen = [
                    choose_account_cell(task, name, cell, step)
                    for name, cell in zip(self._names, row.cells, strict=True)
                ]
                yield self._question.write_row(chosen, self._columns)

    def _has_step(self, row: AccountRow) -> bool:
        """It was asked for, where steps were: `4711_2.batch`."""
        names_steps = bool(self._steps) and all(self._steps)
        return not names_steps or row.job_id.partition(".")[2] in self._steps

    def _passes(self, task: SlurmTask) -> bool:
        states, names = self._filters["s"], self._filters["name"]
        if names and task.name not in names.split(","):
            return False
        if self._question.value("N") and not task.nodes:
            return False
        if not states:
            return True
        kinds = {key for key, _, _ in self._question.options}
        # Without an end of the time --state asks for the states at its begin, or now.
        is_moment = "E" not in kinds and ("S" in kinds or "j" not in kinds)
        if task.is_final and is_moment:
            return False
        return bool({word.strip().upper() for word in states.split(",")} & task.state_words)


def _name_jobs(ids: str) -> str:
    """The jobs of ids that may be those of steps."""
    return ",".join(one.partition(".")[0] for one in split_ids(ids))


def _name_job(row: AccountRow) -> str:
    """The job of a row that may be a step's."""
    return row.job_id.partition(".")[0]
