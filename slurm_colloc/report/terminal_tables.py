"""Tables for a terminal; every text of a user comes out harmless.

Also: arguments of members as a table shows them: what differs stands out; a member's arguments in
one column: what differs within its submission stands out; lines of members for people: equal ones
as one, states coloured, and how many there are.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from slurm_colloc.model.job import format_parameters
from slurm_colloc.model.job_ids import join_numbers
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import MemberId, MemberState
from slurm_colloc.model.printable import escape_controls, pad_columns

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from slurm_colloc.report.summary_file import SummaryMember


UNKNOWN = "unknown"
_PIPED_WIDTH = 140
_NAME_LEAST = 6


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its head; a second line says how its numbers were obtained.
        is_number: Its cells stand to the right.
        gives_way: It is cut where the table is too wide.
    """

    title: str
    is_number: bool = True
    gives_way: bool = False


def choose_width() -> int:
    """How wide to print: the terminal's width; wide where it goes into a file or a program."""
    is_told = os.environ.get("COLUMNS", "").isdigit()
    if is_told or (sys.stdout is not None and sys.stdout.isatty()):
        import shutil

        return max(40, shutil.get_terminal_size().columns)
    return _PIPED_WIDTH


def is_styled(file: TextIO | None) -> bool:
    """Colours and bold heads are for a terminal alone, and not where NO_COLOR forbids them.

    Args:
        file: Where it is printed.

    See https://no-color.org: set to anything but an empty text, it forbids them.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return file is not None and file.isatty()


def build_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table of plain text: nothing in a cell is markup.

    Args:
        columns: The columns; of those that give way the widest is cut first.
        rows: The cells.
        width: Columns of the terminal.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[escape_controls(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(text) for text in (*column.title.split("\n"), *(row[i] for row in cells)))
        for i, column in enumerate(columns)
    ]
    _cut_widest(widths, [i for i, column in enumerate(columns) if column.gives_way], width)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column, own in zip(columns, widths, strict=True):
        table.add_column(
            Text(column.title),
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=own,
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _cut_widest(widths: list[int], giving: Sequence[int], width: int) -> None:
    """Cut the widest of the columns that give way until all fit, or each is as narrow as may be."""
    over = sum(widths) + len(widths) - width
    while over > 0 and giving:
        *_, second, widest = 0, *sorted(widths[i] for i in giving)
        if widest <= _NAME_LEAST:
            return
        cut = min(over, max(1, widest - max(second, _NAME_LEAST)))
        widths[next(i for i in giving if widths[i] == widest)] -= cut
        over -= cut


def build_lines(lines: Sequence[tuple[str, str]]) -> Table:
    """Labelled sentences; the sentences wrap next to their label."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        shown = escape_controls(f"{label}:") if label else ""
        grid.add_row(Text(shown), Text(escape_controls(text)))
    return grid


def render(parts: Sequence[RenderableType], width: int, *, styled: bool = False) -> str:
    """The text of some parts, without blanks at the end of lines."""
    from rich.console import Console

    console: Console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=styled,
        no_color=not styled,
        color_system="standard" if styled else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def format_figure(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, never in powers of ten; `unknown` for None."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    return f"{value:.0f}" if abs(value) >= 1 else f"{value:.{digits + 3}f}"


def format_slowdown(value: float | None) -> str:
    """`1.65`, `12.3`: how many times slower; `unknown` for None."""
    return UNKNOWN if value is None else f"{value:.2f}" if value < 10 else format_figure(value)


def format_part(text: str, known: int, count: int) -> str:
    """`1.00 (2 of 77)`: of how many a figure is, where that is some of them only."""
    return f"{text} ({known} of {count})" if 0 < known < count else text


def format_share(value: float | None) -> str:
    """`34 %`; `unknown` for None."""
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def format_mb_figure(value: float | None) -> str:
    """`812 MB`, `15.3 GB`; `unknown` for None."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f} MB" if value < 10_000 else f"{value / 1024:.1f} GB"


def format_to_end(seconds: float | None) -> str:
    """`4 min`, `2 h 05 min`: a round figure, as it is an estimate; empty for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_span(seconds: float | None) -> str:
    """`2 h 05 min`, `3 min 20 s`, `8.4 s`; `unknown` for None."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{format_span(-seconds)}"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


# ---- Arguments of members as a table shows them: what differs stands out; pure -------------------

_LONG = 24


def show_arguments(calls: Sequence[Sequence[str]]) -> list[str]:
    """Arguments as a shell takes them; long ones that all have in common are left out.

    Args:
        calls: The arguments of each member.

    Returns:
        A text for each. Where all begin alike with more than a few words, `...` stands for that.
    """
    calls = [tuple(call) for call in calls]
    kept = _count_common(calls) if len(set(calls)) > 1 else 0
    # An option stays with the value in which the calls differ.
    while kept and calls[0][kept - 1].startswith("-") and "=" not in calls[0][kept - 1]:
        kept -= 1
    if kept and len(shlex.join(calls[0][:kept])) <= _LONG:
        kept = 0
    return [f"{'... ' if kept else ''}{shlex.join(call[kept:])}".rstrip() for call in calls]


def tell_members_apart(members: Sequence[SummaryMember]) -> list[str]:
    """What a table shows of members of a summary next to their names.

    Args:
        members: Their parts of the summary.

    Returns:
        A text for each: its parameters, or its arguments where it has none.
    """
    if not any(member["parameters"] for member in members):
        return show_arguments([member["arguments"] or () for member in members])
    # One that joined a sweep, or was taken over, may have arguments alone.
    return [
        format_parameters(tuple(m["parameters"].items()))
        if m["parameters"]
        else shlex.join(m["arguments"] or ())
        for m in members
    ]


def _count_common(calls: Sequence[Sequence[str]]) -> int:
    """How many words all calls begin with."""
    count = 0
    for words in zip(*calls, strict=False):
        if len(set(words)) > 1:
            break
        count += 1
    return count


# ---- A member's arguments in one column: what differs within its submission stands out; pure -----

Job = tuple[str, str, tuple[str, ...]]
"""Submission, script and arguments of a member."""


def describe_arguments(jobs: Sequence[Job]) -> list[str]:
    """The arguments of each member, compared with others of its submission and script."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place, (submission, script, _) in enumerate(jobs):
        groups.setdefault((submission, script), []).append(place)
    texts = [""] * len(jobs)
    for places in groups.values():
        shown = show_arguments([jobs[place][2] for place in places])
        for place, text in zip(places, shown, strict=True):
            texts[place] = text
    return texts


# ----
# Lines of members for people: equal ones as one, states coloured, and how many there are; pure.

Row = tuple[str, ...]

_GREEN, _YELLOW, _RED, _GREY = "32", "33", "31", "90"
_COLOURS: Mapping[str, str] = {
    MemberState.RUNNING: _GREEN,
    MemberState.PENDING: _YELLOW,
    MemberState.REQUEUED: _YELLOW,
    MemberState.PREEMPTED: _YELLOW,
    MemberState.COMPLETED: _GREY,
    MemberState.CANCELLED: _GREY,
}
"""All other states are failures, and red."""


def group_rows(members: Sequence[MemberId], rows: Sequence[Row]) -> list[Row]:
    """Lines of one submission that differ in the member's number alone become one: `4711/2-40`.

    Args:
        members: The member of each row, whose first cell names it.
        rows: The rows.
    """
    grouped: list[tuple[str, list[int], Row]] = []
    for member, row in zip(members, rows, strict=True):
        if grouped and grouped[-1][0] == member.job and grouped[-1][2][1:] == row[1:]:
            grouped[-1][1].append(member.number)
        else:
            grouped.append((member.job, [member.number], row))
    return [
        row if len(numbers) == 1 else (f"{job}/{_join(numbers)}", *row[1:])
        for job, numbers, row in grouped
    ]


def _join(numbers: Iterable[int]) -> str:
    parts = join_numbers(tuple(sorted(numbers)))
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def count_states(states: Sequence[MemberState]) -> str:
    """`40 members: 8 RUNNING, 32 PENDING`; empty for fewer than two."""
    if len(states) < 2:
        return ""
    counts = Counter(str(state) for state in states)
    order = [state for state in map(str, MemberState) if state in counts]
    order += [state for state in counts if state not in order]
    return f"{len(states)} members: {', '.join(f'{counts[s]} {s}' for s in order)}"


def render_lines(
    header: Sequence[str], rows: Sequence[Row], total: str = "", *, styled: bool = False
) -> str:
    """Columns of equal width, the last one as long as it is; a line for each row.

    Args:
        header: Titles of the columns; that of states is STATE.
        rows: The cells.
        total: A line below them; empty for none.
        styled: The head is bold, and states have colours.
    """
    table = [header, *(tuple(map(escape_controls, row)) for row in rows)]
    padded = pad_columns(table)
    if styled and "STATE" in header:
        place = list(header).index("STATE")
        for row, cells in zip(table[1:], padded[1:], strict=True):
            cells[place] = _paint(cells[place], _COLOURS.get(row[place], _RED))
    lines = ["  ".join(cells).rstrip() for cells in padded]
    if styled:
        lines[0] = _paint(lines[0], "1")
    if total:
        lines += ["", escape_controls(total)]
    return "".join(f"{line}\n" for line in lines)


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"
