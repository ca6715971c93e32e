"""Dividing a job's GPUs by MIG as root: judged whole before anything is changed.

The checkpoint has all that is going to be made before the first call, so that
`host.hooks.undo_checkpoint` can take it back whenever this process is killed.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.checkpoint import PREPARING, Checkpoint
from slurm_colloc.host.hooks.node_policy import MIG_OFF, MIG_SWITCH
from slurm_colloc.host.hooks.prepare_job import JobPreparation
from slurm_colloc.host.hooks.slurm_settings import read_mig_conflict
from slurm_colloc.host.mig.cut_gpu import cut, name_whole, plan_cut
from slurm_colloc.host.mig.instance_records import describe_gpu
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer
from slurm_colloc.host.nvml.nvml_query import build_nvml_environment
from slurm_colloc.host.system.child_programs import Confinement, start_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIG = "mig"
AGENT = "agent"
SOCKET = "mig.sock"
_BACKLOG = 4


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
        with MigSession(
            self.run.lock_path, minors, simulation=self.simulation, node=job.node, ends_at=ends_at
        ) as session:
            claims = tuple(
                plan_cut(
                    gpu,
                    layout or name_whole(gpu),
                    may_switch=policy.mig == MIG_SWITCH,
                    allowed=policy.mig_profiles,
                )
                for gpu in session.read()
            )
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
            made = [cut(session, claim) for claim in claims]
        self.figures["mig_ms"] = _count_ms(started)
        return checkpoint, {
            "gpus": [
                describe_gpu(gpu, mode_switched=claim.switches)
                for gpu, claim in zip(made, claims, strict=True)
            ],
            "socket": self._start_agent() if policy.mig_change else "",
            "mps_inside": policy.mig_mps_inside,
        }

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
                            *(self.simulation, job.node),
                        ],
                        build_nvml_environment(self.simulation, job.node),
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
