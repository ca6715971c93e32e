"""Packs of jobs whose loads are known: by what the contention model predicts of them.

Also: packs of jobs whose loads are unknown, but of which a pack has measured how many run at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Goal, PackPlan, SharingMode, UsageProfile
from slurm_colloc.planning import pack_search
from slurm_colloc.planning.broken_limits import Declining, Weighing
from slurm_colloc.planning.hard_limits import (
    Priced,
    Subject,
    compute_host_memory_limit_mb,
)
from slurm_colloc.planning.instance_packs import build_instance_pack, merge_parts, plan_seats
from slurm_colloc.planning.job_needs import (
    Need,
    Question,
    build_limits,
    build_subject,
    choose_bound,
    choose_gpu_memory_limit_mb,
    choose_gpu_memory_mb,
    choose_time_limit_s,
    has_power,
    label_jobs,
    list_modes,
)
from slurm_colloc.planning.known_degree import KnownDegree, find_degree
from slurm_colloc.planning.pack_prediction import build_lone, build_prediction
from slurm_colloc.planning.pack_request import build_lone_pack, build_pack
from slurm_colloc.planning.unknown_packs import (
    UNSTATED_HOST_MEMORY_MB,
    build_unknown_pack,
    fill_packs,
    is_open_ended,
    make_room,
    plan_unknown,
)
from slurm_colloc.planning.waiting_members import plan_waiting

# ----
# Packs of jobs whose loads are unknown, but of which a pack has measured how many run at once.


def plan_by_curves(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Pack jobs of unknown load by what earlier packs measured of their kinds, else as unknown.

    Where a curve is known, as many start at once as made the most progress within the accepted
    slowdown; CPUs, host memory and GPU memory limit that as ever.
    """
    left = list(indices)
    packs: list[PackPlan] = []
    for chosen, known in choose_groups(question, indices):
        packs += _plan_group(question, chosen, known)
        left = [index for index in left if index not in chosen]
    return packs + plan_unknown(question, left) if left else packs


def choose_groups(
    question: Question, indices: Sequence[int]
) -> Iterator[tuple[list[int], KnownDegree]]:
    """All of the jobs where their mix was measured, else those of each kind that was.

    Args:
        question: What planning is asked.
        indices: Jobs of unknown load that may share with each other.
    """
    policy = question.policy
    curves = [curve for curve in question.curves if curve.mode is policy.mode]
    if not curves or not is_open_ended(policy) or policy.goal is not Goal.THROUGHPUT:
        return
    if policy.mode is SharingMode.MIG or policy.has_gpu_sets or question.capacity.gpus > 1:
        return
    by_family: dict[str, list[int]] = {}
    for index in indices:
        job, profile = question.jobs[index], question.profiles.get(index)
        is_sized = job.gpus == 1 and choose_gpu_memory_mb(job, profile) is not None
        family = profile.family if profile is not None and is_sized else ""
        by_family.setdefault(family, []).append(index)
    bound = min(choose_bound(question.jobs[index], policy) for index in indices)

    def find(chosen: Mapping[str, Sequence[int]]) -> KnownDegree | None:
        rates = {
            family: profile.steps_per_s
            for family, members in chosen.items()
            if (profile := question.profiles.get(members[0])) is not None and profile.steps_per_s
        }
        kinds = Counter({family: len(members) for family, members in chosen.items()})
        return find_degree(curves, kinds, bound, rates)

    if "" not in by_family and (known := find(by_family)) is not None:
        yield list(indices), known
        return
    for family, members in by_family.items():
        # A few of each of several kinds share better as a mix of which nothing is known.
        is_enough = len(members) >= min(policy.degree, len(indices))
        if family and is_enough and (known := find({family: members})) is not None:
            yield members, known


def _plan_group(question: Question, indices: Sequence[int], known: KnownDegree) -> list[PackPlan]:
    told = known.describe()
    degree = min(known.degree, question.policy.degree_max, _find_host_room(question, indices))
    if degree < 2:
        return [build_lone_pack(index, question.jobs[index], told) for index in indices]
    profiles = dict(question.profiles)
    rates = {rate.family: rate.steps_per_s for rate in known.curve.rates_alone}
    for index in indices:
        if profiles[index].steps_per_s is None:
            rate = rates.get(profiles[index].family)
            profiles[index] = replace(profiles[index], steps_per_s=rate)
    question = replace(question, profiles=profiles, policy=replace(question.policy, degree=degree))
    filled = fill_packs(question, indices)
    packs = []
    for needs, reason in filled:
        most = len(indices) if len(filled) > 1 else len(needs)
        # Beyond the largest degree that was measured there may be more room.
        widened, places = make_room(question, needs, most if known.is_open else min(most, degree))
        packs.append(build_unknown_pack(question, widened, reason, places, told))
    return packs


def _find_host_room(question: Question, indices: Sequence[int]) -> int:
    """How many of these one GPU's share of host memory holds, by what each is likely to take."""
    share_mb = question.capacity.host_memory_mb_per_gpu
    if share_mb is None or all(question.jobs[index].host_memory_mb for index in indices):
        # What is stated is checked as any need.
        return len(indices)
    likely = (
        question.jobs[index].host_memory_mb
        or compute_host_memory_limit_mb(question.profiles.get(index, UsageProfile()))
        or UNSTATED_HOST_MEMORY_MB
        for index in indices
    )
    return max(question.policy.degree, share_mb // max(likely))


# ---- Packs of jobs whose loads are known: by what the contention model predicts of them ----------

_UNKNOWN_ALONE = (
    "what it uses of a GPU is not known yet, and no other such job was submitted with it"
)


def plan_by_loads(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    """Pack jobs that may share with each other, as far as their loads are known."""
    return _keep_array_whole(question, _plan_each(question, indices))


def _plan_each(question: Question, indices: Sequence[int]) -> list[PackPlan]:
    subjects = [build_subject(question, index) for index in indices]
    known = [s for s in subjects if is_known(s) and question.calibration is not None]
    unknown = [s.index for s in subjects if not (is_known(s) and question.calibration is not None)]
    packs = _plan_known(question, known) if known else []
    if len(unknown) == 1 and known:
        job = question.jobs[unknown[0]]
        packs.append(build_lone_pack(unknown[0], job, _UNKNOWN_ALONE))
    elif unknown:
        packs += plan_by_curves(question, unknown)
    return packs


def _keep_array_whole(question: Question, packs: list[PackPlan]) -> list[PackPlan]:
    """Tasks that run alone ask as packs do where others of their array share.

    Else the array would become two Slurm jobs, and `--parsable` would print two ids.
    """

    def is_task(pack: PackPlan) -> bool:
        return question.jobs[pack.members[0].job_index].array_task is not None

    if not any(pack.request is not None and is_task(pack) for pack in packs):
        return packs
    return [
        ask_as_pack(question, pack) if pack.request is None and is_task(pack) else pack
        for pack in packs
    ]


def ask_as_pack(question: Question, lone: PackPlan) -> PackPlan:
    """A job alone that asks Slurm as a pack of one, with a whole GPU's share of host memory."""
    (member,) = lone.members
    needs = build_needs(question, [build_subject(question, member.job_index)])
    pack = build_pack(question.jobs, needs, question.capacity, question.policy, "")
    (asked,) = pack.members
    member = replace(
        asked,
        predicted_slowdown=member.predicted_slowdown,
        solo_steps_per_s=member.solo_steps_per_s,
        max_slowdown=member.max_slowdown,
    )
    return replace(lone, members=(member,), request=pack.request)


def is_known(subject: Subject) -> bool:
    """Whether a job's load is known, and so is what it may take of the GPU's memory."""
    return subject.load is not None and subject.gpu_memory_mb is not None


def weigh(question: Question, subjects: Sequence[Subject]) -> Weighing:
    """The jobs of known load of a call that may share with each other."""
    return Weighing(
        subjects,
        build_limits(question, subjects),
        question.calibration,
        goal=Goal.THROUGHPUT if describe_lack(question, subjects) else question.policy.goal,
        modes=list_modes(question.policy),
    )


def describe_lack(question: Question, subjects: Sequence[Subject]) -> str:
    """What is not known that the goal would count; empty where nothing is lacking."""
    if question.policy.goal is not Goal.ENERGY:
        return ""
    calibration = question.calibration
    if calibration is None or calibration.idle_power_w is None:
        lack = "the power of the idle GPU is not known"
    else:
        lacking = [s.index for s in subjects if not has_power(question, [s.index])]
        if not lacking:
            return ""
        names = label_jobs((job.name, job.number) for job in question.jobs)
        others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        lack = f"what power {names[lacking[0]]}{others} would draw is not known"
    return f"{lack}: GPU time counts in place of energy"


def _plan_known(question: Question, subjects: Sequence[Subject]) -> list[PackPlan]:
    packs = _divide(question, subjects)
    lack = describe_lack(question, subjects)
    if lack:
        packs = [replace(pack, reasons=(*pack.reasons, lack)) for pack in packs]
    return packs


def _divide(question: Question, subjects: Sequence[Subject]) -> list[PackPlan]:
    weighing = weigh(question, subjects)
    parts = pack_search.partition(weighing.pricing)
    waiting = plan_waiting(question, weighing, parts)
    if not isinstance(waiting, str):
        return waiting
    if weighing.limits.has_instances:
        parts = tuple(merge_parts(question, subjects, parts, weighing.limits))
    names = [question.jobs[s.index].name for s in subjects]
    labels = label_jobs((job.name, job.number) for job in question.jobs)
    declining = Declining(weighing, names, [labels[s.index] for s in subjects], parts)
    packs = []
    for members in parts:
        if len(members) == 1:
            packs.append(build_lone(question, subjects[members[0]], declining.explain(members[0])))
            continue
        order = sorted(members, key=lambda i: (-subjects[i].run_s, subjects[i].index))
        priced = weighing.pricing.price(order)
        assert priced is not None or weighing.limits.has_instances
        is_full = len(order) == weighing.limits.members and len(parts) > 1
        closing = f"it is full with {len(order)} members" if is_full else ""
        pack = build_known_pack(question, [subjects[i] for i in order], priced, closing)
        if waiting:
            pack = replace(pack, reasons=(*pack.reasons, f"no job waits in it: {waiting}"))
        packs.append(pack)
    return packs


def build_known_pack(
    question: Question, members: Sequence[Subject], priced: Priced | None, closing_reason: str = ""
) -> PackPlan:
    """The pack of these members, in their order, in the setting that was chosen for it.

    Where that is MIG, its instances need not be equal; without a setting it has unequal ones.
    """
    if priced is None or priced.setting.mode is SharingMode.MIG:
        planned = plan_seats(question, members)
        assert planned is not None
        needs = build_needs(question, members)
        return build_instance_pack(question, needs, members, planned, closing_reason)
    prediction = build_prediction(
        question, members, priced.setting, priced.slowdowns, priced.duration_s
    )
    return build_pack(
        question.jobs,
        build_needs(question, members),
        question.capacity,
        question.policy,
        closing_reason,
        prediction=prediction,
    )


def build_needs(question: Question, members: Sequence[Subject]) -> list[Need]:
    """What members of known load need; those who stated no host memory share what is left of it."""
    share = question.capacity.host_memory_mb_per_gpu
    unstated = [m for m in members if question.jobs[m.index].host_memory_mb is None]
    room = 0
    if share is not None and unstated:
        # What was measured says what fits together. It is no limit: it was measured while the job
        # was alone, often early in its run, so no member is ended by it while there is room.
        taken = sum(member.host_memory_mb or 0 for member in members)
        room = max(0, share - taken) // len(unstated)
    needs = []
    for member in members:
        job = question.jobs[member.index]
        host_memory_mb = job.host_memory_mb
        if host_memory_mb is None and share is not None:
            host_memory_mb = (member.host_memory_mb or 0) + room
        needs.append(
            Need(
                member.index,
                member.cpus,
                host_memory_mb,
                member.gpu_memory_mb,
                choose_time_limit_s(job, question.capacity),
                job.max_slowdown,
                choose_gpu_memory_limit_mb(job, question.profiles.get(member.index)),
                max(1, job.gpus),
            )
        )
    return needs
