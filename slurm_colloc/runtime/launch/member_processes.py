"""A member's processes: signals to them, and what its wrapper and its srun have written."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from typing import Any

from slurm_colloc.runtime.queue.members import Member

LOG_LIMIT = 65536
"""So many bytes of a log's end are looked at."""


def terminate(member: Member) -> None:
    """Ask the member's wrapper to end it: TERM now, KILL after KillWait."""
    if member.wrapper_pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.wrapper_pid, signal.SIGTERM)  # noqa: TID251 - its own
    elif member.process is not None:
        member.process.kill()


def kill(member: Member) -> None:
    """End a member at once, wrapper and all."""
    # The wrapper first: it must not write this down as an end of the script's own.
    for pid in (member.wrapper_pid, member.pid):
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)  # noqa: TID251 - its own
    if member.process is not None:
        member.process.kill()


def outlives_its_srun(member: Member) -> bool:
    """True where only the srun of a step was killed: its wrapper still runs on this node."""
    if member.launcher != "srun" or member.wrapper_pid is None:
        return False
    if os.path.exists(f"{member.prefix}.exit"):
        return False
    try:
        with open(f"/proc/{member.wrapper_pid}/cmdline", "rb") as file:
            return os.fsencode(f"{member.prefix}.launch") in file.read().split(b"\0")
    except OSError:
        return False


def ends_before_its_srun(member: Member) -> bool:
    """True where the wrapper of a step has written how it ended, whatever its srun does."""
    return member.launcher == "srun" and os.path.exists(f"{member.prefix}.exit")


def read_started(member: Member) -> dict[str, Any] | None:
    """What the wrapper wrote when it was up; None before that."""
    return _read(f"{member.prefix}.started")


def read_exit(member: Member) -> dict[str, Any] | None:
    """What the wrapper wrote at the end; None if it could not."""
    return _read(f"{member.prefix}.exit")


def read_log(member: Member) -> str:
    """The end of what srun wrote."""
    try:
        with open(f"{member.prefix}.log", "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_LIMIT))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def clean(member: Member) -> None:
    """Remove what the wrapper could not remove itself."""
    with contextlib.suppress(OSError):
        os.unlink(f"{member.prefix}.launch")
    if member.tmpdir:
        shutil.rmtree(member.tmpdir, ignore_errors=True)


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return None
