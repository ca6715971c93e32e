"""The rows of a mix that was measured under several rules, and what the rules come to; pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

COLUMNS = (
    "run",
    "round",
    "rule",
    "pack",
    "member",
    "size",
    "job",
    "kind",
    "steps",
    "alone_s",
    "begin_s",
    "end_s",
    "slowdown",
    "bound",
    "mode",
    "percentage",
    "predicted_slowdown",
    "predicted_pack_s",
    "mps_s",
    "setup_s",
    "work_j",
    "setup_j",
    "problem",
)
"""One row for each job and rule. `begin_s` and `end_s` count from the start of the call's first
pack; from `predicted_pack_s` on, the pack's figures are repeated for each of its members. What is
unknown is empty."""

_HEADS = (
    "rule",
    "rounds",
    "packs",
    "makespan s",
    "of exclusive",
    "of alone",
    "predicted of alone",
    "GPU hours",
    "energy kJ",
    "of exclusive",
    "mean slowdown",
    "worst",
    "beyond its bound",
    "mean against exclusive",
    "worst",
    "beyond its bound",
    "of it MPS s",
    "processes s",
)

Row = Mapping[str, str]
_Getter = Callable[["Result"], float | None]


@dataclass(frozen=True)
class Result:
    """What one rule came to in one round.

    Attributes:
        run: The call that measured it.
        rule: The rule.
        jobs: How many jobs were measured.
        failed: How many have no end.
        packs: How many packs.
        makespan_s: Seconds on one GPU, one pack after the other: the work, and starting and ending
            MPS; a GPU is held for as long in all.
        alone_s: What the same jobs take one at a time, by the rates alone of the same call.
        setup_s: Seconds for starting and ending processes on top.
        energy_j: Energy of the work; None where it could not be read.
        mps_s: Seconds of the makespan for starting and ending MPS.
        slowdowns: Of the jobs.
        beyond: How many are slowed down by more than csub would let them.
        bound: What csub would let them be slowed down.
        durations_s: By job, how long it ran.
        predicted_s: What the makespan was predicted to be.
    """

    run: str
    rule: str
    jobs: int
    failed: int
    packs: int
    makespan_s: float
    alone_s: float
    setup_s: float
    energy_j: float | None
    mps_s: float
    slowdowns: tuple[float, ...]
    beyond: int
    bound: float
    durations_s: Mapping[str, float]
    predicted_s: float | None


def compute_results(rows: Iterable[Row]) -> list[Result]:
    """One result for each call, rule and round that the rows tell of, in their order."""
    rounds: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        rounds.setdefault((row["run"], row["rule"], row["round"]), []).append(row)
    return [_compute_result(found) for found in rounds.values()]


def _compute_result(rows: Sequence[Row]) -> Result:
    packs: dict[str, list[Row]] = {}
    for row in rows:
        packs.setdefault(row["pack"], []).append(row)
    work_s, firsts = 0.0, [found[0] for found in packs.values()]
    for found in packs.values():
        times = [(float(row["begin_s"]), float(row["end_s"])) for row in found if row["end_s"]]
        if times:
            work_s += max(end for _, end in times) - min(begin for begin, _ in times)
    mps_s = sum(_read(row, "mps_s") or 0.0 for row in firsts)
    predicted = [_read(row, "predicted_pack_s") for row in firsts]
    known = [value for value in predicted if value is not None]
    return Result(
        run=rows[0]["run"],
        rule=rows[0]["rule"],
        jobs=len(rows),
        failed=sum(not row["end_s"] for row in rows),
        packs=len(packs),
        makespan_s=work_s + mps_s,
        alone_s=sum(float(row["alone_s"]) for row in rows),
        setup_s=sum(_read(row, "setup_s") or 0.0 for row in firsts),
        energy_j=add_up(_read(row, "work_j") for row in firsts),
        mps_s=mps_s,
        slowdowns=tuple(float(row["slowdown"]) for row in rows if row["slowdown"]),
        beyond=sum(float(row["slowdown"] or 0) > float(row["bound"]) for row in rows),
        bound=float(rows[0]["bound"]),
        durations_s={
            row["job"]: float(row["end_s"]) - float(row["begin_s"]) for row in rows if row["end_s"]
        },
        predicted_s=sum(known) if len(known) == len(predicted) else None,
    )


def add_up(values: Iterable[float | None]) -> float | None:
    """A sum; None where a part of it is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def find_missing(rows: Sequence[Row], rules: Sequence[str], jobs: int) -> list[str]:
    """What a full comparison lacks, a sentence each."""
    results = compute_results(rows)
    missing = []
    for rule in rules:
        found = [result for result in results if result.rule == rule]
        if not any(result.jobs == jobs for result in found):
            most = max((result.jobs for result in found), default=0)
            missing.append(f"{rule}: {most} of {jobs} jobs were measured")
        failed = sum(result.failed for result in found)
        if failed:
            missing.append(f"{rule}: {failed} jobs failed")
    return missing


def render_table(rows: Sequence[Row], jobs: int) -> str:
    """The rules side by side, as Markdown: medians over the rounds that are whole.

    Makespan and energy are set against exclusive of the same call where it has one, else against
    the exclusive of all calls; `of alone` is the makespan over what the jobs take one at a time by
    the rates of the same call, which no host that is slower in another call disturbs. Slowdowns
    are against the rate alone, measured at the beginning, and against how long the same job ran
    under exclusive in the same call: hosts are fast and slow for minutes.
    """
    results = [result for result in compute_results(rows) if result.jobs == jobs]
    by_rule: dict[str, list[Result]] = {}
    for result in results:
        by_rule.setdefault(result.rule, []).append(result)
    base = by_rule.get("exclusive", [])
    lines = [
        f"| {' | '.join(_HEADS)} |",
        f"|{'---|' * len(_HEADS)}",
    ]
    for rule, found in by_rule.items():
        slowdowns = [value for result in found for value in result.slowdowns]
        energies = [result.energy_j for result in found if result.energy_j is not None]
        predicted = [r.predicted_s / r.alone_s for r in found if r.predicted_s is not None]
        makespan_s = statistics.median(result.makespan_s for result in found)
        paired = [ratio for result in found for ratio in _pair(result, base)]
        cells = [
            rule,
            str(len(found)),
            _show([float(result.packs) for result in found], "{:.0f}"),
            _show([result.makespan_s for result in found], "{:.1f}", spread=True),
            _show(_divide(found, base, lambda r: r.makespan_s), "{:.3f}"),
            _show([result.makespan_s / result.alone_s for result in found], "{:.3f}"),
            _show(predicted, "{:.3f}"),
            f"{makespan_s / 3600:.4f}",
            _show([energy / 1000 for energy in energies], "{:.1f}"),
            _show(_divide(found, base, lambda r: r.energy_j), "{:.3f}"),
            f"{statistics.fmean(slowdowns):.2f}" if slowdowns else "",
            f"{max(slowdowns):.2f}" if slowdowns else "",
            _show([float(result.beyond) for result in found], "{:.0f}"),
            f"{statistics.fmean(paired):.2f}" if paired else "",
            f"{max(paired):.2f}" if paired else "",
            _show(_count_beyond(found, base), "{:.0f}"),
            _show([result.mps_s for result in found], "{:.1f}"),
            _show([result.setup_s for result in found], "{:.0f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _pair(result: Result, base: Sequence[Result]) -> list[float]:
    """How many times as long each job ran as under exclusive in the same call."""
    same = [other.durations_s for other in base if other.run == result.run]
    return [
        duration_s / statistics.median(others)
        for job, duration_s in result.durations_s.items()
        if (others := [other[job] for other in same if job in other])
    ]


def _count_beyond(found: Sequence[Result], base: Sequence[Result]) -> list[float]:
    """Jobs that ran longer than under exclusive by more than the bound, for each result."""
    paired = [(result.bound, _pair(result, base)) for result in found]
    return [float(sum(ratio > bound for ratio in ratios)) for bound, ratios in paired if ratios]


def _divide(found: Sequence[Result], base: Sequence[Result], get: _Getter) -> list[float]:
    ratios = []
    for result in found:
        same = [get(other) for other in base if other.run == result.run]
        others = [value for value in same or [get(other) for other in base] if value]
        value = get(result)
        if value is not None and others:
            ratios.append(value / statistics.median(others))
    return ratios


def _show(values: Sequence[float], form: str, *, spread: bool = False) -> str:
    if not values:
        return ""
    text = form.format(statistics.median(values))
    if spread and len(values) > 1:
        text += f" ({form.format(min(values))} to {form.format(max(values))})"
    return text


def _read(row: Row, name: str) -> float | None:
    return float(row[name]) if row[name] else None
