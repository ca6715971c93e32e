"""Where a calibration is written: whether it can be is seen before anything is measured."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.store.calibrations import calibration_path

FOR_ALL = 0o755
"""A site's folder: all users read it."""


def check_target(out: Path, *, makes_folder: bool = True) -> None:
    """See that a file can be written, and make its folder, which all users read.

    Args:
        out: The file, or a folder that exists and gets a file.
        makes_folder: Where it is missing; else the nearest folder that exists is looked at.

    Raises:
        UsageProblem: It cannot be written.
    """
    folder = out if out.is_dir() else out.parent
    if out.exists() and not out.is_file() and folder != out:
        raise UsageProblem(f"cannot write {out}: it is no file")
    try:
        if makes_folder:
            folder.mkdir(FOR_ALL, parents=True, exist_ok=True)
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise UsageProblem(f"cannot write {out}: {folder} is no directory") from error
    except OSError as error:
        raise UsageProblem(f"cannot write {out}: {os.strerror(error.errno or 0)}") from error


def choose_file(out: Path, gpu_model: str) -> Path:
    """The file to write: in a folder the one that csub looks for there."""
    return calibration_path(out, gpu_model) if out.is_dir() else out
