"""What the cells of a grid come to, and how near csub's choice is to the best of them; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu.grid_choice import Choice
from benchmarks.gpu.grid_design import ALONE_SHARING, Sharing
from benchmarks.gpu.grid_turns import AGAIN, RIVALS
from slurm_colloc_lab.calibration.measured_packs import IDLE, read_number

BOUND_SLACK = 1.02
"""A measured slowdown may pass the bound by this: cells of seconds are no better known."""

Row = Mapping[str, str]


@dataclass(frozen=True)
class Measured:
    """One cell that was measured whole.

    Attributes:
        group: Its group's name.
        sharing: How its copies shared the GPU.
        rates: Steps per second of each.
        rows: Its rows.
    """

    group: str
    sharing: Sharing
    rates: tuple[float, ...]
    rows: tuple[Row, ...]

    @property
    def rate_per_s(self) -> float:
        """Steps per second of all copies."""
        return sum(self.rates)

    @property
    def is_again(self) -> bool:
        """It was measured in turn with others, not in the grid's first pass."""
        return self.group.startswith(AGAIN)


@dataclass(frozen=True)
class Result:
    """A way of sharing: medians over its cells.

    Attributes:
        sharing: It.
        rate_per_s: Steps per second of all its copies.
        multiple: The same as a multiple of one alone.
        slowdown: Of the copy in the middle.
        worst: Of the slowest copy.
        rates_per_s: Steps per second of all its copies, in each cell.
    """

    sharing: Sharing
    rate_per_s: float
    multiple: float
    slowdown: float
    worst: float
    rates_per_s: tuple[float, ...]

    def keeps(self, bound: float) -> bool:
        """Whether its slowdown is within a bound, as far as that is measured."""
        return self.slowdown <= bound * BOUND_SLACK


def read_cells(rows: Iterable[Row], run: str) -> list[Measured]:
    """The cells of a run that are whole, in order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["run"] == run and row["label"] != IDLE:
            found.setdefault((row["group"], row["cell"]), []).append(row)
    cells = []
    for (group, _), members in found.items():
        first = members[0]
        rates = tuple(read_number(row, "rate_per_s", 1e-6) for row in members)
        known = tuple(rate for rate in rates if rate is not None)
        if len(known) == len(members) == read_number(first, "size"):
            limit = int(first["thread_percentage"]) if first["thread_percentage"] else None
            sharing = Sharing(first["mode"], limit, len(members))
            cells.append(Measured(group, sharing, known, tuple(members)))
    return cells


def compute_results(cells: Iterable[Measured], alone_per_s: float) -> dict[Sharing, Result]:
    """Results by way of sharing.

    Args:
        cells: What was measured.
        alone_per_s: Steps per second of one alone.
    """
    by_sharing: dict[Sharing, list[Measured]] = {}
    for cell in cells:
        by_sharing.setdefault(cell.sharing, []).append(cell)
    results = {}
    for sharing, found in by_sharing.items():
        rates = tuple(cell.rate_per_s for cell in found)
        rate = statistics.median(rates)
        results[sharing] = Result(
            sharing,
            rate,
            rate / alone_per_s,
            statistics.median(alone_per_s / statistics.median(cell.rates) for cell in found),
            statistics.median(alone_per_s / min(cell.rates) for cell in found),
            rates,
        )
    return results


def choose_rivals(
    results: Mapping[Sharing, Result], choice: Choice, count: int = RIVALS
) -> tuple[Sharing, ...]:
    """The ways of sharing of most throughput within the bound, without what csub chose."""
    legal = [
        result
        for sharing, result in results.items()
        if sharing != choice.sharing and result.keeps(choice.bound)
    ]
    legal.sort(key=lambda result: (-result.rate_per_s, result.sharing.degree))
    return tuple(result.sharing for result in legal[:count])


@dataclass(frozen=True)
class Verdict:
    """How near csub's choice is to the best, None where that is not known.

    Attributes:
        choice: What csub chose.
        rivals: The best of the grid's first pass next to it.
        first: The choice's throughput over the best rival's in the first pass.
        first_best: That rival.
        ratio: The same by the cells that were measured in turn: over the best that keeps the bound
            there. Above 1 where the choice is better than all others.
        best: That rival.
        found: The choice in the cells that were measured in turn, else in the first pass.
        problems: What is to be known of it, a sentence each.
    """

    choice: Choice
    rivals: tuple[Sharing, ...]
    first: float | None
    first_best: Sharing | None
    ratio: float | None
    best: Sharing | None
    found: Result | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """All that a run came to so far.

    Attributes:
        alone_per_s: Steps per second of one alone, in all its cells, the best of which all is held
            against. Where there is none, there is nothing else either.
        first: Results of the grid's first pass.
        again: Results of the cells that were measured in turn.
        verdicts: One for each choice of csub.
    """

    alone_per_s: tuple[float, ...]
    first: Mapping[Sharing, Result]
    again: Mapping[Sharing, Result]
    verdicts: tuple[Verdict, ...]


def compute_outcome(cells: Sequence[Measured], choices: Iterable[Choice]) -> Outcome:
    """What a run came to."""
    rates = tuple(cell.rates[0] for cell in cells if cell.sharing == ALONE_SHARING)
    if not rates:
        return Outcome((), {}, {}, ())
    first = compute_results((cell for cell in cells if not cell.is_again), max(rates))
    again = compute_results((cell for cell in cells if cell.is_again), max(rates))
    verdicts = tuple(_judge(choice, first, again) for choice in choices)
    return Outcome(rates, first, again, verdicts)


def _judge(
    choice: Choice, grid: Mapping[Sharing, Result], again: Mapping[Sharing, Result]
) -> Verdict:
    problems = []
    rivals = choose_rivals(grid, choice)
    first, first_best = _compare(choice, grid)
    ratio, best = _compare(choice, again)
    found = again.get(choice.sharing) or grid.get(choice.sharing)
    if found is None:
        problems.append(f"what csub chose was not measured: {choice.sharing}")
    elif not found.keeps(choice.bound):
        problems.append(f"what csub chose passes the bound: {found.slowdown:.2f}")
    if not rivals:
        problems.append("nothing else of the grid keeps the bound")
    elif ratio is None:
        problems.append("no rival was measured in turn with it, or none keeps the bound there")
    return Verdict(choice, rivals, first, first_best, ratio, best, found, tuple(problems))


def _compare(
    choice: Choice, results: Mapping[Sharing, Result]
) -> tuple[float | None, Sharing | None]:
    own, best = results.get(choice.sharing), choose_rivals(results, choice, 1)
    if own is None or not best:
        return None, None
    return own.rate_per_s / results[best[0]].rate_per_s, best[0]
