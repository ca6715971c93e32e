"""What a grid came to, for the record and for people; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .grid_choice import Choice, Known
from .grid_design import ALONE_SHARING, Sharing, SharingRow, describe_left_out
from .grid_table import (
    BOUND_SLACK,
    Measured,
    Result,
    Verdict,
    compute_results,
    judge_all,
    list_alone_rates,
)


def describe_run(
    cells: Sequence[Measured],
    choices: Sequence[Choice],
    grid: Sequence[SharingRow],
    done: Collection[Sharing],
    known: Known | None,
) -> dict[str, object]:
    """All that a run came to so far, in the JSON's form.

    Args:
        cells: What was measured.
        choices: What csub chose.
        grid: All of the grid.
        done: What of it was tried.
        known: What the planner was told; None where it was not asked yet.
    """
    rates = list_alone_rates(cells)
    if not rates:
        return {"alone": None}
    first = compute_results((cell for cell in cells if not cell.is_again), max(rates))
    again = compute_results((cell for cell in cells if cell.is_again), max(rates))

    def describe(results: Mapping[Sharing, Result]) -> list[dict[str, object]]:
        return [
            describe_result(result, known.predict(sharing) if known else None)
            for sharing, result in results.items()
        ]

    alone: dict[str, object] = {"rate_per_s": max(rates), "rates_per_s": rates}
    if known is not None:
        load = known.alone.load
        alone |= {**vars(known.alone), "load": vars(load) if load else None}
        alone |= {"length_s": known.length_s, "rate_per_s": max(rates)}
    return {
        "alone": alone,
        "bound_slack": BOUND_SLACK,
        "grid": describe(first),
        "in_turn": describe(again),
        "left_out": describe_left_out(grid, done),
        "verdicts": [describe_verdict(verdict) for verdict in judge_all(cells, choices)],
    }


def render_run(
    cells: Sequence[Measured],
    choices: Sequence[Choice],
    grid: Sequence[SharingRow],
    done: Collection[Sharing],
) -> str:
    """The same for people."""
    rates = list_alone_rates(cells)
    alone = max(rates)
    first = compute_results((cell for cell in cells if not cell.is_again), alone)
    again = compute_results((cell for cell in cells if cell.is_again), alone)
    chosen = {choice.sharing for choice in choices}
    lines = [render_grid(first, chosen)]
    missing = describe_left_out(grid, done)
    if missing:
        words = [f"{each['way']}: {each['degrees']}" for each in missing]
        lines.append(f"not measured, the time was too short: {'; '.join(words)}")
    lines.append(
        f"alone {alone:.5g} steps/s, the best of {len(rates)} windows from {min(rates):.5g} on"
    )
    lines += [
        f"in turn: {result.sharing}: {result.multiple:.2f} times, slowdown {result.slowdown:.2f}, "
        f"worst {result.worst:.2f}, {result.cells} cells from "
        f"{min(result.rates_per_s) / alone:.2f} to {max(result.rates_per_s) / alone:.2f}"
        for result in sorted(again.values(), key=lambda result: -result.rate_per_s)
    ]
    lines += [render_verdict(verdict) for verdict in judge_all(cells, choices)]
    return "\n".join(lines)


def describe_result(result: Result, predicted: float | None = None) -> dict[str, object]:
    """A result in the JSON's form."""
    return {
        **result.sharing._asdict(),
        "rate_per_s": result.rate_per_s,
        "multiple": result.multiple,
        "predicted_multiple": predicted,
        "slowdown": result.slowdown,
        "worst_slowdown": result.worst,
        "cells": result.cells,
        "rates_per_s": result.rates_per_s,
    }


def describe_verdict(verdict: Verdict) -> dict[str, object]:
    """A verdict in the JSON's form."""
    choice = verdict.choice
    return {
        "bound": choice.bound,
        "chosen": choice.sharing._asdict(),
        "predicted_slowdown": choice.slowdown,
        "predicted_multiple": choice.multiple,
        "reasons": choice.reasons,
        "planned": choice.packs,
        "measured": describe_result(verdict.found) if verdict.found else None,
        "rivals": [rival._asdict() for rival in verdict.rivals],
        "ratio_first_pass": verdict.first,
        "best_first_pass": verdict.first_best._asdict() if verdict.first_best else None,
        "ratio": verdict.ratio,
        "best": verdict.best._asdict() if verdict.best else None,
        "problems": verdict.problems,
    }


def render_grid(results: Mapping[Sharing, Result], chosen: Collection[Sharing]) -> str:
    """A table for people: multiple of one alone and slowdown, by limit and degree."""
    shared = {each: result for each, result in results.items() if each != ALONE_SHARING}
    degrees = sorted({each.degree for each in shared})
    ways = sorted({(each.mode, each.limit or 0) for each in shared})
    lines = ["times one alone / slowdown; * for what csub chose"]
    lines.append(f"{'members':14}" + "".join(f"{degree:>13}" for degree in degrees))
    for mode, limit in ways:
        line = f"{mode} {f'{limit} %' if limit else ''}".ljust(14)
        for degree in degrees:
            sharing = Sharing(mode, limit or None, degree)
            result = shared.get(sharing)
            text = f"{result.multiple:.2f}/{result.slowdown:.2f}" if result else "-"
            line += f"{text + ('*' if sharing in chosen else ' '):>13}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def render_verdict(verdict: Verdict) -> str:
    """A verdict for people."""
    choice, found = verdict.choice, verdict.found
    text = f"bound {choice.bound:g}: csub chose {choice.sharing}"
    text += f", predicted {choice.multiple:.2f} times at slowdown {choice.slowdown:.2f}"
    if found is not None:
        text += f", measured {found.multiple:.2f} at {found.slowdown:.2f}"
    if verdict.ratio is not None:
        text += f"; in turn {100 * verdict.ratio:.1f} % of the best, {verdict.best}"
    if verdict.first is not None:
        text += f"; in the first pass {100 * verdict.first:.1f} % of {verdict.first_best}"
    return "; ".join((text, *verdict.problems))
