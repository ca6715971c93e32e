"""In which order the packs of several rules run; pure.

Hosts are fast and slow for minutes: rules that run one after the other cannot be compared. Each
rule's packs are spread over all of the time instead, in the order that the rule gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu.mix import Figures
from benchmarks.gpu.mix_packs import Prepared

_PACK_S, _MEMBER_S = 1.2, 0.6
"""Seconds for starting and ending the processes of a pack, and for each of them, in the mean."""


@dataclass(frozen=True)
class RuleRun:
    """A rule that is to be measured once.

    Attributes:
        rule: Its name.
        round: How often it has been measured in this call, this time included.
        told: What is predicted of it.
        packs: Its packs.
        planning_s: How long planning took.
    """

    rule: str
    round: int
    told: Figures
    packs: tuple[Prepared, ...]
    planning_s: float

    @property
    def name(self) -> str:
        """What it is called in words."""
        return f"{self.rule} {self.round}"

    @property
    def expected_s(self) -> float:
        """How long all of it takes, the processes included."""
        return sum(map(estimate_s, self.packs))


def estimate_s(pack: Prepared) -> float:
    """How long a pack takes, its processes included."""
    return pack.predicted_s + _PACK_S + _MEMBER_S * len(pack.members)


def choose_runs(runs: Sequence[RuleRun], left_s: float) -> list[RuleRun]:
    """The first of the rules that there is time for together."""
    chosen: list[RuleRun] = []
    for run in runs:
        left_s -= run.expected_s
        if left_s < 0.0:
            break
        chosen.append(run)
    return chosen


def order_packs(runs: Sequence[RuleRun]) -> list[tuple[int, int]]:
    """Whose pack is when: numbers of the rule and of its pack.

    A pack's turn is when as much of its rule is done, in time, as of the others.
    """
    turns: list[tuple[float, int, int]] = []
    for place, run in enumerate(runs):
        done_s = 0.0
        for number, pack in enumerate(run.packs):
            takes_s = estimate_s(pack)
            turns.append(((done_s + takes_s / 2) / run.expected_s, place, number))
            done_s += takes_s
    return [(place, number) for _, place, number in sorted(turns)]
