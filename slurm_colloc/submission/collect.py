"""From a command line, its scripts and their directives to jobs; reads files, submits nothing."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.arrays import ArraySpec, parse_array
from slurm_colloc.model.export import choose_batch_export, compute_captured
from slurm_colloc.model.gres import GpuRequest, parse_gpu_request
from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.model.quantities import (
    parse_gpu_memory_mb,
    parse_host_memory_mb,
    parse_time_limit_s,
)
from slurm_colloc.model.signals import parse_signal_request
from slurm_colloc.slurm.options import (
    Concern,
    Options,
    ParsedLine,
    merge_options,
    parse_command_line,
    read_environment,
)
from slurm_colloc.submission.directives import parse_directives
from slurm_colloc.submission.scripts import Script, read_call_script, read_pack_words

_T = TypeVar("_T")
_Number = TypeVar("_Number", int, float)

_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
_ONE = {
    "nodes": ("1", "1-1"),
    "ntasks": ("1",),
    "ntasks-per-node": ("1",),
    "ntasks-per-gpu": ("1",),
    "ntasks-per-socket": ("1",),
    "ntasks-per-core": ("1",),
}
# What a job alone does not pass on as it is: csub sets it, or does it, itself.
_NOT_PASSED = frozenset({"array", "wrap", "export", "export-file", "job-name", "comment"})
_PASSED_FOR_THE_PACK = ("comment", "mail-type", "mail-user", "requeue", "no-requeue")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A job with what travels beside it."""

    job: Job
    script: bytes
    environment: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of csub.

    Attributes:
        candidates: Its jobs, in the user's order.
        options: The options of the first job; those that concern the call are read here.
        array: `--array`, None without.
        degree: `--degree`, None where not given; the smallest over all jobs.
        pack_size: `--pack-size`, None where not given.
        slowdown_bound: `--max-slowdown`, None where not given; the smallest over all jobs.
    """

    candidates: tuple[Candidate, ...]
    options: Options
    array: ArraySpec | None
    degree: int | None
    pack_size: int | None
    slowdown_bound: float | None


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
    line = parse_command_line(argv)
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
    merged = [_merge(script, line, environ) for script in scripts]
    array = None
    if pack:
        for script, options in zip(scripts, merged, strict=True):
            if options.flag("array"):
                raise UsageProblem(
                    f"{options.origin('array')}: --array cannot be packed by csub pack",
                    hint=f"csub {script.shown} packs the tasks of the array",
                )
        candidates = [
            _build_candidate(script, options, environ, directory, number, pack=True)
            for number, (script, options) in enumerate(zip(scripts, merged, strict=True), start=1)
        ]
    else:
        script, options = scripts[0], merged[0]
        text = options.text("array")
        if text is None:
            candidates = [_build_candidate(script, options, environ, directory, 1, pack=False)]
        else:
            array = parse_option(options, "array", text, parse_array)
            candidates = _build_tasks(script, options, environ, directory, array)
    return Call(
        candidates=tuple(candidates),
        options=merged[0],
        array=array,
        degree=_least([_read_count(options, "degree") for options in merged]),
        pack_size=_least([_read_count(options, "pack-size") for options in merged]),
        slowdown_bound=_least([_read_slowdown(options) for options in merged]),
    )


def _merge(script: Script, line: ParsedLine, environ: Mapping[str, str]) -> Options:
    directives = () if script.is_wrapped else parse_directives(script.content, name=script.shown)
    options = merge_options(
        directives=directives, environment=read_environment(environ), command_line=line.values
    )
    for given in options.select(Concern.REFUSED):
        raise UsageProblem(
            f"{given.origin}: csub cannot do --{given.option.name}: {given.option.reason}",
            hint="submit it with sbatch",
        )
    if options.flag("clusters"):
        raise UsageProblem(
            f"{options.origin('clusters')}: csub follows the jobs of one cluster only",
            hint="call it on a login node of the other cluster, or submit with sbatch",
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
    first = _build_candidate(
        script,
        options,
        environ,
        directory,
        ids[0],
        array_task=ArrayTask(ids[0], len(ids), min(ids), max(ids), array.step),
        pack=False,
    )
    assert first.job.array_task is not None
    return [
        dataclasses.replace(
            first,
            job=dataclasses.replace(
                first.job,
                number=task_id,
                array_task=dataclasses.replace(first.job.array_task, task_id=task_id),
            ),
        )
        for task_id in ids
    ]


def _build_candidate(
    script: Script,
    options: Options,
    environ: Mapping[str, str],
    directory: str,
    number: int,
    *,
    pack: bool,
    array_task: ArrayTask | None = None,
) -> Candidate:
    gpus = _read_gpus(options)
    cpus = _read_cpus(options, gpus.count)
    gpu_memory = _read(options, "gpu-mem", parse_gpu_memory_mb)
    chdir = options.text("chdir")
    job = Job(
        number=number,
        name=options.text("job-name") or script.name,
        script_name=script.shown,
        arguments=script.arguments,
        directory=os.path.join(directory, chdir) if chdir else directory,
        cpus=cpus,
        host_memory_mb=_read_host_memory_mb(options, cpus),
        gpus=gpus.count,
        gpu_type=gpus.type,
        gpu_memory_mb=gpu_memory,
        time_limit_s=_read(options, "time", parse_time_limit_s),
        output=options.text("output"),
        error=options.text("error"),
        input=_read_input(options),
        truncate_output=_read_open_mode(options),
        signal=_read(options, "signal", parse_signal_request),
        requeue=True if options.flag("requeue") else False if options.flag("no-requeue") else None,
        export=options.text("export"),
        array_task=array_task,
        group=_compute_group(options),
        shape=_compute_shape(options),
        alone_because=compute_alone_reason(options, gpus),
        came_together=(
            pack
            or array_task is not None
            or options.flag("degree")
            or options.flag("pack-size")
            or gpu_memory is not None
        ),
    )
    return Candidate(job, script.content, _capture_environment(options, environ))


def _capture_environment(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    path = options.text("export-file")
    if path is None:
        return compute_captured(environ, options.text("export"))
    try:
        with open(path, "rb") as file:
            items = file.read().split(b"\0")
    except OSError as error:
        raise UsageProblem(f"--export-file={path}: {os.strerror(error.errno or 0)}") from error
    pairs = (
        item.decode("utf-8", "surrogateescape").partition("=") for item in items if b"=" in item
    )
    exported = compute_captured(environ, "NIL")
    return exported | {name: value for name, _, value in pairs}


def compute_alone_reason(options: Options, gpus: GpuRequest) -> str:
    """Why a job with these options cannot share a GPU; empty if it can."""
    for given in options.select(Concern.ALONE):
        return f"--{given.option.name}: {given.option.reason}"
    for given in options.select(Concern.SHAPE):
        name, value = given.option.name, given.value or ""
        if name in _GPU_OPTIONS:
            continue
        if value not in _ONE.get(name, ()):
            return f"it asks for --{name}={value}"
    if gpus.other_gres:
        return f"it asks for other GRES too: {','.join(gpus.other_gres)}"
    if options.text("mem") in ("0", "0M", "0G"):
        return "--mem=0 asks for all host memory of a node"
    return ""


def _read_gpus(options: Options) -> GpuRequest:
    requests = []
    for name in _GPU_OPTIONS:
        request = _read(options, name, functools.partial(parse_gpu_request, option=name))
        if request is not None:
            requests.append(request)
    if not requests:
        return GpuRequest(0)
    others = tuple(word for request in requests for word in request.other_gres)
    largest = max(requests, key=lambda request: request.count)
    types = {request.type for request in requests if request.type}
    return GpuRequest(largest.count, types.pop() if len(types) == 1 else None, others)


def _read_cpus(options: Options, gpus: int) -> int:
    per_task = _read_count(options, "cpus-per-task")
    per_gpu = _read_count(options, "cpus-per-gpu")
    if per_task is not None:
        return per_task
    return (per_gpu or 1) * max(1, gpus) if per_gpu else 1


def _read_host_memory_mb(options: Options, cpus: int) -> int | None:
    for name, factor in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", 1)):
        value = _read(options, name, parse_host_memory_mb)
        if value:
            return value * factor
    return None


def _read_input(options: Options) -> str | None:
    path = options.text("input")
    return None if path in (None, "none") else path


def _read_open_mode(options: Options) -> bool:
    mode = options.text("open-mode")
    if mode is None or mode[:1] in ("a", "t"):
        return mode is not None and mode.startswith("t")
    raise UsageProblem(
        f"{options.origin('open-mode')}: --open-mode={mode} is neither append nor truncate"
    )


def _compute_group(options: Options) -> tuple[tuple[str, str], ...]:
    pairs = [
        (given.option.name, given.value or "")
        for given in options.select(Concern.GROUP)
        if not given.option.own
    ]
    pairs += [
        (name, options.text(name) or "") for name in _PASSED_FOR_THE_PACK if options.flag(name)
    ]
    batch_export = choose_batch_export(options.text("export"))
    if batch_export != "ALL" and not options.flag("export-file"):
        pairs.append(("export", batch_export))
    return tuple(sorted(pairs))


def _compute_shape(options: Options) -> tuple[tuple[str, str], ...]:
    return tuple(
        (given.option.name, given.value or "")
        for given in options.select(Concern.MEMBER, Concern.SHAPE, Concern.ALONE)
        if not given.option.own
        and given.option.name not in _NOT_PASSED
        and given.option.name not in _PASSED_FOR_THE_PACK
    )


def _read(options: Options, name: str, parse: Callable[[str], _T]) -> _T | None:
    text = options.text(name)
    return None if text is None else parse_option(options, name, text, parse)


def parse_option(options: Options, name: str, text: str, parse: Callable[[str], _T]) -> _T:
    """Parse an option's value.

    Raises:
        UsageProblem: It is malformed; the message says where it stands.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise UsageProblem(f"{options.origin(name)}: --{name}={text}: {error}") from error


def _read_count(options: Options, name: str) -> int | None:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise ValueError("a number of at least 1 is needed")
        return int(text)

    return _read(options, name, parse)


def _read_slowdown(options: Options) -> float | None:
    def parse(text: str) -> float:
        value = float(text)
        if not 1.0 <= value <= 100.0:
            raise ValueError("a number from 1 to 100 is needed")
        return value

    return _read(options, "max-slowdown", parse)


def _least(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None
