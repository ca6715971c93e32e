"""How far the members of a pack slow each other down; the model, on numbers or arrays.

Every function takes either plain numbers, for one pack, or arrays of one length, for as many
packs at once: then `weights` says which members are in which pack.

The model. Alone a step takes the time 1, in which the GPU works for the share `e` of it (engine
activity) while the host prepares what comes next. In a pack the GPU's part takes `S` times as
long, and only what the host does not hide is felt: `D = sqrt(1 - e^2 + (e S)^2)`. A member has
work on the GPU for the share `u = e S / D` of its time, and while it has, it fills `a = sm / e` of
the SMs.

- Time slicing: `S = (1 + switching * min(1, U)) (1 + turns * U)`, U the sum of the partners' u.
- MPS: a kernel finds the SMs that it needs taken with the partners' probability, and waits as in
  an open queue, `a / (1 - a)`, the longer the more of its kernels leave SMs to others: a member of
  small kernels waits for one of large kernels, and hardly the other way round. A thread limit `p`
  makes `a p^width` of a, and the member's own work take `1 + narrowing a (1/p - 1)` times as long.
- Where the SM activity of all would exceed what the GPU serves, all wait for it together.
- A member that moves data over PCIe for the share `c` of its time alone adds `(c P)^2 - c^2` under
  the root. `P = 1 + copying * V + turns * U / 2`, V the sum of the partners' shares `c P / D`:
  PCIe serves who copies at the same time in equal parts.
- A member that waits for the disk for the share `d` of its time alone adds `d (Q - 1)`, with
  `Q = 1 + sum of the partners' d Q / D`: the disk serves those that read at the same time in equal
  parts, and a member that has waited for one is late for the next (mean value analysis of a closed
  queue: Bard and Schweitzer, 1979). Not measured: what a loader reads ahead makes it worse.

The forms were found on an H200 (docs/planning.md, "The model"); the coefficients are fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.usage_profile import Load, ModeModel

_ROUNDS = 4
_LEAST = 0.02
_MOST = 0.99
_NEVER_FULL = 0.005
"""So that a queue before SMs that are always full stays finite."""
_COPIES_LEAST = 0.05
"""Who uses less of PCIe is not counted: it takes twenty of them to fill it."""
_COPIES_WAIT = 0.5
"""Under time slicing copies wait for partners' turns about half as much as kernels: on an H200 the
one training that copies was then predicted best (mean error 0.044; as much as kernels 0.047, not at
all 0.073)."""
AT_WORK_W = 46.0
"""A GPU that works at all draws so much more than an idle one, once, however many members it has:
125 W and 79 W on an H200. With it the power of 206 packs there came out with 7.5 % standard
deviation, without it with 14 %, and packs of many small trainings with half as much again."""


@dataclass(frozen=True)
class _Member:
    """A member's constants.

    Attributes:
        present: 1 where it is in the pack, 0 where it is not.
        engine: Share of its time alone in which the GPU works for it.
        own: How far its thread limit stretches that time.
        blocks: How long a partner's kernel waits for it.
        gives_way: Share of the SMs that its own kernels leave to others.
        dram: DRAM activity while the GPU works for it.
        copies: Share of its time alone in which it moves data over PCIe.
    """

    present: Any
    engine: Any
    own: Any
    blocks: Any
    gives_way: Any
    dram: Any
    copies: Any


def _build_member(
    load: Load, limit: Any, present: Any, model: ModeModel, larger: Callable[[Any, Any], Any]
) -> _Member:
    # The smaller of two is minus the larger of minus them.
    engine = -larger(-1.0, -larger(larger(load.engine, load.sm), larger(load.dram, _LEAST)))
    fills = -larger(-_MOST, -larger(_LEAST, load.sm / engine))
    limited = fills * limit**model.width
    return _Member(
        present=present,
        engine=engine,
        own=1.0 + model.narrowing * fills * (1.0 / limit - 1.0),
        blocks=model.waiting * limited / (1.0 - limited + _NEVER_FULL),
        gives_way=1.0 - limited,
        dram=load.dram / engine,
        copies=load.pcie * (load.pcie > _COPIES_LEAST),
    )


def predict_slowdowns(
    loads: Sequence[Load],
    limits: Sequence[Any],
    model: ModeModel,
    *,
    weights: Sequence[Any] | None = None,
    cores: float | None = None,
    power_room_w: float | None = None,
    maximum: Callable[[Any, Any], Any] = max,
    larger: Callable[[Any, Any], Any] = max,
) -> list[Any]:
    """Predict each member's slowdown against itself alone on the whole GPU.

    Args:
        loads: What the members take alone.
        limits: Their thread limits as a share of the GPU's threads; 1 for none.
        model: The sharing mode's model.
        weights: For arrays: 1 where a member is in the pack, 0 where it is not.
        cores: Cores of the host that the pack has; None where they do not matter.
        power_room_w: Power limit of the GPU above its idle power; None where unknown.
        maximum: The larger of two, elementwise: numpy.maximum for arrays.
        larger: The same for what loads hold, where those are arrays too: as many members of each
            place as there are packs.

    Returns:
        The slowdowns; where a member is not in the pack, what it would find there.
    """
    present: Sequence[Any] = [1.0] * len(loads) if weights is None else weights
    members = [
        _build_member(load, limit, there, model, larger)
        for load, limit, there in zip(loads, limits, present, strict=True)
    ]
    capacity: Any = None
    if model.capacity:
        subscribed = _sum(there * limit for there, limit in zip(present, limits, strict=True))
        # 0 where limits add up to no more than the GPU, 1 where to very much more.
        crowd = 1.0 - 1.0 / maximum(subscribed, 1.0)
        capacity = maximum(model.capacity - model.crowding * crowd, _LEAST)
    slowdowns: list[Any] = [1.0] * len(members)
    stretches: list[Any] = [member.own for member in members]
    # What copying takes, in times of a step alone.
    copies: dict[int, Any] = {i: members[i].copies for i in _list_copiers(members)}
    queue: Any = 1.0
    for _ in range(_ROUNDS):
        shares = [
            member.present * -maximum(-1.0, -member.engine * stretch / slowdown)
            for member, stretch, slowdown in zip(members, stretches, slowdowns, strict=True)
        ]
        busy = _sum(shares)
        blocked = _sum(share * one.blocks for share, one in zip(shares, members, strict=True))
        moved = _sum(share * one.dram for share, one in zip(shares, members, strict=True))
        stretches = []
        for member, share in zip(members, shares, strict=True):
            others = busy - share
            waits = (blocked - share * member.blocks) * member.gives_way
            stretches.append(
                member.own
                * (1.0 - model.switching * maximum(-1.0, -others))
                * (1.0 + model.turns * others)
                * (1.0 + waits)
                * (1.0 + model.dram * member.dram * (moved - share * member.dram))
                * queue
            )
        squares = [
            1.0 - member.engine**2 + (member.engine * stretch) ** 2
            for member, stretch in zip(members, stretches, strict=True)
        ]
        if copies:
            # No more than 1 each: the copies are a part of what their slowdowns are made of.
            moving = {i: members[i].present * each / slowdowns[i] for i, each in copies.items()}
            delay = 1.0 + model.copying * _sum(moving.values())
            for i, own in moving.items():
                alone = members[i].copies
                copies[i] = alone * delay - (alone * model.copying) * own
                if model.turns:
                    waited = _COPIES_WAIT * model.turns * (busy - shares[i])
                    copies[i] = copies[i] + alone * waited
                squares[i] = squares[i] + copies[i] * copies[i] - alone * alone
        slowdowns = [square**0.5 for square in squares]
        if capacity is not None:
            served = _sum(
                there * load.sm / slowdown
                for there, load, slowdown in zip(present, loads, slowdowns, strict=True)
            )
            queue = maximum(1.0, queue * served / capacity)
    if copies:
        # However they take turns, PCIe carries no more than it can.
        carried = _sum(members[i].present * members[i].copies / slowdowns[i] for i in copies)
        over = maximum(carried, 1.0) - 1.0
        for i, each in copies.items():
            slowdowns[i] = slowdowns[i] + each * over
    slowdowns = _add_disk(loads, slowdowns, present)
    slowdowns = _add_what_was_seen(loads, slowdowns, present, maximum)
    if cores is not None:
        needed = _sum(t * one.cpu_cores / d for t, one, d in _zip(present, loads, slowdowns))
        over = maximum(1.0, needed / cores)
        slowdowns = [slowdown * over for slowdown in slowdowns]
    if power_room_w is not None and power_room_w > 0:
        drawn = AT_WORK_W + _sum(
            there * larger(load.power_w - AT_WORK_W, 0.0) / slowdown
            for there, load, slowdown in _zip(present, loads, slowdowns)
        )
        # Clocks fall about as the square root of what is missing.
        over = maximum(1.0, drawn / power_room_w) ** 0.5
        slowdowns = [slowdown * over for slowdown in slowdowns]
    return slowdowns


def _list_copiers(members: Sequence[_Member]) -> list[int]:
    """Places of those that use PCIe, at least in some of the packs."""
    return [i for i, one in enumerate(members) if _is_any(one.copies)]


def _is_any(value: Any) -> bool:
    """Whether a number is not 0, or one of an array."""
    is_any = getattr(value, "any", None)
    return bool(is_any() if is_any else value)


def _sum(values: Any) -> Any:
    return sum(values, start=0.0)


def _zip(present: Sequence[Any], loads: Sequence[Load], slowdowns: Sequence[Any]) -> Any:
    return zip(present, loads, slowdowns, strict=True)


def _add_disk(loads: Sequence[Load], slowdowns: Sequence[Any], present: Sequence[Any]) -> list[Any]:
    """What members that read files wait for each other."""
    found = list(slowdowns)
    readers = [i for i, load in enumerate(loads) if _is_any(load.disk)]
    if len(readers) < 2:
        return found
    stretches: dict[int, Any] = dict.fromkeys(readers, 1.0)
    for _ in range(_ROUNDS):
        reads = {i: present[i] * loads[i].disk * stretches[i] / found[i] for i in readers}
        others = _sum(reads.values())
        stretches = {i: 1.0 + (others - reads[i]) for i in readers}
        for i in readers:
            found[i] = slowdowns[i] + loads[i].disk * (stretches[i] - 1.0)
    return found


def _add_what_was_seen(
    loads: Sequence[Load],
    slowdowns: Sequence[Any],
    present: Sequence[Any],
    maximum: Callable[[Any, Any], Any],
) -> list[Any]:
    """What earlier packs showed of these jobs: sensitivity of one, pressure of its partners."""
    if not any(_is_any(load.sensitivity) or _is_any(load.pressure) for load in loads):
        return list(slowdowns)
    count = _sum(present)
    pressed = _sum(there * load.pressure for there, load in zip(present, loads, strict=True))
    partners = maximum(count - 1.0, 1.0)
    # Alone nothing is added.
    shared = -maximum(-1.0, 1.0 - count)
    return [
        maximum(
            slowdown + shared * (load.sensitivity + (pressed - there * load.pressure) / partners),
            1.0,
        )
        for load, slowdown, there in zip(loads, slowdowns, present, strict=True)
    ]
