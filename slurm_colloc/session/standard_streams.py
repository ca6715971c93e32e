"""csub's standard streams, which may be closed, full, or read by a process that has gone."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from slurm_colloc.errors import UsageProblem

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_LINE_BYTES_MOST = 400


class OutputFailed(Exception):
    """Standard output took no more; no OSError, which others may take for one of their files.

    Args:
        reason: What the system says.
        lost: What could not be written.
        is_reader_gone: Its reader has ended, as in `csub queue | head`.
    """

    def __init__(self, reason: str, lost: bytes, *, is_reader_gone: bool) -> None:
        super().__init__(f"cannot write to standard output: {reason}")
        self.is_reader_gone = is_reader_gone
        self._lost = lost

    @property
    def lost_line(self) -> str:
        """What could not be written, where it is one short line, such as a job id; or empty."""
        text = self._lost.decode("utf-8", "replace").rstrip("\n")
        return text if text.isprintable() and len(self._lost) <= _LINE_BYTES_MOST else ""


def read_given_file(path: str, most: int) -> bytes:
    """What a file has that a user names; any pipe will do, and `-` is standard input.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        UsageProblem: It cannot be read, or is larger.
    """
    from slurm_colloc.model.printable import escape_controls

    if not path:
        raise UsageProblem("an empty name is not a file's")
    where = "standard input" if path == "-" else escape_controls(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib takes as long as csub itself
                data = file.read(most + 1)
    except OSError as error:
        raise UsageProblem(f"cannot read {where}: {error.strerror or error}") from error
    if len(data) > most:
        raise UsageProblem(f"{where}: it is larger than {most >> 20} MiB")
    return data


def has_reader() -> bool:
    """A person reads standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_one_stream() -> bool:
    """Standard output and standard error are one pipe or file, as in `$(csub train.sh 2>&1)`."""
    try:
        return os.path.samestat(os.fstat(1), os.fstat(2)) and not os.isatty(1)
    except OSError:
        return False


class _Input(io.FileIO):
    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        try:
            while (read := super().readinto(buffer)) is None:
                _wait(self, reads=True)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise UsageProblem(f"cannot read standard input: {reason}") from error
        return read


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return _write(self, data)
        except OSError as error:
            raise OutputFailed(
                os.strerror(error.errno or 0),
                bytes(data),
                is_reader_gone=isinstance(error, BrokenPipeError),
            ) from error


class _Messages(io.FileIO):
    """What cannot be told is the reader's loss alone: the command goes on."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return _write(self, data)
        except OSError:
            return memoryview(data).nbytes


def _write(file: io.FileIO, data: ReadableBuffer) -> int:
    # None where another program has made it non-blocking, and its reader is slow.
    while (written := io.FileIO.write(file, data)) is None:
        _wait(file, reads=False)
    return written


def _wait(file: io.FileIO, *, reads: bool) -> None:
    import select

    select.select([file] if reads else [], [] if reads else [file], [])


def guard_streams() -> None:
    """Put streams in place that say in a sentence what is wrong with them.

    A number that was closed is taken, so that no other file gets it: standard output and input by
    something that cannot be written or read, standard error by what swallows everything.
    """
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        _take_closed(number, flags)
    sys.stdin = _build_stream(io.BufferedReader(_Input(0, "r", closefd=False)), sys.stdin)
    sys.stdout = _build_stream(io.BufferedWriter(_Output(1, "w", closefd=False)), sys.stdout)
    sys.stderr = _build_stream(io.BufferedWriter(_Messages(2, "w", closefd=False)), sys.stderr)


def _take_closed(number: int, flags: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        taken = os.open(os.devnull, flags)
        os.dup2(taken, number)
        if taken != number:
            os.close(taken)
        # A program that csub starts must not find it closed either.
        os.set_inheritable(number, True)


def _build_stream(buffer: io.BufferedReader | io.BufferedWriter, given: TextIO | None) -> TextIO:
    """A stream like Python's own, which is None where that was closed."""
    errors = "strict" if given is None else given.errors or "strict"
    if errors == "strict" and buffer.writable():
        # A name that the terminal's encoding lacks is shown by its numbers.
        errors = "backslashreplace"
    if given is None:
        return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=True)
    # `python -u` writes everything at once; a line at once is as good.
    at_once = getattr(given, "line_buffering", False) or getattr(given, "write_through", False)
    return io.TextIOWrapper(buffer, encoding=given.encoding, errors=errors, line_buffering=at_once)


def drop_output() -> None:
    """Have what Python would still write to standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
