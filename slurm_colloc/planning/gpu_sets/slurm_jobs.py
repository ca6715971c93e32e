"""Which packs of a plan are GPU sets of one Slurm job."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from slurm_colloc.model.plan import PackPlan


def number_slurm_jobs(groups: Iterable[Sequence[PackPlan]]) -> list[PackPlan]:
    """The packs of several groups, with Slurm jobs that are numbered through all of them."""
    found: list[PackPlan] = []
    unused = itertools.count()
    for packs in groups:
        numbers: dict[int, int] = {}
        for pack in packs:
            if pack.slurm_job is None:
                found.append(pack)
                continue
            if pack.slurm_job not in numbers:
                numbers[pack.slurm_job] = next(unused)
            found.append(dataclasses.replace(pack, slurm_job=numbers[pack.slurm_job]))
    return found


def group_by_slurm_job(packs: Iterable[PackPlan]) -> list[list[PackPlan]]:
    """The packs of each Slurm job, or element of an array, in order of their first."""
    groups: dict[object, list[PackPlan]] = {}
    for place, pack in enumerate(packs):
        key = ("alone", place) if pack.slurm_job is None else pack.slurm_job
        groups.setdefault(key, []).append(pack)
    return list(groups.values())
