"""A seat of the MIG layout that a pack is planned with; a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedSeat:
    """One seat of a planned MIG layout: a compute instance, mostly of a GPU instance of its own.

    Attributes:
        word: As the layout names it, `3g`.
        profile: The profile of its GPU instance by the tables; NVML's on the node is what counts.
        instance: The number of its GPU instance in the layout.
        start: The first memory slice of that.
        size: Its memory slices.
        memory_mb: Its memory (MiB); None where the GPU is not known.
        sms: What it computes with.
        gpu_slices: Memory slices of the whole GPU.
        places: Members that have it at once: more than one share it by MPS.
    """

    word: str
    profile: str
    instance: int
    start: int
    size: int
    memory_mb: int | None
    sms: int
    gpu_slices: int
    places: int = 1


def name_seat(word: str, number: int) -> PlannedSeat:
    """A seat of which only its word is left, in a plan that is taken up again."""
    return PlannedSeat(word, word, number, 0, 0, None, 0, 0)
