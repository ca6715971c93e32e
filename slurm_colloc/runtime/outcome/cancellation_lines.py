"""What slurmstepd writes into the output of a job that it ends, for a member of a pack.

People and their scripts look for `CANCELLED AT ... DUE TO TIME LIMIT` there. slurmstepd itself
knows the pack alone, and writes to the pack's log.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.outcome.verdict import StopReason
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.members import Member

_DUE_TO: dict[StopReason | MemberState, str] = {
    StopReason.CANCEL: "",
    StopReason.TIMEOUT: " DUE TO TIME LIMIT",
    StopReason.REQUEUE: " DUE TO JOB REQUEUE",
    MemberState.CANCELLED: "",
    MemberState.TIMEOUT: " DUE TO TIME LIMIT",
    MemberState.PREEMPTED: " DUE TO PREEMPTION",
}
"""By slurmstepd's `_kill_container` and slurmd's `_rpc_*` (22.05 to 26.05)."""


class CancellationLines:
    """Writes them.

    Args:
        allocation: Names the job and the node.
        is_written: Members are no Slurm jobs by themselves, and have files of their own.
    """

    def __init__(self, allocation: Allocation, *, is_written: bool) -> None:
        self._allocation = allocation
        self._is_written = is_written

    def write(self, member: Member, why: StopReason | MemberState | None) -> None:
        """Append the line to the file of a member's errors; nothing where that cannot be done.

        Args:
            member: The member, which is being ended or was.
            why: What ends it; others than Slurm's reasons have no line.
        """
        due_to = None if why is None else _DUE_TO.get(why)
        if due_to is None or not member.outputs or not self._is_written:
            return
        job_id = self._allocation.environment.get("SLURM_JOB_ID", self._allocation.job_id)
        node = self._allocation.node
        at = time.strftime("%Y-%m-%dT%H:%M:%S")
        line = (
            f"slurmstepd-{node}: error: *** JOB {job_id} ON {node} CANCELLED AT {at}{due_to} ***\n"
        )
        with contextlib.suppress(OSError):
            _append(member.outputs[-1][0], line.encode())


def _append(path: str, line: bytes) -> None:
    """Append to a file that is there; a device or a pipe might keep this process waiting."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.write(descriptor, line)
    finally:
        os.close(descriptor)
