"""The fake scontrol: shows a job or the configuration, and changes a job."""

from __future__ import annotations

import pwd
import signal
import sys
import time
from collections.abc import Callable, Sequence

from tests.fake_slurm.processes import signal_all
from tests.fake_slurm.program import Line, begin, fail, parse_length_s, parse_moment, refuse
from tests.fake_slurm.sbatch import parse_dependency
from tests.fake_slurm.state import (
    ACTIVE,
    KILL_WAIT_S,
    MAX_ARRAY_SIZE,
    State,
    open_state,
    read_cluster_name,
    show_dependency,
    show_length,
    show_moment,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.fake_slurm.state import Job

_CONFIGURATION = {
    "JobRequeue": "1", "KillWait": f"{KILL_WAIT_S} sec",
    "MailProg": "/bin/true", "MaxArraySize": str(MAX_ARRAY_SIZE),
    "ProctrackType": "proctrack/cgroup", "SLURM_VERSION": "22.05.8",
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Do one thing."""
    begin("scontrol", argv, "slurm_load_jobs error")
    line = Line("scontrol", argv, {"--oneliner": 0}, {"-o": "--oneliner"})
    words = line.words
    with open_state() as state:
        if words == ["show", "config"]:
            shown = {"ClusterName": read_cluster_name(), **_CONFIGURATION}
            for name, value in shown.items():
                sys.stdout.write(f"{name:<23} = {value}\n")
        elif words == ["show", "federation"]:
            pass
        elif words[:2] == ["show", "job"] and len(words) == 3 and "--oneliner" in line.options:
            show_jobs(state, words[2])
        elif words[:1] == ["update"] and len(words) > 2:
            update(state, words[1:])
        elif len(words) == 2 and words[0] in ("hold", "release", "requeue"):
            change(state, words[0], words[1])
        elif words[:2] == ["requeue", "Incomplete"] and len(words) == 3:
            change(state, "requeue_running", words[2])
        else:
            refuse("scontrol", " ".join(argv))
    return 0


def find(state: State, name: str) -> list[Job]:
    """The jobs that are meant; ends the program where there are none."""
    number = name.removeprefix("JobId=")
    return state.find(number) or fail(f"Invalid job id specified for job {number}")


def show_jobs(state: State, name: str) -> None:
    """A line for each job, with the fields that csub reads."""
    jobs = state.find(name) or fail("slurm_load_jobs error: Invalid job id specified")
    for job in jobs:
        has_begun = job["start_at"] > 0
        end_at = job["end_at"]
        if has_begun and not end_at and job["limit_s"] is not None:
            end_at = job["start_at"] + job["limit_s"]
        used_s = int((job["end_at"] or time.time()) - job["start_at"]) if has_begun else 0
        array = {} if job["task"] is None else {
            "ArrayJobId": job["array_id"], "ArrayTaskId": job["task"],
        }  # fmt: skip
        fields = {
            "JobId": job["id"], **array, "JobName": job["name"],
            "UserId": f"{pwd.getpwuid(job['uid']).pw_name}({job['uid']})",
            "JobState": job["state"], "Reason": job["reason"],
            "Dependency": show_dependency(state, job) or "(null)",
            "Requeue": int(job["may_requeue"]), "Restarts": job["restarts"],
            "ExitCode": ":".join(str(part) for part in job["exit"]),
            "RunTime": show_length(used_s, full=True),
            "TimeLimit": show_length(job["limit_s"], full=True),
            "SubmitTime": show_moment(job["submit_at"]),
            "StartTime": show_moment(job["start_at"] or job["begin_at"]),
            "EndTime": show_moment(end_at), "PreemptTime": "None", "Partition": job["partition"],
            "NodeList": job["node"], "NumNodes": 1, "NumCPUs": job["cpus"], "NumTasks": 1,
            "CPUs/Task": job["cpus"], "MinMemoryNode": f"{job['host_memory_mb']}M",
            "TresPerNode": f"gres:gpu:{job['gpu_count']}", "Comment": job["comment"],
        }  # fmt: skip
        sys.stdout.write(" ".join(f"{name}={value}" for name, value in fields.items()) + "\n")


def update(state: State, words: Sequence[str]) -> None:
    """`update JobId=7 NAME=VALUE...`: what a job asks for can change only while it waits."""
    changes: dict[str, Callable[[Job, str], None]] = {
        "NumCPUs": lambda job, value: job.update(cpus=int(value)),
        "CPUsPerTask": lambda job, value: job.update(cpus=int(value)),
        "MinMemoryNode": lambda job, value: job.update(host_memory_mb=int(value)),
        "JobName": lambda job, value: job.update(name=value),
        "Comment": lambda job, value: job.update(comment=value),
        "TimeLimit": lambda job, value: job.update(limit_s=parse_length_s("scontrol", value)),
        "StartTime": lambda job, value: job.update(
            begin_at=parse_moment("scontrol", value, time.time())
        ),
        "Dependency": depend,
    }
    for job in find(state, words[0]):
        for word in words[1:]:
            name, _, value = word.partition("=")
            if name not in changes:
                refuse("scontrol", f"update {word}")
            if job["state"] != "PENDING" and name not in ("JobName", "Comment"):
                fail(f"Job is no longer pending execution for job {job['id']}")
            changes[name](job, value)


def depend(job: Job, value: str) -> None:
    """Give a job another dependency."""
    job["dependency"], job["is_any_dependency"] = parse_dependency(value)


def change(state: State, what: str, name: str) -> None:
    """Hold, release or requeue; `requeue_running` says nothing of what it does not do."""
    for job in find(state, name):
        if what in ("hold", "release"):
            if job["state"] not in ACTIVE:
                fail(f"Job has already finished for job {name}")
            job["is_held"] = what == "hold"
        elif job["state"] == "RUNNING":
            if not job["may_requeue"]:
                fail(f"Requested operation is presently disabled for job {name}")
            # The count goes up at once, as slurmctld does it, before anything has ended.
            job.update(ending="REQUEUED", state="COMPLETING", restarts=job["restarts"] + 1)
            signal_all([job["supervisor"]], signal.SIGUSR1)
        elif what == "requeue" and job["state"] == "PENDING":
            fail(f"Job is pending execution for job {name}")
        elif what == "requeue":
            refuse("scontrol", "requeue of a job that has ended")
