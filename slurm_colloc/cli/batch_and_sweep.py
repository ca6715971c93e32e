"""`csub batch [options] TABLE`: a job for each row of a table, or line of a list of commands.

Also: `csub sweep [options] SCRIPT --lr 0.1,0.2 --seed 0:5`: a job for each combination; which rows
of a table have been submitted, and how they have ended: the state alone tells.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.cli.submit_command import BATCH_HELP, refuse_options_of_others, run_call
from slurm_colloc.errors import CollocError, SlurmRefused, StateError, UsageProblem
from slurm_colloc.model.job import format_parameters
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import cut
from slurm_colloc.report.member_views import MemberView
from slurm_colloc.report.terminal_tables import render_lines
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import (
    Options,
    ParsedLine,
    merge_options,
    parse_command_line,
    read_environment,
)
from slurm_colloc.store.atomic_files import hold_lock, write_atomic
from slurm_colloc.submission.jobs.call_jobs import Call, build_call
from slurm_colloc.submission.jobs.directives import SiteOptions
from slurm_colloc.submission.jobs.sweep_jobs import collect_sweep
from slurm_colloc.submission.jobs.table_formats import (
    PARSERS,
    ParameterSetting,
    combine,
    list_numbers,
    parse_table,
    read_table_text,
)
from slurm_colloc.submission.jobs.table_rows import (
    RowReader,
    TableJob,
    build_table_key,
    group_workloads,
    is_radt_table,
    locate_refusal,
    parse_commands,
    render_status,
)

# ---- `csub sweep [options] SCRIPT --lr 0.1,0.2 --seed 0:5`: a job for each combination -----------

_SHOWN_MOST = 200
"""Jobs that --dry-run lists, before it counts the rest."""


def run_sweep(argv: Sequence[str]) -> int:
    """Submit a sweep; the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        say(HELP)
        return 0
    directory = os.getcwd()  # noqa: PTH109  # a str, as the records want it
    call = collect_sweep(argv, read_given_environment(), directory)
    refuse_options_of_others(call.options, "sweep")
    if call.options.flag("dry-run"):
        say(render_jobs(call))
    return run_call(call, directory, joins=False)


def render_jobs(call: Call) -> str:
    """The jobs of a call, a line each, with what tells them apart."""
    rows = [
        (
            str(candidate.job.number),
            candidate.job.name,
            format_parameters(candidate.job.parameters),
            shlex.join([candidate.job.script_name, *candidate.job.arguments]),
        )
        for candidate in call.candidates[:_SHOWN_MOST]
    ]
    more = len(call.candidates) - len(rows)
    text = render_lines(("JOB", "NAME", "PARAMETERS", "COMMAND"), rows)
    return f"{text}and {more} more jobs\n" if more else text


HELP = """\
Usage: csub sweep [OPTIONS] SCRIPT [ARGUMENTS]
       csub sweep [OPTIONS] --from=FILE SCRIPT [ARGUMENTS]
       csub sweep [OPTIONS] --from=FILE --wrap='python train.py --lr {lr}'

Submits SCRIPT once for each combination of values, as one submission whose jobs share GPUs.

  --lr 0.1,0.2  --lr=0.1,0.2  lr=0.1,0.2   two values of the parameter lr
  --seed 0:5                               0 1 2 3 4; 0:10:2 takes every second
  '[64,32],[8]'                            commas in brackets and quotes do not separate
  --                                       after this, no argument is a list of values
  {lr}                                     the value, in arguments, --wrap, -J, -o and -e;
                                           {{lr}} stands for {lr} itself

  --from=FILE    values from a file: *.csv with a row for each job; *.yaml, *.toml or *.json
                 with a list of rows, or with names and lists, for all combinations of them;
                 *.jsonl. If no argument has a placeholder, each name becomes an option.
  --zip          combine the first values, then the second ones, ... instead of all combinations
  --sample=N     N random combinations, the same ones each time; N:SEED chooses others
  --dry-run      print the jobs, and submit nothing

All other options are those of csub submit, for each job: csub submit --help.
A job finds its parameters in SLURM_COLLOC_PARAM_LR and so on. queue, history, report and the other
commands show them, and take --where lr=0.1.
"""


# ---- Which rows of a table have been submitted, and how they have ended: the state alone tells ---
#
# A row's key travels in its job's spec.json, which is in its place before sbatch is called. So a
# csub that is killed at any moment leaves a row either submitted and found here, or not submitted.


@dataclass(frozen=True)
class RowState:
    """A row that was submitted.

    Attributes:
        member: Its newest member.
        is_done: A member of it has completed.
        is_under_way: One waits or runs.
    """

    member: MemberView
    is_done: bool
    is_under_way: bool

    @property
    def status(self) -> str:
        """`COMPLETED`, `FAILED(3)`, `RUNNING`."""
        record = self.member.record
        code = record.exit_code if record is not None else None
        if self.member.state is MemberState.FAILED and code is not None:
            return f"FAILED({code.shell_status})"
        return self.member.state.value


def find_rows(session: Session, table: str) -> dict[str, RowState]:
    """The rows of a table that were submitted, by their keys.

    Args:
        session: The call's.
        table: What the table is known by.

    Raises:
        SlurmError: Slurm does not say which jobs there are.
        StateError: A pack cannot be read, which may hold a row.
    """
    views = session.survey_all()
    if session.unreachable is not None:
        raise session.unreachable
    if session.damaged:
        raise session.damaged[0]
    found: dict[str, RowState] = {}
    for view in views:
        for member in view.members:
            if member.row.startswith(f"{table}:"):
                found[member.row] = _join(found.get(member.row), member)
    return found


def _join(before: RowState | None, member: MemberView) -> RowState:
    is_done = member.state is MemberState.COMPLETED
    if before is None:
        return RowState(member, is_done, not member.is_final)
    # Views come in the order of their Slurm jobs: the last one is the newest.
    newest = before.member if before.is_done and not is_done else member
    return RowState(newest, before.is_done or is_done, before.is_under_way or not member.is_final)


# ----
# `csub batch [options] TABLE`: a job for each row of a table, or line of a list of commands.

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
