"""`csub batch [options] TABLE`: a job for each row of a table, or line of a list of commands."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.cli.submit.refuse_options import refuse_options_of_others
from slurm_colloc.cli.submit.rows_under_way import RowState, find_rows
from slurm_colloc.cli.submit.submit_command import run_call
from slurm_colloc.cli.submit.submit_help import BATCH_HELP
from slurm_colloc.cli.submit.sweep_command import render_jobs
from slurm_colloc.errors import CollocError, SlurmRefused, StateError, UsageProblem
from slurm_colloc.model.printable import cut
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import (
    Options,
    ParsedLine,
    merge_options,
    parse_command_line,
    read_environment,
)
from slurm_colloc.store.atomic_files import write_atomic
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.submission.jobs.call_jobs import Call, build_call
from slurm_colloc.submission.jobs.learn_options import SiteOptions
from slurm_colloc.submission.jobs.radt_rows import (
    group_workloads,
    is_radt_table,
    render_status,
)
from slurm_colloc.submission.jobs.refused_rows import locate_refusal
from slurm_colloc.submission.jobs.table_formats import PARSERS, parse_table
from slurm_colloc.submission.jobs.table_rows import (
    RowReader,
    TableJob,
    build_table_key,
    parse_commands,
)
from slurm_colloc.submission.jobs.table_text import read_table_text
from slurm_colloc.submission.jobs.value_lists import ParameterSetting, combine, list_numbers

LOCK_WAIT_S = 30.0
WATCH_PAUSE_S = 1.0
TROUBLE_PAUSE_S = 30.0


def run_batch(argv: Sequence[str]) -> int:
    """Submit the rows of a table; the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        say(BATCH_HELP)
        return 0
    batch = read_table(argv, read_given_environment(), os.getcwd())  # noqa: PTH109
    refuse_options_of_others(batch.options, "batch")
    if batch.options.flag("watch"):
        return batch.watch()
    return batch.submit(only_new=False, resumes=batch.options.flag("resume"))


def read_table(argv: Sequence[str], environ: Mapping[str, str], directory: str) -> TableBatch:
    """Read a call of `csub batch`.

    Args:
        argv: Arguments behind `csub batch`.
        environ: The environment.
        directory: The current directory.

    Raises:
        UsageProblem: Something in it is wrong.
    """
    line = SiteOptions(environ).parse(lambda o: parse_command_line(argv, site_options=o))
    options = merge_options(environment=read_environment(environ), command_line=line.values)
    if len(line.words) != 1:
        raise UsageProblem(
            "csub batch takes one table" if line.words else "csub batch: no table was given",
            hint="csub batch [OPTIONS] jobs.csv; options stand before it",
        )
    (shown,) = line.words
    if shown == "-" and (options.flag("resume") or options.flag("watch")):
        raise UsageProblem("--resume and --watch need a file, and not standard input")
    if options.flag("watch") and (options.flag("wait") or options.flag("dry-run")):
        raise UsageProblem("--watch cannot be used with --wait or --dry-run")
    return TableBatch(shown, line, options, environ, directory)


@dataclasses.dataclass(frozen=True)
class TableBatch:
    """A table and how its rows are to be submitted.

    Attributes:
        shown: What the table is called, `-` for standard input.
        line: The command line.
        options: The options of the call.
        environ: The environment.
        directory: The current directory.
    """

    shown: str
    line: ParsedLine
    options: Options
    environ: Mapping[str, str]
    directory: str

    @property
    def path(self) -> Path:
        """Where the table lies."""
        return Path(self.directory, self.shown)

    @property
    def table(self) -> str:
        """What the table is known by."""
        return build_table_key(self.shown, self.directory)

    def watch(self) -> int:
        """Submit the rows that there are and those that come, until a user ends it.

        Raises:
            CollocError: Something is wrong at the first look; later that is said, and it goes on.
        """
        try:
            self._watch()
        except KeyboardInterrupt:
            note("no longer watching; the jobs go on")
        return 0

    def _watch(self) -> None:
        resumes, seen = self.options.flag("resume"), -1
        while True:
            changed_at = self._read_change()
            if changed_at != seen:
                try:
                    self.submit(only_new=not resumes, resumes=True, is_growing=True)
                except UsageProblem as problem:
                    if seen == -1:
                        raise
                    note(f"{problem}; the table is read again when it changes")
                except CollocError as problem:
                    if seen == -1:
                        raise
                    note(f"{problem}; tried again in {TROUBLE_PAUSE_S:.0f} s")
                    time.sleep(TROUBLE_PAUSE_S)
                    continue
                resumes, seen = False, changed_at
            time.sleep(WATCH_PAUSE_S)

    def _read_change(self) -> int:
        with contextlib.suppress(OSError):
            return self.path.stat().st_mtime_ns
        return 0

    def submit(self, *, only_new: bool, resumes: bool, is_growing: bool = False) -> int:
        """Submit rows; the exit status, the worst one where several calls are waited for.

        Args:
            only_new: Rows that have failed are not submitted again.
            resumes: Rows that are done or under way are left out.
            is_growing: A last line without an end is still being written.

        Raises:
            UsageProblem: The table is wrong.
            CollocError: Slurm or the state did not take them.
        """
        settings = self._read_settings(is_growing=is_growing)
        groups = list(self._group(settings))
        if not resumes:
            status = max(self._run(jobs, title) for title, jobs, _ in groups)
            self._tell_status(settings, groups)
            return status
        with self._alone() as session:
            rows = find_rows(session, self.table)
            chosen = [
                (title, [j for j in jobs if _is_wanted(rows.get(j.key), only_new=only_new)])
                for title, jobs, _ in groups
            ]
            self._tell_left_out([j for _, jobs, _ in groups for j in jobs], rows)
            status = max((self._run(jobs, title) for title, jobs in chosen if jobs), default=0)
        self._tell_status(settings, groups)
        return status

    def list_calls(self) -> list[tuple[str, Call]]:
        """What would be submitted of all rows: calls with their titles, empty where it is one."""
        settings = self._read_settings(is_growing=False)
        return [(title, number_jobs(jobs)) for title, jobs, _ in self._group(settings)]

    def _read_settings(self, *, is_growing: bool) -> list[ParameterSetting]:
        text = read_table_text(self.shown, self.directory)
        if is_growing:
            text = text[: text.rfind("\n") + 1]
        name = self.path.name
        if self.shown == "-" or name.rpartition(".")[2].lower() not in PARSERS:
            return parse_commands(text, "standard input" if self.shown == "-" else name)
        return combine(parse_table(text, name))

    def _group(
        self, settings: Sequence[ParameterSetting]
    ) -> Iterator[tuple[str, list[TableJob], Sequence[int]]]:
        """The jobs that are submitted together, each with its title and places in the table."""
        reader = RowReader(self.line, self.environ, self.directory, self.table)
        if not is_radt_table(settings):
            yield "", reader.read(settings), range(len(settings))
            return
        self._look_for_files(settings)
        given = frozenset(g.option.canonical_name for g in self.line.values)
        for workload in group_workloads(settings, given=given, folder=str(self.path.parent)):
            yield workload.title, reader.read(workload.settings), workload.places

    def _look_for_files(self, settings: Sequence[ParameterSetting]) -> None:
        """Refuse a row of radT's table whose program is not there, as that of a script would be."""
        for setting in settings:
            file = dict(setting.values).get("File", "")
            if file and not Path(self.path.parent, file).is_file():
                problem = f"{setting.place}, column File: there is no file {cut(file)} here"
                raise UsageProblem(problem, hint=f"it is named from where {self.shown} lies")

    def _run(self, jobs: Sequence[TableJob], title: str) -> int:
        call = number_jobs(jobs)
        if title:
            note(f"{title}: {len(jobs)} runs together")
        if self.options.flag("dry-run"):
            say(render_jobs(call))
        try:
            return run_call(call, self.directory, joins=False)
        except SlurmRefused as problem:
            if place := locate_refusal(jobs, problem.argv, problem.message):
                problem.message = f"{place}: {problem.message}"
            raise

    @contextlib.contextmanager
    def _alone(self) -> Iterator[Session]:
        """One csub at a time looks which rows are missing and submits them."""
        session = Session.open_own()
        state = session.own_state
        state.prepare()
        with hold_lock(state.root / f"table.{self.table}.lock", LOCK_WAIT_S) as locked:
            if not locked:
                why = locked.problem or "another csub batch is using it"
                raise StateError(f"cannot lock {self.shown}: {why}")
            yield session

    def _tell_left_out(self, jobs: Sequence[TableJob], rows: Mapping[str, RowState]) -> None:
        known = [rows[job.key] for job in jobs if job.key in rows]
        done = sum(row.is_done for row in known)
        under_way = sum(row.is_under_way and not row.is_done for row in known)
        if done or under_way:
            note(f"{self.shown}: {len(jobs)} rows, {done} done, {under_way} under way")

    def _tell_status(
        self,
        settings: Sequence[ParameterSetting],
        groups: Sequence[tuple[str, list[TableJob], Sequence[int]]],
    ) -> None:
        """Write the state of radT's runs next to its table."""
        if not is_radt_table(settings) or self.options.flag("dry-run"):
            return
        session = Session.open_own()
        rows = find_rows(session, self.table)
        ends = {
            place: (rows[job.key].status, str(rows[job.key].member.member))
            for _, jobs, places in groups
            for job, place in zip(jobs, places, strict=True)
            if job.key in rows
        }
        path = self.path.with_suffix(".status.csv")
        try:
            write_atomic(path, render_status(settings, ends).encode(), 0o644)
        except StateError as problem:
            note(f"the status of the runs was not written: {problem}")
        else:
            note(f"the status of the runs is in {path.name}")


def _is_wanted(row: RowState | None, *, only_new: bool) -> bool:
    if row is None:
        return True
    return not (only_new or row.is_done or row.is_under_way)


def number_jobs(jobs: Sequence[TableJob]) -> Call:
    """The call of these jobs."""
    candidates = [
        dataclasses.replace(j.candidate, job=dataclasses.replace(j.candidate.job, number=number))
        for number, j in zip(list_numbers(len(jobs)), jobs, strict=True)
    ]
    kinds = {id(job.options): job.options for job in jobs}
    return build_call(candidates, *kinds.values())
