"""What a run of a hook did and in which time; for the audit log and for Slurm."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from slurm_colloc.host.hooks.hook_job import DEFAULT_RUN
from slurm_colloc.host.hooks.node_policy import DEFAULT_POLICY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

    from slurm_colloc.host.hooks.epilog import UndoReport
    from slurm_colloc.host.hooks.recover_jobs import Recovered


DRIVER_VARIABLE = "SLURM_COLLOC_DRIVER"
"""Names the driver to the hooks, from a constant line of their script; else see HookPlace."""

TELL_S = 1.5
"""What is kept of a hook's time for telling how undoing went."""


@dataclass(frozen=True)
class HookPlace:
    """Where the hooks of a node work.

    Args:
        run: Root's directory.
        policy: The policy's path.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
    """

    run: str = DEFAULT_RUN
    policy: str = DEFAULT_POLICY
    driver: str = ""


class OutOfTime(BaseException):
    """The hook's own deadline, told by the kernel wherever it happens to be."""


@dataclass
class HookReport:
    """What a run of a hook did, for the audit log.

    Args:
        action: `prepared`, `told` (nothing is prepared, and the job knows why), `undone`, `none`.
        outcome: In words; empty for as it should be.
        mode: What is prepared.
        exit_status: Of the hook.
        details: What else is worth telling.
    """

    action: str = "none"
    outcome: str = ""
    mode: str = ""
    exit_status: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    def build_entry(self, hook: str, took_s: float, about: Mapping[str, Any]) -> dict[str, Any]:
        """The line of the audit log.

        Args:
            hook: Which one it was.
            took_s: How long it took.
            about: What is known of its job.
        """
        return {
            "hook": hook,
            **about,
            "mode": self.mode,
            "action": self.action,
            "outcome": self.outcome,
            "ms": round(took_s * 1000, 1),
            "exit": self.exit_status,
            **self.details,
        }


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in whatever runs inside after so long."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def note_undone(report: HookReport, undone: UndoReport) -> None:
    """Take over how undoing went: the exit status is 1 where the node is not fit any more."""
    for name in ("unsafe", "left", "notes"):
        texts = getattr(undone, name)
        if texts:
            report.details[name] = texts
    if undone.restored:
        report.details["restored"] = undone.restored
    if undone.unsafe:
        report.exit_status = 1
        report.outcome = f"not fit for the next job: {'; '.join(undone.unsafe)}"


def describe_recovered(found: Recovered) -> dict[str, Any]:
    """What was found of another job, as JSON values."""
    report = found.report
    return {
        "job": found.job_id,
        "reason": found.reason,
        "undone": None if report is None else report.is_complete,
        "unsafe": [] if report is None else report.unsafe,
        "left": [] if report is None else report.left,
        "notes": [] if report is None else report.notes,
    }
