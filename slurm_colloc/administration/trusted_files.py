"""Writing files of root's where nobody else can put another in their place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from slurm_colloc.host.trusted import open_trusted

# No pattern such as `*` matches it: slurmd may read a directory of hooks at any moment.
_TEMPORARY = ".slurm_colloc."


@contextlib.contextmanager
def opened_directory(directory: str, *, may_be_a_groups: bool = False) -> Iterator[int]:
    """A directory that nobody else can exchange; what leads to it may be a link.

    Args:
        directory: Its path.
        may_be_a_groups: Its group may write in it, as in Ubuntu's /var/log.

    Raises:
        NodeError: Somebody else could.
        OSError: It cannot be opened.
    """
    descriptor = open_trusted(os.path.realpath(directory), last_may_be_a_groups=may_be_a_groups)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_whole(path: str, data: bytes, mode: int) -> None:
    """Write a file that is never seen half-written.

    Args:
        path: The file, in a directory that is there.
        data: What it is to hold.
        mode: Its mode, whatever the umask is.

    Raises:
        NodeError: Somebody else could exchange what is written.
        OSError: It cannot be written; the one before is still there.
    """
    name = os.path.basename(path)
    temporary = f"{_TEMPORARY}{name}.{os.getpid()}"
    with opened_directory(os.path.dirname(path)) as parent:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        try:
            descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise
