"""Dividing a job's GPUs by MIG as root: judged whole before anything is changed.

The checkpoint has all that is going to be made before the first call, so that
`host.hooks.epilog` can take it back whenever this process is killed.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, replace

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.hook_job import PREPARING, Checkpoint
from slurm_colloc.host.hooks.node_policy import MIG_OFF, MIG_SWITCH, read_mig_conflict
from slurm_colloc.host.hooks.prepare_job import JobPreparation
from slurm_colloc.host.mig.change_instances import describe_gpu
from slurm_colloc.host.mig.cut_gpu import cut, open_sessions, read_one, run_for_each
from slurm_colloc.host.mig.kept_modes import (
    ModeAfterBoot,
    keep_mode,
    list_lost_modes,
    restore_modes,
)
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.plan_cut import CutFailed, plan_cut
from slurm_colloc.host.nvml.nvml_query import NvmlAnswer, build_nvml_environment
from slurm_colloc.host.system.child_programs import Confinement, start_program
from slurm_colloc.host.system.node_processes import read_boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from slurm_colloc.host.mig.plan_cut import MigClaim, MigGpu

MIG = "mig"
AGENT = "agent"
SOCKET = "mig.sock"
_BACKLOG = 4
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
            checkpoint = Checkpoint(
                job_id=job.job_id,
                uid=job.uid or 0,
                gid=job.gid or 0,
                phase=PREPARING,
                mode=MIG,
                restart=job.restart,
                gpus=self.gpus,
                cgroups=self.find_groups() if policy.mig_change else (),
                mig=claims,
                sluid=job.sluid,
            )
            self.write_claim(checkpoint)
            self._keep_modes(claims)
            made = self._cut(sessions, checkpoint)
        claims = tuple(claim.identify(made[claim.gpu]) for claim in claims)
        checkpoint = replace(checkpoint, mig=claims)
        self.figures["mig_ms"] = _count_ms(started)
        return checkpoint, {
            "gpus": [
                describe_gpu(made[claim.gpu], mode_switched=claim.switches) for claim in claims
            ],
            "socket": self._start_agent() if policy.mig_change else "",
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
            open_session=lambda gpus: MigSession(
                self.run.lock_path,
                gpus,
                driver=self.driver,
                node=self.job.node,
                ends_at=ends_at,
            ),
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

    def _start_agent(self) -> str:
        """Start what changes instances while the job runs; where it listens, empty for nowhere.

        The job has its instances, so that it has no agent is only noted.
        """
        job = self.job
        path = f"{self.run.path}/{job.job_id}/{SOCKET}"
        try:
            groups = self.make_groups()
            with _listen(path, job.uid or 0) as listener:
                record = self.run.open_leader_record(job.job_id, AGENT)
                try:
                    start_program(
                        [
                            *(
                                sys.executable,
                                "-IB",
                                "-m",
                                "slurm_colloc.host.hooks.instance_agent",
                            ),
                            *(self.run.path, self.policy_path, job.job_id),
                            *(self.driver, job.node),
                        ],
                        build_nvml_environment(self.driver, job.node),
                        stdin=listener.fileno(),
                        confinement=Confinement(groups, record),
                        own_session=True,
                    )
                finally:
                    os.close(record)
        except (NodeError, OSError) as error:
            self.notes.append(f"instances cannot be changed while the job runs: {error}")
            return ""
        return path


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


def _listen(path: str, uid: int) -> socket.socket:
    """A socket in root's directory that one user may connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chown(path, uid, 0, follow_symlinks=False)
        os.chmod(path, 0o660)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _count_ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 1)
