"""A mix of jobs of different kinds and lengths, and the packs that each rule makes of it; pure."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu.rules import Rule, place_by
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import (
    Capacity,
    KnownBy,
    MemberPlan,
    PackPlan,
    Policy,
    SharingMode,
    UsageProfile,
)
from slurm_colloc.model.usage_profile import Calibration, Load
from slurm_colloc.planning.broken_limits import predict_setting
from slurm_colloc.planning.hard_limits import Setting
from slurm_colloc.planning.job_needs import (
    Question,
    build_limits,
    build_subject,
    choose_gpu_memory_limit_mb,
)
from slurm_colloc.planning.pack_pricing import compute_ends_s
from slurm_colloc.planning.plan_packs import ask, plan
from slurm_colloc_lab.calibration.workloads import BY_NAME

CONTEXT_MB = 512
"""GPU memory that a CUDA context takes on an H200, about."""
MAX_SLOWDOWN = 1.5
"""csub's usual bound."""
MPS_START_S = 2.0
"""What planning counts for starting MPS (planning.sharing_ways)."""

# By the SM activity that each has alone on an H200: up to 0.3, up to 0.5, and above 0.7.
LIGHT = ("mlp", "rl", "small", "lstm", "loader", "feed")
MIDDLE = ("resnet18", "medium", "bursty")
HEAVY = ("cnn32", "resnet50", "gpt10m", "gpt125m", "recsys", "gnn", "hog", "large")
# They wait for a CPU or a disk.
INPUT = ("loader", "disk", "speech")

WEIGHTS: Mapping[str, Mapping[tuple[str, ...], int]] = {
    "small": {LIGHT: 4, MIDDLE: 2, HEAVY: 1},
    "even": {LIGHT: 1, MIDDLE: 1, HEAVY: 1},
    "input": {INPUT: 4, (*MIDDLE, *HEAVY): 1},
}
"""How often each kind is drawn: the small ones more often, as users submit them, all alike, or
those that wait for what they are fed about half of the time."""
_SIGMA = 0.5
_LONGEST = 2.0
"""Times the usual length: no job is longer."""


@dataclass(frozen=True)
class MixJob:
    """One job of a mix.

    Attributes:
        number: Its place in the user's order, from 0 on.
        kind: What it trains: a workload of the calibration.
        length_s: How long it is to take alone on the whole GPU, in seconds.
    """

    number: int
    kind: str
    length_s: float


@dataclass(frozen=True)
class Alone:
    """What a kind of training showed alone on the whole GPU; None where it could not be read.

    Attributes:
        steps_per_s: Its rate.
        gpu_memory_mb: The most that torch held, without the CUDA context.
        load: What it takes of GPU and host.
    """

    steps_per_s: float
    gpu_memory_mb: float | None
    load: Load | None


@dataclass(frozen=True)
class PackForecast:
    """What is predicted of a pack.

    Attributes:
        ends_s: Seconds from its start to the end of each member.
        setup_s: Seconds for starting MPS.
    """

    ends_s: tuple[float, ...]
    setup_s: float

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning of the set-up to the last end."""
        return self.setup_s + max(self.ends_s)


def draw_mix(count: int, seed: int, usual_s: float, weights: str = "small") -> tuple[MixJob, ...]:
    """Draw jobs: kinds by weight, lengths lognormal.

    Args:
        count: How many.
        seed: For drawing: the same jobs for the same seed.
        usual_s: Median length in seconds; the longest takes twice as long.
        weights: A key of WEIGHTS.
    """
    chance = random.Random(seed)
    kinds = [kind for kinds in WEIGHTS[weights] for kind in kinds]
    frequencies = [weight for kinds, weight in WEIGHTS[weights].items() for _ in kinds]
    return tuple(
        MixJob(
            number,
            chance.choices(kinds, frequencies)[0],
            min(_LONGEST * usual_s, usual_s * chance.lognormvariate(0.0, _SIGMA)),
        )
        for number in range(count)
    )


def compute_steps(job: MixJob, alone: Alone) -> int:
    """How many steps a job does: as many as fill its length alone, at least 2."""
    return max(2, round(job.length_s * alone.steps_per_s))


def build_profile(
    job: MixJob,
    alone: Alone,
    *,
    gpu_model: str,
    context_mb: int,
    idle_power_w: float | None,
    stretch: float = 1.0,
) -> UsageProfile:
    """The usage profile that a first run of a job leaves.

    Args:
        job: The job.
        alone: What its kind showed alone.
        gpu_model: NVML's name of the GPU.
        context_mb: What a CUDA context takes: NVML's peak has it, torch's has not.
        idle_power_w: Power of the GPU when nothing runs, in watts.
        stretch: Times as long as it takes, that it is said to take.
    """
    load, memory_mb = alone.load, alone.gpu_memory_mb
    return UsageProfile(
        gpu_memory_peak_mb=None if memory_mb is None else round(memory_mb) + context_mb,
        sm_activity=load.sm if load else None,
        dram_activity=load.dram if load else None,
        tensor_activity=load.tensor if load else None,
        engine_activity=load.engine if load else None,
        pcie_share=load.pcie if load else None,
        cpu_cores=load.cpu_cores if load else None,
        power_w=load.power_w + (idle_power_w or 0.0) if load else None,
        idle_power_w=idle_power_w if load else None,
        steps_per_s=alone.steps_per_s,
        run_s=stretch * compute_steps(job, alone) / alone.steps_per_s,
        known_by=KnownBy.EXACT,
        gpu_model=gpu_model,
    )


@dataclass(frozen=True)
class Mix:
    """Jobs with all that planning is given.

    Attributes:
        jobs: The jobs.
        alone: By kind.
        calibration: How jobs slow each other down.
        capacity: What the GPU has.
        gpu_model: NVML's name of it.
        stretch: Planning is told that every job takes so many times as long: a mix of seconds can
            stand for one of hours, in which starting MPS does not count.
        bound: `--max-slowdown` of every job.
    """

    jobs: tuple[MixJob, ...]
    alone: Mapping[str, Alone]
    calibration: Calibration
    capacity: Capacity
    gpu_model: str
    stretch: float = 1.0
    bound: float = MAX_SLOWDOWN

    def get_alone_s(self, number: int) -> float:
        """Seconds that a job's work takes alone, by the rate that was measured."""
        job = self.jobs[number]
        alone = self.alone[job.kind]
        return compute_steps(job, alone) / alone.steps_per_s

    def build_jobs(self) -> list[Job]:
        """The jobs as `csub pack` makes them of scripts that ask for one GPU."""
        return [
            Job(
                number=job.number + 1,
                name=f"{job.kind}-{job.number}",
                script_name=f"{job.kind}.sh",
                arguments=(str(job.number),),
                directory="/",
                cpus=BY_NAME[job.kind].cpus,
                gpus=1,
                came_together=True,
                max_slowdown=self.bound,
            )
            for job in self.jobs
        ]

    def build_profiles(self) -> dict[int, UsageProfile]:
        """What is known of each job."""
        return {
            job.number: build_profile(
                job,
                self.alone[job.kind],
                gpu_model=self.gpu_model,
                context_mb=CONTEXT_MB,
                stretch=self.stretch,
                idle_power_w=self.calibration.idle_power_w,
            )
            for job in self.jobs
        }

    def ask(self) -> Question:
        """What csub's planning is asked."""
        policy = build_policy(self.bound)
        jobs, profiles = self.build_jobs(), self.build_profiles()
        return ask(jobs, profiles, self.capacity, policy, self.calibration)

    def plan(self, rule: Rule) -> tuple[PackPlan, ...]:
        """The packs that a rule makes."""
        asked = self.ask()
        policy, calibration = asked.policy, asked.calibration
        if rule is Rule.FIRST_FIT:
            policy, calibration = dataclasses.replace(policy, degree_is_asked=True), None
        if rule in (Rule.CSUB, Rule.FIRST_FIT):
            return plan(asked.jobs, asked.profiles, self.capacity, policy, calibration).packs
        subjects = [build_subject(asked, job.number) for job in self.jobs]
        limits = build_limits(asked, subjects)
        packs = place_by(rule, subjects, limits, self.capacity.gpu_memory_mb)
        return tuple(_build_pack(asked, rule, members) for members in packs)

    def forecast(self, pack: PackPlan) -> PackForecast:
        """What the contention model says of a pack, made by csub or not.

        When a member ends, those left are rated anew under the limits that they have.

        Raises:
            ValueError: A member's load is unknown.
        """
        numbers = [member.job_index for member in pack.members]
        run_s = [self.get_alone_s(number) for number in numbers]
        if len(numbers) == 1:
            return PackForecast(tuple(run_s), 0.0)
        question = self.ask()
        subjects = [build_subject(question, number) for number in numbers]
        limits = [member.thread_percentage for member in pack.members]

        def rate(running: Sequence[int]) -> tuple[float, ...]:
            setting = Setting(pack.mode, tuple(limits[i] for i in running))
            found = predict_setting([subjects[i] for i in running], setting, self.calibration)
            if found is None:
                raise ValueError(f"the load of one of {numbers} is unknown, or {pack.mode} is")
            return found

        floors = [rate((i,))[0] for i in range(len(numbers))]
        setup_s = MPS_START_S if pack.mode is SharingMode.MPS else 0.0
        return PackForecast(tuple(compute_ends_s(run_s, floors, rate)), setup_s)


def build_policy(bound: float) -> Policy:
    """csub's usual policy."""
    return Policy(slowdown_bound=bound, modes=(SharingMode.MPS, SharingMode.TIMESLICE))


def _build_pack(question: Question, rule: Rule, numbers: Sequence[int]) -> PackPlan:
    """The pack that a rule of others makes of these jobs: without thread limits."""
    members = tuple(
        MemberPlan(
            number,
            question.jobs[number].cpus,
            None,
            None,
            choose_gpu_memory_limit_mb(question.jobs[number], question.profiles[number]),
        )
        for number in numbers
    )
    mode = SharingMode.MPS if len(members) > 1 else SharingMode.EXCLUSIVE
    reasons = (f"the rule {rule} puts them together",)
    return PackPlan(members, len(members), mode, None, (), None, reasons)


@dataclass(frozen=True)
class Figures:
    """What a rule comes to.

    Attributes:
        packs: How many packs.
        widest: Members of the largest.
        makespan_s: Seconds until all are done, one pack after the other on one GPU.
        mean_slowdown: Mean over the jobs.
        worst_slowdown: The largest.
        beyond: How many jobs are slowed down by more than they accept.
    """

    packs: int
    widest: int
    makespan_s: float
    mean_slowdown: float
    worst_slowdown: float
    beyond: int


def forecast_rule(mix: Mix, packs: Sequence[PackPlan]) -> Figures:
    """What the contention model says of the packs of a rule."""
    forecasts = [mix.forecast(pack) for pack in packs]
    slowdowns = [
        end / mix.get_alone_s(member.job_index)
        for pack, forecast in zip(packs, forecasts, strict=True)
        for member, end in zip(pack.members, forecast.ends_s, strict=True)
    ]
    return Figures(
        packs=len(packs),
        widest=max(len(pack.members) for pack in packs),
        makespan_s=sum(forecast.duration_s for forecast in forecasts),
        mean_slowdown=statistics.fmean(slowdowns),
        worst_slowdown=max(slowdowns),
        beyond=sum(slowdown > mix.bound for slowdown in slowdowns),
    )
