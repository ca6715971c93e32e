"""The one way in: a pack that has run leaves its summary, usage profiles and feedback.

Also: what a pack has measured of how many run at once, as knowledge for the next plan; what a pack
that has run tells about its jobs beyond what was predicted.

A usage profile learns from each start that was alone, else from moments in which its runner had
paused the others, from peaks in company, and from the steps of each complete run.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.presence import find_shared
from slurm_colloc.metrics.rates import Window, measure_windows
from slurm_colloc.metrics.sharing_cost import compute_data_share
from slurm_colloc.model.gpu_pace import GpuRate, GpuRun
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.measured_curve import (
    CurvePoint,
    FamilyRate,
    KnownCurve,
    KnownPoint,
    RateSource,
)
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import PeakSource, SharingMode
from slurm_colloc.model.usage_profile import (
    NVLINK_MIB_S,
    PCIE_MIB_S,
    Calibration,
    Compared,
    Completion,
    Feedback,
    HeldUp,
    MeasuredBy,
    Observation,
    may_be_one_kind,
)
from slurm_colloc.report.member_figures import (
    Figures,
    compute_figures,
    compute_slowdown_with,
    find_gpu_memory_peak,
    find_groups,
    find_spans,
    find_usual_gpu_memory,
)
from slurm_colloc.report.pack_entry import build_entry, sum_throttled
from slurm_colloc.report.pack_run import MemberRun, PackRun, add_slow_gpus, read_run
from slurm_colloc.report.pack_samples import StartSamples
from slurm_colloc.report.pack_summary import build_throttled, write_summary
from slurm_colloc.report.solo_rates import (
    ALONE_LEAST_S,
    MEASURED,
    AloneStart,
    BrieflyAlone,
    compute_brief_mean,
    compute_brief_power_w,
    find_alone_starts,
    find_briefly_alone_start,
    find_idle_power,
    is_part,
    name_start,
)
from slurm_colloc.report.stalls_view import read_stalls
from slurm_colloc.store.calibrations import find_calibration
from slurm_colloc.store.curves import add_curves
from slurm_colloc.store.gpu_paces import add_gpu_runs
from slurm_colloc.store.indexes import append_entries, forget_due
from slurm_colloc.store.profile_updates import (
    add_completions,
    add_feedback,
    add_held_up,
    add_observations,
)

# ---- What a pack has measured of how many run at once, as knowledge for the next plan ------------

_STOOD_STILL = 1000.0
"""The slowdown of a member that made no step in its windows."""


def build_curves(run: PackRun) -> list[KnownCurve]:
    """One curve for each set of families that has run together: each point counts to its own.

    Left out are MIG instances, packs of several GPUs, and families whose members have unlike rates
    alone: their script does this or that, by its arguments.
    """
    record, model = run.degree, run.gpu_model
    mode = SharingMode.TIMESLICE if run.setup is None else run.setup.mode
    if record is None or model is None or len(run.gpu_uuids) != 1:
        return []
    if mode not in (SharingMode.MPS, SharingMode.TIMESLICE):
        return []
    members = {member.number: member for member in run.members}
    rates = {
        family: _find_rates(run, [m for m in run.members if m.family == family])
        for family in {m.family for m in run.members if m.family is not None}
    }
    at = max((decision.at for decision in record.decisions), default=None)
    at = at if at is not None else run.window[1] if run.window is not None else 0.0
    pack = f"{run.view.record.pack_id}/{run.view.attempt}"
    found: dict[tuple[str, ...], KnownCurve] = {}
    for point in record.curve:
        there = [members.get(number) for number in point.members]
        known = [m for m in there if m is not None and m.family is not None]
        families = tuple(sorted({m.family for m in known if m.family is not None}))
        if point.degree < 2 or point.stp <= 0 or len(known) != point.degree:
            continue
        if not all(may_be_one_kind(rates[family]) for family in families):
            continue
        curve = KnownCurve(
            families,
            model,
            SharingMode(mode),
            (_build_point(point, at),),
            tuple(FamilyRate(f, fmean(rates[f])) for f in families if rates[f]),
            tuple(sorted({m.view.name for m in known})),
            (pack,),
        )
        found[families] = found[families].add(curve) if families in found else curve
    return list(found.values())


def _build_point(point: CurvePoint, at: float) -> KnownPoint:
    slowdown = point.worst_slowdown
    if slowdown is not None and not math.isfinite(slowdown):
        slowdown = _STOOD_STILL
    return KnownPoint(point.degree, point.stp, slowdown, at)


def _find_rates(run: PackRun, members: Sequence[MemberRun]) -> list[float]:
    """The rates alone that were measured of a family: one for each kind in it.

    Those by pausing; where there are none, of one that was there before the others.
    """
    kinds = {member.number: member.kind for member in members}
    for source in (RateSource.PAUSING, RateSource.FIRST):
        by_kind: dict[str | None, list[float]] = {}
        for rate in run.degree.rates_alone if run.degree is not None else ():
            is_own = rate.member in kinds and rate.source is source
            if is_own and rate.steps_per_s > 0 and not is_part(rate.thread_percentage):
                by_kind.setdefault(kinds[rate.member], []).append(rate.steps_per_s)
        if by_kind:
            return [fmean(rates) for rates in by_kind.values()]
    return []


# ---- What a pack that has run tells about its jobs beyond what was predicted ---------------------

TOGETHER_LEAST_S = 20.0
"""A shorter time with all those with which a member was planned tells nothing about it."""


def build_feedback(
    run: PackRun,
    figures: Sequence[Figures],
    find_calibration: Callable[[str], Calibration | None] = lambda _: None,
) -> Feedback | None:
    """Compare predicted slowdowns with those measured while all ran that were planned together.

    Where they never did, as in a pack of which fewer ran at once, those that ran together longest
    are compared with what the model predicts of them. Left out is a pack that shared in another
    way than planned. Of a member nothing is compared that was started again, that no usage profile
    stood for when the pack began (so one that was probed), or that had another thread limit than
    planned.

    Args:
        run: The pack.
        figures: What its samples tell of its members.
        find_calibration: Finds the model of a GPU model.

    Returns:
        What the usage profiles can learn; None where that is nothing.
    """
    mode = run.view.record.mode
    if run.setup is None or run.setup.mode != mode.value or mode is SharingMode.EXCLUSIVE:
        return None
    if mode is SharingMode.MIG:
        # Behind walls nothing is learned of what members do to each other.
        return None
    if run.gpu_model is None:
        return None
    expected = {entry.member.number: _find_expected(entry) for entry in figures}
    if all(slowdown is None for slowdown in expected.values()):
        return None
    members = _compare(run, figures, find_groups(run), expected)
    if not members:
        group = _find_longest(run)
        known = [entry for entry in figures if entry.member.number in group]
        if len(known) < 2 or any(expected[entry.member.number] is None for entry in known):
            return None
        predicted = _predict(known, mode, find_calibration(run.gpu_model))
        members = _compare(run, known, dict.fromkeys(group, group), predicted)
    return Feedback(run.view.record.pack_id, run.gpu_model, members) if members else None


def _compare(
    run: PackRun,
    figures: Sequence[Figures],
    groups: Mapping[int, frozenset[int]],
    expected: Mapping[int, float | None],
) -> tuple[Compared, ...]:
    """Members with what was measured less what was expected; none where nothing can be compared."""
    spans = {entry.member.number: find_spans(entry) for entry in figures}
    members = []
    for entry in figures:
        number = entry.member.number
        partners = groups[number] - {number}
        predicted, residual = expected.get(number), None
        if predicted is not None and _ran_as_planned(entry.member, run.view.record.mode):
            measured = compute_slowdown_with(run, entry, partners, spans, TOGETHER_LEAST_S)
            if measured is not None and math.isfinite(measured - predicted):
                residual = measured - predicted
        members.append(Compared(number, residual, partners, _list_profiles(entry.member)))
    return () if all(member.residual is None for member in members) else tuple(members)


def _find_expected(entry: Figures) -> float | None:
    """What the model alone predicted of a member in its plan."""
    plan = entry.member.view.spec.plan
    return plan.predicted_slowdown if plan.model_slowdown is None else plan.model_slowdown


def _find_longest(run: PackRun) -> frozenset[int]:
    """The members that were together longest, of two at least; empty where none were."""
    lengths: dict[frozenset[int], float] = {}
    for phase in run.phases:
        if len(phase.members) > 1:
            lengths[phase.members] = lengths.get(phase.members, 0.0) + phase.length_s
    return max(lengths, key=lambda group: (lengths[group], sorted(group)), default=frozenset())


def _predict(
    figures: Sequence[Figures], mode: SharingMode, calibration: Calibration | None
) -> dict[int, float | None]:
    """What the model says now of members that ran together; nothing where a load is unknown."""
    from slurm_colloc.planning.broken_limits import predict_setting
    from slurm_colloc.planning.hard_limits import Setting, Subject
    from slurm_colloc.planning.job_needs import build_load

    subjects, percentages = [], []
    for place, entry in enumerate(figures):
        member, plan = entry.member, entry.member.view.spec.plan
        profile = member.profile or next(iter(member.relatives), None)
        load = None if profile is None else build_load(profile.for_planning(), calibration)
        if load is not None:
            load = replace(load, sensitivity=0.0, pressure=0.0)
        subjects.append(Subject(place, plan.cpus, None, None, 1.0, load, 1.0))
        percentages.append(plan.thread_percentage)
    found = predict_setting(subjects, Setting(mode, tuple(percentages)), calibration)
    if found is None:
        return {}
    return {entry.member.number: value for entry, value in zip(figures, found, strict=True)}


def _ran_as_planned(member: MemberRun, mode: SharingMode) -> bool:
    """Whether what was measured of a member can be compared with what was predicted."""
    gpu = member.view.record.gpu if member.view.record is not None else None
    if len(member.starts) != 1 or gpu is None:
        return len(member.starts) == 1
    plan = member.view.spec.plan
    is_limited_as_planned = (gpu.thread_percentage or 100) == (plan.thread_percentage or 100)
    return gpu.mode == mode.value and is_limited_as_planned


def _list_profiles(member: MemberRun) -> tuple[str, ...]:
    """The usage profiles that stood for a member in its plan: its own, else its family's."""
    if member.profile is not None:
        return (member.profile.signature,)
    return tuple(record.signature for record in member.relatives)


# ---- The one way in: a pack that has run leaves its summary, usage profiles and feedback ---------

_PCIE_METRICS = ("pcie_rx_mib_s", "pcie_tx_mib_s")
_NVLINK_METRICS = ("nvlink_rx_mib_s", "nvlink_tx_mib_s")
_METRICS = (
    "sm_active", "dram_active", "tensor_active", "engine_active", "power_limit_w",
    *_PCIE_METRICS, *_NVLINK_METRICS,
)  # fmt: skip
_OF_STEPS = ("sm_active", "engine_active")
"""Read without the pauses, as the rate is that they are modelled with."""


def learn_from_pack(pack: Path, calibrations: Path | None = None) -> list[str]:
    """Write a pack's summary, then update the usage profiles of its jobs from the same reading.

    The summary comes first: the profiles that it compares with are those of earlier runs.

    Args:
        pack: The pack's directory.
        calibrations: The site's folder of calibrations; None for none.

    Returns:
        What usage profiles could not take, a sentence each.

    Raises:
        NotFound: There is no such pack.
        StateError: Something cannot be read or written.
    """
    state = pack.parent.parent
    run = read_run(pack, state)
    observations = build_observations(run)
    problems = []
    if run.gpu_model is not None and (runs := build_gpu_runs(run, observations)):
        try:
            add_gpu_runs(state, run.gpu_model, runs)
        except StateError as problem:
            problems.append(f"{problem}; how fast its GPU is was not noted")
        run = add_slow_gpus(run, state)
    figures = compute_figures(run)
    summary = write_summary(run, figures)
    if summary["final"]:
        append_entries(state, [build_entry(summary)])
    if observations:
        problems += add_observations(state, [_correct(run, one) for one in observations])
    if curves := build_curves(run):
        problems += add_curves(state, curves)
    if told := build_held_up(run, pack):
        problems += add_held_up(state, told)
    # Only now has a run that was alone a usage profile.
    found = (build_completion(run, entry.member, entry.steps) for entry in figures)
    if completions := [completion for completion in found if completion is not None]:
        problems += add_completions(state, completions)
    feedback = build_feedback(
        run, figures, lambda gpu: find_calibration(gpu, state, calibrations).calibration
    )
    if feedback is not None:
        problems += add_feedback(state, feedback)
    forget_due(state, pack.name)
    return problems


def build_gpu_runs(run: PackRun, observations: Sequence[Observation]) -> list[GpuRun]:
    """What a pack has shown of each of its GPUs: its jobs' rates alone, and throttling.

    Args:
        run: The pack.
        observations: What its members used.
    """
    window = run.window
    nodes = [m.view.record.node for m in run.members if m.view.record and m.view.record.node]
    node = run.setup.node if run.setup is not None else next(iter(nodes), "")
    if window is None or not node:
        return []
    several = {m.signature for m in run.members if run.count_gpus_of(m) > 1}
    found = []
    for uuid in run.gpu_uuids:
        rates = [
            GpuRate(
                one.kind,
                one.signature,
                one.steps_per_s,
                one.measured_by,
                one.samples_per_s / one.steps_per_s if one.samples_per_s else None,
                one.gpu_memory_usual_mb,
            )
            for one in observations
            if one.gpu_uuid == uuid and one.steps_per_s and one.signature not in several
        ]
        samples = run.join_gpus((uuid,))
        found.append(
            GpuRun(
                f"{run.view.record.pack_id}/{run.view.attempt}",
                uuid,
                node,
                window[1],
                tuple(rates),
                window[1] - window[0],
                sum_throttled(build_throttled([samples])),
            )
        )
    return found


def _correct(run: PackRun, seen: Observation) -> Observation:
    """What would have been seen on a GPU that is not slow."""
    if run.pace == 1.0 or not seen.steps_per_s:
        return seen
    samples = None if seen.samples_per_s is None else seen.samples_per_s / run.pace
    return replace(seen, steps_per_s=seen.steps_per_s / run.pace, samples_per_s=samples)


def build_held_up(run: PackRun, pack: Path) -> list[HeldUp]:
    """What a probe has told of what holds its job up; empty for other packs."""
    chosen = [m for m in run.members if m.view.spec.job.tells_stalls and m.signature]
    stalls = read_stalls(pack)[0] if chosen and run.gpu_model else None
    if stalls is None:
        return []
    disk = stalls.disk if stalls.is_cold or not stalls.reads_files else None
    return [
        HeldUp(m.signature or "", run.gpu_model or "", stalls.copies, stalls.decoding, disk)
        for m in chosen
    ]


def build_observations(run: PackRun) -> list[Observation]:
    """What the members of a pack used: one observation for each start that tells something new.

    Of a member that is each start that was alone for long enough; else that whose rate alone was
    measured while all others were paused. Of those that were only ever in company, the peaks and
    the host use of the one that took the most GPU memory of its kind, and of those that have a
    usage profile already.
    """
    idle_power_w, origin = find_idle_power(run)
    # What a profile said is not measured again.
    measured_w = idle_power_w if origin.startswith(MEASURED) else None
    found: list[Observation] = []
    largest: dict[str | None, tuple[float, Observation]] = {}
    for member in run.members:
        if run.gpu_model is None or member.signature is None:
            continue
        if member.view.spec.job.tells_stalls:
            # Its rate and what it used were those of changed input.
            continue
        if alone := find_alone_starts(run, member):
            found += [_observe(run, member, start, measured_w) for start in alone]
        elif (brief := find_briefly_alone_start(run, member)) is not None:
            found.append(_observe_in_company(run, member, brief.samples, measured_w, brief))
        elif (start := _find_start_in_company(run, member)) is not None:
            seen = _observe_in_company(run, member, start, measured_w)
            size_mb = seen.gpu_memory_peak_mb
            if size_mb is None:
                continue
            if member.profile is not None:
                found.append(seen)
            elif size_mb > largest.get(member.kind, (0.0, seen))[0]:
                largest[member.kind] = size_mb, seen
    return found + [seen for _, seen in largest.values()]


def _find_start_in_company(run: PackRun, member: MemberRun) -> StartSamples | None:
    """The last start of a member that shared the GPU, if it ran for long enough there."""
    mode = None if run.setup is None else run.setup.mode
    if mode == SharingMode.MIG or not member.starts or not find_shared(run.phases, member.number):
        return None
    start = member.starts[-1]
    stepping_s = start.end - (start.begin if start.first_step_at is None else start.first_step_at)
    return start if stepping_s >= ALONE_LEAST_S else None


def _observe(
    run: PackRun, member: MemberRun, alone: AloneStart, idle_power_w: float | None
) -> Observation:
    samples, used, rate = alone.samples, alone.used, alone.rate
    means = {
        metric: run.compute_mean(member, metric, alone.stepping if metric in _OF_STEPS else used)
        for metric in _METRICS
    }
    at = samples.read("at")
    return replace(
        _describe_start(run, member, samples, means, idle_power_w),
        at=used[-1][1],
        window_s=measure_windows(used),
        cpu_cores=_compute_cores(at, samples.read("cpu_s"), _select_rows(at, used)),
        host_memory_peak_mb=_peak(samples.read("host_memory_mb"), _select_rows(at, alone.windows)),
        steps_per_s=rate.steps_per_s,
        samples_per_s=rate.samples_per_s,
        wait_share=compute_data_share(alone.intervals),
        energy_w=run.compute_power_w(member, used),
    )


def _observe_in_company(
    run: PackRun,
    member: MemberRun,
    samples: StartSamples,
    idle_power_w: float | None,
    brief: BrieflyAlone | None = None,
) -> Observation:
    """What was measured of a member that was in company, and alone for moments at most.

    Its peaks and host use are those of its whole run: they are its own in company, too. How long
    it waits for data alone is not known.
    """
    windows = () if brief is None else brief.windows
    rate = None if brief is None else brief.rate
    means = {metric: compute_brief_mean(run, member, metric, windows) for metric in _METRICS}
    steps, counted = samples.peak("steps"), samples.peak("samples")
    run_s = member.own_time.read(samples.end) - member.own_time.read(samples.begin)
    cpu_s = samples.compute_rise("cpu_s")
    return replace(
        _describe_start(run, member, samples, means, idle_power_w),
        at=(0.0 if rate is None else rate.at) or samples.end,
        window_s=0.0 if rate is None else rate.window_s,
        cpu_cores=None if cpu_s is None or run_s <= 0 else cpu_s / run_s,
        host_memory_peak_mb=samples.peak("host_memory_mb"),
        steps_per_s=None if rate is None else rate.steps_per_s,
        samples_per_s=rate.steps_per_s * counted / steps if rate and counted and steps else None,
        energy_w=compute_brief_power_w(run, member, windows),
        measured_by=MeasuredBy.COMPANY if rate is None else MeasuredBy.PAUSING,
    )


def _describe_start(
    run: PackRun,
    member: MemberRun,
    samples: StartSamples,
    means: Mapping[str, float | None],
    idle_power_w: float | None,
) -> Observation:
    """What is told in the same way of a start that was alone and of one in company."""
    # Of the whole start: it takes no less in company, and most of all at its beginning.
    gpu_memory = find_gpu_memory_peak(samples, run.count_gpus_of(member))
    return Observation(
        signature=member.signature or "",
        family=member.family or "",
        name=member.view.name,
        gpu_model=run.gpu_model or "",
        gpu_uuid=run.find_gpus_of(member)[0] if run.gpu_uuids else "",
        source=name_start(run, member, samples),
        at=samples.end,
        window_s=0.0,
        gpu_memory_peak_mb=None if gpu_memory is None else gpu_memory.peak_mb,
        gpu_memory_by=PeakSource.NVML if gpu_memory is None else gpu_memory.by,
        gpu_memory_usual_mb=find_usual_gpu_memory(samples),
        sm_active=means["sm_active"],
        dram_active=means["dram_active"],
        tensor_active=means["tensor_active"],
        power_limit_w=means["power_limit_w"],
        idle_power_w=idle_power_w,
        engine_active=means["engine_active"],
        pcie_share=_choose_link_share(means, _PCIE_METRICS, PCIE_MIB_S),
        nvlink_share=_choose_link_share(means, _NVLINK_METRICS, NVLINK_MIB_S),
        gpu_memory_total_mb=run.gpu_details[1],
        kind=member.kind or "",
    )


def _choose_link_share(
    means: Mapping[str, float | None], metrics: Sequence[str], most: float
) -> float | None:
    """The share of a link that its busier direction takes; None where neither was read."""
    rates = [rate for metric in metrics if (rate := means[metric]) is not None]
    return min(1.0, max(rates) / most) if rates else None


def build_completion(run: PackRun, member: MemberRun, steps: float | None) -> Completion | None:
    """The steps of a member that came to its own end; None where it did not, or none are known.

    Where a member was started again, it is not known whether it began anew.

    Args:
        run: The pack.
        member: The member.
        steps: All its steps.
    """
    view = member.view
    if view.state is not MemberState.COMPLETED or len(member.starts) != 1 or not steps:
        return None
    if view.spec.job.only_probe or run.gpu_model is None or member.signature is None:
        return None
    return Completion(
        member.signature, run.gpu_model, f"{run.view.record.pack_id}/{member.number}", steps
    )


def _select_rows(at: Sequence[float], windows: Sequence[Window]) -> list[range]:
    """The rows of each window."""
    return [range(bisect_left(at, begin), bisect_right(at, end)) for begin, end in windows]


def _peak(values: Sequence[float | None], rows: Sequence[range]) -> float | None:
    known = (values[row] for part in rows for row in part)
    return max((value for value in known if value is not None), default=None)


def _compute_cores(
    at: Sequence[float], cpu: Sequence[float | None], rows: Sequence[range]
) -> float | None:
    """CPU seconds per second over windows; None where the counter was not read."""
    cpu_s = length_s = 0.0
    for part in rows:
        known = [(at[row], value) for row in part if (value := cpu[row]) is not None]
        if len(known) > 1:
            cpu_s += known[-1][1] - known[0][1]
            length_s += known[-1][0] - known[0][0]
    return cpu_s / length_s if length_s > 0 else None
