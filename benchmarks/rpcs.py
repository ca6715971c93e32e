"""What a pack asks of Slurm's controller, by sdiag, next to the same jobs submitted with sbatch."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from benchmarks.bed import Bed, wait_until
from benchmarks.measuring import Section
from benchmarks.runner import select_events

COUNTS = (4, 64)
IDLE_S = 10.0
SETTLE_S = 2.5
JOB = "sleep 3; : > done.$SLURM_JOB_ID.$SLURM_ARRAY_TASK_ID"
SHAPE = ("--cpus-per-task=1", "--mem=100M", "--time=10")
_LINE = re.compile(r"\t(\w+)\s+\(\s*\d+\)\s+count:(\d+)\s")
# sdiag itself.
_OWN = {"REQUEST_STATS_INFO"}


def measure_rpcs(bed: Bed) -> Section:
    """Messages to slurmctld by type, from the submission to the end of the last job."""
    # Packs of earlier measurements would make csub ask about them.
    bed = bed.with_state("rpcs")
    idle = _count(bed, lambda: time.sleep(IDLE_S))
    idle_s = IDLE_S + SETTLE_S
    columns: dict[str, dict[str, float]] = {}
    for count in COUNTS:
        for name, action in (
            ("csub", _run_pack),
            ("sbatch --array", _run_array),
            ("sbatch", _run_plain),
        ):
            begun = time.monotonic()
            counted = _count(bed, lambda action=action, count=count: action(bed, count))  # type: ignore[misc]
            elapsed_s = time.monotonic() - begun
            columns[f"{name}, {count}"] = {
                kind: number - idle.get(kind, 0) * elapsed_s / idle_s
                for kind, number in counted.items()
            }
    kinds = sorted(
        {kind for column in columns.values() for kind in column},
        key=lambda kind: -max(column.get(kind, 0) for column in columns.values()),
    )
    rows = [
        (kind, *(_format(column.get(kind, 0)) for column in columns.values())) for kind in kinds
    ]
    total = ("all", *(_format(sum(column.values())) for column in columns.values()))
    per_job = (
        "all, per job",
        *(
            f"{sum(column.values()) / int(name.rpartition(' ')[2]):.1f}"
            for name, column in columns.items()
        ),
    )
    numbers = " and ".join(map(str, COUNTS))
    notes = [
        f"`csub --array --degree=N`, `sbatch --array`, N calls of `sbatch`; N = {numbers}.",
        "Each job sleeps 3 s, and all run at once; those of sbatch ask for no GPU: there is one.",
        (
            f"Counted by `sdiag`. What an idle cluster counts in the same time is taken off: "
            f"{_format(sum(idle.values()))} in {idle_s:g} s."
        ),
        (
            "csub's question for the nodes and the runner's question for KillWait are in it; "
            "each `csub queue` adds one."
        ),
    ]
    return Section(
        "Messages to Slurm's controller",
        ("message", *columns),
        (total, per_job, *rows),
        tuple(notes),
    )


def _run_pack(bed: Bed, count: int) -> None:
    job_id = bed.run(
        [bed.csub, "--parsable", f"--array=0-{count - 1}", f"--degree={count}", "--gres=gpu:1",
         *SHAPE, "--wrap", JOB]
    ).strip()  # fmt: skip
    pack = bed.state.pack_path(bed.state.find_packs(job_id)[0])
    wait_until(lambda: bool(select_events(pack, "end")), f"the pack {job_id} ends")
    ended = [event["state"] for event in select_events(pack, "member_end")]
    if ended != ["COMPLETED"] * count:
        raise RuntimeError(f"members of {job_id} ended as {ended}")


def _run_array(bed: Bed, count: int) -> None:
    _run_and_wait(bed, count, [["sbatch", f"--array=0-{count - 1}", *SHAPE, "--wrap", JOB]])


def _run_plain(bed: Bed, count: int) -> None:
    _run_and_wait(bed, count, [["sbatch", *SHAPE, "--wrap", JOB]] * count)


def _run_and_wait(bed: Bed, count: int, commands: list[list[str]]) -> None:
    for argv in commands:
        bed.run([argv[0], "--output=/dev/null", *argv[1:]])
    # Looking at files, because asking Slurm would be counted.
    wait_until(lambda: len(list(bed.home.glob("done.*"))) == count, f"{count} jobs end")


def _count(bed: Bed, action: Callable[[], None]) -> dict[str, int]:
    for path in bed.home.glob("done.*"):
        path.unlink()
    bed.run(["sdiag", "--reset"])
    action()
    # The last messages of jobs that have just ended.
    time.sleep(SETTLE_S)
    counts = parse_sdiag(bed.run(["sdiag"]))
    return {kind: number for kind, number in counts.items() if kind not in _OWN}


def parse_sdiag(text: str) -> dict[str, int]:
    """Read the statistics by message type of `sdiag` (22.05 to 26.05)."""
    _, _, rest = text.partition("Remote Procedure Call statistics by message type")
    by_type = rest.partition("Remote Procedure Call statistics by user")[0]
    return {match[1]: int(match[2]) for match in _LINE.finditer(by_type)}


def _format(number: float) -> str:
    return f"{max(0.0, number):.0f}"
