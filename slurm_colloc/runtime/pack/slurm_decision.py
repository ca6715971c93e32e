"""What becomes of a pack after a signal that its runner did not send.

Preemption, scancel and time limits reach the steps first. Until Slurm shows that the pack goes on,
nothing is started, and how the signalled members ended is not decided.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.member_processes import LOG_LIMIT
from slurm_colloc.runtime.outcome.verdict import PackVerdict, judge_pack, read_kill_reason
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.slurm.output_formats import expand_node_list
from slurm_colloc.slurm.slurm_access import SlurmAccess

ASK_INTERVAL_S = 1.0
"""How often Slurm is asked, while that is undecided."""

TERM_SETTLES_S = 2.0
"""A TERM to the batch script itself is that of an ending job, unless Slurm shows the job running
so long after it: slurmctld changes the job's state before it signals."""


class SlurmDecision:
    """Follows what Slurm says of the pack's job.

    Args:
        allocation: The allocation.
        slurm: Slurm; None where the pack runs without it, and then a TERM is a cancel.
        journal: The pack's log.
        slurm_log: Descriptor of the file to which slurmstepd writes.
        is_lone: The pack is one job alone.
        has_nodes: The job has several nodes, and goes on if one of them fails.
    """

    def __init__(
        self,
        allocation: Allocation,
        slurm: SlurmAccess | None,
        journal: Journal,
        slurm_log: int = 2,
        *,
        is_lone: bool = False,
        has_nodes: bool = False,
    ) -> None:
        self._is_lone = is_lone
        self._has_nodes = has_nodes
        self._slurm_log = slurm_log
        self._allocation = allocation
        self._slurm = slurm
        self._journal = journal
        self._log_offset = os.fstat(slurm_log).st_size
        self._kill_reason = ""
        self._ask_at = 0.0
        self._terminated_at: float | None = None
        self._is_open = False
        self.ending: PackVerdict | None = None

    @property
    def is_undecided(self) -> bool:
        """Something foreign has happened, and Slurm has not shown what it means."""
        return self.ending is None and (self._is_open or self._terminated_at is not None)

    @property
    def was_terminated(self) -> bool:
        """The batch script itself was sent TERM."""
        return self._terminated_at is not None

    def terminate(self) -> None:
        """Note a TERM to the batch script; called from a signal handler."""
        self._terminated_at = time.monotonic()

    def open(self, kill_reason: str, *, ask_in_s: float = 0.0) -> None:
        """Note that something foreign ended or signalled a member.

        Args:
            kill_reason: What slurmstepd said of it, if anything.
            ask_in_s: When to ask Slurm first, where it would know no more now.
        """
        if not self._is_open:
            self._is_open = True
            self._ask_at = time.monotonic() + ask_in_s
            self._journal.write("foreign_signal", reason=kill_reason)
        self._kill_reason = kill_reason or self._kill_reason

    def follow(self) -> bool:
        """Ask Slurm, if it is time to; True if the pack turns out to go on."""
        if not self.is_undecided:
            return False
        if not self._is_open:
            self.open("")
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + ASK_INTERVAL_S
        if self._slurm is None:
            self.ending = PackVerdict(False, MemberState.CANCELLED, "the pack was cancelled")
            return False
        verdict = self._ask(self._slurm)
        if verdict is None:
            return False
        if not verdict.goes_on:
            self.ending = verdict
            self._journal.write("ending", reason=verdict.reason)
            return False
        if self._terminated_at is not None and now - self._terminated_at < TERM_SETTLES_S:
            return False
        self._is_open = False
        self._terminated_at = None
        self._kill_reason = ""
        return True

    def settle(self) -> PackVerdict | None:
        """The last word that can be had here, once every member has ended."""
        if self.ending is not None and self.ending.state is None and self._slurm is not None:
            # While Slurm shows COMPLETING, only what slurmstepd wrote tells why.
            self._kill_reason = self._kill_reason or read_kill_reason(self._read_own_log())
            self.ending = self._ask(self._slurm) or self.ending
        return self.ending

    def _ask(self, slurm: SlurmAccess) -> PackVerdict | None:
        fields = None
        with contextlib.suppress(SlurmError):
            fields = slurm.read_job(self._allocation.job_id)
        verdict = judge_pack(
            fields, self._allocation.restarts, self._kill_reason, is_lone=self._is_lone
        )
        if self._has_nodes and fields and verdict is not None and verdict.goes_on:
            left = expand_node_list(fields.get("NodeList", ""))
            if left and self._allocation.node not in left:
                # Slurm has ended the members: they start again on the others.
                return PackVerdict(False, None, "this node has left the job")
        return verdict

    def _read_own_log(self) -> str:
        """What was written to the batch script's standard error since this attempt began."""
        with contextlib.suppress(OSError):
            status = os.fstat(self._slurm_log)
            if stat.S_ISREG(status.st_mode):
                with open(f"/proc/self/fd/{self._slurm_log}", "rb") as file:
                    file.seek(max(self._log_offset, status.st_size - LOG_LIMIT))
                    return file.read().decode("utf-8", "replace")
        return ""
