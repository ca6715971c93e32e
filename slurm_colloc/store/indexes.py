"""`summaries`: a line for each pack that has ended, so that sums need not open every summary.

Also: adding lines to an index of the state, which is only ever appended to; which packs the id of a
Slurm job stands for; light, for completion; packs whose summary, and what is learned from it, is
due: a small file of each pack's name.

A line is a JSON object with the pack's id; of several of one pack the last counts. It may lack
packs whose line could not be written and name some that have gone: the folder of packs says which
there are, and those that it lacks are read once and written into it. A damaged line is a missing
one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.ownership import refuse_protected
from slurm_colloc.store.atomic_files import hold_lock, make_directory, read_bytes, write_atomic

# ---- Adding lines to an index of the state, which is only ever appended to -----------------------


def append_lines(path: Path, data: bytes) -> None:
    """Add whole lines to an index; the caller holds its lock.

    Args:
        path: The index; it is made where it is not there.
        data: The lines, each with its line feed.

    Raises:
        OSError: It cannot be written, is a link, or is no file.
        StateError: It belongs to somebody else.
    """
    refuse_protected(path)
    # No other file is written to, which a link of this name may lead to.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        # A line that a full disk cut short is ended here, and what it was of is read again.
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


# ----
# `summaries`: a line for each pack that has ended, so that sums need not open every summary.

VERSION = 2
"""Of what a line holds; lines of another version are passed over."""

_INDEX = "summaries"
_BYTES_MOST = 256 << 20
_WAIT_S = 1.0
_SPARE_LEAST = 1000
"""So many lines of packs that have gone do no harm."""

Entry = dict[str, Any]


def read_index(root: Path) -> dict[str, Entry]:
    """The entries by pack id; none where there is no index, or it cannot be read."""
    return _parse(_read(root))


def _read(root: Path) -> bytes:
    try:
        return read_bytes(root / _INDEX, _BYTES_MOST)
    except OSError:
        return b""


def _parse(data: bytes) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for line in data.split(b"\n"):
        # The last line may be half there while another process writes it.
        if not line:
            continue
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
            entry = json.loads(line)
            if entry["v"] == VERSION and isinstance(entry["pack"], str):
                found[entry["pack"]] = entry
    return found


def append_entries(root: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write down packs that have ended; what cannot be written now is found when it is looked for.

    Args:
        root: The state directory, the caller's own.
        entries: Each with the id of its `pack`.
    """
    if not entries:
        return
    lines = [
        json.dumps({"v": VERSION, **entry}, separators=(",", ":")).encode() for entry in entries
    ]
    with contextlib.suppress(OSError, StateError), _locked(root):
        append_lines(root / _INDEX, b"".join(line + b"\n" for line in lines))


def keep_entries(root: Path, pack_ids: Iterable[str]) -> None:
    """Drop the lines of packs that have gone, where there are many; else do nothing."""
    kept = set(pack_ids)
    with contextlib.suppress(OSError, StateError), _locked(root):
        data = _read(root)
        found = _parse(data)
        if data.count(b"\n") <= 2 * len(kept) + _SPARE_LEAST:
            return
        lines = [
            json.dumps(entry, separators=(",", ":")) + "\n"
            for pack_id, entry in found.items()
            if pack_id in kept
        ]
        write_atomic(root / _INDEX, "".join(lines).encode())


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    with hold_lock(root / f"{_INDEX}.index.lock", _WAIT_S) as lock:
        if not lock:
            raise StateError("another csub is writing it")
        yield


# ---- Which packs the id of a Slurm job stands for; light, for completion -------------------------


@dataclass(frozen=True)
class JobIndex:
    """Which packs a Slurm job stands for (jobs/CLUSTER.4711.json).

    Attributes:
        submission: The csub call that they came from.
        indices: Their elements of the job array; 0 where the job is no array.
        parts: Where the call became several Slurm jobs, the name that each has in `submission`, and
            its elements; its own among them.
    """

    submission: str
    indices: tuple[int, ...]
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def list_parts(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The Slurm jobs that the id stands for: the name of each in the state, its elements."""
        return self.parts or ((self.submission, self.indices),)

    def list_packs(self) -> list[str]:
        """The packs' ids, in order; some may not be there, or not yet."""
        return [build_pack_id(name, index) for name, each in self.list_parts() for index in each]


def build_pack_id(submission: str, index: int) -> str:
    """Name of a pack's directory."""
    return f"{submission}.{index}"


# ----
# Packs whose summary, and what is learned from it, is due: a small file of each pack's name.
#
# A pack that is watched has one from its beginning. It goes away with the summary, so what a pack
# had no time for at its end is found by the next call of csub.

FOLDER = "summaries_due"
_ENDING = b"ending\n"


def note_due(root: Path, pack_id: str, *, is_ending: bool = False) -> None:
    """Note that a pack is to have a summary.

    Args:
        root: The state directory.
        pack_id: The pack.
        is_ending: All its members have ended, and its runner is at the summary.

    Raises:
        StateError: It cannot be written.
    """
    make_directory(root / FOLDER)
    write_atomic(root / FOLDER / pack_id, _ENDING if is_ending else b"")


def forget_due(root: Path, pack_id: str) -> None:
    """Note that a pack's summary is there, or cannot be had."""
    with contextlib.suppress(OSError):
        os.unlink(root / FOLDER / pack_id)


def is_due(root: Path, pack_id: str) -> bool:
    """Whether a pack is to have a summary, and has none yet."""
    return os.path.lexists(root / FOLDER / pack_id)


def list_due(root: Path) -> dict[str, bool]:
    """The packs that are to have one, and of each whether its runner is just at it."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(root / FOLDER):
            if ".tmp" not in name:
                with contextlib.suppress(OSError):
                    found[name] = read_bytes(root / FOLDER / name) == _ENDING
    return found
