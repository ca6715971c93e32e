"""submitit: one job, an array, and a job that is interrupted and goes on from its checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path

import submitit


def square(number: int) -> int:
    return number * number


class Count:
    """Counts to two, over two starts."""

    def __call__(self, start: int) -> int:
        Path("began").write_text(str(start))
        while start < 1:
            time.sleep(0.1)
        return start + 1

    def checkpoint(self, start: int) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(self, start + 1)


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
    executor.update_parameters(timeout_min=4, slurm_gres="gpu:1", slurm_mem="300M")
    single = executor.submit(square, 7)
    several = executor.map_array(square, range(4))
    counting = executor.submit(Count(), 0)
    while not Path("began").exists():
        time.sleep(0.1)
    counting._interrupt(timeout=False)
    answer = {
        "single": single.result(),
        "several": [job.result() for job in several],
        "tasks": [job.job_id.partition("_")[2] for job in several],
        "counted": counting.result(),
    }
    Path("answer.json").write_text(json.dumps(answer))
