"""What a member that starts gets of the GPU memory that is reserved for none; pure.

One whose need is known gets that. An unknown one gets a generous part, so that several start at
once, each safe from the others: it is what the process may take at most, and is reserved until it
has shown what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

PART_OF_FREE = 4
PART_OF_GPU = 8
"""An unknown member gets the one part of what is free, and at least the other one of the GPU."""


@dataclass(frozen=True)
class FreeMemory:
    """GPU memory that is reserved for no member.

    Attributes:
        usable_mb: What members may take together of one GPU.
        free_mb: What is left of each, by UUID; less than 0 where more is reserved than there is.
        members: How many members use each.
        enforces: A member can be held to its part.
    """

    usable_mb: int
    free_mb: Mapping[str, int]
    members: Mapping[str, int]
    enforces: bool = True

    def choose_gpus(self, gpus: int) -> tuple[str, ...]:
        """The GPUs that a member of so many gets: most free, then fewest members."""
        order = sorted(self.free_mb, key=lambda gpu: (-self.free_mb[gpu], self.members[gpu]))
        return tuple(order[: max(1, gpus)])

    def find_free_mb(self, gpus: int) -> int:
        """What is free on each of the GPUs that such a member gets."""
        return min(self.free_mb[gpu] for gpu in self.choose_gpus(gpus))

    def choose_part_mb(self, need_mb: int | None, gpus: int = 1) -> int | None:
        """What is reserved for a member that starts now, on each of its GPUs; None for no room.

        Where parts cannot be enforced an unknown member has all that is left: until it has shown
        what it takes no other unknown one starts.

        Args:
            need_mb: What it needs; None where that is not known.
            gpus: How many GPUs it uses.
        """
        free_mb = self.find_free_mb(gpus)
        if need_mb is not None:
            return need_mb if need_mb <= free_mb else None
        least_mb = self.usable_mb // PART_OF_GPU
        if free_mb < least_mb:
            return None
        return max(least_mb, free_mb // PART_OF_FREE) if self.enforces else free_mb

    def reserve(self, part_mb: int, gpus: int = 1) -> FreeMemory:
        """What is free once a member has started that gets so much of each of its GPUs."""
        chosen = self.choose_gpus(gpus)
        return replace(
            self,
            free_mb={
                gpu: mb - part_mb if gpu in chosen else mb for gpu, mb in self.free_mb.items()
            },
            members={gpu: count + (gpu in chosen) for gpu, count in self.members.items()},
        )


def count_starts(free: FreeMemory, needs_mb: Sequence[int | None], gpus: int = 1) -> int:
    """How many of these could start now, in this order, up to the first that finds no room.

    Args:
        free: What is free.
        needs_mb: What each needs; None where that is not known.
        gpus: How many GPUs each uses.
    """
    for count, need_mb in enumerate(needs_mb):
        part_mb = free.choose_part_mb(need_mb, gpus)
        if part_mb is None:
            return count
        free = free.reserve(part_mb, gpus)
    return len(needs_mb)
