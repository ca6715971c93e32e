"""`csub check`: reads a script and the Python programs that it starts; runs nothing.

Also: what a job's request means for sharing: which jobs fit next to it, and why not.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from slurm_colloc.check.collisions import ScriptFinding, Severity, build_finding, merge_findings
from slurm_colloc.check.kept_readings import LARGEST_BYTES
from slurm_colloc.check.python_collisions import (
    SHARED_OUTPUT,
    changes_directory,
    find_python_collisions,
    find_shell_outputs,
    settle_outputs,
)
from slurm_colloc.check.python_strings import read_shell_environment
from slurm_colloc.check.shell_collisions import (
    CommandReach,
    base_name,
    find_shell_collisions,
    program_at,
)
from slurm_colloc.check.shell_guards import find_shell_guards
from slurm_colloc.check.shell_reading import Command, ShellScript, parse_shell
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.model.plan import Capacity, Policy
from slurm_colloc.planning.gpu_set_packs import choose_set_degree, scale_capacity
from slurm_colloc.planning.plan_packs import (
    GPU_MEMORY_SHARE,
    compute_need,
    compute_overload,
    explain_gpu_count,
)
from slurm_colloc.slurm.options import Concern, Given, Options
from slurm_colloc.store.atomic_files import read_bytes

_SHELLS = late_pattern(r"^(ba|z|da|k|a|mk)?sh$")
_PYTHON = late_pattern(r"^(python|pypy)[\d.]*$")
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "ipython", "coverage"})
_MOST_PROGRAMS = 20


@dataclass(frozen=True)
class Program:
    """A Python program that a script starts.

    Attributes:
        shown: Its path as it stands in the script, or the script for one inside it.
        line: The line of `shown` where it begins, 1 for a file.
        text: The program; None where it is to be read from the file.
        arguments: What it is called with, as far as it is known.
    """

    shown: str
    line: int
    text: str | None
    arguments: tuple[str, ...]


def check_script_text(
    job: Job, content: bytes, environment: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[ScriptFinding], list[str]]:
    """What in a script, and in the Python programs that it starts, would collide.

    Args:
        job: The job; its directory is where the programs are looked for.
        content: The script.
        environment: The variables that it is started with.

    Returns:
        The findings, and the files that were read.
    """
    text = content.decode("utf-8", "replace")
    interpreter = choose_interpreter(text)
    file = job.script_name
    is_array = job.array_task is not None
    if interpreter == "python":
        program = Program(file, 1, text, job.arguments)
        findings = _check_program(program, job.directory, environment)
        return merge_findings(settle_outputs(findings, is_array=is_array)), [file]
    if interpreter != "shell":
        why = "csub reads only shell and Python: of this script it knows only the request"
        return [_unread(file, 1, text.split("\n", 1)[0], why)], [file]
    try:
        script = parse_shell(text, job.arguments)
        findings, locks = find_shell_guards(script, file)
    except RecursionError:
        return [_unread(file, 1, file, "it is nested too deeply, and was not checked")], [file]
    collisions = find_shell_collisions(script, file, choose_reach(text))
    # What is said of a lock tells more.
    findings += [f for f in collisions if f.kind != "fixed-temporary-file" or f.what not in locks]
    findings += [
        build_finding("not-understood", file, line, "syntax that csub does not know")
        for line in script.not_understood
    ]
    read = [file]
    inside = {**environment, **read_shell_environment(script)}
    for program in list(find_programs(script, file, job.directory))[:_MOST_PROGRAMS]:
        findings += _check_program(program, job.directory, inside)
        if program.shown not in read:
            read.append(program.shown)
    if changes_directory(script):
        findings = [finding for finding in findings if finding.kind != SHARED_OUTPUT]
    elif is_array:
        findings += find_shell_outputs(script, file)
    return merge_findings(settle_outputs(findings, is_array=is_array)), read


def choose_interpreter(text: str) -> str:
    """`shell`, `python`, or '' for others, by the first line."""
    words = text.split("\n", 1)[0].removeprefix("#!").split()
    names = [base_name(word) for word in words]
    if names[:1] == ["env"]:
        names = [name for name in names[1:] if not name.startswith("-") and "=" not in name]
    name = names[0] if names else ""
    if _SHELLS.match(name):
        return "shell"
    return "python" if _PYTHON.match(name) else ""


def choose_reach(text: str) -> CommandReach:
    """What reaches csub's own commands where a script begins.

    A login shell sets PATH anew; bash puts it back (runtime.path_shims).
    """
    words = text.split("\n", 1)[0].removeprefix("#!").split()
    is_login = any(
        word == "--login" or (re.fullmatch(r"-[a-z]*l[a-z]*", word) is not None) for word in words
    )
    is_bash = any(base_name(word) == "bash" for word in words)
    return CommandReach(is_bash, 1 if is_login and not is_bash else None)


def find_programs(script: ShellScript, file: str, directory: str) -> Iterator[Program]:
    """The Python programs that the commands of a script start, each once for each call."""
    seen: set[tuple[str, int, tuple[str, ...]]] = set()
    for step in script.steps:
        if not isinstance(step, Command):
            continue
        program = _find_program(step, file, directory)
        if program is None:
            continue
        key = (program.shown, program.line, program.arguments)
        if key not in seen:
            seen.add(key)
            yield program


def _find_program(command: Command, file: str, directory: str) -> Program | None:
    at = program_at(command)
    if at is None:
        return None
    literals = [word.literal for word in command.words[at:]]
    first = literals[0] or ""
    if first.endswith(".py") and "/" in first:
        return Program(first, 1, None, _known(literals[1:]))
    is_python = bool(_PYTHON.match(base_name(first)))
    if is_python and literals[1:2] == ["-c"]:
        code = literals[2] if len(literals) > 2 else None
        return Program(file, command.words[at + 2].line, code, ()) if code else None
    if not is_python and base_name(first) not in _LAUNCHERS:
        return None
    for position, text in enumerate(literals):
        # `python -m torch.distributed.run train.py` is found here too.
        if text is not None and text.endswith(".py"):
            return Program(text, 1, None, _known(literals[position + 1 :]))
    return _find_module(literals, directory) or _find_document(command, file, is_python=is_python)


def _find_module(literals: Sequence[str | None], directory: str) -> Program | None:
    """`python -m package.train`, where it lies in the working directory."""
    if "-m" not in literals[:-1]:
        return None
    position = literals.index("-m") + 1
    path = f"{(literals[position] or '').replace('.', '/')}.py"
    if not os.path.isfile(os.path.join(directory, path)):
        return None
    return Program(path, 1, None, _known(literals[position + 1 :]))


def _find_document(command: Command, file: str, *, is_python: bool) -> Program | None:
    document = command.document
    if not is_python or document is None or document.text is None:
        return None
    return Program(file, document.line, document.text, ())


def _known(literals: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(text for text in literals if text is not None)


def _check_program(
    program: Program, directory: str, environment: Mapping[str, str | None]
) -> list[ScriptFinding]:
    text = program.text
    tell = functools.partial(_unread, program.shown, program.line, "a program it starts")
    if text is None:
        path = os.path.join(directory, program.shown)
        try:
            # Of a pipe nothing may ever come.
            text = read_bytes(path, LARGEST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            reason = error.strerror or str(error)
            return [tell(f"it cannot be read here ({reason}), and was not checked")]
    try:
        return find_python_collisions(
            text,
            program.shown,
            first_line=program.line,
            arguments=program.arguments,
            environment=environment,
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        return [tell(f"it is not Python of this version ({said}), and was not checked")]


def _unread(file: str, line: int, what: str, why: str) -> ScriptFinding:
    return ScriptFinding("not-read", file, line, what, why, level=Severity.NOTE)


# ---- What a job's request means for sharing: which jobs fit next to it, and why not; pure --------

REQUEST = "the request"
"""Where findings stand that are about what was not said."""

_MOST = 64
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")


@dataclass(frozen=True)
class ResourceRow:
    """One resource.

    Attributes:
        name: `CPUs`, `host memory` or `GPU memory`.
        unit: Of the figures: '' or `MB`.
        asked: What one member needs; None where it did not say.
        available: What there is for one GPU; None where that is not known.
        fits: How many members fit; None where that cannot be said.
    """

    name: str
    unit: str
    asked: int | None
    available: int | None
    fits: int | None


@dataclass(frozen=True)
class SharingFit:
    """What sharing would get.

    Attributes:
        rows: The resources.
        degree: Members that run at the same time at most, by settings or `--degree`.
        members: Members of the same kind in one pack; 1 where the job runs alone.
        alone_because: Why it runs alone; empty if it can share.
    """

    rows: tuple[ResourceRow, ...]
    degree: int
    members: int
    alone_because: str


def compute_sharing(job: Job, capacity: Capacity, policy: Policy) -> SharingFit:
    """How many jobs of this kind share a GPU, or a set of as many as each of them needs."""
    if job.gpus > 1:
        capacity = scale_capacity(capacity, job.gpus)
        policy = replace(policy, degree=choose_set_degree(policy, job.gpus))
    need = compute_need(job, 0, capacity, policy)
    usable = capacity.gpu_memory_mb and int(capacity.gpu_memory_mb * GPU_MEMORY_SHARE)
    figures = (
        ("CPUs", "", need.cpus, capacity.cpus_per_gpu, "cpus_per_gpu"),
        (
            "host memory",
            "MB",
            job.host_memory_mb,
            capacity.host_memory_mb_per_gpu,
            "host_memory_mb_per_gpu",
        ),
        ("GPU memory", "MB", job.gpu_memory_mb, usable, "gpu_memory_mb"),
    )
    rows = []
    for name, unit, asked, available, field in figures:
        fits = None
        if asked is not None and available is not None:
            only = replace(Capacity(gpus=capacity.gpus), **{field: getattr(capacity, field)})
            fits = next(
                (n for n in range(_MOST, 0, -1) if not compute_overload([need] * n, n, only)), 0
            )
        rows.append(ResourceRow(name, unit, asked, available, fits))
    alone = job.alone_because or explain_gpu_count(job, policy)
    known = [row.fits for row in rows if row.fits is not None]
    members = 1 if alone else max(1, min([policy.degree, *known]))
    return SharingFit(tuple(rows), policy.degree, members, alone)


def find_request_findings(
    job: Job, options: Options, sharing: SharingFit, capacity: Capacity
) -> list[ScriptFinding]:
    """What in the request keeps a job from sharing, or is good to know."""
    findings = []
    if sharing.alone_because:
        given = _find_given(options, job.alone_option)
        file, line = _place(given.origin if given else None)
        advice = "leave it to sbatch, or ask for one GPU, one node and one task"
        shown = why = sharing.alone_because
        if job.gpus == 0 and not job.alone_because:
            shown, advice = "no GPU", "--gres=gpu:1 asks for one"
        elif job.alone_option in ("exclusive", "mem"):
            advice = "leave it out, and say what one job needs: --cpus-per-task, --mem"
        if given is not None:
            shown = f"--{given.option.name}" + (f"={given.value}" if given.value else "")
            if given.option.concern is Concern.ALONE:
                why = given.option.reason
        why = f"it runs alone: {why}"
        findings.append(ScriptFinding("runs-alone", file, line, shown, why, advice))
    else:
        for row, name in ((sharing.rows[0], "cpus-per-task"), (sharing.rows[1], "mem")):
            finding = _check_share(row, name, options, sharing.degree)
            if finding is not None:
                findings.append(finding)
        findings += _find_unstated(job, capacity)
    return findings


def _check_share(
    row: ResourceRow, name: str, options: Options, degree: int
) -> ScriptFinding | None:
    """A request of which fewer fit than could share."""
    if row.fits is None or row.available is None or row.asked is None or row.fits >= degree:
        return None
    given = next(
        (n for n in (name, "cpus-per-gpu", "mem-per-cpu", "mem-per-gpu") if options.flag(n)), name
    )
    if row.name != "CPUs" and given == "cpus-per-gpu":
        given = name
    file, line = _place(options.origin(given))
    wanted = next((n for n in range(degree, 1, -1) if row.available // n), 1)
    unit = "M" if row.unit else ""
    advice = ""
    if wanted > max(1, row.fits):
        more = wanted - max(1, row.fits)
        advice = f"{more} more would fit with --{name}={row.available // wanted}{unit}"
    asked = f"--{given}={options.text(given)}" if options.flag(given) else f"{row.asked} {row.name}"
    why = f"the GPU's share is {row.available} {row.unit or row.name}"
    if row.fits > 1:
        why += f": only {row.fits} members fit at the same time"
        return ScriptFinding("large-share", file, line, asked, why, advice, Severity.NOTE)
    return ScriptFinding("whole-share", file, line, asked, f"{why}, so no other job fits", advice)


def _find_unstated(job: Job, capacity: Capacity) -> list[ScriptFinding]:
    """What was not said, and what holds instead."""
    findings = []
    if job.time_limit_s is None and not job.is_unlimited:
        default = capacity.time_limit_default_s
        means = f"the partition's {default} s" if default else "the partition's default"
        findings.append(build_finding("no-time", REQUEST, 0, "no --time", means=means))
    if job.gpu_memory_mb is None:
        findings.append(build_finding("no-gpu-mem", REQUEST, 0, "no --gpu-mem"))
    return findings


def _find_given(options: Options, name: str) -> Given | None:
    """The option that keeps a job alone; without a name what asks for its GPUs."""
    names = [name] if name else _GPU_OPTIONS
    return next(filter(None, map(options.given, names)), None)


def _place(origin: str | None) -> tuple[str, int]:
    """`train.sh:3` as file and line; other origins have no line."""
    file, _, line = (origin or REQUEST).rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (origin or REQUEST, 0)
