"""Rules of others for who shares a GPU, for comparison with csub's own search only.

Each is the rule as it was published, not the system around it. None knows a bound on slowdowns,
a tail or thread limits. What no user of csub can go beyond holds for all: CPUs and host memory of
the GPU's share, clients of one MPS server, and GPU memory. `first-fit`, by the user's order and
words alone, is planning.unknown: what csub does where nothing is known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.plan import Rule
from slurm_colloc.planning.durations import compute_ends_s
from slurm_colloc.planning.limits import find_broken
from slurm_colloc.planning.subject import Limits, Setting, Subject
from slurm_colloc.planning.weighing import predict_setting

ADDITIVE_SM_MOST = 1.0
ADDITIVE_DRAM_MOST = 0.8
CARMA_SM_MOST = 0.80
CARMA_DRAM_MOST = 0.40
CARMA_ROOM_MB = 2048

_Partition = tuple[tuple[int, ...], ...]


def partition(
    rule: Rule, subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """Divide jobs into packs by a rule of others.

    Args:
        rule: The rule.
        subjects: The jobs; one of unknown load or GPU memory stays alone, as none of these rules
            can place it.
        limits: What one GPU has.
        gpu_memory_mb: Memory of one GPU; None where unknown.

    Raises:
        ValueError: It is no rule that works on loads.
    """
    rules: dict[Rule, Callable[[Sequence[Subject], Limits, int | None], _Partition]] = {
        Rule.EXCLUSIVE: place_exclusively,
        Rule.ADDITIVE: place_additively,
        Rule.CARMA: place_by_carma,
    }
    if rule not in rules:
        raise ValueError(f"{rule} places nobody by loads")
    return rules[rule](subjects, limits, gpu_memory_mb)


def place_exclusively(
    subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """A GPU for each job: what Slurm does without csub (sbatch(1), `--gres=gpu:1`)."""
    del limits, gpu_memory_mb
    return tuple((i,) for i in range(len(subjects)))


def place_additively(
    subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """First fit, the longest first, while what the jobs use alone adds up to no more than a GPU.

    That utilisation adds up is the rule without a model: the sums of engine and SM activity are at
    most 1, that of DRAM activity 0.8. By length is first fit decreasing (Johnson, "Near-optimal
    bin packing algorithms", MIT, 1973).
    """
    del gpu_memory_mb
    order = sorted(range(len(subjects)), key=lambda i: (-subjects[i].run_s, i))
    packs: list[list[int]] = []
    for i in order:
        for members in packs:
            together = [subjects[j] for j in (*members, i)]
            if _adds_up(together) and not _breaks(together, limits):
                members.append(i)
                break
        else:
            packs.append([i])
    return tuple(tuple(members) for members in packs)


def _adds_up(subjects: Sequence[Subject]) -> bool:
    loads = [subject.load for subject in subjects]
    known = [load for load in loads if load is not None]
    if len(known) < len(loads) or any(subject.gpu_memory_mb is None for subject in subjects):
        return False
    return (
        sum(load.engine for load in known) <= ADDITIVE_SM_MOST
        and sum(load.sm for load in known) <= ADDITIVE_SM_MOST
        and sum(load.dram for load in known) <= ADDITIVE_DRAM_MOST
    )


def place_by_carma(
    subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> _Partition:
    """CARMA's rule (Yousefzadeh-Asl-Miandoab et al., arXiv 2508.19073, 2026), first come first.

    A job does not go to a GPU whose resident jobs keep 80 % of the SMs and 40 % of the DRAM active
    (in its program 45 % occupancy of the SMs does as well as the DRAM, which no usage profile
    holds), or whose free memory does not exceed the job's estimate by 2 GiB; of several that are
    left it goes to the one with the most memory (MAGM). The rule fills a server of given GPUs as
    jobs come, an idle one before any that is in use. Here GPUs are asked of Slurm, so that a
    further one is idle only where none in use takes the job.
    """
    packs: list[list[int]] = []
    for i, subject in enumerate(subjects):
        best: tuple[int, list[int]] | None = None
        for members in packs:
            residents = [subjects[j] for j in members]
            free_mb = _find_room_mb(residents, subject, gpu_memory_mb)
            if free_mb is None or _breaks([*residents, subject], limits):
                continue
            if best is None or free_mb > best[0]:
                best = (free_mb, members)
        if best is None:
            packs.append([i])
        else:
            best[1].append(i)
    return tuple(tuple(members) for members in packs)


def _find_room_mb(
    residents: Sequence[Subject], new: Subject, gpu_memory_mb: int | None
) -> int | None:
    """Free GPU memory where a job may come on top; None where it may not."""
    loads = [resident.load for resident in residents]
    known = [load for load in loads if load is not None]
    if new.load is None or len(known) < len(loads):
        return None
    # What is measured on a GPU is what all together keep busy, never more than the whole of it.
    are_sms_taken = sum(load.sm for load in known) >= CARMA_SM_MOST
    if are_sms_taken and sum(load.dram for load in known) >= CARMA_DRAM_MOST:
        return None
    sizes = [resident.gpu_memory_mb for resident in residents]
    if new.gpu_memory_mb is None or gpu_memory_mb is None or None in sizes:
        return None
    free_mb = gpu_memory_mb - sum(size for size in sizes if size is not None)
    return free_mb if free_mb >= new.gpu_memory_mb + CARMA_ROOM_MB else None


def describe_sums(rule: Rule, subjects: Sequence[Subject]) -> str:
    """What a rule looked at in a pack, with the most that it allows; empty where at no load."""
    loads = [subject.load for subject in subjects if subject.load is not None]
    engine, sm, dram = (
        math.fsum(getattr(load, name) for load in loads) for name in ("engine", "sm", "dram")
    )
    if rule is Rule.ADDITIVE:
        return (
            f"alone they take engine {engine:.2f} and SM {sm:.2f} of {ADDITIVE_SM_MOST:g}, "
            f"DRAM {dram:.2f} of {ADDITIVE_DRAM_MOST:g}"
        )
    if rule is Rule.CARMA:
        return (
            f"alone they take SM {sm:.2f} of {CARMA_SM_MOST:g}, DRAM {dram:.2f} of "
            f"{CARMA_DRAM_MOST:g}; nobody comes on top of those who reach both"
        )
    return ""


def predict_pack(
    subjects: Sequence[Subject], setting: Setting, calibration: Calibration | None
) -> tuple[tuple[float, ...] | None, float | None]:
    """What a pack comes to that a rule of others made, by the model that csub's own go by.

    Args:
        subjects: The members, which all run at once.
        setting: How they share.
        calibration: How jobs slow each other down.

    Returns:
        Each member's slowdown while all run, and seconds until the last ends, those left being
        rated anew with the limits that they have; None where a load or the model is unknown.
    """
    slowdowns = predict_setting(subjects, setting, calibration)
    if slowdowns is None:
        return None, None

    def rate(running: tuple[int, ...]) -> Sequence[float]:
        left = Setting(setting.mode, tuple(setting.percentages[i] for i in running))
        return predict_setting([subjects[i] for i in running], left, calibration) or ()

    ends = compute_ends_s([s.run_s for s in subjects], [1.0] * len(subjects), rate)
    return slowdowns, max(ends)


def _breaks(subjects: Sequence[Subject], limits: Limits) -> bool:
    return bool(find_broken(subjects, dataclasses.replace(limits, finish_s=None)))
