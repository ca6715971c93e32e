"""What each part of a runner is given: the attempt of a pack that it runs, and where it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.model.late_definitions import dataclass

if TYPE_CHECKING:
    from slurm_colloc.runtime.allocation import Allocation
    from slurm_colloc.runtime.guarded_steps import GuardedSteps, Journal
    from slurm_colloc.runtime.members import PackMembers
    from slurm_colloc.settings import Settings
    from slurm_colloc.slurm.slurm_commands import SlurmAccess
    from slurm_colloc.store.all_packs import State
    from slurm_colloc.store.pack_directory import PackRecord


@dataclass(frozen=True, eq=False, kw_only=True)
class PackContext:
    """One attempt of a pack.

    Attributes:
        path: The pack's directory.
        record: Its pack.json.
        state: The state directory that it lies in.
        attempt: The attempt's number.
        allocation: What Slurm gave.
        settings: The settings of this node.
        slurm: Slurm; None where the pack runs without it.
        config: Slurm's configuration; empty where it cannot be read.
        journal: The pack's log.
        steps: Keeps what goes wrong in one step apart from the others.
        members: The members that the attempt knows, and its places.
        clock: Seconds that only grow.
        announce: Told of a directory that must be gone before the batch script ends; None where
            nothing looks after that.
    """

    path: Path
    record: PackRecord
    state: State
    attempt: int
    allocation: Allocation
    settings: Settings
    slurm: SlurmAccess | None
    config: Mapping[str, str]
    journal: Journal
    steps: GuardedSteps
    members: PackMembers
    clock: Callable[[], float] = time.monotonic
    announce: Callable[[str], None] | None = None

    @property
    def shown_id(self) -> str:
        """The id that the pack's own members are named after."""
        return self.allocation.shown_job_id

    @property
    def is_lone(self) -> bool:
        """The pack has one member, which runs as its batch script would."""
        return self.record.degree == 1 and self.record.request is None
