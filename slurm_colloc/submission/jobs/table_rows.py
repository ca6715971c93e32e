"""`csub batch`: the rows of a table as jobs; reads files alone.

Each row is known by what stands in it and not by its line, so that a table may be sorted and grow
while its jobs run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import cut
from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS
from slurm_colloc.slurm.options import (
    Argument,
    Concern,
    Given,
    Option,
    Options,
    ParsedLine,
)
from slurm_colloc.submission.jobs.call_jobs import (
    Candidate,
    build_candidate,
    merge_for_script,
)
from slurm_colloc.submission.jobs.learn_options import SiteOptions
from slurm_colloc.submission.jobs.placeholders import Filler, keep_literally
from slurm_colloc.submission.jobs.scripts import COMMAND_SCRIPT, Script, read_script
from slurm_colloc.submission.jobs.sweep_jobs import check_settings, fill_candidate
from slurm_colloc.submission.jobs.value_lists import ParameterSetting

_RUNS = ("script", "command", "arguments")
_SHORT = {"args": "arguments"}
_YES, _NO = frozenset({"true", "yes", "1", "on"}), frozenset({"false", "no", "0", "off"})
_DIRECTIVE = re.compile(r"#\s*DISBATCH\s+(\w+)\s*(.*)", re.ASCII)

_OPTIONS: Mapping[str, Option] = {
    option.name: option for option in (*SBATCH_OPTIONS, *OWN_OPTIONS)
} | {"name": next(option for option in SBATCH_OPTIONS if option.name == "job-name")}


@dataclasses.dataclass(frozen=True)
class TableJob:
    """A row of a table as a job.

    Attributes:
        candidate: The job; it has the row's key, and no number of its own yet.
        options: The options that hold for it.
        place: Where it stands, for messages.
    """

    candidate: Candidate
    options: Options
    place: str

    @property
    def key(self) -> str:
        """What the row is known by."""
        return self.candidate.job.row


@dataclasses.dataclass(frozen=True)
class _RowPlan:
    """What the cells of a row mean."""

    what: tuple[str, str]
    arguments: str
    given: tuple[tuple[str, str], ...]
    parameters: tuple[tuple[str, str], ...]


class RowReader:
    """Makes jobs of rows; rows that ask for the same are read once.

    Args:
        line: The options of the call, which hold for each row that says nothing else.
        environ: The environment.
        directory: The current directory.
        table: What the table is known by, see `build_table_key`.
    """

    def __init__(
        self, line: ParsedLine, environ: Mapping[str, str], directory: str, table: str
    ) -> None:
        self._line = line
        self._environ = environ
        self._directory = directory
        self._table = table
        self._site = SiteOptions(environ)
        self._scripts: dict[str, Script] = {}
        self._bases: dict[object, tuple[Candidate, Options]] = {}
        self._seen: dict[str, int] = {}

    def read(self, settings: Sequence[ParameterSetting]) -> list[TableJob]:
        """The jobs of rows.

        Raises:
            UsageProblem: A cell is wrong; the message names row and column.
        """
        plans = [(setting, _sort_cells(setting)) for setting in settings]
        check_settings(
            [
                ParameterSetting(plan.parameters, setting.place)
                for setting, plan in plans
                if plan.parameters
            ]
        )
        return [self._build(setting, plan) for setting, plan in plans]

    def _build(self, setting: ParameterSetting, plan: _RowPlan) -> TableJob:
        base, options = self._find_base(setting, plan)
        kind, text = plan.what
        try:
            words = [text] if kind == "command" else shlex.split(plan.arguments)
        except ValueError as error:
            raise UsageProblem(
                f"{setting.place}, column arguments: {cut(plan.arguments)!r}: {error}"
            ) from error
        candidate = fill_candidate(
            base,
            words,
            ParameterSetting(plan.parameters, setting.place),
            1,
            is_command=kind == "command",
            also_taken=_list_taken(text, plan, setting.place) if kind == "script" else (),
        )
        return TableJob(self._with_key(candidate, setting), options, setting.place)

    def _find_base(self, setting: ParameterSetting, plan: _RowPlan) -> tuple[Candidate, Options]:
        kind, text = plan.what
        shown = ""
        if kind == "script":
            shown = Filler(dict(plan.parameters), setting.place).fill(text)
        key = (shown, plan.given)
        found = self._bases.get(key)
        if found is None:
            script = self._read_script(shown, setting.place) if shown else COMMAND_SCRIPT
            values = [_give(name, value, setting.place) for name, value in plan.given]
            line = ParsedLine((*self._line.values, *(v for v in values if v is not None)), ())
            options = merge_for_script(script, line, self._environ, self._site)
            if options.flag("array"):
                raise UsageProblem(
                    f"{options.origin('array')}: a row is one job, and --array means several",
                    hint="write a row for each task",
                )
            job = build_candidate(script, options, self._environ, self._directory, 1, pack=True)
            found = self._bases[key] = (job, options)
        return found

    def _read_script(self, shown: str, place: str) -> Script:
        found = self._scripts.get(shown)
        if found is None:
            try:
                found = self._scripts[shown] = read_script(shown, (), self._directory)
            except UsageProblem as error:
                error.message = f"{place}, column script: {error.message}"
                raise
        return found

    def _with_key(self, candidate: Candidate, setting: ParameterSetting) -> Candidate:
        digest = hash_cells(setting)
        count = self._seen[digest] = self._seen.get(digest, 0) + 1
        job = dataclasses.replace(candidate.job, row=f"{self._table}:{digest}:{count}")
        return dataclasses.replace(candidate, job=job)


def hash_cells(setting: ParameterSetting) -> str:
    """What a row is known by within its table, whatever the order of its columns."""
    cells = "\0".join(f"{name}\0{value}" for name, value in sorted(setting.values))
    return hashlib.sha256(cells.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def build_table_key(shown: str, directory: str) -> str:
    """What a table is known by: where it lies, whatever links lead to it."""
    path = os.path.realpath(os.path.join(directory, shown))
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _sort_cells(setting: ParameterSetting) -> _RowPlan:
    """What each cell of a row is: what runs, an option or a parameter."""
    runs: dict[str, str] = {}
    given, parameters = [], []
    seen: dict[str, str] = {}
    for name, value in setting.values:
        plain = name.strip().lower().replace("_", "-")
        option = _OPTIONS.get(plain)
        meant = _SHORT.get(plain, plain) if option is None else option.canonical_name
        if meant in _RUNS or option is not None:
            other = seen.setdefault(meant, name)
            if other != name:
                raise UsageProblem(
                    f"{setting.place}: the columns {cut(other)} and {cut(name)} mean the same",
                    hint="leave one of them empty, or out",
                )
        if meant in _RUNS:
            runs[meant] = value
        elif option is not None:
            given.append((plain, value))
        else:
            parameters.append((name, value))
    if len(runs.keys() & {"script", "command"}) != 1:
        raise UsageProblem(
            f"{setting.place}: a row needs either a script or a command",
            hint="use columns script and arguments, or a column command",
        )
    if "command" in runs:
        if "arguments" in runs:
            raise UsageProblem(
                f"{setting.place}: arguments belong to a script, and this row has a command"
            )
        what = ("command", runs["command"])
    else:
        what = ("script", runs["script"])
    return _RowPlan(what, runs.get("arguments", ""), tuple(given), tuple(parameters))


def _list_taken(text: str, plan: _RowPlan, place: str) -> set[str]:
    """The parameters that the name of a row's script takes."""
    filler = Filler(dict(plan.parameters), place)
    filler.fill(text)
    return filler.taken


def _give(name: str, value: str, place: str) -> Given | None:
    """A cell as an option; None where it turns a flag off."""
    option = _OPTIONS[name]
    origin = f"{place}, column {name}"
    if option.alias_of:
        option = _OPTIONS[option.alias_of]
    if option.concern is Concern.CALL or option.early or name in ("array", "wrap"):
        raise UsageProblem(f"{origin}: --{name} applies to a whole call, not to a row")
    if option.argument is not Argument.REQUIRED:
        if value.lower() in _NO:
            return None
        if value.lower() in _YES:
            return Given(option, None, origin)
        if option.argument is Argument.NONE:
            raise UsageProblem(f"{origin}: {cut(value)!r} is neither yes nor no")
    return Given(option, value, origin)


def parse_commands(text: str, shown: str) -> list[ParameterSetting]:
    """A plain list of commands, one a line, as GNU parallel and disBatch take it.

    Empty lines and comments are passed over; of disBatch's directives PREFIX and SUFFIX are done.

    Raises:
        UsageProblem: It has another directive, or no command.
    """
    found = []
    prefix = suffix = ""
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{shown}:{number}"
        command = line.strip()
        directive = _DIRECTIVE.fullmatch(command)
        if directive:
            word, rest = directive[1].upper(), directive[2]
            if word == "PREFIX":
                prefix = f"{rest} "
            elif word == "SUFFIX":
                suffix = f" {rest}"
            else:
                raise UsageProblem(
                    f"{place}: #DISBATCH {word} is not supported; only PREFIX and SUFFIX are",
                    hint="use --dependency to make jobs wait, csub sweep to repeat a command",
                )
        elif command and not command.startswith("#"):
            whole = keep_literally(f"{prefix}{command}{suffix}")
            found.append(ParameterSetting((("command", whole),), place))
    if not found:
        raise UsageProblem(f"{shown} has no commands")
    return found
