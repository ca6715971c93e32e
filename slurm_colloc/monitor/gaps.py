"""When nothing could be measured, and why; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

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
