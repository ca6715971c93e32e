"""Rules of others for who shares a GPU, to compare csub's own search with; pure.

Each is the rule as it was published, not the system around it. None knows a bound on slowdowns,
a tail or thread limits. What no user of csub can go beyond holds for all: CPUs and host memory of
the GPU's share, clients of one MPS server, and GPU memory as measured.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from slurm_colloc.planning.hard_limits import Limits, Subject, find_broken


class Rule(enum.StrEnum):
    """What makes the packs."""

    CSUB = "csub"
    EXCLUSIVE = "exclusive"
    """A GPU for each job: what Slurm does without csub."""
    FIRST_FIT = "first-fit"
    """By the user's order and words and measured GPU memory: csub where nothing else is known."""
    CARMA = "carma"
    ADDITIVE = "additive"


ADDITIVE_SM_MOST = 1.0
ADDITIVE_DRAM_MOST = 0.8
CARMA_SM_MOST = 0.80
CARMA_DRAM_MOST = 0.40
CARMA_ROOM_MB = 2048


def place_by(
    rule: Rule, subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
) -> list[list[int]]:
    """Give each job to the first pack that takes it, else to a new one.

    The additive rule comes to the longest first (first fit decreasing; Johnson, "Near-optimal bin
    packing algorithms", MIT, 1973). CARMA chooses the pack with the most free memory (MAGM;
    Yousefzadeh-Asl-Miandoab et al., arXiv 2508.19073, 2026), and fills a server of given GPUs as
    jobs come, an idle one before any that is in use. Here GPUs are asked of Slurm, so that a
    further one is idle only where none in use takes the job.

    Args:
        rule: One that looks at loads, or `exclusive`.
        subjects: The jobs; one of unknown load or GPU memory stays alone.
        limits: What one GPU has.
        gpu_memory_mb: Memory of one GPU; None where unknown.

    Returns:
        The positions of each pack's members.
    """
    limits = dataclasses.replace(limits, finish_s=None)
    order = list(range(len(subjects)))
    if rule is Rule.ADDITIVE:
        order.sort(key=lambda i: -subjects[i].run_s)
    packs: list[list[int]] = []
    for i in order:
        takers = [
            pack
            for pack in packs
            if takes(rule, [subjects[j] for j in pack], subjects[i], gpu_memory_mb)
            and not find_broken([subjects[j] for j in (*pack, i)], limits)
        ]
        if rule is Rule.CARMA:
            takers.sort(key=lambda pack: sum(subjects[j].gpu_memory_mb or 0 for j in pack))
        if takers:
            takers[0].append(i)
        else:
            packs.append([i])
    return packs


def takes(
    rule: Rule, residents: Sequence[Subject], new: Subject, gpu_memory_mb: int | None
) -> bool:
    """Whether a job may come on top of others by a rule's own limits.

    That utilisation adds up is the additive rule: the sums of engine and SM activity are at most
    1, that of DRAM activity 0.8. By CARMA a job does not go to a GPU whose resident jobs keep 80 %
    of the SMs and 40 % of the DRAM active (in its program 45 % occupancy of the SMs does as well
    as the DRAM, which no usage profile holds), or whose free memory does not exceed the job's
    estimate by 2 GiB.
    """
    loads = [subject.load for subject in (*residents, new) if subject.load is not None]
    sizes = [subject.gpu_memory_mb for subject in (*residents, new)]
    if rule is Rule.EXCLUSIVE or len(loads) <= len(residents) or None in sizes:
        return False
    if rule is Rule.ADDITIVE:
        return (
            sum(load.engine for load in loads) <= ADDITIVE_SM_MOST
            and sum(load.sm for load in loads) <= ADDITIVE_SM_MOST
            and sum(load.dram for load in loads) <= ADDITIVE_DRAM_MOST
        )
    # What is measured on a GPU is what all together keep busy, never more than the whole of it.
    sm, dram = (sum(getattr(load, name) for load in loads[:-1]) for name in ("sm", "dram"))
    if gpu_memory_mb is None or (sm >= CARMA_SM_MOST and dram >= CARMA_DRAM_MOST):
        return False
    return sum(size or 0 for size in sizes) + CARMA_ROOM_MB <= gpu_memory_mb
