"""A member alone for moments only, while its runner had paused the others.

Its rate is what the runner has measured. What it took of the GPU is read from the monitor's samples
that lie wholly in such windows; its host use and its peaks are those of its whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from slurm_colloc.metrics.presence import MARGIN_S, find_briefly_alone
from slurm_colloc.metrics.series import Window, measure_windows
from slurm_colloc.model.degree.measured_curve import RateAlone, RateSource
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun
from slurm_colloc.report.summary.pack_samples import StartSamples

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
        source: Names the start, so that the same one is not counted twice.
        windows: When it was alone, its first steps left out; none where that was too short to tell
            what it takes of the GPU.
    """

    rate: RateAlone
    samples: StartSamples
    source: str
    windows: tuple[Window, ...]


def name_start(run: PackRun, member: MemberRun, start: StartSamples) -> str:
    """A name for a start that no other start has."""
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
    return BrieflyAlone(rate, start, name_start(run, member, start), _find_windows(run, member))


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
    track = run.look_at(member).get(metric)
    values = [] if track is None else track.select_whole(windows)
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
    unsure += [(start.begin, _find_begin(start)) for start in member.starts]
    windows = tuple(find_briefly_alone(run.phases, member.number, unsure))
    return windows if measure_windows(windows) >= ACTIVITY_LEAST_S - _CLOCK_S else ()


def _find_begin(start: StartSamples) -> float:
    return start.end if start.first_step_at is None else start.first_step_at + MARGIN_S
