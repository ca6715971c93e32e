"""Which member sits on which MIG instance: exact, for the members and layouts of one GPU; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_colloc.planning.mig.seats import Seat
from slurm_colloc.planning.priced_packs import Subject

UNKNOWN_BOUND = 1.0
"""A job of which nothing is known is taken to be bound by what a small instance has less of."""


@dataclass(frozen=True)
class Seating:
    """Members on seats.

    Attributes:
        places: Per member, the number of its seat.
        passed: By how much the bounds on slowdowns are passed, the worst of them; 0 where none is.
        makespan_s: Seconds until the last member ends.
        total_s: Seconds that all take, summed up.
    """

    places: tuple[int, ...]
    passed: float
    makespan_s: float
    total_s: float

    @property
    def rank(self) -> tuple[float, float, float]:
        """The less the better."""
        return self.passed, self.makespan_s, self.total_s


def compute_bound_share(subject: Subject) -> float:
    """How much of a job's time depends on the size of its instance, 0 to 1 (science: model M3)."""
    return UNKNOWN_BOUND if subject.load is None else max(subject.load.sm, subject.load.dram)


def compute_own_slowdown(subject: Subject, seat: Seat) -> float:
    """A job's slowdown by the size of its instance: `1 - B + B/e`."""
    share = compute_bound_share(subject)
    return 1.0 - share + share * seat.stretch


def fits(subject: Subject, seat: Seat) -> bool:
    """Whether an instance has the memory that a job needs; what is unknown counts as nothing."""
    return seat.room_mb is None or (subject.gpu_memory_mb or 0) <= seat.room_mb


def seat_members(subjects: Sequence[Subject], seats: Sequence[Seat]) -> Seating | None:
    """Put each member onto a seat of its own.

    The worst passing of a bound is made as small as it can be, then the end of the last member,
    then the sum. Seats that are alike are one kind, so at most 128 subsets are looked at.

    Args:
        subjects: The members, no more than there are seats.
        seats: The seats.

    Returns:
        The best seating; None where one cannot have a seat.
    """
    kinds: dict[tuple[int | None, float], list[int]] = {}
    for number, seat in enumerate(seats):
        kinds.setdefault((seat.room_mb, seat.stretch), []).append(number)
    samples = [seats[numbers[0]] for numbers in kinds.values()]
    counts = tuple(map(len, kinds.values()))
    costs = [[_cost(subject, seat) for seat in samples] for subject in subjects]
    worst = _search(costs, counts, lambda sofar, cost: max(sofar, cost[0]), _Cap())
    if worst is None:
        return None
    cap = _Cap(passed=worst.value)
    latest = _search(costs, counts, lambda sofar, cost: max(sofar, cost[1]), cap)
    assert latest is not None
    cap = _Cap(worst.value, latest.value)
    best = _search(costs, counts, lambda sofar, cost: sofar + cost[1], cap)
    assert best is not None
    left = [list(numbers) for numbers in kinds.values()]
    places = tuple(left[kind].pop(0) for kind in best.kinds)
    return Seating(places, worst.value, latest.value, best.value)


_Cost = tuple[float, float]


@dataclass(frozen=True)
class _Cap:
    """What no member may pass."""

    passed: float = math.inf
    taken_s: float = math.inf

    def allows(self, cost: _Cost) -> bool:
        return cost[0] <= self.passed and cost[1] <= self.taken_s


@dataclass(frozen=True)
class _Found:
    value: float
    kinds: tuple[int, ...]


def _cost(subject: Subject, seat: Seat) -> _Cost | None:
    """By how much a bound is passed, and how long it takes; None where it does not fit."""
    if not fits(subject, seat):
        return None
    slowdown = compute_own_slowdown(subject, seat)
    passed = 0.0
    if subject.load is not None:
        passed = max(0.0, slowdown * (1.0 + subject.margin) / subject.max_slowdown - 1.0)
    return passed, subject.run_s * slowdown


def _search(
    costs: Sequence[Sequence[_Cost | None]],
    counts: tuple[int, ...],
    add: Callable[[float, _Cost], float],
    cap: _Cap,
) -> _Found | None:
    """The best choice of a kind of seat for each member, member by member."""
    states: dict[tuple[int, ...], _Found] = {counts: _Found(0.0, ())}
    for row in costs:
        following: dict[tuple[int, ...], _Found] = {}
        for free, found in states.items():
            for kind, cost in enumerate(row):
                if cost is None or not free[kind] or not cap.allows(cost):
                    continue
                left = (*free[:kind], free[kind] - 1, *free[kind + 1 :])
                value = add(found.value, cost)
                known = following.get(left)
                if known is None or value < known.value:
                    following[left] = _Found(value, (*found.kinds, kind))
        states = following
    return min(states.values(), key=lambda found: found.value, default=None)
