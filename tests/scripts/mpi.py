"""The MPI of the scripts: one that Slurm's srun starts by PMI-2, and not any that is installed."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def find_mpich(search: str) -> Path | None:
    """The directory with mpicc and mpirun of MPICH: that of pip's mpich, else one of PATH.

    Open MPI has programs of the same names. What they build srun starts by PMIx alone, for which
    Slurm may have no plugin.

    Args:
        search: PATH.
    """
    folders = [*_list_installed(), *map(Path, search.split(os.pathsep))]
    return next(filter(_is_mpich, folders), None)


def _list_installed() -> Iterator[Path]:
    try:
        files = importlib.metadata.distribution("mpich").files
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files or ():
        if file.name == "mpicc":
            yield Path(os.path.normpath(str(file.locate()))).parent


def _is_mpich(folder: Path) -> bool:
    compiler = folder / "mpicc"
    if not all(os.access(program, os.X_OK) for program in (compiler, folder / "mpirun")):
        return False
    told = subprocess.run(
        [str(compiler), "-v"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    return "MPICH" in told.stdout + told.stderr
