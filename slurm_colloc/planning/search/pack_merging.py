"""Merging packs while that makes them cheaper, the best mergers first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurm_colloc.planning.predict.pack_costs import GAIN_MIN, Costs
from slurm_colloc.planning.predict.pack_pricing import Key

_ALL_PAIRS_MAX = 96
"""So many different packs are tried pairwise; of more, each with neighbours in length."""
_SMALL = 6
"""Packs of so many members on average are small."""
_MERGED_AT_ONCE = {True: 4, False: 3}
"""One pack in so many is merged before those left are looked at again, by whether they are
small."""


def merge(costs: Costs, key: Key) -> list[Key]:
    """Merge packs while that makes them cheaper, the best mergers first.

    Equal packs are merged together. A merger is the better the larger a part it saves of what
    its packs cost.
    """
    counts: Counter[Key] = Counter((kind,) for kind in key)
    gains: dict[tuple[Key, Key], float] = {}
    round_number = 0
    while True:
        packs = sorted(counts, key=lambda pack: (costs.measure_length_s(pack), pack))
        pairs = _list_pairs(packs, counts, round_number)
        new = [pair for pair in pairs if pair not in gains]
        merged = costs.look_up([tuple(sorted(a + b)) for a, b in new])
        own = dict(zip(packs, costs.look_up(packs), strict=True))
        for (a, b), cost in zip(new, merged, strict=True):
            apart = own[a] + own[b]
            # Where an idle GPU draws nothing, energy may be nothing, too.
            gains[a, b] = (apart - cost) / apart if apart else 0.0
        good = sorted((-gains[pair], pair) for pair in pairs if gains[pair] > GAIN_MIN)
        # The few mergers that are left to find among many packs are found by moving members.
        if len(good) <= (len(packs) // 100 if len(packs) > _ALL_PAIRS_MAX else 0):
            return [pack for pack in sorted(counts) for _ in range(counts[pack])]
        enough = max(1, len(packs) // _MERGED_AT_ONCE[_are_small(packs)])
        _merge_best(counts, [pair for _, pair in good], enough)
        gains = {
            pair: gain for pair, gain in gains.items() if pair[0] in counts and pair[1] in counts
        }
        round_number += 1


def _list_pairs(
    packs: Sequence[Key], counts: Counter[Key], round_number: int
) -> list[tuple[Key, Key]]:
    """Pairs of packs, ordered by length, that are worth a try."""
    if len(packs) <= _ALL_PAIRS_MAX:
        return [
            (a, b)
            for place, a in enumerate(packs)
            for b in packs[place:]
            if a != b or counts[a] > 1
        ]
    pairs = [(a, a) for a in packs if counts[a] > 1]
    offsets = (1, 2, 3, 4 + round_number % 13)
    for offset in offsets if _are_small(packs) else offsets[::2]:
        pairs += zip(packs, packs[offset:], strict=False)
    return pairs


def _are_small(packs: Sequence[Key]) -> bool:
    """Whether packs are small; large ones are dear to price, and many of them go together."""
    return sum(map(len, packs)) <= _SMALL * len(packs)


def _merge_best(counts: Counter[Key], pairs: Sequence[tuple[Key, Key]], enough: int) -> None:
    done = 0
    used: set[Key] = set()
    for a, b in pairs:
        if done >= enough:
            break
        if a in used or b in used:
            continue
        times = counts[a] // 2 if a == b else min(counts[a], counts[b])
        used |= {a, b}
        done += 1
        for pack in (a, b):
            counts[pack] -= times
        counts[tuple(sorted(a + b))] += times
    for pack in used:
        if not counts[pack]:
            del counts[pack]
