"""Trainings of a minute that csub does not know, and what a user would type in its place.

Through a real Slurm on a real GPU. Figures are written to degree.json and degree.csv and not
judged: the wall time from the moment when Slurm starts the first to the end of the last, over that
of one alone in the same call.

CSUB_GPU_DEGREE names the runs after one alone: `unknown`, `known`, `background` (& and wait), `mps`
(the same under a daemon of one line), `hyperqueue` (each a task with a part of the GPU), and
`frameworks`: the four trainings of train_frameworks.py, each alone and then known in one pack, over
the longest alone. CSUB_GPU_TRAINING is small, medium, large or hog,
CSUB_GPU_MEMBERS how many there are, CSUB_GPU_WORK_S how many seconds of work each has alone, and
CSUB_GPU_OPTIONS more options for csub. With CSUB_GPU_SIMULATED=1 it runs on the simulated GPU.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode, read_number, running_gpu_node
from .planned import IMAGES_PER_S, look_at_speeds

pytestmark = [pytest.mark.gpu, pytest.mark.slurm, pytest.mark.root, pytest.mark.timeout(1800)]

RUNS = os.environ.get("CSUB_GPU_DEGREE", "unknown background mps known").split()
TRAINING = os.environ.get("CSUB_GPU_TRAINING", "small")
MEMBERS = int(read_number("CSUB_GPU_MEMBERS", 12))
WORK_S = read_number("CSUB_GPU_WORK_S", 60)
BUDGET_S = read_number("CSUB_GPU_BUDGET_S", 520)
ASKED_OF_ALL = ("--gres=gpu:1", "--mem=4G", "--time=20", "--join=never")
ASKED = (*ASKED_OF_ALL, "-c1")
FRAMEWORKS = {"loader": 3, "trainer": 1, "lightning": 1, "graph": 1}
"""With the cores that each asks for."""
ONE_LINE_MPS = (
    "export CUDA_MPS_PIPE_DIRECTORY=$PWD/p CUDA_MPS_LOG_DIRECTORY=$PWD/l; mkdir -p p l; "
    "nvidia-cuda-mps-control -d"
)
OPTIONS = os.environ.get("CSUB_GPU_OPTIONS", "").split()
STARTED = time.monotonic()
RESULTS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    """One Slurm and one user for all of it."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    gpus = gpus or int(read_number("CSUB_GPU_SIMULATED_GPUS", 1))
    with running_gpu_node(
        archive="kept-degree.tar.gz",
        gpus_per_node=gpus,
        host_memory_mb_per_node=110_000 * gpus,
        cpus_per_node=max(16 * gpus, os.cpu_count() or 1),
    ) as found:
        RESULTS.update(gpu=found.gpu_before, gpus=gpus, simulated=found.is_simulated)
        yield found


def write_training(bed: GpuNode, name: str) -> Path:
    """A script with as much work as one alone does in WORK_S; each name is another script."""
    images = 70_000 if bed.is_simulated else int(WORK_S * IMAGES_PER_S[TRAINING])
    program = [sys.executable, str(HERE / "train_sized.py"), "--size", TRAINING]
    program += ["--images", str(images)]
    program += ["--device", "cpu"] if bed.is_simulated else []
    script = bed.user.home / f"{name}.sh"
    script.write_text(
        f"#!/bin/bash\n# {name}\n"
        f"exec {shlex.join(program)} --progress {bed.user.home}/{name}.$SLURM_ARRAY_TASK_ID\n"
    )
    script.chmod(0o755)
    return script


def note(bed: GpuNode, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    alone = RESULTS.get("alone", entry)
    entry.setdefault("wall_ratio", entry["wall_s"] / alone["wall_s"])
    RESULTS[name] = entry
    bed.write("degree.json", RESULTS)
    print(
        f"\n{time.monotonic() - STARTED:5.0f} s  {name}: {entry['members']} in "
        f"{entry['wall_s']:.1f} s, {entry['wall_ratio']:.2f} times one alone",
        flush=True,
    )
    return entry


def run_packs(bed: GpuNode, name: str, script: Path, members: int) -> dict[str, Any]:
    """Submit an array; from Slurm's first start to the last member's end."""
    words = (*ASKED, f"--array=1-{members}", "--max-slowdown=1.5", *OPTIONS, str(script))
    planned = json.loads(bed.user.csub("plan", "--json", *words).stdout)
    return finish_packs(bed, name, words, planned["packs"])


def finish_packs(bed: GpuNode, name: str, words: Sequence[str], planned: Any) -> dict[str, Any]:
    """Submit and wait until all have ended; how long that took, and what csub says."""
    job_id = bed.submit(name, *words)
    bed.finish(job_id, patience_s=500)
    rows = list(bed.user.members(job_id).values())
    starts = [row["started_at"] for row in rows if row["started_at"]]
    entry = {
        "members": len(rows),
        "wall_s": max(row["ended_at"] for row in rows) - min(starts),
        "states": sorted({row["state"] for row in rows}),
        "starts_s": sorted(start - min(starts) for start in starts),
        "planned": planned,
        "degrees": read_degrees(bed, job_id),
        "report": json.loads(bed.user.csub("report", "--json", job_id).stdout),
        "why": bed.user.csub("why", job_id).stdout.splitlines()[:3],
    }
    assert entry["states"] == ["COMPLETED"]
    return entry


def read_degrees(bed: GpuNode, job_id: str) -> list[dict[str, Any]]:
    """What each pack of a submission has measured."""
    found = []
    for path in sorted((bed.user.state / "packs").glob("*/degree.json")):
        known = path.parent / "slurm_job_id"
        if known.exists() and known.read_text().strip().partition("_")[0] == job_id:
            found.append(json.loads(path.read_text()))
    return found


def run_frameworks(bed: GpuNode) -> dict[str, Any]:
    """Four unlike trainings: each alone, so that it is known, then all in one pack."""
    home, alone = bed.user.home, {}
    scripts = []
    for name, cores in FRAMEWORKS.items():
        program = [sys.executable, str(HERE / "train_frameworks.py"), name, f"{home}/{name}.work"]
        program += ["--seconds", str(WORK_S * 2 / 3)]
        program += ["--device", "cpu"] if bed.is_simulated else []
        script = home / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH -c{cores}\nexec {shlex.join(program)}\n")
        scripts.append(str(script))
        job_id = bed.submit(f"{name}-alone", *ASKED_OF_ALL, str(script))
        (row,) = bed.finish(job_id, patience_s=300).values()
        assert row["state"] == "COMPLETED", row
        alone[name] = row["ended_at"] - row["started_at"]
        print(f"\n{name}: {alone[name]:.1f} s alone", flush=True)
    words = ("pack", *ASKED_OF_ALL, "--max-slowdown=1.5", *OPTIONS, *scripts)
    planned = json.loads(bed.user.csub("plan", "--json", *words).stdout)
    entry = finish_packs(bed, "frameworks", words, planned["packs"])
    entry["alone_s"] = alone
    entry["wall_ratio"] = entry["wall_s"] / max(alone.values())
    return entry


def run_in_background(
    bed: GpuNode, name: str, script: Path, members: int, before: Sequence[str] = ()
) -> dict[str, Any]:
    """What a user would type: one job in which all start with & and are waited for."""
    lines = ["#!/bin/bash", *before, "date +%s.%N > $1.begin"]
    lines += [f"for i in $(seq {members}); do SLURM_ARRAY_TASK_ID=$i bash {script} & done; wait"]
    lines += ["date +%s.%N > $1.end"]
    lines += ["echo quit | nvidia-cuda-mps-control"] if before else []
    return run_wrapper(bed, name, "\n".join(lines) + "\n", members)


HYPERQUEUE = """
import os, sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
with LocalCluster(worker_config=WorkerConfig(cores={members})) as cluster:
    job = Job()
    for number in range(1, {members} + 1):
        job.program(["bash", {script!r}], env={{**os.environ, "SLURM_ARRAY_TASK_ID": str(number)}})
    client = cluster.client()
    client.wait_for_jobs([client.submit(job)])
"""


def run_in_hyperqueue(bed: GpuNode, name: str, script: Path, members: int) -> dict[str, Any]:
    """Each a task of one core on a worker that runs in a job with the GPU, which they all see.

    The Python package's worker knows no GPUs, so that a part of one cannot be asked for; as many as
    have a part of it run at once, as they do where each asks for such a part.
    """
    program = HYPERQUEUE.format(members=members, script=str(script))
    lines = ["#!/bin/bash", "date +%s.%N > $1.begin", f"{sys.executable} - <<'END'", program, "END"]
    return run_wrapper(bed, name, "\n".join([*lines, "date +%s.%N > $1.end"]) + "\n", members)


def run_wrapper(bed: GpuNode, name: str, text: str, members: int) -> dict[str, Any]:
    """Run a script in one job of Slurm's that writes when it has begun and when it has ended."""
    wrapper = bed.user.home / f"{name}.wrapper"
    wrapper.write_text(text)
    mark = bed.user.home / name
    words = ["sbatch", "--gres=gpu:1", f"-c{members}", f"--mem={4 * members}G"]
    bed.user.run([*words, "--time=20", "--output=/dev/null", str(wrapper), str(mark)])
    bed.wait(Path(f"{mark}.end").exists, f"{name} has ended", patience_s=400)
    bed.wait(lambda: Path(f"{mark}.end").read_text(), f"{name} has ended")
    begin, end = (float(Path(f"{mark}.{part}").read_text()) for part in ("begin", "end"))
    return {"members": members, "wall_s": end - begin}


def test_trainings_of_a_minute(bed: GpuNode) -> None:
    look_at_speeds(bed, [TRAINING])
    RESULTS["images_per_s"] = IMAGES_PER_S[TRAINING]
    script = write_training(bed, f"{TRAINING}-alone")
    note(bed, "alone", run_packs(bed, "alone", script, 1))
    for run in RUNS:
        if time.monotonic() - STARTED > BUDGET_S:
            print(f"\nno time for {run}", flush=True)
            break
        if run == "unknown":
            entry = run_packs(bed, run, write_training(bed, f"{TRAINING}-new"), MEMBERS)
        elif run == "known":
            entry = run_packs(bed, run, script, MEMBERS)
        elif run == "frameworks":
            entry = run_frameworks(bed)
        elif run == "hyperqueue":
            entry = run_in_hyperqueue(bed, run, write_training(bed, run), MEMBERS)
        else:
            before = [ONE_LINE_MPS] if run == "mps" and not bed.is_simulated else []
            entry = run_in_background(bed, run, write_training(bed, run), MEMBERS, before)
        note(bed, run, entry)
    with (bed.out / "degree.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["run", "training", "members", "wall_s", "times_one_alone"])
        for name in ("alone", *RUNS):
            if name in RESULTS:
                entry = RESULTS[name]
                table.writerow(
                    [name, TRAINING, entry["members"], entry["wall_s"], entry["wall_ratio"]]
                )
