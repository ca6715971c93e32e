"""Whether a training has changed for good: another batch size, frozen layers. Pure.

What it is like is seen in looks of some seconds of steps. Its own pauses (an evaluation, a
checkpoint) hardly count in them, and what its neighbours' pauses do to its rate is no change of
its own. A larger batch may change the rate, or the samples of a step alone: either counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.metrics.rates import Interval, compute_percentile
from slurm_colloc.model.late_definitions import dataclass

CHANGE = 0.25
"""What differs by so much is another rate, or another batch size."""
LOOK_S = 10.0
LOOK_STEPS = 16
"""Of a slow training a look is longer: until so many steps were made."""
LOOKS = 3
"""So many looks, one after the other, are for good."""
USUAL_LEAST, USUAL_MOST = 2, 6
"""Looks that tell what was usual before."""

PAUSE_S = 2.0
PAUSE_STEPS = 3.0
"""A pause counts for so long at most, or for so many steps: an evaluation changes no look much."""

_ACTIVE = 0.9
"""Where fewer of the neighbours make steps than this part of the usual number, one that is slower
may be so by what they do instead."""


@dataclass(frozen=True)
class Look:
    """Some seconds of a training's steps.

    Attributes:
        steps_per_s: Its rate, with little of its pauses.
        samples_per_step: Its batch size; None where unknown.
        active: How many members on the GPU made steps meanwhile, itself included, on average.
    """

    steps_per_s: float
    samples_per_step: float | None = None
    active: float = 1.0


def has_new_batch(looks: Sequence[Look]) -> bool:
    """Whether the newest looks agree on another batch size than that of those before."""
    sizes = [look.samples_per_step for look in looks]
    known = [size for size in sizes if size]
    if len(known) < len(sizes) or len(known) <= LOOKS:
        return False
    usual, newest = _find_middle(known[:-LOOKS]), known[-LOOKS:]
    return _agree(newest) and _find_side([size / usual for size in newest]) != 0


def has_new_rate(looks: Sequence[Look]) -> bool:
    """Whether the newest looks agree on another rate than that of those before.

    It is another one whether members share the GPU in turns or do not feel each other: so it does
    not follow from pauses of the neighbours.
    """
    if len(looks) < LOOKS + USUAL_LEAST:
        return False
    earlier, newest = looks[:-LOOKS], looks[-LOOKS:]
    usual = _find_middle([look.steps_per_s for look in earlier])
    active = _find_middle([look.active for look in earlier])
    side = _find_side([look.steps_per_s / usual for look in newest])
    in_turns = _find_side([look.steps_per_s * look.active / (usual * active) for look in newest])
    if side == 0 or side != in_turns or not _agree([look.steps_per_s for look in newest]):
        return False
    # In one of them its neighbours did what they usually do, and it was as slow.
    return side > 0 or any(look.active >= _ACTIVE * active for look in newest)


def _find_side(ratios: Sequence[float]) -> int:
    """1 where all are larger than usual, -1 where all are smaller, 0 otherwise."""
    if all(ratio > 1.0 + CHANGE for ratio in ratios):
        return 1
    return -1 if all(ratio < 1.0 - CHANGE for ratio in ratios) else 0


def _agree(values: Sequence[float]) -> bool:
    return max(values) <= (1.0 + CHANGE) * min(values)


def _find_middle(values: Sequence[float]) -> float:
    return compute_percentile(sorted(values), 0.5)


def add_look(looks: Sequence[Look], look: Look) -> list[Look]:
    """With one more look: the first ones say what is usual, the last ones what is new."""
    usual, newest = list(looks[:USUAL_MOST]), list(looks[USUAL_MOST:])
    return [*usual, *newest, look] if len(newest) < LOOKS else [*usual, *newest[1:], look]


@dataclass
class LookBuilder:
    """Adds up steps until they are a look.

    Attributes:
        steps: So far.
        length_s: The time that they took, with little of each pause.
        samples: Likewise; None where unknown.
        step_s: What a step took lately; None before the first.
        active: Members that made steps, times seconds.
        active_s: These seconds.
    """

    steps: float = 0.0
    length_s: float = 0.0
    samples: float | None = 0.0
    step_s: float | None = None
    active: float = 0.0
    active_s: float = 0.0

    def add(self, steps: float, length_s: float, samples: float | None) -> Look | None:
        """Add steps that were made; the look, where they complete one.

        Args:
            steps: At least one.
            length_s: From the last one before them to their last one.
            samples: That they took; None where unknown.
        """
        if self.step_s is not None:
            expected_s = steps * self.step_s
            # No pause is left out suddenly, only because it is a little longer than another.
            length_s = min(length_s, expected_s + max(PAUSE_S, PAUSE_STEPS * self.step_s))
        self.steps += steps
        self.length_s += length_s
        self.samples = None if samples is None or self.samples is None else self.samples + samples
        self.step_s = self.length_s / self.steps
        if self.length_s < LOOK_S or self.steps < LOOK_STEPS:
            return None
        look = Look(
            self.steps / self.length_s,
            self.samples / self.steps if self.samples else None,
            self.active / self.active_s if self.active_s else 1.0,
        )
        self.steps = self.length_s = self.samples = self.active = self.active_s = 0.0
        return look

    def note_active(self, active: float, length_s: float) -> None:
        """Note how many members made steps for some seconds."""
        self.active += active * length_s
        self.active_s += length_s


def find_longest_phase(intervals: Sequence[Interval]) -> list[Interval]:
    """The longest part of a run in which it did not change for good.

    Args:
        intervals: Of a member that was alone, without pauses, in order.
    """
    phases: list[list[Interval]] = [[]]
    looks: list[Look] = []
    begins: list[int] = []
    builder, begin = LookBuilder(), 0
    for interval in intervals:
        phase = phases[-1]
        phase.append(interval)
        look = builder.add(interval.steps, interval.length_s, interval.samples)
        if look is None:
            continue
        looks = add_look(looks, look)
        begins = [*begins, begin][-LOOKS:]
        begin = len(phase)
        if has_new_rate(looks) or has_new_batch(looks):
            first = begins[0]
            phases[-1], rest = phase[:first], phase[first:]
            phases.append(rest)
            looks, begins, begin = looks[-LOOKS:], [], len(rest)
    return max(phases, key=lambda phase: sum(interval.length_s for interval in phase))
