"""simple-slurm: an array, and a job that waits for all of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from simple_slurm import Slurm

if __name__ == "__main__":
    asked = {"gres": "gpu:1", "time": "5", "mem": "200M"}
    first = Slurm(array=range(4), job_name="prep", **asked)
    prepared = first.sbatch("touch done.$SLURM_ARRAY_TASK_ID", shell="/bin/bash")
    second = Slurm(dependency={"afterok": prepared}, **asked)
    waiting = second.sbatch("ls done.* > seen.part && mv seen.part seen", shell="/bin/bash")
    while not Path("seen").exists():
        time.sleep(0.1)
    answer = [type(prepared).__name__, type(waiting).__name__, Path("seen").read_text().split()]
    Path("answer.json").write_text(json.dumps(answer))
