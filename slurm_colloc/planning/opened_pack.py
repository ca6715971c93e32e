"""A pack of one job that asks Slurm for more than it needs, so that others can join it; pure.

A pack that runs cannot grow: Slurm gives a job what it asked for before it started.
"""

from __future__ import annotations

import dataclasses

from slurm_colloc.model.plan import PackPlan, PackRequest, Plan, Policy, SharingMode
from slurm_colloc.model.sbatch.quantities import format_mb, format_time_limit
from slurm_colloc.planning.job_needs import Question, compute_needs
from slurm_colloc.planning.pack_request import MEASURED, describe_count
from slurm_colloc.planning.time_limits import compute_wall_limit_s
from slurm_colloc.planning.unknown_packs import (
    build_unknown_pack,
    count_places,
    share_host_memory,
)

TIME_FACTOR = 2
"""It asks for the time of its member so many times: a job as long as that still finds time enough
when the first is half over."""

NOT_OPEN = "asks for nothing for jobs that join while it runs: "
OPEN_FOR = "open for "
"""Beginnings of reasons of a pack."""


def plan_opened(question: Question, asked: int | None) -> PackPlan | str:
    """The pack of a single job that is open for others, or why there can be none.

    Args:
        question: What planning is asked: the job, and the GPU with which it would be.
        asked: How many places it is to have, its own among them; None for as many as like it the
            GPU's share has room for.
    """
    policy, capacity = question.policy, question.capacity
    if policy.mode is SharingMode.MIG:
        return "MIG instances are made for the members that a pack begins with"
    if policy.has_gpu_sets or capacity.gives_whole_nodes:
        return "Slurm gives whole nodes there, or several GPUs were asked for"
    needs = compute_needs(question, [0])
    # Others may take less of the GPU's memory: whether there is enough is seen as they come.
    sizeless = [dataclasses.replace(need, gpu_memory_mb=None) for need in needs]
    room = count_places(question, sizeless, _find_most(policy))
    if room is None:
        return "what one GPU's share of a node is, is not known"
    places = room if asked is None else min(asked, room)
    if places < 2:
        return f"one GPU's share of a node has room for one such job ({_describe_share(question)})"
    needs = share_host_memory(question, needs, places)
    limit_s = capacity.time_limit_max_s
    wall_s = compute_wall_limit_s(needs[0], places, policy)
    if wall_s is not None and limit_s is not None:
        wanted_s = wall_s + policy.start_margin_s + policy.measure_s
        if wanted_s > limit_s:
            return f"in company it may take {wanted_s} s, and MaxTime here is {limit_s} s"
    pack = build_unknown_pack(question, needs, "", places)
    request = pack.request
    assert request is not None
    if request.time_limit_s is not None:
        times = [TIME_FACTOR * request.time_limit_s, limit_s]
        shortest_s = min(time_s for time_s in times if time_s is not None)
        request = dataclasses.replace(request, time_limit_s=shortest_s)
    others = places - 1
    reasons = [text for text in pack.reasons if text != MEASURED]
    reasons.append(
        f"{OPEN_FOR}{describe_count(others, 'more job')} while it runs: "
        f"it asks for {_describe_request(request)}"
    )
    if asked is not None and asked > places:
        reasons.append(f"--open={asked}: there is room for {places} ({_describe_share(question)})")
    return dataclasses.replace(pack, request=request, reasons=tuple(reasons), open_for=others)


def keep_open(planned: PackPlan, request: PackRequest | None, places: int) -> PackPlan:
    """A pack that was joined while it waited, still with what it was opened with.

    Args:
        planned: The pack as it is planned with the joiner in it.
        request: What it asked for before.
        places: How many places it had.
    """
    own = planned.request
    if request is None or own is None:
        return planned
    memory, time_s = own.host_memory_mb, own.time_limit_s
    if memory is not None and request.host_memory_mb is not None:
        memory = max(memory, request.host_memory_mb)
    if time_s is not None and request.time_limit_s is not None:
        time_s = max(time_s, request.time_limit_s)
    kept = dataclasses.replace(
        own, cpus=max(own.cpus, request.cpus), host_memory_mb=memory, time_limit_s=time_s
    )
    return dataclasses.replace(planned, request=kept, degree=max(planned.degree, places))


def find_refusal(plan: Plan) -> str:
    """Why the only job of a plan is not open for others, where that was looked at; else empty."""
    reasons = plan.packs[0].reasons if plan.packs else ()
    return next((text for text in reasons if text.startswith(NOT_OPEN)), "")


def _find_most(policy: Policy) -> int:
    is_limited = policy.degree_is_asked or policy.pack_size is not None
    return min(policy.degree, policy.degree_max) if is_limited else policy.degree_max


def _describe_share(question: Question) -> str:
    capacity, job = question.capacity, question.jobs[0]
    memory_mb = capacity.host_memory_mb_per_gpu
    told = f"the share is {describe_count(capacity.cpus_per_gpu or 0, 'CPU')}"
    if memory_mb is not None:
        told += f" and {format_mb(memory_mb)} of host memory"
    needs = describe_count(job.cpus, "CPU")
    if job.host_memory_mb is not None:
        needs += f" and {format_mb(job.host_memory_mb)}"
    return f"{told}, it asks for {needs}"


def _describe_request(request: PackRequest) -> str:
    parts = [describe_count(request.cpus, "CPU")]
    if request.host_memory_mb is not None:
        parts.append(f"{format_mb(request.host_memory_mb)} of host memory")
    if request.time_limit_s is not None:
        parts.append(f"{format_time_limit(request.time_limit_s)} of time")
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
