"""submitit: jobs by `submit` (one fails, one is cancelled, one waits for another), an array, and a
job that is interrupted and goes on from its checkpoint."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import submitit


def square(number: int) -> int:
    return number * number


def fail_once_told() -> None:
    wait_for("go")
    raise ValueError("as it should")


def wait_for(name: str) -> str:
    while not Path(name).exists():
        time.sleep(0.1)
    return name


def run_on(name: str) -> None:
    Path(name).touch()
    time.sleep(300)


def look_for(name: str) -> bool:
    return Path(name).exists()


def write_once_told(name: str) -> str:
    wait_for("go")
    time.sleep(2)
    Path(name).touch()
    return name


def try_single_jobs(executor: submitit.AutoExecutor) -> dict[str, object]:
    """Four jobs at the same time, one of which waits for another in Slurm."""
    failing = executor.submit(fail_once_told)
    endless = executor.submit(run_on, "endless")
    first = executor.submit(write_once_told, "first")
    waiting = submitit.AutoExecutor(folder="logs", cluster="slurm")
    waiting.update_parameters(
        timeout_min=4, slurm_gres="gpu:1", slurm_mem="300M",
        slurm_additional_parameters={"dependency": f"afterok:{first.job_id}"},
    )  # fmt: skip
    second = waiting.submit(look_for, "first")
    # There is no accounting here, by which submitit would know what has become of it.
    wait_for("endless")
    endless.cancel()
    squeue = ["squeue", "-h", "--jobs", endless.job_id]
    while subprocess.run(squeue, capture_output=True, text=True, check=False).stdout:
        time.sleep(0.5)
    Path("go").touch()
    return {
        "failed": type(failing.exception()).__name__,
        "first": first.result(),
        "came after": second.result(),
    }


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
        **try_single_jobs(executor),
        "single": single.result(),
        "several": [job.result() for job in several],
        "tasks": [job.job_id.partition("_")[2] for job in several],
        "counted": counting.result(),
    }
    Path("answer.json").write_text(json.dumps(answer))
