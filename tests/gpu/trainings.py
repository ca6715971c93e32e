"""Trainings of one measurement: started as a pack, and what came of them."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode
from .throughput import choose_window, compute_rates, compute_wall_s, parse_series

PATIENCE_S = 240.0


@dataclass(frozen=True)
class Kind:
    """One row of the table.

    Args:
        name: Its name in results.
        share: `--share`; empty for one training alone, in an allocation of its own.
        window_s: Length of the common window.
        arguments: For train_small.py: how long it trains, and on what.
    """

    name: str
    share: str
    window_s: float
    arguments: tuple[str, ...]


def run_trainings(bed: GpuNode, kind: Kind) -> dict[str, Any]:
    """Run the trainings of a kind in one pack; what was measured.

    The members of all kinds ask for the same, so that Slurm and csub give each the same number of
    cores.
    """
    folder = bed.user.home / kind.name
    folder.mkdir()
    os.chown(folder, bed.user.uid, bed.user.gid)
    program = [sys.executable, str(HERE / "train_small.py"), *kind.arguments]
    program += ["--cores", str(bed.scale.cpus)]
    if bed.is_simulated:
        program += ["--device", "cpu", "--batch", "2"]
    script = bed.user.script(
        f"{kind.name}.sh", f'exec {shlex.join(program)} --progress "{folder}/$1"'
    )
    asked = ["--gres=gpu:1", f"--cpus-per-task={bed.scale.cpus}", "--mem=6G", "--time=8"]
    members = bed.scale.members if kind.share else 1
    if kind.share:
        scripts = [f"{script} {number}" for number in range(1, members + 1)]
        share = [f"--share={kind.share}", f"--degree={members}"]
        job_id = bed.submit(kind.name, "pack", *share, *asked, *scripts)
    else:
        job_id = bed.submit(kind.name, *asked, str(script), "1")
    rows = bed.finish(job_id, patience_s=PATIENCE_S)
    for row in rows.values():
        assert row["state"] == "COMPLETED", bed.user.describe(job_id)
    texts = {number: (folder / str(number)).read_text() for number in sorted(rows)}
    append_csv(bed.out / "mps.csv", kind.name, texts)
    return measure(bed, kind, job_id, rows, texts)


def measure(
    bed: GpuNode, kind: Kind, job_id: str, rows: dict[int, dict[str, Any]], texts: dict[int, str]
) -> dict[str, Any]:
    """Put together what trainings, csub and Slurm have written."""
    series = [parse_series(text) for text in texts.values()]
    window = choose_window(series, kind.window_s)
    rates = compute_rates(series, window)
    log = (bed.sandbox.layout.log / "slurmctld.log").read_text(errors="replace")
    printed = [read_printed(bed, job_id, number) for number in texts]
    setup = bed.read_setup(job_id)
    return {
        "job_id": job_id,
        "members": len(rows),
        "asked": kind.share or "alone",
        "modes": sorted({row["mode"] for row in rows.values()}),
        "mps_clients": sum(row["is_mps_client"] is True for row in rows.values()),
        "thread_percentages": sorted({str(row["thread_percentage"]) for row in rows.values()}),
        "window_s": round(window.length_s, 3),
        "window_wanted_s": kind.window_s,
        "images_per_s": [round(rate, 1) for rate in rates],
        "images_per_s_sum": round(sum(rates), 1),
        "wall_s": compute_wall_s(log, job_id),
        "to_first_step_s": [each["to_first_step_s"] for each in printed],
        "training_s": [each["training_s"] for each in printed],
        "cpus": [each["cpus"] for each in printed],
        "starts": [row["starts"] for row in rows.values()],
        "model": printed[0]["model"],
        "torch": printed[0]["torch"],
        "multiprocessors": printed[0]["multiprocessors"],
        "gpu_memory_peak_mb": printed[0]["gpu_memory_peak_mb"],
        "losses_are_finite": all(each["loss_is_finite"] for each in printed),
        "setup": {name: setup.get(name) for name in ("control_ms", "active_ms", "stop_ms")},
    }


def read_printed(bed: GpuNode, job_id: str, number: int) -> dict[str, Any]:
    """What a training printed at its end."""
    for name in (f"slurm-{job_id}_{number}.out", f"slurm-{job_id}.out"):
        lines = bed.user.output(name).strip().splitlines()
        with contextlib.suppress(ValueError, IndexError):
            value: dict[str, Any] = json.loads(lines[-1])
            return value
    pytest.fail(f"training {number} of {job_id} printed nothing\n{bed.user.describe(job_id)}")


def append_csv(path: Path, name: str, texts: dict[int, str]) -> None:
    """Add the raw progress of a measurement: run, member, monotonic clock in seconds, images."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(["run", "member", "monotonic_s", "images"])
        for number, text in texts.items():
            for line in text.splitlines():
                writer.writerow([name, number, *line.split()])


def compare(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ratios of shared runs to the one alone of the same work, as far as they are there."""
    found: dict[str, Any] = {}
    for alone_name, shared_names in (
        ("alone", ("mps", "timeslice")),
        ("files-alone", ("files-mps",)),
    ):
        for name in shared_names:
            if alone_name not in runs or name not in runs:
                continue
            alone, shared = runs[alone_name], runs[name]
            found[f"{name}_throughput_ratio"] = round(
                shared["images_per_s_sum"] / alone["images_per_s_sum"], 3
            )
            found[f"{name}_slowdown_of_each"] = round(
                alone["images_per_s_sum"] / statistics.mean(shared["images_per_s"]), 3
            )
            found[f"{name}_cores_alike"] = {len(cpus) for cpus in alone["cpus"]} == {
                len(cpus) for cpus in shared["cpus"]
            }
    if "alone" in runs and "mps" in runs:
        # Only these two do the same work to its end.
        members = runs["mps"]["members"]
        found["mps_wall_time_ratio"] = round(
            members * runs["alone"]["wall_s"] / runs["mps"]["wall_s"], 3
        )
    return found
