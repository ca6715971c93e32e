"""Measuring a pack by pausing its members: which windows, and what follows from them; pure.

Also: what a measurement by pausing is given, asks for and answers; when a running pack is measured,
again or for the first time; how many members run at once where few are left over: more, so that the
last end sooner; `csub probe`: how long a job runs alone until its rate is known.

`measure_degree` is a generator: it yields the next window, in which some members run while the
others are paused, and is sent what that window showed. Windows that are compared follow each other
in turn (A B A B), so that a host that is fast and slow by turns deceives neither of them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Generator, Mapping, Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.measured_curve import CurvePoint

# ---- What a measurement by pausing is given, asks for and answers; values only -------------------

WINDOW_S = 1.0
SETTLE_S = 0.3
"""From the moment in which members are paused or go on until a window begins: kernels that were
launched before are done by then (measured on an H100, docs/decisions/0029)."""


@dataclass(frozen=True)
class PausableMember:
    """A running member, as far as it matters here.

    Attributes:
        number: Its number.
        kind: Equal for members that are alike; empty where that is not known.
        bound: The slowdown that is accepted for it; None for any.
        rate_alone: Its rate alone in steps per second, where that is known and need not be
            measured; None where it is to be measured.
        steps_per_s: Its rate as it was last seen; None where unknown.
        may_pause: It may be paused; else it runs in every window.
        line_s: Seconds between the lines in which it prints its steps; None where each step is
            counted.
    """

    number: int
    kind: str = ""
    bound: float | None = None
    rate_alone: float | None = None
    steps_per_s: float | None = None
    may_pause: bool = True
    line_s: float | None = None


@dataclass(frozen=True)
class Window:
    """A time in which certain members run, and all others are paused.

    Attributes:
        members: Numbers of those that run.
        length_s: How long it lasts, without the time in which things settle.
    """

    members: frozenset[int]
    length_s: float = WINDOW_S


@dataclass(frozen=True)
class WindowResult:
    """What a window showed.

    Attributes:
        rates: Steps per second of those that ran; None where they could not be read.
        length_s: How long it lasted, the time in which things settled included.
    """

    rates: Mapping[int, float | None]
    length_s: float


@dataclass(frozen=True)
class MeasuredRate:
    """A rate alone that was measured.

    Attributes:
        member: Whose.
        steps_per_s: The mean.
        error: Its standard error, as a part of it; None for a single window.
        window_s: Seconds measured.
    """

    member: int
    steps_per_s: float
    error: float | None
    window_s: float


@dataclass(frozen=True)
class DegreeMeasurement:
    """What was measured.

    Attributes:
        degree: How many of the members, in their order, are to run.
        curve: The points measured, by degree.
        rates_alone: Those measured now.
        cost_s: What it has cost: seconds of the progress that all make at the best degree.
        problem: Why nothing could be decided; empty where that is not so.
    """

    degree: int
    curve: tuple[CurvePoint, ...] = ()
    rates_alone: tuple[MeasuredRate, ...] = ()
    cost_s: float = 0.0
    problem: str = ""


class MeasurementCutShort(Exception):
    """No further window comes: what was seen has to do. Raised again where that is too little."""


Measuring = Generator[Window, WindowResult, DegreeMeasurement]


# ---- Measuring a pack by pausing its members: which windows, and what follows from them; pure ----

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
"""Of more kinds only those have a second window alone whose slowdown decides."""

SEARCH_STEP = 1.0 / 6.0
"""Of the best degree: nearer ones are not tried."""
SEARCHES, SEARCHES_MOST = 2, 5
"""Degrees tried besides all and half of the members; the most where each breaks a bound."""


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
        degrees, kinds = list(first), list(self._representatives)
        for round_number in range(ROUNDS_MOST):
            for kind in kinds:
                yield from self._look_alone(kind)
            for degree in degrees:
                self._note(degree, (yield self._open(degree)))
            if round_number + 1 >= ROUNDS_LEAST:
                degrees = self._list_undecided(first)
                if not degrees:
                    break
            if len(self._representatives) > KINDS_MOST:
                deciding = {self._find_deciding_kind(degree) for degree in degrees}
                kinds = [kind for kind in self._representatives if kind in deciding]

    def _search(self) -> Generator[Window, WindowResult, None]:
        """Degrees between those that were tried, as long as one could be better than the best."""
        for tried in range(SEARCHES_MOST):
            best = self._choose()
            candidate = self._find_candidate(best)
            if candidate is None or (tried >= SEARCHES and best > self._least):
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
            kind = _name_kind(member)
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
        """Measure one more degree, in turn with what decides about it.

        That is the one alone whose bound more would break, or the best so far, on its scale.
        """
        kind = self._find_broken_kind(candidate)
        reference = 1.0 if best == 1 else self._compute_mean_stp(best)
        for round_number in range(ROUNDS_MOST):
            pace: float | None = 1.0
            if kind:
                yield from self._look_alone(kind)
            else:
                now = self._read(best, (yield self._open(best)))
                stp = None if now is None else self._compute_stp(best, now)
                if reference is None and now is not None and stp:
                    self._samples.setdefault(best, []).append(now)
                    reference = stp
                # The host may be faster or slower now than it was in the first windows.
                pace = stp / reference if reference and stp else None
            tried = self._read(candidate, (yield self._open(candidate)))
            if pace and tried is not None:
                self._samples.setdefault(candidate, []).append(_Sample(tried.rates, pace))
            if round_number + 1 >= ROUNDS_LEAST and not self._is_bound_open(candidate):
                break

    def _find_broken_kind(self, candidate: int) -> str:
        """Whose bound the next larger degree would break, if its rate alone is measured."""
        above = min((degree for degree in self._samples if degree > candidate), default=None)
        if above is None or self._keeps_bounds(above):
            return ""
        return self._find_deciding_kind(above)

    def _look_alone(self, kind: str) -> Generator[Window, WindowResult, None]:
        member = self._representatives[kind]
        self._note_alone(
            kind, member.number, (yield Window(frozenset((member.number,)), self._window_s))
        )

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
        measured = self._alone.get(_name_kind(member))
        if measured:
            return _average(measured)
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
        return _average(stps) if stps else None

    def _list_undecided(self, degrees: Sequence[int]) -> list[int]:
        """Those of which noise could decide, about a bound or which one makes more progress."""
        found = [self._compute_stps(degree) for degree in degrees]
        if not all(found):
            return list(degrees)
        is_open = [degree for degree in degrees if self._is_bound_open(degree)]
        if is_open or len(degrees) < 2 or not all(map(self._keeps_bounds, degrees)):
            return is_open
        means, errors = [_average(stps) for stps in found], [_compute_error(stps) for stps in found]
        noise = math.hypot(errors[0] or 0.0, errors[1] or 0.0)
        return list(degrees) if abs(means[0] - means[1]) < 2.0 * noise else []

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
            share = _average(alike) if alike else shares[member.number]
            slowdown = 1.0 / share if share > 0 else math.inf
            if worst is None or slowdown / member.bound > worst[1] / worst[2]:
                worst = member.number, slowdown, member.bound
        return worst

    def _find_deciding_kind(self, degree: int) -> str:
        """Of the member that uses most of its bound, if its rate alone is measured; else empty."""
        worst = self._find_worst_member(degree)
        member = next((m for m in self._members if worst and m.number == worst[0]), None)
        kind = "" if member is None else _name_kind(member)
        return kind if kind in self._representatives else ""

    def _is_bound_open(self, degree: int) -> bool:
        """Whether noise could decide about a bound."""
        worst = self._find_worst_member(degree)
        if worst is None or not 0.0 < worst[1] < math.inf:
            return False
        return abs(math.log(worst[1] / worst[2])) < self._estimate_error(degree)

    def _estimate_error(self, degree: int) -> float:
        """The standard error of the logarithm of the worst member's slowdown at a degree."""
        kind = self._find_deciding_kind(degree)
        alone, together = len(self._alone.get(kind, ())), len(self._samples.get(degree, ()))
        parts = 1.0 / max(1, together) + (1.0 / max(1, alone) if kind else 0.0)
        return self._estimate_noise() * math.sqrt(parts)

    def _estimate_excess(self, degree: int) -> float:
        """By how much noise makes the slowdown of the worst of several kinds too large.

        About the largest of so many errors, as a logarithm. A single window excuses nothing.
        """
        if len(self._samples.get(degree, ())) < ROUNDS_LEAST:
            return 0.0
        kinds = len({_name_kind(member) for member in self._members[:degree]})
        return self._estimate_error(degree) * math.sqrt(math.log(kinds))

    def _estimate_noise(self) -> float:
        """The standard deviation of a rate's logarithm between windows of the same members.

        It is 0 where no window came twice.
        """
        series = [list(rates) for rates in self._alone.values()]
        for degree, samples in self._samples.items():
            series += [
                [s.rates[m.number] / s.pace for s in samples if s.rates.get(m.number)]
                for m in self._members[:degree]
            ]
        squares, free = 0.0, 0
        for rates in series:
            if len(rates) > 1:
                logs = [math.log(rate) for rate in rates]
                mean = _average(logs)
                squares += sum((log - mean) ** 2 for log in logs)
                free += len(logs) - 1
        return math.sqrt(squares / free) if free else 0.0

    def _compute_mean_shares(self, degree: int) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for sample in self._samples.get(degree, ()):
            for number, share in self._compute_shares(degree, sample).items():
                found.setdefault(number, []).append(share)
        return {number: _average(shares) for number, shares in found.items()}

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
        return worst is None or worst[1] <= worst[2] * math.exp(self._estimate_excess(degree))

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
        # Noise hides smaller differences.
        step = max(1, int(best * max(SEARCH_STEP, self._estimate_noise())))
        if below is not None and best - below > step:
            is_flat = above is not None and measured[above] < FLAT * measured[best]
            as_many = below * measured[best] / measured[below]
            gain = (measured[best] - measured[below]) / (best - below)
            # With the progress of each that fewer have, so many would do; it never grows with more.
            # Where the last ones still bring a good part of what each has, fewer are not tried.
            if as_many < best - step and (is_flat or gain < GOOD_PART * measured[best] / best):
                return -(-(best + below) // 2)
        if above is None or above - best <= step:
            return None
        return self._guess_limit(best, above)

    def _guess_limit(self, best: int, above: int) -> int:
        """Between a degree that keeps bounds and one that does not: where they would just be kept.

        Slowdowns are taken to grow evenly. The middle where bounds do not decide.
        """
        low, high = self._find_worst_member(best), self._find_worst_member(above)
        if high is None or not high[2] < high[1] < math.inf:
            return (best + above) // 2
        used = 1.0 if best == 1 or low is None else low[1]
        part = (high[2] - used) / (high[1] - used) if used < high[2] else 0.0
        return min(max(round(best + part * (above - best)), best + 1), above - 1)

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
                error, mean = _compute_error(values), _average(values)
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


def _name_kind(member: PausableMember) -> str:
    return member.kind or f"#{member.number}"


def _average(values: Sequence[float]) -> float:
    # As that of `statistics`, which loads decimals, fractions and random numbers.
    return math.fsum(values) / len(values)


def _compute_error(values: Sequence[float]) -> float | None:
    """The standard error of a mean; None for a single value."""
    if len(values) < 2:
        return None
    mean = _average(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


# ---- When a running pack is measured, again or for the first time; pure --------------------------

AGAIN_S = 600.0
"""How often a pack is measured again whose company has not changed."""
FIRST_COST_MOST_S = 10.0
"""What the first measurement may cost, its attempts included."""
COST_MOST = 0.01
"""What measuring may cost of a pack's progress after that."""


def find_measuring_reason(
    kinds: Mapping[str, int], measured: Mapping[str, int], *, elapsed_s: float, has_parked: bool
) -> str:
    """Why a pack is to be measured now; empty where its company says nothing.

    Args:
        kinds: How many of each kind run.
        measured: How many of each kind the last measurement was of; empty before the first.
        elapsed_s: Since the last measurement, in seconds.
        has_parked: Members are parked.
    """
    if not measured:
        return "it has settled"
    if set(kinds) - set(measured):
        return "another kind of member has come"
    if sum(kinds.values()) > sum(measured.values()):
        return "more members have come"
    if has_parked and set(kinds) != set(measured):
        return "members of a kind have gone"
    return f"{AGAIN_S / 60:g} minutes have gone by" if elapsed_s >= AGAIN_S else ""


def may_cost(cost_s: float, elapsed_s: float, *, is_first: bool) -> bool:
    """Whether a pack may be measured, by what that has cost so far.

    Args:
        cost_s: Seconds of the pack's progress.
        elapsed_s: Since its first member started.
        is_first: It was not measured yet.
    """
    return cost_s <= max(COST_MOST * elapsed_s, FIRST_COST_MOST_S if is_first else 0.0)


# ----
# How many members run at once where few are left over: more, so that the last end sooner; pure.
#
# The degree of the most progress may leave the GPU to few at the end: of twelve, ten at once and
# then two take longer than twelve at once that make as much progress together as ten.

LOSS_MOST = 0.05
"""Of the progress of the best degree: so much may be given up for a shorter end."""
SHORTER_END_GAIN_LEAST = 0.05
"""By so much all of them must end sooner."""


def choose_for_the_end(curve: Sequence[CurvePoint], degree: int, members: int, places: int) -> int:
    """The degree at which the last of some members ends first.

    All count as equally long. Between measured degrees progress goes in a straight line; more than
    were measured make no more progress than the most that were.

    Args:
        curve: The measured points.
        degree: The degree of the most progress.
        members: Those that run, and those that wait to run there.
        places: How many can be there at once.

    Returns:
        `degree`, or a larger one that gives up little progress, keeps the bounds of all members and
        lets the last one surely end sooner.
    """
    points = {1: 1.0} | {point.degree: point.stp for point in curve}
    if not curve or degree not in points or degree >= members:
        return degree
    best, best_end = degree, _compute_end(points, degree, members) * (1.0 - SHORTER_END_GAIN_LEAST)
    for more in range(degree + 1, min(members, places) + 1):
        stp = _compute_stp(points, more)
        if stp < (1.0 - LOSS_MOST) * points[degree] or not _keeps_bounds(curve, more):
            break
        end = _compute_end(points, more, members)
        if end < best_end - 1e-9:
            best, best_end = more, end
    return best


def _compute_end(points: dict[int, float], degree: int, members: int) -> float:
    """When the last one ends, in times that one alone takes: in rounds of so many."""
    full, rest = divmod(members, degree)
    end = full * degree / _compute_stp(points, degree)
    return end + (rest / _compute_stp(points, rest) if rest else 0.0)


def _compute_stp(points: dict[int, float], degree: int) -> float:
    known = sorted(points)
    place = bisect.bisect_left(known, degree)
    if place == len(known):
        return points[known[-1]]
    above = known[place]
    if above == degree:
        return points[degree]
    below = known[place - 1]
    part = (degree - below) / (above - below)
    return points[below] + part * (points[above] - points[below])


def _keeps_bounds(curve: Sequence[CurvePoint], degree: int) -> bool:
    """By the next larger degree that was measured; beyond all, slowdowns grow with the degree."""
    larger = [point for point in curve if point.degree >= degree]
    point = min(larger or curve, key=lambda point: abs(point.degree - degree))
    if point.worst_slowdown is None or point.worst_bound is None:
        return True
    grown = max(1.0, degree / point.degree)
    return point.worst_slowdown * grown <= point.worst_bound


# ---- `csub probe`: how long a job runs alone until its rate is known; pure -----------------------

PROBE_TIME_S = 660
"""What `csub probe` asks Slurm for at most."""


@dataclass(frozen=True)
class ProbePatience:
    """How long a probe window may be.

    Attributes:
        first_step_s: Without a step until then there is nothing to wait for.
        window_s: The longest window.
    """

    first_step_s: float
    window_s: float


BY_ITSELF = ProbePatience(360.0, 560.0)
"""No other waits for it, and the program may take long to start."""


@dataclass(frozen=True)
class ProbeProgress:
    """What is known of a member in its probe window.

    Attributes:
        elapsed_s: Since the window began.
        steps: Steps so far; None where it has reported none.
        steady: Its rate has settled.
        settled_s: Since its warm-up was over, as reports count it (`metrics.rates`).
        steps_per_s: Its rate; None where unknown.
        mean_steps_per_s: Its rate since its warm-up; None where unknown.
        mean_error: The standard error of that, over the rate; None where unknown.
    """

    elapsed_s: float
    steps: int | None
    steady: bool
    settled_s: float = 0.0
    steps_per_s: float | None = None
    mean_steps_per_s: float | None = None
    mean_error: float | None = None

    @property
    def rate_alone(self) -> float | None:
        """Its rate alone in steps per second; None where it is not known well enough."""
        if self.steady:
            return self.steps_per_s or None
        is_exact = self.mean_error is not None and self.mean_error <= MEAN_ERROR_MOST
        return self.mean_steps_per_s or None if is_exact else None

    @property
    def is_enough(self) -> bool:
        """It has run for as long as a usage profile asks for."""
        step_s = 1.0 / self.steps_per_s if self.steps_per_s else 0.0
        # Steps are seen from look to look: one or two in a tick where each takes nearly as long.
        first_s = max(TICK_S, step_s)
        last_s = max(step_s, TICK_S + min(TICK_S, step_s))
        return self.settled_s >= SETTLED_LEAST_S + first_s + last_s


SETTLED_LEAST_S = 22.0
"""Twice what a usage profile asks for, 2 s away from the neighbours that start then; the steps
between two looks at either end lie partly outside."""

TICK_S = 1.0
"""Between two looks of the monitor."""

MEAN_ERROR_MOST = 0.08
"""Where the host is fast and slow by turns no rate is steady, and its mean so exact will do: on one
that ran a training at 74 to 145 steps a second it takes 6 s longer than where it is calm."""

_END_S = 100
"""Of a time limit, for ending the job and writing down what it has shown."""


def choose_patience(job: Job) -> ProbePatience:
    """How long the window of a job may be."""
    if job.time_limit_s is None:
        return BY_ITSELF
    window_s = min(BY_ITSELF.window_s, max(30.0, float(job.time_limit_s - _END_S)))
    return ProbePatience(min(BY_ITSELF.first_step_s, window_s), window_s)


def find_obstacle_to_counting(job: Job, *, instruments: bool) -> str:
    """Why the rate of a job would never be known; empty where it would.

    Args:
        job: The job.
        instruments: The settings let steps be counted.
    """
    if not (instruments and job.instrument) and job.progress_regex is None:
        return "nothing counts its steps"
    return ""


def may_be_measured(job: Job, *, instruments: bool = True) -> bool:
    """Whether a job may be paused, and something counts its steps."""
    return job.pause and not find_obstacle_to_counting(job, instruments=instruments)


def judge_window(progress: ProbeProgress, patience: ProbePatience) -> str:
    """Why a probe window is over; empty while it is not."""
    is_known = progress.rate_alone is not None
    if is_known and progress.is_enough and progress.steady:
        return "its rate is steady"
    if is_known and progress.is_enough:
        return f"the mean of its rate is known to {100 * (progress.mean_error or 0.0):.0f} %"
    if not progress.steps and progress.elapsed_s >= patience.first_step_s:
        return f"it has reported no step within {patience.first_step_s:g} s"
    if progress.elapsed_s >= patience.window_s and is_known:
        return (
            f"it has not run for as long as a usage profile asks for within {patience.window_s:g} s"
        )
    if progress.elapsed_s >= patience.window_s:
        return f"its rate was not steady within {patience.window_s:g} s"
    return ""
