"""The text of a table that a user wrote, wherever it was written: bytes to lines."""

from __future__ import annotations

import codecs
import os
import sys

from slurm_colloc.errors import UsageProblem

TABLE_MOST_BYTES = 64 * 2**20

_OTHER_CODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16"),
)  # fmt: skip


def read_table_text(shown: str, directory: str) -> str:
    """The text of a file, `-` for standard input; lines end with a line feed alone.

    Raises:
        UsageProblem: It cannot be read, is too large, or is no text in UTF-8.
    """
    if shown == "-":
        data = sys.stdin.buffer.read(TABLE_MOST_BYTES + 1)
    else:
        try:
            with open(os.path.join(directory, shown), "rb") as file:
                data = file.read(TABLE_MOST_BYTES + 1)
        except OSError as error:
            raise UsageProblem(
                f"cannot read the table {shown}: {os.strerror(error.errno or 0)}",
                hint="options stand before it" if shown.startswith("-") else "",
            ) from error
    return decode_table(data, shown)


def decode_table(data: bytes, shown: str) -> str:
    """The text in bytes of a table.

    Args:
        data: The bytes.
        shown: What the file is called, for messages.

    Raises:
        UsageProblem: They are too many, or no text in UTF-8.
    """
    if len(data) > TABLE_MOST_BYTES:
        raise UsageProblem(f"{shown} is larger than {TABLE_MOST_BYTES // 2**20} MB")
    for mark, coding in _OTHER_CODINGS:
        if data.startswith(mark):
            raise UsageProblem(f"{shown} is written in {coding}", hint="save it as UTF-8")
    if b"\0" in data:
        raise UsageProblem(f"{shown} is not a table: it holds NUL bytes")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageProblem(
            f"{shown}:{line}: the byte 0x{data[error.start]:02x} is not UTF-8",
            hint="save it as UTF-8",
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
