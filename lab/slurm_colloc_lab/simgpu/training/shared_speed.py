"""How fast processes run on a GPU that they share, and what they use; pure.

The laws are fitted to measurements of one H200 (driver 580.159.04; ResNet-26, ResNet-50 and
ResNet-152 as small, medium and large training; tests/simgpu/test_sharing.py has the rows, and how
far each law may be from them). With `d` the fraction of the SMs' time that a process uses alone,
it needs of the GPU

    time slices                d ** 0.6         rows `timeslice`
    MPS                        1.3 * d          rows `mps`
    MPS with a thread limit    1.44 * d ** 1.25 rows `mps100`, `mps200`

at most all of it. As long as the needs sum to at most 1, each process runs as if alone. Beyond,
the GPU is divided evenly, and what a process does not need goes to the others. A thread limit is
also a ceiling: with p per cent of the SMs no process gets more than p per cent of SM time.

On a MIG device the same holds of its part of the GPU, for those who share it; its multiprocessors
and its memory slices are ceilings. No MIG device was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

# Power in watts = awake + 1.64 * SM active % + 6.92 * DRAM %: least squares over all 28 rows,
# within 10 %. The part that is there as soon as anything runs is 146 W, idle power included.
_AWAKE_W = 146.0
_SM_W = 1.64
_DRAM_W = 6.92
_FITTED_LIMIT_W = 700.0

# Rows `mps*` against rows `alone`: a training's step moves more through DRAM alongside others.
_MPS_DRAM_FACTOR = 1.5
# Rows `mps`: SM activity per unit of work is higher than alone; rows `mps100` and `mps200`: lower.
_MPS_SM_FACTOR = 1.1
_TIGHT_SM_FACTOR = 0.62
_LOOSE_SM_FACTOR = 0.72


@dataclass(frozen=True)
class ProcessLoad:
    """A process as far as it matters to its neighbours.

    Args:
        sm_demand: Per cent of SM time that it uses alone.
        dram_demand: Per cent of the memory bandwidth that it uses alone.
        thread_percentage: Its limit under MPS; 100 is none.
        mps_server: Which MPS server it is a client of, None for time slices.
    """

    sm_demand: float
    dram_demand: float = 0.0
    thread_percentage: float = 100.0
    mps_server: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the limit on its threads is in force."""
        return self.mps_server is not None and self.thread_percentage < 100.0


@dataclass(frozen=True)
class GpuPart:
    """What a MIG device has of its GPU, 0 to 1.

    Args:
        sm: Of the multiprocessors.
        dram: Of the memory bandwidth.
    """

    sm: float = 1.0
    dram: float = 1.0

    def compute_ceiling(self, load: ProcessLoad) -> float:
        """The most that a process reaches of its speed on the whole GPU."""
        sm = 100.0 * self.sm / load.sm_demand if load.sm_demand > 0 else 1.0
        dram = 100.0 * self.dram / load.dram_demand if load.dram_demand > 0 else 1.0
        return min(1.0, sm, dram)

    def scale(self, load: ProcessLoad) -> ProcessLoad:
        """A process's demands as shares of this part."""
        return replace(
            load,
            sm_demand=min(100.0, load.sm_demand / self.sm),
            dram_demand=min(100.0, load.dram_demand / self.dram),
        )


@dataclass(frozen=True)
class ProcessUse:
    """What a process gets and uses now; all but `rate` and `power_w` in per cent of the GPU.

    Args:
        rate: Its speed relative to alone.
        sm_share: SM activity.
        dram_share: Memory bandwidth.
        duty: Time with one of its kernels on the GPU.
        power_w: What it adds to the idle power.
    """

    rate: float
    sm_share: float
    dram_share: float
    duty: float
    power_w: float


WHOLE_GPU = GpuPart()


def compute_slice_need(load: ProcessLoad) -> float:
    """The part of the time slices that a process needs to run as fast as alone, 0 to 1.

    Rows `timeslice`: k=7 and 12 of small reach 3.5, k=6 of medium 1.93, k=3 of large 1.59.
    """
    return min(1.0, math.pow(_fraction(load.sm_demand), 0.6))


def compute_mps_need(load: ProcessLoad) -> float:
    """The part of the GPU that an MPS client needs to run as fast as alone, 0 to 1.

    Rows `mps`: small reaches 6.5, medium 2.5, large 1.9; rows `mps200`: 10.2, 3.4, 2.0.
    """
    demand = _fraction(load.sm_demand)
    return min(1.0, 1.44 * math.pow(demand, 1.25) if load.is_limited else 1.3 * demand)


def compute_rates(loads: Sequence[ProcessLoad]) -> tuple[float, ...]:
    """The speed of each process relative to alone, 0 to 1.

    The clients of one MPS server share a context: alongside other contexts they get time slices
    together (assumed, not measured).
    """
    rates = [1.0] * len(loads)
    groups: dict[tuple[str, int], list[int]] = {}
    for number, load in enumerate(loads):
        alone = load.mps_server is None
        key = ("process", number) if alone else ("server", load.mps_server or 0)
        groups.setdefault(key, []).append(number)
    needs = []
    for (kind, _), members in groups.items():
        if kind == "server":
            _share_mps(loads, members, rates)
        slices = sum(compute_slice_need(loads[number]) * rates[number] for number in members)
        needs.append(min(1.0, slices))
    for members, part in zip(groups.values(), divide_evenly(needs), strict=True):
        for number in members:
            rates[number] *= part
    return tuple(rates)


def compute_use(
    loads: Sequence[ProcessLoad],
    which: int,
    *,
    idle_power_w: float,
    power_limit_w: float,
    limited_to_w: float | None = None,
    part: GpuPart = WHOLE_GPU,
    busy_elsewhere: int = 0,
) -> ProcessUse:
    """What the process number `which` of these gets and uses.

    Args:
        loads: The processes on the same device, their demands in per cent of the whole GPU.
        which: The one that is asked about.
        idle_power_w: What the GPU draws with nothing on it.
        power_limit_w: Its default limit.
        limited_to_w: Its limit now; None for the default one.
        part: What the device has of the GPU.
        busy_elsewhere: How many processes compute on other devices of the same GPU.
    """
    load = loads[which]
    if part == WHOLE_GPU:
        rate = compute_rates(loads)[which]
    else:
        rate = compute_rates([part.scale(other) for other in loads])[which]
        rate *= part.compute_ceiling(load)
    sm_factor = dram_factor = 1.0
    clients = [other for other in loads if other.mps_server == load.mps_server]
    if load.mps_server is not None and len(clients) > 1:
        dram_factor = _MPS_DRAM_FACTOR
        sm_factor = _MPS_SM_FACTOR
        if load.is_limited:
            # 100/k each leaves the SMs emptier than 200/k each.
            granted = sum(client.thread_percentage for client in clients)
            sm_factor = _LOOSE_SM_FACTOR if granted > 150.0 else _TIGHT_SM_FACTOR
    sm_share = min(100.0, load.sm_demand * rate * sm_factor)
    dram_share = min(100.0, load.dram_demand * rate * dram_factor)
    busy = busy_elsewhere + sum(other.sm_demand > 0 for other in loads)
    awake_w = max(0.0, _AWAKE_W * power_limit_w / _FITTED_LIMIT_W - idle_power_w)
    power_w = 0.0
    if load.sm_demand > 0:
        scale = power_limit_w / _FITTED_LIMIT_W
        power_w = awake_w / busy + scale * (_SM_W * sm_share + _DRAM_W * dram_share)
    if limited_to_w is not None and power_w > 0:
        # Power goes with the cube of the clock (assumed); neighbours are taken to draw alike.
        clock = min(1.0, math.cbrt(max(1.0, limited_to_w - idle_power_w) / (busy * power_w)))
        rate, power_w = rate * clock, power_w * clock**3
        sm_share, dram_share = sm_share * clock, dram_share * clock
    return ProcessUse(
        rate=rate,
        sm_share=sm_share,
        dram_share=dram_share,
        duty=100.0 * compute_slice_need(load) * rate,
        power_w=power_w,
    )


def divide_evenly(needs: Sequence[float], capacity: float = 1.0) -> tuple[float, ...]:
    """Which part of its need each gets, 0 to 1, where `capacity` is divided max-min fairly."""
    parts = [1.0] * len(needs)
    left = capacity
    waiting = sorted((need, number) for number, need in enumerate(needs) if need > 0)
    for position, (need, number) in enumerate(waiting):
        given = min(need, left / (len(waiting) - position))
        parts[number] = given / need
        left -= given
    return tuple(parts)


def _share_mps(loads: Sequence[ProcessLoad], members: Sequence[int], rates: list[float]) -> None:
    """Write the rates of one server's clients, were the GPU theirs alone."""
    parts = divide_evenly([compute_mps_need(loads[number]) for number in members])
    for number, part in zip(members, parts, strict=True):
        load = loads[number]
        ceiling = 1.0
        if load.is_limited and load.sm_demand > 0:
            ceiling = min(1.0, load.thread_percentage / load.sm_demand)
        rates[number] = min(part, ceiling)


def _fraction(percent: float) -> float:
    return min(100.0, max(0.0, percent)) / 100.0
