"""Preparing MPS for a job as root: the daemon is the job's user's, the files around it are root's.

What the daemon answers decides only whether the job hears about it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.checkpoint import PREPARING, Checkpoint
from slurm_colloc.host.hooks.node_policy import MPS
from slurm_colloc.host.hooks.prepare_job import JobPreparation
from slurm_colloc.host.mps.daemon_limits import find_owner
from slurm_colloc.host.mps.mps_control import find_programs
from slurm_colloc.host.mps.mps_options import MpsOptions, build_node_environment
from slurm_colloc.host.mps.mps_support import judge_support
from slurm_colloc.host.mps.start_daemon import RunningMps, start_daemon, start_server
from slurm_colloc.host.nvml.nvml_answer import EXCLUSIVE_PROCESS, NvmlAnswer
from slurm_colloc.host.nvml.nvml_query import NVML_S, start_question
from slurm_colloc.host.system.child_programs import Confinement
from slurm_colloc.host.system.own_directory import Owner, make_named_directory

CONTROL_CAP_S = 5.0
"""What each daemon may take, one after the other, as long as the hook has time."""


@dataclass
class MpsPreparation(JobPreparation):
    """Prepares MPS for one job."""

    _owner: Owner | None = None

    def tell_daemons(self, daemons: Sequence[RunningMps], reason: str) -> None:
        """Write setup.json.

        Raises:
            OSError: It cannot be written.
        """
        self.tell(
            MPS,
            reason,
            daemons=[
                {
                    "gpus": list(running.options.gpus),
                    "pipe_directory": running.directory.pipe_path,
                    "control_ms": running.control_ms,
                    "active_ms": None,
                }
                for running in daemons
            ],
        )

    def find_owner(self) -> None:
        """Find out whom the daemon runs as, while something else gets ready."""
        self._owner = find_owner(self.job.uid or 0, self.job.gid or 0)

    def check_support(self, answer: NvmlAnswer) -> None:
        """See whether the job's GPUs take MPS.

        Raises:
            NodeError: They do not.
        """
        support = judge_support(find_programs(self._path), answer, self.gpus)
        if not support.is_possible:
            raise NodeError(support.reason)
        self.notes += support.notes
        self.compute_mode = _read_common_mode(answer, self.gpus)

    def claim(self, answer: NvmlAnswer) -> Checkpoint:
        """Write down that these GPUs are this job's, and all that is about to be done.

        Raises:
            NodeError: Another job of ours holds one of them, or nothing can be written.
        """
        checkpoint = Checkpoint(
            job_id=self.job.job_id,
            uid=self.job.uid or 0,
            gid=self.job.gid or 0,
            phase=PREPARING,
            mode=MPS,
            restart=self.job.restart,
            gpus=self.gpus,
            daemons=tuple(str(number) for number, _ in enumerate(self._split_gpus())),
            cgroups=self.find_groups(),
            compute_modes=self._choose_mode_changes(answer),
            sluid=self.job.sluid,
        )
        self.write_claim(checkpoint)
        return checkpoint

    @property
    def _path(self) -> str:
        return f"{self.driver}/bin" if self.driver else ""

    def _split_gpus(self) -> list[tuple[str, ...]]:
        """The GPUs of each daemon: a fault reaches all GPUs of its daemon."""
        if self.token.grouping == "each":
            return [(uuid,) for uuid in self.gpus]
        return [self.gpus]

    def _choose_mode_changes(self, answer: NvmlAnswer) -> dict[str, str]:
        """The compute modes to go back to, of the GPUs that are to be changed.

        Raises:
            NodeError: A process is on one of them.
        """
        if not self.policy.exclusive_process:
            return {}
        before = {}
        for uuid in self.gpus:
            gpu = answer.find(uuid)
            if gpu is None or gpu.compute_mode is None or gpu.processes is None:
                raise NodeError(f"NVML does not tell compute mode and processes of {uuid}")
            if gpu.processes:
                raise NodeError(f"process {gpu.processes[0].pid} is already on {uuid}")
            if gpu.compute_mode != EXCLUSIVE_PROCESS:
                before[uuid] = gpu.compute_mode
        return before

    def set_modes(self, checkpoint: Checkpoint) -> None:
        """Set compute modes; the checkpoint has what they were.

        Raises:
            NodeError: NVML did not take one.
        """
        changes = dict.fromkeys(checkpoint.compute_modes, EXCLUSIVE_PROCESS)
        if not changes:
            return
        question = start_question(
            self.driver, self.job.node, uuids=tuple(changes), compute_modes=changes
        )
        after = question.ask(NVML_S)
        for uuid in changes:
            gpu = after.find(uuid)
            if gpu is None or gpu.compute_mode != EXCLUSIVE_PROCESS:
                why = after.problem or "NVML did not take it"
                raise NodeError(f"{uuid} could not be set to {EXCLUSIVE_PROCESS}: {why}")
        self.compute_mode = EXCLUSIVE_PROCESS

    def start(self, checkpoint: Checkpoint, left_s: Callable[[], float]) -> list[RunningMps]:
        """Start the daemons, each proven to answer.

        Args:
            checkpoint: The job's checkpoint.
            left_s: How much time is left.

        Raises:
            NodeError: One cannot be started, or starts no server.
        """
        owner = self._owner or find_owner(checkpoint.uid, checkpoint.gid)
        groups = self.make_groups()
        # One budget for all that the daemons and their control programs are waited for.
        cap_s = CONTROL_CAP_S * len(checkpoint.daemons)
        ends_at = time.monotonic() + min(cap_s, left_s())
        daemons = []
        for name, gpus in zip(checkpoint.daemons, self._split_gpus(), strict=True):
            options = MpsOptions(
                gpus=gpus,
                environment=build_node_environment(self.job.node),
                path=self._path,
                label=self.job.job_id,
                control_cap_s=max(0.5, ends_at - time.monotonic()),
            )
            try:
                directory = make_named_directory(f"{self.run.path}/{self.job.job_id}", name, owner)
            except OSError as error:
                raise NodeError(
                    f"no directory can be made for the MPS daemon ({error.strerror})"
                ) from error
            record = self.run.open_leader_record(self.job.job_id, name)
            try:
                running = start_daemon(
                    options,
                    owner=owner,
                    confinement=Confinement(groups, record),
                    directory=directory,
                )
            finally:
                os.close(record)
            self.notes += running.notes
            self.figures[f"control_ms_{name}"] = running.control_ms
            start_server(running, max(0.5, ends_at - time.monotonic()))
            daemons.append(running)
        return daemons


def _read_common_mode(answer: NvmlAnswer, uuids: Sequence[str]) -> str | None:
    modes = {gpu.compute_mode for uuid in uuids if (gpu := answer.find(uuid)) is not None}
    return modes.pop() if len(modes) == 1 else None
