"""What a runner knows of the runner before it, which was killed."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.store.kills import RunnerKill, read_kill
from slurm_colloc.store.states import StateRecord


def find_killed_before(pack: Path, allocation: Allocation) -> RunnerKill | None:
    """The killed runner for which Slurm has restarted the job; None where it was not for one."""
    with contextlib.suppress(StateError):
        kill = read_kill(pack, allocation.restarts - 1)
        if kill is not None and not kill.refusal:
            return kill
    return None


def tell_of_restart(record: StateRecord, kill: RunnerKill) -> StateRecord:
    """A member's record with the reason why it starts again."""
    evidence = (*record.evidence, f"restarted: {kill}")
    return dataclasses.replace(
        record, reason=f"{kill}; it runs again", evidence=tuple(dict.fromkeys(evidence))
    )
