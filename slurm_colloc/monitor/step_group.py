"""A member's own control group, where it runs as a job step that has one."""

from __future__ import annotations

import re

from slurm_colloc.monitor.process_table import read_small

_STEP = re.compile(r"(?P<step>.*/job_[0-9]+/step_[0-9]+)(?:/|$)")
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
            match = _STEP.match(path)
            if match is None:
                continue
            names = controllers.split(",")
            if hierarchy == "0":
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
