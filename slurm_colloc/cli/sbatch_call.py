"""csub under the name sbatch, and csub that an sbatch leads back to.

Also: what csub under a name of Slurm's leaves to the command of that name.

A link, a copy or a wrapper script may make csub the sbatch of a user or a site. What sbatch says
of itself then comes from Slurm's own, and so does a submission of csub's that comes back to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.slurm.real_command import (
    CALLED_VARIABLE,
    choose_sbatch,
    find_real_command,
    identify,
    is_csub,
)

_ABOUT_ITSELF = frozenset({"-V", "--version", "-h", "--help", "--usage"})


def choose_sbatch_call(argv: Sequence[str]) -> Callable[[], int]:
    """What a call under the name sbatch means: always a submission, whatever its script is called.

    Args:
        argv: The arguments.
    """
    if is_led_back():
        return lambda: hand_over(argv)
    for word in argv:
        if word in _ABOUT_ITSELF:
            return lambda: hand_over(argv)
        if not word.startswith("-") or word == "--":
            break
    from slurm_colloc.cli.submit_command import run_submit

    return lambda: run_submit(argv, has_links=has_links())


_ASKED = ("squeue", "sacct", "scancel", "scontrol")
"""What a program asks about a job, or does to it, that it has submitted."""


def has_links() -> bool:
    """Whether all of that goes to csub, which knows jobs that Slurm does not number."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    first = (
        next((path for path in paths if os.access(path, os.X_OK)), "")
        for paths in ([f"{folder}/{name}" for folder in folders] for name in _ASKED)
    )
    return all(map(is_csub, first))


def is_led_back() -> bool:
    """Csub was called by the sbatch that it has called itself."""
    return CALLED_VARIABLE in os.environ


def hand_over(argv: Sequence[str]) -> int:
    """Go on as the next sbatch in PATH; never returns.

    Raises:
        SlurmUnreachable: There is none that does not lead back to csub.
    """
    # Imported here: most calls need none of it.
    from slurm_colloc.settings import read_given_environment

    chosen = choose_sbatch(read_given_environment(), sys.argv[0])
    if chosen is None:
        raise SlurmUnreachable(
            "every sbatch in PATH leads back to csub, and none to Slurm",
            hint="put the directory of Slurm's own sbatch into PATH",
        )
    path, environment = chosen
    sys.stdout.flush()
    os.execve(path, ["sbatch", *argv], environment)


# ---- What csub under a name of Slurm's leaves to the command of that name ------------------------


def find_command(name: str) -> str:
    """The path of Slurm's own.

    Raises:
        SlurmUnreachable: There is none in PATH that does not lead back to csub.
    """
    skipped = {identify(sys.argv[0])} - {(0, 0)}
    found = find_real_command(name, os.environ.get("PATH"), skipped=skipped)
    if found is None:
        raise SlurmUnreachable(
            f"every {name} in PATH leads back to csub, and none to Slurm",
            hint=f"put the directory of Slurm's own {name} into PATH",
        )
    return found


def ask_slurm(name: str, argv: Sequence[str]) -> int:
    """Run Slurm's own command with these arguments; its exit status, as shells have it.

    Raises:
        SlurmUnreachable: See find_command.
    """
    found = find_command(name)
    sys.stdout.flush()
    pid = os.posix_spawn(found, [name, *argv], os.environ)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status
