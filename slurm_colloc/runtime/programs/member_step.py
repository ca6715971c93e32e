"""srun inside a member: a step alongside the neighbours, on the member's CPUs and host memory."""

from __future__ import annotations

import os
import shlex
import sys
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_ids import is_own_number
from slurm_colloc.model.job_values import expand_own_ids
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.quantities import parse_host_memory_mb
from slurm_colloc.planning.hard_limits import format_cpu_mask
from slurm_colloc.runtime.member_environment import STEP_SCRUB, build_step_environment
from slurm_colloc.runtime.member_places import is_covered
from slurm_colloc.runtime.programs.member_commands import OwnMember, become
from slurm_colloc.runtime.programs.own_places import build_entering
from slurm_colloc.runtime.programs.translate_calls import IDS
from slurm_colloc.slurm.option_table import ask_argument
from slurm_colloc.slurm.options import (
    Concern,
    Given,
    Option,
    ParsedLine,
    UnknownOption,
    parse_srun_line,
    render_arguments,
)
from slurm_colloc.store.atomic_files import write_atomic

# What an overlapping step must not have: each makes Slurm hand out cores of its own choice, or
# fails alongside the job's own GPU request (srun(1); seen on 22.05 and 26.05).
_DROPPED = frozenset(
    {
        "cpus-per-task",
        "cpus-per-gpu",
        "exact",
        "exclusive",
        "overlap",
        "gres",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gpus-per-socket",
        "gpu-bind",
        "gpu-freq",
        "mem-per-cpu",
        "mem-per-gpu",
        "tres-per-task",
        "hint",
        "threads-per-core",
        "ntasks-per-gpu",
    }
)
_PATIENCE_S = 10.0

_TASK_PROLOG = "SLURM_TASK_PROLOG"
_READ_BY_SRUN = frozenset({"multi-prog", "bcast"})
"""With these the command is a file that srun reads: nothing can stand before it."""

_OF_THE_MEMBER = (
    *(name for name in STEP_SCRUB if name not in ("SLURM_EXPORT_ENV", "SLURM_EXACT")),
    "CUDA_MPS_PIPE_DIRECTORY",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_NAME",
    "SLURM_JOB_START_TIME",
)


def start_step(
    member: OwnMember, real: str, call: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    """Become srun; None where another job is meant.

    Raises:
        UsageProblem: The command line is wrong.
    """
    site_options: list[Option] = []
    while True:
        try:
            rewritten, step_environment = rewrite_srun(
                call[1:], environment, member, site_options=site_options
            )
            break
        except UnknownOption as problem:
            argument = ask_argument(real, problem.name) if problem.name else None
            if argument is None:
                # srun says itself what it does not know.
                become(real, call, environment)
            site_options.append(Option(problem.name, None, argument, Concern.STEP))
    if rewritten is None:
        return None
    if not member.is_alone:
        note_steps(member)
    become(real, ["srun", *rewritten], step_environment)


def note_steps(member: OwnMember) -> None:
    """Let the runner know that there are steps to look for; where that fails, say so and go on."""
    path = Path(f"{member.values['prefix']}.steps")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            path.touch(mode=0o600)
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                sys.stderr.write(
                    f"csub: warning: srun: cannot write {path}: {error.strerror}; signals for the "
                    "member's steps do not reach this one\n"
                )
                return
            time.sleep(0.2)


def rewrite_srun(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    member: OwnMember,
    *,
    site_options: Sequence[Option] = (),
) -> tuple[list[str] | None, dict[str, str]]:
    """The arguments and environment with which srun starts alongside the neighbours.

    Returns:
        None instead of arguments where srun means another job and must stay as it is.
    """
    line = parse_srun_line(arguments, site_options=site_options)
    names = {given.option.canonical_name for given in line.values}
    if not _is_step(_last_value(line.values, "jobid"), names, environment, member):
        return None, dict(environment)
    kept = [
        _translate(given, member)
        for given in line.values
        if given.option.canonical_name != "task-prolog"
    ]
    if member.is_alone:
        # Only its id is another than Slurm's.
        values = _choose_ids(member)
        step = {**environment, **{name: member.real_id for name in IDS if name in environment}}
        step.pop(_TASK_PROLOG, None)
        placed = _place_values(values, line, environment, member)
        return [*render_arguments(kept), *placed], step
    kept = [given for given in kept if given.option.canonical_name not in _DROPPED]
    options = ["--overlap"]
    if not names & {"nodes"}:
        options.append("--nodes=1")
    if not names & {"ntasks", "ntasks-per-node"}:
        options.append("--ntasks=1")
    cpus = [int(cpu) for cpu in member.values.get("cpus", "").split(",") if cpu]
    if "cpu-bind" not in names:
        options.append(
            f"--cpu-bind=mask_cpu:{format_cpu_mask(cpus)}" if cpus else "--cpu-bind=none"
        )
    memory = member.values.get("host_memory_mb")
    if memory:
        options.append(f"--mem={_choose_memory_mb(_last_value(kept, 'mem'), int(memory))}")
        kept = [given for given in kept if given.option.canonical_name != "mem"]
    options.append(f"--job-name={_step_name(kept, line.words, member)}")
    job_name = _last_value(kept, "job-name")
    kept = [given for given in kept if given.option.canonical_name != "job-name"]
    asked = {
        "SLURM_CPUS_PER_TASK": _last_value(line.values, "cpus-per-task"),
        "SLURM_JOB_NAME": job_name,
    }
    values = _choose_values(environment, asked) | _choose_ids(member)
    directory = os.path.abspath(_last_value(kept, "chdir") or "")
    if is_covered(os.path.realpath(directory), member.places):
        # A step starts outside, where another directory has this path, or none.
        kept = [given for given in kept if given.option.canonical_name != "chdir"]
        options.append("--chdir=/")
    step = build_step_environment(environment)
    step |= {name: member.real_id for name in IDS if name in environment}
    if "SLURM_EXPORT_ENV" in environment:
        # As in a batch script of sbatch: --export of the job is the default of its steps.
        step["SLURM_EXPORT_ENV"] = environment["SLURM_EXPORT_ENV"]
    for name in ("SLURM_OVERLAP", "SLURM_CPU_BIND", _TASK_PROLOG):
        step.pop(name, None)
    placed = _place_values(values, line, environment, member)
    return [*options, *render_arguments(kept), *placed], step


def _is_step(
    job: str | None,
    names: Collection[str],
    environment: Mapping[str, str],
    member: OwnMember,
) -> bool:
    """Whether srun starts a step of the member; --partition and the like make it no other job.

    Raises:
        UsageProblem: The job that it names is another member.
    """
    if "test-only" in names:
        return False
    if job is None:
        # Without the variable srun asks for a job, as it does under sbatch.
        return "SLURM_JOB_ID" in environment
    job = job.partition("+")[0]
    if job in (*member.ids, member.real_id):
        return True
    if is_own_number(job) or "_" in job or "/" in job:
        raise UsageProblem(
            f"srun: no step of job {job} can be started from another job",
            hint=f"csub shell {job} -- COMMAND runs a command there",
        )
    return False


def _translate(given: Given, member: OwnMember) -> Given:
    """An option for srun, which knows the pack's job and no member's number."""
    name, value = given.option.canonical_name, given.value
    if name == "jobid":
        return replace(given, value=member.real_id)
    if name in ("output", "error", "input") and value is not None:
        return replace(given, value=expand_own_ids(value, member.job_id, member.task))
    return given


def _choose_memory_mb(asked: str | None, limit_mb: int) -> int:
    """What a step gets: what it asks for within the member's own; `--mem=0` means all of it."""
    try:
        wanted = parse_host_memory_mb(asked) if asked else 0
    except ValueError as error:
        raise UsageProblem(f"srun: --mem={asked}: {error}") from error
    return min(wanted or limit_mb, limit_mb)


def _choose_ids(member: OwnMember) -> dict[str, str]:
    """What stands in the place of Slurm's id in the tasks of a step."""
    return {} if member.job_id == member.real_id else dict.fromkeys(IDS, member.job_id)


def _choose_values(
    environment: Mapping[str, str], asked: Mapping[str, str | None]
) -> dict[str, str]:
    """What a step's tasks are to see of the member's environment.

    srun must not see some of it, and slurmstepd sets other values from the pack's allocation and
    from the step's name.
    """
    values = {name: environment[name] for name in _OF_THE_MEMBER if name in environment}
    device = environment.get("CUDA_VISIBLE_DEVICES", "")
    is_shared = device and "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in environment
    if is_shared or device.startswith(("GPU-", "MIG-")):
        # slurmstepd names all GPUs of the job, of which others have some, or the whole GPU in place
        # of the member's instance.
        values["CUDA_VISIBLE_DEVICES"] = device
    return values | {name: value for name, value in asked.items() if value}


def _place_values(
    values: Mapping[str, str],
    line: ParsedLine,
    environment: Mapping[str, str],
    member: OwnMember,
) -> list[str]:
    """The command of a step whose tasks see these values, and options before it.

    The values stand before the command. Where srun reads the command itself, a task prolog sets
    them; the user's own runs after it, and sees them, too.
    """
    command = list(line.words)
    theirs = _last_value(line.values, "task-prolog") or environment.get(_TASK_PROLOG, "")
    if values and command:
        if any(given.option.canonical_name in _READ_BY_SRUN for given in line.values):
            theirs = write_task_prolog(member, values, theirs)
        else:
            pairs = sorted(values.items())
            command = ["/usr/bin/env", *(f"{name}={value}" for name, value in pairs), *command]
            if member.places:
                # This process becomes srun, and lives for as long as the step, inside.
                directory = os.path.abspath(_last_value(line.values, "chdir") or "")
                command = [*build_entering(os.getpid(), directory), *command]
    return [*([f"--task-prolog={theirs}"] if theirs else []), *command]


def write_task_prolog(member: OwnMember, values: Mapping[str, str], theirs: str) -> str:
    """Write a task prolog that sets values; its path.

    Args:
        member: The member.
        values: The values.
        theirs: The user's own task prolog; empty for none.

    Raises:
        StateError: It cannot be written.
    """
    # What slurmstepd reads ends with the line.
    pairs = [(name, value) for name, value in sorted(values.items()) if "\n" not in value]
    lines = ["#!/bin/sh", *(f"export {name}={shlex.quote(value)}" for name, value in pairs)]
    lines += [f"echo {shlex.quote(f'export {name}={value}')}" for name, value in pairs]
    lines += [f"exec {shlex.quote(theirs)}"] if theirs else []
    text = "\n".join([*lines, ""]).encode("utf-8", "surrogateescape")
    # The same for the same values.
    path = Path(f"{member.values['prefix']}.task_prolog.{zlib.crc32(text):08x}")
    write_atomic(path, text, 0o700)
    return str(path)


def _step_name(kept: Sequence[Given], words: Sequence[str], member: OwnMember) -> str:
    """`4711/3:python`: the runner finds the steps of a member by the part before the colon."""
    name = _last_value(kept, "job-name") or (os.path.basename(words[0]) if words else "srun")
    return f"{member.name}:{name}"


def _last_value(givens: Sequence[Given], name: str) -> str | None:
    values = [given.value for given in givens if given.option.canonical_name == name]
    return values[-1] if values else None
