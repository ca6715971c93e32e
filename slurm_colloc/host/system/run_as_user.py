"""Doing one thing as another user: root's way to touch a user's files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import time
from collections.abc import Callable

from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.node_processes import identify, wait_until_ended
from slurm_colloc.host.system.own_directory import Owner
from slurm_colloc.host.system.signals import end_child

_PR_SET_NO_NEW_PRIVS = 38
_LIMIT_BYTES = 65536
_KILL_S = 0.5


def become(owner: Owner) -> None:
    """Give up root for good, in a process of its own.

    Raises:
        OSError: This process is not that user's alone now.
    """
    os.setgroups(list(owner.groups))
    os.setresgid(owner.gid, owner.gid, owner.gid)
    os.setresuid(owner.uid, owner.uid, owner.uid)
    # The kernel takes (uid_t)-1 for "leave it as it is", and says that all went well.
    if os.getresuid() != (owner.uid,) * 3 or os.getresgid() != (owner.gid,) * 3 or not owner.uid:
        raise PermissionError(errno.EPERM, f"this process cannot become user {owner.uid}")


def run_as(owner: Owner, work: Callable[[], str], *, timeout_s: float) -> str:
    """Run a function in a child process that has given up root for good.

    Args:
        owner: Whom the child becomes: uid, gid and groups, without a way back.
        work: The function; its text comes back, cut after 64 KiB.
        timeout_s: How long it may take; the user's file system may hang.

    Raises:
        NodeError: It failed, or took too long.
        OSError: No child can be made.
    """
    read_end, write_end = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read_end)
            become(owner)
            libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            os.umask(0o077)
            os.write(write_end, b"+" + os.fsencode(work())[:_LIMIT_BYTES])
            status = 0
        except BaseException as error:  # noqa: BLE001 - a forked child must never return
            with contextlib.suppress(OSError):
                os.write(write_end, b"-" + str(error).encode("utf-8", "replace")[:4096])
        finally:
            os._exit(status)
    os.close(write_end)
    try:
        return _read_answer(read_end, time.monotonic() + timeout_s, timeout_s)
    finally:
        os.close(read_end)
        end_child(child)
        ended = identify(child)
        if ended is not None:
            wait_until_ended([ended], time.monotonic() + _KILL_S)
        # One that hangs in the kernel is left to the process that inherits it.
        os.waitpid(child, os.WNOHANG)


def _read_answer(descriptor: int, deadline: float, timeout_s: float) -> str:
    data = b""
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            raise NodeError(f"no answer within {timeout_s:g} s")
        chunk = os.read(descriptor, _LIMIT_BYTES)
        if not chunk:
            break
        data += chunk
    if not data.startswith(b"+"):
        raise NodeError(os.fsdecode(data[1:]) or "it ended without a word")
    return os.fsdecode(data[1:])
