"""What the monitor says of itself: its gaps, its cost, what it could read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.monitor.capabilities import Capabilities
from slurm_colloc.store.atomic_files import drop_temporaries, read_json, write_json
from slurm_colloc.store.pack.sample_files import monitor_path


@dataclass
class MonitorRecord:
    """monitor.json of one attempt.

    Attributes:
        pack: The pack's directory.
        attempt: The attempt's number.
        node: The node's name.
        interval_s: Between two ticks.
        started_at: Epoch seconds.
        gaps: When nothing could be measured.
        capabilities: What could be read.
        ticks_due: How many ticks there should have been.
        ticks_taken: How many there were.
        rows_dropped: Rows that could not be written for so long that they were given up.
        mode: The pack's sharing mode.
        gpus: The GPUs that were watched.
        gpu_models: By UUID what GPU it is, as `name`, `memory_mb` and `index`, nvidia-smi's.
        earlier: The same of the attempts before.
        list_unmatched: By member how many lines --progress-regex matched none of.
    """

    pack: str
    attempt: int
    node: str
    interval_s: float
    started_at: float
    gaps: Gaps
    capabilities: Capabilities
    ticks_due: int = 0
    ticks_taken: int = 0
    rows_dropped: int = 0
    mode: str = ""
    gpus: list[str] = field(default_factory=list)
    gpu_models: dict[str, dict[str, Any]] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    list_unmatched: Callable[[], dict[int, int]] = dict

    def take_over(self) -> None:
        """Keep what the monitor before has said, which this one's file replaces.

        Half a file that it was killed at is removed.
        """
        drop_temporaries(monitor_path(self.pack))
        try:
            before = read_json(monitor_path(self.pack))
        except StateError:
            before = None
        if before is not None:
            earlier = before.pop("earlier", [])
            before.pop("capabilities", None)
            self.earlier = [*earlier, before]

    def write(self, now: float, *, ended: bool = False) -> None:
        """Write it.

        Args:
            now: Epoch seconds.
            ended: This is the last word.

        Raises:
            StateError: It cannot be written.
        """
        write_json(
            monitor_path(self.pack),
            {
                "attempt": self.attempt,
                "node": self.node,
                "interval_s": self.interval_s,
                "started_at": self.started_at,
                "written_at": now,
                "ended_at": now if ended else None,
                "ticks_due": self.ticks_due,
                "ticks_taken": self.ticks_taken,
                "rows_dropped": self.rows_dropped,
                "gaps": self.gaps.list_all(now),
                "gaps_left_out": self.gaps.left_out,
                "cpu_s": time.process_time(),
                "rss_peak_mb": read_rss_peak_mb(),
                "own_memory_mb": read_own_memory_mb(),
                "mode": self.mode,
                "gpus": self.gpus,
                "gpu_models": self.gpu_models,
                "capabilities": self.capabilities.as_dict(),
                "unmatched": {str(key): lines for key, lines in self.list_unmatched().items()},
                "earlier": self.earlier,
            },
        )


def read_rss_peak_mb() -> float | None:
    """The most memory that this process has had; None where it cannot be read.

    getrusage would answer with what the parent had before the exec. Pages of libraries count, which
    all processes share, and of which some kernels map twice as many as others.
    """
    return _read_status_mb("VmHWM:")


def read_own_memory_mb() -> float | None:
    """The memory that this process alone has now; None where it cannot be read."""
    return _read_status_mb("RssAnon:")


def _read_status_mb(name: str) -> float | None:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


MOST_GAPS = 1000
"""More are not told one by one: a source that comes and goes each second says so in its count."""


@dataclass
class Gaps:
    """The gaps of one attempt, in order of their ends.

    Attributes:
        closed: From, to (epoch seconds), reason.
        left_out: How many more there were than are told.
    """

    closed: list[tuple[float, float, str]] = field(default_factory=list)
    left_out: int = 0
    _open: dict[str, tuple[float, str]] = field(default_factory=dict)

    def add(self, since: float, until: float, reason: str) -> None:
        """Add a gap that is over."""
        if len(self.closed) >= MOST_GAPS:
            self.left_out += 1
        else:
            self.closed.append((since, until, reason))

    def note(self, source: str, at: float, reason: str) -> None:
        """Say at a tick whether a source could be read.

        Args:
            source: Which, such as a GPU's UUID.
            at: When, in epoch seconds.
            reason: Why it could not; empty where it could.
        """
        since = self._open.get(source)
        if since is not None and since[1] != reason:
            del self._open[source]
            self.add(since[0], at, since[1])
        if reason and source not in self._open:
            self._open[source] = (at, reason)

    def list_all(self, now: float) -> list[tuple[float, float, str]]:
        """All gaps; those that last end now."""
        return [*self.closed, *((since, now, reason) for since, reason in self._open.values())]


def describe_missed(work_s: float, interval_s: float, busy_with: str) -> str:
    """Why ticks were missed: the monitor's own work, or it was not let run at all.

    Args:
        work_s: How long the work of the last tick took.
        interval_s: Between two ticks.
        busy_with: What took longest in it.
    """
    if work_s > interval_s:
        return f"monitor: {busy_with} took {work_s:.1f} s"
    return "monitor: it was stopped, or the node was too busy to run it"
