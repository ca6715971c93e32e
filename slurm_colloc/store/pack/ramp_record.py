"""ramp.json: how many members of a pack may run at once, and why; its runner writes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.model.degree.ramp_decision import BEING_MEASURED, Decision, RampState
from slurm_colloc.model.sbatch.quantities import format_members
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.record_files import read_record

KEPT = 8
"""Decisions that are kept, the newest."""


@dataclasses.dataclass(frozen=True)
class RampRecord:
    """Where the ramp of a pack is.

    Attributes:
        attempt: The attempt that wrote it.
        state: Where it is.
        target: Members that may run at the same time.
        places: Members that run at the same time by the plan.
        decisions: The newest decisions, the oldest first.
    """

    attempt: int
    state: RampState
    target: int
    places: int
    decisions: tuple[Decision, ...] = ()

    @property
    def reason(self) -> str:
        """The reason of the newest decision; empty while there is none."""
        return self.decisions[-1].reason if self.decisions else ""

    def describe(self) -> str:
        """What was decided last; empty where nothing was, or nothing could be measured."""
        return "" if self.state is RampState.OFF else self.reason

    def explain_waiting(self, running: int) -> str:
        """Why a member waits that has a place; empty where the ramp is not why.

        Args:
            running: Members that run.
        """
        if self.state is RampState.OFF or running < self.target or running >= self.places:
            return ""
        if self.state is RampState.RAMPING:
            return f"{BEING_MEASURED} with {format_members(running)}"
        return self.reason


def write_ramp(pack: Path, record: RampRecord) -> None:
    """Write a pack's ramp.json; the runner of the newest attempt alone does."""
    write_json(f"{pack}/ramp.json", dataclasses.asdict(record))


def read_ramp(pack: Path, attempt: int) -> RampRecord | None:
    """Read a pack's ramp.json; None where no runner of this attempt has written one.

    Raises:
        StateError: It is damaged.
    """
    record = read_record(f"{pack}/ramp.json", RampRecord)
    return None if record is None or record.attempt != attempt else record
