"""degree.json: how many members of a pack run at once, and why; its runner writes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.model.degree.measured_curve import (
    CurvePoint,
    DegreeDecision,
    DegreeState,
    RateAlone,
)
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.record_files import read_record

KEPT = 8
"""Decisions that are kept, the newest."""


@dataclasses.dataclass(frozen=True)
class DegreeRecord:
    """What the runner has measured, and decided.

    Attributes:
        attempt: The attempt that wrote it.
        state: How far the measurement is.
        degree: Members that may run at the same time.
        places: Members that can be there at the same time, parked ones included.
        room: For how many more there is room, beyond those that wait in it; None where that is not
            known.
        free_gpu_memory_mb: GPU memory that is reserved for none, on the GPU with most of it; None
            where unknown.
        memory_has_settled: What is reserved for those that run will not shrink soon.
        parked: Numbers of the members that are paused until a place is free for them.
        curve: The newest points of the curve, by degree.
        rates_alone: The rates alone of members, by number.
        cost_s: What pausing for measurements has cost so far: seconds of the whole pack's progress.
        decisions: The newest decisions, the oldest first.
    """

    attempt: int
    state: DegreeState = DegreeState.OFF
    degree: int = 1
    places: int = 1
    room: int | None = None
    free_gpu_memory_mb: int | None = None
    memory_has_settled: bool = False
    parked: tuple[int, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    rates_alone: tuple[RateAlone, ...] = ()
    cost_s: float = 0.0
    decisions: tuple[DegreeDecision, ...] = ()

    @property
    def reason(self) -> str:
        """The reason of the newest decision; empty while there is none."""
        return self.decisions[-1].reason if self.decisions else ""

    def describe(self) -> str:
        """What was decided last; empty where nothing was, or nothing could be measured."""
        return "" if self.state is DegreeState.OFF else self.reason


def write_degree(pack: Path, record: DegreeRecord) -> None:
    """Write a pack's degree.json; the runner of the newest attempt alone does.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{pack}/degree.json", dataclasses.asdict(record))


def read_degree(pack: Path, attempt: int) -> DegreeRecord | None:
    """Read a pack's degree.json; None where no runner of this attempt has written one.

    Raises:
        StateError: It is damaged.
    """
    record = read_record(f"{pack}/degree.json", DegreeRecord)
    return None if record is None or record.attempt != attempt else record
