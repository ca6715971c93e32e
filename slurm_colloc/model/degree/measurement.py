"""Measuring a pack by pausing its members: which windows, and what follows from them; pure.

`measure_degree` is a generator: it yields the next window, in which some members run while the
others are paused, and is sent what that window showed. Windows that are compared follow each other
in turn (A B A B), so that a host that is fast and slow by turns deceives neither of them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from slurm_colloc.model.degree.measured_curve import CurvePoint
from slurm_colloc.model.degree.measurement_windows import (
    WINDOW_S,
    DegreeMeasurement,
    MeasuredRate,
    MeasurementCutShort,
    Measuring,
    PausableMember,
    Window,
    WindowResult,
)

STEPS_LEAST = 8
"""Steps of the slowest member that a window is to hold; that makes it longer."""
WINDOW_MOST_S = 8.0

LINES_LEAST = 4
"""Lines that a window is to hold of a member that prints its steps, the one that it waits for first
among them."""
LINE_READ_S = 1.0
"""So much later than a line is printed its monitor has told of it."""
LINES_MOST_S = 30.0
"""Windows of members that print are no longer: the others stand still meanwhile."""

ROUNDS_LEAST, ROUNDS_MOST = 2, 4
"""How often windows that are compared follow each other; more than the least where noise asks."""

GAIN_LEAST = 0.02
"""A larger degree must bring so much more than a smaller one: else all would only be slower."""

GOOD_PART = 0.35
"""Of the progress that each has: as long as one more brings so much, it pays."""

FLAT = 1.1
"""Twice as many that bring no more than this say that the GPU was full before."""

KINDS_MOST = 4
"""Of more kinds each has one window alone, and not one in each round."""

SEARCHES_MOST = 5
"""Degrees that are tried besides all and half of the members."""


def describe_seldom_lines(members: Sequence[PausableMember]) -> str:
    """Why members cannot be measured by what they print; empty where they can."""
    printing = [member.line_s for member in members if member.line_s is not None]
    if len(printing) < len(members) or min(printing) <= _LINE_MOST_S:
        return ""
    return (
        f"they print their steps every {min(printing):.0f} s, and that can be measured up to every "
        f"{_LINE_MOST_S:.0f} s"
    )


_LINE_MOST_S = (LINES_MOST_S - LINE_READ_S) / (LINES_LEAST + 1)


def measure_degree(members: Sequence[PausableMember]) -> Measuring:
    """Find out how many of these members are to run at once.

    Args:
        members: All that run, in the order in which they keep running; those that may not be
            paused come first.
    """
    measuring = _DegreeSearch(members)
    return measuring.run()


@dataclass(frozen=True)
class _Sample:
    """One window of a degree.

    Attributes:
        rates: Of those that ran and could be read.
        pace: By how much the host was faster than in the first windows.
    """

    rates: Mapping[int, float]
    pace: float = 1.0


class _DegreeSearch:
    def __init__(self, members: Sequence[PausableMember]) -> None:
        self._members = members
        self._most = len(members)
        self._least = max(1, sum(not member.may_pause for member in members))
        self._alone: dict[str, list[float]] = {}
        self._representatives = self._choose_representatives()
        self._samples: dict[int, list[_Sample]] = {}
        self._spent: list[tuple[int, float]] = []
        self._window_s = self._choose_window_s()

    def run(self) -> Measuring:
        """See measure_degree."""
        half = max(self._least, -(-self._most // 2))
        # One alone makes the progress of one alone.
        first = sorted({self._most, half} - {1}, reverse=True)
        try:
            yield from self._look_first(first)
            if not any(self._compute_stps(degree) for degree in self._samples):
                return DegreeMeasurement(
                    self._most, problem="no steps were seen while others paused"
                )
            yield from self._search()
        except MeasurementCutShort:
            if not all(self._compute_stps(degree) for degree in first):
                raise
        return self._conclude()

    def _look_first(self, first: Sequence[int]) -> Generator[Window, WindowResult, None]:
        """One alone, all and half of them, as often as noise asks."""
        for round_number in range(ROUNDS_MOST):
            if round_number == 0 or len(self._representatives) <= KINDS_MOST:
                for kind, member in self._representatives.items():
                    result = yield Window(frozenset((member.number,)), self._window_s)
                    self._note_alone(kind, member.number, result)
            for degree in first:
                self._note(degree, (yield self._open(degree)))
            if round_number + 1 >= ROUNDS_LEAST and not self._is_noisy(first):
                break

    def _search(self) -> Generator[Window, WindowResult, None]:
        """Degrees between those that were tried, as long as one could be better than the best."""
        for _ in range(SEARCHES_MOST):
            best = self._choose()
            candidate = self._find_candidate(best)
            if candidate is None:
                break
            yield from self._compare(best, candidate)
            if candidate not in self._samples:
                # Nothing was seen of it.
                break

    # -- windows ------------------------------------------------------------------------------

    def _choose_representatives(self) -> dict[str, PausableMember]:
        """One member of each kind whose rate alone is to be measured."""
        known = {m.kind for m in self._members if m.rate_alone is not None and m.kind}
        found: dict[str, PausableMember] = {}
        is_free = sum(not member.may_pause for member in self._members) == 0
        for member in self._members:
            kind = member.kind or f"#{member.number}"
            # With one that may not be paused none is ever alone.
            if member.rate_alone is None and kind not in known and is_free:
                found.setdefault(kind, member)
        return found

    def _choose_window_s(self) -> float:
        lengths = [WINDOW_S]
        for member in self._members:
            if member.line_s is not None:
                whole_s = (LINES_LEAST + 1) * member.line_s + LINE_READ_S
                lengths.append(min(LINES_MOST_S, whole_s))
            elif member.steps_per_s:
                lengths.append(min(WINDOW_MOST_S, STEPS_LEAST / member.steps_per_s))
        return max(lengths)

    def _open(self, degree: int) -> Window:
        running = frozenset(member.number for member in self._members[:degree])
        return Window(running, self._window_s)

    def _compare(self, best: int, candidate: int) -> Generator[Window, WindowResult, None]:
        """Measure one more degree in turn with the best so far, and on its scale."""
        reference = 1.0 if best == 1 else self._compute_mean_stp(best)
        for _ in range(ROUNDS_LEAST):
            now = self._read(best, (yield self._open(best)))
            tried = self._read(candidate, (yield self._open(candidate)))
            stp = None if now is None else self._compute_stp(best, now)
            if reference is None and now is not None and stp:
                self._samples.setdefault(best, []).append(now)
                reference = stp
            if reference and stp and tried is not None:
                # The host may be faster or slower now than it was in the first windows.
                pace = stp / reference
                self._samples.setdefault(candidate, []).append(_Sample(tried.rates, pace))

    # -- what they show -----------------------------------------------------------------------

    def _note_alone(self, kind: str, number: int, result: WindowResult) -> None:
        rate = result.rates.get(number)
        self._spent.append((1, result.length_s))
        if rate:
            self._alone.setdefault(kind, []).append(rate)

    def _note(self, degree: int, result: WindowResult) -> None:
        sample = self._read(degree, result)
        if sample is not None:
            self._samples.setdefault(degree, []).append(sample)

    def _read(self, degree: int, result: WindowResult) -> _Sample | None:
        self._spent.append((degree, result.length_s))
        rates = {n: rate for n, rate in result.rates.items() if rate is not None}
        return _Sample(rates) if any(rates.values()) else None

    def _find_alone(self, member: PausableMember) -> float | None:
        if member.rate_alone is not None:
            return member.rate_alone
        measured = self._alone.get(member.kind or f"#{member.number}")
        if measured:
            return fmean(measured)
        like = [m.rate_alone for m in self._members if m.kind == member.kind and m.rate_alone]
        return like[0] if like and member.kind else None

    def _compute_shares(self, degree: int, sample: _Sample) -> dict[int, float]:
        """By how much of its rate alone each member advanced that can be judged."""
        shares = {}
        for member in self._members[:degree]:
            rate, alone = sample.rates.get(member.number), self._find_alone(member)
            if rate is not None and alone:
                shares[member.number] = rate / alone / sample.pace
        return shares

    def _compute_stp(self, degree: int, sample: _Sample) -> float | None:
        shares = self._compute_shares(degree, sample)
        # One that cannot be judged counts as the mean of the others.
        return sum(shares.values()) * degree / len(shares) if shares else None

    def _compute_stps(self, degree: int) -> list[float]:
        found = (self._compute_stp(degree, s) for s in self._samples.get(degree, ()))
        return [stp for stp in found if stp]

    def _compute_mean_stp(self, degree: int) -> float | None:
        stps = self._compute_stps(degree)
        return fmean(stps) if stps else None

    def _is_noisy(self, degrees: Sequence[int]) -> bool:
        """Whether noise could decide between these, or about a bound."""
        found = [self._compute_stps(degree) for degree in degrees]
        if not all(found):
            return True
        means, errors = [fmean(stps) for stps in found], [_compute_error(stps) for stps in found]
        for degree, mean, error in zip(degrees, means, errors, strict=True):
            worst = self._find_worst_member(degree)
            if worst is not None and abs(worst[1] / worst[2] - 1.0) < (error or 0.0) / mean:
                return True
        if len(means) < 2:
            return False
        noise = math.hypot(errors[0] or 0.0, errors[1] or 0.0)
        return abs(means[0] - means[1]) < 2.0 * noise

    def _find_worst_member(self, degree: int) -> tuple[int, float, float] | None:
        """Who uses most of its bound: number, slowdown, bound. Alike ones go by their mean."""
        shares = self._compute_mean_shares(degree)
        by_kind: dict[str, list[float]] = {}
        for member in self._members:
            if member.kind and member.number in shares:
                by_kind.setdefault(member.kind, []).append(shares[member.number])
        worst: tuple[int, float, float] | None = None
        for member in self._members[:degree]:
            if member.bound is None or member.number not in shares:
                continue
            alike = by_kind.get(member.kind) if member.kind else None
            share = fmean(alike) if alike else shares[member.number]
            slowdown = 1.0 / share if share > 0 else math.inf
            if worst is None or slowdown / member.bound > worst[1] / worst[2]:
                worst = member.number, slowdown, member.bound
        return worst

    def _compute_mean_shares(self, degree: int) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for sample in self._samples.get(degree, ()):
            for number, share in self._compute_shares(degree, sample).items():
                found.setdefault(number, []).append(share)
        return {number: fmean(shares) for number, shares in found.items()}

    # -- choosing -----------------------------------------------------------------------------

    def _list_measured(self) -> dict[int, float]:
        """The sum of progress by degree; that of one alone is 1, whether measured or not."""
        found = {1: 1.0} if self._least == 1 else {}
        for degree in self._samples:
            if (stp := self._compute_mean_stp(degree)) is not None:
                found[degree] = stp
        return found

    def _keeps_bounds(self, degree: int) -> bool:
        worst = self._find_worst_member(degree) if degree > self._least else None
        return worst is None or worst[1] <= worst[2]

    def _choose(self) -> int:
        measured = self._list_measured()
        allowed = {d: stp for d, stp in measured.items() if self._keeps_bounds(d)}
        if not allowed:
            return self._least
        most = max(allowed.values())
        return min(d for d, stp in allowed.items() if stp >= (1.0 - GAIN_LEAST) * most)

    def _find_candidate(self, best: int) -> int | None:
        """A degree near the best that has not been tried, and could be better."""
        measured = self._list_measured()
        above = min((d for d in measured if d > best), default=None)
        below = max((d for d in measured if d < best), default=None)
        step = max(1, best // 6)
        if below is not None and best - below > step:
            is_flat = above is not None and measured[above] < FLAT * measured[best]
            as_many = below * measured[best] / measured[below]
            gain = (measured[best] - measured[below]) / (best - below)
            # With the progress of each that fewer have, so many would do; it never grows with more.
            # Where the last ones still bring a good part of what each has, fewer are not tried.
            if as_many < best - step and (is_flat or gain < GOOD_PART * measured[best] / best):
                return -(-(best + below) // 2)
        return (best + above) // 2 if above is not None and above - best > step else None

    def _conclude(self) -> DegreeMeasurement:
        measured = self._list_measured()
        best = self._choose()
        full = measured.get(best) or 1.0
        spent = sum(
            length_s * max(0.0, 1.0 - measured.get(degree, 0.0) / full)
            for degree, length_s in self._spent
        )
        rates = []
        for kind, member in self._representatives.items():
            if values := self._alone.get(kind):
                error, mean = _compute_error(values), fmean(values)
                part = None if error is None else error / mean
                rates.append(MeasuredRate(member.number, mean, part, self._window_s * len(values)))
        curve = tuple(self._build_point(degree, stp) for degree, stp in sorted(measured.items()))
        return DegreeMeasurement(best, curve, tuple(rates), spent)

    def _build_point(self, degree: int, stp: float) -> CurvePoint:
        number, slowdown, bound = self._find_worst_member(degree) or (None, None, None)
        stps = self._compute_stps(degree)
        return CurvePoint(
            degree,
            stp,
            _compute_error(stps),
            slowdown,
            number,
            bound,
            self._window_s * len(stps),
            tuple(member.number for member in self._members[:degree]),
        )


def _compute_error(values: Sequence[float]) -> float | None:
    """The standard error of a mean; None for a single value."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
