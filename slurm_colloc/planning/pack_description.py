"""A planned pack in words: its setting, what is predicted of it, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.model.plan import KnownBy, SharingMode, UsageProfile
from slurm_colloc.planning.job_needs import Question, are_timed
from slurm_colloc.planning.limits.hard_limits import is_borrowed
from slurm_colloc.planning.priced_packs import Subject


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
