"""PSI/J: jobs that succeed, one that fails, one that is cancelled, one that waits for another; it
reads squeue's table."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from psij import Job, JobAttributes, JobExecutor, JobSpec, JobState, ResourceSpecV1
from psij.executors.batch.slurm import SlurmExecutorConfig

WAIT = "until [ -e go ]; do sleep 0.1; done"
SCRIPTS = {
    **{f"good{number}": f"{WAIT}; echo {number}" for number in range(2)},
    "bad": f"{WAIT}; exit 3",
    "long": "sleep 300",
}
AFTER = "cat good0.out"


def describe(name: str, body: str, after: str | None = None) -> Job:
    attributes = JobAttributes(duration=timedelta(minutes=5))
    attributes.set_custom_attribute("slurm.gres", "gpu:1")
    attributes.set_custom_attribute("slurm.mem", "50M")
    if after is not None:
        attributes.set_custom_attribute("slurm.dependency", f"afterok:{after}")
    here = Path.cwd()
    spec = JobSpec(
        executable="/bin/bash", arguments=["-c", body], name=name, directory=here,
        stdout_path=here / f"{name}.out", resources=ResourceSpecV1(node_count=1, process_count=1),
        attributes=attributes, launcher="single",
    )  # fmt: skip
    return Job(spec)


if __name__ == "__main__":
    config = SlurmExecutorConfig(
        launcher_log_file=Path("launcher.log").absolute(), work_directory=Path("psij").absolute(),
        queue_polling_interval=2, initial_queue_polling_delay=1,
    )  # fmt: skip
    executor = JobExecutor.get_instance("slurm", config=config)
    jobs = {name: describe(name, body) for name, body in SCRIPTS.items()}
    for job in jobs.values():
        executor.submit(job)
    jobs["goodafter"] = describe("goodafter", AFTER, jobs["good0"].native_id)
    executor.submit(jobs["goodafter"])
    jobs["long"].wait(timedelta(seconds=120), target_states=[JobState.ACTIVE])
    jobs["long"].cancel()
    Path("go").touch()
    answer = {}
    for name, job in jobs.items():
        status = job.wait(timedelta(seconds=120))
        answer[name] = None if status is None else [status.state.name, status.exit_code]
        if name.startswith("good"):
            answer[f"{name}.out"] = Path(f"{name}.out").read_text()
    listed = set(executor.list())
    answer["listed"] = all(job.native_id in listed for job in jobs.values())
    Path("answer.json").write_text(json.dumps(answer))
