"""What a submission tells a beginner: directories that are not there, and why nothing shares."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import PackPlan, SharingMode
from slurm_colloc.store.missing_directories import find_missing_directories
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.plan.plan_call import CallPlan

_MARKS = ("runs alone: ", "takes no more members: ")


def list_missing_directories(call: Call) -> list[str]:
    """Directories that jobs name and that are not on this machine, a sentence each, once.

    They are no error: a job may wait for another that makes them, and nodes may see more.
    """
    jobs = (candidate.job for candidate in call.candidates)
    # The tasks of an array name the same, and to look may take a while.
    asked = dict.fromkeys((job.script_name, job.directory, _list_outputs(job)) for job in jobs)
    return list(
        dict.fromkeys(
            f"{script}: {text} here; unless it is made in time, the job fails"
            for script, directory, patterns in asked
            for text in find_missing_directories(directory, patterns)
        )
    )


def _list_outputs(job: Job) -> tuple[tuple[str, str], ...]:
    named = (("output", job.output), ("error", job.error))
    return tuple((option, pattern) for option, pattern in named if pattern is not None)


def describe_nothing_shared(made: CallPlan) -> str:
    """Why no job of a planned call shares a GPU; empty where one does, or that was asked for."""
    if made.policy.mode is SharingMode.EXCLUSIVE or made.policy.degree_is_asked:
        return ""
    packs = made.plan.packs
    if any(len(pack.members) > 1 for pack in packs):
        return ""
    if all(job.gpus == 0 for job in made.jobs):
        return "no GPU is asked for (--gres=gpu:1), so there is nothing to share"
    if len(packs) < 2:
        return ""
    why = _find_reason(packs)
    return f"none of these jobs shares a GPU: {why}" if why else ""


def _find_reason(packs: Sequence[PackPlan]) -> str:
    for pack in packs:
        for text in pack.reasons:
            for mark in _MARKS:
                if mark in text:
                    return text.partition(mark)[2]
    return ""
