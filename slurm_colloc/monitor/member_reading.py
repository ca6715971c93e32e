"""What one start of a member uses on the host, and how far it has come."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slurm_colloc.host.system.process_owner import read_small
from slurm_colloc.monitor.process_table import Key, ProcessTable, read_stat
from slurm_colloc.monitor.step_group import find_step_group
from slurm_colloc.store.pack.progress_counters import MemberProgress

Row = dict[str, float | int | str | dict[str, float] | None]

_PATIENCE = 3
_MIB = 1 << 20

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


class MemberReader:
    """Reads one start of a member, from its wrapper's first record to its last.

    Args:
        key: Which.
        prefix: PACK/members/NNNN/run.A.M, of its wrapper's records.
        progress: Where its processes count.
        table: Whose processes are whose.
        read_progress: Reads that directory.
    """

    def __init__(
        self,
        key: Key,
        prefix: str,
        progress: str,
        table: ProcessTable,
        read_progress: ReadProgress,
    ) -> None:
        self.key = key
        self.cpus: frozenset[int] = frozenset()
        self.has_ended = False
        self._prefix = prefix
        self._progress = progress
        self._table = table
        self._read_progress = read_progress
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
        record = _read_record(f"{self._prefix}.started")
        if record is None:
            return False
        self._wrapper_pid = int(record["wrapper_pid"])
        self._found_at = now
        self.cpus = frozenset(record.get("cpus") or ())
        self._table.add(self.key, self._wrapper_pid)
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
        return {
            "at": at,
            "gpu_memory_mb": gpu_memory_mb,
            "processes": sums.processes,
            "threads": sums.threads,
            "cpu_s": self._cpu.update(sums.cpu_s if cpu_s is None else cpu_s),
            "host_memory_mb": sums.rss_mb if host_memory_mb is None else host_memory_mb,
            "read_bytes": _as_int(self._read.update(sums.read_bytes)),
            "written_bytes": _as_int(self._written.update(sums.written_bytes)),
            **self._count(),
        }

    def _read_end(self, at: float) -> Row:
        """What is left of a member that has ended: its counters, as its wrapper found them."""
        end = _read_record(f"{self._prefix}.exit") or {}
        ended_at = float(end.get("at") or at)
        cpu_s = end.get("cpu_s")
        if cpu_s is not None:
            self._cpu.update(max(float(cpu_s), self._cpu.value or 0.0))
        return {
            "at": ended_at if self._last_at < ended_at <= at else at,
            "gpu_memory_mb": None,
            "processes": 0,
            "threads": 0,
            "cpu_s": self._cpu.value,
            "host_memory_mb": None,
            "read_bytes": _as_int(self._read.value),
            "written_bytes": _as_int(self._written.value),
            **self._count(),
        }

    def _count(self) -> Row:
        """Its progress; what was counted last where its files are gone already."""
        found = None
        with contextlib.suppress(OSError, ValueError):
            found = self._read_progress(self._progress)
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
            for pid in self._table.list_pids(self.key):
                is_wrapper = pid == self._wrapper_pid
                if not self._add(pid, sums, is_wrapper=is_wrapper):
                    if is_wrapper:
                        return None
                    gone = True
                    self._table.forget(pid)
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
