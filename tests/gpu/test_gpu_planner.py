"""Packs as csub plans them, against one training at a time, through a real Slurm on a real GPU.

For each size a training runs alone, which makes its usage profile; then as many as csub plans to
put into one pack run together, and so on in turn. Both are counted in a common window, and timed
from the moment when Slurm starts them to the moment when the last has ended. Where the machine has
several GPUs, sizes are measured beside each other, a GPU and its share of the cores each. Figures
are written to planner.json and planner.csv and not judged.

CSUB_GPU_SIZES: `small:16:1.5 medium:8:2` are name, the most members, and --max-slowdown.
"""

from __future__ import annotations

import concurrent.futures
import csv
import json
import os
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .bed import HERE, Bed, read_number, running_bed
from .throughput import choose_window, compute_rates, compute_wall_s, parse_series
from .trainings import read_printed
from .watched import leave_simulated_gpu, use_simulated_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(900),
]

WINDOW_S = read_number("CSUB_GPU_WINDOW_S", 60)
ROUNDS = int(read_number("CSUB_GPU_ROUNDS", 5))
BUDGET_S = read_number("CSUB_GPU_BUDGET_S", 480)
SIZES = os.environ.get("CSUB_GPU_SIZES", "small:16:1.5 small:16:2 medium:8:2 large:4:2").split()
# A little more than one alone does in a second, so that the window fits into the work.
IMAGES_PER_S = {"small": 19000, "medium": 11000, "large": 950}
STARTED_S = time.monotonic()
RESULTS: dict[str, Any] = {}
LOCK = threading.Lock()


@dataclass(frozen=True)
class Size:
    """One of the three trainings.

    Args:
        name: Its name.
        members: As many may be submitted together.
        bound: `--max-slowdown`.
    """

    name: str
    members: int
    bound: float

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read `small:12:1.5`."""
        name, members, bound = text.split(":")
        return cls(name, int(members), float(bound))


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """One Slurm and one user for all of it."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*"))) or 1
    with running_bed(archive="kept-planner.tar.gz", gpus_per_node=gpus) as found:
        RESULTS.update(gpu=found.gpu_before, gpus=gpus, simulated=found.is_simulated)
        yield found


def write_script(bed: Bed, size: Size) -> Path:
    """The script of a size, the same for one alone and for every member of a pack."""
    folder = bed.user.home / f"{size.name}.progress"
    folder.mkdir(exist_ok=True)
    os.chown(folder, bed.user.uid, bed.user.gid)
    images = int(WINDOW_S * 1.1 * IMAGES_PER_S[size.name])
    program = [sys.executable, str(HERE / "train_sized.py"), "--size", size.name]
    program += ["--images", str(int(WINDOW_S * 70000) if bed.is_simulated else images)]
    program += ["--device", "cpu"] if bed.is_simulated else []
    file = f"{folder}/$SLURM_JOB_ID.${{SLURM_ARRAY_TASK_ID:-0}}"
    lines = [
        f'export PYTHONPATH="{HERE.parent.parent}"',
        *use_simulated_gpu(bed),
        f'{shlex.join(program)} --progress "{file}"',
        *leave_simulated_gpu(bed),
    ]
    return bed.user.script(f"{size.name}.sh", "\n".join(lines))


def choose_members(
    bed: Bed, size: Size, script: Path, asked: list[str]
) -> tuple[int, dict[str, Any]]:
    """The most trainings that csub plans to put into one pack, and that plan."""
    bound = f"--max-slowdown={size.bound:g}"
    for count in range(size.members, 1, -1):
        words = ["plan", "--json", *asked, bound, f"--array=1-{count}", str(script)]
        planned: dict[str, Any] = json.loads(bed.user.csub(*words).stdout)
        if len(planned["packs"]) == 1:
            return count, planned
    pytest.fail(f"csub plans to let {size.name} run alone: {planned['packs'][0]['reasons']}")


def run_once(bed: Bed, size: Size, script: Path, name: str, members: int) -> dict[str, Any]:
    """Run one training alone, or as many as make one pack; what was measured."""
    asked = ["--gres=gpu:1", "--cpus-per-task=1", "--mem=4G", "--time=15"]
    planned = None
    if members > 1:
        members, planned = choose_members(bed, size, script, asked)
        asked += [f"--array=1-{members}", f"--max-slowdown={size.bound:g}"]
    folder = bed.user.home / f"{size.name}.progress"
    job_id = bed.submit(name, *asked, str(script))
    rows = bed.finish(job_id, patience_s=600)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}, bed.user.describe(job_id)
    files = sorted(folder.glob(f"{job_id}.*"))
    texts = {path.name: path.read_text() for path in files}
    series = [parse_series(text) for text in texts.values()]
    try:
        window = choose_window(series, WINDOW_S)
    except ValueError as problem:
        pytest.fail(f"{name}: {problem}\n{bed.user.describe(job_id)}")
    rates = compute_rates(series, window)
    printed = [read_printed(bed, job_id, number) for number in rows]
    log = (bed.sandbox.layout.log / "slurmctld.log").read_text(errors="replace")
    with LOCK, (bed.out / "planner.csv").open("a", newline="") as file:
        writer = csv.writer(file)
        for member, text in texts.items():
            writer.writerows([name, member, *line.split()] for line in text.splitlines())
    report = json.loads(bed.user.csub("report", "--json", job_id).stdout)
    return {
        "job_id": job_id,
        "members": len(rows),
        "images_per_s_sum": sum(rates),
        "images_per_s": rates,
        "window_s": window.length_s,
        "wall_s": compute_wall_s(log, job_id),
        "gpus": sorted({each["gpu"] for each in printed if each["gpu"]}),
        "thread_percentages": sorted({str(each["thread_percentage"]) for each in printed}),
        "to_first_step_s": [each["to_first_step_s"] for each in printed],
        "training_s": [each["training_s"] for each in printed],
        "states": sorted({row["mode"] for row in rows.values()}),
        "plan": planned,
        "report": report,
    }


def measure(bed: Bed, size: Size) -> None:
    """Rounds of one alone and a pack, as many as there is time for."""
    script = write_script(bed, size)
    rounds = RESULTS.setdefault("sizes", {}).setdefault(f"{size.name} at {size.bound:g}", [])
    longest_s = 0.0
    for number in range(1, ROUNDS + 1):
        begin_s = time.monotonic()
        if begin_s - STARTED_S + longest_s > BUDGET_S:
            break
        alone = run_once(bed, size, script, f"{size.name}-{size.bound:g}-{number}-alone", 1)
        pack = run_once(
            bed, size, script, f"{size.name}-{size.bound:g}-{number}-pack", size.members
        )
        ratio = pack["images_per_s_sum"] / alone["images_per_s_sum"]
        wall = pack["members"] * alone["wall_s"] / pack["wall_s"]
        longest_s = max(longest_s, time.monotonic() - begin_s)
        with LOCK:
            rounds.append({"alone": alone, "pack": pack, "ratio": ratio, "wall_ratio": wall})
            bed.write("planner.json", RESULTS)
        print(
            f"\n{time.monotonic() - STARTED_S:5.0f} s  {size.name} round {number}: alone "
            f"{alone['images_per_s_sum']:.0f}, {pack['members']} together "
            f"{pack['images_per_s_sum']:.0f} images/s ({pack['window_s']:.0f} s, "
            f"{pack['thread_percentages']}): {ratio:.2f} times, wall {wall:.2f} times",
            flush=True,
        )


def test_packs_as_planned_against_one_at_a_time(bed: Bed) -> None:
    sizes = [Size.parse(text) for text in SIZES]
    program = [sys.executable, str(HERE / "train_sized.py"), "--size", "small", "--images", "128"]
    program += ["--device", "cpu"] if bed.is_simulated else []
    environment = {"PYTHONPATH": str(HERE.parent.parent)}
    bed.user.run([*program, "--progress", str(bed.user.home / "warm")], environment=environment)
    lanes = max(1, int(RESULTS["gpus"]))
    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(measure, bed, size) for size in sizes]:
            done.result()
    for name, rounds in RESULTS["sizes"].items():
        ratios = [each["ratio"] for each in rounds]
        assert ratios, f"no round of {name} was measured"
        middle = statistics.median(ratios)
        print(f"\n{name}: {middle:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})", end="")
