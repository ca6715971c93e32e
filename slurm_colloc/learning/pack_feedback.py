"""What a pack that has run tells about its jobs beyond what was predicted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.metrics.rates import compute_rate, select_within
from slurm_colloc.metrics.series import Window
from slurm_colloc.metrics.slowdown import compute_slowdown
from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage.prediction_feedback import Compared, Feedback
from slurm_colloc.report.summary.member_figures import Figures
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun
from slurm_colloc.report.summary.shared_slowdown import find_groups, find_settled, find_spans

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
        if partners and predicted is not None:
            windows = entry.member.own_time.bridge(find_settled(run, number, partners, spans))
            residual = _compute_residual(entry, windows, run.view.record.mode, predicted)
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
    from slurm_colloc.planning.job_load import build_load
    from slurm_colloc.planning.limits.broken_limits import predict_setting
    from slurm_colloc.planning.priced_packs import Setting, Subject

    subjects, percentages = [], []
    for place, entry in enumerate(figures):
        member, plan = entry.member, entry.member.view.spec.plan
        profile = member.profile or next(iter(member.relatives), None)
        load = None if profile is None else build_load(profile.for_planning(), calibration)
        if load is not None:
            load = dataclasses.replace(load, sensitivity=0.0, pressure=0.0)
        subjects.append(Subject(place, plan.cpus, None, None, 1.0, load, 1.0))
        percentages.append(plan.thread_percentage)
    found = predict_setting(subjects, Setting(mode, tuple(percentages)), calibration)
    if found is None:
        return {}
    return {entry.member.number: value for entry, value in zip(figures, found, strict=True)}


def _compute_residual(
    entry: Figures, windows: Sequence[Window], mode: SharingMode, predicted: float
) -> float | None:
    """Measured less predicted; None where it is unknown, or not comparable with the other."""
    member, solo = entry.member, entry.solo
    plan = member.view.spec.plan
    if solo is None or not windows or len(member.starts) != 1:
        return None
    gpu = member.view.record.gpu if member.view.record is not None else None
    if gpu is not None:
        is_limited_as_planned = (gpu.thread_percentage or 100) == (plan.thread_percentage or 100)
        if gpu.mode != mode.value or not is_limited_as_planned:
            return None
    intervals = [interval for start in member.settle() for interval in start.intervals]
    rate = compute_rate(select_within(intervals, windows), TOGETHER_LEAST_S).steps_per_s
    measured = compute_slowdown(solo.steps_per_s, rate)
    if measured is None or not math.isfinite(measured - predicted):
        return None
    return measured - predicted


def _list_profiles(member: MemberRun) -> tuple[str, ...]:
    """The usage profiles that stood for a member in its plan: its own, else its family's."""
    if member.profile is not None:
        return (member.profile.signature,)
    return tuple(record.signature for record in member.relatives)
