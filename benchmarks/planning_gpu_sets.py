"""What planning for nodes of eight GPUs takes: from jobs to the GPU sets of each Slurm job.

`python -m benchmarks.planning_gpu_sets COUNT KIND` plans once, in this process, and prints what it
took.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from benchmarks.measuring import Section, Series, format_series, run_in_new_processes
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, KnownBy, Policy, SharingMode, UsageProfile
from slurm_colloc.planning.gpu_set_packs import group_by_slurm_job
from slurm_colloc.planning.plan_packs import plan
from tests.planning.coefficients import CALIBRATION

RUNS = 5
_CASES = (("1000", "unknown"), ("1000", "known"), ("1000", "sweep"))
_TARGET_MS = 2000.0
_HEADER = ("jobs", "kinds", "target", "median", "quartiles", "runs", "Slurm jobs", "GPU sets")
_ABOUT = (
    "Nodes have eight GPUs, 128 CPUs and 512 GB. `unknown`: half need one GPU, a third two, a "
    "sixth four; `known`: one GPU, all loads differ; `sweep`: one GPU, one load. Time is that of "
    "the plan with all that it imports, without Python's start."
)
_NODE = Capacity(16, 64_000, 80_000, 86_400, 3600, 8, gives_whole_nodes=True)


def measure_planning_gpu_sets() -> Section:
    """Plan jobs of several kinds, each time in a new process."""
    rows = []
    for count, kind in _CASES:
        found = run_in_new_processes("benchmarks.planning_gpu_sets", (count, kind), RUNS)
        series = Series(tuple(one["ms"] for one in found))
        rows.append(
            (
                count,
                kind,
                *format_series(series, "ms", target=_TARGET_MS),
                f"{found[0]['slurm_jobs']:.0f}",
                f"{found[0]['gpu_sets']:.0f}",
            )
        )
    return Section("Planning for nodes of eight GPUs", _HEADER, tuple(rows), (_ABOUT,))


def _build_job(number: int, gpus: int) -> Job:
    return Job(
        number, "train", "train.sh", (), "/tmp", cpus=2, gpus=gpus, time_limit_s=3600,
        came_together=True,
    )  # fmt: skip


def _build_profile(chance: random.Random) -> UsageProfile:
    sm = 0.02 + 0.75 * chance.random() ** 2
    return UsageProfile(
        gpu_memory_peak_mb=chance.randint(1000, 30_000),
        sm_activity=sm,
        dram_activity=sm * chance.uniform(0.2, 0.9),
        engine_activity=sm**0.55,
        cpu_cores=1.0,
        power_w=120 + 500 * sm,
        idle_power_w=75.0,
        steps_per_s=10.0,
        run_s=min(3600.0, chance.lognormvariate(6, 0.7)),
        known_by=KnownBy.EXACT,
        gpu_model=CALIBRATION.gpu_model,
    )


def _plan(count: int, kind: str) -> dict[str, Any]:
    chance = random.Random(count)
    sizes = (1, 1, 1, 2, 2, 4) if kind == "unknown" else (1,)
    jobs = [_build_job(number, chance.choice(sizes)) for number in range(1, count + 1)]
    profiles: dict[int, UsageProfile] = {}
    if kind != "unknown":
        one = _build_profile(chance)
        profiles = {i: one if kind == "sweep" else _build_profile(chance) for i in range(count)}
    policy = Policy(measures=True, gpus_per_pack=8, modes=(SharingMode.MPS, SharingMode.TIMESLICE))
    begun = time.perf_counter()
    made = plan(jobs, profiles, _NODE, policy, CALIBRATION if profiles else None)
    took_ms = (time.perf_counter() - begun) * 1000
    assert sum(len(pack.members) for pack in made.packs) == count
    groups = group_by_slurm_job(made.packs)
    return {"ms": took_ms, "slurm_jobs": len(groups), "gpu_sets": len(made.packs)}


if __name__ == "__main__":
    print(json.dumps(_plan(int(sys.argv[1]), sys.argv[2])))
