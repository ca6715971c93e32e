"""What the runners of one Slurm job with eight GPUs cost together: 64 members, all asleep."""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.bed import running_bed, wait_until
from benchmarks.measuring import Figures, Section, Series
from benchmarks.runner import (
    read_cpu_s,
    read_host_memory_mb,
    read_parent,
    select_events,
)

GPUS = 8
MEMBERS = 64
WATCHED_S = 30.0
HOST_MEMORY_TARGET_MB = 40.0
CPU_TARGET_PERCENT = 1.0
WORDS = (
    f"--gpus-per-pack={GPUS}",
    f"--array=0-{MEMBERS - 1}",
    f"--degree={MEMBERS // GPUS}",
    "--share=timeslice",
    "--gres=gpu:1",
    "--cpus-per-task=1",
    "--mem=100M",
    "--time=10",
)


def measure_set_runners() -> Section:
    """Start such a job, and watch its runners while all members sleep."""
    figures = Figures()
    with running_bed(gpus=GPUS) as bed:
        job_id = bed.run([bed.csub, "--parsable", *WORDS, "--wrap", "exec sleep 900"]).strip()
        packs = [bed.state.pack_path(pack_id) for pack_id in bed.state.find_packs(job_id)]
        if len(packs) != GPUS:
            raise RuntimeError(f"{len(packs)} packs in place of one for each of {GPUS} GPUs")
        wait_until(lambda: _count_starts(packs) == MEMBERS, "all run", patience_s=300.0)
        # What the start has cost is another measurement (benchmarks.runner).
        time.sleep(5)
        runners = [json.loads((pack / "runner.json").read_text())["pid"] for pack in packs]
        guard = read_parent(runners[0])
        before = [read_cpu_s(pid) for pid in (*runners, guard)]
        begun = time.monotonic()
        time.sleep(WATCHED_S)
        elapsed_s = time.monotonic() - begun
        used = [
            100 * (read_cpu_s(pid) - cpu_s) / elapsed_s
            for pid, cpu_s in zip((*runners, guard), before, strict=True)
        ]
        memory = [read_host_memory_mb(pid) for pid in runners]
        guard_mb = read_host_memory_mb(guard)
        bed.run([bed.csub, "cancel", job_id])
        bed.cancel_all()
    _add(figures, f"CPU time of {GPUS} runners together", sum(used[:-1]), "%", CPU_TARGET_PERCENT)
    _add(
        figures,
        f"host memory of {GPUS} runners together, PSS",
        sum(each["PSS"] for each in memory),
        "MB",
        HOST_MEMORY_TARGET_MB,
    )
    figures.add("host memory of one runner, PSS", Series(tuple(m["PSS"] for m in memory)), "MB")
    figures.add("host memory of one runner, RSS", Series(tuple(m["RSS"] for m in memory)), "MB")
    _add(figures, "CPU time of their guard", used[-1], "%")
    _add(figures, "host memory of their guard, PSS", guard_mb["PSS"], "MB")
    _add(figures, "host memory of their guard, RSS", guard_mb["RSS"], "MB")
    notes = [
        f"`csub {' '.join(WORDS)} --wrap 'exec sleep 900'`: one Slurm job, simulated GPUs.",
        f"CPU time is counted over {WATCHED_S:g} s with all members asleep; 100 % is one core.",
        (
            "The runners are forked from one process that has loaded what they need: PSS counts "
            "by share what they have in common, RSS counts it for each."
        ),
    ]
    return figures.build_section(f"The runners of {MEMBERS} members on {GPUS} GPUs", notes)


def _count_starts(packs: list[Path]) -> int:
    return sum(len(select_events(pack, "start")) for pack in packs)


def _add(figures: Figures, name: str, value: float, unit: str, target: float | None = None) -> None:
    figures.add(name, Series((value,)), unit, target=target)
