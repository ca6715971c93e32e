"""Packs as csub plans them, against one training at a time, through a real Slurm on a real GPU.

Figures are written to planner.json and planner.csv and not judged. Where the machine has several
GPUs, batches are measured side by side, a GPU and its share of the cores each.

CSUB_GPU_BATCHES: words such as `rounds:small:16:1.5`, which are a part, a training, the most
members, and --max-slowdown. Parts are

rounds    one alone, which makes its usage profile, then as many as csub plans to put into one pack,
          in turn; with both counted in a common window, and timed from the moment when Slurm starts
          them to the moment when the last has ended. Every second round ends with one process that
          has as many times the batch. `loader` reads files by a DataLoader.
wall      one such round of long trainings, for which a process start is little.
ramp      an array of trainings that csub does not know, with probe window and ramp; then what it
          would have planned if it had known them.
declined  one alone that fills the GPU; then what csub does with several.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode, read_number, running_gpu_node
from .planned import (
    FUSED,
    LOADER,
    LOCK,
    Batch,
    choose_members,
    look_at_speeds,
    plan,
    run_together,
    write_script,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(1800),
]

WINDOW_S = read_number("CSUB_GPU_WINDOW_S", 60)
ROUNDS = int(read_number("CSUB_GPU_ROUNDS", 5))
# One alone is faster than it looked at the beginning, by up to a quarter.
ROUND_S = read_number("CSUB_GPU_ROUND_S", 1.35 * WINDOW_S)
WALL_S = read_number("CSUB_GPU_WALL_S", 250)
RAMP_S = read_number("CSUB_GPU_RAMP_S", 250)
BUDGET_S = read_number("CSUB_GPU_BUDGET_S", 480)
BATCHES = os.environ.get(
    "CSUB_GPU_BATCHES",
    "rounds:small:16:1.5 rounds:small:16:2 rounds:medium:8:2 rounds:large:4:2",
).split()
HOST_MEMORY_MB_PER_GPU = 110_000
STARTED_S = time.monotonic()
RESULTS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    """One Slurm and one user for all of it."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    gpus = gpus or int(read_number("CSUB_GPU_SIMULATED_GPUS", 1))
    with running_gpu_node(
        archive="kept-planner.tar.gz",
        gpus_per_node=gpus,
        host_memory_mb_per_node=HOST_MEMORY_MB_PER_GPU * gpus,
        cpus_per_node=max(16 * gpus, os.cpu_count() or 1),
    ) as found:
        RESULTS.update(gpu=found.gpu_before, gpus=gpus, simulated=found.is_simulated)
        yield found


def note(bed: GpuNode, batch: Batch, entry: dict[str, Any], told: str) -> None:
    """Keep what was measured, and say it."""
    with LOCK:
        RESULTS.setdefault("batches", {}).setdefault(str(batch), []).append(entry)
        bed.write("planner.json", RESULTS)
    print(f"\n{time.monotonic() - STARTED_S:5.0f} s  {batch}: {told}", flush=True)


def compare(alone: dict[str, Any], pack: dict[str, Any]) -> dict[str, float]:
    """How many times one alone a pack is, in throughput and in wall time for the same work."""
    return {
        "ratio": pack["images_per_s_sum"] / alone["images_per_s_sum"],
        "wall_ratio": pack["members"] * alone["wall_s"] / pack["wall_s"],
    }


def measure_rounds(bed: GpuNode, batch: Batch) -> None:
    """Rounds of one alone and a pack, as many as there is time for."""
    script = write_script(bed, batch, ROUND_S)
    longest_s = 0.0
    for number in range(1, ROUNDS + 1):
        begin_s = time.monotonic()
        if begin_s - STARTED_S + longest_s > BUDGET_S:
            break
        run = f"{batch.name}-{number}"
        alone = run_together(bed, batch, script, f"{run}-alone", members=1, window_s=WINDOW_S)
        members, planned = choose_members(bed, batch, script)
        pack = run_together(bed, batch, script, f"{run}-pack", members=members, window_s=WINDOW_S)
        entry = {"alone": alone, "planned": planned, "pack": pack, **compare(alone, pack)}
        told = (
            f"alone {alone['images_per_s_sum']:.0f}, {members} together "
            f"{pack['images_per_s_sum']:.0f} images/s ({pack['window_s']:.0f} s, "
            f"{pack['thread_percentages']}): {entry['ratio']:.2f} times, wall "
            f"{entry['wall_ratio']:.2f} times"
        )
        if batch.training in FUSED and number % 2:
            times = FUSED[batch.training]
            larger = write_script(bed, batch, WINDOW_S / 3, fused=times)
            fused = run_together(
                bed, batch, larger, f"{run}-fused", members=1, window_s=WINDOW_S / 4
            )
            entry["fused"] = fused
            entry["fused_share"] = pack["images_per_s_sum"] / fused["images_per_s_sum"]
            told += f", {entry['fused_share']:.1%} of one process with {times} times the batch"
        longest_s = max(longest_s, time.monotonic() - begin_s)
        note(bed, batch, entry, f"round {number}: {told}")


def measure_wall(bed: GpuNode, batch: Batch) -> None:
    """One alone and a pack, so long that starting is little of it."""
    script = write_script(bed, batch, WALL_S)
    alone = run_together(bed, batch, script, f"{batch.name}-alone", members=1, window_s=WALL_S)
    members, planned = choose_members(bed, batch, script)
    pack = run_together(bed, batch, script, f"{batch.name}-pack", members=members, window_s=WALL_S)
    entry = {"alone": alone, "planned": planned, "pack": pack, **compare(alone, pack)}
    shares = [each["to_first_step_s"][0] / each["wall_s"] for each in (alone, pack)]
    note(
        bed,
        batch,
        entry,
        f"{members} together: wall {alone['wall_s']:.0f} and {pack['wall_s']:.0f} s, "
        f"{entry['wall_ratio']:.2f} times (throughput {entry['ratio']:.2f}), of which starts "
        f"{shares[0]:.1%} and {shares[1]:.1%}",
    )


def measure_ramp(bed: GpuNode, batch: Batch) -> None:
    """Trainings that csub does not know, and what it plans once it does."""
    script = write_script(bed, batch, RAMP_S)
    # Of trainings that nobody knows, nothing but its user's word makes one pack.
    more = [f"--degree={batch.members}"]
    before = plan(bed, batch, script, batch.members, more)
    pack = run_together(
        bed,
        batch,
        script,
        f"{batch.name}-pack",
        members=batch.members,
        window_s=WINDOW_S,
        more=more,
    )
    steps = [event for event in bed.read_events(pack["job_id"]) if event["event"] == "ramp"]
    members, planned = choose_members(bed, batch, script)
    entry = {"before": before, "pack": pack, "ramp": steps, "known": members, "planned": planned}
    note(
        bed,
        batch,
        entry,
        f"targets {[step['target'] for step in steps]}, {pack['together']} together of "
        f"{pack['members']}, {pack['images_per_s_sum']:.0f} images/s; {pack['lost_s']:.0f} s of "
        f"{pack['wall_s']:.0f} s lost; known, {members} would start",
    )


def measure_declined(bed: GpuNode, batch: Batch) -> None:
    """One alone that fills the GPU, and what csub does with several."""
    script = write_script(bed, batch, WINDOW_S)
    alone = run_together(bed, batch, script, f"{batch.name}-alone", members=1, window_s=WINDOW_S)
    planned = plan(bed, batch, script, batch.members)
    words = [*batch.asked, f"--max-slowdown={batch.bound:g}", f"--array=1-{batch.members}"]
    explained = bed.user.csub("plan", "--explain", *words, str(script)).stdout
    answer = json.loads(bed.user.csub("--json", *words, "--hold", str(script)).stdout)
    packs = [pack for each in answer["submitted"] for pack in each["packs"]]
    for each in answer["submitted"]:
        bed.user.csub("cancel", "--yes", each["job_id"])
    entry = {
        "alone": alone,
        "planned": planned,
        "explained": explained,
        "submitted": packs,
    }
    degrees = ", ".join(f"{pack['mode']} {pack['degree']}" for pack in packs)
    note(bed, batch, entry, f"{degrees}\n{explained}")


PARTS = {
    "rounds": measure_rounds,
    "wall": measure_wall,
    "ramp": measure_ramp,
    "declined": measure_declined,
}


def test_packs_as_planned_against_one_at_a_time(bed: GpuNode) -> None:
    batches = [Batch.parse(text) for text in BATCHES]
    RESULTS["images_per_s"] = look_at_speeds(bed, (batch.training for batch in batches))
    if any(batch.training == LOADER for batch in batches):
        files = [str(bed.user.home / "images"), str(bed.scale.files)]
        bed.user.run([sys.executable, str(HERE / "image_files.py"), *files])
    pool = concurrent.futures.ThreadPoolExecutor(max(1, int(RESULTS["gpus"])))
    try:
        running = {pool.submit(PARTS[batch.part], bed, batch): batch for batch in batches}
        problems = [
            f"{batch}: {problem}"
            for one, batch in running.items()
            if (problem := one.exception()) is not None
        ]
    except KeyboardInterrupt:
        # The time is over: what packs have noted so far is better than nothing.
        RESULTS["noted"] = {name: bed.read_events(job_id) for name, job_id in bed.jobs.items()}
        bed.write("planner.json", RESULTS)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for name, rounds in RESULTS.get("batches", {}).items():
        ratios = [each["ratio"] for each in rounds if "ratio" in each]
        if ratios:
            print(
                f"\n{name}: {statistics.median(ratios):.2f} times "
                f"({min(ratios):.2f} to {max(ratios):.2f})",
                end="",
            )
    assert not problems, "\n".join(problems)
    missing = {str(batch) for batch in batches} - set(RESULTS["batches"])
    assert not missing, f"not measured: {json.dumps(sorted(missing))}"
