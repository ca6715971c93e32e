"""What is predicted of packs whose members' loads are known, as it goes into a plan.

Also: a planned pack in words: its setting, what is predicted of it, and how sure that is.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import KnownBy, PackPlan, SharingMode, UsageProfile
from slurm_colloc.planning.broken_limits import predict_setting
from slurm_colloc.planning.hard_limits import Setting, Subject, is_borrowed
from slurm_colloc.planning.job_needs import Question, are_timed
from slurm_colloc.planning.pack_request import (
    Prediction,
    build_lone_pack,
)

# ---- A planned pack in words: its setting, what is predicted of it, and how sure that is ---------


def describe_setting(
    degree: int,
    mode: SharingMode,
    percentages: Sequence[int | None],
    slowdowns: Sequence[float],
    bounds: Sequence[float],
) -> str:
    """A pack's setting and what is predicted of it, in a sentence.

    Args:
        degree: Members at once.
        mode: The sharing mode.
        percentages: MPS thread limits; None for no limit.
        slowdowns: Of the members.
        bounds: Of those that have one.
    """
    text = f"{degree} members at once {_describe_limits(mode, percentages)}"
    low, high = min(slowdowns), max(slowdowns)
    spread = f"{high:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    progress = sum(1.0 / slowdown for slowdown in slowdowns)
    return (
        f"{text}: predicted slowdown {spread} ({describe_bounds(bounds)}), "
        f"{progress:.1f} times one alone"
    )


def describe_bounds(bounds: Sequence[float]) -> str:
    """The slowdowns that members accept, in words; `no bound` where there are none."""
    if not bounds:
        return "no bound"
    low, high = f"{min(bounds):g}", f"{max(bounds):g}"
    return f"bound {low}" if low == high else f"bounds {low} to {high}"


def _describe_limits(mode: SharingMode, percentages: Sequence[int | None]) -> str:
    if mode is SharingMode.TIMESLICE:
        return "by time slices"
    known = sorted({percentage or 100 for percentage in percentages})
    what = "the GPU" if mode is SharingMode.MIG else "the threads"
    if known == [100]:
        return "without thread limits"
    if len(known) == 1:
        return f"with {known[0]} % of {what} each"
    return f"with {known[0]} to {known[-1]} % of {what}"


def describe_sources(question: Question, members: Sequence[Subject]) -> list[str]:
    """What makes a prediction, or the choice by it, less sure, a sentence each."""
    calibration = question.calibration
    reasons = []
    relatives = 0
    borrowed = set()
    are_corrected = all(member.is_corrected for member in members)
    for member in members:
        profile = question.profiles.get(member.index, UsageProfile())
        relatives += profile.known_by is not KnownBy.EXACT
        if is_borrowed(profile, calibration):
            borrowed.add(profile.gpu_model)
    if relatives:
        reasons.append(
            f"{_count(relatives, members)} known by another job's runs"
            + ("" if are_corrected else ": the margin is wider")
        )
    if borrowed and calibration is not None:
        reasons.append(
            f"how jobs slow each other down was measured on {calibration.gpu_model}, "
            f"what they take on {', '.join(sorted(borrowed))}"
            + ("" if are_corrected else ": the margin is doubled")
        )
    if are_corrected and len(members) > 1:
        held = "as far as the prediction may be right" if borrowed else "without a margin"
        reasons.append(
            "slowdowns are measured as it runs, and surplus members are paused: the bound is "
            f"kept {held}"
        )
    unmeasured = sum(not are_timed(question, [member]) for member in members)
    if unmeasured:
        several = f"{unmeasured} of {len(members)} members run"
        of_which = "it runs" if len(members) == 1 else several
        reasons.append(
            f"how long {of_which} alone has not been measured: the time limit, or an hour, "
            "stands for it in the choice"
        )
    return reasons


def _count(some: int, members: Sequence[Subject]) -> str:
    return "it is" if len(members) == 1 else f"{some} of {len(members)} members are"


# ---- What is predicted of packs whose members' loads are known, as it goes into a plan -----------

_MEASURED = (KnownBy.EXACT, KnownBy.FAMILY)
"""Who is known so is not probed: the node finds the same profile."""


def build_prediction(
    question: Question,
    members: Sequence[Subject],
    setting: Setting,
    slowdowns: tuple[float, ...] | None,
    finish_s: float | None,
) -> Prediction:
    """What is known of a pack in which all members run at once.

    Args:
        question: What planning is asked.
        members: The members, in their order.
        setting: How they share.
        slowdowns: Of the members; None where unknown.
        finish_s: Seconds until the last of them ends, by the lengths that the search went by.
            No prediction where one of these was not measured.
    """
    profiles = [question.profiles.get(member.index, UsageProfile()) for member in members]
    reasons: list[str] = []
    if slowdowns is not None:
        count, limits = len(members), setting.percentages
        bounds = [member.max_slowdown for member in members]
        text = describe_setting(count, setting.mode, limits, slowdowns, bounds)
        reasons = [text, *describe_sources(question, members)]
    return Prediction(
        len(members),
        setting.mode,
        setting.percentages,
        slowdowns,
        tuple(profile.steps_per_s for profile in profiles),
        finish_s if are_timed(question, members) else None,
        tuple(reasons),
        may_probe=any(profile.known_by not in _MEASURED for profile in profiles),
        model_slowdowns=predict_by_model(question, members, setting) if slowdowns else None,
        is_borrowed=any(is_borrowed(profile, question.calibration) for profile in profiles),
    )


def predict_by_model(
    question: Question, members: Sequence[Subject], setting: Setting
) -> tuple[float, ...] | None:
    """Slowdowns without what earlier packs of the jobs showed; None where they showed nothing."""
    plain = forget_packs(members)
    return None if plain is None else predict_setting(plain, setting, question.calibration)


def forget_packs(members: Sequence[Subject]) -> list[Subject] | None:
    """The same jobs without what earlier packs showed; None where they showed nothing."""
    if not any(s.load and (s.load.sensitivity or s.load.pressure) for s in members):
        return None
    return [
        replace(subject, load=replace(subject.load, sensitivity=0.0, pressure=0.0))
        if subject.load
        else subject
        for subject in members
    ]


def build_lone(question: Question, subject: Subject, reason: str) -> PackPlan:
    """A job of known load that runs alone, and as fast as that.

    Args:
        question: What planning is asked.
        subject: The job.
        reason: Why it runs alone.
    """
    job = question.jobs[subject.index]
    pack = build_lone_pack(subject.index, job, reason)
    member = replace(
        pack.members[0],
        predicted_slowdown=1.0,
        solo_steps_per_s=question.profiles.get(subject.index, UsageProfile()).steps_per_s,
        max_slowdown=subject.max_slowdown,
    )
    return replace(
        pack,
        members=(member,),
        predicted_slowdown=(1.0,),
        predicted_finish_s=subject.run_s if are_timed(question, [subject]) else None,
        known=True,
    )
