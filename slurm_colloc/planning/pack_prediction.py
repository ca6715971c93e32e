"""What is predicted of packs whose members' loads are known, as it goes into a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.plan import KnownBy, PackPlan, Rule, UsageProfile
from slurm_colloc.planning.job_needs import Question, are_timed
from slurm_colloc.planning.limits.broken_limits import predict_setting
from slurm_colloc.planning.limits.hard_limits import is_borrowed
from slurm_colloc.planning.pack_description import describe_setting, describe_sources
from slurm_colloc.planning.pack_request import (
    Prediction,
    build_lone_pack,
    compute_thread_percentage,
)
from slurm_colloc.planning.predict.pack_duration import compute_ends_s
from slurm_colloc.planning.priced_packs import Setting, Subject

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
        heeded = members if question.policy.rule is Rule.CSUB else ()
        bounds = [member.max_slowdown for member in heeded]
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
        dataclasses.replace(
            subject, load=dataclasses.replace(subject.load, sensitivity=0.0, pressure=0.0)
        )
        if subject.load
        else subject
        for subject in members
    ]


def build_lone(question: Question, subject: Subject, reason: str, *, known: bool) -> PackPlan:
    """A job that runs alone, and as fast as that.

    Args:
        question: What planning is asked.
        subject: The job.
        reason: Why it runs alone.
        known: Whether its load is known.
    """
    job = question.jobs[subject.index]
    pack = build_lone_pack(subject.index, job, reason)
    member = dataclasses.replace(
        pack.members[0],
        predicted_slowdown=1.0,
        solo_steps_per_s=question.profiles.get(subject.index, UsageProfile()).steps_per_s,
        max_slowdown=subject.max_slowdown,
    )
    return dataclasses.replace(
        pack,
        members=(member,),
        predicted_slowdown=(1.0,),
        predicted_finish_s=subject.run_s if are_timed(question, [subject]) else None,
        known=known,
    )


def predict_pack(
    subjects: Sequence[Subject], setting: Setting, calibration: Calibration | None
) -> tuple[tuple[float, ...] | None, float | None]:
    """What a pack comes to that was made without looking at the model, by that model.

    Args:
        subjects: The members, which all run at once.
        setting: How they share.
        calibration: How jobs slow each other down.

    Returns:
        Each member's slowdown while all run, and seconds until the last ends, as
        planning.predict.pack_duration has it; None where a load or the model is unknown.
    """
    slowdowns = predict_setting(subjects, setting, calibration)
    if slowdowns is None:
        return None, None
    are_limited = any(percentage is not None for percentage in setting.percentages)

    def rate(running: tuple[int, ...]) -> Sequence[float]:
        count = len(running)
        percentage = compute_thread_percentage(count, setting.mode) if are_limited else None
        left = Setting(setting.mode, (percentage,) * count)
        return predict_setting([subjects[i] for i in running], left, calibration) or ()

    floors = [
        (predict_setting([subject], Setting(setting.mode, (own,)), calibration) or (1.0,))[0]
        for subject, own in zip(subjects, setting.percentages, strict=True)
    ]
    ends = compute_ends_s([subject.run_s for subject in subjects], floors, rate)
    return slowdowns, max(ends)
