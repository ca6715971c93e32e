"""Lines of members for people: equal ones as one, states coloured, and how many there are; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_colloc.model.job_ids import join_numbers
from slurm_colloc.model.member import MemberId, MemberState
from slurm_colloc.model.printable import escape_controls

Row = tuple[str, ...]

_GREEN, _YELLOW, _RED, _GREY = "32", "33", "31", "90"
_COLOURS = {
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
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    widths[-1] = 0
    place = list(header).index("STATE") if "STATE" in header else -1
    lines = []
    for number, row in enumerate(table):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if not styled:
            lines.append("  ".join(cells).rstrip())
            continue
        if number == 0:
            lines.append(_paint("  ".join(cells).rstrip(), "1"))
            continue
        if place >= 0:
            cells[place] = _paint(cells[place], _choose_colour(row[place]))
        lines.append("  ".join(cells).rstrip())
    if total:
        lines += ["", escape_controls(total)]
    return "".join(f"{line}\n" for line in lines)


def _choose_colour(state: str) -> str:
    for known, colour in _COLOURS.items():
        if state == known.value:
            return colour
    return _RED


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"
