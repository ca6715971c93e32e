"""One process divides a job and forks a runner for each of its GPU sets, as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from slurm_colloc.store.pack_directory import read_division

from .gpu_set_job import GpuSetJob

_RUN = """
import json, os, sys
from slurm_colloc.runtime.__main__ import put_under_guard, read_plan
guard = put_under_guard(sys.argv[1], read_plan(sys.argv[1]))
from slurm_colloc.runtime.start_runners import become_runner
pack = become_runner(sys.argv[1], guard)
told = {"pack": os.path.basename(pack), "pid": os.getpid(), "cpus": sorted(os.sched_getaffinity(0)),
        "environment": {n: v for n, v in os.environ.items() if n.startswith(("SLURM", "CUDA"))}}
os.write(1, json.dumps(told).encode() + b"\\n")
os._exit(int(sys.argv[2]) if pack.endswith("~1.0") else 0)
"""


def run(
    job: GpuSetJob, status: int = 0, **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]]:
    cpus = len(os.sched_getaffinity(0))
    given = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "4,5",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_MEM_PER_NODE": "4000",
        **environment,
    }
    ended = subprocess.run(
        [sys.executable, "-I", "-c", _RUN, str(job.path(0)), str(status)],
        env=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    return ended, {each["pack"]: each for each in told}


def test_each_runner_has_what_a_job_with_its_share_alone_would_have(tmp_path: Path) -> None:
    job = GpuSetJob(tmp_path)
    job.submit_sets(1, 1, degree=1)
    ended, told = run(job, 7)
    assert ended.stderr == ""
    # The worst of them counts.
    assert ended.returncode == 7
    first, second = (told[job.path(number).name] for number in (0, 1))
    assert first["pid"] != second["pid"]
    environments = [each["environment"] for each in (first, second)]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments] == ["0", "1"]
    assert [e["SLURM_JOB_GPUS"] for e in environments] == ["4", "5"]
    assert [e["SLURM_MEM_PER_NODE"] for e in environments] == ["2000", "2000"]
    division = read_division(job.path(0))
    assert division is not None
    for share, each in zip(division.shares, (first, second), strict=True):
        assert share.slurm_gpus == (each["environment"]["SLURM_JOB_GPUS"],)
        if share.cpus:
            assert tuple(each["cpus"]) == share.cpus
            assert each["environment"]["SLURM_CPUS_ON_NODE"] == str(len(share.cpus))


def test_a_set_without_a_gpu_has_a_runner_that_says_so(tmp_path: Path) -> None:
    job = GpuSetJob(tmp_path)
    job.submit_sets(1, 1)
    _, told = run(job, SLURM_JOB_GPUS="4", CUDA_VISIBLE_DEVICES="0")
    assert told[job.path(1).name]["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    division = read_division(job.path(0))
    assert division is not None
    assert division.shares[1].problem == "Slurm gave 1 GPUs, and 0 of the 1 of this set are left"


def test_a_pack_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    job = GpuSetJob(tmp_path)
    job.submit_sets(1, 1)
    path = job.path(0) / "pack.json"
    value = json.loads(path.read_text())
    value["degree"] = "many"
    path.write_text(json.dumps(value))
    ended, told = run(job)
    assert told == {}
    assert ended.returncode > 0
    assert ended.stderr.startswith(f"csub: error: {path} is damaged")
    assert "Traceback" not in ended.stderr
