"""Subjects for tests of the search, and what becomes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning import pack_search
from slurm_colloc.planning.hard_limits import Limits, Subject
from slurm_colloc.planning.pack_pricing import Key, Pricing
from tests.planning.coefficients import CALIBRATION, LIMITS

BOTH = (SharingMode.MPS, SharingMode.TIMESLICE)
ALL = (*BOTH, SharingMode.MIG)

_shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.01, 0.99))


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Any load, from hardly anything to all of the GPU."""
    return Load(
        engine=draw(_shares),
        sm=draw(_shares),
        dram=draw(_shares),
        tensor=draw(_shares),
        pcie=draw(_shares),
        cpu_cores=draw(st.floats(0.0, 8.0)),
        power_w=draw(st.floats(0.0, 600.0)),
        sensitivity=draw(st.sampled_from([0.0, 0.1])),
        pressure=draw(st.sampled_from([0.0, 0.2])),
    )


@st.composite
def light_loads(draw: st.DrawFn) -> Load:
    """Loads of which several go together."""
    sm = draw(st.floats(0.01, 0.4))
    pcie = draw(st.sampled_from([0.0, 0.015, 0.3]))
    return Load(engine=min(1.0, 2 * sm), sm=sm, dram=sm / 2, pcie=pcie, power_w=200 * sm)


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    """A job of any load and need; its index means nothing.

    No bound is so close to 1 that rounding decides about many a pack.
    """
    return Subject(
        index=0,
        cpus=draw(st.integers(1, 30)),
        host_memory_mb=draw(st.none() | st.integers(1000, 50_000)),
        gpu_memory_mb=draw(st.none() | st.integers(1000, 60_000)),
        run_s=draw(st.floats(1.0, 100_000.0)),
        load=draw(st.one_of(light_loads(), light_loads(), loads(), st.none())),
        max_slowdown=draw(st.sampled_from([1.02, 1.5, 2.0, 5.0])),
        margin=draw(st.sampled_from([0.0, 0.05, 0.3])),
        is_corrected=draw(st.booleans()),
        is_borrowed=draw(st.booleans()),
    )


limits = st.builds(
    Limits,
    cpus=st.none() | st.integers(1, 64),
    host_memory_mb=st.none() | st.integers(1000, 100_000),
    gpu_memory_mb=st.none() | st.integers(1000, 136_000),
    members=st.none() | st.integers(1, 8),
    finish_s=st.none() | st.floats(10.0, 200_000.0),
    instance_rooms_mb=st.lists(st.none() | st.integers(0, 136_000), min_size=2, max_size=8).map(
        tuple
    ),
)
goals = st.sampled_from(list(Goal))
modes = st.lists(st.sampled_from(ALL), min_size=1, unique=True)


def make_subjects(count: int, seed: int = 0, *, kinds: int | None = None) -> list[Subject]:
    """Random jobs, among which many go together; `kinds` of them differ."""
    chance = random.Random(seed)
    made = []
    for index in range(kinds or count):
        sm = 0.02 + 0.7 * chance.random() * chance.random()
        load = Load(
            engine=sm**0.55,
            sm=sm,
            dram=sm * chance.uniform(0.2, 0.9),
            pcie=chance.choice([0.0, 0.1]),
            power_w=400 * sm,
        )
        run_s = chance.lognormvariate(7, 0.7)
        cpus = chance.randint(1, 4)
        gpu_memory_mb = chance.randint(1000, 30_000)
        made.append(Subject(index, cpus, None, gpu_memory_mb, run_s, load, 2.0, 0.05))
    return [made[index % len(made)] for index in range(count)]


def make_pricing(of: Sequence[Subject], **options: Goal | Sequence[SharingMode]) -> Pricing:
    """Their prices on a whole H200."""
    return Pricing(of, LIMITS, CALIBRATION, **options)  # type: ignore[arg-type]


def add_up(pricing: Pricing, packs: Sequence[Sequence[int]]) -> float:
    """What packs cost together; fails where one has no legal setting."""
    total = 0.0
    for pack in packs:
        priced = pricing.price(pack)
        assert priced is not None
        total += priced.cost
    return total


def add_up_keys(pricing: Pricing, packs: Sequence[Key]) -> float:
    """The same of packs that are named by the kinds in them."""
    priced = [pricing.price_key(pack) for pack in packs]
    assert all(priced)
    return sum(one.cost for one in priced if one)


def check_order_does_not_matter(
    chosen: Sequence[Subject], limit: Limits, chance: random.Random
) -> None:
    """Divide subjects in two orders: who is with whom must be the same."""
    mixed = list(chosen)
    chance.shuffle(mixed)
    first, second = (_describe(Pricing(each, limit, CALIBRATION)) for each in (chosen, mixed))
    assert first == second


def _describe(pricing: Pricing) -> list[list[Subject]]:
    packs = pack_search.partition(pricing)
    return sorted(
        (sorted((pricing.subjects[i] for i in pack), key=repr) for pack in packs), key=repr
    )
