"""submitit's JobEnvironment: what a call may ask about the job that it runs in."""

from __future__ import annotations

import os
import socket


class JobEnvironment:
    """The job of the process that asks; a member has one task.

    Raises:
        RuntimeError: The process is in no job.
    """

    num_tasks = 1
    num_nodes = 1
    node = 0
    global_rank = 0
    local_rank = 0

    def __init__(self) -> None:
        if not self.activated():
            raise RuntimeError("this process is in no job: it has no SLURM_JOB_ID")
        self.hostname = socket.gethostname()
        self.hostnames = [self.hostname]

    @staticmethod
    def activated() -> bool:
        """The process is in a job."""
        return "SLURM_JOB_ID" in os.environ

    @property
    def raw_job_id(self) -> str:
        """Slurm's id of the pack."""
        return os.environ["SLURM_JOB_ID"]

    @property
    def job_id(self) -> str:
        """`4711_3` for a task of an array, `4711` otherwise, as `Job.job_id`."""
        array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
        return f"{array}_{task}" if array and task else self.raw_job_id
