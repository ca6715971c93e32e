"""Why a job of known load runs alone, with both numbers of what is in the way."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.planning.limits.broken_limits import Weighing, describe_goal
from slurm_colloc.planning.limits.hard_limits import Broken

_KINDS_MOST = 100
"""Kinds of lone jobs for which partners are looked through; each takes some prices of pairs."""
_PARTNERS_MOST = 6

_MANY = "no pack that was looked at keeps every limit and bound and saves GPU time"
_NOBODY = "no known job was submitted with it"


class Declining:
    """Says of jobs why they run alone.

    Args:
        weighing: The jobs of known load that may share with each other.
        names: Their names.
        labels: What they are called where several have the same name.
        parts: The packs that were made of them.
    """

    def __init__(
        self,
        weighing: Weighing,
        names: Sequence[str],
        labels: Sequence[str],
        parts: Sequence[Sequence[int]],
    ) -> None:
        self._weighing = weighing
        self._names = names
        self._labels = labels
        self._parts = parts
        kinds: dict[int, int] = {}
        self._twins: dict[int, int] = {}
        for position, kind in enumerate(weighing.pricing.kind_of):
            if kind in kinds:
                self._twins.setdefault(kind, position)
            else:
                kinds[kind] = position
        # The lightest disturb least.
        self._partners = sorted(kinds.values(), key=self._weigh_load)[:_PARTNERS_MOST]
        self._part_of = {
            position: number for number, members in enumerate(parts) for position in members
        }
        self._explained: dict[int, str] = {}

    def _weigh_load(self, position: int) -> float:
        load = self._weighing.subjects[position].load
        return load.engine + load.sm + load.dram if load else float("inf")

    def explain(self, position: int) -> str:
        """Why a job runs alone, in words."""
        kind = self._weighing.pricing.kind_of[position]
        if kind not in self._explained:
            known = len(self._explained) < _KINDS_MOST
            self._explained[kind] = self._compute(position) if known else _MANY
        return self._explained[kind]

    def _compute(self, position: int) -> str:
        weighing = self._weighing
        if len(weighing.subjects) < 2:
            return _NOBODY
        kind = weighing.pricing.kind_of[position]
        partners = [p for p in self._partners if weighing.pricing.kind_of[p] != kind]
        if kind in self._twins:
            first = weighing.pricing.kind_of.index(kind)
            partners.append(first if first != position else self._twins[kind])
        best: tuple[tuple[int, float], int, tuple[Broken, ...]] | None = None
        for partner in partners:
            names = {position: "it", partner: "that one"}
            broken = weighing.find_broken((partner, position), names)
            if not broken:
                return self._explain_left_over(position, partner)
            badness = _compute_badness(broken)
            if best is None or badness < best[0]:
                best = (badness, partner, broken)
        assert best is not None
        return self._describe(position, best[1], best[2])

    def _call(self, position: int, partner: int) -> str:
        """What a partner is called; one like the job itself is said of all that are alike."""
        kind_of = self._weighing.pricing.kind_of
        alike = kind_of[position] == kind_of[partner]
        return (self._names if alike else self._labels)[partner]

    def _describe(self, position: int, partner: int, broken: Sequence[Broken]) -> str:
        texts = [b.text for b in broken if b.constraint == "slowdown"]
        texts += [b.text for b in broken if b.constraint != "slowdown"]
        return f"with its best partner {self._call(position, partner)} " + "; ".join(texts)

    def _explain_left_over(self, position: int, partner: int) -> str:
        """It could share with one, but who could share with it saves more with others."""
        weighing, name = self._weighing, self._call(position, partner)
        members = self._parts[self._part_of[partner]]
        together = (*members, position)
        if len(members) == 1 or position in members:
            # Local search does not always find it.
            return f"it could share with {name}; with so many jobs not every division is tried"
        names = {i: self._labels[i] for i in members} | {position: "it"}
        broken = weighing.find_broken(together, names)
        if broken:
            texts = "; ".join(b.text for b in broken)
            return f"{name} saves more with others, and together with them {texts}"
        priced, joined = weighing.pricing.price(members), weighing.pricing.price(together)
        alone = weighing.pricing.price((position,))
        assert priced is not None
        assert joined is not None
        assert alone is not None
        what, unit = describe_goal(weighing.goal, alone)
        return (
            f"in the pack of {name} it would add {joined.cost - priced.cost:.0f} {unit} of {what}, "
            f"alone it takes {alone.cost:.0f} {unit}"
        )


def _compute_badness(broken: Sequence[Broken]) -> tuple[int, float]:
    """How much is in the way: how many limits, and how far the worst is passed, relatively."""
    ratios = [b.have / b.limit for b in broken if b.have is not None and b.limit]
    return len(broken), max(ratios, default=float("inf"))
