"""What Slurm's commands become inside a member.

srun starts a task at once, alongside the neighbours, on the member's own CPUs; `scontrol requeue`
and `scancel` of the own job id act on this member, not on the pack; squeue and `scontrol show job`
tell of it. sbatch, salloc and an srun for another job do not see what csub put into the member's
environment. Everything else goes to the real command unchanged.

What is not needed each time is imported where it is needed: most calls are questions.
"""

from __future__ import annotations

import os
import sys

from slurm_colloc.runtime.programs.own_member import find_member, is_inside, is_other_task
from slurm_colloc.slurm.real_command import find_real_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from slurm_colloc.runtime.programs.own_member import OwnMember

_SUBMITTING = ("sbatch", "salloc", "srun")
_ACTING = ("scancel", "scontrol", "srun")
"""Those that may do to a whole pack what was meant for one member."""


def main(shim: str, arguments: Sequence[str]) -> int:
    """Act as the command that the shim is called after; the exit status is the command's.

    Never returns where the real command takes over.
    """
    name = os.path.basename(shim)
    environment = read_own_environment()
    real = find_real_command(name, environment.get("PATH"))
    if real is None:
        sys.stderr.write(f"csub: error: {name}: command not found in PATH behind csub's own\n")
        return 2
    try:
        member = find_member(shim, environment)
    except OSError as error:
        if name in _ACTING:
            sys.stderr.write(
                f"csub: error: {name}: it cannot be told which member calls it: {error.filename}: "
                f"{error.strerror}; nothing was done\n"
            )
            return 1
        member = None
    inside = member if member is not None and is_inside(member, environment) else None
    call = [name, *arguments]
    if inside is not None:
        status = _act(inside, real, call, environment)
        if status is not None:
            return status
    if name in _SUBMITTING:
        from slurm_colloc.model.sbatch.export import remove_member_variables

        environment = remove_member_variables(environment)
    return become(real, call, environment)


def become(real: str, call: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Go on as the real command.

    Python ignores SIGPIPE and SIGXFSZ, and what it executes would inherit that.
    """
    import signal

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execve(real, list(call), dict(environment))


def _act(
    member: OwnMember, real: str, call: Sequence[str], environment: dict[str, str]
) -> int | None:
    """Do what the command means for a member; None where the real one is meant as it is."""
    name, *arguments = call
    is_question = name == "squeue" or (name == "scontrol" and is_show_job(arguments))
    if is_question and any(is_other_task(word, member) for word in arguments):
        return _ask_about_others(member, real, call, environment)
    if name == "squeue":
        from slurm_colloc.runtime.programs.own_queue_row import answer_squeue

        return answer_squeue(member, real, arguments, environment)
    if is_question:
        from slurm_colloc.runtime.programs.own_job_record import answer_show_job

        return answer_show_job(member, real, arguments, environment)
    # A step needs the job's variables: without them srun asks for a job, as it does under sbatch.
    is_step = name == "srun" and "SLURM_JOB_ID" in environment
    is_request = name in ("scontrol", "scancel") and bool(arguments)
    if not is_step and not is_request:
        return None
    from slurm_colloc.errors import CollocError

    try:
        if is_request:
            from slurm_colloc.runtime.programs.member_requests import ask_for

            return ask_for(member, real, call, environment)
        from slurm_colloc.runtime.programs.member_step import start_step

        return start_step(member, real, call, environment)
    except CollocError as error:
        sys.stderr.write(f"csub: error: {error}\n")
        return error.exit_code


def _ask_about_others(
    member: OwnMember, real: str, call: Sequence[str], environment: Mapping[str, str]
) -> int:
    from slurm_colloc.errors import CollocError
    from slurm_colloc.runtime.programs.other_members import build_call

    try:
        become(*build_call(member, real, call, environment))
    except CollocError as error:
        sys.stderr.write(f"csub: error: {error}\n")
        return error.exit_code


def is_show_job(arguments: Sequence[str]) -> bool:
    """`scontrol [options] show job...`; scontrol takes any beginning of its words."""
    words = [word.lower() for word in arguments if not word.startswith("-")]
    return (
        len(words) > 1
        and len(words[0]) > 1
        and "show".startswith(words[0])
        and words[1].partition("=")[0] in ("job", "jobs", "jobid")
    )


def read_own_environment() -> dict[str, str]:
    """The environment as it was given.

    Where no locale is set Python puts LC_CTYPE into its own (PEP 538); no command is to see that.
    """
    environment = dict(os.environ)
    if "LC_CTYPE" in environment:
        try:
            with open("/proc/self/environ", "rb") as file:
                given = b"\0" + file.read()
        except OSError:
            return environment
        if b"\0LC_CTYPE=" not in given:
            del environment["LC_CTYPE"]
    return environment
