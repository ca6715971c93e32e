"""What walls cost the members of a pack, or save them, against MPS; pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.limits.broken_limits import Weighing, list_too_slow
from slurm_colloc.planning.predict.sharing_ways import SETUP_S
from slurm_colloc.planning.priced_packs import Limits, Subject

_UNKNOWN = (
    "what MIG costs them compared with MPS is not known: their load has not been measured. In MIG "
    "instances none can use what another leaves idle, and none can take bandwidth from another"
)


def describe_cost_of_walls(
    question: Question,
    subjects: Sequence[Subject],
    duration_s: float | None,
    slowdowns: Sequence[float] | None,
) -> str:
    """What instances cost against MPS, and why, in a sentence.

    Args:
        question: What planning is asked.
        subjects: The members.
        duration_s: Until the last of them ends on its instance; None where unknown.
        slowdowns: Theirs there; None where unknown.
    """
    if duration_s is None or slowdowns is None:
        return _UNKNOWN
    weighing = Weighing(
        subjects, Limits(), question.calibration, goal=Goal.THROUGHPUT, modes=(SharingMode.MPS,)
    )
    free = weighing.price_freely(range(len(subjects)))
    if free is None:
        return _UNKNOWN
    mig_s = duration_s + SETUP_S[SharingMode.MIG]
    change = 100.0 * (mig_s / free.gpu_s - 1.0)
    told = (
        f"compared with MPS: {mig_s:.0f} s of the GPU, {SETUP_S[SharingMode.MIG]:.0f} s of it for "
        f"dividing it, where MPS would take {free.gpu_s:.0f} s ({_describe_change(change)})"
    )
    names = [question.jobs[subject.index].name for subject in subjects]
    passed = list_too_slow(names, subjects, free.slowdowns)
    worst = f"{max(free.slowdowns):.2f} by MPS, {max(slowdowns):.2f} by MIG"
    told += f"; the slowest member {worst}"
    if passed and not list_too_slow(names, subjects, slowdowns):
        return f"{told}: MPS would break its bound, an instance keeps it"
    if change > 0:
        return f"{told}: none can use what another leaves idle"
    return f"{told}: none takes SMs or bandwidth from another"


def _describe_change(percent: float) -> str:
    if round(percent) == 0:
        return "as long"
    return f"{abs(percent):.0f} % {'more' if percent > 0 else 'less'}"
