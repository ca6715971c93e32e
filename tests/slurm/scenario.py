"""The jobs that the recordings were made with, and which answers every release gives about them.

`record.py` starts them on a sandbox of its own; the tests know them by these names.
"""

from __future__ import annotations

import subprocess

from ..wait_until import wait_until

COMMENT = "fast|slow  [csub 17]"
STEP_NAME = "m|1"
MANY_TASKS = ",".join(str(number * number) for number in range(40))
"""Longer than what libslurm shows of an array unless told otherwise."""
EVERY_OTHER = "0-12:2"
"""`squeue --array` leaves out the last one of such an array."""


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def submit(*options: str, script: str = "sleep 300") -> str:
    return run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}")


def wait_for_state(job_id: str, state: str) -> None:
    wait_until(
        lambda: state in run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T").split(),
        f"job {job_id} is {state}",
    )


def start_jobs(*, hidden_partition: str = "") -> dict[str, str]:
    """Start one job of each kind; their ids by kind."""
    jobs = {}
    jobs["completed"] = submit("--time=5", script="true")
    jobs["failed"] = submit("--time=5", script="exit 3")
    jobs["running"] = submit(
        "--gres=gpu:1", "--ntasks=1", "--cpus-per-task=2", "--mem=500M", "--time=10",
        f"--comment={COMMENT}", "--job-name=runs",
        script=f"srun --overlap -n1 --mem=100M --job-name='{STEP_NAME}' sleep 300",
    )  # fmt: skip
    wait_for_state(jobs["running"], "RUNNING")
    wait_until(
        lambda: STEP_NAME in run("squeue", "-h", "-s", "-j", jobs["running"], "-o", "%j"),
        "the step runs",
    )
    for kind in ("completed", "failed"):
        wait_for_state(jobs[kind], kind.upper())
    jobs["pending"] = submit("--exclusive", "--time=1-2:03")
    jobs["held"] = submit("--hold", "--time=30")
    jobs["array"] = submit("--array=0-5%2", "--begin=now+1hour", "--time=20")
    run("scancel", f"{jobs['array']}_3")
    jobs["many"] = submit(f"--array={MANY_TASKS}", "--begin=now+1hour", "--time=20")
    jobs["every other"] = submit(f"--array={EVERY_OTHER}", "--begin=now+1hour", "--time=20")
    jobs["cancelled"] = submit("--hold", "--time=5")
    run("scancel", jobs["cancelled"])
    if hidden_partition:
        jobs["hidden"] = submit(f"--partition={hidden_partition}", "--hold", "--time=5")
    wait_until(
        lambda: (
            "Resources" in run("squeue", "-h", "-j", jobs["pending"], "-o", "%r")
            or "Priority" in run("squeue", "-h", "-j", jobs["pending"], "-o", "%r")
        ),
        "Slurm says why the pending job waits",
    )
    return jobs
