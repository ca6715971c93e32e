"""On which GPUs MIG was on when a job's prolog divided them, as files that outlast a reboot.

    STATE/mig_on/UUID    the boot in which that was, from the prolog to the end of undoing

From Hopper on a reboot turns MIG off, and /run with the checkpoints is empty then, too. Who: root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re

from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.trusted_paths import open_own_directory, open_trusted, write_json

_DIRECTORY = "mig_on"
_UUID = re.compile(r"GPU-[0-9A-Fa-f-]{1,64}")
_LONGEST = 4096


def keep_mode(state: str, uuid: str, boot: str) -> None:
    """Write down that MIG is on on a GPU.

    Args:
        state: Root's directory for what outlasts a reboot.
        uuid: The GPU.
        boot: This boot.

    Raises:
        NodeError: The directory is not root's alone, or this is not a GPU's UUID.
        OSError: It cannot be written.
    """
    if not _UUID.fullmatch(uuid):
        raise NodeError(f"{uuid!r} is not a GPU's UUID")
    directory = _open(state, makes=True)
    try:
        write_json(directory, uuid, {"schema": 1, "boot": boot}, 0o600)
        # A node that loses its power in the middle of a job is what this is for.
        written = os.open(uuid, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fsync(written)
            os.fsync(directory)
        finally:
            os.close(written)
    finally:
        os.close(directory)


def forget_mode(state: str, uuid: str) -> None:
    """Take away what `keep_mode` has written, where it is there.

    Raises:
        NodeError: The directory is not root's alone.
        OSError: It cannot be taken away.
    """
    try:
        directory = _open(state, makes=False)
    except FileNotFoundError:
        return
    try:
        # And what a prolog that was killed had begun to write.
        for name in (uuid, f".{uuid}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)


def list_kept_modes(state: str) -> dict[str, str]:
    """The GPUs that are written down, and in which boot; that one is empty where it is not known.

    Raises:
        NodeError: The directory is not root's alone.
        OSError: It cannot be read.
    """
    try:
        directory = _open(state, makes=False)
    except FileNotFoundError:
        return {}
    try:
        names = sorted(filter(_UUID.fullmatch, os.listdir(directory)))
        return {name: _read_boot(directory, name) for name in names}
    finally:
        os.close(directory)


def _read_boot(directory: int, name: str) -> str:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=directory), "rb") as file:
            return str(json.loads(file.read(_LONGEST))["boot"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _open(state: str, *, makes: bool) -> int:
    """The directory of these files, open; what is there already keeps its mode."""
    parent, name = os.path.split(state.rstrip("/"))
    above = open_trusted(os.path.realpath(parent))
    try:
        outer = _open_or_make(above, name, 0o755, state, makes=makes)
    finally:
        os.close(above)
    try:
        return _open_or_make(outer, _DIRECTORY, 0o700, f"{state}/{_DIRECTORY}", makes=makes)
    finally:
        os.close(outer)


def _open_or_make(parent: int, name: str, mode: int, path: str, *, makes: bool) -> int:
    try:
        return open_own_directory(parent, name, mode, path, makes=False)
    except FileNotFoundError:
        if not makes:
            raise
    return open_own_directory(parent, name, mode, path, makes=True)
