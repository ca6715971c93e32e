"""The job steps that members' own scripts start, beside the steps that the members are."""

from __future__ import annotations

import contextlib
import os

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.member import MemberId
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.roster import Member
from slurm_colloc.slurm.access import SlurmAccess


class InnerSteps:
    """Signals and ends them.

    Args:
        allocation: What Slurm gave.
        slurm: Slurm, or None where the pack runs without it: there are none, then.
    """

    def __init__(self, allocation: Allocation, slurm: SlurmAccess | None) -> None:
        self._allocation = allocation
        self._slurm = slurm

    def signal(self, member: Member, number: int) -> None:
        """Signal the steps that the member's own script has started."""
        if self._slurm is not None:
            with contextlib.suppress(SlurmError):
                if steps := self._list(member, self._slurm):
                    self._slurm.signal_steps(steps, number)

    def end(self, member: Member) -> None:
        """End the steps that the member's own script has left running."""
        if self._slurm is not None:
            with contextlib.suppress(SlurmError):
                if steps := self._list(member, self._slurm):
                    self._slurm.end_steps(steps)

    def _list(self, member: Member, slurm: SlurmAccess) -> list[str]:
        if not os.path.exists(f"{member.prefix}.steps"):
            return []
        prefix = f"{MemberId(self._allocation.shown_job_id, member.number)}:"
        named = slurm.list_steps(self._allocation.job_id)
        return [step for step, name in named if name.startswith(prefix)]
