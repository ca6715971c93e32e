"""The fake srun: starts a step of a running job as a child of its own, and ends as that does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.fake_slurm.processes import adopt_orphans, list_descendants, signal_all
from tests.fake_slurm.program import Line, begin, fail, refuse
from tests.fake_slurm.slurmstepd import build_variables, describe_end
from tests.fake_slurm.state import ACTIVE, open_state, show_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.fake_slurm.state import Job

_KNOWN = {
    "--chdir": 1, "--cpu-bind": 1, "--exact": 0, "--export": 1, "--input": 1, "--job-name": 1,
    "--jobid": 1, "--kill-on-bad-exit": 1, "--mem": 1, "--mpi": 1, "--nodelist": 1, "--nodes": 1,
    "--ntasks": 1, "--overlap": 0, "--quit-on-interrupt": 0,
}  # fmt: skip
_SAME = {"-N": "--nodes", "-n": "--ntasks", "-J": "--job-name"}
_NO_STEP = "srun: error: Unable to create step for job"
_CHECK = "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job"
_NOT_STARTED = 2


def main(argv: Sequence[str]) -> int:
    """Run one task; the exit status is the task's, 128 and the number for a signal."""
    begin("srun", argv, "srun: error: Unable to create step")
    line = Line("srun", argv, _KNOWN, _SAME)
    for name in ("--nodes", "--ntasks"):
        if line.get(name, "1") != "1":
            refuse("srun", f"{name}={line.get(name)}")
    job_id = line.get("--jobid", os.environ.get("SLURM_JOB_ID", ""))
    if not job_id or not line.words:
        refuse("srun", "a step without a job or without a command")
    adopt_orphans()
    with open_state() as state:
        if job_id not in state.jobs:
            fail(f"srun: error: Unable to confirm allocation for job {job_id}: "
                 f"Invalid job id specified\n{_CHECK} {job_id}")  # fmt: skip
        job = state.jobs[job_id]
        if job["state"] not in ACTIVE:
            fail(f"srun: error: Slurm job {job_id} has expired\n{_CHECK} {job_id}")
        if job["state"] != "RUNNING":
            fail(f"{_NO_STEP} {job_id}: Job/step already completing or completed")
        step = str(job["next_step"])
        job["next_step"] += 1
        process = start_task(line, job, step)
        job["steps"][step] = {
            "name": line.get("--job-name", os.path.basename(line.words[0])),
            "srun": os.getpid(),
            "task": process.pid if process else 0,
            "is_ended": False,
        }
    if process is None:
        return _NOT_STARTED
    return follow(job_id, step, process)


def start_task(line: Line, job: Job, step: str) -> subprocess.Popen[bytes] | None:
    """Start the task; None where its program is not there."""
    added = {
        "SLURM_JOB_ID": job["id"], "SLURM_STEP_ID": step, "SLURM_STEPID": step, "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    }  # fmt: skip
    environment: Mapping[str, str] = os.environ
    if line.get("--export", "ALL") == "NONE":
        environment = {"PATH": os.environ["PATH"], **build_variables(job)}
    try:
        return subprocess.Popen(
            line.words,
            stdin=subprocess.DEVNULL if line.get("--input") == "none" else None,
            env={**environment, **added},
            cwd=line.get("--chdir") or None,
            start_new_session=True,
        )
    except OSError as error:
        sys.stderr.write(
            f"slurmstepd: error: execve(): {line.words[0]}: {os.strerror(error.errno or 0)}\n"
            f"srun: error: {job['node']}: task 0: Exited with exit code {_NOT_STARTED}\n"
        )
        return None


def follow(job_id: str, step: str, process: subprocess.Popen[bytes]) -> int:
    """Wait for the task, and say how it ended."""

    def end_step(*_: object) -> None:
        signal_all(list_descendants(os.getpid()), signal.SIGKILL)

    # srun(1): a TERM to srun ends its step at once.
    signal.signal(signal.SIGTERM, end_step)
    status = process.wait()
    # What the task has left is not left to anybody.
    end_step()
    with open_state() as state:
        job = state.jobs[job_id]
        found = job["steps"].pop(step, {"is_ended": False})
    if job["ending"] or found["is_ended"]:
        line = describe_end("STEP", f"{show_id(job)}.{step}", job["node"], job["ending"])
        sys.stderr.write(f"srun: Job step aborted\n{line.decode()}")
    if status < 0:
        name = signal.strsignal(-status)
        sys.stderr.write(f"srun: error: {job['node']}: task 0: {name}\n")
        return 128 - status
    if status:
        sys.stderr.write(f"srun: error: {job['node']}: task 0: Exited with exit code {status}\n")
    return status
