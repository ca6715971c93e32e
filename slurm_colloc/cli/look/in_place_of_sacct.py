"""csub under the name sacct: tasks of packs have rows of their own, all else is as sacct says.

As with squeue (`in_place_of_squeue`), the rows of a pack's job become those of its tasks: one for
the job and, unless only allocations are asked for, one for its batch script. What Slurm has
measured of the pack's job, such as MaxRSS, is no task's, and is left empty.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

from slurm_colloc.cli.handed_to_slurm import ask_slurm, find_command
from slurm_colloc.cli.look.packed_tasks import (
    Answer,
    JobChoice,
    PackedTasks,
    answer_with_tasks,
)
from slurm_colloc.cli.session import Session
from slurm_colloc.report.lines.task_cells import choose_account_cell
from slurm_colloc.report.slurm_tasks import SlurmTask
from slurm_colloc.runtime.programs.own_answers import read_output
from slurm_colloc.slurm.tables.command_words import split_ids
from slurm_colloc.slurm.tables.marked_accounts import (
    AccountColumn,
    AccountQuestion,
    AccountRow,
    build_account_question,
    parse_columns,
    parse_rows,
)

_FILTERS = ("s", "name")
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
        found = _Answer(session, question)
        lines = found.list_lines()
        return found.status, lines

    return answer_with_tasks("sacct", argv, answer)


class _Answer:
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
        self._filters = {key: question.values(key) for key in _FILTERS}
        self._titles: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._columns: list[AccountColumn] = []

    def list_lines(self) -> list[str] | None:
        """The lines; None where sacct is to answer alone."""
        rows = packs = self._ask(())
        if rows is not None and any(self._filters.values()):
            packs = self._ask(_FILTERS)
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
