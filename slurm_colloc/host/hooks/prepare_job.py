"""What preparing anything for a job as root begins and ends with: its GPUs, its claim, its setup.

Every step is written down before it is done, so that `host.hooks.undo_checkpoint` can take it back
whenever this process is killed. What cannot be had is said to the job in setup.json, and the job
starts without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.checkpoint import READY, SETUP_SCHEMA, Checkpoint
from slurm_colloc.host.hooks.hook_job import HookJob
from slurm_colloc.host.hooks.node_policy import DEFAULT_POLICY, NodePolicy
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.hooks.user_mount import has_own_mounts
from slurm_colloc.host.mps.daemon_limits import DaemonLimits, LimitedGroups, make_limited_groups
from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer
from slurm_colloc.host.system import control_groups
from slurm_colloc.host.system.node_processes import read_boot_id
from slurm_colloc.model.comment_token import Token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_GPU_LOCK_S = 2.0


@dataclass
class JobPreparation:
    """Prepares one job; the caller holds the job's lock, and undoes what is left of a failure.

    Args:
        run: Root's directory.
        policy: The site's policy.
        job: The job.
        token: What it asks for.
        policy_path: Where that is.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        daemon_name: The name of Slurm's daemon that runs the hook.
    """

    run: RunDirectory
    policy: NodePolicy
    job: HookJob
    token: Token
    policy_path: str = DEFAULT_POLICY
    driver: str = ""
    daemon_name: str = ""
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    compute_mode: str | None = None
    _hierarchies: tuple[control_groups.Hierarchy, ...] = ()

    @classmethod
    def share(cls, other: JobPreparation) -> Self:
        """Another preparation of the same job, with the same notes and figures."""
        names = [one.name for one in dataclasses.fields(JobPreparation)]
        return cls(**{name: getattr(other, name) for name in names})

    # -- what the job is told -------------------------------------------------------------------

    def tell(
        self,
        mode: str,
        reason: str,
        *,
        daemons: Sequence[Mapping[str, Any]] = (),
        mig: Mapping[str, Any] | None = None,
    ) -> None:
        """Write setup.json.

        Args:
            mode: What is prepared; empty for nothing.
            reason: By whom, or why not, in a sentence.
            daemons: MPS daemons.
            mig: What the GPUs are divided into.

        Raises:
            OSError: It cannot be written.
        """
        setup: dict[str, Any] = {
            "schema": SETUP_SCHEMA,
            "job_id": self.job.job_id,
            "mode": mode,
            "reason": reason,
            "by": "prolog",
            "gpus": list(self.gpus),
            "daemons": list(daemons),
            "compute_mode": self.compute_mode,
            "notes": self.notes,
        }
        if mig is not None:
            setup["mig"] = mig
        self.run.write_setup(self.job.job_id, setup)

    def tell_nothing(self, reason: str) -> None:
        """Say that nothing is prepared, and why; the epilog removes it.

        Raises:
            OSError: It cannot be written.
        """
        checkpoint = Checkpoint(
            self.job.job_id, self.job.uid or 0, self.job.gid or 0, restart=self.job.restart
        )
        self.run.write(checkpoint)
        with contextlib.suppress(FileExistsError):
            self.run.make_directory(self.job.job_id)
        self.tell("", reason)
        self.run.write(dataclasses.replace(checkpoint, phase=READY))

    # -- what the job has -----------------------------------------------------------------------

    def find_gpus(self, answer: NvmlAnswer) -> None:
        """Find the UUIDs of the job's GPUs by their minor numbers.

        Raises:
            NodeError: They cannot be told.
        """
        job = self.job
        if job.gpus is None:
            raise NodeError("Slurm names the job's GPUs in a way that is not understood")
        if not job.gpus:
            raise NodeError("the job has no GPU on this node")
        if answer.problem:
            raise NodeError(f"the job's GPUs are not known: {answer.problem}")
        found = []
        for minor in job.gpus:
            fits = [gpu for gpu in answer.gpus if gpu.minor_number == minor]
            if len(fits) != 1 or fits[0].uuid is None:
                raise NodeError(f"NVML shows {len(fits)} GPUs with minor number {minor}")
            if fits[0].doubt:
                raise NodeError(f"NVML cannot be believed: {fits[0].doubt}")
            found.append(fits[0].uuid)
        self.gpus = tuple(found)

    def find_groups(self) -> tuple[str, ...]:
        """Where control groups will be made for what is started; none where Slurm's own hold it."""
        if control_groups.runs_inside_job(self.daemon_name):
            self.notes.append("Slurm runs its hooks inside the job: the daemon is the job's")
            return ()
        self._hierarchies = control_groups.read_hierarchies()
        return tuple(
            control_groups.build_group_path(hierarchy, self._group_label)
            for hierarchy in self._hierarchies
        )

    def write_claim(self, checkpoint: Checkpoint) -> None:
        """Write down that these GPUs are this job's, and all that is about to be done.

        Raises:
            NodeError: Another job of ours holds one of them, or nothing can be written.
        """
        try:
            with self.run.locked_gpus(_GPU_LOCK_S):
                self._refuse_held_gpus()
                self.run.write(checkpoint)
            self._make_directory()
        except TimeoutError as error:
            raise NodeError("other hooks of this node do not come to their end") from error
        except OSError as error:
            raise NodeError(f"{self.run.path} cannot be written ({error.strerror})") from error

    def _make_directory(self) -> None:
        size_mb = self.policy.directory_mb
        if has_own_mounts(self.job.job_id):
            # It would not see the file system that is mounted now.
            size_mb = 0
            self.notes.append("the job has mounts of its own: its pipes and logs have no limit")
        unlimited = self.run.make_directory(self.job.job_id, size_mb)
        self.notes += [unlimited] if unlimited else []

    @property
    def _group_label(self) -> str:
        # Several slurmd on one machine number their jobs alike, and may even be named alike.
        mark = zlib.crc32(os.fsencode(self.run.path))
        return f"{self.job.node or 'node'}-{self.job.job_id}-{mark:08x}"

    def _refuse_held_gpus(self) -> None:
        for other in self.run.list_jobs():
            held = None if other == self.job.job_id else self.run.read_quietly(other)
            if held is not None and (shared := set(held.gpus) & set(self.gpus)):
                raise NodeError(f"job {other} still holds {', '.join(sorted(shared))}")

    # -- what is started for it -----------------------------------------------------------------

    def make_groups(self) -> tuple[str, ...]:
        """The control groups that limit what is started; empty where the job's own do.

        Raises:
            NodeError: The site wants limits that cannot be had.
        """
        if control_groups.runs_inside_job(self.daemon_name):
            return ()
        policy = self.policy
        limits = DaemonLimits(
            gpu_minors=self.job.gpus or (),
            host_memory_mb=policy.daemon_memory_mb,
            processes=policy.daemon_processes,
            cpus=self.job.cpus,
        )
        made = make_limited_groups(self._hierarchies, self._group_label, limits)
        self._note_missing(made)
        return made.paths

    def _note_missing(self, made: LimitedGroups) -> None:
        if made.missing and self.policy.require_limits:
            raise NodeError(
                f"this node cannot limit a daemon's {', '.join(made.missing)}, and the site's "
                f"policy requires it"
            )
        if not made.paths:
            self.notes.append("the daemon stays in slurmd's cgroup, in a session of its own")
        if made.missing:
            reasons = "; ".join(made.refused) or "there is no such cgroup controller"
            self.notes.append(f"the daemon has no limit on {', '.join(made.missing)} ({reasons})")


def is_prepared(run: RunDirectory, checkpoint: Checkpoint, job: HookJob) -> bool:
    """Whether all of this has been done already, by an earlier run of the same prolog."""
    from slurm_colloc.host.mps.mps_control import read_peer

    return (
        checkpoint.phase == READY
        and checkpoint.boot == read_boot_id()
        and (checkpoint.uid, checkpoint.restart) == (job.uid, job.restart)
        and run.has_setup(job.job_id)
        and all(
            (peer := read_peer(f"{run.path}/{job.job_id}/{name}/p")) is not None
            and peer.uid == job.uid
            for name in checkpoint.daemons
        )
    )
