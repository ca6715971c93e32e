"""Runs one job of the fake Slurm from its start to its end; one process for each start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from tests.fake_slurm.processes import (
    adopt_orphans,
    collect,
    list_descendants,
    signal_all,
    unblock,
)
from tests.fake_slurm.state import (
    KILL_WAIT_S,
    open_state,
    read_cluster_name,
    show_id,
    show_moment,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.fake_slurm.state import Job

_WOKEN_BY = (signal.SIGCHLD, signal.SIGUSR1)
_POLL_S = 0.02
_LOOK_S = 0.2
DUE_TO = {"CANCELLED": "", "TIMEOUT": " DUE TO TIME LIMIT", "REQUEUED": " DUE TO JOB REQUEUE"}


def main(argv: Sequence[str]) -> int:
    """Run the job with this number; woken by SIGUSR1 where somebody ends it."""
    number = argv[0]
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WOKEN_BY)
    with open_state() as state:
        job = state.jobs[number]
        batch, log = start_batch(state.directory, job)
        job["batch_pid"] = batch.pid
    status = wait_for_batch(number, batch, log)
    end_all(number)
    with open_state() as state:
        finish(state.jobs[number], status)
    return 0


def start_batch(directory: str, job: Job) -> tuple[subprocess.Popen[bytes], int]:
    """Start the batch script; also a descriptor of its standard error."""
    spool = f"{directory}/spool/{job['id']}"
    with open(f"{spool}/environment") as file:
        environment = {**dict(json.load(file)), **build_variables(job)}
    base = job["array_id"] if job["task"] is not None else job["id"]
    values = {
        "j": job["id"], "A": base, "a": str(job["task"] if job["task"] is not None else 4294967294),
        "x": job["name"], "N": job["node"],
    }  # fmt: skip
    usual = "slurm-%j.out" if job["task"] is None else "slurm-%A_%a.out"
    paths = [job["output"] or usual, job["error"] or job["output"] or usual]
    mode = os.O_APPEND if job["appends"] or job["restarts"] else os.O_TRUNC
    opened = []
    for pattern in paths:
        for letter, value in values.items():
            pattern = pattern.replace(f"%{letter}", value)  # noqa: PLW2901
        path = os.path.join(job["directory"], pattern)
        opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | mode, 0o644))
        mode = os.O_APPEND
    with open(job["input"], "rb") as given:
        process = subprocess.Popen(
            [f"{spool}/script"],
            stdin=given,
            stdout=opened[0],
            stderr=opened[1],
            cwd=job["directory"],
            env=environment,
            start_new_session=True,
            preexec_fn=unblock,
        )
    return process, opened[1]


def build_variables(job: Job) -> dict[str, str]:
    """What Slurm adds to the environment of a batch script."""
    gpus = ",".join(str(gpu) for gpu in job["gpus"])
    values = {
        "SLURM_JOB_ID": job["id"], "SLURM_JOBID": job["id"], "SLURM_JOB_NAME": job["name"],
        "SLURM_JOB_PARTITION": job["partition"], "SLURM_CLUSTER_NAME": read_cluster_name(),
        "SLURM_SUBMIT_DIR": job["directory"], "SLURM_JOB_NODELIST": job["node"],
        "SLURM_NODELIST": job["node"], "SLURMD_NODENAME": job["node"], "SLURM_NTASKS": "1",
        "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": str(job["cpus"]),
        "SLURM_JOB_CPUS_PER_NODE": str(job["cpus"]), "SLURM_CPUS_PER_TASK": str(job["cpus"]),
        "SLURM_MEM_PER_NODE": str(job["host_memory_mb"]),
    }  # fmt: skip
    if gpus:
        values |= {"SLURM_JOB_GPUS": gpus, "CUDA_VISIBLE_DEVICES": gpus}
    if job["task"] is not None:
        values |= {
            "SLURM_ARRAY_JOB_ID": job["array_id"],
            "SLURM_ARRAY_TASK_ID": str(job["task"]),
        }
    if job["restarts"]:
        values["SLURM_RESTART_COUNT"] = str(job["restarts"])
    return values


def wait_for_batch(number: str, batch: subprocess.Popen[bytes], log: int) -> int:
    """Wait for the batch script, and where the job is ended for its steps too; its wait status."""
    kill_at = status = None
    while True:
        ended = collect()
        if batch.pid in ended:
            batch.returncode = 0
            status = ended[batch.pid]
        if kill_at is None and tell_to_end(number, batch.pid if status is None else 0, log):
            kill_at = time.monotonic() + KILL_WAIT_S
        # What was sent TERM has its time, also where the batch script took none.
        if status is not None and (kill_at is None or not list_processes(number)):
            return status
        if kill_at is not None and time.monotonic() >= kill_at:
            signal_all(list_processes(number), signal.SIGKILL)
        signal.sigtimedwait(_WOKEN_BY, _LOOK_S)


def tell_to_end(number: str, batch_pid: int, log: int) -> bool:
    """Send TERM where somebody, or the time limit, ends the job; False where it goes on."""
    with open_state() as state:
        job = state.jobs[number]
        if not job["ending"]:
            if job["limit_s"] is None or time.time() < job["start_at"] + job["limit_s"]:
                return False
            job.update(ending="TIMEOUT", state="COMPLETING")
        os.write(log, describe_end("JOB", show_id(job), job["node"], job["ending"]))
        # As with proctrack/cgroup it reaches the tasks, and not what they have started.
        tasks = [step["task"] for step in job["steps"].values()]
        signal_all([*tasks, batch_pid], signal.SIGTERM)
        return True


def describe_end(what: str, name: str, node: str, why: str) -> bytes:
    """The line that slurmstepd writes where it ends a job or a step."""
    at = show_moment(time.time())
    words = f"*** {what} {name} ON {node} CANCELLED AT {at}{DUE_TO.get(why, '')} ***"
    return f"slurmstepd: error: {words}\n".encode()


def list_processes(number: str) -> list[int]:
    """All processes of a job, with the steps that somebody has started from outside."""
    with open_state() as state:
        sruns = [step["srun"] for step in state.jobs[number]["steps"].values()]
        # A job that a command of this one has let start is none of its processes.
        others = {job["supervisor"] for name, job in state.jobs.items() if name != number}
    return [pid for root in (os.getpid(), *sruns) for pid in list_descendants(root, others)]


def end_all(number: str) -> None:
    """End what the batch script has left."""
    while left := list_processes(number):
        signal_all(left, signal.SIGKILL)
        time.sleep(_POLL_S)
        collect()


def finish(job: Job, status: int) -> None:
    """Write down how the job ended; one that was requeued waits again."""
    code, number = os.waitstatus_to_exitcode(status), 0
    if code < 0:
        code, number = 0, -code
    if job["ending"] == "REQUEUED":
        job.update(state="PENDING", ending="", node="", gpus=[], start_at=0.0, steps={})
        return
    state = job["ending"] or ("COMPLETED" if (code, number) == (0, 0) else "FAILED")
    reason = {"FAILED": "NonZeroExitCode", "TIMEOUT": "TimeLimit"}.get(state, "None")
    job.update(state=state, reason=reason, exit=[code, number], end_at=time.time(), steps={})
