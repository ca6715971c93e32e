"""What is to run under a rule, and the rows of what has run; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.gpu.mix import Figures, Mix, compute_steps, forecast_rule
from benchmarks.gpu.mix_live import LIVE, SUFFIX, LiveRule, forecast_live
from benchmarks.gpu.mix_running import Choose, Member, RanPack
from benchmarks.gpu.rules import Rule
from slurm_colloc.model.plan import SharingMode

BY_SM = "additive-sm"
"""The additive rule without engine activity, of which NVML's utilisation speaks: it packs more."""
_CSUB_BOUND = re.compile(rf"{Rule.CSUB}:[1-9][0-9]*(\.[0-9]+)?")
RULES = (*map(str, Rule), BY_SM, *(f"{rule}{SUFFIX}" for rule in LIVE), f"{BY_SM}{SUFFIX}")


def parse_rules(text: str) -> list[str]:
    """Read `csub,exclusive,carma-live,csub:2`; one that stands there twice is measured twice.

    `csub:2` is csub where every job accepts a slowdown of 2.

    Raises:
        ValueError: One is none.
    """
    names = text.split(",")
    for name in names:
        if name not in RULES and not _CSUB_BOUND.fullmatch(name):
            raise ValueError(f"the rules are {', '.join(RULES)}, {Rule.CSUB}:BOUND")
    return names


@dataclass(frozen=True)
class Prepared:
    """A pack that is to run.

    Attributes:
        jobs: Numbers of its jobs, in its order.
        members: What they do.
        mode: How they share.
        slowdowns: Predicted, the tail included.
        predicted_s: From its start to its last end, the start of MPS included.
        bound: The slowdown that its jobs accept, or would where the rule does not ask.
        reasons: Why it was made so.
        choose: Who begins next; None where all begin at once.
    """

    jobs: tuple[int, ...]
    members: tuple[Member, ...]
    mode: SharingMode
    slowdowns: tuple[float, ...]
    predicted_s: float
    bound: float
    reasons: tuple[str, ...] = ()
    choose: Choose | None = None


def prepare(mix: Mix, rule: str) -> tuple[Figures, list[Prepared]]:
    """What a rule makes of a mix, and what is predicted of it; pure."""
    if rule.endswith(SUFFIX):
        return prepare_live(mix, rule.removesuffix(SUFFIX))
    rule, colon, bound = rule.partition(":")
    if colon:
        mix = replace(mix, bound=float(bound))
    packs = hide_engine(mix).plan(Rule.ADDITIVE) if rule == BY_SM else mix.plan(Rule(rule))
    prepared = []
    for pack in packs:
        forecast = mix.forecast(pack)
        jobs = tuple(member.job_index for member in pack.members)
        slowdowns = tuple(
            end / mix.get_alone_s(job) for job, end in zip(jobs, forecast.ends_s, strict=True)
        )
        members = tuple(
            build_member(mix, each.job_index, each.thread_percentage, each.gpu_memory_limit_mb)
            for each in pack.members
        )
        prepared.append(
            Prepared(
                jobs, members, pack.mode, slowdowns, forecast.duration_s, mix.bound, pack.reasons
            )
        )
    return forecast_rule(mix, packs), prepared


def hide_engine(mix: Mix) -> Mix:
    """The same mix, whose engine activity is no more than its SM activity; pure."""
    alone = {
        kind: replace(found, load=replace(found.load, engine=found.load.sm) if found.load else None)
        for kind, found in mix.alone.items()
    }
    return replace(mix, alone=alone)


def prepare_live(mix: Mix, rule: str) -> tuple[Figures, list[Prepared]]:
    """The one pack of a rule that fills a GPU as jobs end."""
    by_sm = rule == BY_SM
    live = LiveRule(mix, Rule.ADDITIVE if by_sm else Rule(rule), by_sm=by_sm)
    told, slowdowns = forecast_live(mix, live)
    jobs = tuple(live.order)

    def choose(running: Sequence[int], waiting: Sequence[int]) -> int | None:
        found = live.choose([jobs[i] for i in running], [jobs[i] for i in waiting])
        return None if found is None else jobs.index(found)

    members = tuple(
        build_member(mix, job, live.percentage, live.subjects[job].gpu_memory_mb) for job in jobs
    )
    predicted = tuple(slowdowns[job] for job in jobs)
    pack = Prepared(
        jobs,
        members,
        SharingMode.MPS,
        predicted,
        told.makespan_s,
        mix.bound,
        ("filled as jobs end",),
        choose,
    )
    return told, [pack]


def build_member(
    mix: Mix, number: int, percentage: int | None, gpu_memory_limit_mb: int | None
) -> Member:
    """What a job does in a pack."""
    job = mix.jobs[number]
    steps = compute_steps(job, mix.alone[job.kind])
    return Member(job.kind, steps, percentage, gpu_memory_limit_mb)


def build_rows(mix: Mix, pack: Prepared, ran: RanPack, begun: float) -> list[dict[str, Any]]:
    """The rows of one pack that has run; times count from `begun`; pure."""
    rows = []
    for place, (number, done) in enumerate(zip(pack.jobs, ran.members, strict=True)):
        alone_s = mix.get_alone_s(number)
        slowdown = None
        if done.begin_s is not None and done.end_s is not None:
            slowdown = (done.end_s - done.begin_s) / alone_s
        rows.append(
            {
                "member": place,
                "size": len(pack.jobs),
                "job": number,
                "kind": pack.members[place].kind,
                "steps": pack.members[place].steps,
                "alone_s": alone_s,
                "begin_s": None if done.begin_s is None else done.begin_s - begun,
                "end_s": None if done.end_s is None else done.end_s - begun,
                "slowdown": slowdown,
                "bound": pack.bound,
                "mode": str(pack.mode),
                "percentage": pack.members[place].percentage,
                "predicted_slowdown": pack.slowdowns[place],
                "predicted_pack_s": pack.predicted_s,
                "mps_s": ran.mps_s,
                "setup_s": ran.setup_s,
                "work_j": ran.work_j,
                "setup_j": ran.setup_j,
                "problem": done.problem,
            }
        )
    return rows
