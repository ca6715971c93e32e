"""Which jobs Slurm runs something of on this node, as the kernel says; calls no Slurm.

A process is looked at by stat, status and cgroup alone, which wait for no other process. Slurm's
control groups are root's. Without them only the title of a slurmstepd tells its job: it is believed
of uid 0 alone, and read in a child of its own, because reading it may hang.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Sequence

from slurm_colloc.host.hooks.checkpoint import SLUID
from slurm_colloc.host.system.node_processes import read_process, read_uids
from slurm_colloc.host.system.signals import end_child

_STEP_DAEMON = "slurmstepd"
_TITLE = re.compile(rb"slurmstepd: \[([0-9]{1,10})\.")
_TITLE_BYTES = 128
_TITLES_S = 0.5
_END = b".\n"
# v1 .../slurm/uid_1000/job_4711/..., v2 .../slurmstepd.scope/job_4711/..., 26.05 .../sEKN.../...
_GROUP = re.compile(
    r"/slurm[^/]*/uid_[0-9]+/job_(?P<v1>[0-9]{1,10})(?:/|$)"
    r"|/(?:[^/]+_)?slurmstepd\.scope/(?:job_(?P<v2>[0-9]{1,10})|(?P<sluid>" + SLUID.pattern + r"))"
    r"(?:/|$)"
)
# A user's own service manager may make groups of any name below these.
_OF_USERS = ("/user.slice/", "/machine.slice/")


def list_running_jobs() -> frozenset[str] | None:
    """Ids and SLUIDs of the jobs of which this node has a process in one of Slurm's groups.

    Where Slurm has no control groups: of which it has a slurmstepd. A job that was allocated and
    runs no step yet has neither.

    Returns:
        The jobs; None where a slurmstepd did not tell its job in time.
    """
    found: set[str] = set()
    unplaced = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            jobs = _find_jobs(f"/proc/{name}")
            found.update(jobs)
            if not jobs and _is_step_daemon(int(name)):
                unplaced.append(int(name))
    titles = _read_titles(unplaced)
    return None if titles is None else frozenset(found) | titles


def _find_jobs(directory: str) -> tuple[str, ...]:
    try:
        with open(f"{directory}/cgroup", encoding="utf-8", errors="replace") as file:
            return find_jobs_of_cgroups(file.read())
    except OSError:
        return ()


def find_jobs_of_cgroups(text: str) -> tuple[str, ...]:
    """The jobs that a process belongs to, by id or SLUID; pure.

    Args:
        text: The text of /proc/PID/cgroup.
    """
    paths = (line.split(":", 2)[-1] for line in text.splitlines())
    matches = (_GROUP.search(path) for path in paths if not path.startswith(_OF_USERS))
    return tuple(match[match.lastgroup or 0] for match in matches if match is not None)


def _is_step_daemon(pid: int) -> bool:
    process = read_process(pid)
    if process is None or process.has_ended or not process.name.startswith(_STEP_DAEMON):
        return False
    return set(read_uids(pid) or (-1,)) == {0}


def _read_titles(pids: Sequence[int]) -> frozenset[str] | None:
    """The jobs in the titles of root's own slurmstepds; None where one cannot be read in time."""
    if not pids:
        return frozenset()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for pid in pids:
                title = b""
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        title = file.read(_TITLE_BYTES)
                except OSError:
                    pass
                match = _TITLE.match(title)
                if match is not None:
                    os.write(write_end, match[1] + b"\n")
            os.write(write_end, _END)
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        data = _read_until(read_end, time.monotonic() + _TITLES_S)
    finally:
        os.close(read_end)
        end_child(child)
        os.waitpid(child, os.WNOHANG)
    if not data.endswith(_END):
        return None
    return frozenset(data.removesuffix(_END).decode("ascii").split())


def _read_until(descriptor: int, deadline: float) -> bytes:
    """What comes until the other end is closed, or no time is left."""
    data = b""
    while (left_s := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], left_s)[0]:
            break
        chunk = os.read(descriptor, 65536)
        if not chunk:
            break
        data += chunk
    return data
