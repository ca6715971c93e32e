"""What csub under a name of Slurm's leaves to the command of that name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.slurm.real_command import find_real_command, identify


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
