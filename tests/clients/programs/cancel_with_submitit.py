"""submitit's own cancel of a packed task ends that task alone, and so does csub's."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import submitit


def work(number: int) -> int:
    Path(f"began.{number}").touch()
    while not Path("go").exists():
        time.sleep(0.1)
    return number * number


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
    executor.update_parameters(timeout_min=5, slurm_gres="gpu:1", slurm_mem="200M")
    jobs = executor.map_array(work, range(4))
    for number in range(4):
        while not Path(f"began.{number}").exists():
            time.sleep(0.1)
    jobs[1].cancel()
    subprocess.run(["csub", "cancel", jobs[2].job_id], check=True)
    Path("go").touch()
    results = [jobs[number].result() for number in (0, 3)]
    Path("answer.json").write_text(json.dumps([[job.job_id for job in jobs], results]))
