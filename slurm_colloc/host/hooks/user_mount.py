"""A file system of its own for what a job's user may write below /run; who: root.

Pipes and logs of a daemon are the user's to fill. In a tmpfs with limits of its own that costs
neither the node nor another user anything, and all goes away in one step.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MOST_LAYERS = 8

INODES = 4096
"""How many files, directories and links: NVIDIA's daemon makes about a dozen (550, 580)."""


def mount_limited(path: str, size_mb: int) -> None:
    """Mount a tmpfs on a directory of root's.

    Args:
        path: The directory, below directories that only root can change.
        size_mb: How much fits into it (MiB).

    Raises:
        OSError: It cannot be mounted, as inside most containers.
    """
    options = f"size={size_mb}m,nr_inodes={INODES},mode=711".encode()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slurm_colloc", os.fsencode(path), b"tmpfs", flags, options) != 0:
        _raise()


def unmount_all(path: str) -> None:
    """Take away whatever is mounted on a directory, at once, be it in use.

    What still has one of its files open keeps only that file.

    Raises:
        OSError: Something stays mounted there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # A killed prolog may have been followed by another: one on top of the other.
    for _ in range(_MOST_LAYERS):
        if not is_mounted(path):
            return
        if libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            _raise()


def is_mounted(path: str) -> bool:
    """Whether a directory has another file system than the one that holds it."""
    with contextlib.suppress(OSError):
        return os.lstat(path).st_dev != os.lstat(os.path.dirname(path)).st_dev
    return False


def has_own_mounts(job_id: str) -> bool:
    """Whether a job has a mount namespace of its own already, and sees no mount made from now on.

    job_container/tmpfs and namespace/linux keep it as BasePath/JOBID/.ns, a file of type nsfs.

    Args:
        job_id: Slurm's number of the job.
    """
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    return any(
        f"/{job_id}/" in line.partition(" - ")[0] and line.partition(" - ")[2].startswith("nsfs ")
        for line in lines
    )


def _raise() -> None:
    cause = ctypes.get_errno()
    raise OSError(cause, os.strerror(cause))
