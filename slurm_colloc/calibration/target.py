"""Where a calibration is written: whether it can be is seen before anything is measured."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.store.calibrations import calibration_path

FOR_ALL = 0o755
"""A site's folder: all users read it."""


def check_target(out: Path, mode: int = FOR_ALL) -> None:
    """See that a file can be written, and make its folder.

    Args:
        out: The file, or a folder that exists and gets a file.
        mode: Permissions of a folder that is made, less the umask.

    Raises:
        UsageProblem: It cannot be written.
    """
    folder = out if out.is_dir() else out.parent
    if out.exists() and not out.is_file() and folder != out:
        raise UsageProblem(f"cannot write {out}: it is no file")
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise UsageProblem(f"cannot write {out}: {folder} is no directory") from error
    except OSError as error:
        raise UsageProblem(f"cannot write {out}: {os.strerror(error.errno or 0)}") from error


def choose_file(out: Path, gpu_model: str) -> Path:
    """The file to write: in a folder the one that csub looks for there."""
    return calibration_path(out, gpu_model) if out.is_dir() else out
