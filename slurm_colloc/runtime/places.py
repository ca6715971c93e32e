"""The places of a pack, made from what its members want of the allocation."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.runtime.allocation import Allocation, choose_places
from slurm_colloc.runtime.roster import Place
from slurm_colloc.store.directory import list_members, read_spec


def make_places(
    pack: Path, degree: int, allocation: Allocation, *, lone: bool
) -> tuple[list[Place], str]:
    """A place for each of the members that run at the same time, the largest first.

    Args:
        pack: The pack's directory.
        degree: How many run at the same time.
        allocation: What Slurm gave.
        lone: The pack has one member, which has all of it.

    Returns:
        The places, and why their members are not bound to CPUs; empty where they are.

    Raises:
        StateError: A member's record is damaged.
    """
    wants = sorted((read_spec(pack, n).plan.cpus for n in list_members(pack)), reverse=True)
    wanted = wants[:degree]
    shares: tuple[tuple[int, ...], ...] = ((),)
    why = ""
    if not lone:
        shares, why = choose_places(allocation, wanted)
    places = [
        Place(index, want, cpus)
        for index, (want, cpus) in enumerate(zip(wanted, shares, strict=True))
    ]
    return places, why
