"""What preparing anything for a job as root begins and ends with: its GPUs, its claim, its setup.

Also: preparing MPS for a job as root: the daemon is the job's user's, the files around it are
root's.

Every step is written down before it is done, so that `host.hooks.epilog` can take it back
whenever this process is killed. What cannot be had is said to the job in setup.json, and the job
starts without.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.hook_job import READY, SETUP_SCHEMA, Checkpoint, HookJob
from slurm_colloc.host.hooks.node_policy import (
    MPS,
    NO_POWER,
    NodePolicy,
    read_shared_conflict,
)
from slurm_colloc.host.hooks.run_directory import RunDirectory, has_own_mounts
from slurm_colloc.host.mps.daemon_limits import (
    DaemonLimits,
    LimitedGroups,
    find_owner,
    make_limited_groups,
)
from slurm_colloc.host.mps.mps_control import find_programs, judge_support, read_peer
from slurm_colloc.host.mps.mps_state import MpsOptions, build_node_environment
from slurm_colloc.host.mps.start_daemon import RunningMps, start_daemon
from slurm_colloc.host.nvml.nvml_query import EXCLUSIVE_PROCESS, NVML_S, NvmlAnswer, start_question
from slurm_colloc.host.system import control_groups
from slurm_colloc.host.system.child_programs import Confinement
from slurm_colloc.host.system.directories import Owner, make_named_directory
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
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        daemon_name: The name of Slurm's daemon that runs the hook.
    """

    run: RunDirectory
    policy: NodePolicy
    job: HookJob
    token: Token
    driver: str = ""
    daemon_name: str = ""
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    compute_mode: str | None = None
    power_limits_w: dict[str, float] = field(default_factory=dict)
    _hierarchies: tuple[control_groups.Hierarchy, ...] = ()

    @classmethod
    def share(cls, other: JobPreparation) -> Self:
        """Another preparation of the same job, with the same notes and figures."""
        names = [one.name for one in fields(JobPreparation)]
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
            "power_limits_w": self.power_limits_w,
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
        self.run.write(replace(checkpoint, phase=READY))

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

    def begin_checkpoint(self) -> Checkpoint:
        """What is known of the job before anything is prepared for it."""
        job = self.job
        return Checkpoint(
            job_id=job.job_id,
            uid=job.uid or 0,
            gid=job.gid or 0,
            restart=job.restart,
            gpus=self.gpus,
            sluid=job.sluid,
        )

    def claim_only(self) -> Checkpoint:
        """Write down that these GPUs are this job's, without a sharing mode.

        Raises:
            NodeError: As `write_claim`.
        """
        checkpoint = self.begin_checkpoint()
        self.write_claim(checkpoint)
        return checkpoint

    def limit_power(self, checkpoint: Checkpoint, answer: NvmlAnswer) -> Checkpoint:
        """Set the power limit that is asked for, as far as the site and the cards let it be.

        What a limit was is in the checkpoint before it is set. Without one the job starts all the
        same, and is told why.

        Args:
            checkpoint: The job's, as it is written.
            answer: What NVML said of its GPUs before anything was started on them.

        Returns:
            The checkpoint, as it is written now.
        """
        if not self.token.power_w:
            return checkpoint
        from slurm_colloc.host.hooks.limit_power import choose_limits, set_limits

        try:
            if not self.policy.power_limit_min_w:
                raise NodeError(NO_POWER)
            if shared := read_shared_conflict(self.job.slurm_conf, self.job.node):
                raise NodeError(shared)
            limits = choose_limits(
                answer,
                self.gpus,
                self.token.power_w,
                least_w=self.policy.power_limit_min_w,
                divides=bool(checkpoint.mig),
            )
            if not limits:
                self.notes.append("the GPUs have no higher power limit than the one asked for")
                return checkpoint
            checkpoint = replace(checkpoint, power_limits=limits)
            self.run.write(checkpoint)
            self.power_limits_w, notes = set_limits(self.driver, self.job.node, limits)
            self.notes += notes
        except (NodeError, OSError) as error:
            self.notes.append(f"no power limit was set: {error}")
        return checkpoint

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
            told = f"the daemon has no limit on {', '.join(made.missing)}"
            self.notes.append(f"{told} ({made.why_missing})")


def is_prepared(run: RunDirectory, checkpoint: Checkpoint, job: HookJob) -> bool:
    """Whether all of this has been done already, by an earlier run of the same prolog."""
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


# ----
# Preparing MPS for a job as root: the daemon is the job's user's, the files around it are root's.
#
# What the daemon answers decides only whether the job hears about it.

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
        checkpoint = replace(
            self.begin_checkpoint(),
            mode=MPS,
            daemons=tuple(str(number) for number, _ in enumerate(self._split_gpus())),
            cgroups=self.find_groups(),
            compute_modes=self._choose_mode_changes(answer),
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
        """Start the daemons, each proven to answer; a server comes with the first client.

        Args:
            checkpoint: The job's checkpoint.
            left_s: How much time is left.

        Raises:
            NodeError: One cannot be started.
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
            self.figures[f"control_ms_{name}"] = running.control_ms
            daemons.append(running)
        return daemons


def _read_common_mode(answer: NvmlAnswer, uuids: Sequence[str]) -> str | None:
    modes = {gpu.compute_mode for uuid in uuids if (gpu := answer.find(uuid)) is not None}
    return modes.pop() if len(modes) == 1 else None
