"""What csub's planner makes of copies of one training, as it would after a first run; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gpu.grid_design import ALONE_SHARING, Sharing
from benchmarks.gpu.mix import Alone, Mix, MixJob, build_policy
from slurm_colloc.errors import NodeError
from slurm_colloc.model.plan import Capacity, PackPlan, SharingMode
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.broken_limits import predict_setting
from slurm_colloc.planning.hard_limits import Setting
from slurm_colloc.planning.job_needs import build_subject
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc_lab.calibration.measured_packs import build_load, read_number

LENGTH_S = 600.0
"""How long planning takes each job to be, alone."""
_TOLD = ("engine_active", "sm_active", "dram_active")


@dataclass(frozen=True)
class Choice:
    """What csub does with copies of a training under a bound.

    Attributes:
        bound: `--max-slowdown`.
        sharing: Mode, limit and degree of the widest plan that is one pack.
        slowdown: Predicted of each member.
        multiple: Predicted throughput, as a multiple of one alone.
        reasons: Why, in the planner's words.
        packs: What it does with the most jobs that were asked for, in the JSON's form.
    """

    bound: float
    sharing: Sharing
    slowdown: float
    multiple: float
    reasons: tuple[str, ...]
    packs: tuple[Mapping[str, object], ...]


@dataclass(frozen=True)
class Known:
    """All that the planner is told.

    Attributes:
        kind: The workload.
        alone: What it showed alone.
        calibration: How jobs slow each other down.
        capacity: What the GPU has.
        gpu_model: NVML's name of it.
        modes: Sharing modes that may be chosen.
    """

    kind: str
    alone: Alone
    calibration: Calibration
    capacity: Capacity
    gpu_model: str
    modes: tuple[SharingMode, ...] = (SharingMode.MPS, SharingMode.TIMESLICE)

    def make_mix(self, count: int, bound: float) -> Mix:
        """So many equal jobs."""
        jobs = tuple(MixJob(number, self.kind, LENGTH_S) for number in range(count))
        alone = {self.kind: self.alone}
        return Mix(jobs, alone, self.calibration, self.capacity, self.gpu_model, bound=bound)

    def plan(self, count: int, bound: float) -> tuple[PackPlan, ...]:
        """The packs that csub makes of so many equal jobs."""
        mix = self.make_mix(count, bound)
        policy = dataclasses.replace(build_policy(bound), modes=self.modes)
        jobs, profiles = mix.build_jobs(), mix.build_profiles()
        return plan(jobs, profiles, self.capacity, policy, self.calibration).packs

    def choose(self, most: int, bound: float) -> Choice:
        """The widest plan of at most so many jobs that is one pack; one alone where there is none.

        Args:
            most: How many jobs there are.
            bound: `--max-slowdown` of each.
        """
        whole = self.plan(most, bound)
        packs = tuple(_describe(pack) for pack in whole)
        for count in range(most, 1, -1):
            planned = whole if count == most else self.plan(count, bound)
            if len(planned) > 1:
                continue
            pack = planned[0]
            slowdowns = pack.predicted_slowdown or ()
            if not slowdowns or pack.degree != count:
                raise NodeError(f"csub does not know what {count} of {self.kind} come to together")
            percentage = min(member.thread_percentage or 100 for member in pack.members)
            return Choice(
                bound,
                # A limit of all threads is none.
                Sharing(str(pack.mode), percentage if percentage < 100 else None, count),
                max(slowdowns),
                sum(1.0 / slowdown for slowdown in slowdowns),
                pack.reasons,
                packs,
            )
        return Choice(bound, ALONE_SHARING, 1.0, 1.0, whole[0].reasons, packs)

    def predict(self, sharing: Sharing) -> float | None:
        """Predicted throughput as a multiple of one alone; None where nothing can be said."""
        if sharing == ALONE_SHARING:
            return 1.0
        mix = self.make_mix(1, 1.0)
        subjects = [build_subject(mix.ask(), 0)] * sharing.degree
        setting = Setting(SharingMode(sharing.mode), (sharing.limit,) * sharing.degree)
        slowdowns = predict_setting(subjects, setting, self.calibration)
        return None if slowdowns is None else sum(1.0 / slowdown for slowdown in slowdowns)


def _describe(pack: PackPlan) -> Mapping[str, object]:
    return {
        "members": len(pack.members),
        "mode": str(pack.mode),
        "degree": pack.degree,
        "percentages": [member.thread_percentage for member in pack.members],
        "predicted_slowdown": pack.predicted_slowdown,
        "reasons": pack.reasons,
    }


def build_alone(rows: Sequence[Mapping[str, str]], idle_w: float | None) -> Alone:
    """What a training shows alone, by the fastest of its cells that tells it; pure.

    Args:
        rows: Rows of it alone without a limit, at least one.
        idle_w: Power of the GPU when nothing runs, in watts.
    """
    best = max(rows, key=lambda row: read_number(row, "rate_per_s") or 0.0)
    told = [row for row in rows if all(read_number(row, name) is not None for name in _TOLD)]
    fullest = max(told, key=lambda row: read_number(row, "rate_per_s") or 0.0, default=None)
    return Alone(
        steps_per_s=read_number(fullest or best, "rate_per_s") or 0.0,
        gpu_memory_mb=read_number(best, "gpu_memory_mb"),
        load=None if fullest is None else build_load(fullest, idle_w),
    )
