"""Dividing the CPUs of an allocation among the places of a pack."""

from __future__ import annotations

from collections.abc import Sequence


def format_cpu_list(cpus: Sequence[int]) -> str:
    """Write CPU numbers as taskset and Slurm's map_cpu read them: `0,2,3`."""
    return ",".join(str(cpu) for cpu in sorted(cpus))


def format_cpu_mask(cpus: Sequence[int]) -> str:
    """Write CPU numbers as the hexadecimal mask of `--cpu-bind=mask_cpu`."""
    return hex(sum(1 << cpu for cpu in set(cpus)))


def split_cpus(
    cores: Sequence[Sequence[int]], wanted: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """Divide CPUs among members: disjoint, whole cores first, in proportion to what they want.

    Both hardware threads of a core go to one member wherever there are cores enough, since two
    members on the siblings of one core slow each other down.

    Args:
        cores: The allocated CPUs grouped by physical core, each CPU in exactly one group.
        wanted: CPUs each member asked for, at least 1 each.

    Returns:
        A tuple of CPU numbers per member, sorted. Every CPU is given to somebody when at least
        the wanted number exists. None where the CPUs are fewer than the members want together,
        and no disjoint division can give each what it was promised.
    """
    total = sum(len(core) for core in cores)
    if not wanted or total < sum(wanted):
        return None
    groups = sorted((sorted(core) for core in cores), key=lambda core: core[0])
    shares: list[list[int]] = [[] for _ in wanted]
    missing = list(wanted)
    # Largest first: it takes whole cores while there are whole cores.
    order = sorted(range(len(wanted)), key=lambda index: (-wanted[index], index))
    for index in order:
        while groups and missing[index] >= len(groups[0]):
            core = groups.pop(0)
            shares[index] += core
            missing[index] -= len(core)
    loose = [cpu for core in groups for cpu in core]
    for index in order:
        while missing[index] > 0:
            shares[index].append(loose.pop(0))
            missing[index] -= 1
    # What nobody asked for (whole cores are allocated) goes to those who have least for it.
    for cpu in loose:
        index = min(order, key=lambda i: (len(shares[i]) / wanted[i], i))
        shares[index].append(cpu)
    return tuple(tuple(sorted(share)) for share in shares)
