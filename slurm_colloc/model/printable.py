"""Texts of users and of foreign files, made harmless for a terminal; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any


def escape_controls(text: str, keep: str = "") -> str:
    """A text without control characters, line breaks and marks that turn its direction.

    What cannot be printed is shown by its number, as Python writes it. A name of a user's goes
    through here before it is put into a line: later, a line break in it cannot be told from others.

    Args:
        text: The text.
        keep: Characters that stay as they are.
    """
    if text.isprintable() or (keep and text.translate(dict.fromkeys(map(ord, keep))).isprintable()):
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def pad_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[list[str]]:
    """Cells as wide as the widest of their column.

    Args:
        rows: The cells. The last one of a row is as long as it is, and widens nothing.
        right: Columns whose cells stand to the right, as numbers do.
    """
    widths: Counter[int] = Counter()
    for row in rows:
        for place, cell in enumerate(row):
            if place < len(row) - 1 or place in right:
                widths[place] = max(widths[place], len(cell))
    return [
        [
            cell.rjust(widths[place]) if place in right else cell.ljust(widths[place])
            for place, cell in enumerate(row)
        ]
        for row in rows
    ]


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """The lines of a plain table, see `pad_columns`."""
    return ["  ".join(cells).rstrip() for cells in pad_columns(rows, right)]


def render_csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, each ended by a line feed."""
    import csv
    import io

    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def cut(text: str, most: int = 60) -> str:
    """A text that is not too long to be repeated in a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
