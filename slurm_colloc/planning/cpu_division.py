"""Dividing the CPUs of an allocation among the places of a pack."""

from __future__ import annotations

from collections.abc import Sequence


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
    needy = [index for index in order if missing[index]]
    if len(groups) >= len(needy):
        # A core for each, so that no two meet on one.
        for index, core in zip(needy, groups, strict=False):
            _move(core, shares[index], min(missing[index], len(core)))
    for index in needy:
        for core in groups:
            _move(core, shares[index], min(wanted[index] - len(shares[index]), len(core)))
    # What was not asked for (whole cores are allocated) goes to who has the other thread of the
    # core, and whole cores to those who have least for what they want.
    started = [core for core in groups if core and len(core) < len(_whole_core(cores, core))]
    for core in [*started, *(core for core in groups if core not in started)]:
        users = [i for i in order if set(shares[i]) & set(_whole_core(cores, core))] or order
        index = min(users, key=lambda i: (len(shares[i]) / wanted[i], i))
        _move(core, shares[index], len(core))
    return tuple(tuple(sorted(share)) for share in shares)


def _move(core: list[int], share: list[int], count: int) -> None:
    """Give the first CPUs that are left of a core to a member."""
    share += core[:count]
    del core[:count]


def _whole_core(cores: Sequence[Sequence[int]], part: Sequence[int]) -> Sequence[int]:
    """The core that these CPUs are left of; nothing where none are left."""
    return next((core for core in cores if part and part[0] in core), ())
