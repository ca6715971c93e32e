"""Slurm's commands as a member sees them first on its PATH.

Files of three lines that hand over to runtime.programs.shim; the real commands stand behind them.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from slurm_colloc.store.atomic_files import make_directory, write_atomic

SHIMMED = ("srun", "scontrol", "scancel", "sbatch", "salloc")


def write_shims(pack: Path, python: str) -> Path:
    """Write the shims of a pack; returns their directory.

    Raises:
        StateError: They cannot be written.
    """
    directory = pack / "bin"
    make_directory(directory)
    for name in SHIMMED:
        text = (
            "#!/bin/sh\n"
            f"# Acts on this member of the pack alone; the real {name} is used for all else.\n"
            f'exec {shlex.quote(python)} -IB -m slurm_colloc.runtime.programs.shim {name} "$@"\n'
        )
        write_atomic(directory / name, text.encode(), 0o700)
    return directory


def find_real_command(name: str, path: str, shims: str) -> str | None:
    """The real command behind a shim; None if there is none.

    Args:
        name: Its name.
        path: The value of PATH.
        shims: The directory of the shims.
    """
    for directory in path.split(":"):
        if not directory or os.path.realpath(directory) == os.path.realpath(shims):
            continue
        candidate = os.path.join(directory, name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return None
