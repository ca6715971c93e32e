"""Samples as Parquet: a piece each ten seconds, many pieces made one, and all at the end.

The file of all samples grows while the pack runs, under a temporary name, because a day of many
members is not written within the moment that a job has left at its end. Only its last lines, which
make it readable, are missing until then. So the pieces stay until it is whole.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from slurm_colloc.store.report_files import (
    TABLES,
    Piece,
    choose_pieces,
    format_piece,
    parse_piece,
    report_directory,
)

if TYPE_CHECKING:
    from types import ModuleType

MERGE_AFTER = 60
"""How many pieces become one."""

MOST_ROWS = 200_000
"""What is kept in memory while nothing can be written: 50 minutes of 64 members."""

_GROUP_ROWS = 4096
_GROUPS_AT_ONCE = 2
_COMPRESSION_LEVEL = 3


def load_parquet() -> ModuleType:
    """Import pyarrow.parquet, one thread, without numpy where that is possible.

    numpy would cost 13 MB of memory and a tenth of a second, and is used for nothing here; pyarrow
    from 18 on does without.
    """
    hides = "numpy" not in sys.modules and "pyarrow" not in sys.modules
    if hides:
        sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        from pyarrow import parquet
    except ImportError:
        if not hides:
            raise
        del sys.modules["numpy"]
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
            del sys.modules[name]
        from pyarrow import parquet
    import pyarrow

    # The pools of its own keep what they were given once.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    loaded: ModuleType = parquet
    return loaded


class SampleFiles:
    """The files of one table.

    Args:
        pack: The pack's directory; its report directory exists.
        table: `gpu` or `members`.
        parquet: From `load_parquet`.
    """

    def __init__(self, pack: str, table: str, parquet: Any) -> None:
        import pyarrow

        self._arrow: Any = pyarrow
        self._parquet = parquet
        self._directory = report_directory(pack)
        self._table = table
        self._columns = TABLES[table]
        self._schema = pyarrow.schema(
            [(name, getattr(pyarrow, kind)()) for name, kind in self._columns]
        )
        self._rows: dict[str, list[Any]] = {name: [] for name, _ in self._columns}
        self.dropped = 0
        """Rows that were given up because nothing could be written for long."""
        self._tidy()
        kept, _ = choose_pieces(os.listdir(self._directory), table)
        self._last = max((piece.last for piece in kept), default=0)
        # What is there already has to go into the whole file.
        self._backlog = deque(
            piece for piece in kept if piece.first != piece.last or not piece.last
        )
        self._whole: Any = None
        self._reading: tuple[Piece, Any, int] | None = None

    def _tidy(self) -> None:
        """Finish what a monitor was killed at: files in other files, and half-written ones."""
        names = os.listdir(self._directory)
        kept, spare = choose_pieces(names, self._table)
        for name in [piece.name for piece in spare] + [
            name for name in names if name.startswith(f"{self._table}.") and ".tmp" in name
        ]:
            self._remove(name)
        if len(kept) == 1 and kept[0].first == 0 and kept[0].last > 0:
            os.replace(self._path(kept[0].name), self._path(format_piece(self._table, 0, 0)))

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row for the next piece; what it lacks is null."""
        for name, values in self._rows.items():
            values.append(row.get(name))

    def write_piece(self) -> None:
        """Write what was kept; on failure it is kept for the next time.

        Raises:
            OSError: It could not be written.
        """
        count = len(self._rows["at"])
        if not count:
            return
        if count > MOST_ROWS:
            self.dropped += count - MOST_ROWS
            for values in self._rows.values():
                del values[: count - MOST_ROWS]
        number = self._last + 1
        self._write(format_piece(self._table, number, number), [self._build()])
        self._last = number
        for values in self._rows.values():
            values.clear()
        if number % MERGE_AFTER == 0:
            self._merge()
        self._grow(_GROUPS_AT_ONCE)

    def _build(self) -> Any:
        arrow = self._arrow
        arrays = [
            arrow.array(self._rows[name], type=self._schema.field(name).type)
            for name, _ in self._columns
        ]
        return arrow.table(arrays, schema=self._schema)

    def _open(self, path: str) -> Any:
        strings = [name for name, kind in self._columns if kind == "string"]
        return self._parquet.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=[*strings, "at", "first_step_at"],
            write_statistics=False,
            store_schema=False,
        )

    def _write(self, name: str, tables: Iterable[Any]) -> None:
        temporary = f"{self._path(name)}.tmp"
        try:
            with self._open(temporary) as writer:
                for table in tables:
                    writer.write_table(table)
            _settle(temporary)
            os.replace(temporary, self._path(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _merge(self) -> None:
        """Make one of the single pieces that there are."""
        kept, _ = choose_pieces(os.listdir(self._directory), self._table)
        singles = [piece for piece in kept if piece.first == piece.last and piece.last]
        if len(singles) > 1:
            name = format_piece(self._table, singles[0].first, singles[-1].last)
            self._write(name, self._join(singles))
            for piece in singles:
                self._remove(piece.name)
            singles = [Piece(singles[0].first, singles[-1].last, name)]
        self._backlog.extend(singles)

    def _join(self, pieces: Iterable[Piece]) -> Iterator[Any]:
        """The rows of pieces, a limited number at a time: all of them would be much memory."""
        parts: list[Any] = []
        for piece in pieces:
            with self._parquet.ParquetFile(self._path(piece.name)) as file:
                parts.append(file.read(use_threads=False))
            if sum(part.num_rows for part in parts) >= _GROUP_ROWS:
                yield self._arrow.concat_tables(parts)
                parts = []
        if parts:
            yield self._arrow.concat_tables(parts)

    def _grow(self, most_groups: int | None) -> None:
        """Copy what is not yet there into the file of all samples, a part at a time."""
        copied = 0
        while most_groups is None or copied < most_groups:
            if self._reading is None:
                if not self._backlog:
                    return
                piece = self._backlog.popleft()
                self._reading = piece, self._parquet.ParquetFile(self._path(piece.name)), 0
            piece, file, group = self._reading
            if group < file.num_row_groups:
                if self._whole is None:
                    self._whole = self._open(self._path(f"{self._table}.whole.tmp"))
                self._whole.write_table(file.read_row_group(group, use_threads=False))
                copied += 1
                self._reading = piece, file, group + 1
            else:
                file.close()
                self._reading = None

    def close(self) -> None:
        """Write the last piece, and make one file of all.

        Raises:
            OSError: It could not be written; the pieces are still there.
        """
        self.write_piece()
        kept, _ = choose_pieces(os.listdir(self._directory), self._table)
        if not kept or (len(kept) == 1 and kept[0].last == 0):
            return
        self._merge()
        self._grow(None)
        if self._whole is None:
            return
        self._whole.close()
        self._whole = None
        temporary = self._path(f"{self._table}.whole.tmp")
        _settle(temporary)
        # First under a name that stands for all pieces, so that at every moment each row is in
        # exactly one of the files that count.
        everything = format_piece(self._table, 0, max(self._last, 1))
        os.replace(temporary, self._path(everything))
        for name in os.listdir(self._directory):
            found = parse_piece(name)
            if found is not None and found[0] == self._table and name != everything:
                self._remove(name)
        os.replace(self._path(everything), self._path(format_piece(self._table, 0, 0)))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))


def _settle(path: str) -> None:
    """Have the disk hold a file: what is in memory only is lost with the node."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
