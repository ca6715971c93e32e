"""Rounds of one alone and a pack in turn, from one machine or several, as one table.

    python -m benchmarks.gpu.packs_table --csv ROUNDS.csv A/planner.json B/planner.json

The CSV has a line for each round; the table that is printed has medians, and the lowest and highest
round. Of n rounds these two hold the median with a probability of 1 - 2^(1-n), whatever the
distribution (the sign test's interval; Conover, Practical Nonparametric Statistics, 3.2).
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

_HEADINGS = (
    "batch",
    "rounds",
    "alone",
    "together",
    "predicted",
    "throughput",
    "slowdowns: mean; worst",
    "wall time",
    "share of one process",
)


@dataclass(frozen=True)
class Round:
    """One training alone, then a pack of them, on one GPU.

    Attributes:
        machine: Number of the file that it is from, 1 the first.
        batch: Part, training and bound.
        number: Of the round, 1 the first.
        alone_per_s: Images per second of the one alone.
        members: Of the pack.
        together: Members that the runner let run at the same time.
        thread_percentage: Of each; 100 is no limit.
        predicted_slowdown: Of the worst member, by the plan; None where it told none.
        predicted_ratio: The pack's throughput over one alone, by the plan.
        sum_per_s: Images per second of all members in the common window.
        mean_slowdown, worst_slowdown: The rate alone over the members' rates.
        window_s: Length of the common window.
        ratio: The sum over the rate alone.
        alone_wall_s, pack_wall_s: From the start by Slurm to the end of the job.
        wall_ratio: The members' times alone, in turn, over the pack's.
        alone_start_s, pack_start_s: Up to the first step; of the pack the last member's.
        fused_per_s: Images per second of one process with many times the batch; None: not run.
    """

    machine: int
    batch: str
    number: int
    alone_per_s: float
    members: int
    together: int
    thread_percentage: int | None
    predicted_slowdown: float | None
    predicted_ratio: float | None
    sum_per_s: float
    mean_slowdown: float
    worst_slowdown: float
    window_s: float
    ratio: float
    alone_wall_s: float
    pack_wall_s: float
    wall_ratio: float
    alone_start_s: float
    pack_start_s: float
    fused_per_s: float | None


def parse_rounds(found: dict[str, Any], machine: int) -> list[Round]:
    """The rounds that one planner.json tells; parts without a pack against one alone have none."""
    return [
        _parse_round(machine, batch, number, entry)
        for batch, entries in found["batches"].items()
        for number, entry in enumerate(entries, 1)
        if "ratio" in entry
    ]


def _parse_round(machine: int, batch: str, number: int, entry: dict[str, Any]) -> Round:
    alone, pack = entry["alone"], entry["pack"]
    (planned,) = entry["planned"]["packs"]
    slowdowns = [alone["images_per_s_sum"] / rate for rate in pack["images_per_s"]]
    predicted = [member["slowdown"] for member in planned["members"]]
    fused = entry.get("fused")
    return Round(
        machine=machine,
        batch=batch,
        number=number,
        alone_per_s=alone["images_per_s_sum"],
        members=pack["members"],
        together=pack["together"],
        thread_percentage=planned["members"][0]["thread_percentage"],
        predicted_slowdown=None if None in predicted else max(predicted),
        predicted_ratio=planned["normalised_progress"],
        sum_per_s=pack["images_per_s_sum"],
        mean_slowdown=statistics.mean(slowdowns),
        worst_slowdown=max(slowdowns),
        window_s=pack["window_s"],
        ratio=entry["ratio"],
        alone_wall_s=alone["wall_s"],
        pack_wall_s=pack["wall_s"],
        wall_ratio=entry["wall_ratio"],
        alone_start_s=max(alone["to_first_step_s"]),
        pack_start_s=max(pack["to_first_step_s"]),
        fused_per_s=None if fused is None else fused["images_per_s_sum"],
    )


def write_rounds(path: Path, rounds: Iterable[Round]) -> None:
    """Write a line for each round."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Round))
        for row in rounds:
            values = asdict(row).values()
            writer.writerow(round(v, 4) if isinstance(v, float) else v for v in values)


def render_rounds(rounds: Sequence[Round]) -> str:
    """A Markdown table with a row for each batch of each machine."""
    lines = [f"| {' | '.join(_HEADINGS)} |", "| --- " * len(_HEADINGS) + "|"]
    for machine, batch in dict.fromkeys((row.machine, row.batch) for row in rounds):
        rows = [row for row in rounds if (row.machine, row.batch) == (machine, batch)]
        lines.append(_render_batch(batch, rows))
    return "\n".join(lines)


def _render_batch(batch: str, rows: Sequence[Round]) -> str:
    def show(read: Callable[[Round], float | None], digits: int, unit: str = "") -> str:
        return _render_spread([read(row) for row in rows], digits, unit)

    packs = sorted({(row.together, row.thread_percentage) for row in rows})
    cells = [
        batch,
        str(len(rows)),
        f"{show(lambda row: row.alone_per_s, 0)} images/s",
        "; ".join(
            f"{size} without limits" if limit in (None, 100) else f"{size} at {limit} %"
            for size, limit in packs
        )
        + f", {show(lambda row: row.sum_per_s, 0)} images/s",
        show(lambda row: row.predicted_ratio, 2, " x"),
        f"**{show(lambda row: row.ratio, 2, ' x')}**",
        f"{show(lambda row: row.mean_slowdown, 2)}; {show(lambda row: row.worst_slowdown, 2)}",
        show(lambda row: row.wall_ratio, 2, " x"),
        show(
            lambda row: None if row.fused_per_s is None else 100 * row.sum_per_s / row.fused_per_s,
            1,
            " %",
        ),
    ]
    return f"| {' | '.join(cells)} |"


def _render_spread(values: Iterable[float | None], digits: int, unit: str) -> str:
    """The median, and the lowest and highest of several; empty where nothing is known."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    text = f"{statistics.median(known):,.{digits}f}{unit}"
    if len(known) > 1:
        text += f" ({min(known):,.{digits}f} to {max(known):,.{digits}f})"
    return text


def main() -> None:
    """Write and print what planner.json files tell."""
    parser = argparse.ArgumentParser(description="Rounds of packs against one alone, as one table.")
    parser.add_argument("--csv", type=Path, required=True, help="a line for each round")
    parser.add_argument("found", type=Path, nargs="+", help="planner.json of one machine each")
    asked = parser.parse_args()
    rounds = [
        row
        for machine, path in enumerate(asked.found, 1)
        for row in parse_rounds(json.loads(path.read_text()), machine)
    ]
    write_rounds(asked.csv, rounds)
    print(render_rounds(rounds))


if __name__ == "__main__":
    main()
