"""A member's progress: the counter files of its processes, and the outputs that tell it.

The counters are written by slurm_colloc.instrument.

One start of a member has a directory of its own, with one file for each process that counted
anything. What a field means stands in instrument/layout.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from slurm_colloc.errors import StateError
from slurm_colloc.instrument import layout
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.store.atomic_files import read_record, write_atomic, write_json
from slurm_colloc.store.foreign_files import open_file

ProgressSource = Literal["optimizer", "api", "regex"]

_SOURCES: dict[int, ProgressSource] = {
    layout.SOURCE_OPTIMIZER: "optimizer",
    layout.SOURCE_API: "api",
    layout.SOURCE_REGEX: "regex",
}
# A writer needs a microsecond, so the first try is nearly always enough, and this many are even for
# one that counts 100,000 times a second. One that was killed while writing stays odd for ever.
# Every word is whole by itself even then.
_TRIES = 64
_SEQUENCE_AT = layout.SEQUENCE * 8
# More than any member has; a directory full of rubbish is not to keep the reader busy.
_MOST_FILES = 4096


@dataclass(frozen=True)
class ProcessProgress:
    """What one process has counted.

    Attributes:
        pid: Its pid, in its own namespace.
        start_ticks: Its start in clock ticks since boot.
        rank: Its rank; None where it has none.
        world: How many ranks there are; None where unknown.
        steps: Training steps that changed parameters.
        skipped: Steps that an AMP scaler skipped.
        samples: Samples of the batches that steps followed.
        batches: Batches of all DataLoaders.
        wait_s: Time waited for batches, in seconds.
        first_step_s: Time of the first step, in seconds of CLOCK_MONOTONIC; None before it.
        last_step_s: Time of the last step, likewise.
        updated_s: Time of the last count of anything, likewise.
        source: What counted the steps; None before the first.
        optimizers: How many optimizers were seen.
        finished: Python has ended normally.
        several_loaders: Some loader's batches were followed by no step, such as a validation's.
        skips_unknown: Skipped steps may be among `steps` (a fused optimizer on a GPU).
        gpu_reserved_peak: Bytes that PyTorch's allocator had reserved at most; None where it was
            never asked.
        gpu_reserved: The same at the newest look.
        loader_workers: Workers of the DataLoader that it trains from; None where unknown.
    """

    pid: int
    start_ticks: int
    rank: int | None
    world: int | None
    steps: int
    skipped: int
    samples: int
    batches: int
    wait_s: float
    first_step_s: float | None
    last_step_s: float | None
    updated_s: float | None
    source: ProgressSource | None
    optimizers: int
    finished: bool
    several_loaders: bool
    skips_unknown: bool
    gpu_reserved_peak: int | None = None
    gpu_reserved: int | None = None
    loader_workers: int | None = None


@dataclass(frozen=True)
class MemberProgress:
    """What all processes of one start of a member have counted.

    Attributes:
        steps: Sum over the processes that are rank 0 or have no rank.
        skipped: Likewise.
        samples: Sum over all processes; None where none says.
        batches: Likewise.
        wait_s: Likewise, in seconds; for a share of time divide it by `trainers` too.
        trainers: Processes that have stepped, of any rank; 0 before the first step.
        first_step_s: The earliest, in seconds of CLOCK_MONOTONIC; None before the first step.
        last_step_s: The latest, likewise.
        updated_s: The latest count of anything, likewise.
        source: What counted the steps; `api` where any process used it, None before the first.
        several_loaders: See ProcessProgress.
        skips_unknown: See ProcessProgress.
        processes: One by one, by file name.
        gpu_reserved_peak: Bytes that the allocators of all processes had reserved at most, those
            added up that were there at the same time; None where none was ever asked.
        gpu_reserved: The same now, of the processes that still count; None where none does.
        loader_workers: Workers of the DataLoader that the one process trains from; None where
            several train, or it is unknown.
    """

    steps: int = 0
    skipped: int = 0
    samples: int | None = None
    batches: int = 0
    wait_s: float = 0.0
    trainers: int = 0
    first_step_s: float | None = None
    last_step_s: float | None = None
    updated_s: float | None = None
    source: ProgressSource | None = None
    several_loaders: bool = False
    skips_unknown: bool = False
    processes: tuple[ProcessProgress, ...] = ()
    gpu_reserved_peak: int | None = None
    gpu_reserved: int | None = None
    loader_workers: int | None = None


def read_member_progress(directory: str) -> MemberProgress | None:
    """Read what a start of a member has counted so far.

    Files that are no counter files, or of a version that is not known, are passed over. What the
    member prints counts before what its processes count, see `write_printed_progress`.

    Args:
        directory: That of the one start.

    Returns:
        None where nothing was counted, or nothing can be read: that is not 0.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(layout.SUFFIX))
    except OSError:
        return None
    read = (read_process_progress(directory, name) for name in names[:_MOST_FILES])
    processes = tuple(process for process in read if process is not None)
    return add_up(processes) if processes else None


def read_process_progress(directory: str, name: str) -> ProcessProgress | None:
    """Read one counter file; None where it is none."""
    numbers = name.removesuffix(layout.SUFFIX).split(".")
    if len(numbers) != 2 or not numbers[1].isdecimal():
        return None
    try:
        # Of a member, which may have put anything there.
        descriptor = open_file(f"{directory}/{name}")
    except OSError:
        return None
    try:
        content = b""
        for _ in range(_TRIES):
            content = os.pread(descriptor, layout.SIZE, 0)
            # Even: no write was under way; still the same: none has begun meanwhile.
            if _is_settled(content, os.pread(descriptor, 8, _SEQUENCE_AT)):
                break
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return parse_counters(content, int(numbers[1]))


def _is_settled(content: bytes, sequence: bytes) -> bool:
    before = content[_SEQUENCE_AT : _SEQUENCE_AT + 8]
    return before == sequence and not int.from_bytes(before, "little") & 1


def parse_counters(content: bytes, start_ticks: int) -> ProcessProgress | None:
    """Take a counter file apart; None where it is none or of another version."""
    if len(content) < layout.RECORD.size:
        return None
    (
        magic, version, _, flags, pid, _, steps, skipped, samples, batches, wait_ns, _,
        first_ns, last_ns, updated_ns, rank, world, source, optimizers,
        gpu_peak, gpu_now, gpu_read_ns, workers,
    ) = layout.RECORD.unpack_from(content)  # fmt: skip
    if magic != layout.MAGIC or version != layout.VERSION:
        return None
    return ProcessProgress(
        pid=pid,
        start_ticks=start_ticks,
        rank=rank if rank >= 0 else None,
        world=world if world > 0 else None,
        steps=steps,
        skipped=skipped,
        samples=samples,
        batches=batches,
        wait_s=wait_ns / 1e9,
        first_step_s=_to_seconds(first_ns),
        last_step_s=_to_seconds(last_ns),
        updated_s=_to_seconds(updated_ns),
        source=_SOURCES.get(source),
        optimizers=optimizers,
        finished=bool(flags & layout.FLAG_FINISHED),
        several_loaders=bool(flags & layout.FLAG_SEVERAL_LOADERS),
        skips_unknown=bool(flags & layout.FLAG_SKIPS_UNKNOWN),
        gpu_reserved_peak=gpu_peak if gpu_read_ns > 0 else None,
        gpu_reserved=gpu_now if gpu_read_ns > 0 else None,
        loader_workers=workers - 1 if 0 < workers <= layout.WORKERS_MOST + 1 else None,
    )


def _to_seconds(time_ns: int) -> float | None:
    return time_ns / 1e9 if time_ns > 0 else None


def add_up(processes: tuple[ProcessProgress, ...]) -> MemberProgress:
    """Make one member's progress of that of its processes, of which there is at least one."""
    printed = next((process for process in processes if process.source == "regex"), None)
    if printed is not None:
        others = tuple(process for process in processes if process is not printed)
        return replace_with_printed(
            add_up(others) if others else None,
            steps=printed.steps,
            samples=None,
            first_s=printed.first_step_s,
            last_s=printed.last_step_s,
        )
    # Ranks of one training step together, so theirs are the same steps.
    leading = [process for process in processes if not process.rank]
    trainers = [process for process in processes if process.last_step_s is not None]
    sources = {process.source for process in processes}
    return MemberProgress(
        steps=sum(process.steps for process in leading),
        skipped=sum(process.skipped for process in leading),
        samples=sum(process.samples for process in processes),
        batches=sum(process.batches for process in processes),
        wait_s=sum(process.wait_s for process in processes),
        trainers=len(trainers),
        first_step_s=_choose(min, (process.first_step_s for process in processes)),
        last_step_s=_choose(max, (process.last_step_s for process in processes)),
        updated_s=_choose(max, (process.updated_s for process in processes)),
        source=next((s for s in ("api", "optimizer") if s in sources), None),
        several_loaders=any(process.several_loaders for process in processes),
        skips_unknown=any(process.skips_unknown for process in processes),
        processes=processes,
        gpu_reserved_peak=_find_reserved_peak(processes),
        gpu_reserved=_add_up_reserved(processes),
        loader_workers=trainers[0].loader_workers if len(trainers) == 1 else None,
    )


def replace_with_printed(
    counted: MemberProgress | None,
    *,
    steps: int,
    samples: int | None,
    first_s: float | None,
    last_s: float | None,
) -> MemberProgress:
    """A member's progress by what it prints, with all else that its processes have counted.

    Args:
        counted: What its processes have counted; None for nothing.
        steps: The steps that it has printed.
        samples: Likewise; None where it prints none.
        first_s: When it printed the first of them (CLOCK_MONOTONIC).
        last_s: When it printed the last.
    """
    known = counted or MemberProgress()
    return replace(
        known,
        steps=steps,
        skipped=0,
        samples=known.samples if samples is None else samples,
        trainers=max(1, known.trainers),
        first_step_s=first_s,
        last_step_s=last_s,
        updated_s=last_s,
        source="regex",
    )


_PRINTED = layout.build_name(0, 0)
"""No process has the pid 0."""


def write_printed_progress(directory: str, steps: int, first_s: float, last_s: float) -> None:
    """Note for a member's runner what the member prints, next to what its processes count.

    Args:
        directory: That of the one start.
        steps: Steps since the first that it has printed, that one included.
        first_s: When it printed the first (CLOCK_MONOTONIC).
        last_s: When it printed the last.

    Raises:
        StateError: It cannot be written.
    """
    first_ns, last_ns = int(first_s * 1e9), int(last_s * 1e9)
    record = layout.RECORD.pack(
        layout.MAGIC, layout.VERSION, layout.SIZE, 0, 0, 0, max(0, steps), 0, 0, 0, 0, 0,
        first_ns, last_ns, last_ns, -1, 0, layout.SOURCE_REGEX, 0, 0, 0, 0, 0,
    )  # fmt: skip
    path = f"{directory}/{_PRINTED}"
    write_atomic(path, record.ljust(layout.SIZE, b"\0"), outlives_crash=False)


_SILENT_S = 60.0
"""A process that has counted nothing for so long, while another did, may have been killed."""


def _find_reserved_peak(processes: Iterable[ProcessProgress]) -> int | None:
    """The most that was reserved at once, if each had its peak as long as it was there."""
    known = [
        (process.first_step_s or process.updated_s or 0.0, process.updated_s or 0.0, peak)
        for process in processes
        if (peak := process.gpu_reserved_peak) is not None
    ]
    # The most are there at some moment at which one has just come.
    sums = (
        sum(peak for first_s, last_s, peak in known if first_s <= moment_s <= last_s)
        for moment_s, _, _ in known
    )
    return max(sums, default=None)


def _add_up_reserved(processes: Iterable[ProcessProgress]) -> int | None:
    held = [p for p in processes if p.gpu_reserved is not None and not p.finished]
    newest_s = max((p.updated_s or 0.0 for p in held), default=0.0)
    sizes = [p.gpu_reserved for p in held if (p.updated_s or 0.0) >= newest_s - _SILENT_S]
    return sum(size for size in sizes if size is not None) if sizes else None


def _choose(
    function: Callable[[list[float]], float], times: Iterable[float | None]
) -> float | None:
    known = [time for time in times if time is not None]
    return function(known) if known else None


# Which output files of a member tell its progress: `follow.json` in the same directory, written by
# the runner and read by the monitor.

_NAME = "follow.json"


@dataclass(frozen=True)
class FollowRequest:
    """What is to be looked for, and where.

    Attributes:
        regex: See submission.jobs.call_jobs.
        files: Paths, each with its size when the member started: what is behind that is its own.
    """

    regex: str
    files: tuple[tuple[str, int], ...]


def write_follow_request(directory: str, regex: str, files: Sequence[tuple[str, int]]) -> None:
    """Ask the monitor to follow a member's output.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{directory}/{_NAME}", {"regex": regex, "files": [list(one) for one in files]})


def read_follow_request(directory: str) -> FollowRequest | None:
    """What the runner asks for; None where it asks for nothing, or for nothing that makes sense."""
    try:
        return read_record(f"{directory}/{_NAME}", FollowRequest)
    except StateError:
        return None


def find_shared_loaders(directories: Iterable[str]) -> list[str]:
    """Those of some members' directories whose programs have a loader in common with another's.

    Args:
        directories: Of members that run, one start each, in one pack.
    """
    wanted = {os.path.basename(path): path for path in directories if path}
    rooms = {f"{os.path.dirname(path)}/{layout.LOADERS}" for path in wanted.values()}
    found: set[str] = set()
    for room in rooms:
        with contextlib.suppress(OSError):
            for loader in os.listdir(room):
                with contextlib.suppress(NotADirectoryError):
                    # m.NUMBER.START.PID.RANDOM
                    names = {name[2:].rsplit(".", 2)[0] for name in os.listdir(f"{room}/{loader}")}
                    members = names & set(wanted)
                    found |= members if len(members) > 1 else set()
    return sorted(wanted[name] for name in found)
