"""What most commands begin with: settings, state, and one question to Slurm."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_colloc.errors import NotFound, SlurmError, StateError
from slurm_colloc.model.member import Selection
from slurm_colloc.settings import Settings, load_settings
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.slurm.cluster import read_cluster_name
from slurm_colloc.slurm.formats import SlurmJob
from slurm_colloc.store.packs import State

if TYPE_CHECKING:
    from slurm_colloc.report.survey import MemberView, PackView


def say(text: str) -> None:
    """Write a line for people to standard output."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def note(text: str) -> None:
    """Write a note to standard error."""
    sys.stderr.write(f"csub: {text}\n")


@dataclass
class Session:
    """One call of csub.

    Attributes:
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        unreachable: Why Slurm could not be asked; None if it answered or was not needed.
        damaged: What is wrong with packs that cannot be read.
    """

    settings: Settings
    state: State
    slurm: SlurmCommands
    unreachable: SlurmError | None = None
    damaged: list[StateError] = field(default_factory=list)

    @classmethod
    def open(cls) -> Session:
        """Read the settings and find the state."""
        settings = load_settings()
        state = State(settings.state_path, read_cluster_name(os.environ))
        return cls(settings, state, SlurmCommands())

    def refresh(self, *, always_ask: bool = False) -> Mapping[str, SlurmJob] | None:
        """Ask Slurm once for all jobs, and bring the state up to date.

        Args:
            always_ask: Ask even if no pack is open.

        Returns:
            What squeue shows; None where Slurm was not asked or did not answer.
        """
        # Imported here, as in the methods below: a first submission needs none of it.
        from slurm_colloc.submission.sweep import look_at_open_packs, sweep

        jobs: Mapping[str, SlurmJob] | None = None
        packs = look_at_open_packs(self.state, self.damaged)
        if always_ask or any(pack.record and not pack.record.local for pack in packs):
            try:
                jobs = self.slurm.list_jobs()
            except SlurmError as error:
                self.unreachable = error
        if packs or self.state.list_making():
            for text in sweep(self.state, self.slurm, packs, jobs):
                note(text)
        return jobs

    def survey_open(self) -> list[PackView]:
        """All packs that were open when the call began."""
        from slurm_colloc.report.survey import survey_packs

        pack_ids = self.state.list_open()
        return survey_packs(self.state, pack_ids, self.refresh(), self.damaged)

    def survey(self, selections: Sequence[Selection]) -> list[tuple[PackView, list[MemberView]]]:
        """The selected members, by pack.

        Raises:
            NotFound: There is no such pack or member.
        """
        from slurm_colloc.report.survey import survey_packs

        wanted: dict[str, set[int] | None] = {}
        for selection in selections:
            numbers = wanted.setdefault(selection.job, set())
            if selection.number is None:
                wanted[selection.job] = None
            elif numbers is not None:
                numbers.add(selection.number)
        jobs = self.refresh()
        found = []
        for job_id, numbers in wanted.items():
            views = survey_packs(self.state, self.state.find_packs(job_id), jobs)
            known = {m.member.number for view in views for m in view.members}
            missing = (numbers or set()) - known
            if missing:
                raise NotFound(
                    f"job {job_id} has no member {min(missing)}",
                    hint=f"csub show {job_id} lists its {len(known)} members",
                )
            for view in views:
                members = [m for m in view.members if numbers is None or m.member.number in numbers]
                if members:
                    found.append((view, members))
        return found
