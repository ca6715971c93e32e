"""One submission against another: the same jobs before and after, or alone and shared; pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_colloc.report.member_remarks import list_last_tries
from slurm_colloc.report.summary.summary_shape import Summary

_Member = Mapping[str, Any]


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
    members: tuple[_Member, ...]
    summaries: tuple[Summary, ...]
    retries: int = 0

    @property
    def span_s(self) -> float | None:
        """From the first start to the last end; None where nothing has run."""
        windows = [summary["window"] for summary in self.summaries if summary["window"]]
        if not windows:
            return None
        return float(max(w["to"] for w in windows) - min(w["from"] for w in windows))

    @property
    def gpu_hours(self) -> float | None:
        """For which its packs held GPUs; None where nothing has run."""
        held = [s["window"]["to"] - s["window"]["from"] for s in self.summaries if s["window"]]
        return sum(held) / 3600 if held else None

    @property
    def energy_kwh(self) -> float | None:
        """Of its packs' GPUs; None where that of one is not known."""
        found = [summary["energy_j"] for summary in self.summaries]
        return None if not found or None in found else sum(found) / 3.6e6

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
        return tuple(sorted({str(member["mode"]) for member in self.members if member["mode"]}))


def build_side(name: str, found: Sequence[tuple[Summary, frozenset[int] | None]]) -> Side:
    """A submission of the summaries of its packs, each with the members that are meant."""
    members = [
        member
        for summary, chosen in found
        for member in summary["members"]
        if (chosen is None or member["member"] in chosen) and member["started_at"] is not None
    ]
    last = list_last_tries(members)
    return Side(
        name,
        tuple(last),
        tuple(summary for summary, _ in found),
        len(members) - len(last),
    )


@dataclass(frozen=True)
class JobPair:
    """A job that both submissions have.

    Attributes:
        first: The member of the first.
        second: The member of the second.
    """

    first: _Member
    second: _Member

    @property
    def rate_ratio(self) -> float | None:
        """Its rate in the second over that in the first; None where one is not known."""
        before, after = (m["rate"]["steps_per_s"] for m in (self.first, self.second))
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
        return [JobPair(first.members[0], second.members[0])], 0, 0
    waiting: dict[tuple[str, tuple[str, ...]], list[_Member]] = {}
    for member in second.members:
        waiting.setdefault(_identify(member), []).append(member)
    pairs = []
    for member in first.members:
        alike = waiting.get(_identify(member))
        if alike:
            pairs.append(JobPair(member, alike.pop(0)))
    return pairs, len(first.members) - len(pairs), len(second.members) - len(pairs)


def _name(member: _Member) -> str:
    return posixpath.basename(member["script"] or str(member["name"]))


def _identify(member: _Member) -> tuple[str, tuple[str, ...]]:
    return _name(member), tuple(member["arguments"] or ())
