"""`csub compare`: two submissions side by side, and the jobs that both have."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.report.sums.compare_submissions import JobPair, Mean, Side
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    build_lines,
    build_table,
    format_figure,
    format_part,
    format_span,
    render,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("span_s", "from first start to last end", format_span),
    ("gpu_hours", "GPU hours held", format_figure),
    ("energy_kwh", "energy of the GPUs, kWh", format_figure),
)
_MEANS = (
    ("steps_per_s", "mean steps/s per member"),
    ("slowdown", "mean slowdown compared with alone"),
)


def render_comparison(
    first: Side,
    second: Side,
    pairs: Sequence[JobPair],
    left: tuple[int, int],
    width: int,
    *,
    styled: bool = False,
) -> str:
    """Two submissions side by side.

    Args:
        first: The one, which counts as 1.
        second: The other.
        pairs: Jobs that both have.
        left: How many members of each have no like in the other.
        width: Columns of the terminal.
        styled: Heads may be bold.
    """
    columns = [
        Column("", is_number=False, gives_way=True),
        Column(first.name),
        Column(second.name),
        Column("RATIO"),
    ]
    rows = [
        ("members that ran", str(len(first.members)), str(len(second.members)), ""),
        ("of these failed", str(first.failed), str(second.failed), ""),
        ("shared the GPU by", ", ".join(first.modes), ", ".join(second.modes), ""),
    ]
    if first.retries or second.retries:
        rows.insert(1, ("earlier tries of these", str(first.retries), str(second.retries), ""))
    for name, title in _MEANS:
        one, other = getattr(first, name), getattr(second, name)
        # Means over other members than those of the first would be compared with it.
        is_fair = one.is_whole and other.is_whole
        ratio = _format_ratio(one.value, other.value) if is_fair else UNKNOWN
        rows.append((title, _format_mean(one), _format_mean(other), ratio))
    for name, title, write in _FIGURES:
        one, other = getattr(first, name), getattr(second, name)
        rows.append((title, write(one), write(other), _format_ratio(one, other)))
    parts: list[RenderableType] = [build_table(columns, rows, width), ""]
    if pairs:
        parts += [_build_pairs(first, second, pairs, width), ""]
    parts.append(build_lines(_tell(first, second, pairs, left)))
    return render(parts, width, styled=styled)


def _build_pairs(first: Side, second: Side, pairs: Sequence[JobPair], width: int) -> Any:
    columns = [
        Column(first.name, is_number=False),
        Column(second.name, is_number=False),
        Column("ARGUMENTS", is_number=False, gives_way=True),
        Column("STEPS/S"),
        Column("STEPS/S"),
        Column("RATIO"),
        Column("STATE", is_number=False),
    ]
    rows = [
        (
            str(pair.first["id"]),
            str(pair.second["id"]),
            shlex.join(pair.second.get("arguments") or ()),
            format_figure(pair.first["rate"]["steps_per_s"]),
            format_figure(pair.second["rate"]["steps_per_s"]),
            UNKNOWN if pair.rate_ratio is None else f"{pair.rate_ratio:.2f}",
            str(pair.second["state"]),
        )
        for pair in pairs
    ]
    return build_table(columns, rows, width)


def _format_mean(mean: Mean) -> str:
    return format_part(format_figure(mean.value), mean.known, mean.count)


def _format_ratio(first: float | None, second: float | None) -> str:
    return UNKNOWN if not first or second is None else f"{second / first:.2f}"


def _tell(
    first: Side, second: Side, pairs: Sequence[JobPair], left: tuple[int, int]
) -> list[tuple[str, str]]:
    lines = []
    ratios = [pair.rate_ratio for pair in pairs if pair.rate_ratio is not None]
    if ratios:
        mean = sum(ratios) / len(ratios)
        same = "the same job" if len(pairs) == 1 else f"the {len(pairs)} jobs that both have"
        if len(ratios) < len(pairs):
            same = f"{len(ratios)} of {same}, the others with an unknown rate"
        lines.append(("Rate", f"{same}: {mean:.2f} times as fast in {second.name} on average"))
    if not pairs:
        lines.append(("Note", "they share no job with the same script and arguments"))
    for side, count in zip((first, second), left, strict=True):
        if pairs and count:
            members = "1 member" if count == 1 else f"{count} members"
            lines.append(("Note", f"{members} of {side.name} without a counterpart in the other"))
    return lines


def _build_means(side: Side) -> dict[str, float | int | None]:
    found: dict[str, float | int | None] = {}
    for name, _ in _MEANS:
        mean: Mean = getattr(side, name)
        found |= {name: mean.value, f"{name}_of_members": mean.known}
    return found


def build_comparison_json(
    first: Side, second: Side, pairs: Sequence[JobPair], left: tuple[int, int]
) -> dict[str, Any]:
    """The comparison as JSON; docs/json.md has the fields."""
    return {
        "schema": 1,
        "sides": [
            {
                "id": side.name,
                "members": len(side.members),
                "failed": side.failed,
                "modes": list(side.modes),
                "retries": side.retries,
                **{name: getattr(side, name) for name, _, _ in _FIGURES},
                **_build_means(side),
                "without_like": count,
            }
            for side, count in zip((first, second), left, strict=True)
        ],
        "jobs": [
            {
                "first": pair.first["id"],
                "second": pair.second["id"],
                "script": pair.second.get("script"),
                "arguments": pair.second.get("arguments"),
                "first_steps_per_s": pair.first["rate"]["steps_per_s"],
                "second_steps_per_s": pair.second["rate"]["steps_per_s"],
                "rate_ratio": pair.rate_ratio,
            }
            for pair in pairs
        ],
    }
