"""Dividing a job's GPUs by MIG as root: judged whole before anything is changed.

The checkpoint has all that is going to be made before the first call, so that
`host.hooks.epilog` can take it back whenever this process is killed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.node_policy import MIG_OFF, MIG_SWITCH, read_mig_conflict
from slurm_colloc.host.hooks.prepare_job import JobPreparation
from slurm_colloc.host.mig.cut_gpu import cut, open_sessions, read_one, run_for_each
from slurm_colloc.host.mig.kept_modes import (
    ModeAfterBoot,
    keep_mode,
    list_lost_modes,
    restore_modes,
)
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.plan_cut import CutFailed, describe_gpu, plan_cut
from slurm_colloc.host.nvml.nvml_query import NvmlAnswer
from slurm_colloc.host.system.node_processes import read_boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from slurm_colloc.host.hooks.hook_job import Checkpoint
    from slurm_colloc.host.mig.plan_cut import MigClaim, MigGpu

MIG = "mig"
_SLOW_S = 3.0
"""An NVML that takes longer for an answer is not asked to change anything; usual are 0.1 s."""


@dataclass
class MigPreparation(JobPreparation):
    """Divides one job's GPUs."""

    def divide(
        self, answer: NvmlAnswer, layout: str, ends_at: float
    ) -> tuple[Checkpoint, dict[str, Any]]:
        """Make a layout on each GPU of the job.

        Args:
            answer: What NVML says of the job's GPUs.
            layout: Its words; empty for one instance of the whole GPU.
            ends_at: Until when, on the monotonic clock.

        Returns:
            The checkpoint, and what the job is told.

        Raises:
            NodeError: It is not to be had; what was made of it stands, and is in the checkpoint.
        """
        started = time.monotonic()
        policy, job = self.policy, self.job
        if policy.mig == MIG_OFF:
            raise NodeError("the site's policy does not let jobs divide GPUs by MIG")
        conflict = read_mig_conflict(job.slurm_conf, job.node)
        if conflict:
            raise NodeError(conflict)
        minors = dict(zip(self.gpus, job.gpus or (), strict=True))
        if any((gpu := answer.find(uuid)) is None or gpu.mig_enabled is None for uuid in minors):
            raise NodeError(f"{', '.join(minors)} cannot be divided by MIG")
        with open_sessions(
            self.run.lock_path, minors, driver=self.driver, node=job.node, ends_at=ends_at
        ) as sessions:
            claims = tuple(
                plan_cut(
                    gpu,
                    layout or gpu.name_whole(),
                    may_switch=policy.mig == MIG_SWITCH,
                    allowed=policy.mig_profiles,
                )
                for gpu in run_for_each(sessions, _read_in_time).values()
            )
            claims = tuple(map(self._place_record, claims))
            self.figures["mig_read_ms"] = _count_ms(started)
            checkpoint = replace(self.begin_checkpoint(), mode=MIG, mig=claims)
            self.write_claim(checkpoint)
            self._keep_modes(claims)
            made = self._cut(sessions, checkpoint)
        claims = tuple(claim.identify(made[claim.gpu]) for claim in claims)
        checkpoint = replace(checkpoint, mig=claims)
        self.figures["mig_ms"] = _count_ms(started)
        return checkpoint, {
            "gpus": [describe_gpu(made[claim.gpu]) for claim in claims],
            "mps_inside": policy.mig_mps_inside,
            "layout": layout,
        }

    def restore_modes(self, answer: NvmlAnswer, ends_at: float) -> tuple[ModeAfterBoot, ...]:
        """Turn MIG on again where a reboot has lost it on the job's GPUs.

        Args:
            answer: What NVML says of them.
            ends_at: Until when, on the monotonic clock.
        """
        state = self.policy.state_directory
        try:
            lost = [uuid for uuid in list_lost_modes(state) if uuid in self.gpus]
        except (NodeError, OSError) as error:
            self.notes.append(f"on which GPUs MIG was on before a reboot is not known: {error}")
            return ()
        found = restore_modes(
            answer,
            lost,
            state=state,
            may_switch=self.policy.mig == MIG_SWITCH,
            lock=self.run.lock_path,
            driver=self.driver,
            node=self.job.node,
            ends_at=ends_at,
        )
        self.notes += [one.told for one in found]
        return found

    def _place_record(self, claim: MigClaim) -> MigClaim:
        """A claim with where it is kept that the site has MIG on, if a reboot would lose that."""
        kept_in = self.policy.state_directory if claim.is_lost_at_boot else ""
        return replace(claim, kept_in=kept_in)

    def _keep_modes(self, claims: Sequence[MigClaim]) -> None:
        """The checkpoint names these files already: a prolog that is killed here leaves none."""
        for claim in claims:
            try:
                if claim.kept_in:
                    keep_mode(claim.kept_in, claim.gpu, read_boot_id())
            except (NodeError, OSError) as error:
                self.notes.append(f"after a reboot MIG stays off on {claim.gpu}: {error}")

    def _cut(self, sessions: Mapping[str, MigSession], checkpoint: Checkpoint) -> dict[str, MigGpu]:
        """Make what a checkpoint says; where that fails it is kept to what may have been made."""
        claims = {claim.gpu: claim for claim in checkpoint.mig}

        def make(uuid: str, session: MigSession) -> MigGpu:
            try:
                return cut(session, claims[uuid])
            except CutFailed as failed:
                claims[uuid] = failed.claim
                raise

        try:
            return run_for_each(sessions, make)
        except CutFailed:
            # What stands where NVML had no room is another's, and no undoing may take it for ours.
            self.run.write(replace(checkpoint, mig=tuple(claims.values())))
            raise


def _read_in_time(uuid: str, session: MigSession) -> MigGpu:
    """Read a GPU before anything is changed.

    Raises:
        NodeError: NVML is so slow that what is cut might not be put back in a hook's time.
    """
    gpu = read_one(session, uuid)
    if session.took_s > _SLOW_S:
        # Before the first answer other hooks are waited for, and NVML loads.
        gpu = read_one(session, uuid)
    if session.took_s > _SLOW_S:
        raise NodeError(
            f"NVML takes {session.took_s:.1f} s to say what {uuid} is divided into: what is cut "
            f"could not be put back in time"
        )
    return gpu


def _count_ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 1)
