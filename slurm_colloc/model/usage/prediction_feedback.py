"""What a pack showed of its jobs beyond what the model had predicted of them; pure.

Each job has two numbers of its own, so that one that suffers is not taken for one that makes
others suffer: its `sensitivity`, by how much more than predicted it is slowed down, and its
`pressure`, by how much more than that its partners are. Both are shrunken means over packs, first
the one and then, of what is left, the other (the baseline estimate of Koren, "Factor in the
Neighbors", ACM TKDD 4(1), 2010, with jobs for users and partners for items).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.model.usage.profile import (
    ProfileRecord,
    keep_newest,
)
from slurm_colloc.model.usage.shrunken_mean import LARGEST, ShrunkenMean


@dataclass(frozen=True)
class Compared:
    """A member whose slowdown in a pack was predicted and measured.

    Attributes:
        number: Its number.
        residual: Its slowdown as measured, less the one that the model alone predicted; None
            where one of them is unknown.
        partners: The members with which it was predicted and measured.
        profiles: Signatures of the usage profiles that stood for it: its own, else its family's.
    """

    number: int
    residual: float | None
    partners: frozenset[int]
    profiles: tuple[str, ...]


@dataclass(frozen=True)
class Feedback:
    """What a pack teaches of its jobs.

    Attributes:
        source: Which pack it was; the same pack is not counted twice.
        gpu_model: The GPU's model.
        members: Its members.
    """

    source: str
    gpu_model: str
    members: tuple[Compared, ...]


def learn(feedback: Feedback, records: Mapping[str, ProfileRecord]) -> dict[str, ProfileRecord]:
    """The usage profiles with what a pack teaches; those that it teaches nothing are left out.

    A pack counts once for a profile, however many of its members that stands for.

    Args:
        feedback: The pack.
        records: The usage profiles of its GPU model, by signature.
    """
    source = feedback.source
    learners = {
        signature: record
        for member in feedback.members
        for signature in member.profiles
        if (record := records.get(signature)) is not None and source not in record.compared
    }
    known = {**records}
    taught = set()
    for signature, record in learners.items():
        residuals = [
            member.residual
            for member in feedback.members
            if member.residual is not None and signature in member.profiles
        ]
        if residuals:
            mean = record.sensitivity or ShrunkenMean()
            known[signature] = replace(record, sensitivity=mean.add(_average(residuals)))
            taught.add(signature)
    left = {
        member.number: max(-LARGEST, min(LARGEST, member.residual))
        - _find_sensitivity(member, known)
        for member in feedback.members
        if member.residual is not None
    }
    for signature in learners:
        pressed = [
            _average(felt)
            for member in feedback.members
            if signature in member.profiles and (felt := _list_felt(member, feedback, left))
        ]
        if pressed:
            mean = known[signature].pressure or ShrunkenMean()
            known[signature] = replace(known[signature], pressure=mean.add(_average(pressed)))
            taught.add(signature)
    return {
        signature: replace(
            known[signature], compared=keep_newest((*known[signature].compared, source))
        )
        for signature in sorted(taught)
    }


def _find_sensitivity(member: Compared, records: Mapping[str, ProfileRecord]) -> float:
    """What planning takes for a member: the mean of the profiles that stand for it."""
    values = [
        record.sensitivity.value
        for signature in member.profiles
        if (record := records.get(signature)) is not None and record.sensitivity is not None
    ]
    return _average(values) if values else 0.0


def _list_felt(member: Compared, feedback: Feedback, left: Mapping[int, float]) -> list[float]:
    """What is left of its partners' residuals."""
    return [
        left[other.number]
        for other in feedback.members
        if other.number != member.number
        and member.number in other.partners
        and other.number in left
    ]


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
