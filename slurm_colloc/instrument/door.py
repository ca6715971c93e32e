"""Waits before the program's first use of a GPU, where the runner of its pack wants it to.

What the runner and this agree on: in the directory of the counter files, the file GPU_USED says
that a process of the member has come to its first use of a GPU. The door is closed while the runner
holds a lock (flock) on the file DOOR, and open once that is gone, as it also is after a kill of the
runner. Then the file may hold what has changed meanwhile in the member's environment, NAME=VALUE,
each ended by a NUL.
"""

from __future__ import annotations

import contextlib
import errno
import os
from types import FunctionType, ModuleType

from . import layout

_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS)
"""What flock fails with itself; all else comes from a signal handler of the program's."""

_READ_MOST = 4096


def hook_cuda(module: ModuleType) -> None:
    """Wait in the first call of torch's lazy start; `module` is torch.cuda, just imported.

    The function stays the same object, because torch.cuda's own modules have imported it by now.
    It is not inside the lock that torch takes: a process that is forked meanwhile would inherit
    that, and its first random seed would wait for it for ever.
    """
    directory = os.environ.get(layout.VARIABLE)
    begin = getattr(module, "_lazy_init", None)
    if not directory or not isinstance(begin, FunctionType):
        return
    if begin.__globals__ is not vars(module) or begin.__code__.co_freevars:
        return
    if begin.__code__.co_argcount or begin.__code__.co_kwonlyargcount:
        return
    original = begin.__code__

    def come() -> None:
        # Where a signal handler has raised, the next call waits again.
        come_to_door(directory)
        begin.__code__ = original

    vars(module)["_slurm_colloc_come_to_door"] = come
    begin.__code__ = _lazy_init.__code__


def _lazy_init() -> object:
    # With the names of torch.cuda: the second call is of torch's own code.
    _slurm_colloc_come_to_door()  # type: ignore[name-defined]  # noqa: F821
    return _lazy_init()


def come_to_door(directory: str) -> None:
    """Say that the GPU is wanted, and wait until it may be used; costs no CPU time meanwhile.

    Signals reach the program as at any other moment: its handlers run, and may raise.

    Args:
        directory: Of the counter files.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        path = os.path.join(directory, layout.GPU_USED)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600))
    try:
        door = os.open(os.path.join(directory, layout.DOOR), os.O_RDONLY | flags)
    except OSError:
        return
    try:
        # Only here: few Pythons need it.
        import fcntl

        fcntl.flock(door, fcntl.LOCK_SH)
        changed = os.pread(door, _READ_MOST, 0)
    except ImportError:
        return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return
    finally:
        with contextlib.suppress(OSError):
            os.close(door)
    for text in changed.split(b"\0"):
        name, _, value = text.partition(b"=")
        # The user may have taken it away.
        if name in os.environb:
            os.environb[name] = value
