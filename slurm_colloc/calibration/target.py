"""Where a calibration is written: whether it can be is seen before anything is measured."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.store.calibrations import calibration_path
from slurm_colloc.store.files import tell_kind

FOR_ALL = 0o755
"""A site's folder: all users read it."""


def check_target(out: Path) -> None:
    """See that a file can be written; nothing is made, for what comes next may be refused.

    Args:
        out: The file, or a folder that exists and gets a file.

    Raises:
        UsageProblem: It cannot be written.
    """
    shown = escape_controls(str(out))
    try:
        if out.is_dir():
            folder = out
        elif out.exists() and not out.is_file():
            kind = tell_kind(out.stat().st_mode)
            raise UsageProblem(f"cannot write {shown}: it is {kind}, no file")
        else:
            folder = out.parent
        # Where it is missing, the nearest one that is there gets it.
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageProblem(f"cannot write {shown}: {os.strerror(error.errno or 0)}") from error
    except ValueError as error:
        raise UsageProblem(f"cannot write {shown}: {error}") from error


def make_folder(file: Path) -> None:
    """Make the folder of a file, which all users read, where it is missing.

    Raises:
        UsageProblem: It cannot be made.
    """
    try:
        file.parent.mkdir(FOR_ALL, parents=True, exist_ok=True)
    except OSError as error:
        shown = escape_controls(str(file))
        raise UsageProblem(f"cannot write {shown}: {os.strerror(error.errno or 0)}") from error


def choose_file(out: Path, gpu_model: str) -> Path:
    """The file to write: in a folder the one that csub looks for there."""
    return calibration_path(out, gpu_model) if out.is_dir() else out
