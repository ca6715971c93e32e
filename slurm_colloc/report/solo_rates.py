"""A member alone: its solo rate, and the starts of a pack that tell what it uses alone.

Also: a member alone for moments only, while its runner had paused the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import fmean

from slurm_colloc.metrics.phases import find_longest_phase
from slurm_colloc.metrics.presence import MARGIN_S, find_alone, find_briefly_alone, find_shared
from slurm_colloc.metrics.rates import (
    Interval,
    Rate,
    Window,
    compute_rate,
    measure_windows,
    select_within,
)
from slurm_colloc.metrics.sharing_cost import find_covered, find_idle_power_w
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.measured_curve import RateAlone, RateSource
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import MeasuredBy, ProfileRecord, rates_agree
from slurm_colloc.report.pack_run import MemberRun, PackRun
from slurm_colloc.report.pack_samples import StartSamples

# ---- A member alone for moments only, while its runner had paused the others ---------------------
#
# Its rate is what the runner has measured. What it took of the GPU is read from the monitor's
# samples that lie wholly in such windows; its host use and its peaks are those of its whole run.

ACTIVITY_LEAST_S = 2.0
"""A shorter time alone, in all windows together, says nothing of what a member takes of the GPU."""

_CLOCK_S = 0.1
"""By so much two seconds may be shorter, as they are written down."""

_OWN = (RateSource.PAUSING, RateSource.FIRST)


@dataclass(frozen=True)
class BrieflyAlone:
    """A start of a member whose rate alone was measured by pausing the others.

    Attributes:
        rate: What its runner has measured.
        samples: What was read of the start.
        windows: When it was alone, its first steps left out; none where that was too short to tell
            what it takes of the GPU.
    """

    rate: RateAlone
    samples: StartSamples
    windows: tuple[Window, ...]


def name_start(run: PackRun, member: MemberRun, start: StartSamples) -> str:
    """A name for a start that no other start has, so that it is not counted twice."""
    return f"{run.view.record.pack_id}/{member.number}.{start.attempt}.{start.start}"


def find_briefly_alone_start(run: PackRun, member: MemberRun) -> BrieflyAlone | None:
    """The start of a member whose rate alone its runner has measured, with all of the GPU.

    Returns:
        It; None where there is none: what was measured of another of its family is not its own.
    """
    rate = find_measured_rate(run, member)
    if rate is None or not member.starts:
        return None
    # An earlier start may have been measured, and the last one not.
    started = [start for start in member.starts if start.begin <= rate.at]
    start = (started or member.starts)[-1]
    return BrieflyAlone(rate, start, _find_windows(run, member))


def find_measured_rate(run: PackRun, member: MemberRun) -> RateAlone | None:
    """The newest rate alone that its runner has measured of a member with all of the GPU."""
    record = member.view.record
    if record is not None and record.gpu is not None and is_part(record.gpu.thread_percentage):
        return None
    found = [
        rate
        for rate in (run.degree.rates_alone if run.degree is not None else ())
        if rate.member == member.number
        and rate.source in _OWN
        and rate.steps_per_s > 0
        and not is_part(rate.thread_percentage)
    ]
    return max(found, key=lambda rate: rate.at, default=None)


def is_part(thread_percentage: int | None) -> bool:
    """Whether a member had only a part of the GPU's threads."""
    return thread_percentage is not None and thread_percentage < 100


def compute_brief_mean(
    run: PackRun, member: MemberRun, metric: str, windows: Sequence[Window]
) -> float | None:
    """The mean of a metric of a member's GPUs over short windows; None where not measured."""
    values = run.look_at(member).get(metric).select_whole(windows)
    return fmean(values) if values else None


def compute_brief_power_w(
    run: PackRun, member: MemberRun, windows: Sequence[Window]
) -> float | None:
    """The power of each of a member's GPUs over short windows, in watts."""
    power_w = compute_brief_mean(run, member, "power_w", windows)
    return None if power_w is None else power_w / run.count_gpus_of(member)


def _find_windows(run: PackRun, member: MemberRun) -> tuple[Window, ...]:
    unsure = [
        (moment - MARGIN_S, moment + MARGIN_S)
        for other in run.members
        if other is not member
        for stay in other.stays
        for moment in (stay.begin, stay.end)
    ]
    # While it starts it does not use the GPU as it does later.
    for start in member.starts:
        first_at = start.first_step_at
        unsure.append((start.begin, start.end if first_at is None else first_at + MARGIN_S))
    windows = tuple(find_briefly_alone(run.phases, member.number, unsure))
    return windows if measure_windows(windows) >= ACTIVITY_LEAST_S - _CLOCK_S else ()


# ---- A member alone: its solo rate, and the starts of a pack that tell what it uses alone --------

ALONE_LEAST_S = 10.0
"""A shorter time alone gives no solo rate."""
_WARM_UP_S = 10.0

PROFILE = "profile"
THIS_RUN = "this run"
ALONE = "alone"
FAMILY = "family"
PAUSING = MeasuredBy.PAUSING.value
MEASURED = "measured"


@dataclass(frozen=True)
class SoloRate:
    """A member's rate alone.

    Attributes:
        steps_per_s: The rate.
        source: `profile`, `this run` for a part of this run, `alone` where it never shared,
            `pausing` while its runner had paused all others, `family` for its relatives.
        n: How many runs it is the mean of.
        sm_active: The SM activity of its GPUs then, 0 to 1; None where unknown.
        power_w: The power of each of them then, in watts; None where unknown.
        measured_by: How it was measured, by whichever run.
    """

    steps_per_s: float
    source: str
    n: int
    sm_active: float | None
    power_w: float | None
    measured_by: MeasuredBy = MeasuredBy.ALONE


def find_solo_rate(
    run: PackRun, member: MemberRun, intervals: Sequence[Interval], relatives: Relatives
) -> SoloRate | None:
    """A member's solo rate; None where it is unknown.

    From its usage profile, corrected for a slow GPU; else from at least 10 s of this run in which
    it was alone, with all of the GPU; else from the moments in which its runner had paused all
    others; else from its family. A member that never shared was as fast as it is alone, whatever
    its profile says.

    Args:
        run: The pack.
        member: The member.
        intervals: Its settled intervals.
        relatives: What is known of its family.
    """
    shared = find_shared(run.phases, member.number)
    profile = member.profile
    rate = profile.steps_per_s if profile is not None else None
    if shared and profile is not None and rate is not None:
        return SoloRate(
            rate.mean * run.pace,
            PROFILE,
            rate.n,
            profile.sm_active,
            profile.energy_w,
            profile.measured_by,
        )
    windows = find_alone(run.phases, member.number)
    intervals = select_within(intervals, windows)
    # A member that never shared needs no more than what a rate needs.
    found = compute_rate(intervals, ALONE_LEAST_S) if shared else compute_rate(intervals)
    if was_limited(member) or (shared and found.steps_per_s is None):
        return _find_by_pausing(run, member) or relatives.find(member)
    if found.steps_per_s is None:
        return None
    used = _hull(intervals, windows)
    return SoloRate(
        found.steps_per_s,
        THIS_RUN if shared else ALONE,
        1,
        # The rate has no pauses, so what it is modelled with has none.
        run.compute_mean(member, "sm_active", find_covered(intervals)),
        run.compute_power_w(member, used),
    )


def _find_by_pausing(run: PackRun, member: MemberRun) -> SoloRate | None:
    found = find_briefly_alone_start(run, member)
    if found is None:
        return None
    activity = compute_brief_mean(run, member, "sm_active", found.windows)
    power_w = compute_brief_power_w(run, member, found.windows)
    return SoloRate(found.rate.steps_per_s, PAUSING, 1, activity, power_w, MeasuredBy.PAUSING)


def was_limited(member: MemberRun) -> bool:
    """Whether one of its starts had only a part of the GPU, even while it was alone.

    That is a part of the threads, or a MIG instance.

    Only of the last start it is written down; so one that was started again may have been.
    """
    record = member.view.record
    if record is None or record.gpu is None:
        return False
    if len(member.starts) > 1 and record.gpu.mode != SharingMode.EXCLUSIVE.value:
        return True
    return record.gpu.mode == SharingMode.MIG.value or is_part(record.gpu.thread_percentage)


class Relatives:
    """What the members of a pack can learn from their relatives.

    Args:
        run: The pack.
    """

    def __init__(self, run: PackRun) -> None:
        self._run = run
        self._found: dict[str, SoloRate | None] = {}

    def find(self, member: MemberRun) -> SoloRate | None:
        """The rate alone of a member's relatives; None where it is not known, or not one."""
        kind = member.kind
        if kind is None:
            return None
        if kind not in self._found:
            self._found[kind] = self._compute(kind, member.relatives)
        return self._found[kind]

    def _compute(self, kind: str, profiles: Sequence[ProfileRecord]) -> SoloRate | None:
        run = self._run
        known = [
            SoloRate(rate.mean * run.pace, FAMILY, 1, record.sm_active, record.energy_w)
            for record in profiles
            if (rate := record.steps_per_s) is not None
        ]
        counted = {source for record in profiles for source in record.seen}
        by_pausing: list[SoloRate] = []
        for member in run.members:
            if member.kind != kind:
                continue
            for alone in find_alone_starts(run, member):
                steps_per_s = alone.rate.steps_per_s
                if (
                    steps_per_s is not None
                    and name_start(run, member, alone.samples) not in counted
                ):
                    activity = run.compute_mean(member, "sm_active", alone.stepping)
                    power_w = run.compute_power_w(member, alone.used)
                    known.append(SoloRate(steps_per_s, FAMILY, 1, activity, power_w))
            found = _find_by_pausing(run, member)
            by_pausing += [] if found is None else [found]
        # What was measured for 10 s and more counts where there is any.
        chosen = known or by_pausing
        rates = [one.steps_per_s for one in chosen]
        if not rates or not rates_agree(rates):
            return None
        activities = [one.sm_active for one in chosen if one.sm_active is not None]
        powers = [one.power_w for one in chosen if one.power_w is not None]
        return SoloRate(
            fmean(rates),
            FAMILY,
            len(chosen),
            fmean(activities) if activities else None,
            fmean(powers) if powers else None,
            MeasuredBy.ALONE if known else MeasuredBy.PAUSING,
        )


def find_idle_power(run: PackRun) -> tuple[float | None, str]:
    """The idle power of each of the pack's GPUs in watts, and in words where it is from.

    From samples before the first member started, else before the first step; else from a usage
    profile.
    """
    power = run.gpu.get("power_w")
    firsts = [s.first_step_at for m in run.members for s in m.starts if s.first_step_at is not None]
    begins = [stay.begin for member in run.members for stay in member.stays]
    moments = [(begins, "before the first member started"), (firsts, "before the first step")]
    for times, words in moments:
        value = find_idle_power_w(power, min(times)) if times else None
        if value is not None:
            return value / max(1, len(run.gpu_uuids)), f"{MEASURED} {words}"
    for member in run.members:
        if member.profile is not None and member.profile.idle_power_w is not None:
            return member.profile.idle_power_w, f"from the usage profile of {member.view.member}"
    return None, ""


@dataclass(frozen=True)
class AloneStart:
    """A start of a member that was alone, with all of the GPU, for 10 s after its warm-up.

    Attributes:
        samples: What was read of the start.
        windows: When it was alone.
        used: The same after its warm-up.
        stepping: The same without pauses.
        intervals: Its settled intervals then; none where it reports no steps.
    """

    samples: StartSamples
    windows: list[Window]
    used: list[Window]
    stepping: list[Window]
    intervals: Sequence[Interval]

    @cached_property
    def rate(self) -> Rate:
        """Its rate alone."""
        return compute_rate(self.intervals, ALONE_LEAST_S)


def find_alone_starts(run: PackRun, member: MemberRun) -> list[AloneStart]:
    """The starts of a member that tell what it uses alone.

    With a thread limit it was alone without all of the GPU, which is no use alone.
    """
    windows = find_alone(run.phases, member.number)
    if run.gpu_model is None or member.signature is None or not windows or was_limited(member):
        return []
    found = []
    for start, settled in zip(member.starts, member.settle(), strict=True):
        own = _clip(windows, (start.begin, start.end))
        # What changes for good has no mean.
        intervals = find_longest_phase(select_within(settled.intervals, own))
        if settled.steps > 0:
            used, stepping = _hull(intervals, own), find_covered(intervals)
        else:
            # Nothing tells when it had settled; a GPU job without progress still has a peak.
            used = stepping = _clip(own, (start.begin + _WARM_UP_S, start.end))
        if measure_windows(used) >= ALONE_LEAST_S:
            found.append(AloneStart(start, own, used, stepping, intervals))
    return found


def _clip(windows: list[Window], to: Window) -> list[Window]:
    clipped = [(max(begin, to[0]), min(end, to[1])) for begin, end in windows]
    return [(begin, end) for begin, end in clipped if end > begin]


def _hull(intervals: Sequence[Interval], windows: list[Window]) -> list[Window]:
    """The parts of windows from their first settled interval to their last."""
    found = []
    for window in windows:
        inside = select_within(intervals, [window])
        if inside:
            found.append((inside[0].begin, inside[-1].end))
    return found
