"""Why two jobs are not planned together, whatever they take of a GPU; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Policy
from slurm_colloc.planning.job_needs import Question, choose_time_limit_s
from slurm_colloc.planning.limits.hard_limits import Broken
from slurm_colloc.planning.plan_packs import (
    TIME_RATIO,
    BucketKey,
    compute_reason_to_run_alone,
)


def find_differences(
    question: Question, keys: Mapping[int, BucketKey], names: Sequence[str], i: int, j: int
) -> tuple[Broken, ...]:
    """What two jobs do not agree in that share a pack.

    Args:
        question: What planning was asked.
        keys: From `find_keys`; those that do not share have none.
        names: What the jobs are called, by index.
        i: One job.
        j: The other.

    Returns:
        The first that is found, or why each does not share; nothing where the two may be
        planned together.
    """
    alone = {
        index: compute_reason_to_run_alone(question.jobs[index], question.policy)
        for index in (i, j)
        if index not in keys
    }
    if alone:
        if len(alone) == 2 and alone[i] == alone[j]:
            return (_build_alone(question, i, f"each runs alone: {alone[i]}"),)
        return tuple(
            _build_alone(question, index, f"{names[index]} runs alone: {why}")
            for index, why in alone.items()
        )
    one, other = keys[i], keys[j]
    if (one.group, one.gpu_type) != (other.group, other.gpu_type):
        text = "partition, account, QoS, GPU type or another sbatch option differs"
        return (Broken("group", None, None, text),)
    counts = [question.jobs[index].gpus for index in (i, j)]
    if counts[0] != counts[1] and not question.policy.mixes_gpus:
        text = (
            f"{names[i]} needs {counts[0]} and {names[j]} {counts[1]} GPUs: they share a GPU set "
            "where csub pack or --degree puts them together"
        )
        return (Broken("gpus", counts[0], counts[1], text),)
    if one.is_over != other.is_over:
        return (_build_over(question, names, i if one.is_over else j),)
    if one.longest_s != other.longest_s:
        return (_build_duration(question, keys, names, i, j),)
    return ()


def _build_alone(question: Question, index: int, text: str) -> Broken:
    """Why a job does not share."""
    have, limit = _find_numbers(question.jobs[index], question.policy)
    return Broken("alone", have, limit, text)


def _find_numbers(job: Job, policy: Policy) -> tuple[float | None, float | None]:
    """Both numbers of why a job does not share, as `compute_reason_to_run_alone` finds it."""
    if job.alone_because or not job.came_together:
        return None, None
    if job.gpus != 1:
        return job.gpus, 1
    if policy.degree == 1 and (policy.pack_size or 1) == 1:
        return 2, 1
    return job.time_limit_s, policy.pack_time_max_s


def _build_over(question: Question, names: Sequence[str], index: int) -> Broken:
    asked_s = question.jobs[index].time_limit_s
    limit_s = question.capacity.time_limit_max_s
    asked = "no time limit" if asked_s is None else f"{asked_s} s"
    text = f"{names[index]} asks for {asked}, MaxTime here is {limit_s} s: Slurm will not start it"
    return Broken("time", asked_s, limit_s, text)


def _build_duration(
    question: Question, keys: Mapping[int, BucketKey], names: Sequence[str], i: int, j: int
) -> Broken:
    """Their time limits are too different."""
    asked = {
        index: choose_time_limit_s(question.jobs[index], question.capacity) for index in (i, j)
    }
    if None in asked.values():
        endless, limited = (i, j) if asked[i] is None else (j, i)
        text = f"{names[limited]} asks for {asked[limited]} s, {names[endless]} for no time limit"
        return Broken("duration", asked[limited], None, text)
    short, long = sorted((i, j), key=lambda index: keys[index].longest_s or 0)
    longest_s = keys[long].longest_s or 0
    least_s = -(-longest_s // TIME_RATIO)
    text = (
        f"{names[short]} asks for {asked[short]} s, the jobs that share there for {least_s} to "
        f"{longest_s} s: a short job should not wait as long as a long one"
    )
    return Broken("duration", asked[short], least_s, text)
