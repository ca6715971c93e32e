"""`csub batch`: the rows of a table as jobs; reads files alone.

Also: radT's table of collocated runs, as it is, in the columns of `csub batch`; which cells of a
table sbatch has refused: its own words name no file and no line.

Each row is known by what stands in it and not by its line, so that a table may be sorted and grow
while its jobs run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass, hash_sha256, late_pattern, replace
from slurm_colloc.model.printable import cut, render_csv_lines
from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS
from slurm_colloc.slurm.options import Argument, Concern, Given, Option, Options, ParsedLine
from slurm_colloc.submission.jobs.call_jobs import (
    COMMAND_SCRIPT,
    Candidate,
    Script,
    build_candidate,
    merge_for_script,
    read_script,
)
from slurm_colloc.submission.jobs.directives import SiteOptions
from slurm_colloc.submission.jobs.job_options import Filler, keep_literally
from slurm_colloc.submission.jobs.sweep_jobs import check_settings, fill_candidate
from slurm_colloc.submission.jobs.table_formats import ParameterSetting

_RUNS = ("script", "command", "arguments")
_SHORT = {"args": "arguments"}
_YES, _NO = frozenset({"true", "yes", "1", "on"}), frozenset({"false", "no", "0", "off"})
_DIRECTIVE = late_pattern(r"(?a)#\s*DISBATCH\s+(\w+)\s*(.*)")

_OPTIONS: Mapping[str, Option] = {
    option.name: option for option in (*SBATCH_OPTIONS, *OWN_OPTIONS)
} | {"name": next(option for option in SBATCH_OPTIONS if option.name == "job-name")}


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
        job = replace(candidate.job, row=f"{self._table}:{digest}:{count}")
        return replace(candidate, job=job)


def hash_cells(setting: ParameterSetting) -> str:
    """What a row is known by within its table, whatever the order of its columns."""
    cells = "\0".join(f"{name}\0{value}" for name, value in sorted(setting.values))
    return hash_sha256(cells.encode("utf-8", "surrogateescape"))[:16]


def build_table_key(shown: str, directory: str) -> str:
    """What a table is known by: where it lies, whatever links lead to it."""
    path = os.path.realpath(os.path.join(directory, shown))
    return hash_sha256(os.fsencode(path))[:16]


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


# ---- radT's table of collocated runs, as it is, in the columns of `csub batch`; pure -------------
#
# Columns: Experiment, Workload, Name, Status, Run, Devices, Collocation, File, Listeners, Params
# (itu-rad/radt, examples/csv and radt/schedule/schedule.py). Rows of one experiment and workload
# run together. Which GPUs they get is Slurm's to say: of Devices the number counts.

COLUMNS = (
    "Experiment", "Workload", "Name", "Status", "Run", "Devices", "Collocation", "File",
    "Listeners", "Params",
)  # fmt: skip
_TELLING = frozenset({"Experiment", "Workload", "File"})
_ALONE = frozenset({"", "-", "none", "nan"})


@dataclass(frozen=True)
class RadtWorkload:
    """Rows that run together.

    Attributes:
        title: `experiment 0, workload 2`.
        settings: The rows, in the columns of `csub batch`.
        places: Where each stands among all rows.
    """

    title: str
    settings: tuple[ParameterSetting, ...]
    places: tuple[int, ...]


def is_radt_table(settings: Sequence[ParameterSetting]) -> bool:
    """True for a table with radT's columns."""
    names = {name for setting in settings for name, _ in setting.values}
    return names >= _TELLING and names <= set(COLUMNS)


def group_workloads(
    settings: Sequence[ParameterSetting], *, given: frozenset[str], folder: str
) -> list[RadtWorkload]:
    """The workloads of radT's table, in its order.

    Args:
        settings: Its rows.
        given: Options that the call has; they stand for what the table says.
        folder: Where the table lies: its files are named from there.

    Raises:
        UsageProblem: A row lacks a file, or asks for what csub cannot do.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for at, setting in enumerate(settings):
        cells = dict(setting.values)
        found.setdefault((cells.get("Experiment", ""), cells.get("Workload", "")), []).append(at)
    return [
        RadtWorkload(
            f"experiment {cut(experiment)}, workload {cut(workload)}",
            tuple(
                _translate(settings[at], [settings[p] for p in places], given, folder)
                for at in places
            ),
            tuple(places),
        )
        for (experiment, workload), places in found.items()
    ]


def _translate(
    setting: ParameterSetting,
    workload: Sequence[ParameterSetting],
    given: frozenset[str],
    folder: str,
) -> ParameterSetting:
    together = len(workload)
    cells = dict(setting.values)
    file = cells.get("File", "")
    if not file:
        raise UsageProblem(f"{setting.place}: column File is empty")
    inner, name = os.path.split(file)
    try:
        words = shlex.split(cells.get("Params", ""))
    except ValueError as error:
        raise UsageProblem(f"{setting.place}, column Params: {error}") from error
    command = shlex.join(["python", name, *words])
    pairs = {
        "command": keep_literally(f"exec {command}"),
        "job-name": cells.get("Name") or name.removesuffix(".py"),
        "chdir": os.path.normpath(os.path.join(folder, inner)),
        "gres": f"gpu:{_count_devices(cells.get('Devices', ''), setting.place)}",
        "degree": str(together),
        "pack-size": str(together),
        "start-together": str(together) if together > 1 else "",
        "share": "" if "share" in given else _choose_share(setting, workload),
    }
    if given & {"gres", "gpus", "gpus-per-node"}:
        del pairs["gres"]
    kept = tuple((n, keep_literally(v)) for n, v in pairs.items() if v and n not in given)
    return ParameterSetting(kept, setting.place)


def _count_devices(text: str, place: str) -> int:
    devices = text.replace(" ", "").split("+")
    if text in _ALONE:
        return 1
    if not all(device.isdecimal() for device in devices):
        raise UsageProblem(f"{place}, column Devices: {cut(text)!r} is not a list such as 0 or 0+1")
    return len(devices)


def _choose_share(setting: ParameterSetting, workload: Sequence[ParameterSetting]) -> str:
    """The value of --share for a row; that of a workload on MIG names the instance of each row."""
    words = [dict(row.values).get("Collocation", "").strip().lower() for row in workload]
    word = dict(setting.values).get("Collocation", "").strip().lower()
    place = f"{setting.place}, column Collocation"
    if word in _ALONE:
        return "timeslice" if len(workload) > 1 else ""
    if word == "mps":
        return word
    if "g" not in word:
        raise UsageProblem(f"{place}: {cut(word)!r} is neither -, mps nor a MIG profile")
    if not all("g" in other for other in words):
        raise UsageProblem(
            f"{place}: {cut(word)} is a MIG device, and other rows of its workload have none",
            hint="a GPU is divided for all of its jobs, or for none",
        )
    return f"mig={'+'.join(words)}"


def render_status(settings: Sequence[ParameterSetting], ends: Mapping[int, tuple[str, str]]) -> str:
    """RadT's table with Status and Run filled in.

    Args:
        settings: Its rows.
        ends: The status and the member of rows, by their places.
    """
    rows: list[Sequence[str]] = [COLUMNS]
    for at, setting in enumerate(settings):
        cells = dict(setting.values)
        if at in ends:
            cells["Status"], cells["Run"] = ends[at]
        rows.append([cells.get(name, "") for name in COLUMNS])
    return render_csv_lines(rows)


# ---- Which cells of a table sbatch has refused: its own words name no file and no line; pure -----

_PASSED = (Concern.MEMBER, Concern.GROUP, Concern.SHAPE, Concern.ALONE)
_STEM = 6
_CALLED = {
    "constraint": "feature specification", "exclude": "node name", "nodelist": "node name",
}  # fmt: skip
"""Options that Slurm's errors (slurm_errno.c) call something else."""


def locate_refusal(jobs: Sequence[TableJob], argv: Sequence[str], told: str) -> str:
    """The place of the cells that sbatch's words are about: `jobs.csv:3, column nice`.

    Args:
        jobs: The rows of the call.
        argv: The call of sbatch that was refused; it is of the rows that ask for the same.
        told: What sbatch said.

    Returns:
        The first of the rows with the column that sbatch names, or else with all those that it was
        given; empty where no cell of a row has reached it.
    """
    passed = set(argv)
    best: list[Given] = []
    place = ""
    for job in jobs:
        given = [
            cell
            for cell in job.options.select(*_PASSED)
            if not cell.option.own and (cell.origin or "").startswith(f"{job.place}, column ")
        ]
        # Of what concerns one member, some is asked for in the pack's own numbers.
        asked = [cell for cell in given if _write(cell) in passed]
        of_group = [cell for cell in given if cell.option.concern is Concern.GROUP]
        # The row with most of them: that of another call lacks what this one has.
        if len(asked) > len(best) and all(cell in asked for cell in of_group):
            best, place = asked, job.place
    if not best:
        return ""
    found = ([cell for cell in best if is_it(cell, told)] for is_it in _SIGNS)
    columns = [cell.option.name for cell in next(filter(None, found), best)]
    return f"{place}, {'column' if len(columns) == 1 else 'columns'} {' and '.join(columns)}"


def _write(cell: Given) -> str:
    """As it stands on sbatch's command line."""
    return f"--{cell.option.name}={cell.value}" if cell.value else f"--{cell.option.name}"


def _is_named(cell: Given, told: str) -> bool:
    return re.search(rf"--{re.escape(cell.option.name)}(?![\w-])", told) is not None


def _is_quoted(cell: Given, told: str) -> bool:
    value = re.escape(cell.value or "")
    return bool(value) and re.search(rf"(?<![\w-]){value}(?![\w-])", told) is not None


def _is_meant(cell: Given, told: str) -> bool:
    name = cell.option.name
    return _CALLED.get(name, name.partition("-")[0][:_STEM]) in told.lower()


_SIGNS = (_is_named, _is_quoted, _is_meant)
"""What says that sbatch speaks of an option, the surest first."""
