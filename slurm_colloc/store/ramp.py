"""ramp.json: how many members of a pack may run at once, and why; its runner writes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.ramp_decision import BEING_MEASURED, Decision, RampState
from slurm_colloc.store.files import read_json, write_json

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
            members = "1 member" if running == 1 else f"{running} members"
            return f"{BEING_MEASURED} with {members}"
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
            target=int(value["target"]),
            places=int(value["places"]),
            decisions=tuple(_parse_decision(item) for item in value["decisions"]),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateError(f"{pack}/ramp.json is damaged ({error})") from error


def _parse_decision(value: dict[str, object]) -> Decision:
    known = {field.name for field in dataclasses.fields(Decision)}
    fields = {name: item for name, item in value.items() if name in known}
    return Decision(**{**fields, "state": RampState(fields["state"])})  # type: ignore[arg-type]
