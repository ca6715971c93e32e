"""One submission against another: the same jobs before and after, or alone and shared; pure.

Also: `csub compare`: two submissions side by side, and the jobs that both have.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.quantities import format_count
from slurm_colloc.report.headline import list_last_tries
from slurm_colloc.report.summary_file import Summary, SummaryMember, choose_members
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


@dataclass(frozen=True)
class Mean:
    """A mean over members, of some of which the figure may not be known.

    Attributes:
        value: The mean of what is known; None where nothing is.
        known: Of how many members it is.
        count: How many there are.
    """

    value: float | None
    known: int
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Mean:
        """The mean of some figures."""
        found = list(values)
        known = [value for value in found if value is not None]
        return cls(sum(known) / len(known) if known else None, len(known), len(found))

    @property
    def is_whole(self) -> bool:
        """Nothing is missing in it."""
        return self.known == self.count


@dataclass(frozen=True)
class Side:
    """One submission, or some of its members.

    Attributes:
        name: As it was named.
        members: Its jobs that have run: of one that was tried again, the last try.
        summaries: Its packs.
        retries: How many earlier tries there were of them.
    """

    name: str
    members: tuple[SummaryMember, ...]
    summaries: tuple[Summary, ...]
    retries: int = 0

    @property
    def span_s(self) -> float | None:
        """From the first start to the last end; None where nothing has run."""
        windows = [summary["window"] for summary in self.summaries if summary["window"]]
        if not windows:
            return None
        return max(w["to"] for w in windows) - min(w["from"] for w in windows)

    @property
    def gpu_hours(self) -> float | None:
        """For which its packs held GPUs; None where nothing has run."""
        held = [s["window"]["to"] - s["window"]["from"] for s in self.summaries if s["window"]]
        return sum(held) / 3600 if held else None

    @property
    def energy_kwh(self) -> float | None:
        """Of its packs' GPUs; None where that of one is not known."""
        known = [s["energy_j"] for s in self.summaries if s["energy_j"] is not None]
        is_whole = len(known) == len(self.summaries) > 0
        return sum(known) / 3.6e6 if is_whole else None

    @property
    def steps_per_s(self) -> Mean:
        """The rate of its members."""
        return Mean.of(member["rate"]["steps_per_s"] for member in self.members)

    @property
    def slowdown(self) -> Mean:
        """The slowdown of its members."""
        return Mean.of(member["slowdown"] for member in self.members)

    @property
    def failed(self) -> int:
        """Members that have ended and are not COMPLETED."""
        return sum(
            member["ended_at"] is not None and member["state"] != "COMPLETED"
            for member in self.members
        )

    @property
    def modes(self) -> tuple[str, ...]:
        """How its members shared the GPU."""
        return tuple(sorted({member["mode"] for member in self.members if member["mode"]}))


def build_side(name: str, found: Sequence[tuple[Summary, frozenset[int] | None]]) -> Side:
    """A submission of the summaries of its packs, each with the members that are meant."""
    members = [m for one in found for m in choose_members(*one) if m["started_at"] is not None]
    last = list_last_tries(members)
    return Side(
        name,
        tuple(last),
        tuple(summary for summary, _ in found),
        len(members) - len(last),
    )


JobPair = tuple[SummaryMember, SummaryMember]
"""A job that both submissions have: the member of the first, and of the second."""


def compute_rate_ratio(pair: JobPair) -> float | None:
    """A job's rate in the second over that in the first; None where one is not known."""
    before, after = (member["rate"]["steps_per_s"] for member in pair)
    return after / before if before and after is not None else None


def pair_jobs(first: Side, second: Side) -> tuple[list[JobPair], int, int]:
    """Jobs of the same script and arguments; a script alone is enough where both have one job.

    Of a job that comes several times in both, the first is paired with the first, and so on.

    Returns:
        The pairs, and how many members of the first and of the second have no like.
    """
    if len(first.members) == len(second.members) == 1 and all(
        _name(a) == _name(b) for a, b in zip(first.members, second.members, strict=True)
    ):
        return [(first.members[0], second.members[0])], 0, 0
    waiting: dict[tuple[str, tuple[str, ...]], list[SummaryMember]] = {}
    for member in second.members:
        waiting.setdefault(_identify(member), []).append(member)
    pairs = []
    for member in first.members:
        alike = waiting.get(_identify(member))
        if alike:
            pairs.append((member, alike.pop(0)))
    return pairs, len(first.members) - len(pairs), len(second.members) - len(pairs)


def _name(member: SummaryMember) -> str:
    return posixpath.basename(member["script"] or member["name"])


def _identify(member: SummaryMember) -> tuple[str, tuple[str, ...]]:
    return _name(member), tuple(member["arguments"] or ())


# ---- `csub compare`: two submissions side by side, and the jobs that both have -------------------

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
            before["id"],
            after["id"],
            shlex.join(after["arguments"] or ()),
            format_figure(before["rate"]["steps_per_s"]),
            format_figure(after["rate"]["steps_per_s"]),
            _format_ratio(before["rate"]["steps_per_s"], after["rate"]["steps_per_s"]),
            after["state"],
        )
        for before, after in pairs
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
    ratios = [ratio for ratio in map(compute_rate_ratio, pairs) if ratio is not None]
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
            members = format_count(count, "member")
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
                "first": before["id"],
                "second": after["id"],
                "script": after["script"],
                "arguments": after["arguments"],
                "first_steps_per_s": before["rate"]["steps_per_s"],
                "second_steps_per_s": after["rate"]["steps_per_s"],
                "rate_ratio": compute_rate_ratio((before, after)),
            }
            for before, after in pairs
        ],
    }
