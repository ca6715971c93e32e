"""The seats of a MIG layout: one for each member, with walls around it; pure.

Also: which member sits on which MIG instance: exact, for the members and layouts of one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.mig_layout import LayoutWord, group_words, parse_layout, place, resolve_word
from slurm_colloc.model.mig_profiles import InstanceProfile, PlacedInstance
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.planned_gpu import PlannedGpu, name_profile

_ROUNDED_GB = 2
"""By how much names of one profile differ between drivers: 3g.40gb is 3g.39gb under 535."""


@dataclass(frozen=True)
class Seat:
    """What one member has of the GPU.

    Attributes:
        word: As it stands in the layout.
        placed: Its GPU instance, and where that lies.
        instance: The number of that, in the layout.
        compute_slices: What it computes with: less than its GPU instance where others share it.
        room_mb: GPU memory that its member's need may fill, in MB; None where unknown.
        sm_share: Its part of the GPU's SMs.
        dram_share: Its part of the GPU's memory slices, and so of the bandwidth of its DRAM.
    """

    word: str
    placed: PlacedInstance
    instance: int
    compute_slices: int
    room_mb: int | None
    sm_share: float
    dram_share: float

    @property
    def stretch(self) -> float:
        """How much slower a job would be on it that is bound by the GPU alone (science: M3)."""
        return (1.0 / self.sm_share + 1.0 / self.dram_share) / 2.0

    @property
    def profile(self) -> InstanceProfile:
        """The profile of its GPU instance."""
        return self.placed.profile


def read_seats(layout: str, gpu: PlannedGpu) -> tuple[Seat, ...]:
    """The seats of a layout that was asked for, in its order.

    Args:
        layout: Its words.
        gpu: The GPU.

    Raises:
        UsageProblem: It is no layout, has a profile that this GPU does not have, or does not fit.
    """
    groups = group_words(parse_layout(layout))
    profiles = [_resolve(group[0], gpu) for group in groups]
    placed = place(profiles)
    if placed is None:
        raise UsageProblem(
            f"the MIG layout {layout} does not fit onto one GPU: {_describe_excess(profiles, gpu)}",
            hint="csub plan --share=mig shows one that does",
        )
    left = list(placed)
    seats = []
    for number, (group, profile) in enumerate(zip(groups, profiles, strict=True)):
        mine = next(one for one in left if one.profile == profile)
        left.remove(mine)
        seats += [
            _build_seat(
                word.text,
                mine,
                gpu,
                instance=number,
                compute=word.compute_slices,
                sharers=len(group),
            )
            for word in group
        ]
    return tuple(seats)


def build_seats(placed: Sequence[PlacedInstance], gpu: PlannedGpu) -> tuple[Seat, ...]:
    """The seats of a layout that was chosen: one in each instance."""
    return tuple(
        _build_seat(name_profile(one.profile, gpu), one, gpu, instance=number)
        for number, one in enumerate(placed)
    )


def _resolve(word: LayoutWord, gpu: PlannedGpu) -> InstanceProfile:
    """The profile that a word means; NVML's names on the node decide, and a driver rounds them.

    Raises:
        UsageProblem: The GPU has none with so many slices, or so much memory.
    """
    try:
        return resolve_word(word, gpu.every)
    except UsageProblem:
        alike = [
            profile
            for profile in gpu.every
            if profile.compute_slices == word.gpu_instance_slices
            and profile.attributes == word.attributes
        ]
        asked_gb = word.memory_gb or 0
        nearest = min(alike, key=lambda one: abs((one.memory_gb or 0) - asked_gb), default=None)
        if nearest is None:
            raise
        is_rounded = abs((nearest.memory_gb or 0) - asked_gb) <= _ROUNDED_GB
        if gpu.has_names and not is_rounded:
            raise
        return nearest


def _build_seat(
    word: str,
    placed: PlacedInstance,
    gpu: PlannedGpu,
    *,
    instance: int,
    compute: int | None = None,
    sharers: int = 1,
) -> Seat:
    profile = placed.profile
    compute = compute or profile.compute_slices
    room_mb = gpu.compute_room_mb(profile)
    sms = max(1.0, profile.sms * compute / profile.compute_slices)
    # Those that share a GPU instance have its memory in common, and none is promised more.
    memory = profile.memory_slices / sharers
    return Seat(
        word,
        placed,
        instance,
        compute,
        None if room_mb is None else room_mb // sharers,
        sms / gpu.sms,
        memory / gpu.memory_slices,
    )


def _describe_excess(profiles: Sequence[InstanceProfile], gpu: PlannedGpu) -> str:
    """What a layout has too much of, with both numbers."""
    compute = sum(profile.compute_slices for profile in profiles)
    if compute > gpu.slices:
        return f"it has {compute} compute slices, the GPU has {gpu.slices}"
    memory = sum(profile.memory_slices for profile in profiles)
    if memory > gpu.memory_slices:
        return f"it has {memory} memory slices, the GPU has {gpu.memory_slices}"
    for profile in profiles:
        count = profiles.count(profile)
        if count > profile.instances_max:
            return (
                f"it has {count} of {profile.name}, the GPU holds at most {profile.instances_max}"
            )
    return "no placement is left for all of its instances"


# ----
# Which member sits on which MIG instance: exact, for the members and layouts of one GPU; pure.

UNKNOWN_BOUND = 1.0
"""A job of which nothing is known is taken to be bound by what a small instance has less of."""


@dataclass(frozen=True)
class Seating:
    """Members on seats.

    Attributes:
        places: Per member, the number of its seat.
        passed: By how much the bounds on slowdowns are passed, the worst of them; 0 where none is.
        makespan_s: Seconds until the last member ends.
        total_s: Seconds that all take, summed up.
    """

    places: tuple[int, ...]
    passed: float
    makespan_s: float
    total_s: float

    @property
    def rank(self) -> tuple[float, float, float]:
        """The less the better."""
        return self.passed, self.makespan_s, self.total_s


def compute_bound_share(subject: Subject) -> float:
    """How much of a job's time depends on the size of its instance, 0 to 1 (science: model M3)."""
    return UNKNOWN_BOUND if subject.load is None else max(subject.load.sm, subject.load.dram)


def compute_own_slowdown(subject: Subject, seat: Seat) -> float:
    """A job's slowdown by the size of its instance: `1 - B + B/e`."""
    share = compute_bound_share(subject)
    return 1.0 - share + share * seat.stretch


def fits(subject: Subject, seat: Seat) -> bool:
    """Whether an instance has the memory that a job needs; what is unknown counts as nothing."""
    return seat.room_mb is None or (subject.gpu_memory_mb or 0) <= seat.room_mb


def seat_members(subjects: Sequence[Subject], seats: Sequence[Seat]) -> Seating | None:
    """Put each member onto a seat of its own.

    The worst passing of a bound is made as small as it can be, then the end of the last member,
    then the sum. Seats that are alike are one kind, so at most 128 subsets are looked at.

    Args:
        subjects: The members, no more than there are seats.
        seats: The seats.

    Returns:
        The best seating; None where one cannot have a seat.
    """
    kinds: dict[tuple[int | None, float], list[int]] = {}
    for number, seat in enumerate(seats):
        kinds.setdefault((seat.room_mb, seat.stretch), []).append(number)
    samples = [seats[numbers[0]] for numbers in kinds.values()]
    counts = tuple(map(len, kinds.values()))
    costs = [[_cost(subject, seat) for seat in samples] for subject in subjects]
    worst = _search(costs, counts, lambda sofar, cost: max(sofar, cost[0]), _Cap())
    if worst is None:
        return None
    cap = _Cap(passed=worst.value)
    latest = _search(costs, counts, lambda sofar, cost: max(sofar, cost[1]), cap)
    assert latest is not None
    cap = _Cap(worst.value, latest.value)
    best = _search(costs, counts, lambda sofar, cost: sofar + cost[1], cap)
    assert best is not None
    left = [list(numbers) for numbers in kinds.values()]
    places = tuple(left[kind].pop(0) for kind in best.kinds)
    return Seating(places, worst.value, latest.value, best.value)


_Cost = tuple[float, float]


@dataclass(frozen=True)
class _Cap:
    """What no member may pass."""

    passed: float = math.inf
    taken_s: float = math.inf

    def allows(self, cost: _Cost) -> bool:
        return cost[0] <= self.passed and cost[1] <= self.taken_s


@dataclass(frozen=True)
class _Found:
    value: float
    kinds: tuple[int, ...]


def _cost(subject: Subject, seat: Seat) -> _Cost | None:
    """By how much a bound is passed, and how long it takes; None where it does not fit."""
    if not fits(subject, seat):
        return None
    slowdown = compute_own_slowdown(subject, seat)
    passed = 0.0
    if subject.load is not None:
        passed = max(0.0, slowdown * (1.0 + subject.margin) / subject.max_slowdown - 1.0)
    return passed, subject.run_s * slowdown


def _search(
    costs: Sequence[Sequence[_Cost | None]],
    counts: tuple[int, ...],
    add: Callable[[float, _Cost], float],
    cap: _Cap,
) -> _Found | None:
    """The best choice of a kind of seat for each member, member by member."""
    states: dict[tuple[int, ...], _Found] = {counts: _Found(0.0, ())}
    for row in costs:
        following: dict[tuple[int, ...], _Found] = {}
        for free, found in states.items():
            for kind, cost in enumerate(row):
                if cost is None or not free[kind] or not cap.allows(cost):
                    continue
                left = (*free[:kind], free[kind] - 1, *free[kind + 1 :])
                value = add(found.value, cost)
                known = following.get(left)
                if known is None or value < known.value:
                    following[left] = _Found(value, (*found.kinds, kind))
        states = following
    return min(states.values(), key=lambda found: found.value, default=None)
