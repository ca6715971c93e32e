"""What the samples of a member tell: its rate, slowdown and share, before they are written down.

Also: what a member used of its MIG instance: measured on that alone, so exact, unless others share
it; the most GPU memory that a start of a member has taken, and who says so; how slow members were
while all those ran with which they were planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import median

from slurm_colloc.metrics.presence import (
    AttributedPart,
    Attribution,
    Felt,
    Interference,
    Phase,
    attribute_gpu_use,
    find_alone,
    find_changes,
    find_interference,
    find_shared,
    find_together,
    list_windows,
    model_sm_activity,
)
from slurm_colloc.metrics.rates import (
    NO_PROGRESS,
    NOTHING_READ,
    WINDOW_LEAST_S,
    Interval,
    Rate,
    Settled,
    Track,
    Window,
    compute_rate,
    measure_windows,
    select_within,
    sum_known,
)
from slurm_colloc.metrics.sharing_cost import (
    SHORT_S,
    Stall,
    compute_slowdown,
    compute_solo_time_s,
    split_stalls,
)
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import PeakSource
from slurm_colloc.report.pack_run import MemberRun, PackRun
from slurm_colloc.report.pack_samples import NO_GPU, GpuSamples, StartSamples
from slurm_colloc.report.solo_rates import (
    ALONE_LEAST_S,
    Relatives,
    SoloRate,
    find_solo_rate,
    was_limited,
)
from slurm_colloc.report.summary_file import SummaryLayout, SummaryMig
from slurm_colloc.store.member_states import GpuUse

# ----
# What a member used of its MIG instance: measured on that alone, so exact, unless others share
# it.
#
# What is told of an instance that members share is of all of them, and none's alone.


def find_instance(member: MemberRun) -> GpuUse | None:
    """The instance of a member's last start; None where it had none."""
    record = member.view.record
    use = record.gpu if record is not None else None
    return use if use is not None and use.instance and use.uuids else None


def _look_at_instance(run: PackRun, use: GpuUse) -> GpuSamples:
    return run.samples.gpus.get(use.uuids[0], NO_GPU)


def attribute_instance_sm(run: PackRun, member: MemberRun) -> AttributedPart | None:
    """A member's part of the whole GPU's SMs, by what its instance did; None where unknown."""
    part = compute_instance_sm(run, member, list_windows(member.present))
    return None if part is None else AttributedPart(part, Attribution.EXACT)


def compute_instance_sm(run: PackRun, member: MemberRun, windows: Sequence[Window]) -> float | None:
    """The part of the whole GPU's SMs that a member's own instance kept busy, 0 to 1.

    None where it has none of its own, or that was not measured.
    """
    use = find_instance(member)
    if use is None or use.inside or not use.instance_sms or not use.gpu_sms:
        return None
    mean = _look_at_instance(run, use).get("sm_active").compute_mean(windows)
    return None if mean is None else mean * use.instance_sms / use.gpu_sms


def build_instance(run: PackRun, member: MemberRun) -> SummaryMig | None:
    """A member's instance as it stands in summary.json; None where it had none."""
    use = find_instance(member)
    if use is None:
        return None
    samples = _look_at_instance(run, use)
    known = [value for value in samples.get("gpu_memory_mb").values if value is not None]
    stays = list_windows(member.present)
    return {
        "planned": member.view.spec.plan.instance or None,
        "profile": use.instance,
        "uuid": use.uuids[0],
        "memory_mb": use.gpu_memory_limit_mb,
        "sms": use.instance_sms,
        "gpu_memory_peak_mb": max(known, default=None),
        "sm_active": samples.get("sm_active").compute_mean(stays),
        "dram_active": samples.get("dram_active").compute_mean(stays),
        "shared_by": use.inside or None,
        "attribution": None if use.inside else Attribution.EXACT.value,
    }


def build_layout(run: PackRun) -> SummaryLayout | None:
    """The planned MIG layout and what came, as it stands in summary.json; None without one."""
    planned = run.view.record.layout
    came = () if run.setup is None else run.setup.instances
    if not planned and not came:
        return None
    return {
        "planned": list(planned),
        "came": [
            {
                "profile": one.profile,
                "uuid": one.uuid,
                "memory_mb": one.memory_mb,
                "sms": one.sms,
                "places": one.places,
            }
            for one in came
        ],
    }


# ----
# What the samples of a member tell: its rate, slowdown and share, before they are written down.

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
    utilization = run.look_at(member).get("utilization") if alone else NOTHING_READ
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
    alone = run.compute_mean(member, "sm_active", list_windows(member.present))
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


# ---- The most GPU memory that a start of a member has taken, and who says so ---------------------
#
# PyTorch's allocator keeps the peak of what it has reserved, to the byte and from the first moment.
# What a process holds outside of it (its CUDA context, NCCL's buffers) is what NVML tells of it
# less what the allocator has reserved at the same time. NVML itself only sees what is held at a
# look.

CONTEXT_ASSUMED_MB = 768.0
"""What is outside the allocator where NVML does not tell: 762 MiB were measured on an H100 with
torch 2.11, in a process that uses one GPU and no NCCL."""


FIRST_SECONDS_S = 10.0
"""After the first step."""


@dataclass(frozen=True)
class GpuMemoryPeak:
    """The most GPU memory of a start.

    Attributes:
        peak_mb: All of it, in MiB.
        by: Who says so.
        allocator_mb: The allocator's part; None where it said nothing.
        outside_mb: What was measured outside the allocator; None where that is not known.
    """

    peak_mb: float
    by: PeakSource
    allocator_mb: float | None = None
    outside_mb: float | None = None

    @property
    def is_assumed(self) -> bool:
        """What lies outside the allocator was not measured."""
        return self.by is PeakSource.ALLOCATOR and self.outside_mb is None


def find_gpu_memory_peak(start: StartSamples, gpus: int = 1) -> GpuMemoryPeak | None:
    """The most GPU memory of a start, its first seconds included; None where nothing is known.

    On several GPUs it is that of one: of the fullest by NVML. The allocators' sum is taken to be
    spread evenly, as it is where every GPU has a copy of the model or an equal part.

    Args:
        start: What was read of it.
        gpus: On how many GPUs it ran.
    """
    seen_mb = start.gpu_memory_peak_mb
    reserved_mb = start.peak("gpu_memory_reserved_peak_mb")
    if not reserved_mb:
        return None if seen_mb is None else GpuMemoryPeak(seen_mb, PeakSource.NVML)
    reserved_mb /= gpus
    outside_mb = find_outside_mb(start, gpus)
    peak_mb = reserved_mb + (CONTEXT_ASSUMED_MB if outside_mb is None else outside_mb)
    # Where another program of the member's took more at another time.
    peak_mb = max(peak_mb, seen_mb or 0.0)
    return GpuMemoryPeak(peak_mb, PeakSource.ALLOCATOR, reserved_mb, outside_mb)


def find_usual_gpu_memory(start: StartSamples) -> float | None:
    """The most GPU memory of a start past its first seconds, in MiB; None where it is not known.

    At its beginning a program may take several times as much (cuDNN tries its algorithms).
    """
    first_at = start.first_step_at
    if first_at is None:
        return None
    looks = zip(start.read("at"), start.read("gpu_memory_mb"), strict=True)
    found = [mb for at, mb in looks if at is not None and mb and at - first_at > FIRST_SECONDS_S]
    return max(found, default=None)


def find_outside_mb(start: StartSamples, gpus: int = 1) -> float | None:
    """What a start holds outside the allocator, in MiB; None where no look saw both.

    Each look's two numbers may be some seconds apart, in which the allocator took or gave back a
    piece: so it is their median. Before its first step a program has not loaded all that it needs.
    """
    first_at = start.first_step_at or 0.0
    looks = zip(
        start.read("at"),
        start.read("gpu_memory_mb"),
        start.read("gpu_memory_reserved_mb"),
        strict=True,
    )
    found = [
        seen_mb - reserved_mb / gpus
        for at, seen_mb, reserved_mb in looks
        if seen_mb is not None and reserved_mb is not None and seen_mb >= reserved_mb / gpus > 0
        if at is not None and at >= first_at
    ]
    return median(found) if found else None


def choose_highest(starts: Iterable[StartSamples], gpus: int = 1) -> GpuMemoryPeak | None:
    """The highest peak of several starts; None where none is known."""
    peaks = [peak for start in starts if (peak := find_gpu_memory_peak(start, gpus)) is not None]
    return max(peaks, key=lambda peak: peak.peak_mb, default=None)


# ---- How slow members were while all those ran with which they were planned ----------------------

_WARM_UP_S = 10.0
"""How long a member that reports no step is taken to need for its start."""


def measure_together(run: PackRun, figures: Sequence[Figures]) -> dict[int, float]:
    """Slowdowns over the time that a plan speaks of, by number, of those that it predicted.

    What a member did alone, in the tail or while members were added or parked is not what was
    predicted.

    Args:
        run: The pack.
        figures: What its samples tell of its members.

    Returns:
        Those that are known; none where all were never there at the same time.
    """
    groups = find_groups(run)
    spans = {entry.member.number: find_spans(entry) for entry in figures}
    found = {}
    for entry in figures:
        number = entry.member.number
        if entry.predicted_slowdown is None or entry.slowdown is None:
            continue
        slowdown = compute_slowdown_with(run, entry, groups[number] - {number}, spans)
        if slowdown is not None:
            found[number] = slowdown
    return found


def compute_slowdown_with(
    run: PackRun,
    entry: Figures,
    partners: frozenset[int],
    spans: Mapping[int, Sequence[Window]],
    least_s: float = WINDOW_LEAST_S,
) -> float | None:
    """How much slower than alone a member was with some others, all of them warmed up.

    Args:
        run: The pack.
        entry: The member.
        partners: The others.
        spans: When each did what it is for.
        least_s: Fewer seconds with them are too short.

    Returns:
        None where it is unknown, and with no partners.
    """
    if entry.solo is None or not partners:
        return None
    member = entry.member
    windows = member.own_time.bridge(find_settled(run, member.number, partners, spans))
    intervals = [interval for start in member.settle() for interval in start.intervals]
    rate = compute_rate(select_within(intervals, windows), least_s).steps_per_s
    return compute_slowdown(entry.solo.steps_per_s, rate)


def find_groups(run: PackRun) -> dict[int, frozenset[int]]:
    """The members with which each was planned, itself among them.

    A member that joined before the pack began was planned with all that were in it; a later one was
    planned with those that were there then, and they were planned without it.
    """
    begin = min((stay.begin for member in run.members for stay in member.stays), default=math.inf)
    first = frozenset(
        member.number
        for member in run.members
        if not member.view.spec.joined or member.view.spec.joined_at < begin
    )
    groups = {}
    for member in run.members:
        at = member.view.spec.joined_at
        there = frozenset(
            other.number
            for other in run.members
            if any(stay.begin <= at < stay.end for stay in other.stays)
        )
        groups[member.number] = first if member.number in first else there | {member.number}
    return groups


def find_spans(entry: Figures) -> tuple[Window, ...]:
    """When a member did what it is for."""
    if entry.spans:
        return entry.spans
    return tuple((stay.begin + _WARM_UP_S, stay.end) for stay in entry.member.stays)


def find_settled(
    run: PackRun, number: int, partners: frozenset[int], spans: Mapping[int, Sequence[Window]]
) -> list[Window]:
    """When a member and its partners were together, all of them warmed up.

    Where members wait for a place, their partners change, and no more than their number counts.
    """
    degree = run.view.record.degree
    windows = find_together(run.phases, number, partners, degree)
    for partner in partners if degree > len(partners) else ():
        windows = [
            (max(begin, low), min(end, high))
            for begin, end in windows
            for low, high in spans.get(partner, ())
            if min(end, high) > max(begin, low)
        ]
    return windows
