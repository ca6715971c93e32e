"""A member's own control group, where it runs as a job step that has one.

version 1   .../slurm/uid_1000/job_4711/step_2/task_0, of a node among several `slurm_NODE`
version 2   .../slurmstepd.scope/job_4711/step_2/user/task_0, likewise `NODE_slurmstepd.scope`;
            from Slurm 26.05 on a job's SLUID stands where job_4711 stood, unless cgroup.conf
            has CgroupJobIdPaths=yes
"""

from __future__ import annotations

import re

from slurm_colloc.host.system.process_owner import read_small

# Slurm's own directories may lie in any slice, or in a container, but never among those that users
# make for themselves in their sessions.
_ABOVE = r"(?:/(?!user\.slice/)[^/]+)*?"
_JOB_NUMBER = "job_[0-9]+"
# `s` and the 64 bits of the id in Crockford's base 32 (src/common/sluid.c).
_SLUID = "s[0-9A-HJKMNP-TV-Z]{12,13}"
_STEP_NUMBER = "step_[0-9]+"
_STEP_V1 = re.compile(
    rf"(?P<step>{_ABOVE}/slurm(?:_[^/]+)?(?:/uid_[0-9]+)?/{_JOB_NUMBER}/{_STEP_NUMBER})(?:/|$)"
)
_STEP_V2 = re.compile(
    rf"(?P<step>{_ABOVE}/(?:[^/]+_)?slurmstepd\.scope/(?:{_JOB_NUMBER}|{_SLUID})/{_STEP_NUMBER})"
    r"(?:/|$)"
)
_MIB = 1 << 20
_MOST = 1 << 14


class StepGroup:
    """What the kernel adds up for a step, the processes that have ended included.

    Args:
        cgroup: The text of /proc/PID/cgroup of a process in it.
        root: Where control groups are mounted.

    The steps `batch` and `extern` have no number, and are no member's own: there all members run
    side by side as plain processes.
    """

    def __init__(self, cgroup: str, root: str = "/sys/fs/cgroup") -> None:
        self._cpu = ""
        self._memory = ""
        self._memory_names: tuple[bytes, ...] = ()
        for line in cgroup.splitlines():
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            names = controllers.split(",")
            is_version_2 = hierarchy == "0"
            match = (_STEP_V2 if is_version_2 else _STEP_V1).match(path)
            if match is None:
                continue
            if is_version_2:
                # Version 2. Slurm keeps its own daemon apart from the user's processes.
                own = f"{root}{match['step']}/user"
                self._cpu = self._cpu or f"{own}/cpu.stat"
                if not self._memory:
                    self._memory = f"{own}/memory.stat"
                    self._memory_names = (b"anon", b"shmem")
            if "cpuacct" in names:
                self._cpu = f"{root}/cpuacct{match['step']}/cpuacct.usage"
            if "memory" in names:
                self._memory = f"{root}/memory{match['step']}/memory.stat"
                self._memory_names = (b"total_rss", b"total_shmem")

    def read_cpu_s(self) -> float | None:
        """CPU time of all that ever ran in it; None where it has no such account."""
        if not self._cpu:
            return None
        try:
            text = read_small(self._cpu)
            if not self._cpu.endswith("cpu.stat"):
                return int(text) / 1e9
            for line in text.splitlines():
                name, _, value = line.partition(b" ")
                if name == b"usage_usec":
                    return int(value) / 1e6
        except (OSError, ValueError):
            self._cpu = ""
        return None

    def read_host_memory_mb(self) -> float | None:
        """Memory that is its processes' own, without the page cache; None where unknown."""
        if not self._memory:
            return None
        try:
            found = 0
            has_found = False
            for line in read_small(self._memory, _MOST).splitlines():
                name, _, value = line.partition(b" ")
                if name in self._memory_names:
                    found += int(value)
                    has_found = True
        except (OSError, ValueError):
            self._memory = ""
            return None
        return found / _MIB if has_found else None


def find_step_group(pid: int, root: str = "/sys/fs/cgroup") -> StepGroup:
    """The group of the step that a process runs in."""
    try:
        text = read_small(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
    except OSError:
        text = ""
    return StepGroup(text, root)
