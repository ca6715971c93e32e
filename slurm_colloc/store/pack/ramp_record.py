"""ramp.json: how many members of a pack may run at once, and why; its runner writes it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.degree.ramp_decision import BEING_MEASURED, Decision, RampState
from slurm_colloc.model.sbatch.quantities import format_members
from slurm_colloc.store.atomic_files import read_json, write_json

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
    value = read_json(f"{pack}/ramp.json")
    if value is None or value.get("attempt") != attempt:
        return None
    try:
        return RampRecord(
            attempt=attempt,
            state=RampState(value["state"]),
            target=_take_count(value, "target"),
            places=_take_count(value, "places"),
            decisions=tuple(_parse_decision(item) for item in value["decisions"]),
        )
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateError(f"{pack}/ramp.json is damaged ({error})") from error


def _parse_decision(value: Mapping[str, Any]) -> Decision:
    reason, stops_one = value["reason"], value.get("stops_one", False)
    if not isinstance(reason, str) or not isinstance(stops_one, bool):
        raise TypeError("a decision's reason is a text, and whether it stops one true or false")
    return Decision(
        at=_take_number(value, "at"),
        state=RampState(value["state"]),
        running=_take_count(value, "running"),
        target=_take_count(value, "target"),
        stp=None if value["stp"] is None else _take_number(value, "stp"),
        reason=reason,
        stops_one=stops_one,
    )


def _take_count(value: Mapping[str, Any], key: str) -> int:
    item = value[key]
    if not isinstance(item, int) or isinstance(item, bool) or item < 0:
        raise TypeError(f"{key} is no count")
    return item


def _take_number(value: Mapping[str, Any], key: str) -> float:
    item = value[key]
    if not isinstance(item, int | float) or isinstance(item, bool) or not math.isfinite(item):
        raise TypeError(f"{key} is no number")
    return float(item)
