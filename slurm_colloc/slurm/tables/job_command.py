"""What `scontrol show job` and squeue call a job's command."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence


def describe_command(script_name: str, arguments: Sequence[str], submit_directory: str) -> str:
    """The script's whole path and its arguments.

    Args:
        script_name: The script's path as the user wrote it.
        arguments: Its arguments.
        submit_directory: Where csub was called.

    Returns:
        `(null)` where it came by --wrap or standard input.
    """
    script = os.path.normpath(os.path.join(submit_directory, script_name))
    if not os.path.exists(script):
        found = shutil.which(script_name)
        if found is None:
            return "(null)"
        script = found
    return " ".join([script, *arguments])
