"""FireWorks' adapter for queues: it submits a filled template, and counts squeue's lines."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from fireworks.user_objects.queue_adapters.common_adapter import CommonAdapter

# One script for all: csub takes those that differ in numbers alone for jobs of one kind.
BODY = """
[ "$SLURM_JOB_NAME" != task3 ] || sleep 300
until [ -e go ]; do sleep 0.1; done
touch "done.$SLURM_JOB_NAME"
[ "$SLURM_JOB_NAME" != task2 ]
"""
NAMES = ("task0", "task1", "task2", "task3")
"""The third fails, the last is cancelled."""

if __name__ == "__main__":
    ids = {}
    for name in NAMES:
        adapter = CommonAdapter(
            "SLURM", "gpus", nodes=1, ntasks=1, gres="gpu:1", mem="50M", walltime="00:05:00",
            job_name=name, launch_dir=str(Path.cwd()), rocket_launch=BODY,
            pre_rocket="#CSUB --join --share=timeslice",
        )  # fmt: skip
        Path(f"{name}.sh").write_text(adapter.get_script_str(str(Path.cwd())))
        ids[name] = adapter.submit_to_queue(f"{name}.sh")
    counted = adapter.get_njobs_in_queue()
    # It has no way to cancel.
    subprocess.run(["scancel", str(ids["task3"])], check=True)
    Path("go").touch()
    while adapter.get_njobs_in_queue():
        time.sleep(0.3)
    answer = [
        counted, sorted(path.name for path in Path().glob("done.*")),
        all(isinstance(job_id, int) for job_id in ids.values()), len(set(ids.values())),
    ]  # fmt: skip
    Path("answer.json").write_text(json.dumps(answer))
