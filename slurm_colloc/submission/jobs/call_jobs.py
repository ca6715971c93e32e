"""From a command line, its scripts and their directives to jobs; reads files, submits nothing.

Also: finding and reading the scripts of a call; the environment that a job takes along, by --export
and --export-file; reads that file.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.model.job_ids import ArraySpec, parse_array
from slurm_colloc.model.job_values import compute_captured
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.slurm.options import (
    Concern,
    Given,
    Options,
    ParsedLine,
    merge_options,
    parse_command_line,
    read_environment,
)
from slurm_colloc.submission.jobs.directives import SiteOptions, check_script, parse_directives
from slurm_colloc.submission.jobs.job_options import (
    build_job,
    read_count,
    read_option,
    refuse_directories,
)

# ---- Finding and reading the scripts of a call ---------------------------------------------------

SCRIPT_LIMIT_BYTES = 4 * 1024 * 1024
"""Slurm's default for SchedulerParameters=max_script_size."""

JOBS_MOST = 50_000
"""Jobs of one call: more, and Slurm and the file system have to do with little else."""

COMMANDS = (
    "submit", "pack", "sweep", "batch", "retry", "probe", "check", "queue", "show", "logs",
    "cancel", "wait", "sandbox", "notebook", "tutorial",
)  # fmt: skip
"""csub's own words; everything else that comes first is a script or an option."""

_WRAP = "#!/bin/sh\n# This script was created by csub --wrap.\n\n{command}\n\n"


@dataclass(frozen=True)
class Script:
    """A script as it was at submission.

    Attributes:
        shown: What the user called it.
        name: Default name of its job.
        content: Its bytes.
        arguments: What it is called with.
        is_wrapped: It was made from --wrap and has no directives.
    """

    shown: str
    name: str
    content: bytes
    arguments: tuple[str, ...]
    is_wrapped: bool = False


def read_call_script(words: Sequence[str], wrap: str | None, directory: str) -> Script:
    """The script of `csub [options] SCRIPT [ARGUMENTS]`, of --wrap, or of standard input.

    Raises:
        UsageProblem: It is missing, cannot be read, or is not a script.
    """
    if wrap is not None:
        if words:
            raise UsageProblem(
                f"--wrap and the script {words[0]!r} exclude each other",
                hint="give one of them",
            )
        content = _WRAP.format(command=wrap).encode("utf-8", "surrogateescape")
        return Script("--wrap", "wrap", content, (), True)
    if not words:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageProblem("no script was given", hint="csub [options] SCRIPT, see csub --help")
        content = sys.stdin.buffer.read(SCRIPT_LIMIT_BYTES + 1)
        return _checked(Script("standard input", "sbatch", content, ()))
    _refuse_other_names(words[0], directory)
    return read_script(words[0], tuple(words[1:]), directory)


_OTHER_NAMES = {
    "status": "csub queue", "ls": "csub queue", "jobs": "csub queue", "squeue": "csub queue",
    "ps": "csub queue", "list": "csub queue", "kill": "csub cancel", "scancel": "csub cancel",
    "rm": "csub cancel", "delete": "csub cancel", "seff": "csub report", "sstat": "csub top",
    "sacct": "csub history", "log": "csub logs", "tail": "csub logs --tail 20",
    "rerun": "csub retry", "resubmit": "csub retry", "info": "csub show",
    "help": "csub --help",
}  # fmt: skip
"""What others call a command of csub's; some are programs in PATH, which no one means to submit."""


def _refuse_other_names(shown: str, directory: str) -> None:
    meant = _OTHER_NAMES.get(shown)
    if meant is not None and not os.path.exists(os.path.join(directory, shown)):
        raise UsageProblem(
            f"csub has no command {shown}", hint=f"{meant} does that; ./{shown} submits a file"
        )


def read_script(shown: str, arguments: tuple[str, ...], directory: str) -> Script:
    """Read a script file.

    Raises:
        UsageProblem: It cannot be read, or is not a script.
    """
    path = find_script(shown, directory)
    try:
        with path.open("rb") as file:
            content = file.read(SCRIPT_LIMIT_BYTES + 1)
    except OSError as error:
        raise UsageProblem(
            f"cannot read the script {shown}: {os.strerror(error.errno or 0)}",
            hint=_advise(shown) if isinstance(error, FileNotFoundError) else "",
        ) from error
    return _checked(Script(shown, path.name, content, arguments))


def _advise(shown: str) -> str:
    """What to do about a script that is not there: it may be a command with a slip in it."""
    import difflib

    if shown == "-":
        return "without a script csub reads standard input"
    if shown.startswith("-"):
        return f"options stand before the scripts: csub pack {shown} a.sh b.sh"
    near = difflib.get_close_matches(shown, COMMANDS, n=1)
    return f"did you mean csub {near[0]}?" if near else "is it in this directory?"


def read_pack_words(words: Sequence[str], directory: str) -> list[Script]:
    """The scripts of `csub pack`: each word a file, or a quoted file with arguments.

    Raises:
        UsageProblem: One cannot be read.
    """
    scripts = []
    for word in words:
        if word and os.path.exists(os.path.join(directory, word)):
            scripts.append(read_script(word, (), directory))
            continue
        try:
            parts = shlex.split(word)
        except ValueError as error:
            raise UsageProblem(f"csub pack: {word!r}: {error}") from error
        if not parts:
            raise UsageProblem("csub pack: an empty word is not a script")
        scripts.append(read_script(parts[0], tuple(parts[1:]), directory))
    return scripts


COMMAND_SCRIPT = Script(
    "--wrap", "wrap", b'#!/bin/sh\n# This script was created by csub.\n\neval "$1"\n', (), True
)
"""Runs the command that is its argument. So jobs that differ in the command alone are one kind."""


def find_script(shown: str, directory: str) -> Path:
    """Where a script lies: as given, or in PATH where it has no slash (as sbatch looks)."""
    direct = Path(directory, shown)
    # Unlike those of pathlib, these two pass over folders in PATH that may not be entered.
    if "/" in shown or os.path.exists(direct):
        return direct
    for folder in os.environ.get("PATH", "").split(":"):
        candidate = Path(folder or directory, shown)
        if os.path.isfile(candidate) and os.access(candidate, os.R_OK):
            return candidate
    return direct


def _checked(script: Script) -> Script:
    if len(script.content) > SCRIPT_LIMIT_BYTES:
        raise UsageProblem(
            f"{script.shown} is larger than {SCRIPT_LIMIT_BYTES // 2**20} MB",
            hint="submit a small script that starts the large program",
        )
    check_script(script.content, name=script.shown)
    return script


# ---- The environment that a job takes along, by --export and --export-file; reads that file ------


def capture_environment(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that a job takes along, by --export and --export-file.

    Raises:
        UsageProblem: The file of --export-file cannot be read.
    """
    path = options.text("export-file")
    if path is None:
        return compute_captured(environ, options.text("export"))
    try:
        with open(path, "rb") as file:
            items = file.read().split(b"\0")
    except OSError as error:
        raise UsageProblem(
            f"{options.origin('export-file')}: --export-file={path}: "
            f"{os.strerror(error.errno or 0)}"
        ) from error
    pairs = (
        item.decode("utf-8", "surrogateescape").partition("=") for item in items if b"=" in item
    )
    exported = compute_captured(environ, "NIL")
    # No process can be given a variable without a name.
    return exported | {name: value for name, _, value in pairs if name}


# ----
# From a command line, its scripts and their directives to jobs; reads files, submits nothing.


@dataclass(frozen=True)
class Candidate:
    """A job with what travels alongside it; without the options of one that was stored."""

    job: Job
    script: bytes
    environment: Mapping[str, str]
    options: Options | None = None

    def name_place(self, *names: str) -> str:
        """What to call it where one of these options is wrong: the line or cell of a file.

        That of the first of them that was given, `train.sh:3`; else the script's name.
        """
        origins = (self.options.origin(name) for name in names) if self.options else iter(())
        place = next(filter(None, origins), "")
        return place if ":" in place else self.job.script_name


@dataclass(frozen=True)
class Call:
    """One call of csub.

    Attributes:
        candidates: Its jobs, in the user's order.
        options: The options of the first job; those that concern the call are read here.
        array: `--array`, None without.
        degree: `--degree`, None where not given; the smallest over all jobs.
        shares: The different values of `--share` over all jobs, each with where it was given.
        pack_size: `--pack-size`, None where not given.
        goals: The different values of `--goal` over all jobs, each with where it was given.
        gpu_counts: The same of `--gpus-per-pack`.
        chosen_together: Its user named its scripts one by one (`csub pack`).
    """

    candidates: tuple[Candidate, ...]
    options: Options
    array: ArraySpec | None
    degree: int | None
    shares: tuple[tuple[str, str], ...]
    pack_size: int | None
    goals: tuple[tuple[str, str], ...] = ()
    gpu_counts: tuple[tuple[str, str], ...] = ()
    chosen_together: bool = False


def collect_call(
    argv: Sequence[str], environ: Mapping[str, str], directory: str, *, pack: bool
) -> Call:
    """Read a call.

    Args:
        argv: Arguments behind `csub` or `csub pack`.
        environ: The environment.
        directory: The current directory.
        pack: Every word is a script (`csub pack`), instead of a script and its arguments.

    Raises:
        UsageProblem: Something in it is wrong; the message says what and where.
    """
    site = SiteOptions(environ)
    line = site.parse(lambda options: parse_command_line(argv, site_options=options))
    environment = read_environment(environ)
    early = merge_options(environment=environment, command_line=line.values)
    if pack:
        if early.flag("wrap"):
            raise UsageProblem("csub pack takes scripts, not --wrap")
        if early.flag("array"):
            raise UsageProblem(
                "csub pack takes no --array", hint="csub --array=... SCRIPT packs tasks"
            )
        if not line.words:
            raise UsageProblem("csub pack: no script was given", hint="csub pack a.sh b.sh c.sh")
        scripts = read_pack_words(line.words, directory)
    else:
        scripts = [read_call_script(line.words, early.text("wrap"), directory)]
    merged = [merge_for_script(script, line, environ, site) for script in scripts]
    for script, options in zip(scripts, merged, strict=True):
        if pack and options.flag("array"):
            raise UsageProblem(
                f"{options.origin('array')}: --array cannot be packed by csub pack",
                hint=f"csub {script.shown} packs the tasks of the array",
            )
    array = read_option(merged[0], "array", parse_array)
    if array is None:
        candidates = [
            build_candidate(script, options, environ, directory, number, pack=pack)
            for number, (script, options) in enumerate(zip(scripts, merged, strict=True), start=1)
        ]
    else:
        if len(array.task_ids) > JOBS_MOST:
            raise UsageProblem(
                f"{merged[0].origin('array')}: --array has {len(array.task_ids)} tasks: one "
                f"call takes {JOBS_MOST}",
                hint="give the others in further calls",
            )
        candidates = _build_tasks(scripts[0], merged[0], environ, directory, array)
    call = build_call(candidates, *merged, array=array)
    return replace(call, chosen_together=pack)


def build_call(
    candidates: Sequence[Candidate], *merged: Options, array: ArraySpec | None = None
) -> Call:
    """The call of these jobs.

    Args:
        candidates: The jobs, in the user's order.
        merged: The options of each job, or of each kind of them; those of the first come first.
        array: `--array`.
    """
    return Call(
        candidates=tuple(candidates),
        options=merged[0],
        array=array,
        degree=_find_least(merged, "degree"),
        shares=list_values(merged, "share"),
        pack_size=_find_least(merged, "pack-size"),
        goals=list_values(merged, "goal"),
        gpu_counts=list_values(merged, "gpus-per-pack"),
    )


def _find_least(merged: Sequence[Options], name: str) -> int | None:
    """The smallest value of an option over jobs; None where none has it."""
    counts = (read_count(options, name) for options in merged)
    return min((count for count in counts if count is not None), default=None)


def list_values(merged: Sequence[Options], name: str) -> tuple[tuple[str, str], ...]:
    """The different values of an option over jobs, each with where it was first given."""
    found: dict[str, str] = {}
    for options in merged:
        value = options.text(name)
        if value is not None:
            found.setdefault(value, options.origin(name) or f"--{name}")
    return tuple(found.items())


def merge_for_script(
    script: Script, line: ParsedLine, environ: Mapping[str, str], site: SiteOptions
) -> Options:
    """The options that hold for a script: its directives, the environment, the command line.

    Raises:
        UsageProblem: One is malformed, or csub cannot do it.
    """
    directives: Sequence[Given] = ()
    if not script.is_wrapped:
        directives = site.parse(
            lambda options: parse_directives(
                script.content, name=script.shown, site_options=options
            )
        )
    options = merge_options(
        directives=directives, environment=read_environment(environ), command_line=line.values
    )
    for given in options.select(Concern.REFUSED):
        raise UsageProblem(
            f"{given.origin}: csub does not support --{given.option.name}: {given.option.reason}",
            hint="submit it with sbatch",
        )
    return options


def _build_tasks(
    script: Script,
    options: Options,
    environ: Mapping[str, str],
    directory: str,
    array: ArraySpec,
) -> list[Candidate]:
    ids = array.task_ids
    task = ArrayTask(ids[0], len(ids), min(ids), max(ids), array.step)
    first = build_candidate(
        script, options, environ, directory, ids[0], array_task=task, pack=False
    )
    jobs = (
        replace(first.job, number=task_id, array_task=replace(task, task_id=task_id))
        for task_id in ids
    )
    return [replace(first, job=job) for job in jobs]


def build_candidate(
    script: Script,
    options: Options,
    environ: Mapping[str, str],
    directory: str,
    number: int,
    *,
    pack: bool,
    array_task: ArrayTask | None = None,
) -> Candidate:
    """A job of a script and the options that hold for it.

    Args:
        script: The script.
        options: The options.
        environ: csub's environment.
        directory: The current directory.
        number: The job's number within the call.
        pack: It came with others that may share its GPU.
        array_task: Its place in `--array`.

    Raises:
        UsageProblem: An option has a wrong value; the message says where it stands.
    """
    chdir = options.text("chdir")
    job = build_job(
        options,
        number=number,
        script_name=script.shown,
        name=options.text("job-name") or script.name,
        arguments=script.arguments,
        directory=os.path.join(directory, chdir) if chdir else directory,
        array_task=array_task,
        pack=pack,
    )
    refuse_directories(options, job)
    return Candidate(job, script.content, capture_environment(options, environ), options)
