"""The prolog: prepares what a job asks for, or tells it why not, in its time; who: root."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from slurm_colloc.errors import CollocError, NodeError, StateError
from slurm_colloc.host.hooks.hook_job import READY, Checkpoint, HookJob
from slurm_colloc.host.hooks.hook_report import (
    TELL_S,
    HookPlace,
    HookReport,
    OutOfTime,
    deadline,
    describe_recovered,
    note_undone,
)
from slurm_colloc.host.hooks.node_policy import MPS, Denied, NodePolicy, check_permission
from slurm_colloc.host.hooks.prepare_job import is_prepared
from slurm_colloc.host.hooks.recover_jobs import describe_divided, read_or_guess, recover
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.nvml.nvml_query import NVML_S, NvmlQuestion, start_question
from slurm_colloc.host.system.control_groups import find_slurm_daemon
from slurm_colloc.model.comment_token import Token, parse_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.hooks.epilog import UndoReport
    from slurm_colloc.host.nvml.nvml_query import NvmlAnswer

_LOCK_S = 2.0
_HOLDERS_S = 0.5
"""How long dead jobs may take that still hold the job's GPUs."""

_LEFTOVERS_S = 0.5
"""How long all other dead jobs together may take, once the job has what it asked for."""


def run_prolog(place: HookPlace, policy: NodePolicy, job: HookJob) -> HookReport:
    """Prepare what a job asks for; what cannot be had is told to it.

    Args:
        place: Where.
        policy: What the site allows.
        job: Whom.
    """
    token = parse_token(job.comment)
    if token is None or (token.mode == "off" and not token.power_w):
        return HookReport(outcome="the comment asks for nothing")
    if not policy.enabled:
        return HookReport(outcome="switched off by the policy")
    try:
        run = RunDirectory(place.run, makes=True)
    except (CollocError, OSError) as error:
        return _fail(HookReport(outcome=f"{place.run} cannot be used: {error}"), policy)
    question = _start_question(place, policy, job, token)
    try:
        with run.locked_job(job.job_id, _LOCK_S):
            return _Prolog(place, policy, job, token, run, question=question).run()
    except TimeoutError:
        return _fail(HookReport(outcome="another hook is at work on this job"), policy)
    finally:
        if question is not None:
            question.close()
        run.close()


def _start_question(
    place: HookPlace, policy: NodePolicy, job: HookJob, token: Token
) -> NvmlQuestion | None:
    """Let NVML get ready, but not for a job that may not have what it asks for."""
    try:
        check_permission(policy, job, token)
    except Denied:
        return None
    return start_question(place.driver, job.node, minors=job.gpus or ())


def _fail(report: HookReport, policy: NodePolicy) -> HookReport:
    if policy.strict:
        report.exit_status = 1
    return report


class _Prolog:
    """One run of the prolog, with the job's lock held."""

    def __init__(
        self,
        place: HookPlace,
        policy: NodePolicy,
        job: HookJob,
        token: Token,
        run: RunDirectory,
        *,
        question: NvmlQuestion | None,
    ) -> None:
        # What takes long to load is loaded here, while NVML gets ready.
        from slurm_colloc.host.hooks.prepare_job import MpsPreparation

        self._place = place
        self._question = question
        self._policy = policy
        self._job = job
        self._run = run
        self._ends_at = time.monotonic() + policy.deadline_s - policy.stop_s
        self._slow_until = 0.0
        self._preparing = MpsPreparation(
            run,
            policy,
            job,
            token,
            place.driver,
            daemon_name=find_slurm_daemon(os.getppid()),
        )
        self._report = HookReport()
        self._is_fit = True

    def run(self) -> HookReport:
        report = self._report
        try:
            with deadline(self._ends_at - time.monotonic()):
                known = self._run.read_quietly(self._job.job_id)
                if known is not None and is_prepared(self._run, known, self._job):
                    return HookReport("prepared", "it was prepared already", known.mode)
                self._prepare()
            self._clear_leftovers()
        except Denied as denied:
            self._fall_back(str(denied), is_fault=False)
        except (CollocError, OSError) as error:
            self._fall_back(error.message if isinstance(error, CollocError) else str(error))
        except OutOfTime:
            self._fall_back("the hook has run out of its time")
        report.details["figures"] = self._preparing.figures
        if self._preparing.notes:
            report.details["notes"] = self._preparing.notes
        return report

    def _prepare(self) -> None:
        preparing, job, report = self._preparing, self._job, self._report
        started = time.monotonic()
        check_permission(self._policy, job, preparing.token)
        assert self._question is not None
        self._undo_own()
        preparing.find_owner()
        _measure(preparing.figures, "before_nvml_ms", started)
        # The GPUs are read now: what an earlier run had changed is undone.
        answer = self._question.ask(NVML_S)
        _measure(preparing.figures, "nvml_ms", started)
        preparing.find_gpus(answer)
        if preparing.token.layout:
            answer = self._restore_modes(answer)
        # A dead job that still holds one of the GPUs stands in this one's way; others wait.
        budget_s = self._choose_holders_budget()
        if self._recover(preparing.gpus, holders_only=True, budget_s=budget_s):
            # What that one had set was set back.
            answer = self._ask_again()
        checkpoint, why_no_mig = None, ""
        if preparing.token.layout:
            checkpoint, why_no_mig = self._divide(answer)
        if checkpoint is None and preparing.token.mode == "off":
            checkpoint = preparing.claim_only()
            checkpoint = preparing.limit_power(checkpoint, answer)
            preparing.tell("", "the comment asks for a power limit only")
        elif checkpoint is None:
            checkpoint = self._prepare_mps(answer, why_no_mig)
        self._run.write(replace(checkpoint, phase=READY))
        _measure(preparing.figures, "total_ms", started)
        report.action, report.mode = "prepared", checkpoint.mode

    def _restore_modes(self, answer: NvmlAnswer) -> NvmlAnswer:
        """Turn MIG on again where a reboot has lost it on the job's GPUs; what NVML says then."""
        from slurm_colloc.host.hooks.prepare_mig import MigPreparation

        dividing = MigPreparation.share(self._preparing)
        found = dividing.restore_modes(answer, self._ends_at)
        if unsafe := [one.told for one in found if one.is_unsafe]:
            self._is_fit = False
            self._report.exit_status = 1
            raise NodeError(f"not fit for this job: {'; '.join(unsafe)}")
        if not any(one.is_on for one in found):
            return answer
        return self._ask_again()

    def _ask_again(self) -> NvmlAnswer:
        minors = self._job.gpus or ()
        return start_question(self._place.driver, self._job.node, minors=minors).ask(NVML_S)

    def _prepare_mps(self, answer: NvmlAnswer, why_no_mig: str) -> Checkpoint:
        preparing = self._preparing
        try:
            if MPS not in self._policy.modes:
                raise Denied("the site's policy has no mode mps")
            preparing.check_support(answer)
            checkpoint = preparing.claim(answer)
            preparing.set_modes(checkpoint)
            daemons = preparing.start(checkpoint, lambda: self._ends_at - time.monotonic())
            checkpoint = preparing.limit_power(checkpoint, answer)
        except (CollocError, Denied) as error:
            if not why_no_mig:
                raise
            raise NodeError(f"no MIG: {why_no_mig}; no MPS: {error}") from error
        told = "the node's prolog has prepared MPS"
        preparing.tell_daemons(daemons, f"{told}; no MIG: {why_no_mig}" if why_no_mig else told)
        return checkpoint

    def _divide(self, answer: NvmlAnswer) -> tuple[Checkpoint | None, str]:
        """Divide the job's GPUs by MIG; None and the reason where that is not to be had."""
        layout = self._preparing.token.layout
        checkpoint, reason = self._try_layout(answer, layout, "the prolog has divided the GPU")
        if checkpoint is not None or not self._is_mig_on(answer):
            return checkpoint, reason
        # Without any instance no process finds a GPU there, by whatever other way it shares.
        told = f"MIG is on, and one instance has the whole GPU; no layout {layout}: {reason}"
        checkpoint, _ = self._try_layout(answer, "", told)
        return checkpoint, reason

    def _try_layout(
        self, answer: NvmlAnswer, layout: str, told: str
    ) -> tuple[Checkpoint | None, str]:
        from slurm_colloc.host.hooks.prepare_mig import MIG, MigPreparation

        dividing = MigPreparation.share(self._preparing)
        try:
            checkpoint, value = dividing.divide(answer, layout, self._ends_at)
            checkpoint = dividing.limit_power(checkpoint, answer)
            dividing.tell(MIG, told, mig=value)
        except (CollocError, OSError) as error:
            reason = str(error)
            self._report.details.setdefault("no_mig", reason)
            try:
                self._undo_own()
            except StateError as left:
                raise StateError(f"no MIG: {reason}; {left.message}") from error
            return None, reason
        return checkpoint, ""

    def _is_mig_on(self, answer: NvmlAnswer) -> bool:
        gpus = [answer.find(uuid) for uuid in self._preparing.gpus]
        return all(gpu is not None and gpu.mig_enabled for gpu in gpus)

    def _choose_holders_budget(self) -> float:
        """Instances that a dead job has left on this job's GPUs take longer to destroy."""
        mine = set(self._preparing.gpus)
        for job_id in self._run.list_jobs():
            known = self._run.read_quietly(job_id)
            if known is not None and known.mig and mine & set(known.gpus):
                return max(_HOLDERS_S, self._ends_at - time.monotonic() - 1.0)
        return _HOLDERS_S

    def _undo_own(self) -> None:
        """Take back what was begun: by this run, or by one that was killed or had no epilog."""
        checkpoint, _ = read_or_guess(self._run, self._job.job_id)
        if checkpoint is None:
            return
        undone = self._undo(checkpoint)
        if not undone.is_complete:
            raise StateError(
                f"what was begun for this job could not be taken back at once: "
                f"{'; '.join(undone.unsafe + undone.left)}"
            )

    def _undo(self, checkpoint: Checkpoint) -> UndoReport:
        # Most prologs have nothing to undo.
        from slurm_colloc.host.hooks.epilog import MIG_UNDO_S, JobUndo

        undone = JobUndo(
            self._run,
            checkpoint,
            driver=self._place.driver,
            node=self._job.node,
            # In time to say what is left.
            mig_s=min(MIG_UNDO_S, self._ends_at - time.monotonic() - TELL_S),
            slow_until=self._slow_until,
        ).undo()
        note_undone(self._report, undone)
        return undone

    def _clear_leftovers(self) -> None:
        """Clear up after all dead jobs, in a budget that is not the job's; it is prepared."""
        ends_at = time.monotonic() + _LEFTOVERS_S
        try:
            with deadline(2 * _LEFTOVERS_S):
                self._recover(self._preparing.gpus, holders_only=False, budget_s=_LEFTOVERS_S)
                self._run.sweep_aside(ends_at)
        except (CollocError, OSError, OutOfTime) as error:
            self._report.details["leftovers"] = str(error) or "no time was left"

    def _recover(self, claimed: Sequence[str], *, holders_only: bool, budget_s: float) -> bool:
        """Undo dead jobs; whether there was one."""
        found = recover(
            self._run,
            besides=self._job.job_id,
            claimed=claimed,
            driver=self._place.driver,
            node=self._job.node,
            holders_only=holders_only,
            budget_s=budget_s,
        )
        told = [describe_recovered(one) for one in found if one.report is not None]
        if told:
            self._report.details.setdefault("recovered", []).extend(told)
        divided = describe_divided(found, self._preparing.gpus)
        if divided:
            self._is_fit = False
            self._report.exit_status = 1
            raise NodeError(divided)
        return bool(told)

    def _fall_back(self, reason: str, *, is_fault: bool = True) -> None:
        """Take back what was begun, and let the job know; it starts without."""
        report = self._report
        report.action, report.outcome = "told", reason
        try:
            now = time.monotonic()
            self._ends_at = now + self._policy.stop_s
            checkpoint, _ = read_or_guess(self._run, self._job.job_id)
            slow_s = self._policy.mig_slow_s if checkpoint and checkpoint.divides else 0.0
            self._slow_until = self._ends_at + slow_s - TELL_S
            with deadline(self._policy.stop_s + slow_s):
                if checkpoint is not None:
                    undone = self._undo(checkpoint)
                    if not undone.is_complete:
                        report.action = "none"
                        return
                    if self._is_fit:
                        # What could not be taken back at first, by a slow NVML, has gone by now.
                        report.exit_status, report.outcome = 0, reason
                        report.details.pop("unsafe", None)
                if not self._is_fit:
                    # The job does not start here, so there is no one to tell.
                    report.action = "none"
                    return
                self._preparing.compute_mode = None
                self._preparing.tell_nothing(reason)
        except OutOfTime:
            report.action = "none"
            report.details["not_told"] = "no time was left"
        except (CollocError, OSError) as error:
            # A full /run: without a word the job finds out by itself.
            report.action = "none"
            report.details["not_told"] = str(error)
        finally:
            if is_fault:
                _fail(report, self._policy)


def _measure(figures: dict[str, float], name: str, started: float) -> None:
    """Note how long something took, in ms."""
    figures[name] = round((time.monotonic() - started) * 1000, 1)
