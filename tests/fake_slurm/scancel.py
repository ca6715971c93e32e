"""The fake scancel: ends jobs and steps, or signals them."""

from __future__ import annotations

import pwd
import signal
import sys
import time
from collections.abc import Sequence

from tests.fake_slurm.processes import list_descendants, signal_all
from tests.fake_slurm.program import Line, begin, refuse
from tests.fake_slurm.state import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tests.fake_slurm.state import Job

_KNOWN = {"--batch": 0, "--signal": 1, "--user": 1}
_SAME = {"-b": "--batch", "-s": "--signal", "-u": "--user"}


def main(argv: Sequence[str]) -> int:
    """End or signal what is named; 1 where a step is not known."""
    begin("scancel", argv, "scancel: error: slurm_load_jobs error")
    line = Line("scancel", argv, _KNOWN, _SAME)
    number = parse_signal(line.get("--signal"))
    status = 0
    with open_state() as state:
        names = list(line.words)
        if owner := line.get("--user"):
            uid = pwd.getpwnam(owner).pw_uid if not owner.isdigit() else int(owner)
            names += [job["id"] for job in state.jobs.values() if job["uid"] == uid]
        for name in names:
            job_name, _, step = name.partition(".")
            jobs = [state.jobs[name]] if name in state.jobs and not line.words else (
                state.find(job_name)
            )  # fmt: skip
            # Of a job that it does not know scancel says nothing (22.05).
            for job in jobs:
                if step and step not in job["steps"]:
                    status = 1
                    sys.stderr.write(
                        f"scancel: error: Kill job error on job step id {name}: "
                        "Invalid job id specified\n"
                    )
                elif step:
                    end_step(job["steps"][step], number)
                elif number and number not in (signal.SIGTERM, signal.SIGKILL):
                    signal_job(job, number, only_batch="--batch" in line.options)
                elif "--batch" in line.options:
                    refuse("scancel", "--batch with a signal that ends")
                else:
                    end_job(job)
    return status


def parse_signal(text: str) -> int:
    """A signal by its name or number; 0 for none."""
    if not text:
        return 0
    name = text.upper().removeprefix("SIG")
    if not text.isdigit() and not hasattr(signal, f"SIG{name}"):
        refuse("scancel", f"the signal {text}")
    return int(text) if text.isdigit() else int(signal.Signals[f"SIG{name}"])


def end_job(job: Job) -> None:
    """TERM and, later, KILL to all of a job; one that waits is cancelled at once."""
    if job["state"] == "PENDING":
        job.update(state="CANCELLED", reason="None", end_at=time.time())
    elif job["state"] in ("RUNNING", "COMPLETING"):
        # A job that is being requeued already is cancelled all the same.
        job.update(ending="CANCELLED", state="COMPLETING")
        signal_all([job["supervisor"]], signal.SIGUSR1)


def signal_job(job: Job, number: int, *, only_batch: bool) -> None:
    """A signal to the batch script alone, or to the steps without it."""
    tasks = [step["task"] for step in job["steps"].values()]
    signal_all([job["batch_pid"]] if only_batch else tasks, number)


def end_step(step: dict[str, Any], number: int) -> None:
    """KILL to all of a step at once, or another signal to its task."""
    if number:
        signal_all([step["task"]], number)
    else:
        step["is_ended"] = True
        signal_all(list_descendants(step["srun"]), signal.SIGKILL)
