"""What the samples of a member tell: its rate, slowdown and share, before they are written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from slurm_colloc.metrics.attribution import (
    AttributedPart,
    attribute_gpu_use,
    model_sm_activity,
)
from slurm_colloc.metrics.interference import Felt, Interference, find_changes, find_interference
from slurm_colloc.metrics.presence import Phase, find_alone, find_shared
from slurm_colloc.metrics.rates import (
    NO_PROGRESS,
    WINDOW_LEAST_S,
    Interval,
    Rate,
    Settled,
    compute_rate,
    select_within,
    sum_known,
)
from slurm_colloc.metrics.series import Track, Window, measure_windows
from slurm_colloc.metrics.slowdown import SHORT_S, compute_slowdown, compute_solo_time_s
from slurm_colloc.metrics.stalls import Stall, split_stalls
from slurm_colloc.report.summary.instance_figures import attribute_instance_sm, find_instance
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun
from slurm_colloc.report.summary.solo_rates import (
    ALONE_LEAST_S,
    Relatives,
    SoloRate,
    find_solo_rate,
    was_limited,
)

INTERFERENCE_MOST = 20
"""More changes than these, the strongest, are not listed for a member."""


@dataclass(frozen=True)
class Figures:
    """What is computed of a member.

    Attributes:
        member: The member.
        rate: Over all its settled windows.
        shared_rate: Over those in which another member was there; None where none ever was.
        solo: Its solo rate; None where unknown.
        slowdown: Solo rate over rate in company; 1 where it never shared; None where unknown, as
            always without a rate.
        stepping_s: Time it made steps, without pauses.
        steps: Its steps; None where it never reported any.
        sm: Its part of the SM activity of its GPUs while it was there; None where unknown.
        unknown: Why its slowdown is unknown; empty where it is known.
        stall: What its time went into.
        interference: Changes of its rate.
        warm_up_s: What was left out as warm-up.
        paused_s: What was left out as pauses.
        steps_at: Its steps up to each coming and going in the pack; empty where unknown.
        spans: From the first settled step to the last, a start each; none where it reports none.
    """

    member: MemberRun
    rate: Rate
    shared_rate: Rate | None
    solo: SoloRate | None
    slowdown: float | None
    stepping_s: float
    steps: float | None
    sm: AttributedPart | None
    unknown: str
    stall: Stall
    interference: tuple[Interference, ...]
    warm_up_s: float
    paused_s: float
    steps_at: Mapping[float, float]
    spans: tuple[Window, ...] = ()

    def model_sm(self, windows: Sequence[Window]) -> float | None:
        """Its SM activity on its GPUs by the steps that it made; None where unknown.

        Args:
            windows: From one coming or going to another.
        """
        if self.solo is None or not self.steps_at:
            return None
        steps = sum(self.steps_at[end] - self.steps_at[begin] for begin, end in windows)
        length_s = measure_windows(windows)
        return model_sm_activity(self.solo.sm_active, self.solo.steps_per_s, steps, length_s)

    @property
    def predicted_slowdown(self) -> float | None:
        """What its plan expected of its slowdown; None where nothing was."""
        return self.member.view.spec.plan.predicted_slowdown

    @property
    def solo_time_s(self) -> float | None:
        """How long its work takes alone; None where unknown."""
        if self.shared_rate is None:
            return self.member.present_s
        return compute_solo_time_s(
            self.member.present_s,
            self.stepping_s,
            self.steps,
            None if self.solo is None else self.solo.steps_per_s,
        )


def compute_figures(run: PackRun) -> list[Figures]:
    """Compute what the samples tell about each member of a pack."""
    relatives = Relatives(run)
    return [_compute_figures(run, member, relatives) for member in run.members]


def _compute_figures(run: PackRun, member: MemberRun, relatives: Relatives) -> Figures:
    settled = member.settle()
    intervals = [interval for start in settled for interval in start.intervals]
    windows = find_shared(run.phases, member.number)
    rate = _explain(compute_rate(intervals), member, settled)
    shared = None
    if windows:
        chosen = select_within(intervals, member.own_time.bridge(windows))
        shared = _explain(compute_rate(chosen), member, settled)
    solo = find_solo_rate(run, member, intervals, relatives)
    slowdown, unknown = _compute_slowdown(run, rate, shared, solo, is_limited=was_limited(member))
    if not member.stays:
        slowdown, unknown = None, "it was not started"
    return Figures(
        member,
        rate,
        shared,
        solo,
        slowdown,
        sum(start.stepping_s for start in settled),
        count_up(member, "steps"),
        _find_sm(run, member, solo, was_alone=not windows),
        unknown,
        _split_stalls(run, member, intervals, slowdown, was_alone=not windows),
        tuple(_find_interference(run, member, intervals)),
        sum(start.warm_up_s for start in settled),
        sum(start.paused_s for start in settled),
        _count_steps(member, run.phases),
        tuple((s.intervals[0].begin, s.intervals[-1].end) for s in settled if s.intervals),
    )


def _explain(rate: Rate, member: MemberRun, settled: Sequence[Settled]) -> Rate:
    """A rate that is unknown says why; what was found at the last start says most."""
    if rate.steps_per_s is not None:
        return rate
    reasons = [start.reason for start in settled if start.reason]
    reason = reasons[-1] if reasons else rate.reason if settled else NO_PROGRESS
    if not member.starts:
        reason = "it has no samples"
    elif member.present_s < SHORT_S:
        reason = f"too short: it was there for {member.present_s:.1f} s"
    return Rate(None, None, rate.window_s, None, reason)


def _compute_slowdown(
    run: PackRun, rate: Rate, shared: Rate | None, solo: SoloRate | None, *, is_limited: bool
) -> tuple[float | None, str]:
    if rate.steps_per_s is None:
        # Also alone: of one that failed at once nothing tells how fast it was.
        return None, rate.reason
    if shared is None:
        return (None, "it had a part of the GPU's threads only") if is_limited else (1.0, "")
    if solo is None:
        model = run.gpu_model
        where = f"on {model}" if model else "(the GPU's model is not known)"
        return None, (
            f"no solo rate: no usage profile {where} of its own or of one family, never alone for "
            "10 s of steps with all of the GPU, and not measured while all others were paused"
        )
    if shared.steps_per_s is None:
        return None, "it shared for too short a time"
    return compute_slowdown(solo.steps_per_s, shared.steps_per_s), ""


def _split_stalls(
    run: PackRun,
    member: MemberRun,
    intervals: Sequence[Interval],
    slowdown: float | None,
    *,
    was_alone: bool,
) -> Stall:
    alone = select_within(intervals, find_alone(run.phases, member.number))
    # Of members that were never alone the GPU's utilization says nothing.
    utilization = run.look_at(member).get("utilization") if alone else None
    # A member that never shared needs no more than what a rate needs.
    least_s = WINDOW_LEAST_S if was_alone else ALONE_LEAST_S
    stall = split_stalls(intervals, slowdown, alone, utilization, least_s)
    if stall.host is not None and any((s.peak("trainers") or 0) > 1 for s in member.starts):
        # Their waits are added up, and which of them waited at the same time is not known.
        told = (*stall.unknown, "host unknown: several of its processes train")
        return replace(stall, host=None, overlap=None, unknown=told)
    return stall


def _find_sm(
    run: PackRun, member: MemberRun, solo: SoloRate | None, *, was_alone: bool
) -> AttributedPart | None:
    use = find_instance(member)
    if use is not None and not use.inside:
        return attribute_instance_sm(run, member)
    stays = [(stay.begin, stay.end) for stay in member.present]
    track = run.look_at(member).get("sm_active")
    alone = None if track is None else track.compute_mean(stays)
    modelled = None
    if solo is not None:
        steps = count_up(member, "steps")
        modelled = model_sm_activity(solo.sm_active, solo.steps_per_s, steps, member.present_s)
    return attribute_gpu_use(alone, modelled, was_alone=was_alone)


def _count_steps(member: MemberRun, phases: Sequence[Phase]) -> dict[float, float]:
    """Its steps up to each coming and going, on the line between readings; empty without steps."""
    if count_up(member, "steps") is None:
        return {}
    moments = {moment for phase in phases for moment in (phase.begin, phase.end)}
    found = dict.fromkeys(moments, 0.0)
    clock = member.own_time
    for start in member.starts:
        # Before the first step none is reported; what was not read, or fell, stays as it was.
        counts = accumulate((value or 0.0 for value in start.read("steps")), max)
        # By its own clock: between two readings it made no step while it was stopped.
        track = Track([clock.read(at) for at in start.read("at")], list(counts))
        for moment in moments:
            if moment > start.begin:
                found[moment] += track.read_counter(clock.read(min(moment, start.end))) or 0.0
    return found


def count_up(member: MemberRun, name: str) -> float | None:
    """What was counted over all starts; a start that ended before it counted anything adds none.

    None where nothing was ever counted.
    """
    peaks = [start.peak(name) for start in member.starts]
    return sum_known(peak for peak in peaks if peak is not None)


def _find_interference(
    run: PackRun, member: MemberRun, intervals: Sequence[Interval]
) -> list[Interference]:
    others = [entry for other in run.members for entry in _find_felt(other)]
    found = []
    for stay in member.visits:
        window = (stay.begin, stay.end)
        changes = find_changes(others, member.number, window)
        found += find_interference(intervals, changes, window)
    strongest = sorted(found, key=lambda entry: -abs(entry.ratio - 1))[:INTERFERENCE_MOST]
    return sorted(strongest, key=lambda entry: entry.at)


def _find_felt(member: MemberRun) -> list[Felt]:
    """When a neighbour can be felt."""
    firsts = [start.first_step_at for start in member.starts if start.first_step_at is not None]
    found = []
    for stay in member.visits:
        inside = [at for at in firsts if stay.begin <= at <= stay.end]
        first_step_at = min(inside, default=stay.begin)
        found.append(Felt(member.number, stay.begin, first_step_at, stay.end))
    return found
