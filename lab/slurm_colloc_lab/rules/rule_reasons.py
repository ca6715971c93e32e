"""Why a rule of others did not put two jobs together, with both numbers of what it looks at; pure.

It is told of the moment at which the rule placed the second of the two: who came later is in
no job's way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from slurm_colloc.model.plan import Rule
from slurm_colloc.planning.hard_limits import Broken, Subject, find_broken
from slurm_colloc.planning.job_needs import Question, build_limits
from slurm_colloc_lab.rules.other_rules import (
    ADDITIVE_DRAM_MOST,
    ADDITIVE_SM_MOST,
    CARMA_DRAM_MOST,
    CARMA_ROOM_MB,
    CARMA_SM_MOST,
)


def find_by_rule(
    question: Question,
    subjects: Sequence[Subject],
    names: Sequence[str],
    packs: tuple[Sequence[int], Sequence[int]],
    pair: tuple[int, int],
) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
    """What keeps two jobs apart under a rule that works on loads, or on nothing.

    Args:
        question: What planning was asked.
        subjects: Its jobs.
        names: What they are called.
        packs: The packs of the two.
        pair: The two.

    Returns:
        What is in the way, and who was in the pack that the second would have joined; none
        where the two alone could not share.
    """
    rule = question.policy.rule
    if rule is Rule.EXCLUSIVE:
        return (Broken("rule", 2, 1, f"the rule {rule} gives each job a GPU of its own"),), ()
    for index in pair:
        if subjects[index].load is None or subjects[index].gpu_memory_mb is None:
            text = f"what {names[index]} uses of a GPU is not known: the rule {rule} cannot tell"
            return (Broken("unknown", None, None, text),), ()
    places = {index: _find_place(rule, subjects, index) for index in (*packs[0], *packs[1])}
    (earlier, pack), (new, _) = sorted(
        zip(pair, packs, strict=True), key=lambda entry: places[entry[0]]
    )
    residents = [index for index in pack if places[index] < places[new]]
    for others in ([earlier], residents):
        broken = _find_broken(question, subjects, names, others, new)
        if broken:
            return broken, tuple(others) if len(others) > 1 else ()
    chosen = (
        "the pack with the most free GPU memory"
        if rule is Rule.CARMA
        else "the first pack that took it"
    )
    text = f"the rule {rule} put {names[new]} into {chosen}"
    return (Broken("order", None, None, text),), tuple(residents)


def _find_place(rule: Rule, subjects: Sequence[Subject], index: int) -> tuple[float, int]:
    """When a rule comes to a job: `additive` places the longest first."""
    return (-subjects[index].run_s if rule is Rule.ADDITIVE else 0.0, index)


def _find_broken(
    question: Question,
    subjects: Sequence[Subject],
    names: Sequence[str],
    residents: Sequence[int],
    new: int,
) -> tuple[Broken, ...]:
    """What is in the way of a job that comes on top of others."""
    limits = dataclasses.replace(build_limits(question, [subjects[new]]), finish_s=None)
    broken = list(find_broken([subjects[index] for index in (*residents, new)], limits))
    if question.policy.rule is Rule.CARMA:
        broken += _find_taken([subjects[index] for index in residents])
        broken += _find_full(
            [subjects[index] for index in residents],
            subjects[new],
            names[new],
            question.capacity.gpu_memory_mb,
        )
    else:
        broken += _find_sums([subjects[index] for index in (*residents, new)])
    return tuple(broken)


def _find_sums(members: Sequence[Subject]) -> list[Broken]:
    most = {"engine": ADDITIVE_SM_MOST, "sm": ADDITIVE_SM_MOST, "dram": ADDITIVE_DRAM_MOST}
    words = {"engine": "engine", "sm": "SM", "dram": "DRAM"}
    broken = []
    for name, limit in most.items():
        have = _add_up(members, name)
        if have > limit:
            text = (
                f"{words[name]} activities add up to {have:.2f}, the rule {Rule.ADDITIVE} allows "
                f"{limit:g}"
            )
            broken.append(Broken("rule", have, limit, text))
    return broken


def _find_taken(residents: Sequence[Subject]) -> list[Broken]:
    sm, dram = _add_up(residents, "sm"), _add_up(residents, "dram")
    if sm < CARMA_SM_MOST or dram < CARMA_DRAM_MOST:
        return []
    text = (
        f"SM activities add up to {sm:.2f} and those of DRAM to {dram:.2f}, the rule {Rule.CARMA} "
        f"puts no job on top of {CARMA_SM_MOST:g} and {CARMA_DRAM_MOST:g}"
    )
    # Either of the two would have to be less.
    return [Broken("rule", sm, CARMA_SM_MOST, text)]


def _find_full(
    residents: Sequence[Subject], new: Subject, name: str, gpu_memory_mb: int | None
) -> list[Broken]:
    if gpu_memory_mb is None:
        text = f"the GPU's memory is not known here: the rule {Rule.CARMA} cannot tell"
        return [Broken("rule", None, None, text)]
    free_mb = gpu_memory_mb - sum(resident.gpu_memory_mb or 0 for resident in residents)
    need_mb = (new.gpu_memory_mb or 0) + CARMA_ROOM_MB
    if free_mb >= need_mb:
        return []
    text = (
        f"{name} needs {need_mb - CARMA_ROOM_MB} MB of GPU memory, and the rule {Rule.CARMA} "
        f"{CARMA_ROOM_MB} MB on top; {free_mb} MB are free"
    )
    return [Broken("rule", need_mb, free_mb, text)]


def _add_up(members: Sequence[Subject], name: str) -> float:
    return math.fsum(getattr(subject.load, name) for subject in members if subject.load)
