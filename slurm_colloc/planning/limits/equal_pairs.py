"""Pairs of jobs that are alike, told once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from slurm_colloc.planning.explain.explanation import PairExplanation


def merge_alike(
    pairs: Iterable[PairExplanation], labels: Sequence[str]
) -> tuple[PairExplanation, ...]:
    """Pairs of the same names with the same reason once, with how many pairs they stand for.

    Args:
        pairs: The pairs.
        labels: What the jobs are called in their reasons, by index.
    """
    found: dict[object, PairExplanation] = {}
    for pair in pairs:
        add_alike(found, pair, labels)
    return tuple(found.values())


def add_alike(
    found: dict[object, PairExplanation], pair: PairExplanation, labels: Sequence[str]
) -> None:
    """Add a pair, or count it to one that is alike."""
    text = pair.text
    named = [
        (labels[pair.first_index], pair.first),
        (labels[pair.second_index], pair.second),
        *zip((labels[index] for index in pair.pack_indices), pair.packs, strict=True),
    ]
    # The longest first, since `train.sh 1` begins `train.sh 12`.
    for label, name in sorted(named, key=lambda entry: -len(entry[0])):
        text = text.replace(label, name)
    key = (*sorted((pair.first, pair.second)), tuple(sorted(set(pair.packs))), text)
    known = found.get(key)
    if known is not None:
        pair = dataclasses.replace(known, pairs=known.pairs + pair.pairs)
    found[key] = pair
