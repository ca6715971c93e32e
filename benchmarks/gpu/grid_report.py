"""What a grid came to, for the record and for people; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from benchmarks.gpu.grid_choice import LENGTH_S, Known
from benchmarks.gpu.grid_design import ALONE_SHARING, Sharing, SharingRow
from benchmarks.gpu.grid_table import BOUND_SLACK, Outcome, Result, Verdict


def describe_run(
    outcome: Outcome,
    grid: Sequence[SharingRow],
    done: Collection[Sharing],
    known: Known | None,
) -> dict[str, object]:
    """All that a run came to so far, in the JSON's form.

    Args:
        outcome: What was measured.
        grid: All of the grid.
        done: What of it was tried.
        known: What the planner was told; None where it was not asked yet.
    """
    rates = outcome.alone_per_s
    if not rates:
        return {"alone": None}
    alone: dict[str, object] = {"rate_per_s": max(rates), "rates_per_s": rates}
    if known is not None:
        load = known.alone.load
        alone |= {**vars(known.alone), "load": vars(load) if load else None, "length_s": LENGTH_S}

    def describe(results: Mapping[Sharing, Result]) -> list[dict[str, object]]:
        return [
            describe_result(result, known.predict(sharing) if known else None)
            for sharing, result in results.items()
        ]

    return {
        "alone": alone,
        "bound_slack": BOUND_SLACK,
        "grid": describe(outcome.first),
        "in_turn": describe(outcome.again),
        "left_out": [
            {"way": way, "mode": row[0].mode, "limit": row[0].limit, "degrees": degrees}
            for way, row, degrees in list_left_out(grid, done)
        ],
        "verdicts": [describe_verdict(verdict) for verdict in outcome.verdicts],
    }


def render_run(outcome: Outcome, grid: Sequence[SharingRow], done: Collection[Sharing]) -> str:
    """The same for people."""
    rates = outcome.alone_per_s
    chosen = {verdict.choice.sharing for verdict in outcome.verdicts}
    lines = [render_grid(outcome.first, chosen)]
    missing = [f"{way}: {degrees}" for way, _, degrees in list_left_out(grid, done)]
    if missing:
        lines.append(f"not measured, the time was too short: {'; '.join(missing)}")
    lines.append(
        f"alone {max(rates):.5g} steps/s, the best of {len(rates)} windows from {min(rates):.5g} on"
    )
    lines += [
        f"in turn: {result.sharing}: {result.multiple:.2f} times, slowdown {result.slowdown:.2f}, "
        f"worst {result.worst:.2f}, {len(result.rates_per_s)} cells from "
        f"{min(result.rates_per_s) / max(rates):.2f} to {max(result.rates_per_s) / max(rates):.2f}"
        for result in sorted(outcome.again.values(), key=lambda result: -result.rate_per_s)
    ]
    lines += [render_verdict(verdict) for verdict in outcome.verdicts]
    return "\n".join(lines)


def list_left_out(
    grid: Sequence[SharingRow], done: Collection[Sharing]
) -> list[tuple[str, SharingRow, list[int]]]:
    """What of the grid was not measured: the way in words, its row, and the degrees missing."""
    return [
        (row[0].mode if row[0].limit is None else f"{row[0].mode} {row[0].limit} %", row, degrees)
        for row in grid
        if (degrees := sorted(each.degree for each in row if each not in done))
    ]


def describe_result(result: Result, predicted: float | None = None) -> dict[str, object]:
    """A result in the JSON's form."""
    return {
        **result.sharing._asdict(),
        "rate_per_s": result.rate_per_s,
        "multiple": result.multiple,
        "predicted_multiple": predicted,
        "slowdown": result.slowdown,
        "worst_slowdown": result.worst,
        "cells": len(result.rates_per_s),
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
