"""The epilog: undoes what the checkpoint of a job says, in its time; who: root.

It asks no process of the user's anything. Ending the job's processes needs no lock: where root's
directory cannot be written, that is done all the same, and the node is told to be unfit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from slurm_colloc.errors import CollocError
from slurm_colloc.host.hooks.hook_job import HookJob
from slurm_colloc.host.hooks.hook_report import (
    TELL_S,
    HookPlace,
    HookReport,
    OutOfTime,
    deadline,
    note_undone,
)
from slurm_colloc.host.hooks.node_policy import NodePolicy
from slurm_colloc.host.hooks.recover_jobs import read_or_guess
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.hooks.undo_checkpoint import JobUndo, end_agents
from slurm_colloc.host.system.node_processes import read_boot_id

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
            _without_agents(run, job.job_id),
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
        if known is not None and known.compute_modes:
            report.exit_status = 1
    finally:
        run.close()
    return report


def _locked(
    run: RunDirectory, job_id: str, timeout_s: float
) -> contextlib.AbstractContextManager[None]:
    """The job's lock, where there is one to be had."""
    return contextlib.nullcontext() if run.lock_problem else run.locked_job(job_id, timeout_s)


@contextlib.contextmanager
def _without_agents(run: RunDirectory, job_id: str) -> Iterator[None]:
    """First of all what changes the job's instances ends: it holds the job's lock meanwhile."""
    known = run.read_quietly(job_id)
    if known is not None and known.boot == read_boot_id():
        end_agents(run, job_id)
    yield
