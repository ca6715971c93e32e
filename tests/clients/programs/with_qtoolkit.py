"""qtoolkit: three jobs that succeed, one that fails, one that is cancelled; it asks scontrol."""

from __future__ import annotations

import json
import time
from pathlib import Path

from qtoolkit.core.data_objects import QResources
from qtoolkit.io.slurm import SlurmIO
from qtoolkit.manager import QueueManager

HEADER = "#SBATCH --gres=gpu:1\n#CSUB --join --share=timeslice"
# One script for all: csub takes those that differ in numbers alone for jobs of one kind.
BODY = """
[ "$SLURM_JOB_NAME" != task3 ] || sleep 300
until [ -e go ]; do sleep 0.1; done
[ "$SLURM_JOB_NAME" != task2 ]
"""
NAMES = ("task0", "task1", "task2", "task3")
"""The third fails, the last is cancelled."""


def wait_for(manager: QueueManager, job_id: str, *states: str) -> str:
    while True:
        # Slurm has no node for a moment.
        job = manager.get_job(job_id)
        if job is not None and job.sub_state.value in states:
            return str(job.sub_state.value)
        time.sleep(0.3)


if __name__ == "__main__":
    manager = QueueManager(SlurmIO())
    ids = {}
    for name in NAMES:
        options = QResources(
            job_name=name, nodes=1, processes_per_node=1, time_limit=300,
            scheduler_kwargs={"mem": "50M", "qverbatim": HEADER},
        )  # fmt: skip
        done = manager.submit(BODY, options, work_dir=".", script_fname=f"{name}.sh")
        assert done.job_id, (done.stdout, done.stderr)
        ids[name] = done.job_id
        wait_for(manager, ids[name], "RUNNING")
    listed = manager.get_jobs_list(jobs=list(ids.values()))
    cancelled = manager.cancel(ids["task3"])
    Path("go").touch()
    states = {name: wait_for(manager, job_id, "COMPLETED", "FAILED", "CANCELLED")
              for name, job_id in ids.items()}  # fmt: skip
    answer = {
        "states": states,
        "listed": sorted(list(ids).index(job.name) for job in listed),
        "cancelled": [cancelled.status.value, cancelled.job_id == ids["task3"]],
        "distinct": len(set(ids.values())),
    }
    Path("answer.json").write_text(json.dumps(answer))
