"""All members of an attempt: which starts there are, and a row of each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from slurm_colloc.monitor.member_reading import MemberReader, ReadProgress, Row
from slurm_colloc.monitor.process_table import Key, ProcessTable
from slurm_colloc.store.pack.inbox import format_number

LOOK_S = 5.0
"""How often /proc is listed when no member came or went."""

_FORGET_S = 60.0
_START = re.compile(r"(?P<member>[0-9]{4,})\.(?P<start>[0-9]+)")
_RECORD = re.compile(r"run\.(?P<attempt>[0-9]+)\.(?P<start>[0-9]+)\.started")


GpuLists = Mapping[str, Mapping[int, float | None]]
"""By GPU or MIG instance: gpu_memory by pid, None where a process's is not told."""


class Members:
    """Follows the members of one attempt.

    Args:
        pack: The pack's directory.
        attempt: The attempt's number.
        progress_root: A directory of each start, named NNNN.M, which the runner makes.
        read_progress: Reads one of them.
    """

    def __init__(
        self, pack: str, attempt: int, progress_root: str, read_progress: ReadProgress
    ) -> None:
        self._pack = pack
        self._attempt = attempt
        self._root = progress_root
        self._read_progress = read_progress
        self._table = ProcessTable(pack)
        self._coming: dict[Key, MemberReader] = {}
        self._running: dict[Key, MemberReader] = {}
        self._ended: set[Key] = set()
        self._gpu_memory: dict[Key, float | None] = {}
        self._looked_at = self._forgot_at = self._listed_at = float("-inf")
        self._must_look = False

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs that running members are bound to."""
        return frozenset[int]().union(*(one.cpus for one in self._running.values()))

    def has_early(self, now: float) -> bool:
        """Whether a member has only just started; then its GPU memory is looked at more often.

        Args:
            now: The monotonic clock.
        """
        return any(reader.is_early(now) for reader in self._running.values())

    def read(self, at: float, now: float, gpu_lists: GpuLists | None) -> list[Row]:
        """One row of every member that runs, and a last one of those that have ended.

        Args:
            at: Epoch seconds.
            now: The same moment on the monotonic clock.
            gpu_lists: What NVML's lists say of processes; None where they were not read now.
        """
        self._find_starts(now)
        # NVML names processes of now, so their owners have to be known as of now.
        if self._must_look or now >= self._looked_at + LOOK_S or gpu_lists is not None:
            self._look(now)
        shares = None if gpu_lists is None else self._share_out(gpu_lists)
        rows: list[Row] = []
        for key, reader in list(self._running.items()):
            by_gpu = None if shares is None else shares.get(key)
            gpu_memory_mb = None if by_gpu is None else max(by_gpu.values(), default=0.0)
            before = len(self._table.list_pids(key))
            row = reader.read(at, gpu_memory_mb)
            row.update(attempt=self._attempt, member=key[0], start=key[1])
            if by_gpu is not None:
                row["gpu_memory_by_gpu"] = by_gpu
            rows.append(row)
            if reader.has_ended:
                del self._running[key]
                self._ended.add(key)
                self._table.remove(key)
            elif before != len(self._table.list_pids(key)):
                self._must_look = True
        return rows

    def _share_out(self, gpu_lists: GpuLists) -> dict[Key, dict[str, float]]:
        """By member what it holds of each GPU; a member of which that is not told is missing."""
        together: dict[int, float | None] = {}
        for by_pid in gpu_lists.values():
            for pid, size in by_pid.items():
                known = together.get(pid, 0.0)
                together[pid] = None if size is None or known is None else known + size
        told = self._table.share_out(together)
        # One that is in none of the lists, and could be, uses none of the GPUs.
        found: dict[Key, dict[str, float]] = {
            key: {} for key in self._running if told.get(key, 0.0) is not None
        }
        for uuid, by_pid in gpu_lists.items():
            for key, size in self._table.share_out(by_pid).items():
                if key in found and size is not None:
                    found[key][uuid] = size
        return found

    def _look(self, now: float) -> None:
        if now >= self._forgot_at + _FORGET_S:
            self._forgot_at = now
            self._table.forget_strangers()
        self._table.look()
        self._looked_at = now
        self._must_look = False

    def _find_starts(self, now: float) -> None:
        for key in self._list_starts(now):
            if key not in self._ended and key not in self._running and key not in self._coming:
                number, start = key
                name = format_number(number)
                self._coming[key] = MemberReader(
                    key,
                    f"{self._pack}/members/{name}/run.{self._attempt}.{start}",
                    f"{self._root}/{name}.{start}",
                    self._table,
                    self._read_progress,
                )
        for key, reader in list(self._coming.items()):
            if reader.find(now):
                del self._coming[key]
                self._running[key] = reader
                self._must_look = True

    def _list_starts(self, now: float) -> list[Key]:
        try:
            names = os.listdir(self._root)
        except OSError:
            # Without shared memory nothing counts, but there are members all the same.
            if now < self._listed_at + LOOK_S:
                return []
            self._listed_at = now
            return self._list_records()
        matches = (_START.fullmatch(name) for name in names)
        return sorted(
            (int(match["member"]), int(match["start"])) for match in matches if match is not None
        )

    def _list_records(self) -> list[Key]:
        found = []
        root = f"{self._pack}/members"
        for member in os.listdir(root) if os.path.isdir(root) else ():
            if not member.isdigit():
                continue
            for name in os.listdir(f"{root}/{member}"):
                match = _RECORD.fullmatch(name)
                if match is not None and int(match["attempt"]) == self._attempt:
                    found.append((int(member), int(match["start"])))
        return sorted(found)
