"""What csub chose and its rivals, measured in turn by processes that run side by side; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.gpu.grid_design import Ask, Sharing, estimate_s, make_group
from slurm_colloc_lab.calibration.cells import Group

AGAIN = "again"
"""Groups in which what csub chose and its rivals are measured in turn are called so."""
RIVALS = 3
"""With how many others of the grid it is compared."""

Compared = Sequence[tuple[Sharing, Sequence[Sharing]]]
"""What csub chose under each bound, each with its rivals."""


class Turns(NamedTuple):
    """How much is measured in turn.

    Attributes:
        rivals: How many rivals of each choice.
        cycles: How often each after one start of the processes.
    """

    rivals: int
    cycles: int


# What is tried where there is little time: a second look is worth more than a third rival.
_SPARING = (Turns(RIVALS, 2), Turns(2, 2), Turns(2, 1), Turns(1, 1))


def build_bundles(ask: Ask, compared: Compared) -> list[list[Sharing]]:
    """Put each choice and its rivals together, as far as they fit.

    Processes that a cell has no use for are idle. So the same processes serve several ways of
    sharing in turn, without a start in between that the host would take another mood at. A rival
    in another mode gets a group of its own, and so does its choice if there is none yet.
    """
    bundles: list[list[Sharing]] = []
    for choice, rivals in compared:
        for rival in rivals or (choice,):
            if rival.mode == choice.mode:
                _put(ask, bundles, (choice, rival))
            else:
                _put(ask, bundles, (choice,))
                _put(ask, bundles, (rival,))
    return bundles


def _put(ask: Ask, bundles: list[list[Sharing]], together: Sequence[Sharing]) -> None:
    for bundle in bundles:
        if bundle[0].mode == together[0].mode and ask.fits([*bundle, *together]):
            bundle += [sharing for sharing in dict.fromkeys(together) if sharing not in bundle]
            return
    bundles.append(list(dict.fromkeys(together)))


def choose_turns(ask: Ask, compared: Compared, seconds: float, pace: float) -> Turns | None:
    """As much as fits into the time once; None where nothing does."""
    for turns in _SPARING:
        if estimate_turns_s(build_turns(ask, compared, turns), pace) <= seconds:
            return turns
    return None


def build_turns(ask: Ask, compared: Compared, turns: Turns, number: int = 0) -> list[Group]:
    """The groups of one round: each way of sharing in turn, beginning with another every time.

    Args:
        ask: What is measured.
        compared: What is compared.
        turns: How much of it.
        number: Of the round.
    """
    groups = []
    for ways in build_bundles(ask, [(own, rivals[: turns.rivals]) for own, rivals in compared]):
        cells = []
        for cycle in range(turns.cycles):
            first = (number + cycle) % len(ways)
            cells += [*ways[first:], *ways[:first]]
        groups.append(make_group(ask, AGAIN, cells, ask.times.again_s))
    return groups


def estimate_turns_s(groups: Iterable[Group], pace: float) -> float:
    """How long a round takes."""
    return sum(estimate_s(group, pace) for group in groups)
