"""All members of an attempt: which starts there are, and a row of each.

Also: progress read from what a program prints, for programs that cannot be counted from inside.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Mapping

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.monitor.member_reading import Key, MemberReader, ProcessTable, ReadProgress, Row
from slurm_colloc.store.atomic_files import TooSlow, limited_cpu
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.progress_counters import (
    FollowRequest,
    MemberProgress,
    read_follow_request,
    replace_with_printed,
    write_printed_progress,
)

LOOK_S = 5.0
"""How often /proc is listed when no member came or went."""

_FORGET_S = 60.0
_START = re.compile(r"(?P<member>[0-9]{4,})\.(?P<start>[0-9]+)")
_RECORD = re.compile(r"run\.(?P<attempt>[0-9]+)\.(?P<start>[0-9]+)\.started")


GpuLists = Mapping[str, Mapping[int, float | None]]
"""By GPU or MIG instance: gpu_memory by pid, None where a process's is not told."""


@dataclass(eq=False)
class Members:
    """Follows the members of one attempt.

    Attributes:
        pack: The pack's directory.
        attempt: The attempt's number.
        progress_root: A directory of each start, named NNNN.M, which the runner makes.
        read_progress: Reads one of them.
    """

    pack: str
    attempt: int
    progress_root: str
    read_progress: ReadProgress

    def __post_init__(self) -> None:
        self._table = ProcessTable(self.pack)
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
            row.update(attempt=self.attempt, member=key[0], start=key[1])
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
                    f"{self.pack}/members/{name}/run.{self.attempt}.{start}",
                    f"{self.progress_root}/{name}.{start}",
                    self._table,
                    self.read_progress,
                )
        for key, reader in list(self._coming.items()):
            if reader.find(now):
                del self._coming[key]
                self._running[key] = reader
                self._must_look = True

    def _list_starts(self, now: float) -> list[Key]:
        try:
            names = os.listdir(self.progress_root)
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
        root = f"{self.pack}/members"
        for member in os.listdir(root) if os.path.isdir(root) else ():
            if not member.isdigit():
                continue
            for name in os.listdir(f"{root}/{member}"):
                match = _RECORD.fullmatch(name)
                if match is not None and int(match["attempt"]) == self.attempt:
                    found.append((int(member), int(match["start"])))
        return sorted(found)


# ---- Progress read from what a program prints, for programs that cannot be counted from inside ---

PATIENCE_S = 0.2
"""CPU time that one look at one file may take; a regular expression can take for ever."""

_MOST_BYTES = 1 << 20
_LONGEST_LINE = 4096
_LINE_END = re.compile(rb"[\r\n]+")


class Follower:
    """Counts what one start of a member prints.

    Args:
        request: What the runner asks for.
    """

    def __init__(self, request: FollowRequest) -> None:
        self._regex = re.compile(request.regex)
        self._files = dict(request.files)
        self._rests: dict[str, bytes] = {}
        self.steps: int | None = None
        self.samples: int | None = None
        self.first_steps = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.lines = 0
        self.matches = 0
        self.problem = ""
        self._looked_at: float | None = None

    def work(self, now: float) -> None:
        """Read what was printed since the last time.

        Args:
            now: Monotonic clock.
        """
        if self.problem:
            return
        before = (self.steps, self.samples)
        age_s = now - (now if self._looked_at is None else self._looked_at)
        self._looked_at = now
        for path in self._files:
            lines, written_s = self._read_lines(path)
            # When it was written, and not when it is read: lines may come as seldom as looks.
            age_s = min(age_s, written_s) if lines else age_s
            try:
                with limited_cpu(PATIENCE_S):
                    for line in lines:
                        self._search(line)
            except TooSlow:
                self.problem = (
                    f"--progress-regex took more than {PATIENCE_S:g} s on {path}: "
                    "its output is not followed any more"
                )
                return
        if (self.steps, self.samples) != before:
            self.last_s = now - age_s
            if self.first_s is None:
                self.first_s, self.first_steps = self.last_s, self.steps or 0

    def _read_lines(self, path: str) -> tuple[list[str], float]:
        """Whole lines, and how many seconds ago the file was written to.

        A program that draws a progress bar ends its lines with a carriage return.
        """
        data, written_s = b"", 0.0
        # It may be a FIFO that no process writes to, or any other thing that never answers.
        with contextlib.suppress(OSError), open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return [], 0.0
            if status.st_size < self._files[path]:
                # It was emptied.
                self._files[path], self._rests[path] = 0, b""
            # A file server has a clock of its own: it may be ahead.
            written_s = max(0.0, time.time() - status.st_mtime)
            file.seek(self._files[path])
            data = file.read(_MOST_BYTES)
            self._files[path] += len(data)
        *lines, rest = _LINE_END.split(self._rests.get(path, b"") + data)
        self._rests[path] = rest[-_LONGEST_LINE:]
        texts = [line[:_LONGEST_LINE].decode("utf-8", "replace") for line in lines]
        return texts, written_s

    def _search(self, line: str) -> None:
        self.lines += 1
        groups = self._regex.groupindex
        for match in self._regex.finditer(line):
            self.matches += 1
            if not groups:
                self.steps = (self.steps or 0) + 1
            if "step" in groups:
                self.steps = _choose(self.steps, match["step"])
            if "samples" in groups:
                self.samples = _choose(self.samples, match["samples"])


class Following:
    """Reads a member's progress: its processes' counters, and its output where that is asked for.

    Args:
        read_counters: Reads the counter files of one directory.
    """

    def __init__(self, read_counters: Callable[[str], MemberProgress | None]) -> None:
        self._read_counters = read_counters
        self._followers: dict[str, Follower] = {}
        self._told: dict[str, tuple[int, float]] = {}

    def list_unmatched(self) -> dict[int, int]:
        """By member how many lines its last start has printed, where none of them matched."""
        found: dict[int, int] = {}
        for directory, follower in self._followers.items():
            # DIRECTORY/NNNN.START, see member_starts.py.
            member = os.path.basename(directory).partition(".")[0]
            if member.isdecimal() and not follower.matches and not follower.problem:
                found[int(member)] = follower.lines
            elif member.isdecimal():
                found.pop(int(member), None)
        return found

    def read(self, directory: str) -> MemberProgress | None:
        """What is known of the progress of one start of a member; None for nothing.

        Args:
            directory: Where it publishes it.
        """
        counted = self._read_counters(directory)
        follower = self._followers.get(directory)
        if follower is None:
            request = read_follow_request(directory)
            if request is None:
                return counted
            follower = self._followers[directory] = Follower(request)
        had_problem = bool(follower.problem)
        follower.work(time.monotonic())
        if follower.problem and not had_problem:
            say(follower.problem)
        if follower.first_s is None or follower.last_s is None:
            return counted
        told = (follower.steps or 0, follower.last_s)
        # Samples alone are no steps, by which a runner measures.
        if follower.steps is not None and told != self._told.get(directory):
            self._told[directory] = told
            # A number that a program begins with may be that of a run before.
            steps = follower.steps - follower.first_steps + 1
            with contextlib.suppress(StateError):
                write_printed_progress(directory, steps, follower.first_s, follower.last_s)
        return replace_with_printed(
            counted,
            steps=follower.steps or 0,
            samples=follower.samples,
            first_s=follower.first_s,
            last_s=follower.last_s,
        )


def say(text: str) -> None:
    """Tell those who read the monitor's own output, which is the runner's."""
    sys.stderr.write(f"csub monitor: {text}\n")
    sys.stderr.flush()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _choose(known: int | None, text: str | None) -> int | None:
    """The number that a group holds, 12,800 and 1e3 among them; the known one where it is none."""
    try:
        return int(float((text or "").replace(",", "").replace("_", "")))
    except (ValueError, OverflowError):
        return known
