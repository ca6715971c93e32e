"""The cheapest partition of a few members, given what every subset of them costs.

A subset is a number whose bit i says that member i is in it. Imported only where a search needs
it: it loads numpy.
"""

from __future__ import annotations

import numpy as np

from slurm_colloc.planning.predict.array_arithmetic import Array

_FEW = 4


def find_cheapest_partition(costs: Array) -> list[int]:
    """Divide all members into packs of least total cost: exact, in time 3^members.

    A subset that has member m as its highest costs least as the best of its packs with m alongside
    the best partition of the others; for all subsets with that highest member this is a
    convolution over subsets, of their costs and the best that are known for lower members.

    Args:
        costs: Of each pack, by subset; a single member's is finite.

    Returns:
        The packs, as subsets, that of the highest member first. Among equal ones the choice
        depends on the costs alone.
    """
    best = np.array([0.0])
    members = len(costs).bit_length() - 1
    for member in range(members - 1):
        best = np.concatenate([best, _convolve(costs[1 << member : 2 << member], best)])
    packs = []
    rest = np.int64(len(costs) - 1)
    while rest:
        highest = 1 << (int(rest).bit_length() - 1)
        others = _list_subsets(int(rest) ^ highest)
        totals = costs[others | highest] + best[others[::-1]]
        pack = int(others[int(np.argmin(totals))]) | highest
        packs.append(pack)
        rest ^= pack
    return packs


def _list_subsets(members: int) -> Array:
    """All subsets of a set, ascending: the complement of the i-th is the i-th from the end."""
    result = np.zeros(1, np.int64)
    for bit in range(members.bit_length()):
        if members >> bit & 1:
            result = np.concatenate([result, result | (1 << bit)])
    return result


def _convolve(first: Array, second: Array) -> Array:
    """For each subset, the least sum of the first of a part of it and the second of the rest.

    Each member is in neither part, in the first's or in the second's: three cases, which are laid
    out member after member, and of which the latter two are taken together afterwards. The last
    few members are gone through one case after the other, which takes less memory.
    """
    bits = len(first).bit_length() - 1
    few = min(bits, _FEW)
    left: Array = first.astype(np.float32)
    right: Array = second.astype(np.float32)
    for done in range(bits - few):
        left = left.reshape(1 << few, 3**done, 2, -1)[:, :, (0, 1, 0)]
        right = right.reshape(1 << few, 3**done, 2, -1)[:, :, (0, 0, 1)]
    left, right = left.reshape(1 << few, -1), right.reshape(1 << few, -1)
    sums = left + right[0]
    room = np.empty_like(sums[0])
    for subset in range(1, 1 << few):
        part = (subset - 1) & subset
        while True:
            np.add(left[part], right[subset ^ part], out=room)
            np.minimum(sums[subset], room, out=sums[subset])
            if not part:
                break
            part = (part - 1) & subset
    for done in range(bits - few - 1, -1, -1):
        sums = sums.reshape(1 << few, 3**done, 3, -1)
        both = np.minimum(sums[:, :, 1], sums[:, :, 2])
        sums = np.stack([sums[:, :, 0], both], axis=2)
    return np.asarray(sums.reshape(-1))
