"""How long a table of thousands of rows takes: read, checked, submitted as packs, cancelled."""

from __future__ import annotations

from benchmarks.bed import Bed
from benchmarks.measuring import Figures, Section, Series

ROWS = 10_000
RUNS = 3
TARGET_MS = 20_000


def measure_tables(bed: Bed) -> Section:
    """10,000 rows with two parameters in a state of their own, then the same table resumed."""
    lines = (f"python train.py --lr {{lr}} --seed {{seed}},{at / 1000},{at}" for at in range(ROWS))
    (bed.home / "jobs.csv").write_text("command,lr,seed\n" + "\n".join(lines) + "\n")
    words = ("batch", "--resume", "--gres=gpu:1", "--time=5", "--mem=100M", "jobs.csv")
    submitted, resumed, cancelled, settled = [], [], [], []
    for number in range(RUNS):
        fresh = bed.with_state(f"table{number}")
        with bed.paused():
            submitted.append(fresh.time_ms([bed.csub, *words]))
            resumed.append(fresh.time_ms([bed.csub, *words]))
            cancelled.append(fresh.time_ms([bed.csub, "cancel", "all"]))
            settled.append(fresh.time_ms([bed.csub, "queue"]))
    figures, command = Figures(), f"csub {' '.join(words)}"
    figures.add(
        f"{ROWS} rows read, checked and submitted as packs", Series(tuple(submitted)), "ms",
        target=TARGET_MS, command=command,
    )  # fmt: skip
    figures.add(
        "the same table again: all rows are under way", Series(tuple(resumed)), "ms",
        command=command,
    )  # fmt: skip
    figures.add(
        "all of them cancelled while they wait", Series(tuple(cancelled)), "ms",
        command="csub cancel all",
    )  # fmt: skip
    figures.add(
        "the next call of csub, which closes their packs", Series(tuple(settled)), "ms",
        command="csub queue",
    )  # fmt: skip
    return figures.build_section("A table of 10,000 rows")
