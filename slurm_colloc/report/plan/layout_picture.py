"""A MIG layout as a small picture: instances by their memory slices, and who sits on each."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.planning.explain.explanation import SeatExplanation

_SLICE_WIDTH = 8
_FREE = "free"


def draw_layout(seats: Sequence[SeatExplanation], *, tells_who: bool = True) -> list[str]:
    """The lines of a picture; none without a layout.

    A box is as wide as the memory that its instance takes of the GPU; compute instances that share
    a GPU instance share a box.

    Args:
        seats: The seats of one GPU.
        tells_who: With the members; it stands for several packs where not.
    """
    if not seats:
        return []
    boxes: dict[int, list[SeatExplanation]] = {}
    for seat in sorted(seats, key=lambda seat: seat.start):
        boxes.setdefault(seat.start, []).append(seat)
    slices = seats[0].gpu_slices
    columns: list[tuple[int, list[str]]] = []
    at = 0
    for start, group in sorted(boxes.items()):
        if start > at:
            columns.append((start - at, [_FREE]))
        columns.append((group[0].size, _tell_box(group, tells_who=tells_who)))
        at = start + group[0].size
    if at < slices:
        columns.append((slices - at, [_FREE]))
    height = max(len(texts) for _, texts in columns)
    border = "+" + "+".join("-" * _width(size) for size, _ in columns) + "+"
    lines = [border]
    for row in range(height):
        cells = (
            (texts[row] if row < len(texts) else "")[: _width(size)].center(_width(size))
            for size, texts in columns
        )
        lines.append("|" + "|".join(cells) + "|")
    return [*lines, border]


def _width(size: int) -> int:
    """Columns of a box: its slices, and the borders between them."""
    return size * (_SLICE_WIDTH + 1) - 1


def _tell_box(group: Sequence[SeatExplanation], *, tells_who: bool) -> list[str]:
    words = " ".join(seat.word for seat in group)
    first = group[0]
    size = [] if first.memory_mb is None else [f"{first.memory_mb / 1024:.0f}G"]
    who = ", ".join(_tell_members(seat) for seat in group)
    lines = [words, *size, f"{sum(seat.sms for seat in group)} SMs"]
    return [*lines, who] if tells_who else lines


def _tell_members(seat: SeatExplanation) -> str:
    """Who has an instance; of many the first two, and how many more."""
    if seat.number is None:
        return "-"
    told = [f"/{number}" for number in (seat.number, *seat.others)]
    more = f" +{len(told) - 2}" if len(told) > 3 else ""
    return " ".join(told[:2] if more else told) + more
