"""Which jobs Slurm runs something of on this node, as the process table says; calls no Slurm."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

_STEP_DAEMON = re.compile(rb"slurmstepd: \[([0-9]+)\.")
_GROUP = re.compile(r"/job_([0-9]+)(?:/|$)", re.MULTILINE)


def list_running_jobs() -> frozenset[str]:
    """Ids of the jobs of which this node has a slurmstepd or a process in a job's cgroup.

    A job that was allocated and runs no step yet has neither.
    """
    found: set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found.update(_find_jobs(f"/proc/{name}"))
    return frozenset(found)


def _find_jobs(directory: str) -> Iterable[str]:
    with open(f"{directory}/cmdline", "rb") as file:
        match = _STEP_DAEMON.match(file.read(128))
    if match is not None:
        yield match[1].decode()
    with open(f"{directory}/cgroup", encoding="utf-8", errors="replace") as file:
        yield from find_jobs_of_cgroups(file.read())


def find_jobs_of_cgroups(text: str) -> tuple[str, ...]:
    """The jobs that a process belongs to; pure.

    Args:
        text: The text of /proc/PID/cgroup. Slurm has `.../slurm*/uid_1000/job_4711/...` (v1) and
            `.../slurmstepd.scope/job_4711/...` (v2).
    """
    return tuple(
        job_id for line in text.splitlines() if "slurm" in line for job_id in _GROUP.findall(line)
    )
