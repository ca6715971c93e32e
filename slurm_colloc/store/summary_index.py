"""`summaries`: a line for each pack that has ended, so that sums need not open every summary.

A line is a JSON object with the pack's id; of several of one pack the last counts. It may lack
packs whose line could not be written and name some that have gone: the folder of packs says which
there are, and those that it lacks are read once and written into it. A damaged line is a missing
one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import read_bytes, write_atomic
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.index_lines import append_lines

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
