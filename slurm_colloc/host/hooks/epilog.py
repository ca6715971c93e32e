"""The epilog: undoes what the checkpoint of a job says, in its time; who: root.

Also: undoing what was prepared for a job: from its checkpoint alone, as often as wanted; who: root.

It asks no process of the user's anything. Ending the job's processes needs no lock: where root's
directory cannot be written, that is done all the same, and the node is told to be unfit.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import KW_ONLY, dataclass, field, replace

from slurm_colloc.errors import CollocError, NodeError
from slurm_colloc.host.hooks.hook_job import UNDOING, Checkpoint, HookJob
from slurm_colloc.host.hooks.hook_report import (
    TELL_S,
    HookPlace,
    HookReport,
    OutOfTime,
    deadline,
    note_undone,
)
from slurm_colloc.host.hooks.limit_power import is_limit
from slurm_colloc.host.hooks.node_policy import NodePolicy
from slurm_colloc.host.hooks.recover_jobs import read_or_guess
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.nvml.nvml_query import (
    EXCLUSIVE_PROCESS,
    NVML_S,
    NvmlAnswer,
    NvmlQuestion,
    start_question,
)
from slurm_colloc.host.system.control_groups import remove_groups
from slurm_colloc.host.system.node_processes import (
    ControlGroup,
    ProcessSession,
    read_boot_id,
    read_process,
    read_uid,
)
from slurm_colloc.host.system.signals import LOOK_S, GroupEnd, kill_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.mig.plan_cut import MigClaim


# ----
# Undoing what was prepared for a job: from its checkpoint alone, as often as wanted; who: root.
#
# No process of the user's is asked anything. The daemon's group is ended first; then compute modes
# and power limits are set back, the GPUs are looked at, and what they are divided into is taken
# away; files come last. Each step looks at what there is, so it does not matter at which step a
# prolog or an earlier epilog was killed. While anything is left the checkpoint stays, for the next
# hook.

MIG_UNDO_S = 12.0
"""How long taking instances away may take: one takes about a second, and a GPU has seven."""

_MIG_LEAST_S = 1.5
"""With less it is not begun."""

UNDOING_S = 2 * LOOK_S + 0.5
"""How long ending a job's processes may take: two looks, and what comes between them."""

_MOST_NOTED = 16


@dataclass
class UndoReport:
    """How undoing went.

    Args:
        unsafe: Why the node is not fit for the next job; empty where it is.
        left: What could not be removed, with reasons.
        notes: What else is worth telling.
        restored: The compute modes that were set back, by UUID.
    """

    unsafe: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    restored: dict[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Nothing is left to do."""
        return not (self.unsafe or self.left)


@dataclass(eq=False)
class JobUndo:
    """Undoes one job; the caller holds the job's lock.

    Attributes:
        run: Root's directory.
        checkpoint: The job's checkpoint.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
        budget_s: How long ending its processes may take.
        nvml_s: How long NVML is waited for.
        mig_s: How long taking MIG instances away may take.
        slow_until: Until when it may take longer where NVML is slow, on the monotonic clock.
    """

    run: RunDirectory
    checkpoint: Checkpoint
    _: KW_ONLY
    driver: str = ""
    node: str = ""
    budget_s: float = UNDOING_S
    nvml_s: float = NVML_S
    mig_s: float = MIG_UNDO_S
    slow_until: float = 0.0

    def __post_init__(self) -> None:
        self._place = (self.driver, self.node)
        self._is_of_this_boot = self.checkpoint.boot == read_boot_id()
        self.report = UndoReport()

    def undo(self) -> UndoReport:
        """Do all that can be done; what is left is told, and kept in the checkpoint."""
        checkpoint, report = self.checkpoint, self.report
        if checkpoint.phase != UNDOING:
            checkpoint = replace(checkpoint, phase=UNDOING)
            # On a full disk the checkpoint from before does as well.
            with contextlib.suppress(OSError):
                self.run.write(checkpoint)
        has_gpus = bool(checkpoint.gpus and (checkpoint.mode or checkpoint.keeps_settings))
        # It gets ready while the daemons end.
        question = self._ask() if has_gpus and self._is_of_this_boot else None
        try:
            self._end_groups()
            if question is not None:
                self._check_gpus(question)
        finally:
            if question is not None:
                question.close()
        # NVML is closed by now: an open handle would keep instances from going.
        is_whole = checkpoint.divides and self._restore_mig()
        if not report.unsafe:
            report.left += self.run.remove_directory(checkpoint.job_id)
        if report.is_complete:
            self._remove()
        elif is_whole:
            # What else is left makes no GPU unfit.
            with contextlib.suppress(OSError):
                self.run.write(replace(checkpoint, mig=()))
        return report

    def _remove(self) -> None:
        try:
            self.run.remove(self.checkpoint.job_id)
        except OSError as error:
            self.report.left.append(f"its checkpoint cannot be removed: {error.strerror}")

    def _ask(self) -> NvmlQuestion:
        return start_question(*self._place, uuids=self.checkpoint.gpus)

    # -- processes ------------------------------------------------------------------------------

    def _end_groups(self) -> None:
        checkpoint = self.checkpoint
        leaders = self.run.read_leaders(checkpoint.job_id) if self._is_of_this_boot else ()
        paths = tuple(
            dict.fromkeys((*checkpoint.cgroups, *(p for one in leaders for p in one.groups)))
        )
        # A damaged checkpoint does not say whose job it was.
        owner = next((leader.uid for leader in leaders), checkpoint.uid)
        if self._is_of_this_boot and owner > 0:
            reason = f"job {checkpoint.job_id} is over"
            deadline = time.monotonic() + self.budget_s
            group = ControlGroup(paths, [ProcessSession(leader.id) for leader in leaders])
            self._note_end(kill_group(group, owner, reason=reason, deadline=deadline))
        self.report.notes += remove_groups(paths)

    def _note_end(self, end: GroupEnd) -> None:
        for process in end.unkillable[:_MOST_NOTED]:
            self.report.unsafe.append(
                f"process {process.id.pid} ({process.name}) is still there {2 * LOOK_S:g} s after "
                f"SIGKILL"
            )
        for process in end.left[:_MOST_NOTED]:
            self.report.left.append(f"process {process.id.pid} ({process.name}) has not ended")

    # -- GPUs -----------------------------------------------------------------------------------

    def _check_gpus(self, question: NvmlQuestion) -> None:
        """Set compute modes and power limits back, then write down who is on the job's GPUs."""
        answer = question.ask(self.nvml_s)
        if answer.problem and self.checkpoint.keeps_settings:
            answer = self._ask().ask(self.nvml_s)
        self._restore_modes(answer)
        self._restore_power(answer)
        unread = []
        for uuid in self.checkpoint.gpus:
            gpu = answer.find(uuid)
            if gpu is None or gpu.processes is None or gpu.doubt:
                why = answer.problem or (gpu.doubt if gpu else "") or "NVML does not show it whole"
                unread.append(f"{uuid} was not checked: {why}")
                continue
            for listed in gpu.processes[:_MOST_NOTED]:
                self._note_process(uuid, listed.pid)
        self.report.notes += unread

    def _note_process(self, uuid: str, pid: int) -> None:
        """Who is on a GPU is told and nothing else: NVML's list proves nothing about a process."""
        process = read_process(pid)
        uid = read_uid(pid)
        # NVML shows a process a moment longer than it lives.
        if process is not None and not process.has_ended and uid == self.checkpoint.uid:
            self.report.notes.append(f"process {pid} of the job's user is on {uuid}")

    def _restore_modes(self, answer: NvmlAnswer) -> None:
        changes = {}
        for uuid, mode in self.checkpoint.compute_modes.items():
            gpu = answer.find(uuid)
            if gpu is None or gpu.compute_mode is None:
                why = answer.problem or "NVML does not show it"
                self.report.unsafe.append(f"the compute mode of {uuid} is not known: {why}")
            elif gpu.compute_mode == EXCLUSIVE_PROCESS != mode:
                changes[uuid] = mode
            elif gpu.compute_mode != mode:
                self.report.notes.append(
                    f"somebody else has set {uuid} to {gpu.compute_mode}: it was left so"
                )
        if not changes:
            return
        question = start_question(*self._place, uuids=tuple(changes), compute_modes=changes)
        after = question.ask(self.nvml_s)
        for uuid, mode in changes.items():
            gpu = after.find(uuid)
            if gpu is not None and gpu.compute_mode == mode:
                self.report.restored[uuid] = mode
            else:
                why = after.problem or "NVML did not take it"
                self.report.unsafe.append(f"{uuid} could not be set back to {mode}: {why}")

    def _restore_power(self, answer: NvmlAnswer) -> None:
        changes = {}
        for uuid, (before, limit) in self.checkpoint.power_limits.items():
            gpu = answer.find(uuid)
            if gpu is None or gpu.power_limit_mw is None:
                why = answer.problem or "NVML does not show it"
                self.report.unsafe.append(f"the power limit of {uuid} is not known: {why}")
            elif is_limit(gpu, limit):
                changes[uuid] = before
            elif not is_limit(gpu, before):
                told = f"somebody else has limited {uuid} to {gpu.power_limit_mw / 1000:g} W"
                self.report.notes.append(f"{told}: it was left so")
        if not changes:
            return
        question = start_question(*self._place, uuids=tuple(changes), power_limits=changes)
        after = question.ask(self.nvml_s)
        for uuid, before in changes.items():
            told = f"{before / 1000:g} W"
            if is_limit(after.find(uuid), before):
                self.report.notes.append(f"the power limit of {uuid} was set back to {told}")
            else:
                why = after.problem or "NVML did not take it"
                self.report.unsafe.append(f"{uuid} could not be set back to {told}: {why}")

    def _restore_mig(self) -> bool:
        """Take away what the GPUs are divided into for the job, and set MIG modes back."""
        if self.checkpoint.doubt:
            self._prove_undivided()
            return False
        from slurm_colloc.host.mig.cut_gpu import open_sessions, restore, run_for_each
        from slurm_colloc.host.mig.plan_cut import MigProblem

        report = self.report
        claims = {claim.gpu: claim for claim in self.checkpoint.mig}
        if self.mig_s < _MIG_LEAST_S:
            report.left.append("its MIG instances: no time was left")
            return False
        ends_at = time.monotonic() + self.mig_s
        slow_until = max(ends_at, self.slow_until)
        minors = {claim.gpu: claim.minor_number for claim in claims.values()}
        driver, node = self._place
        try:
            with open_sessions(
                self.run.lock_path, minors, driver=driver, node=node, ends_at=slow_until
            ) as sessions:
                found = run_for_each(
                    sessions,
                    lambda uuid, one: restore(
                        one, claims[uuid], ends_at=ends_at, slow_until=slow_until
                    ),
                )
        except MigProblem as problem:
            report.unsafe.append(f"{', '.join(minors)} could not be put back: {problem.message}")
            return False
        for uuid, restored in found.items():
            report.unsafe += restored.unsafe
            report.notes += restored.notes
            if restored.destroyed:
                report.notes.append(f"{restored.destroyed} MIG instances of {uuid} were destroyed")
            if claims[uuid].kept_in and not restored.unsafe:
                self._forget_mode(claims[uuid])
            if restored.switched_off:
                report.notes.append(f"MIG was turned off again on {uuid}")
        return not any(restored.unsafe for restored in found.values())

    def _forget_mode(self, claim: MigClaim) -> None:
        from slurm_colloc.host.mig.kept_modes import forget_mode

        try:
            forget_mode(claim.kept_in, claim.gpu)
        except (NodeError, OSError) as error:
            self.report.notes.append(f"after a reboot MIG may be turned on on {claim.gpu}: {error}")

    def _prove_undivided(self) -> None:
        """Without its checkpoint a job has divided no GPU for sure only where none has MIG on."""
        answer = start_question(*self._place).ask(self.nvml_s)
        # A GPU that has no MIG at all does not say so; one that is read otherwise is one of these.
        unknown = [gpu for gpu in answer.gpus if gpu.mig_enabled is None and gpu.name is None]
        divided = [gpu.uuid or "a GPU" for gpu in answer.gpus if gpu.mig_enabled]
        if answer.problem or unknown:
            why = answer.problem or "NVML does not show every GPU whole"
        elif divided:
            why = f"MIG is on on {', '.join(divided)}"
        else:
            return
        self.report.unsafe.append(
            f"{self.checkpoint.doubt}, so that it is not known whether a GPU is still divided for "
            f"job {self.checkpoint.job_id} ({why}): see to that, then remove the checkpoint from "
            f"{self.run.path}/jobs"
        )


# ---- The epilog: undoes what the checkpoint of a job says, in its time; who: root ----------------

_LOCK_SHARE = 0.5


def run_epilog(place: HookPlace, policy: NodePolicy, job: HookJob) -> HookReport:
    """Undo what the checkpoint says; the job's number is all that is used of the job."""
    try:
        run = RunDirectory(place.run, makes=False, needs_lock=False)
    except FileNotFoundError:
        return HookReport(outcome="nothing was prepared")
    except CollocError as error:
        # It is not root's alone, so root has prepared nothing in it.
        return HookReport(outcome=f"{place.run} cannot be used: {error}")
    except OSError as error:
        # Whether anything was prepared cannot be told, and nothing of it be undone.
        return HookReport(outcome=f"{place.run} cannot be used: {error}", exit_status=1)
    report = HookReport()
    known, _ = read_or_guess(run, job.job_id)
    slow_s = policy.mig_slow_s if known is not None and known.divides else 0.0
    slow_until = time.monotonic() + policy.deadline_s + slow_s - TELL_S
    try:
        with (
            deadline(policy.deadline_s + slow_s),
            _locked(run, job.job_id, policy.deadline_s * _LOCK_SHARE),
        ):
            checkpoint, problem = read_or_guess(run, job.job_id)
            if checkpoint is None:
                # What a prolog was killed over; where that cannot be removed it is no harm.
                with contextlib.suppress(OSError):
                    run.remove(job.job_id)
                return HookReport(outcome="nothing was prepared")
            report.action, report.mode = "undone", checkpoint.mode
            if problem:
                report.details["problem"] = problem
            undone = JobUndo(
                run,
                checkpoint,
                driver=place.driver,
                node=job.node,
                slow_until=slow_until,
            ).undo()
            if run.lock_problem:
                undone.unsafe.append(f"{run.lock_problem}; its checkpoint cannot be worked on")
            note_undone(report, undone)
            if undone.left and not undone.unsafe:
                report.outcome = f"left for the next hook: {'; '.join(undone.left)}"
    except TimeoutError:
        report.outcome = "another hook is at work on this job"
    except OutOfTime:
        report.outcome = "the hook has run out of its time; the next one goes on"
        known = run.read_quietly(job.job_id)
        if known is not None and known.keeps_settings:
            report.exit_status = 1
    finally:
        run.close()
    return report


def _locked(
    run: RunDirectory, job_id: str, timeout_s: float
) -> contextlib.AbstractContextManager[None]:
    """The job's lock, where there is one to be had."""
    return contextlib.nullcontext() if run.lock_problem else run.locked_job(job_id, timeout_s)
