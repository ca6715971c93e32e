"""`profiles/families`: which usage profiles are of one family, without opening all of them.

A line for each profile, `FAMILY SIGNATURE.GPUMODEL.json`, only ever appended to. It may lack
profiles that were copied there and name some that have gone: the folder says which there are,
and those that it lacks are read once and written into it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import explain_os_errors, read_bytes, write_atomic
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.index_lines import append_lines

FOLDER = "profiles"
FILE_NAME = re.compile(r"([0-9a-f]{32})\.([a-z0-9-]+)\.json")

_INDEX = "families"
_LINE_BYTES = 33
"""Of a line before the name."""


class ProfileNames:
    """The usage profiles of a user, by the names of their files, each thing looked at once.

    Args:
        root: The state directory.

    Attributes:
        problem: Why the folder cannot be read, once it was looked at; None where nothing is wrong.
    """

    def __init__(self, root: Path) -> None:
        self.problem: StateError | None = None
        self._root = root
        self._is_complete = False

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all files; none where there is no folder, or it cannot be read."""
        folder = self._root / FOLDER
        names: list[str] = []
        try:
            with explain_os_errors("read", folder):
                names = os.listdir(folder)
        except StateError as problem:
            # A folder that cannot be read is not an empty one.
            if not isinstance(problem.__cause__, FileNotFoundError):
                self.problem = problem
        # What else lies there, with a name that is no text perhaps, is not csub's.
        return frozenset(filter(FILE_NAME.fullmatch, names))

    @cached_property
    def _index(self) -> bytes:
        return _read_index(self._root)

    @cached_property
    def _by_signature(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for name in sorted(self.names):
            found.setdefault(name[:32], []).append(name)
        return found

    def find_signature(self, signature: str) -> Sequence[str]:
        """The profiles of a signature, on every GPU model."""
        return self._by_signature.get(signature, ())

    def find_family(self, family: str, read_family: Callable[[str], str | None]) -> list[str]:
        """The profiles of a family.

        Args:
            family: The family.
            read_family: Opens a profile by its file's name and tells its family; asked for those
                that the index lacks.
        """
        if not self._is_complete:
            self._complete(read_family)
        return sorted(self.names.intersection(_find_lines(self._index, f"{family} ")))

    def _complete(self, read_family: Callable[[str], str | None]) -> None:
        """Read what the index lacks, and write it into the index."""
        self._is_complete = True
        missing = self.names - _list_indexed(self._index)
        fresh = {
            name: found for name in sorted(missing) if (found := read_family(name)) is not None
        }
        if fresh:
            whole = self._index[: self._index.rfind(b"\n") + 1]
            self._index = whole + _build_lines(fresh)
            _append(self._root, fresh, wait_s=0.0)


def _read_index(root: Path) -> bytes:
    try:
        return read_bytes(root / FOLDER / _INDEX)
    except OSError:
        return b""


def _find_lines(text: bytes, words: str) -> list[str]:
    """The names on the lines with some words; once each."""
    mark = words.encode()
    found: dict[str, None] = {}
    at = text.find(mark)
    while at >= 0:
        begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        # The last line may be half there while another process writes it.
        if end >= 0:
            found[text[begin + _LINE_BYTES : end].decode("ascii", "replace")] = None
        at = text.find(mark, at + 1)
    return list(found)


def _list_indexed(text: bytes) -> frozenset[str]:
    return frozenset(
        line[_LINE_BYTES:] for line in text.decode("ascii", "replace").split("\n")[:-1]
    )


def add_to_index(root: Path, families: Mapping[str, str]) -> None:
    """Note profiles that have just come; the caller holds the folder's lock.

    What cannot be written now is found when it is looked for.

    Args:
        root: The state directory.
        families: The family of each, by the name of its file.
    """
    with contextlib.suppress(OSError):
        _write_lines(root, families)


def keep_in_index(root: Path, names: Iterable[str]) -> None:
    """Leave only these profiles in the index; the caller holds the folder's lock.

    Raises:
        StateError: It cannot be written.
    """
    kept = set(names)
    lines = _read_index(root).decode("ascii", "replace").split("\n")[:-1]
    text = "".join(f"{line}\n" for line in lines if line[_LINE_BYTES:] in kept)
    write_atomic(root / FOLDER / _INDEX, text.encode("ascii", "replace"))


def _append(root: Path, families: Mapping[str, str], *, wait_s: float) -> None:
    """Add lines, if no other process writes just now."""
    # Somebody else's index stays as it is.
    with (
        contextlib.suppress(OSError, StateError),
        hold_lock(root / FOLDER / "lock", wait_s) as lock,
    ):
        if lock:
            _write_lines(root, families)


def _build_lines(families: Mapping[str, str]) -> bytes:
    return "".join(f"{family} {name}\n" for name, family in families.items()).encode()


def _write_lines(root: Path, families: Mapping[str, str]) -> None:
    if families:
        append_lines(root / FOLDER / _INDEX, _build_lines(families))
