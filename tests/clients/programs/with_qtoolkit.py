"""qtoolkit: an array, of which one task fails and one is cancelled; it asks scontrol for each."""

from __future__ import annotations

import json
import time
from pathlib import Path

from qtoolkit.core.data_objects import QResources
from qtoolkit.io.slurm import SlurmIO
from qtoolkit.manager import QueueManager

HEADER = "#SBATCH --gres=gpu:1 --array=0-3\n#CSUB --share=timeslice --degree=4"
BODY = 'until [ -e go ]; do sleep 0.1; done\n[ "$SLURM_ARRAY_TASK_ID" != 2 ]'
NAMES = ("JOB_0", "JOB_1", "JOB_2", "JOB_3")


def wait_for(manager: QueueManager, task: str, *states: str) -> str:
    while True:
        # It answers with None where a state is none of Slurm's.
        job = manager.get_job(task)
        if job is not None and job.sub_state.value in states:
            return str(job.sub_state.value)
        time.sleep(0.3)


if __name__ == "__main__":
    manager = QueueManager(SlurmIO())
    options = QResources(
        job_name="sweep", nodes=1, processes_per_node=1, time_limit=300,
        scheduler_kwargs={"mem": "50M", "qverbatim": HEADER},
    )  # fmt: skip
    done = manager.submit(BODY, options, work_dir=".", script_fname="sweep.sh")
    assert done.job_id, (done.stdout, done.stderr)
    tasks = [f"{done.job_id}_{number}" for number in range(4)]
    for task in tasks:
        wait_for(manager, task, "RUNNING")
    listed = {job.job_id: job.state.value for job in manager.get_jobs_list(jobs=tasks)}
    cancelled = manager.cancel(tasks[3])
    wait_for(manager, tasks[3], "CANCELLED")
    Path("go").touch()
    states = [wait_for(manager, task, "COMPLETED", "FAILED", "CANCELLED") for task in tasks]
    answer = [[listed[task] for task in tasks], cancelled.status.value, states]
    Path("answer.json").write_text(json.dumps(answer))
