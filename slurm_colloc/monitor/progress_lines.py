"""Progress read from what a program prints, for programs that cannot be counted from inside."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
import sys
import time
from collections.abc import Callable

from slurm_colloc.store.limited_cpu import TooSlow, limited_cpu
from slurm_colloc.store.pack.progress_counters import (
    FollowRequest,
    MemberProgress,
    read_follow_request,
)

PATIENCE_S = 0.2
"""CPU time that one look at one file may take; a regular expression can take for ever."""

_MOST_BYTES = 1 << 20
_LONGEST_LINE = 4096
_LINE_END = re.compile(rb"[\r\n]+")

_NOTHING = MemberProgress(
    steps=0,
    skipped=0,
    samples=None,
    batches=0,
    wait_s=0.0,
    trainers=0,
    first_step_s=None,
    last_step_s=None,
    updated_s=None,
    source=None,
    several_optimizers=False,
    several_loaders=False,
    skips_unknown=False,
    processes=(),
)


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
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.problem = ""

    def work(self, now: float) -> None:
        """Read what was printed since the last time.

        Args:
            now: Monotonic clock.
        """
        if self.problem:
            return
        before = (self.steps, self.samples)
        for path in self._files:
            lines = self._read_lines(path)
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
            self.first_s = now if self.first_s is None else self.first_s
            self.last_s = now

    def _read_lines(self, path: str) -> list[str]:
        """Whole lines; a program that draws a progress bar ends them with a carriage return."""
        data = b""
        # It may be a FIFO that no process writes to, or any other thing that never answers.
        with contextlib.suppress(OSError), open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return []
            if status.st_size < self._files[path]:
                # It was emptied.
                self._files[path], self._rests[path] = 0, b""
            file.seek(self._files[path])
            data = file.read(_MOST_BYTES)
            self._files[path] += len(data)
        *lines, rest = _LINE_END.split(self._rests.get(path, b"") + data)
        self._rests[path] = rest[-_LONGEST_LINE:]
        return [line[:_LONGEST_LINE].decode("utf-8", "replace") for line in lines]

    def _search(self, line: str) -> None:
        groups = self._regex.groupindex
        for match in self._regex.finditer(line):
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
            sys.stderr.write(f"csub monitor: {follower.problem}\n")
            sys.stderr.flush()
        if follower.last_s is None:
            return counted
        known = counted or _NOTHING
        return dataclasses.replace(
            known,
            steps=follower.steps or 0,
            skipped=0,
            samples=follower.samples if follower.samples is not None else known.samples,
            trainers=max(1, known.trainers),
            first_step_s=follower.first_s,
            last_step_s=follower.last_s,
            updated_s=follower.last_s,
            source="regex",
        )


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _choose(known: int | None, text: str | None) -> int | None:
    """The number that a group holds, 12,800 and 1e3 among them; the known one where it is none."""
    try:
        return int(float((text or "").replace(",", "").replace("_", "")))
    except (ValueError, OverflowError):
        return known
