"""What a job needs and takes, with defaults filled in: by its user's words and its profile.

Also: what a job takes of a GPU while it is alone there, and how sure that is; what one GPU has for
a pack of known jobs, by node, site, user and sharing mode.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.measured_curve import KnownCurve
from slurm_colloc.model.measurement import may_be_measured
from slurm_colloc.model.plan import (
    Capacity,
    KnownBy,
    Policy,
    SharingMode,
    UsageProfile,
    is_watched,
)
from slurm_colloc.model.usage_profile import RUN_MOST_S, Calibration, Load
from slurm_colloc.planning.hard_limits import (
    Limits,
    Subject,
    add_gpu_memory_margin,
    compute_gpu_memory_limit_mb,
    compute_gpu_memory_need_mb,
    compute_host_memory_limit_mb,
    compute_usable_gpu_memory_mb,
    is_borrowed,
)

# ---- What a job takes of a GPU while it is alone there, and how sure that is ---------------------
#
# From its usage profile, for the model of contention.

_RELATIVE_SPREAD = 0.05
"""By how much a relative may differ: those that differ by 10 % (model.usage_profile) tell
nothing, so this is a standard deviation of what is left."""
_BORROWED_MARGIN = 2.0
"""How much wider the margin is with another GPU's figures."""

_ENGINE_EXPONENT = 0.55
"""The share of the time in which the GPU works, where only SM activity was measured: on an H200
three trainings with SM activities of 0.12, 0.30 and 0.43 filled it by time slicing at 3.5, 1.95
and 1.59 times one alone (docs/benchmarks.md), which this power of the activity gives within 8 %.
"""


def build_load(profile: UsageProfile | None, calibration: Calibration | None = None) -> Load | None:
    """What a job takes alone; None where its SM or DRAM activity is unknown or no number.

    Args:
        profile: Its usage profile.
        calibration: For the power of the idle GPU, where the profile does not tell it.
    """
    if profile is None:
        return None
    sm, dram = _share(profile.sm_activity), _share(profile.dram_activity)
    if sm is None or dram is None or sm == 0.0:
        # One that used no SM while it was watched had not begun with what it is for.
        return None
    engine = _share(profile.engine_activity)
    if engine is None:
        engine = sm**_ENGINE_EXPONENT
    idle_w, power_w = profile.idle_power_w, profile.power_w
    if idle_w is None:
        idle_w = (calibration and calibration.idle_power_w) or 0.0
    cores = profile.cpu_cores
    return Load(
        engine=engine,
        sm=sm,
        dram=dram,
        tensor=_share(profile.tensor_activity) or 0.0,
        # What GPUs exchange goes over NVLink where they have it, and else over PCIe.
        pcie=max(_share(profile.pcie_share) or 0.0, _share(profile.nvlink_share) or 0.0),
        disk=_share(profile.disk_share) or 0.0,
        cpu_cores=cores if cores is not None and is_amount(cores) else 1.0,
        power_w=max(0.0, power_w - idle_w) if power_w is not None and is_amount(power_w) else 0.0,
        sensitivity=_finite(profile.sensitivity),
        pressure=_finite(profile.pressure),
    )


def has_only_rate(profile: UsageProfile | None) -> bool:
    """Whether GPU memory and rate of a job were measured, but not its activity.

    So it is on GPUs without GPM (Ampere and before), and of jobs that have only run in company:
    nothing can be predicted of them, but they may share, and the node measures how fast they are.
    """
    if profile is None or not profile.gpu_memory_peak_mb or not profile.steps_per_s:
        return False
    return profile.sm_activity is None or profile.dram_activity is None


def _share(value: float | None) -> float | None:
    if value is None or not is_amount(value):
        return None
    return min(1.0, value)


def is_amount(value: float) -> bool:
    """Whether a measured figure says anything: finite and not below 0."""
    return math.isfinite(value) and value >= 0.0


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def compute_margin(profile: UsageProfile, calibration: Calibration) -> float:
    """Relative uncertainty of a job's predicted slowdown."""
    margin = calibration.residual
    if profile.known_by is not KnownBy.EXACT:
        margin = math.hypot(margin, _RELATIVE_SPREAD)
    if is_borrowed(profile, calibration):
        margin *= _BORROWED_MARGIN
    return margin


# ---- What a job needs and takes, with defaults filled in: by its user's words and its profile ----

RUN_DEFAULT_S = 3600.0
"""How long a job is taken to run of which nothing tells."""


@dataclass(frozen=True)
class Need:
    """A job with its defaults filled in.

    Attributes:
        index: Its index into the jobs.
        cpus: CPUs, at least 1.
        host_memory_mb: Host memory in MB; None where nothing is known of it.
        gpu_memory_mb: GPU memory in MB that it takes from its partners; None where nothing is known
            of it.
        time_limit_s: Its time alone in seconds; None for no limit.
        max_slowdown: How much slower than alone it may get; None where the policy decides.
        gpu_memory_limit_mb: What it may use at most, its first seconds included; None for
            `gpu_memory_mb`.
        gpus: GPUs, on each of which it takes that.
    """

    index: int
    cpus: int
    host_memory_mb: int | None
    gpu_memory_mb: int | None
    time_limit_s: int | None
    max_slowdown: float | None = None
    gpu_memory_limit_mb: int | None = None
    gpus: int = 1

    @property
    def takes_turns(self) -> bool:
        """Others may have all of the GPU's memory while its own is in host memory."""
        return self.gpu_memory_mb is None and self.gpu_memory_limit_mb is not None


def choose_bound(asking: Job | Need, policy: Policy) -> float:
    """How much slower than alone a job may get, 1 or more: as its user said, else by the policy."""
    return max(1.0, asking.max_slowdown or policy.slowdown_bound)


def compute_need(
    job: Job,
    index: int,
    capacity: Capacity,
    policy: Policy,
    *,
    profile: UsageProfile | None = None,
) -> Need:
    """What a job needs: as it was asked for, else as it was measured, else its share of the GPU's.

    Host memory is not taken from the profile here: it is a limit at which the job is killed, and
    a share is there for it anyway.
    """
    host_memory_mb = job.host_memory_mb
    if host_memory_mb is None and capacity.host_memory_mb_per_gpu is not None:
        places = policy.degree * capacity.gpus
        host_memory_mb = max(1, capacity.host_memory_mb_per_gpu * max(1, job.gpus) // places)
    limit_mb = choose_gpu_memory_limit_mb(job, profile)
    if job.turn_s and host_memory_mb is not None:
        # While others have their turn its GPU memory is there.
        host_memory_mb += add_gpu_memory_margin(limit_mb or 0)
    return Need(
        index,
        job.cpus,
        host_memory_mb,
        choose_gpu_memory_mb(job, profile),
        choose_time_limit_s(job, capacity),
        job.max_slowdown,
        limit_mb,
        max(1, job.gpus),
    )


def choose_time_limit_s(job: Job, capacity: Capacity) -> int | None:
    """A job's `--time` in seconds, else the partition's DefaultTime; None for no limit.

    Slurm's default is cut to what partition, QoS and site allow; what a user asks for is not.
    """
    if job.is_unlimited:
        return None
    default_s, most_s = capacity.time_limit_default_s, capacity.time_limit_max_s
    if default_s is not None and most_s is not None:
        default_s = min(default_s, most_s)
    return job.time_limit_s or default_s


def choose_gpu_memory_mb(job: Job, profile: UsageProfile | None) -> int | None:
    """GPU memory that a job takes from its partners: as its user said, else from its profile.

    None where that is unknown, and where they take turns.
    """
    if job.turn_s:
        return None
    if job.gpu_memory_mb is not None or profile is None:
        return job.gpu_memory_mb
    return compute_gpu_memory_need_mb(profile)


def choose_gpu_memory_limit_mb(job: Job, profile: UsageProfile | None) -> int | None:
    """GPU memory that a job may use at most, its first seconds included; None unknown."""
    if job.gpu_memory_mb is not None or profile is None:
        return job.gpu_memory_mb
    return compute_gpu_memory_limit_mb(profile)


def compute_run_s(job: Job, profile: UsageProfile | None, capacity: Capacity) -> float:
    """Seconds that a job is expected to run alone on the whole GPU.

    As earlier runs took, at most its `--time`; else its `--time`, else the partition's
    DefaultTime, else an hour.
    """
    limit_s = choose_time_limit_s(job, capacity)
    if has_run_s(profile):
        assert profile is not None
        assert profile.run_s is not None
        return min(profile.run_s, limit_s) if limit_s else profile.run_s
    return float(limit_s or RUN_DEFAULT_S)


def has_run_s(profile: UsageProfile | None) -> bool:
    """Whether earlier runs tell how long a job takes."""
    if profile is None or profile.run_s is None:
        return False
    return 0 < profile.run_s <= RUN_MOST_S


@dataclass(frozen=True)
class Question:
    """What planning is asked.

    Attributes:
        jobs: What came in one call, in the user's order.
        profiles: What is known of a job's solo use, by index into `jobs`.
        capacity: What one GPU brings with it.
        policy: How far sharing may go.
        calibration: How jobs slow each other down there; None where that is unknown.
        curves: What earlier packs there have measured of how many run at once best.
    """

    jobs: Sequence[Job]
    profiles: Mapping[int, UsageProfile]
    capacity: Capacity
    policy: Policy
    calibration: Calibration | None = None
    curves: Sequence[KnownCurve] = ()


def compute_needs(question: Question, indices: Iterable[int]) -> list[Need]:
    """What each of these jobs needs; see `compute_need`."""
    return [
        compute_need(
            question.jobs[index],
            index,
            question.capacity,
            question.policy,
            profile=question.profiles.get(index),
        )
        for index in indices
    ]


def are_timed(question: Question, subjects: Sequence[Subject]) -> bool:
    """Whether earlier runs tell of all of these jobs how long they take."""
    return all(has_run_s(question.profiles.get(subject.index)) for subject in subjects)


def has_power(question: Question, indices: Iterable[int]) -> bool:
    """Whether the GPU's power is known while each of these jobs is alone on it."""
    found = (question.profiles.get(index) for index in indices)
    return all(p is not None and p.power_w is not None and is_amount(p.power_w) for p in found)


def is_host_memory_assumed(question: Question, index: int) -> bool:
    """Whether neither a job's user nor its earlier runs tell of its host memory."""
    job, profile = question.jobs[index], question.profiles.get(index)
    if job.host_memory_mb is not None:
        return False
    return profile is None or compute_host_memory_limit_mb(profile) is None


def build_subject(question: Question, index: int) -> Subject:
    """A job as the search looks at it; its load is None where nothing can be predicted.

    That is so without a calibration, and where its GPU memory is unknown: what it takes of a
    GPU's memory may fail its neighbours.
    """
    job, profile = question.jobs[index], question.profiles.get(index)
    calibration = question.calibration
    gpu_memory_mb = choose_gpu_memory_mb(job, profile)
    host_memory_mb = job.host_memory_mb
    if host_memory_mb is None and profile is not None:
        host_memory_mb = compute_host_memory_limit_mb(profile)
    if host_memory_mb is None and question.capacity.host_memory_mb_per_gpu is not None:
        share = question.capacity.host_memory_mb_per_gpu
        host_memory_mb = max(1, share // max(1, question.policy.degree))
    load, margin, borrowed = None, 0.0, False
    if profile is not None and calibration is not None and gpu_memory_mb is not None:
        load = build_load(profile, calibration)
        margin = compute_margin(profile, calibration)
        borrowed = is_borrowed(profile, calibration)
    run_s = compute_run_s(job, profile, question.capacity)
    bound = choose_bound(job, question.policy)
    is_corrected = (
        question.policy.measures
        and may_be_measured(job)
        # A pack has at least what one member asks for: with less it may not be watched.
        and is_watched(job.host_memory_mb)
    )
    numbers = (run_s, bound, margin, is_corrected, borrowed)
    kind = (load, job.cpus, host_memory_mb, gpu_memory_mb, *numbers)
    return Subject(
        index=index,
        cpus=job.cpus,
        host_memory_mb=host_memory_mb,
        gpu_memory_mb=gpu_memory_mb,
        run_s=run_s,
        load=load,
        max_slowdown=bound,
        margin=margin,
        kind=kind,
        is_corrected=is_corrected,
        is_borrowed=borrowed,
    )


def label_jobs(named: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """What jobs are called in a sentence: `train.sh`, or `train.sh 3` where several have the name.

    Args:
        named: Name and number within the call of each job of the call.
    """
    jobs = list(named)
    counts = Counter(name for name, _ in jobs)
    return tuple(f"{name} {number}" if counts[name] > 1 else name for name, number in jobs)


# ---- What one GPU has for a pack of known jobs, by node, site, user and sharing mode; pure -------


def build_limits(question: Question, subjects: Sequence[Subject]) -> Limits:
    """What one GPU has for a pack of jobs whose load is known.

    How long a pack may last counts only where earlier runs tell how long jobs take: `--time` is
    what a job may take at most, and Slurm's own limit cuts that off.
    """
    capacity, policy = question.capacity, question.policy
    members = policy.degree_max
    if policy.degree_is_asked or capacity.gpu_memory_mb is None:
        # It is not known how many fit into an unknown GPU's memory.
        members = min(members, policy.degree)
    if policy.pack_size is not None:
        members = min(members, policy.pack_size)
    finish_s = None
    longest_s = capacity.time_limit_max_s
    if longest_s is not None and are_timed(question, subjects):
        finish_s = float(max(1, longest_s - policy.start_margin_s))
    modes = list_modes(policy)
    limits = Limits(
        cpus=capacity.cpus_per_gpu,
        host_memory_mb=capacity.host_memory_mb_per_gpu,
        gpu_memory_mb=compute_usable_gpu_memory_mb(capacity.gpu_memory_mb),
        members=max(1, members),
        finish_s=finish_s,
        has_instances=set(modes) == {SharingMode.MIG},
    )
    if SharingMode.MIG not in modes:
        return limits
    # Only packs with MIG instances wait for it.
    from slurm_colloc.planning.planned_gpu import find_planned_gpu

    gpu = find_planned_gpu(question, [subject.index for subject in subjects])
    return replace(limits, instance_rooms_mb=gpu.equal_rooms_mb)


def list_modes(policy: Policy) -> tuple[SharingMode, ...]:
    """The sharing modes that may be chosen from."""
    modes = policy.modes or (policy.mode,)
    return tuple(mode for mode in modes if mode is not SharingMode.EXCLUSIVE)
