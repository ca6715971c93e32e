"""Hard limits: what members need together, and whether one GPU has it; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.plan import KnownBy, UsageProfile
from slurm_colloc.planning.priced_packs import Limits, Subject

GPU_MEMORY_SHARE = 0.95
"""Part of a GPU's memory that needs may fill; the rest is for contexts."""

_GPU_MEMORY_ROOM = 1.2
_GPU_MEMORY_MARGIN_MB = 1024
"""What a job may need over the largest of its earlier runs, or of its relatives': part, and MB."""
_HOST_MEMORY_ROOM = 1.25
_RELATIVE_HOST_MEMORY_ROOM = 1.5
_HOST_MEMORY_MARGIN_MB = 256


@dataclass(frozen=True)
class Broken:
    """A limit that members would break together.

    Attributes:
        constraint: `gpu_memory`, `cpus`, `host_memory`, `clients` (members at once), `pack_size`,
            `queue` (members at once, as smaller packs wait less), `time` (it takes longer than a
            pack may), `duration` (one asks for much less time than the other), `slowdown`, `mig`
            (instances), `cost` (together they cost no less than apart), `unknown` (the load of
            one is unknown), `alone` (one shares with none), `group` (Slurm has to be asked for
            them apart), `order` (packs of unknown jobs are filled in the order of the call) or
            `rule` (the rule that was asked for does not put them together).
        have: What they would come to; None where no number is in the way.
        limit: What is allowed, of `duration` the least; None there, too.
        text: Both in a sentence.
    """

    constraint: str
    have: float | None
    limit: float | None
    text: str


def compute_usable_gpu_memory_mb(gpu_memory_mb: int | None) -> int | None:
    """What needs may fill of a GPU's memory, in MB; None where that is unknown."""
    return None if gpu_memory_mb is None else int(gpu_memory_mb * GPU_MEMORY_SHARE)


def is_borrowed(profile: UsageProfile, calibration: Calibration | None) -> bool:
    """Whether profile and calibration are of two GPU models."""
    if calibration is None or not profile.gpu_model or not calibration.gpu_model:
        return False
    return profile.gpu_model != calibration.gpu_model


def add_gpu_memory_margin(peak_mb: float) -> int:
    """What a process may need at most, in MB, by the largest that was seen of it or its relatives.

    Args:
        peak_mb: Of the whole process, with its CUDA context and the workspaces of libraries.
    """
    return math.ceil(peak_mb * _GPU_MEMORY_ROOM) + _GPU_MEMORY_MARGIN_MB


def compute_gpu_memory_limit_mb(profile: UsageProfile) -> int | None:
    """GPU memory that a job may need at most, its first seconds included; None where unknown."""
    peak_mb = profile.gpu_memory_peak_mb
    return add_gpu_memory_margin(peak_mb) if peak_mb and peak_mb > 0 else None


def compute_gpu_memory_need_mb(profile: UsageProfile) -> int | None:
    """GPU memory that a job takes from its partners while it runs; None where that is unknown.

    It is less than the limit where only its first seconds had the peak: the node lets no member
    start for whose peak there is no room, so not all have theirs at once.
    """
    limit_mb, usual_mb = compute_gpu_memory_limit_mb(profile), profile.gpu_memory_usual_mb
    if limit_mb is None or not usual_mb or usual_mb < 0:
        return limit_mb
    return min(limit_mb, add_gpu_memory_margin(usual_mb))


def compute_host_memory_limit_mb(profile: UsageProfile) -> int | None:
    """Host memory that a job may need at most, in MB; None where no peak is known."""
    peak = profile.host_memory_peak_mb
    if not peak or peak < 0:
        return None
    own = profile.known_by is KnownBy.EXACT
    room = _HOST_MEMORY_ROOM if own else _RELATIVE_HOST_MEMORY_ROOM
    return math.ceil(peak * room) + _HOST_MEMORY_MARGIN_MB


def find_broken(subjects: Sequence[Subject], limits: Limits) -> tuple[Broken, ...]:
    """Every hard limit that these jobs would break if they all ran at once on one GPU.

    A job alone breaks none: what it asks for is Slurm's to grant. A need that is unknown counts
    as nothing.

    Args:
        subjects: The jobs.
        limits: What one GPU has.
    """
    count = len(subjects)
    if count < 2:
        return ()
    broken = []
    if limits.members is not None and count > limits.members:
        text = f"{count} would run at once, {limits.members} may"
        broken.append(Broken("clients", count, limits.members, text))
    if limits.cpus is not None:
        cpus = sum(subject.cpus for subject in subjects)
        if cpus > limits.cpus:
            text = f"{count} at once need {cpus} CPUs, the GPU's share is {limits.cpus}"
            broken.append(Broken("cpus", cpus, limits.cpus, text))
    if limits.host_memory_mb is not None:
        memory = sum(subject.host_memory_mb or 0 for subject in subjects)
        share = limits.host_memory_mb
        if memory > share:
            text = f"{count} at once need {memory} MB of host memory, the GPU's share is {share} MB"
            broken.append(Broken("host_memory", memory, share, text))
    if limits.gpu_memory_mb is not None:
        memory = sum(subject.gpu_memory_mb or 0 for subject in subjects)
        usable = limits.gpu_memory_mb
        if memory > usable:
            text = f"{count} at once need {memory} MB of GPU memory, {usable} MB are usable"
            broken.append(Broken("gpu_memory", memory, usable, text))
    if limits.finish_s is not None:
        longest = max(subject.run_s for subject in subjects)
        if longest > limits.finish_s:
            text = (
                f"the longest runs {longest:.0f} s alone, a pack may last {limits.finish_s:.0f} s"
            )
            broken.append(Broken("time", longest, limits.finish_s, text))
    if limits.has_instances:
        broken += find_broken_instances(subjects, limits)
    return tuple(broken)


def find_broken_instances(subjects: Sequence[Subject], limits: Limits) -> list[Broken]:
    """What these jobs would break if each had one of equal MIG instances of the GPU.

    Args:
        subjects: The jobs.
        limits: What one GPU has.
    """
    count = len(subjects)
    most = len(limits.instance_rooms_mb) - 1
    if count > most:
        text = f"{count} would run at once, a GPU has at most {most} MIG instances"
        return [Broken("mig", count, most, text)]
    need_mb = max(subject.gpu_memory_mb or 0 for subject in subjects)
    room_mb = limits.instance_rooms_mb[count]
    if room_mb is None or need_mb <= room_mb:
        return []
    text = f"one needs {need_mb} MB of GPU memory, each of {count} MIG instances has {room_mb} MB"
    return [Broken("mig", need_mb, room_mb, text)]
