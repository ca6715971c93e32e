"""csub under the name squeue: tasks of packs have rows of their own, all else is as squeue says.

A program that has an array from csub under the name sbatch looks for its tasks. Slurm knows none of
those in a pack, so squeue is asked with marks between its fields (`slurm.tables.marked_queue`), and
the row of a pack becomes one for each task, with the task's values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.cli.handed_to_slurm import ask_slurm, find_command
from slurm_colloc.cli.look.packed_tasks import Answer, JobChoice, PackedTasks, answer_with_tasks
from slurm_colloc.cli.session import Session
from slurm_colloc.model.sbatch.arrays import format_task_runs
from slurm_colloc.report.lines.task_cells import find_queue_cell, sort_tasks
from slurm_colloc.report.slurm_tasks import SlurmTask
from slurm_colloc.runtime.programs.own_answers import read_output
from slurm_colloc.slurm.tables.marked_queue import (
    QueueField,
    QueueQuestion,
    QueueRow,
    build_queue_question,
    split_rows,
)

_HEAD = {"A": "jobid", "i": "jobarrayid", "U": "userid"}
_UNFOLDED = frozenset({"r", "array-unique"})
_FILTERS = {"t": "SQUEUE_STATES", "n": "SQUEUE_NAMES"}
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
        found = _Answer(session, question)
        return found.status, found.lines

    return answer_with_tasks("squeue", argv, answer)


class _Answer:
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
        self._choice = JobChoice(session, _find_ids(question))
        self._filters = {
            key: question.value(key) or os.environ.get(name) for key, name in _FILTERS.items()
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
            self.status, packs = self._ask(tuple(_FILTERS), more)
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
        unset = {_FILTERS[key] for key in left_out}
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


def _find_ids(question: QueueQuestion) -> str | None:
    """The ids that were asked for: the last ones count, and a word behind `-j` before all."""
    return question.operands[0] if question.operands else question.value("j")


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
