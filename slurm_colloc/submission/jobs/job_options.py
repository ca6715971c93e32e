"""What the options of one job ask for, and what of them concerns sharing; pure.

Also: the files that members write their output to: none is a directory, and none is a neighbour's;
`{lr}` in arguments, names and commands: where parameters go.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.chain import LINKS_MOST
from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.model.job_ids import OWN_ID, REAL_ID
from slurm_colloc.model.job_values import (
    MailRequest,
    PatternValues,
    choose_batch_export,
    choose_output_paths,
    expand_pattern,
    is_device,
    names_singleton,
    parse_mail_types,
)
from slurm_colloc.model.late_definitions import dataclass, field, late_pattern, replace
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import (
    GpuRequest,
    parse_gpu_memory_mb,
    parse_gpu_request,
    parse_host_memory_mb,
    parse_signal_request,
    parse_time_limit_s,
)
from slurm_colloc.model.result_metrics import parse_metrics
from slurm_colloc.model.setting_values import PRIVATE_TMP_CHOICES, SLOWDOWN_MOST
from slurm_colloc.slurm.options import Concern, Options

_T = TypeVar("_T")
_DECIMAL = late_pattern(r"[0-9]{1,9}(\.[0-9]*)?")
_DIGITS_MOST = 18
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
_PASSED_FOR_THE_PACK = ("comment", "requeue", "no-requeue")

REGEX_MOST = 1000
"""Characters of a regular expression."""

REGEX_GROUPS = ("step", "samples")
"""Named groups that mean something: numbers counted since the program's own beginning."""


def build_job(
    options: Options,
    *,
    number: int,
    script_name: str,
    name: str,
    arguments: tuple[str, ...],
    directory: str,
    array_task: ArrayTask | None,
    pack: bool,
) -> Job:
    """The job that options ask for, of a script in a directory.

    Raises:
        UsageProblem: An option has a wrong value; the message says where it stands.
    """
    gpus = read_gpus(options)
    cpus = read_cpus(options, gpus.count)
    gpu_memory = read_option(options, "gpu-mem", parse_gpu_memory_mb)
    alone_because, alone_option = compute_alone_reason(options, gpus)
    return Job(
        number=number,
        name=name,
        script_name=script_name,
        arguments=arguments,
        directory=directory,
        cpus=cpus,
        host_memory_mb=read_host_memory_mb(options, cpus, gpus.count),
        gpus=gpus.count,
        gpu_type=gpus.type,
        gpu_memory_mb=gpu_memory,
        time_limit_s=read_option(options, "time", parse_time_limit_s),
        output=read_output(options, "output"),
        error=read_output(options, "error"),
        input=read_input(options),
        truncate_output=read_open_mode(options),
        asks_open_mode=options.flag("open-mode"),
        signal=read_option(options, "signal", parse_signal_request),
        requeue=True if options.flag("requeue") else False if options.flag("no-requeue") else None,
        export=options.text("export"),
        array_task=array_task,
        group=compute_group(options, name),
        shape=compute_shape(options),
        alone_because=alone_because,
        alone_option=alone_option,
        came_together=(
            pack
            or array_task is not None
            or options.flag("degree")
            or options.flag("pack-size")
            or gpu_memory is not None
        ),
        mail=read_mail(options),
        instrument=not options.flag("no-instrument"),
        pause=not options.flag("no-pause"),
        turn_s=read_turn_s(options),
        progress_regex=read_option(options, "progress-regex", parse_progress_regex),
        metrics=read_option(options, "metric", parse_metrics) or (),
        profile_like=options.text("profile-like"),
        max_slowdown=read_option(options, "max-slowdown", parse_slowdown),
        stays_fast=stays_fast(options),
        retries=read_option(options, "retries", parse_retries) or 0,
        start_together=read_count(options, "start-together") or 0,
        chain=read_links(options),
        job_id=read_option(options, "job-id", parse_job_id_choice) or "",
        private_tmp=read_private_tmp(options),
    )


def compute_alone_reason(options: Options, gpus: GpuRequest) -> tuple[str, str]:
    """Why a job with these options cannot share a GPU, and which is why; both empty if it can."""
    for given in options.select(Concern.ALONE):
        name = given.option.name
        if name != EXCLUSIVE or not shares_its_node(options):
            return f"--{name}: {given.option.reason}", name
    for given in options.select(Concern.SHAPE):
        name, value = given.option.name, given.value or ""
        if name in _GPU_OPTIONS:
            continue
        if value not in _ONE.get(name, ()):
            return f"it asks for --{name}={escape_controls(cut(value))}", name
    parse = functools.partial(parse_gpu_request, option="gpus-per-task")
    per_task = read_option(options, "gpus-per-task", parse)
    if per_task is not None and 0 < per_task.count < gpus.count:
        told = f"{gpus.count} GPUs with --gpus-per-task={per_task.count} are several tasks"
        return told, "gpus-per-task"
    if gpus.count > 1 and options.flag("ntasks-per-gpu"):
        return f"{gpus.count} GPUs with --ntasks-per-gpu are several tasks", "ntasks-per-gpu"
    if gpus.other_gres:
        return f"it also asks for other GRES: {escape_controls(','.join(gpus.other_gres))}", ""
    if read_option(options, "mem", parse_host_memory_mb) == 0:
        return "--mem=0 asks for all host memory of a node", "mem"
    return "", ""


EXCLUSIVE = "exclusive"


def shares_its_node(options: Options) -> bool:
    """Whether a job asks for a node of its own, and says that others of its call may lie in it."""
    is_plain = options.flag(EXCLUSIVE) and not options.text(EXCLUSIVE)
    return is_plain and options.flag("gpus-per-pack")


def read_gpus(options: Options) -> GpuRequest:
    """The GPUs that the options ask for, in whichever of their spellings."""
    requests = []
    for name in _GPU_OPTIONS:
        request = read_option(options, name, functools.partial(parse_gpu_request, option=name))
        if request is not None:
            requests.append(request)
    if not requests:
        return GpuRequest(0)
    others = tuple(word for request in requests for word in request.other_gres)
    largest = max(requests, key=lambda request: request.count)
    types = {request.type for request in requests if request.type}
    return GpuRequest(largest.count, types.pop() if len(types) == 1 else None, others)


def read_cpus(options: Options, gpus: int) -> int:
    """The CPUs of a job: those of its task, or of its GPUs."""
    per_task = read_count(options, "cpus-per-task")
    per_gpu = read_count(options, "cpus-per-gpu")
    if per_task is not None:
        return per_task
    return per_gpu * max(1, gpus) if per_gpu else 1


def read_host_memory_mb(options: Options, cpus: int, gpus: int = 1) -> int | None:
    """The host memory of a job in MB; None where it is not said."""
    # Each is checked, also those that another stands for.
    found = [
        (read_option(options, name, parse_host_memory_mb), factor)
        for name, factor in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", max(1, gpus)))
    ]
    return next((value * factor for value, factor in found if value), None)


def read_mail(options: Options) -> MailRequest | None:
    """The mails that are wanted; None for none."""
    wanted = read_option(options, "mail-type", parse_mail_types)
    if wanted is None or not wanted[0]:
        return None
    return MailRequest(wanted[0], wanted[1], options.text("mail-user") or "")


def read_input(options: Options) -> str | None:
    """The file of `--input`; None for none."""
    path = options.text("input")
    return None if path is None or path.lower() == "none" else path


def read_output(options: Options, name: str) -> str | None:
    """The pattern of `--output` or `--error`; None for none, and /dev/null for `none`."""
    pattern = options.text(name)
    return "/dev/null" if pattern is not None and pattern.lower() == "none" else pattern


def read_open_mode(options: Options) -> bool:
    """True where output files are to be truncated instead of appended to."""
    mode = options.text("open-mode")
    if mode is None or mode[:1].lower() in ("a", "t"):
        return mode is not None and mode[:1].lower() == "t"
    shown = escape_controls(cut(mode))
    raise UsageProblem(
        f"{options.origin('open-mode')}: --open-mode={shown} is neither append nor truncate"
    )


def compute_group(options: Options, name: str) -> tuple[tuple[str, str], ...]:
    """The options for Slurm in which all jobs of a pack must agree.

    Args:
        options: The job's options.
        name: Its name, which counts where another job may wait for it.
    """
    pairs = [
        (given.option.name, given.value or "")
        for given in options.select(Concern.GROUP)
        if not given.option.own and not (given.option.name == "priority" and stays_fast(options))
    ]
    pairs += [
        (name, options.text(name) or "") for name in _PASSED_FOR_THE_PACK if options.flag(name)
    ]
    if shares_its_node(options):
        pairs.append((EXCLUSIVE, ""))
    batch_export = choose_batch_export(options.text("export"))
    if batch_export != "ALL" and not options.flag("export-file"):
        pairs.append(("export", batch_export))
    if names_singleton(options.text("dependency") or ""):
        pairs.append(("job-name", name))
    return tuple(sorted(pairs))


FAST = "fast"
"""The value of `--priority` that is csub's; sbatch takes a number or TOP."""
_OF_SLURM = late_pattern(r"(?ai)[+-]?\d+|TOP")


def stays_fast(options: Options) -> bool:
    """`--priority=fast`: the job's neighbours on the GPU stand back for it.

    Raises:
        UsageProblem: It is another word, such as a misspelt one.
    """
    text = options.text("priority")
    if text is None or _OF_SLURM.fullmatch(text):
        return False
    if text != FAST:
        raise UsageProblem(
            f"{options.origin('priority')}: --priority={escape_controls(cut(text))} is neither a "
            f"number, nor TOP, nor {FAST}"
        )
    return True


def compute_shape(options: Options) -> tuple[tuple[str, str], ...]:
    """The options for Slurm of a job that is submitted alone."""
    return tuple(
        (given.option.name, given.value or "")
        for given in options.select(Concern.MEMBER, Concern.SHAPE, Concern.ALONE)
        if not given.option.own
        and given.option.name not in _NOT_PASSED
        and given.option.name not in _PASSED_FOR_THE_PACK
        and not (given.option.name == EXCLUSIVE and shares_its_node(options))
    )


def read_option(options: Options, name: str, parse: Callable[[str], _T]) -> _T | None:
    """The value of an option; None where it is not given.

    Raises:
        UsageProblem: It is malformed; the message says where it stands.
    """
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
        # The reason may repeat it.
        shown, reason = cut(text), str(error).replace(text, cut(text)) if text else str(error)
        told = escape_controls(f"--{name}={shown}: {reason}")
        raise UsageProblem(f"{options.origin(name)}: {told}") from error


def read_count(options: Options, name: str) -> int | None:
    """A number of at least 1; None where it is not given."""
    return read_option(options, name, parse_count)


def parse_count(text: str) -> int:
    """How many, at least 1.

    Raises:
        ValueError: It is no such number.
    """
    if not text.isascii() or not text.isdigit() or not text.strip("0"):
        raise ValueError("a number of at least 1 is needed")
    if len(text) > _DIGITS_MOST:
        raise ValueError(f"a number of at most {_DIGITS_MOST} digits is needed")
    return int(text)


def read_links(options: Options) -> int:
    """Of how many Slurm jobs a job is made at most (`--chain`); 0 where it is not given.

    Raises:
        UsageProblem: It is no such number.
    """
    if not options.flag("chain"):
        return 0
    count = read_option(options, "chain", _parse_links)
    return LINKS_MOST if count is None else count


TURN_S = 120.0
"""The least length of a turn where `--take-turns` names none."""


def read_turn_s(options: Options) -> float:
    """The least length of its turns (`--take-turns`); 0 where it takes none.

    Raises:
        UsageProblem: It is no such number.
    """
    if not options.flag("take-turns"):
        return 0.0
    seconds = read_option(options, "take-turns", _parse_turn)
    return TURN_S if seconds is None else seconds


def _parse_short(text: str) -> int:
    """A number of at most five digits; 0 where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0


def _parse_turn(text: str) -> float:
    seconds = _parse_short(text)
    if not 1 <= seconds <= 86400:
        raise ValueError("a number of seconds from 1 to 86400 is needed, as in 300")
    return float(seconds)


def _parse_links(text: str) -> int:
    count = _parse_short(text)
    if not 2 <= count <= LINKS_MOST:
        raise ValueError(f"a number from 2 to {LINKS_MOST} is needed")
    return count


def parse_job_id_choice(text: str) -> str:
    """What SLURM_JOB_ID is to be in the job.

    Raises:
        ValueError: It is no such choice.
    """
    if text not in (OWN_ID, REAL_ID):
        raise ValueError(f"{OWN_ID} (a number of its own) or {REAL_ID} (its pack's) is needed")
    return text


def read_private_tmp(options: Options) -> str:
    """`--private-tmp`; empty where it is not given.

    Raises:
        UsageProblem: It is no such choice.
    """
    text = options.text("private-tmp") or ("always" if options.flag("private-tmp") else "")
    if text not in ("", *PRIVATE_TMP_CHOICES):
        raise UsageProblem(
            f"--private-tmp={text}: {', '.join(PRIVATE_TMP_CHOICES)} are the choices"
        )
    return text


RETRIES_MOST = 100


def parse_retries(text: str) -> int:
    """How often a job is started again.

    Raises:
        ValueError: It is no such number.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 3 or int(text) > RETRIES_MOST:
        raise ValueError(f"a number from 0 to {RETRIES_MOST} is needed")
    return int(text)


def parse_slowdown(text: str) -> float:
    """How many times slower than alone a job may get.

    Raises:
        ValueError: It is not a number from 1 to 100.
    """
    is_number = _DECIMAL.fullmatch(text) is not None
    if not is_number or not 1.0 <= float(text) <= SLOWDOWN_MOST:
        raise ValueError(
            f"a number from 1 to {SLOWDOWN_MOST} is needed, such as 1.5 for at most "
            "1.5 times slower than alone"
        )
    return float(text)


def parse_progress_regex(text: str) -> str:
    """Check the value of `--progress-regex`.

    Args:
        text: A regular expression of Python's. It is looked for in each line of output. With
            `(?P<step>...)` or `(?P<samples>...)` the group is the number reached; without either,
            each match is one step.

    Raises:
        ValueError: It is none, or has other named groups.
    """
    if not text:
        raise ValueError("it is empty: write a regular expression, as in 'step (?P<step>[0-9]+)'")
    if len(text) > REGEX_MOST:
        raise ValueError(f"it has {len(text)} characters, and may have {REGEX_MOST}")
    try:
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"it is not a regular expression of Python's: {error}") from error
    others = sorted(compiled.groupindex.keys() - set(REGEX_GROUPS))
    if others:
        raise ValueError(
            f"its group {others[0]!r} means nothing: named groups are {' and '.join(REGEX_GROUPS)}"
        )
    if compiled.match("") is not None and not compiled.groupindex:
        raise ValueError("it matches empty text, so every line would count as a step")
    return text


# ----
# The files that members write their output to: none is a directory, and none is a neighbour's.


def refuse_directories(options: Options, job: Job) -> None:
    """Refuse an `--output` or `--error` that is a directory: Slurm would fail the job.

    Raises:
        UsageProblem: It is one; the message says where it was given.
    """
    for name, pattern in (("output", job.output), ("error", job.error)):
        if pattern is None:
            continue
        path = expand_pattern(pattern, _choose_values(job))
        if os.path.isdir(os.path.join(job.directory, path)):
            raise UsageProblem(
                f"{options.origin(name)}: --{name}={pattern} is a directory, and a file is needed",
                hint=f"--{name}={pattern.rstrip('/')}/%x-%a.out names one in it",
            )


def list_output_files(job: Job, *, alone: bool, job_id: str = "%j") -> set[str]:
    """Where a member writes, as absolute paths; devices are left out, who writes there is many.

    Args:
        job: The job.
        alone: It is named as sbatch would, see `MemberSpec.names_alone`.
        job_id: The id of its Slurm job; where it is not known yet, the pattern for it.
    """
    output, error = choose_output_paths(
        job.output, job.error, _choose_values(job, job_id, alone=alone), alone=alone
    )
    return {
        os.path.normpath(os.path.join(job.directory, path))
        for path in (output, error)
        if path is not None and not is_device(path)
    }


def list_renamed_files(job: Job, own_id: str) -> list[str]:
    """The files of --output and --error that get the job's number into their names.

    Args:
        job: The job, with its number in its pack.
        own_id: Its SLURM_JOB_ID.
    """
    if job.output is None and job.error is None:
        return []
    values = _choose_values(job, own_id, alone=True)
    plain = choose_output_paths(job.output, job.error, values, alone=True)
    numbered = choose_output_paths(job.output, job.error, values, alone=False)
    return [
        path for path, as_asked in zip(numbered, plain, strict=True) if path and path != as_asked
    ]


def refuse_shared_files(jobs: Iterable[Job]) -> None:
    """Refuse members of one call that would write one file, as `x1%a` and `x%a` may.

    Args:
        jobs: Jobs that share, each in a pack with others.

    Raises:
        UsageProblem: Two of them would.
    """
    jobs = list(jobs)
    patterns = {(job.directory, job.output) for job in jobs}
    if len(patterns) <= 1 and all(job.error is None for job in jobs):
        # The number alone makes them differ.
        return
    writers: dict[str, Job] = {}
    for job in jobs:
        for path in list_output_files(job, alone=False):
            other = writers.setdefault(path, job)
            if other is not job:
                raise UsageProblem(
                    f"member {other.number} ({other.script_name}) and member {job.number} "
                    f"({job.script_name}) would both write {path}",
                    hint="use --output and --error patterns that differ in more than the number",
                )


def _choose_values(job: Job, job_id: str = "%j", *, alone: bool = False) -> PatternValues:
    """What is not known before the start stands for itself."""
    return PatternValues(
        job_id=job_id,
        # Which of both it will be is not known yet: a number of its own, or one behind the id.
        own_id=job_id if alone else f"{job_id}.{job.number}",
        is_alone_in_it=True,
        number=job.number,
        is_array=job.array_task is not None,
        name=job.name,
        node="%N",
        user="%u",
    )


# ---- `{lr}` in arguments, names and commands: where parameters go; pure --------------------------

_NAME = "[A-Za-z_][A-Za-z0-9_.-]*"
_PLACEHOLDER = late_pattern(rf"\{{(\{{{_NAME}\}})\}}|(?<!\$)\{{({_NAME})\}}")
"""`{{lr}}` stands for `{lr}` itself; `${HOME}` is the shell's, and `{"a": {}}` nothing special."""

_FILLED_OPTIONS = ("job-name", "output", "error", "chdir")


@dataclass
class Filler:
    """Puts the parameters of one job into its texts, and notes which were taken.

    Attributes:
        parameters: The job's parameters.
        place: Where they stand, for messages.
        taken: Those that a placeholder has taken.
    """

    parameters: Mapping[str, str]
    place: str
    taken: set[str] = field(default_factory=set)

    def fill(self, text: str, *, quoted: bool = False) -> str:
        """A text with the values instead of the placeholders.

        Args:
            text: The text.
            quoted: It is a command for a shell: each value is one word of it, whatever is in it.

        Raises:
            UsageProblem: There is no such parameter.
        """
        if "{" not in text:
            return text

        def put(match: re.Match[str]) -> str:
            literal, name = match[1], match[2]
            if literal is not None:
                return literal
            if name not in self.parameters:
                raise UsageProblem(
                    f"{self.place}: {{{cut(name)}}} stands in {cut(text)}, and there is no such "
                    "parameter",
                    hint=f"write {{{{{cut(name)}}}}} for the braces themselves",
                )
            self.taken.add(name)
            value = self.parameters[name]
            return shlex.quote(value) if quoted else value

        return _PLACEHOLDER.sub(put, text)

    def fill_job(self, job: Job) -> Job:
        """A job whose name, files and directory have the values.

        Raises:
            UsageProblem: There is no such parameter.
        """
        shape = tuple(
            (name, self.fill(value) if name in _FILLED_OPTIONS else value)
            for name, value in job.shape
        )
        return replace(
            job,
            name=self.fill(job.name),
            directory=self.fill(job.directory) if "chdir" in dict(job.shape) else job.directory,
            output=None if job.output is None else self.fill(job.output),
            error=None if job.error is None else self.fill(job.error),
            shape=shape,
        )


def find_placeholders(texts: Iterable[str]) -> list[str]:
    """The parameters that texts name, in order, each once."""
    names = (match[2] for text in texts for match in _PLACEHOLDER.finditer(text) if match[2])
    return list(dict.fromkeys(names))


def keep_literally(text: str) -> str:
    """A text that filling turns into this one."""
    return re.sub(rf"(?<!\$)\{{({_NAME})\}}", r"{{\1}}", text)
