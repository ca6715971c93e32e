"""Directories that a job names and that are not there: Slurm could not start it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence


def find_missing_directories(directory: str, patterns: Sequence[tuple[str, str]]) -> list[str]:
    """Say what is missing, a clause each; what cannot be looked at is not called missing.

    Args:
        directory: The job's working directory.
        patterns: Its output files, as (option, filename pattern of sbatch). A directory whose own
            name is a pattern is not known before the job starts, and its parent is looked at.
    """
    if _is_missing(directory):
        return [f"its working directory {directory} does not exist"]
    found = []
    for option, pattern in patterns:
        folder = os.path.dirname(pattern)
        if "\\" not in folder:
            folder = folder.partition("%")[0]
            if folder != os.path.dirname(pattern):
                folder = os.path.dirname(folder)
        if folder and _is_missing(os.path.join(directory, folder)):
            found.append(f"the directory {folder} of --{option}={pattern} does not exist")
    return found


def _is_missing(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
