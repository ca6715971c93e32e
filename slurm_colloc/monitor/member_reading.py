"""What one start of a member uses on the host, and how far it has come.

Also: a member's own control group, where it runs as a job step that has one; which processes are
whose, with few looks at /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from slurm_colloc.host.system.node_processes import (
    find_ancestor,
    read_named_start,
    read_parent,
    read_small,
    read_stat_fields,
)
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.store.progress_counters import MemberProgress

# ---- A member's own control group, where it runs as a job step that has one ----------------------
#
# version 1   .../slurm/uid_1000/job_4711/step_2/task_0, of a node among several `slurm_NODE`
# version 2   .../slurmstepd.scope/job_4711/step_2/user/task_0, likewise `NODE_slurmstepd.scope`;
#             from Slurm 26.05 on a job's SLUID stands where job_4711 stood, unless cgroup.conf
#             has CgroupJobIdPaths=yes

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


def find_step_group(pid: int) -> StepGroup:
    """The group of the step that a process runs in."""
    try:
        text = read_small(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
    except OSError:
        text = ""
    return StepGroup(text)


# ---- Which processes are whose, with few looks at /proc ------------------------------------------
#
# One listing of /proc serves all members; only a process that was not there before is looked at.

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""

Key = tuple[int, int]
"""A member's number, and the number of its start."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says (proc(5)).

    Attributes:
        parent: Its parent's pid.
        start: When it started, in clock ticks after boot.
        has_ended: It is a zombie.
        own_cpu_s: CPU time of its own.
        children_cpu_s: CPU time of its children that have ended and were waited for.
        threads: How many it has.
        rss_mb: Its resident memory.
    """

    parent: int
    start: int
    has_ended: bool
    own_cpu_s: float
    children_cpu_s: float
    threads: int
    rss_mb: float


def read_stat(pid: int) -> Stat | None:
    """Read one process, None where it is gone."""
    try:
        fields = read_stat_fields(pid)
        return Stat(
            parent=int(fields[1]),
            start=int(fields[19]),
            has_ended=fields[0] in (b"Z", b"X"),
            own_cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
            children_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS,
            threads=int(fields[17]),
            rss_mb=int(fields[21]) * _PAGE_MB,
        )
    except (OSError, ValueError, IndexError):
        return None


def read_inner_pid(pid: int) -> int | None:
    """The pid that a process has in a pid namespace of its own (NSpid of proc(5)).

    Returns:
        None where it shares this process's namespace, or is gone.
    """
    try:
        for line in read_small(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"NSpid:"):
                pids = line.split()[1:]
                return int(pids[-1]) if len(pids) > 1 else None
    except (OSError, ValueError):
        pass
    return None


def is_in_initial_pid_namespace() -> bool:
    """Whether this process sees every process of the node that it may see at all.

    In another pid namespace it cannot tell a process of a member's from one that it does not see.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


class ProcessTable:
    """The processes of all members.

    Args:
        pack: The pack's directory, as in its members' environment.
    """

    def __init__(self, pack: str) -> None:
        self._pack = os.fsencode(pack)
        self._wrappers: dict[Key, int] = {}
        self._owners: dict[int, Key] = {}
        self._pids: dict[Key, list[int]] = {}
        self._foreign: set[int] = set()
        self._inner: dict[int, int] = {}
        self._sees_all = is_in_initial_pid_namespace()

    def add(self, key: Key, wrapper_pid: int) -> None:
        """Follow a member from now on."""
        self._wrappers[key] = wrapper_pid
        self._own(wrapper_pid, key)
        # Its processes may have been seen before it was known.
        self._foreign.clear()

    def remove(self, key: Key) -> None:
        """Follow a member no more."""
        self._wrappers.pop(key, None)
        for pid in self._pids.pop(key, []):
            self._owners.pop(pid, None)
            self._inner.pop(pid, None)

    def forget(self, pid: int) -> None:
        """A process has ended."""
        key = self._owners.get(pid)
        if key is not None and pid != self._wrappers.get(key):
            del self._owners[pid]
            self._inner.pop(pid, None)
            self._pids[key].remove(pid)

    def _own(self, pid: int, key: Key) -> None:
        self._owners[pid] = key
        self._pids.setdefault(key, []).append(pid)

    def forget_strangers(self) -> None:
        """Look at every process anew the next time: a pid may have been given out again."""
        self._foreign.clear()

    def list_pids(self, key: Key) -> list[int]:
        """The processes of a member that are known, its wrapper first."""
        return list(self._pids.get(key, ()))

    def look(self) -> None:
        """Find the processes that have come."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._foreign &= pids
        for pid in [pid for pid in self._owners if pid not in pids]:
            self.forget(pid)
        new = pids - self._owners.keys() - self._foreign
        parents: dict[int, int | None] = {}
        for pid in new:
            owner = self._find_owner(pid, parents)
            if owner is None:
                self._foreign.add(pid)
            else:
                self._own(pid, owner)
                inner = read_inner_pid(pid)
                if inner is not None:
                    self._inner[pid] = inner

    def _find_owner(self, pid: int, parents: dict[int, int | None]) -> Key | None:
        def find_parent(one: int) -> int | None:
            if one not in parents:
                parents[one] = read_parent(one)
            return parents[one]

        owner = find_ancestor(pid, self._owners, self._foreign, find_parent)
        if owner is not None:
            return owner
        named = read_named_start(pid, self._pack)
        return named if named in self._wrappers else None

    def share_out(self, by_pid: Mapping[int, float | None]) -> dict[Key, float | None]:
        """Give each member what NVML's lists say of its processes.

        NVML may name a process of a container by the pid that it has there.

        Args:
            by_pid: A size of each process; None where it is not told.

        Returns:
            A sum for each member that has any; None where a part of it is not told, or where it
            cannot be told whether it has any. A member that is missing has none.
        """
        inside: dict[int, set[Key]] = {}
        for pid, inner in self._inner.items():
            inside.setdefault(inner, set()).add(self._owners[pid])
        sums: dict[Key, float | None] = {}
        has_unseen = False
        for pid, size in by_pid.items():
            owner = self._owners.get(pid)
            owners = inside.get(pid, set()) if owner is None else {owner}
            has_unseen |= not owners and pid not in self._foreign
            for one in owners:
                known = sums.get(one, 0.0)
                # Two containers may have a process of the same pid each.
                if size is None or known is None or len(owners) > 1:
                    sums[one] = None
                else:
                    sums[one] = known + size
        for key in self._find_untold(has_unseen=has_unseen):
            sums.setdefault(key, None)
        return sums

    def _find_untold(self, *, has_unseen: bool) -> set[Key]:
        """Members of which it says nothing that none of their processes was found in the lists.

        Args:
            has_unseen: The lists name a process that is not seen here.
        """
        if has_unseen and not self._sees_all:
            return set(self._wrappers)
        return {self._owners[pid] for pid in self._inner}


# ---- What one start of a member uses on the host, and how far it has come ------------------------

Row = dict[str, float | int | str | dict[str, float] | None]

_PATIENCE = 3

EARLY_S = 60.0
"""So long after its start a member's GPU memory is looked at each second: what a program takes
first, such as an autotuner's workspace, it may give back soon."""


ReadProgress = Callable[[str], MemberProgress | None]


class Growing:
    """A counter that never goes back, made of a sum that may.

    When a process ends, what it used moves to its parent, which may have been read a moment
    before; or it is lost, where the parent ignores its children's ends. A fall that lasts is a
    loss, and is made up for.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._lost = 0.0
        self._falls = 0

    def update(self, total: float | None) -> float | None:
        """Take a new sum, None where it could not be read; the counter."""
        if total is None:
            return self.value
        total += self._lost
        if self.value is None or total >= self.value:
            self.value = total
            self._falls = 0
        else:
            self._falls += 1
            if self._falls >= _PATIENCE:
                self._lost += self.value - total
                self._falls = 0
        return self.value


@dataclass
class _Sums:
    """All processes of a member at one moment."""

    processes: int = 0
    threads: int = 0
    cpu_s: float = 0.0
    rss_mb: float = 0.0
    read_bytes: int | None = None
    written_bytes: int | None = None


@dataclass(eq=False)
class MemberReader:
    """Reads one start of a member, from its wrapper's first record to its last.

    Attributes:
        key: Which.
        prefix: PACK/members/NNNN/run.A.M, of its wrapper's records.
        progress: Where its processes count.
        table: Whose processes are whose.
        read_progress: Reads that directory.
    """

    key: Key
    prefix: str
    progress: str
    table: ProcessTable
    read_progress: ReadProgress

    def __post_init__(self) -> None:
        self.cpus: frozenset[int] = frozenset()
        self.has_ended = False
        self._wrapper_pid: int | None = None
        self._starts: dict[int, int] = {}
        self._cpu, self._read, self._written = Growing(), Growing(), Growing()
        self._counted: Row = {}
        self._moments: dict[str, tuple[float, float]] = {}
        self._last_at = 0.0
        self._found_at = float("-inf")

    def is_early(self, now: float) -> bool:
        """Whether it has only just started.

        Args:
            now: The monotonic clock.
        """
        return now < self._found_at + EARLY_S

    def find(self, now: float) -> bool:
        """Look for the wrapper's first record; True where it is there.

        Args:
            now: The monotonic clock.
        """
        record = _read_record(f"{self.prefix}.started")
        if record is None:
            return False
        self._wrapper_pid = int(record["wrapper_pid"])
        self._found_at = now
        self.cpus = frozenset(record.get("cpus") or ())
        self.table.add(self.key, self._wrapper_pid)
        self._group = find_step_group(self._wrapper_pid)
        return True

    def read(self, at: float, gpu_memory_mb: float | None) -> Row:
        """One row; the last where the member has ended.

        Args:
            at: When, in epoch seconds.
            gpu_memory_mb: What it holds of the GPU on which it has most; None where that was not
                asked now.
        """
        sums = self._sum_up()
        if sums is None:
            self.has_ended = True
            return self._read_end(at)
        cpu_s, host_memory_mb = self._group.read_cpu_s(), self._group.read_host_memory_mb()
        self._last_at = at
        self._cpu.update(sums.cpu_s if cpu_s is None else cpu_s)
        self._read.update(sums.read_bytes)
        self._written.update(sums.written_bytes)
        return {
            **self._build_row(at, sums),
            "gpu_memory_mb": gpu_memory_mb,
            "host_memory_mb": sums.rss_mb if host_memory_mb is None else host_memory_mb,
        }

    def _build_row(self, at: float, sums: _Sums) -> Row:
        """A row without the memory of its processes."""
        return {
            "at": at,
            "gpu_memory_mb": None,
            "processes": sums.processes,
            "threads": sums.threads,
            "cpu_s": self._cpu.value,
            "host_memory_mb": None,
            "read_bytes": _as_int(self._read.value),
            "written_bytes": _as_int(self._written.value),
            **self._count(),
        }

    def _read_end(self, at: float) -> Row:
        """What is left of a member that has ended: its counters, as its wrapper found them."""
        end = _read_record(f"{self.prefix}.exit") or {}
        ended_at = float(end.get("at") or at)
        cpu_s = end.get("cpu_s")
        if cpu_s is not None:
            self._cpu.update(max(float(cpu_s), self._cpu.value or 0.0))
        return self._build_row(ended_at if self._last_at < ended_at <= at else at, _Sums())

    def _count(self) -> Row:
        """Its progress; what was counted last where its files are gone already."""
        found = None
        with contextlib.suppress(OSError, ValueError):
            found = self.read_progress(self.progress)
        if found is not None:
            # A member without a step may make them in a way that is not seen: that is not 0 steps.
            has_stepped = found.source is not None
            self._counted = {
                "steps": found.steps if has_stepped else None,
                "skipped": found.skipped if has_stepped else None,
                "samples": found.samples,
                "batches": found.batches,
                "wait_s": found.wait_s,
                "trainers": found.trainers,
                "progress": found.source,
                "first_step_at": self._to_epoch("first_step_at", found.first_step_s),
                "last_step_at": self._to_epoch("last_step_at", found.last_step_s),
                "gpu_memory_reserved_mb": _as_mib(found.gpu_reserved),
                "gpu_memory_reserved_peak_mb": _as_mib(found.gpu_reserved_peak),
                "loader_workers": found.loader_workers,
            }
        return self._counted

    def _to_epoch(self, name: str, moment_s: float | None) -> float | None:
        """A moment of the node's monotonic clock; the same moment gives the same answer."""
        if moment_s is None:
            return None
        known = self._moments.get(name)
        if known is None or known[0] != moment_s:
            known = (moment_s, moment_s + time.time() - time.monotonic())
            self._moments[name] = known
        return known[1]

    def _sum_up(self) -> _Sums | None:
        """Read every process; None where the wrapper is gone.

        Where one has ended meanwhile all are read again: what it used is its parent's now, and the
        parent may have been read before.
        """
        for _ in range(_PATIENCE):
            sums = _Sums()
            gone = False
            for pid in self.table.list_pids(self.key):
                is_wrapper = pid == self._wrapper_pid
                if not self._add(pid, sums, is_wrapper=is_wrapper):
                    if is_wrapper:
                        return None
                    gone = True
                    self.table.forget(pid)
                    self._starts.pop(pid, None)
            if not gone:
                break
        return sums

    def _add(self, pid: int, sums: _Sums, *, is_wrapper: bool) -> bool:
        stat = read_stat(pid)
        if stat is None or self._starts.setdefault(pid, stat.start) != stat.start:
            return False
        if is_wrapper:
            sums.cpu_s += stat.children_cpu_s
            if stat.has_ended:
                return False
        else:
            sums.cpu_s += stat.own_cpu_s + stat.children_cpu_s
            if not stat.has_ended:
                sums.processes += 1
                sums.threads += stat.threads
                sums.rss_mb += stat.rss_mb
        with contextlib.suppress(OSError, ValueError, IndexError):
            # rchar, wchar, syscr, syscw, read_bytes, write_bytes, ...: see proc(5). Like CPU
            # time these hold what children did that were waited for.
            words = read_small(f"/proc/{pid}/io").split()
            sums.read_bytes = (sums.read_bytes or 0) + int(words[9])
            sums.written_bytes = (sums.written_bytes or 0) + int(words[11])
        return True


def _as_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _as_mib(value: int | None) -> float | None:
    return None if value is None else value / _MIB


def _read_record(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError):
        return None
