"""What a plan comes to, and two plans side by side."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence

from slurm_colloc.model.sbatch.arrays import format_task_ids
from slurm_colloc.planning.explain.explanation import (
    PackExplanation,
    PairExplanation,
    PlanExplanation,
)
from slurm_colloc.planning.job_needs import label_jobs
from slurm_colloc.report.terminal_tables import (
    Column,
    build_table,
    format_figure,
    format_mb_figure,
    format_span,
    render,
)


@dataclasses.dataclass(frozen=True)
class PlanFigures:
    """What a plan comes to; None where it is unknown of a job.

    Attributes:
        packs: Packs.
        gpus: Their GPUs.
        gpu_hours: For how long GPUs are held.
        serial_gpu_hours: The same if every job had a GPU of its own.
        energy_wh: Energy of the GPUs while they are held, in watt hours.
        mean_slowdown: Mean over the jobs.
        worst_slowdown: The largest.
        finish_s: When the last job ends if all packs start at once, or as many as `%limit` of an
            array lets run, in seconds.
    """

    packs: int
    gpus: int
    gpu_hours: float | None
    serial_gpu_hours: float | None
    energy_wh: float | None
    mean_slowdown: float | None
    worst_slowdown: float | None
    finish_s: float | None


def compute_plan_figures(explanation: PlanExplanation) -> PlanFigures:
    """What a plan comes to."""
    jobs = group_slurm_jobs(explanation.packs)
    held = [_find_last_s(packs) for packs in jobs]
    gpus = [sum(pack.gpus for pack in packs) for packs in jobs]
    slowdowns = [
        1.0 if len(pack.members) == 1 else member.slowdown
        for pack in explanation.packs
        for member in pack.members
    ]
    known = [slowdown for slowdown in slowdowns if slowdown is not None]
    # A Slurm job holds all its GPUs until the last of its members ends.
    held_s = _sum_known(
        [None if s is None else s * count for s, count in zip(held, gpus, strict=True)]
    )
    serial_s = _sum_known([run_s for pack in explanation.packs for run_s in _find_run_s(pack)])
    is_known = bool(known) and len(known) == len(slowdowns)
    return PlanFigures(
        packs=len(jobs),
        gpus=sum(gpus),
        gpu_hours=None if held_s is None else held_s / 3600,
        serial_gpu_hours=None if serial_s is None else serial_s / 3600,
        energy_wh=_sum_known([pack.energy_wh for pack in explanation.packs]),
        # Rounding puts no mean above all that it is of.
        mean_slowdown=min(math.fsum(known) / len(known), max(known)) if is_known else None,
        worst_slowdown=max(known) if is_known else None,
        finish_s=None if held_s is None else _find_end_s(held, _count_at_once(explanation, gpus)),
    )


def group_slurm_jobs(packs: Sequence[PackExplanation]) -> list[list[PackExplanation]]:
    """The packs of each Slurm job, in order of their first: one for each of its GPU sets."""
    found: dict[object, list[PackExplanation]] = {}
    for place, pack in enumerate(packs):
        key = ("alone", place) if pack.slurm_job is None else pack.slurm_job
        found.setdefault(key, []).append(pack)
    return list(found.values())


def _find_last_s(packs: Sequence[PackExplanation]) -> float | None:
    """For how long a Slurm job holds its GPUs; None where no earlier runs tell."""
    ends = [_find_finish_s(pack) for pack in packs]
    return None if None in ends else max(end for end in ends if end is not None)


def _count_at_once(explanation: PlanExplanation, gpus: Sequence[int]) -> int | None:
    """Packs that can run at the same time: as many as may, and as there are GPUs."""
    there = explanation.gpus
    by_gpus = None if not there else max(1, there // max(gpus, default=1))
    known = [limit for limit in (explanation.packs_at_once, by_gpus) if limit]
    return min(known, default=None)


def _find_end_s(held: Sequence[float | None], packs_at_once: int | None) -> float:
    """When the last pack ends: they start in their order, as soon as they may."""
    ends = [0.0] * min(len(held), packs_at_once or len(held))
    for pack_s in held:
        heapq.heapreplace(ends, ends[0] + (pack_s or 0.0))
    return max(ends)


def _find_finish_s(pack: PackExplanation) -> float | None:
    """For how long a pack holds its GPU; None where no earlier runs tell."""
    if pack.predicted_finish_s is None and len(pack.members) == 1:
        return pack.members[0].run_s
    return pack.predicted_finish_s


def _find_run_s(pack: PackExplanation) -> list[float | None]:
    """How long each member runs alone; None where unknown."""
    if len(pack.members) == 1:
        return [_find_finish_s(pack)]
    return [member.run_s for member in pack.members]


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def render_comparison(plan: PlanExplanation, other: PlanExplanation, words: str, width: int) -> str:
    """Two plans side by side.

    Args:
        plan: The plan.
        other: The one with something changed.
        words: What was changed.
        width: Columns of the terminal.
    """
    figures, changed = compute_plan_figures(plan), compute_plan_figures(other)

    def write(found: PlanFigures) -> tuple[str, ...]:
        return (
            str(found.packs),
            str(found.gpus),
            format_figure(found.gpu_hours),
            format_figure(found.energy_wh),
            format_figure(found.mean_slowdown),
            format_figure(found.worst_slowdown),
            format_span(found.finish_s),
        )

    names = (
        "packs",
        "GPUs",
        "GPU hours",
        "GPU energy (Wh)",
        "mean slowdown",
        "worst slowdown",
        "last job ends after",
    )
    columns = [
        Column("", is_number=False),
        Column("THIS PLAN"),
        Column(f"WITH {words}", gives_way=True),
    ]
    rows = list(zip(names, write(figures), write(changed), strict=True))
    return render([build_table(columns, rows, width)], width)


_BAR_MOST = 40
_BAR_LEAST = 10
_BESIDE_BAR = 43
"""Columns of a line next to its bar."""
_PCIE_SHOWN = 0.05
"""Most trainings use next to none."""


def render_budget(pack: PackExplanation, width: int) -> list[str]:
    """What the members take together, a bar for each resource of which it is known."""
    memory, usable = pack.gpu_memory_mb, pack.gpu_memory_usable_mb
    bars: list[tuple[str, float | None, str]] = [
        (
            "GPU memory",
            memory / usable if memory is not None and usable else None,
            f"{format_mb_figure(memory)} of {format_mb_figure(usable)}",
        ),
        ("SM", pack.sm_activity, ""),
        ("DRAM", pack.dram_activity, ""),
    ]
    if pack.pcie_share is not None and pack.pcie_share >= _PCIE_SHOWN:
        bars.append(("PCIe", pack.pcie_share, ""))
    length = max(_BAR_LEAST, min(_BAR_MOST, width - _BESIDE_BAR))
    return [
        f"{name:<10}  {draw_bar(share, length)} {100 * share:>4.0f} %  {more}".rstrip()
        for name, share, more in bars
        if share is not None
    ]


def draw_bar(share: float, length: int) -> str:
    """A bar of plain characters, full from 1 on."""
    filled = round(min(1.0, max(0.0, share)) * length)
    return "#" * filled + "-" * (length - filled)


_SENTENCES_MOST = 50
"""Sentences that a screen shows; JSON has more."""
_NAMED_MOST = 8
"""Jobs that are named in one of them; the others are counted."""


def tell_pairs(explanation: PlanExplanation) -> list[str]:
    """Why jobs are in different packs, a sentence each, and how many more pairs there are."""
    members = [member for pack in explanation.packs for member in pack.members]
    named = {member.job_index: (member.name, member.number) for member in members}
    labels = dict(zip(named, label_jobs(named.values()), strict=True))
    told = _group(explanation.pairs)
    left = explanation.pairs_left_out
    left += sum(pair.pairs for pairs in told[_SENTENCES_MOST:] for pair in pairs)
    texts = [_tell(pairs, named, labels) for pairs in told[:_SENTENCES_MOST]]
    if left:
        texts.append(f"and {left} more {'pair' if left == 1 else 'pairs'} of jobs")
    return texts


def _group(pairs: Sequence[PairExplanation]) -> list[list[PairExplanation]]:
    """Pairs with one job in common and the same reason together; others by themselves."""
    found: list[tuple[set[int], list[PairExplanation]]] = []
    by_text: dict[str, list[tuple[set[int], list[PairExplanation]]]] = {}
    for pair in pairs:
        both = {pair.first_index, pair.second_index}
        # A reason that tells of one pack holds for no other.
        alike = [] if pair.pack_indices else by_text.setdefault(pair.text, [])
        for common, group in alike:
            if common & both:
                common.intersection_update(both)
                group.append(pair)
                break
        else:
            entry = (both, [pair])
            found.append(entry)
            alike.append(entry)
    return [group for _, group in found]


def _tell(
    pairs: Sequence[PairExplanation],
    named: Mapping[int, tuple[str, int]],
    labels: Mapping[int, str],
) -> str:
    """Why jobs are in different packs.

    Args:
        pairs: Pairs with the same reason; where they are several, they have a job in common.
        named: Name and number of each job of the call, by its index.
        labels: What each is called in sentences: several may have one name.
    """
    first = pairs[0]
    who = f"{labels[first.first_index]} and {labels[first.second_index]}"
    if len(pairs) > 1:
        one = min(set.intersection(*({pair.first_index, pair.second_index} for pair in pairs)))
        others = [
            pair.second_index if pair.first_index == one else pair.first_index for pair in pairs
        ]
        texts = [labels[index] for index in others[:_NAMED_MOST]]
        left = len(others) - len(texts)
        who = f"{labels[one]} and each of {', '.join(texts)}{f' and {left} more' if left else ''}"
    by_script: dict[str, list[int]] = {}
    for index in first.pack_indices:
        if index not in (first.first_index, first.second_index):
            name, number = named[index]
            by_script.setdefault(name, []).extend([number] if labels[index] != name else [])
    if by_script:
        told = [
            f"{name} {format_task_ids(numbers)}".rstrip() for name, numbers in by_script.items()
        ]
        who += f" (with {', '.join(told)})"
    count = sum(pair.pairs for pair in pairs)
    if count > len(pairs):
        who += f", {count} such pairs"
    return f"{who}: {first.text}"
