"""Slurm's commands inside a member. Who: the user's script; where: compute node.

srun starts a task at once, alongside the neighbours, on the member's own CPUs; `scontrol requeue`
and `scancel` of the own job id act on this member, not on the pack. sbatch, salloc and an srun
for another job do not see what csub put into the member's environment. Everything else goes to
the real command unchanged.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.sbatch.export import remove_member_variables
from slurm_colloc.model.sbatch.quantities import parse_host_memory_mb, parse_signal
from slurm_colloc.planning.cpu_division import format_cpu_mask
from slurm_colloc.runtime.launch.member_environment import STEP_SCRUB, build_step_environment
from slurm_colloc.runtime.launch.path_shims import find_real_command
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import Given, parse_srun_line, render_arguments
from slurm_colloc.store.pack.pack_directory import read_spec
from slurm_colloc.store.pack.runner_requests import Action, Request, write_request

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
# An srun with one of these asks for an allocation of its own, or steps into another one.
_OTHER_JOB = frozenset({"jobid", "account", "partition", "qos", "reservation", "test-only"})

_OF_THE_MEMBER = (
    *(name for name in STEP_SCRUB if name not in ("SLURM_EXPORT_ENV", "SLURM_EXACT")),
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_NAME",
    "SLURM_JOB_START_TIME",
)


def main(argv: Sequence[str]) -> int:  # noqa: RET503 - execve does not return
    """Act as the command that `argv[0]` names; the exit status is the command's.

    Never returns where the real command takes over.
    """
    # Python ignores SIGPIPE, and what it executes would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    name, arguments = argv[0], list(argv[1:])
    environment = dict(read_given_environment())
    pack = environment.get("SLURM_COLLOC_PACK", "")
    real = find_real_command(name, environment.get("PATH", ""), f"{pack}/bin")
    try:
        if real is None:
            raise UsageProblem(f"{name}: command not found in PATH behind csub's own")
        if not environment.get("SLURM_COLLOC_MEMBER") or not pack:
            os.execve(real, [name, *arguments], environment)
        if name == "srun":
            rewritten, step_environment = rewrite_srun(arguments, environment)
            if rewritten is not None:
                run = environment.get("SLURM_COLLOC_RUN")
                if run:
                    Path(f"{run}.steps").touch(mode=0o600)
                arguments, environment = rewritten, step_environment
            else:
                environment = remove_member_variables(environment)
        elif name in ("sbatch", "salloc"):
            environment = remove_member_variables(environment)
        else:
            translate = translate_scontrol if name == "scontrol" else translate_scancel
            request = translate(arguments, environment)
            if request is not None:
                check_allowed(Path(pack), request)
                return ask_runner(pack, request)
    except CollocError as error:
        sys.stderr.write(f"csub: error: {error}\n")
        return error.exit_code
    os.execve(real, [name, *arguments], environment)


def own_job_ids(environment: Mapping[str, str]) -> frozenset[str]:
    """The ids by which a script means its own job."""
    ids = {environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOBID", "")}
    if "SLURM_ARRAY_TASK_ID" in environment:
        array = environment.get("SLURM_ARRAY_JOB_ID", "")
        ids.add(f"{array}_{environment['SLURM_ARRAY_TASK_ID']}")
    ids.add(environment.get("SLURM_COLLOC_MEMBER", ""))
    return frozenset(ids - {""})


def rewrite_srun(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str] | None, dict[str, str]]:
    """The arguments and environment with which srun starts alongside the neighbours.

    Returns:
        None instead of arguments where srun means another job and must stay as it is.
    """
    line = parse_srun_line(arguments)
    own = own_job_ids(environment)
    for given in line.values:
        if given.option.canonical_name in _OTHER_JOB and given.value not in own:
            return None, dict(environment)
    kept = [given for given in line.values if given.option.canonical_name not in _DROPPED]
    names = {given.option.canonical_name for given in line.values}
    options = ["--overlap"]
    if not names & {"nodes"}:
        options.append("--nodes=1")
    if not names & {"ntasks", "ntasks-per-node"}:
        options.append("--ntasks=1")
    cpus = [int(cpu) for cpu in environment.get("SLURM_COLLOC_CPUS", "").split(",") if cpu]
    if "cpu-bind" not in names:
        options.append(
            f"--cpu-bind=mask_cpu:{format_cpu_mask(cpus)}" if cpus else "--cpu-bind=none"
        )
    memory = environment.get("SLURM_COLLOC_HOST_MEMORY_MB")
    if memory:
        options.append(f"--mem={_choose_memory_mb(_last_value(kept, 'mem'), int(memory))}")
        kept = [given for given in kept if given.option.canonical_name != "mem"]
    options.append(f"--job-name={_step_name(kept, line.words, environment)}")
    job_name = _last_value(kept, "job-name")
    kept = [given for given in kept if given.option.canonical_name != "job-name"]
    command = list(line.words)
    if command and "multi-prog" not in names:
        asked = {
            "SLURM_CPUS_PER_TASK": _last_value(line.values, "cpus-per-task"),
            "SLURM_JOB_NAME": job_name,
        }
        command = [*_build_env_prefix(environment, asked), *command]
    step = build_step_environment(environment)
    if "SLURM_EXPORT_ENV" in environment:
        # As in a batch script of sbatch: --export of the job is the default of its steps.
        step["SLURM_EXPORT_ENV"] = environment["SLURM_EXPORT_ENV"]
    for name in ("SLURM_OVERLAP", "SLURM_CPU_BIND"):
        step.pop(name, None)
    return [*options, *render_arguments(kept), *command], step


def _choose_memory_mb(asked: str | None, limit_mb: int) -> int:
    """What a step gets: what it asks for within the member's own; `--mem=0` means all of it."""
    try:
        wanted = parse_host_memory_mb(asked) if asked else 0
    except ValueError as error:
        raise UsageProblem(f"srun: --mem={asked}: {error}") from error
    return min(wanted or limit_mb, limit_mb)


def _build_env_prefix(environment: Mapping[str, str], asked: Mapping[str, str | None]) -> list[str]:
    """What stands before a step's command, so that it sees the member's values.

    srun must not see some of them, and slurmstepd sets others from the pack's allocation and
    from the step's name.
    """
    values = {name: environment[name] for name in _OF_THE_MEMBER if name in environment}
    values |= {name: value for name, value in asked.items() if value}
    if not values:
        return []
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in sorted(values.items()))]


def _step_name(kept: Sequence[Given], words: Sequence[str], environment: Mapping[str, str]) -> str:
    """`4711/3:python`: the runner finds the steps of a member by the part before the colon."""
    name = _last_value(kept, "job-name") or (os.path.basename(words[0]) if words else "srun")
    return f"{environment['SLURM_COLLOC_MEMBER']}:{name}"


def _last_value(givens: Sequence[Given], name: str) -> str | None:
    values = [given.value for given in givens if given.option.canonical_name == name]
    return values[-1] if values else None


def translate_scontrol(arguments: Sequence[str], environment: Mapping[str, str]) -> Request | None:
    """`scontrol requeue OWN_ID` as a request; None where the real scontrol is meant."""
    words = [word for word in arguments if not word.startswith("-")]
    if len(words) != 2 or words[0].lower() not in ("requeue", "requeuehold"):
        return None
    if words[1].removeprefix("JobId=").removeprefix("jobid=") not in own_job_ids(environment):
        return None
    if words[0].lower() == "requeuehold":
        raise UsageProblem("scontrol requeuehold cannot be done for one member of a pack")
    return Request(Action.REQUEUE, _own_number(environment), reason="scontrol requeue from inside")


def translate_scancel(arguments: Sequence[str], environment: Mapping[str, str]) -> Request | None:
    """`scancel [-s SIGNAL] [-b|-f] OWN_ID` as a request; None where the real one is meant."""
    number = 0
    batch_only = False
    targets = []
    words = iter(arguments)
    for word in words:
        if word in ("-s", "--signal"):
            number = _read_signal(next(words, ""))
        elif word.startswith("--signal="):
            number = _read_signal(word.partition("=")[2])
        elif word.startswith("-s") and not word.startswith("--"):
            number = _read_signal(word[2:])
        elif word in ("-b", "--batch", "-f", "--full"):
            batch_only = True
        elif word in ("-Q", "--quiet", "-v", "--verbose"):
            continue
        elif word.startswith("-"):
            return None
        else:
            targets.append(word)
    if not targets or any(target not in own_job_ids(environment) for target in targets):
        return None
    member = _own_number(environment)
    if number in (0, signal.SIGTERM, signal.SIGKILL):
        return Request(Action.CANCEL, member, reason="scancel from inside")
    return Request(
        Action.SIGNAL, member, signal=number, steps_only=not batch_only, reason="scancel -s"
    )


def _read_signal(text: str) -> int:
    try:
        return parse_signal(text)
    except ValueError as error:
        raise UsageProblem(f"scancel: {error}") from error


def _own_number(environment: Mapping[str, str]) -> int:
    return int(environment["SLURM_COLLOC_MEMBER"].rpartition("/")[2])


def check_allowed(pack: Path, request: Request) -> None:
    """Refuse what the user has ruled out at submission.

    Raises:
        UsageProblem: It is a requeue of a job with --no-requeue.
    """
    if request.action is Action.REQUEUE and read_spec(pack, request.number).job.requeue is False:
        raise UsageProblem("scontrol requeue: the job was submitted with --no-requeue")


def ask_runner(pack: str, request: Request) -> int:
    """Leave a request and wake the runner, which is another process of this user on this node."""
    write_request(pack, request)
    try:
        runner = int(Path(f"{pack}/runner_pid").read_text())
        os.kill(runner, signal.SIGURG)
    except (OSError, ValueError):
        # It looks by itself within a second.
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
