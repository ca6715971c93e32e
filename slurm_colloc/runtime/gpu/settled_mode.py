"""The sharing mode that holds in a pack: settled, fallen back to, or refused; and who is told."""

from __future__ import annotations

import sys

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.model.why_not_now import ONE_AT_A_TIME
from slurm_colloc.runtime.gpu.setup_record import SetupRecord
from slurm_colloc.runtime.journal import Journal

ONE_PROCESS = "EXCLUSIVE_PROCESS"

PREPARED = (SharingMode.MPS, SharingMode.MIG)
"""What needs something on the node, and falls back to the next where it cannot be had."""


class SettledMode:
    """Keeps the mode, and writes down each change.

    Args:
        preparation: The attempt's setup.
        request: What `--share` asked for.
        journal: The pack's log.
        mode: The mode that holds from the start; None while it is being prepared.
    """

    def __init__(
        self,
        preparation: SetupRecord,
        request: ShareRequest,
        journal: Journal,
        mode: SharingMode | None,
    ) -> None:
        self._preparation = preparation
        self._request = request
        self._journal = journal
        self._has_told = False
        self.mode = mode
        self.refusal = ""
        """Why nothing may start here."""
        self.takes_one_process = False
        """The GPU lets one process in at a time."""
        self.lacks_mig = ""
        """Why there are no MIG instances, where they were asked for."""

    def settle(self, mode: SharingMode, reason: str) -> None:
        """This mode holds."""
        if not self.refusal:
            self.mode = mode
            self._preparation.write(mode=mode.value, reason=reason)
            self._journal.write("sharing", mode=mode.value, reason=reason)

    def settle_mps(self, active_ms: float | None) -> None:
        """MPS holds: its server takes clients."""
        if self.refusal:
            return
        self.mode = SharingMode.MPS
        self._preparation.write(
            mode=SharingMode.MPS.value,
            reason=self.lacks_mig or "the node has MPS, and its GPU takes it",
            active_ms=active_ms,
        )
        if self.lacks_mig and not self._has_told:
            self._has_told = True
            self._tell(f"members share the GPU by MPS: {self.lacks_mig}")
        self._journal.write(
            "sharing",
            mode=SharingMode.MPS.value,
            ms=self._preparation.setup.control_ms,
            active_ms=active_ms,
        )

    def settle_one_at_a_time(self, reason: str) -> None:
        """Members run one after the other: MPS does not hold them together."""
        self.takes_one_process = True
        self._preparation.add_notes(f"without MIG instances {ONE_AT_A_TIME}")
        self.settle(SharingMode.TIMESLICE, reason)
        self._tell(f"members run one at a time: {reason}")

    def fall_back(self, reason: str) -> None:
        """Go on without what was asked for, or not at all where that is not allowed."""
        if self.refusal:
            return
        if self._request.strict:
            self.refuse(f"{self._request} was asked for, and {reason}", reason)
            return
        if self.takes_one_process:
            self._preparation.add_notes(
                f"the GPU is in compute mode {ONE_PROCESS}: without MPS {ONE_AT_A_TIME}"
            )
        reason = "; ".join(filter(None, (self.lacks_mig, reason)))
        self.settle(SharingMode.TIMESLICE, reason)
        if self._request.mode in PREPARED:
            self._tell(f"members share the GPU by time slices: {reason}")

    def refuse(self, refusal: str, reason: str) -> None:
        """Nothing starts here any more.

        Args:
            refusal: Why, for the members.
            reason: Why, for the setup.
        """
        self.refusal = refusal
        self.mode = None
        self._preparation.write(mode="", reason=reason)
        self._journal.write("no_sharing", asked=str(self._request), reason=reason)

    @staticmethod
    def _tell(text: str) -> None:
        sys.stderr.write(f"csub: {text}\n")
        sys.stderr.flush()
