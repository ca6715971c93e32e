"""What the fake Slurm knows: its jobs in one file, next to the slurm.conf that SLURM_CONF names.

Every program opens it, changes it and closes it under one lock, as slurmctld does one thing after
the other. Whatever makes a job ready to start is noticed when the next program closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator

# The programs start often, and load nothing for its types alone.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Job = dict[str, Any]

VARIABLE = "SLURM_CONF"
"""As with Slurm: csub hands this on wherever it calls one of its programs."""
NODES = ("node1", "node2")
CPUS_PER_NODE = 16
GPUS_PER_NODE = 2
HOST_MEMORY_MB = 16000
KILL_WAIT_S = 2
MAX_ARRAY_SIZE = 1001
CLUSTER = "fake"
ACTIVE = ("PENDING", "RUNNING", "COMPLETING")

_SUCCESS = ("COMPLETED",)
_FAILURE = ("FAILED", "CANCELLED", "TIMEOUT")


class State:
    """The jobs, while a program has them to itself.

    Attributes:
        jobs: Each job, and each element of an array, by its own number.
        next_id: The number of the next one.
    """

    def __init__(self, directory: str, value: dict[str, Any]) -> None:
        self.directory = directory
        self.jobs: dict[str, Job] = value["jobs"]
        self.next_id: int = value["next_id"]

    def find(self, name: str) -> list[Job]:
        """The jobs that a user means: `7`, an element `7_2`, elements `7_[2-3,5]`, or all of 7."""
        base, separator, tasks = name.partition("_")
        found = [job for job in self.jobs.values() if base in (job["id"], job["array_id"])]
        if separator:
            found = [job for job in found if job["task"] in expand_tasks(tasks.strip("[]"))]
        elif base in self.jobs and self.jobs[base]["task"] is None:
            found = [self.jobs[base]]
        return found

    def schedule(self) -> None:
        """Start every job that nothing keeps waiting."""
        for job in self.jobs.values():
            if job["state"] == "PENDING":
                job["reason"] = self._find_obstacle(job)
                if job["reason"] == "None":
                    self._start(job)

    def _find_obstacle(self, job: Job) -> str:
        """Why a job waits, as Slurm says it; `None` where it does not."""
        if job["is_held"]:
            return "JobHeldUser"
        if job["begin_at"] > time.time():
            return "BeginTime"
        outlook = self.judge_dependency(job)
        if outlook != "None":
            return outlook
        at_once = job["at_once"]
        if at_once and sum(other["array_id"] == job["array_id"] for other in self._running()) >= (
            at_once
        ):
            return "JobArrayTaskLimit"
        if os.path.exists(f"{self.directory}/paused"):
            return "Priority"
        return "None" if self._find_gpus(job) is not None else "Resources"

    def judge_dependency(self, job: Job) -> str:
        """`None` where it is satisfied, `Dependency` while it is open."""
        is_any = job["is_any_dependency"]
        outlooks = [self._judge_condition(kind, name) for kind, name in job["dependency"]]
        if not outlooks or (any if is_any else all)(outlook is True for outlook in outlooks):
            return "None"
        if (all if is_any else any)(outlook is False for outlook in outlooks):
            return "DependencyNeverSatisfied"
        return "Dependency"

    def _judge_condition(self, kind: str, name: str) -> bool | None:
        states = [job["state"] for job in self.find(name)]
        if kind == "after":
            return True if all(state != "PENDING" for state in states) else None
        if any(state in ACTIVE for state in states):
            return None
        wanted = {"afterok": _SUCCESS, "afternotok": _FAILURE}.get(kind, _SUCCESS + _FAILURE)
        return all(state in wanted for state in states)

    def _running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job["state"] in ("RUNNING", "COMPLETING")]

    def _find_gpus(self, job: Job) -> tuple[str, list[int]] | None:
        """A node and its GPUs for a job; None while they are taken."""
        for node in job["allowed"]:
            taken = {g for other in self._running() if other["node"] == node for g in other["gpus"]}
            free = [gpu for gpu in range(GPUS_PER_NODE) if gpu not in taken]
            if len(free) >= job["gpu_count"]:
                return node, free[: job["gpu_count"]]
        return None

    def _start(self, job: Job) -> None:
        import signal
        import subprocess

        place = self._find_gpus(job)
        assert place is not None
        job["node"], job["gpus"] = place
        job.update(state="RUNNING", reason="None", start_at=time.time(), next_step=0, steps={})
        # It may be told to end its job before it could say that it waits for that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
        process = subprocess.Popen(
            [f"{self.directory}/programs/slurmstepd", job["id"]],
            env={**os.environ, VARIABLE: f"{self.directory}/slurm.conf"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        job["supervisor"] = process.pid
        # It outlives this program, which must not complain of that.
        process.returncode = 0


@contextlib.contextmanager
def open_state(directory: str = "") -> Iterator[State]:
    """The state to read and change; what became ready to start is started at the end."""
    directory = directory or find_directory()
    lock = os.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(f"{directory}/jobs.json") as file:
            text = file.read()
        state = State(directory, json.loads(text))
        yield state
        state.schedule()
        changed = json.dumps({"next_id": state.next_id, "jobs": state.jobs})
        if changed != text:
            with open(f"{directory}/jobs.json.new", "w") as file:
                file.write(changed)
            os.replace(f"{directory}/jobs.json.new", f"{directory}/jobs.json")
    finally:
        os.close(lock)


def read_cluster_name() -> str:
    """Its own name, from its slurm.conf."""
    with open(os.environ[VARIABLE], encoding="utf-8") as file:
        return file.read().partition("=")[2].strip()


def find_directory() -> str:
    """The folder of the fake that this program belongs to."""
    return os.path.dirname(os.environ[VARIABLE])


def expand_tasks(text: str) -> list[int]:
    """The numbers of `0-6:2,9`."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def show_id(job: Job) -> str:
    """`7`, or `7_2` for an element of an array."""
    return str(job["id"]) if job["task"] is None else f"{job['array_id']}_{job['task']}"


def show_dependency(state: State, job: Job) -> str:
    """What is left of a dependency, in Slurm's words; empty for nothing."""
    left = [
        f"{kind}:{name}({'failed' if outlook is False else 'unfulfilled'})"
        for kind, name in job["dependency"]
        if (outlook := state._judge_condition(kind, name)) is not True
    ]
    return ("?" if job["is_any_dependency"] else ",").join(left)


def show_moment(seconds: float) -> str:
    """A time as Slurm prints it; `Unknown` for 0."""
    if not seconds:
        return "Unknown"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def show_length(seconds: int | None, *, full: bool = False) -> str:
    """A length of time as squeue prints it, or with its hours (`full`) as scontrol does."""
    if seconds is None:
        return "UNLIMITED"
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
    if hours or full:
        return (
            f"{hours:02d}:{minutes:02d}:{rest:02d}" if full else f"{hours}:{minutes:02d}:{rest:02d}"
        )
    return f"{minutes}:{rest:02d}"
