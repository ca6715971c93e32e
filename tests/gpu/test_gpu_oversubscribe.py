"""Trainings that take turns on a GPU whose memory does not hold them: eight of 20 GB on 80 GB.

All must end with the losses that they have undisturbed, to the last bit. How long the driver takes
both ways, and GB/s, are written to oversubscribe.json and not judged. CSUB_GPU_MEMBERS,
CSUB_GPU_MEMBER_GB, CSUB_GPU_STEPS and CSUB_GPU_TURN_S say how much.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ..cluster.mps import journal
from .gpu_node import HERE, GpuNode, read_number, running_gpu_node

pytestmark = [pytest.mark.gpu, pytest.mark.slurm, pytest.mark.root, pytest.mark.timeout(1800)]

MEMBERS = int(read_number("CSUB_GPU_MEMBERS", 8))
GB = read_number("CSUB_GPU_MEMBER_GB", 20)
STEPS = int(read_number("CSUB_GPU_STEPS", 300))
TURN_S = int(read_number("CSUB_GPU_TURN_S", 10))
RESULTS: dict[str, Any] = {"members": MEMBERS, "gb": GB, "steps": STEPS, "least_turn_s": TURN_S}


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    with running_gpu_node(
        archive="kept-oversubscribe.tar.gz",
        gpus_per_node=1,
        # What the pack asks for: the memory of all of them, once more with a margin.
        host_memory_mb_per_node=int(MEMBERS * (GB * 1.2 + 8) * 1024),
        cpus_per_node=max(16, os.cpu_count() or 1),
    ) as found:
        if found.is_simulated:
            pytest.skip("losses are real on a GPU alone")
        RESULTS.update(gpu=found.gpu_before)
        yield found


def write_training(bed: GpuNode) -> str:
    program = [sys.executable, str(HERE / "train_turns.py"), "--gb", str(GB), "--steps", str(STEPS)]
    script = bed.user.home / "turns.sh"
    script.write_text(
        "#!/bin/bash\nexport CUBLAS_WORKSPACE_CONFIG=:4096:8\n"
        f"exec {shlex.join(program)} --seed $SLURM_ARRAY_TASK_ID\n"
    )
    script.chmod(0o755)
    return str(script)


def read_output(bed: GpuNode, job_id: str, number: int) -> list[str]:
    path = bed.user.home / f"slurm-{job_id}_{number}.out"
    return [line for line in path.read_text().splitlines() if line.startswith(("loss", "sum"))]


def test_all_make_every_step_with_the_losses_of_undisturbed_runs(bed: GpuNode) -> None:
    script = write_training(bed)
    asked = ("--gres=gpu:1", "-c1", "--mem=6G", "--time=30", "--join=never")
    array = f"--array=1-{MEMBERS}"
    # Undisturbed: all would take too long, so the first two tell; both have room.
    alone = bed.submit("alone", *asked, "--array=1-2", "--share=timeslice", script)
    bed.finish(alone, patience_s=200)
    began = time.time()
    job_id = bed.submit(
        "turns",
        *asked,
        array,
        f"--degree={MEMBERS}",
        f"--take-turns={TURN_S}",
        f"--gpu-mem={int(GB * 1024) + 1024}M",
        script,
    )
    bed.finish(job_id, patience_s=540)
    rows = list(bed.user.members(job_id).values())
    moves = journal(bed.user, job_id, "moved_gpu_memory")
    kept = journal(bed.user, job_id, "keeps_gpu_memory")
    RESULTS.update(
        wall_s=time.time() - began,
        alone_s=[
            row["elapsed_s"] for row in bed.user.members(alone).values() if "elapsed_s" in row
        ],
        moves=[
            {
                **{name: move[name] for name in ("member", "now", "mb", "seconds", "reason")},
                "gb_per_s": move["mb"] / 1024 / move["seconds"] if move["mb"] else None,
            }
            for move in moves
        ],
        kept=kept,
        states=sorted({row["state"] for row in rows}),
    )
    bed.write("oversubscribe.json", RESULTS)
    print(json.dumps(RESULTS["moves"][:6]), flush=True)
    assert RESULTS["states"] == ["COMPLETED"]
    assert kept == []
    assert {move["member"] for move in moves if move["now"] == "away"}
    for number in range(1, MEMBERS + 1):
        assert len(read_output(bed, job_id, number)) == STEPS + 1
    for number in (1, 2):
        assert read_output(bed, job_id, number) == read_output(bed, alone, number)
