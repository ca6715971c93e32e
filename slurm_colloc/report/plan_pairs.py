"""Which jobs of a plan are not together, and why: a sentence for all pairs that it holds for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.model.arrays import format_task_ids
from slurm_colloc.planning.explain.explanation import PairExplanation, PlanExplanation, label_jobs

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
    beside: dict[str, list[int]] = {}
    for index in first.pack_indices:
        if index not in (first.first_index, first.second_index):
            name, number = named[index]
            beside.setdefault(name, []).extend([number] if labels[index] != name else [])
    if beside:
        told = [f"{name} {format_task_ids(numbers)}".rstrip() for name, numbers in beside.items()]
        who += f" (with {', '.join(told)})"
    count = sum(pair.pairs for pair in pairs)
    if count > len(pairs):
        who += f", {count} such pairs"
    return f"{who}: {first.text}"
