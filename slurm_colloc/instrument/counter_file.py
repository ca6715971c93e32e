"""Makes and maps the counter file of this process."""

from __future__ import annotations

import mmap
import os
import sys

from . import layout

# A mapping closes its own descriptor when it goes away. In a program that has closed all
# descriptors that number may be another file's by then, so no mapping ever goes away.
_KEPT: list[object] = []


def open_counters(directory: str) -> memoryview | None:
    """Map this process's counter file, as words of 8 bytes, and make it if need be.

    A program that replaced itself (`exec`) has kept its pid and start, and finds its own file:
    its counts go on from there.

    Returns:
        None where it cannot be made: no directory, no permission, no space, no little endian.
    """
    if sys.byteorder != "little":
        return None
    try:
        return _open(directory)
    except (OSError, ValueError, TypeError, OverflowError, BufferError):
        return None


def _open(directory: str) -> memoryview:
    with open("/proc/self/stat", "rb") as stat:
        start = layout.parse_start_ticks(stat.read())
    pid = os.getpid()
    path = os.path.join(directory, layout.build_name(pid, start))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        old = os.pread(descriptor, layout.SIZE, 0)
        if not _is_ours(old, pid):
            _allocate(descriptor, path, _build_empty(pid))
        mapping = mmap.mmap(descriptor, layout.SIZE)
    finally:
        os.close(descriptor)
    words = memoryview(mapping).cast("q")
    _KEPT.append(words)
    return words


def _is_ours(content: bytes, pid: int) -> bool:
    if len(content) != layout.SIZE:
        return False
    magic, version, size, _, owner = layout.RECORD.unpack_from(content)[:5]
    return (magic, version, size, owner) == (layout.MAGIC, layout.VERSION, layout.SIZE, pid)


def _build_empty(pid: int) -> bytes:
    content = bytearray(layout.SIZE)
    values: tuple[int, ...] = (layout.VERSION, layout.SIZE, 0, pid, *[0] * 10, -1, *[0] * 7)
    layout.RECORD.pack_into(content, 0, layout.MAGIC, *values)
    return bytes(content)


def _allocate(descriptor: int, path: str, content: bytes) -> None:
    """Give the file its blocks and content; a write into a hole of a full tmpfs would kill us."""
    try:
        os.ftruncate(descriptor, 0)
        os.posix_fallocate(descriptor, 0, len(content))
        if os.pwrite(descriptor, content, 0) != len(content):
            raise OSError("a short write")
    except OSError:
        os.unlink(path)
        raise
