"""What csub chose and its rivals, measured in turn by processes that run side by side; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slurm_colloc.calibration.design import Group

from .grid_design import Ask, Sharing, estimate_s, make_group

AGAIN = "again"
"""Groups in which what csub chose and its rivals are measured in turn are called so."""
RIVALS = 3
"""With how many others of the grid it is compared."""

_CYCLES = 2
# What is tried where there is little time: a second look is worth more than a third rival.
_SPARING = ((RIVALS, _CYCLES), (2, _CYCLES), (2, 1), (1, 1))


@dataclass(frozen=True)
class Bundle:
    """Ways of sharing whose processes run side by side, so that they can be measured in turn."""

    mode: str
    sharings: tuple[Sharing, ...]


def build_bundles(
    ask: Ask, compared: Iterable[tuple[Sharing, Sequence[Sharing]]]
) -> tuple[Bundle, ...]:
    """Put each choice and its rivals together, as far as they fit.

    Processes that a cell has no use for are idle. So the same processes serve several ways of
    sharing in turn, without a start in between that the host would take another mood at. A rival
    in another mode gets a group of its own, and so does its choice if there is none yet.

    Args:
        ask: What is measured.
        compared: What csub chose, and its rivals.
    """
    bundles: list[list[Sharing]] = []
    for choice, rivals in compared:
        for rival in rivals or (choice,):
            if rival.mode == choice.mode:
                _put(ask, bundles, (choice, rival))
            else:
                _put(ask, bundles, (choice,))
                _put(ask, bundles, (rival,))
    return tuple(Bundle(bundle[0].mode, tuple(bundle)) for bundle in bundles)


def _put(ask: Ask, bundles: list[list[Sharing]], together: Sequence[Sharing]) -> None:
    for bundle in bundles:
        if bundle[0].mode == together[0].mode and ask.fits([*bundle, *together]):
            bundle += [sharing for sharing in dict.fromkeys(together) if sharing not in bundle]
            return
    bundles.append(list(dict.fromkeys(together)))


def list_rounds(bundle: Bundle, cycles: int, number: int) -> Iterator[Sharing]:
    """The cells of one opening of a bundle: each way in turn, beginning with another every time."""
    ways = bundle.sharings
    for cycle in range(cycles):
        first = (number + cycle) % len(ways)
        yield from (*ways[first:], *ways[:first])


@dataclass(frozen=True)
class Turns:
    """How much is measured in turn.

    Attributes:
        rivals: How many rivals of each choice.
        cycles: How often each after one start of the processes.
    """

    rivals: int = RIVALS
    cycles: int = _CYCLES


def choose_turns(
    ask: Ask, compared: Sequence[tuple[Sharing, Sequence[Sharing]]], seconds: float, pace: float
) -> Turns | None:
    """As much as fits into the time once; None where nothing does."""
    for rivals, cycles in _SPARING:
        turns = Turns(rivals, cycles)
        if estimate_turns_s(build_turns(ask, compared, turns), pace) <= seconds:
            return turns
    return None


def build_turns(
    ask: Ask,
    compared: Sequence[tuple[Sharing, Sequence[Sharing]]],
    turns: Turns,
    number: int = 0,
) -> list[Group]:
    """The groups of one round.

    Args:
        ask: What is measured.
        compared: What csub chose, and its rivals.
        turns: How much.
        number: Of the round; each begins with another way of sharing.
    """
    chosen = [(choice, rivals[: turns.rivals]) for choice, rivals in compared]
    return [
        make_group(ask, AGAIN, list(list_rounds(bundle, turns.cycles, number)), ask.times.again_s)
        for bundle in build_bundles(ask, chosen)
    ]


def estimate_turns_s(groups: Iterable[Group], pace: float) -> float:
    """How long a round takes."""
    return sum(estimate_s(group, pace) for group in groups)
