"""What this process has counted, and its writing into the counter file.

Nothing here raises and nothing is printed. A process that cannot have a counter file counts
nothing, and asks only once.

Also: making and mapping that file; what PyTorch's allocator has reserved on the GPUs of this
process, which never starts CUDA. NVML sees what a process holds at the moment of a look, and
cudnn.benchmark holds several times as much for some milliseconds of the first step; the allocator
keeps its peak.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import threading
from threading import get_ident
from time import monotonic_ns
from typing import Any

from . import layout
from .rounds import Rounds

# ---- Making and mapping the counter file ---------------------------------------------------------

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


# ---- What PyTorch's allocator has reserved -------------------------------------------------------


class AllocatorReader:
    """Asks the allocator of a torch that the program has imported.

    A look takes some 20 microseconds for each GPU that the program sees: it reads numbers that
    the allocator keeps, and neither calls the driver nor waits for a GPU.
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        # GPUs that a process sees are settled once CUDA is up.
        self._count = 0

    def read(self) -> tuple[int, int] | None:
        """The peak of the bytes reserved, and those of now, each added up over the GPUs.

        Returns:
            None where CUDA is not in use, or nothing can be told.
        """
        cuda = sys.modules.get("torch.cuda")
        if cuda is None:
            return None
        try:
            return self._read(cuda)
        except Exception:
            # Of a half imported or a foreign torch, or an allocator that keeps no such numbers.
            return None

    def _read(self, cuda: Any) -> tuple[int, int] | None:
        if not cuda.is_initialized():
            return None
        count = self._count
        if not count:
            count = self._count = int(cuda.device_count())
        # max_memory_reserved makes a flat and sorted table of all statistics first: 140 us on the
        # host of an H100, this 22 us.
        nested = getattr(cuda, "memory_stats_as_nested_dict", None)
        peak = now = 0
        for device in range(count):
            if nested is None:
                peak += int(cuda.max_memory_reserved(device))
                now += int(cuda.memory_reserved(device))
                continue
            reserved = nested(device).get("reserved_bytes")
            if reserved is not None:
                peak += int(reserved["all"]["peak"])
                now += int(reserved["all"]["current"])
        return (peak, now) if peak > 0 else None


# ---- What this process has counted ---------------------------------------------------------------

_HEAD = layout.VERSION | layout.SIZE << 16
# Stored one by one: each store is whole, and a writer that is killed in between leaves words that
# are at most one count apart. (struct.pack_into writes zeros first.)
_SEQUENCE = layout.SEQUENCE
_STEPS = layout.STEPS
_SKIPPED = layout.SKIPPED
_SAMPLES = layout.SAMPLES
_BATCHES = layout.BATCHES
_WAIT_NS = layout.WAIT_NS
_LAST_STEP_NS = layout.LAST_STEP_NS
_UPDATED_NS = layout.UPDATED_NS

LOOK_NS = 2_000_000_000
"""How often the allocator is asked once a program is under way; before at steps 1, 2, 4, 8, ..."""


class Tally:
    """The counts of this process.

    Counts of a loader become samples when a step follows them before another loader gives its
    next batch: those of a validation never do. Once the program itself says how far it is
    (`explicit_step`), what the hooks had counted as steps is dropped and stays so.

    Args:
        directory: Where counter files lie; None for a tally that never counts.
    """

    def __init__(self, directory: str | None) -> None:
        self.directory = directory
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child does: the counts so far are its parent's."""
        self._words: memoryview | None = None
        # Whether counting has any effect.
        self.active = self.directory is not None
        self._opening = False
        # Reentrant, because a signal handler may count too.
        self._lock = threading.RLock()
        self._rounds = Rounds()
        self._by_hand = False
        self._steps_by_hand = 0
        self._skipped_by_hand = 0
        self._samples_by_hand = False
        self._samples = 0
        self._batches = 0
        self._wait_ns = 0
        self._loader = 0
        self._pending = 0
        self._loader_workers = -1
        self._stepping_thread = 0
        self._flags = 0
        self._sequence = 0
        self._base_samples = 0
        self._told_optimizers = -1
        self._told_by_hand = False
        self._told_flags = 0
        self._allocator = AllocatorReader()
        self._look_at_ns = 0
        self._look_at_step = 1

    @property
    def count_of_steps(self) -> int:
        """Steps so far, counted by the program itself or else here."""
        return self._steps_by_hand if self._by_hand else self._rounds.steps

    def count_step(self, optimizer: int, stepped: bool = True) -> None:
        """Count one step of an optimizer, or one that the AMP scaler skipped.

        Args:
            optimizer: Its id.
            stepped: False for a skipped one.
        """
        words = self._words
        if words is None:
            words = self._open()
            if words is None:
                return
        with self._lock:
            rounds = self._rounds
            rounds.note(optimizer, stepped)
            if not self._by_hand:
                self._write_steps(words, rounds.steps, rounds.skipped, layout.SOURCE_OPTIMIZER)

    def count_by_hand(self, steps: int, skipped: int, samples: int | None) -> None:
        """Count what the program itself says; see slurm_colloc.progress."""
        words = self._words
        if words is None:
            words = self._open()
            if words is None:
                return
        with self._lock:
            self._by_hand = True
            self._steps_by_hand += steps
            self._skipped_by_hand += skipped
            if samples is not None:
                if not self._samples_by_hand:
                    self._samples_by_hand = True
                    self._samples = self._base_samples
                self._samples += samples
            self._write_steps(words, self._steps_by_hand, self._skipped_by_hand, layout.SOURCE_API)

    def count_batch(
        self, loader: int, samples: int, begun_ns: int, ended_ns: int, workers: object = None
    ) -> None:
        """Count one batch that the program got from a loader.

        Args:
            loader: Identity of the loader.
            samples: Samples in it.
            begun_ns: Since when the program waited for it, CLOCK_MONOTONIC.
            ended_ns: When it had it.
            workers: How many the loader has; anything but a number where unknown.
        """
        words = self._words
        if words is None:
            words = self._open()
            if words is None:
                return
        with self._lock:
            if loader != self._loader:
                self._flags |= layout.FLAG_SEVERAL_LOADERS if self._pending else 0
                self._loader = loader
                self._pending = 0
                known = workers if type(workers) is int else -1
                if known != self._loader_workers:
                    self._loader_workers = known if 0 <= known <= layout.WORKERS_MOST else -1
                    # Told with the next step: a validation's loader has none.
                    self._told_flags = -1
            self._pending += samples
            self._batches = batches = self._batches + 1
            self._sequence = sequence = self._sequence + 2
            words[_SEQUENCE] = sequence - 1
            words[_BATCHES] = batches
            thread = self._stepping_thread
            # A thread that fetches ahead waits, but no one waits for it.
            if not thread or thread == get_ident():
                self._wait_ns = wait_ns = self._wait_ns + ended_ns - begun_ns
                words[_WAIT_NS] = wait_ns
            words[_UPDATED_NS] = ended_ns
            words[_SEQUENCE] = sequence

    def note_unknown_skips(self) -> None:
        """Remember that skipped steps are among the counted ones, and cannot be told apart."""
        self._flags |= layout.FLAG_SKIPS_UNKNOWN

    def _write_steps(self, words: memoryview, steps: int, skipped: int, source: int) -> None:
        if not self._stepping_thread:
            self._begin_steps(words)
        if not self._samples_by_hand:
            self._samples += self._pending
            self._pending = 0
        optimizers = self._rounds.optimizers
        if (
            optimizers != self._told_optimizers
            or self._by_hand is not self._told_by_hand
            or self._flags != self._told_flags
        ):
            self._tell(words, source, optimizers)
        now = monotonic_ns()
        self._sequence = sequence = self._sequence + 2
        words[_SEQUENCE] = sequence - 1
        words[_STEPS] = steps
        words[_SKIPPED] = skipped
        words[_SAMPLES] = self._samples
        words[_LAST_STEP_NS] = now
        words[_UPDATED_NS] = now
        words[_SEQUENCE] = sequence
        if now >= self._look_at_ns or steps >= self._look_at_step:
            self._look_at_ns = now + LOOK_NS
            self._look_at_step = 2 * max(1, steps)
            self.note_gpu_memory(words, now)

    def note_gpu_memory(self, words: memoryview, now: int) -> None:
        """Write what the allocator has reserved, if there is one; a peak never falls.

        Args:
            words: The counter file.
            now: CLOCK_MONOTONIC in nanoseconds.
        """
        found = self._allocator.read()
        if found is None:
            return
        self._sequence = sequence = self._sequence + 2
        words[_SEQUENCE] = sequence - 1
        # The program may have reset the allocator's own, or be another that this one replaced.
        words[layout.GPU_RESERVED_PEAK] = max(words[layout.GPU_RESERVED_PEAK], found[0])
        words[layout.GPU_RESERVED] = found[1]
        words[layout.GPU_READ_NS] = now
        words[_SEQUENCE] = sequence

    def _tell(self, words: memoryview, source: int, optimizers: int) -> None:
        """Write what seldom changes."""
        if optimizers > 1:
            self._flags |= layout.FLAG_SEVERAL_OPTIMIZERS
        self._told_optimizers = optimizers
        self._told_by_hand = self._by_hand
        self._told_flags = self._flags
        words[layout.HEAD] = _HEAD | self._flags << 32
        words[layout.ORIGIN] = source | optimizers << 32
        words[layout.LOADER_WORKERS] = self._loader_workers + 1

    def _begin_steps(self, words: memoryview) -> None:
        self._stepping_thread = get_ident()
        if not words[layout.FIRST_STEP_NS]:
            words[layout.FIRST_STEP_NS] = monotonic_ns()
        # Once more: a loader may have been used before torch.distributed was set up.
        words[layout.RANK], words[layout.WORLD] = find_rank()

    def _open(self) -> memoryview | None:
        with self._lock:
            # Another thread may have been here first.
            words = self._words
            if words is not None:
                return words
            if self._opening or not self.active or self.directory is None:
                return None
            # Not inactive meanwhile: other threads would leave out what they count now.
            self._opening = True
            try:
                words = None if is_loader_worker() else open_counters(self.directory)
            finally:
                self.active = words is not None
                self._opening = False
            if words is None:
                return None
            # Not 0 only in a process that has replaced itself.
            self._rounds.steps = self._steps_by_hand = words[_STEPS]
            self._rounds.skipped = self._skipped_by_hand = words[_SKIPPED]
            self._samples = self._base_samples = words[_SAMPLES]
            self._batches = words[_BATCHES]
            self._wait_ns = words[_WAIT_NS]
            words[layout.HEAD] = _HEAD
            words[layout.RANK], words[layout.WORLD] = find_rank()
            self._sequence = words[_SEQUENCE] + 1 & ~1
            self._words = words
            atexit.register(_finish, self, words, os.getpid())
            return words


def _finish(counted: Tally, words: memoryview, pid: int) -> None:
    # A forked child has inherited this, and may end in an orderly way long before its parent.
    if os.getpid() == pid:
        # The last look holds the peak of all the time.
        counted.note_gpu_memory(words, monotonic_ns())
        words[layout.HEAD] |= layout.FLAG_FINISHED << 32
        words[layout.UPDATED_NS] = monotonic_ns()


def find_rank() -> tuple[int, int]:
    """This process's rank and how many there are; -1 and 0 where it has none."""
    try:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:
        # Of a half imported or a foreign torch.
        pass
    try:
        return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "0"))
    except (KeyError, ValueError):
        return -1, 0


def is_loader_worker() -> bool:
    """Whether this process works for a DataLoader: what it loads is counted where it arrives."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


tally = Tally(os.environ.get(layout.VARIABLE) or None)
"""The one tally of this process."""

os.register_at_fork(after_in_child=tally.reset)
