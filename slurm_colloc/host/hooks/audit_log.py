"""One line for each run of a hook, for the administrator; who: root."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Mapping

from slurm_colloc.host.system.directories import OPEN_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SYSLOG = "/dev/log"
_NOTICE = 3 * 8 + 5
"""Facility daemon, severity notice (syslog(3))."""


def write_audit(path: str, entry: Mapping[str, Any], *, syslog: str = _SYSLOG) -> str:
    """Write one line to the audit log, and a short one to syslog.

    None of this may keep a job from starting, so what cannot be written is only returned.

    Args:
        path: The audit log; empty for none.
        entry: What happened; `time` is added.
        syslog: Where syslog listens.

    Returns:
        Why the line could not be written, empty where it was.
    """
    line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **entry})
    _tell_syslog(syslog, entry)
    if not path:
        return ""
    try:
        descriptor = _open_log(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if descriptor is None:
        return f"{path} is not a file in a directory of root's alone"
    try:
        os.write(descriptor, line.encode("ascii") + b"\n")
    except OSError as error:
        return f"{path}: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def _open_log(path: str) -> int | None:
    directory, name = os.path.split(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    # The directories above are the site's: /var/log belongs to a group on some distributions.
    opened = os.open(directory, OPEN_DIRECTORY)
    try:
        if not _is_own(os.fstat(opened)):
            return None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(name, flags | os.O_CLOEXEC, 0o640, dir_fd=opened)
    finally:
        os.close(opened)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and _is_own(status):
        return descriptor
    os.close(descriptor)
    return None


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _tell_syslog(address: str, entry: Mapping[str, Any]) -> None:
    """Without waiting: a log daemon that hangs must not hang Slurm's."""
    words = " ".join(
        f"{name}={entry[name]}"
        for name in ("hook", "job", "uid", "mode", "outcome")
        if entry.get(name) not in (None, "")
    )
    text = "".join(c if " " <= c <= "~" else "?" for c in words)[:900]
    message = f"<{_NOTICE}>slurm_colloc[{os.getpid()}]: {text}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.setblocking(False)
        log.connect(address)
        log.send(message.encode("ascii"))
