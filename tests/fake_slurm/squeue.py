"""The fake squeue: the jobs, or their steps, in the format that is asked for."""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from collections.abc import Callable, Sequence

from tests.fake_slurm.program import Line, begin, fail, refuse
from tests.fake_slurm.state import (
    ACTIVE,
    State,
    open_state,
    show_dependency,
    show_id,
    show_length,
    show_moment,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.fake_slurm.state import Job

_KNOWN = {
    "--all": 0, "--array": 0, "--format": 1, "--jobs": 1, "--me": 0, "--name": 1,
    "--noheader": 0, "--states": 1, "--steps": 0, "--user": 1,
}  # fmt: skip
_SAME = {
    "-h": "--noheader", "-j": "--jobs", "-n": "--name", "-o": "--format", "-r": "--array",
    "-s": "--steps", "-t": "--states", "-u": "--user",
}  # fmt: skip
_USUAL = "%i %P %j %u %T %M %N %r"
_FIELD = re.compile(r"%(.)")


def main(argv: Sequence[str]) -> int:
    """Print what is asked for."""
    begin("squeue", argv, "slurm_load_jobs error")
    line = Line("squeue", argv, _KNOWN, _SAME)
    if line.words:
        refuse("squeue", f"the words {line.words}")
    with open_state() as state:
        jobs = list(state.jobs.values())
        if "--jobs" in line.options:
            jobs = [job for name in line.get("--jobs").split(",") for job in state.find(name)]
            if not jobs:
                fail("slurm_load_jobs error: Invalid job id specified")
        rows = [job for job in jobs if is_chosen(line, job)]
        if "--steps" in line.options:
            print_steps(line, rows)
            return 0
        form = line.get("--format", _USUAL)
        if "--noheader" not in line.options:
            sys.stdout.write(f"{form}\n")
        for job in rows:
            show = build_show(state, job)
            sys.stdout.write(_FIELD.sub(lambda field: show(field[1]), form) + "\n")  # noqa: B023
    return 0


def is_chosen(line: Line, job: Job) -> bool:
    """Whether the options ask for a job."""
    states = line.get("--states", ",".join(ACTIVE)).upper()
    if states != "ALL" and job["state"] not in states.split(","):
        return False
    if "--name" in line.options and job["name"] not in line.get("--name").split(","):
        return False
    owner = line.get("--user")
    if "--me" in line.options:
        owner = str(os.getuid())
    return owner in ("", str(job["uid"]), pwd.getpwuid(job["uid"]).pw_name)


def build_show(state: State, job: Job) -> Callable[[str], str]:
    """What a letter of a format stands for."""
    has_begun = job["start_at"] > 0
    used_s = int((job["end_at"] or time.time()) - job["start_at"]) if has_begun else 0
    limit_s = job["limit_s"]
    left_s = None if limit_s is None else limit_s - used_s
    values = {
        "A": job["id"], "E": show_dependency(state, job) or "(null)", "F": job["array_id"],
        "K": "N/A" if job["task"] is None else str(job["task"]),
        "L": show_length(left_s), "M": show_length(used_s),
        "N": job["node"], "P": job["partition"], "S": show_moment(job["start_at"]),
        "T": job["state"], "U": job["uid"], "V": show_moment(job["submit_at"]),
        "i": show_id(job), "j": job["name"], "k": job["comment"] or "(null)",
        "l": show_length(limit_s), "r": job["reason"], "u": pwd.getpwuid(job["uid"]).pw_name,
    }  # fmt: skip

    def show(letter: str) -> str:
        if letter not in values:
            refuse("squeue", f"%{letter}")
        return str(values[letter])

    return show


def print_steps(line: Line, jobs: Sequence[Job]) -> None:
    """The steps of running jobs; the format is always that of csub."""
    if line.get("--format") not in ("%i|%j", "%i", "%j"):
        refuse("squeue", f"steps as {line.get('--format')}")
    for job in jobs:
        steps = {number: step["name"] for number, step in job["steps"].items()}
        if job["state"] != "PENDING":
            # The batch script and what keeps the allocation are steps too.
            steps = {"batch": "batch", "extern": "extern", **steps}
        for number, name in steps.items():
            form = line.get("--format").replace("%i", f"{show_id(job)}.{number}")
            sys.stdout.write(form.replace("%j", name) + "\n")
