"""Latency of a served model in one pack with four trainings, and what that costs the trainings.

Through a real Slurm on a real GPU. Figures are written to serving.json and not judged.

CSUB_GPU_SERVING names the runs: `none` (the trainings alone), `fast` (the server has
`--priority=fast`), `equal` (it has not). A server is alone, beside the trainings, and alone again.
CSUB_GPU_WINDOW_S is the length of each of these. With CSUB_GPU_SIMULATED=1 it runs on the simulated
GPU, and its figures mean nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode, read_number, running_gpu_node
from .test_gpu_afternoon import write_script

pytestmark = [pytest.mark.gpu, pytest.mark.slurm, pytest.mark.root, pytest.mark.timeout(1800)]

RUNS = os.environ.get("CSUB_GPU_SERVING", "none fast equal").split()
WINDOW_S = read_number("CSUB_GPU_WINDOW_S", 30.0)
SETTLING_S = read_number("CSUB_GPU_SETTLING_S", 25.0)
"""For the trainings' warm-up and the runner's first measurement."""
RECENT_S = 5.0
TRAININGS = 4
REQUESTS_PER_S = 50.0
ASKED = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=5G", "--time=20", "--join", "--open")
RESULTS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    with running_gpu_node(archive="kept-serving.tar.gz", host_memory_mb_per_node=120_000) as found:
        RESULTS.update(gpu=found.gpu_before, simulated=found.is_simulated)
        yield found


def submit(bed: GpuNode, run: str, *words: str) -> str:
    """The member's name."""
    told = bed.user.csub(*ASKED, *words)
    found = re.search(r"member (\d+/\d+)", told.stdout + told.stderr)
    assert found, told
    name = found.group(1)
    bed.jobs.setdefault(f"{run}-{name.partition('/')[0]}", name.partition("/")[0])
    return name


def start_server(bed: GpuNode, run: str) -> tuple[str, Path]:
    out = bed.user.home / f"{run}.latencies"
    script = bed.user.home / f"serve-{run}.sh"
    device = "--device=cpu" if bed.is_simulated else ""
    program = f"{sys.executable} {HERE / 'serve_model.py'}"
    script.write_text(f"#!/bin/bash\nexec {program} {REQUESTS_PER_S} {out} {device}\n")
    script.chmod(0o755)
    fast = ["--priority=fast"] if run == "fast" else []
    name = submit(bed, run, "--no-pause", *fast, str(script))
    bed.wait(lambda: out.exists() and out.stat().st_size, "requests are answered", patience_s=90)
    return name, out


def read_steps(bed: GpuNode) -> list[tuple[float, int]]:
    """When the monitor last looked, and the steps counted, of each member that makes some."""
    found = []
    for path in (bed.user.state / "packs").glob("*/latest.json"):
        latest = json.loads(path.read_text())
        if latest["at"] > time.time() - RECENT_S:
            found += [(latest["at"], m["steps"]) for m in latest["members"].values() if m["steps"]]
    return found


def run_trainings(bed: GpuNode, run: str) -> tuple[float, float, list[float]]:
    """Begin and end of a window in which all have settled, and their steps a second."""
    script = write_script(bed, "residual")
    members = [
        submit(bed, run, "--max-slowdown=8", str(script), "1000000", str(n))
        for n in range(TRAININGS)
    ]
    bed.wait(lambda: len(read_steps(bed)) == TRAININGS, "all make steps", patience_s=120)
    time.sleep(SETTLING_S)
    begin, first = time.time(), read_steps(bed)
    time.sleep(WINDOW_S)
    end, last = time.time(), read_steps(bed)
    bed.user.csub("cancel", "--yes", *members)
    rates = [(b - a) / (late - early) for (early, a), (late, b) in zip(first, last, strict=True)]
    return begin, end, rates


def summarise(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    found = {f"p{part}_ms": 1e3 * ordered[len(ordered) * part // 100] for part in (50, 95, 99)}
    return {"requests": len(ordered), **found}


@pytest.mark.parametrize("run", RUNS)
def test_serving_beside_trainings(bed: GpuNode, run: str) -> None:
    result: dict[str, Any] = {}
    if run == "none":
        _, _, result["steps_per_s"] = run_trainings(bed, run)
    else:
        name, out = start_server(bed, run)
        alone = [(time.time(), time.time() + WINDOW_S)]
        time.sleep(WINDOW_S)
        begin, end, result["steps_per_s"] = run_trainings(bed, run)
        time.sleep(5.0)
        alone.append((time.time(), time.time() + WINDOW_S))
        time.sleep(WINDOW_S)
        bed.user.csub("cancel", "--yes", name)
        rows = [tuple(map(float, line.split())) for line in out.read_text().splitlines()[:-1]]
        for what, windows in (("alone", alone), ("beside", [(begin, end)])):
            result[what] = summarise(
                [late for due, late in rows if any(a <= due < b for a, b in windows)]
            )
    result["sum_of_steps_per_s"] = sum(result["steps_per_s"])
    RESULTS[run] = result
    with contextlib.suppress(OSError):
        bed.write("serving.json", RESULTS)
    print(f"\n{run}: {json.dumps(result)}", flush=True)
