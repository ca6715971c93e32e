"""Rules of others as they are run where they come from: a GPU is filled as jobs end; pure.

CARMA and Horus place one job after the other onto GPUs that are in use, and so pay no tail for each
pack. csub asks Slurm for closed packs. So the rules of others are measured in this way, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gpu.mix import MPS_START_S, Figures, Mix
from benchmarks.gpu.rules import (
    ADDITIVE_DRAM_MOST,
    ADDITIVE_SM_MOST,
    CARMA_ROOM_MB,
    CARMA_SM_MOST,
    Rule,
)
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.broken_limits import predict_setting
from slurm_colloc.planning.hard_limits import Setting, Subject, find_broken
from slurm_colloc.planning.job_needs import build_limits, build_subject

SUFFIX = "-live"
LIVE = (Rule.CARMA, Rule.ADDITIVE, Rule.FIRST_FIT)
"""Rules that can fill a GPU as jobs end."""
FIRST_FIT_DEGREE = 4
FIRST_FIT_PERCENTAGE = 50
"""csub's degree for unknown jobs, and the thread limit that it gives them."""


class LiveRule:
    """Who comes next onto the one GPU.

    Args:
        mix: The jobs.
        rule: One of LIVE.
        by_sm: The additive rule adds up SM and DRAM activity alone, not engine activity.
    """

    def __init__(self, mix: Mix, rule: Rule, *, by_sm: bool = False) -> None:
        if rule not in LIVE:
            raise ValueError(f"{rule} fills no GPU that is in use")
        self._mix = mix
        self._rule = rule
        self._by_sm = by_sm
        question = mix.ask()
        self.subjects = [build_subject(question, job.number) for job in mix.jobs]
        self._limits = build_limits(question, self.subjects)
        self.percentage = FIRST_FIT_PERCENTAGE if rule is Rule.FIRST_FIT else None
        # What stands first is placed first: none overtakes it, as in the sources.
        self.order = list(range(len(mix.jobs)))
        if rule is Rule.ADDITIVE:
            self.order.sort(key=lambda i: (-self.subjects[i].run_s, i))

    def choose(self, running: Sequence[int], waiting: Sequence[int]) -> int | None:
        """The job that starts now; None for none.

        Args:
            running: Numbers of the jobs that run.
            waiting: Those of the others, in the rule's order.
        """
        if not waiting:
            return None
        new = self.subjects[waiting[0]]
        residents = [self.subjects[i] for i in running]
        if residents and not self._takes(residents, new):
            return None
        return waiting[0]

    def _takes(self, residents: Sequence[Subject], new: Subject) -> bool:
        if find_broken([*residents, new], self._limits):
            return False
        if self._rule is Rule.FIRST_FIT:
            return len(residents) < FIRST_FIT_DEGREE
        loads = [subject.load for subject in (*residents, new) if subject.load is not None]
        if len(loads) <= len(residents):
            return False
        if self._rule is Rule.CARMA:
            total_mb = self._mix.capacity.gpu_memory_mb
            sizes = [subject.gpu_memory_mb or 0 for subject in (*residents, new)]
            busy = sum(load.sm for load in loads[:-1])
            return busy <= CARMA_SM_MOST and (
                total_mb is None or total_mb - sum(sizes) >= CARMA_ROOM_MB
            )
        return (
            (self._by_sm or sum(load.engine for load in loads) <= ADDITIVE_SM_MOST)
            and sum(load.sm for load in loads) <= ADDITIVE_SM_MOST
            and sum(load.dram for load in loads) <= ADDITIVE_DRAM_MOST
        )


def forecast_live(mix: Mix, rule: LiveRule) -> tuple[Figures, dict[int, float]]:
    """What the contention model says of a GPU that is filled as jobs end.

    Returns:
        The figures, and the slowdown of each job by its number.

    Raises:
        ValueError: A job's load is unknown.
    """
    waiting = list(rule.order)
    running: list[int] = []
    left = {i: mix.get_alone_s(i) for i in waiting}
    starts: dict[int, float] = {}
    slowdowns: dict[int, float] = {}
    clock, widest = 0.0, 0
    while waiting or running:
        while (new := rule.choose(running, waiting)) is not None:
            waiting.remove(new)
            running.append(new)
            starts[new] = clock
        widest = max(widest, len(running))
        setting = Setting(SharingMode.MPS, (rule.percentage,) * len(running))
        chosen = [rule.subjects[i] for i in running]
        rates = predict_setting(chosen, setting, mix.calibration)
        if rates is None:
            raise ValueError("a job's load is unknown")
        step = min(left[i] * rate for i, rate in zip(running, rates, strict=True))
        clock += step
        for i, rate in zip(tuple(running), rates, strict=True):
            left[i] -= step / rate
            if left[i] <= 1e-9:
                running.remove(i)
                slowdowns[i] = (clock - starts[i]) / mix.get_alone_s(i)
    return Figures(
        packs=1,
        widest=widest,
        makespan_s=clock + MPS_START_S,
        mean_slowdown=sum(slowdowns.values()) / len(slowdowns),
        worst_slowdown=max(slowdowns.values()),
        beyond=sum(value > mix.bound for value in slowdowns.values()),
    ), slowdowns
