"""What a pack's GPU and members did over time, thinned to what a page can draw.

Also: a long series in few points, each with the least, mean and greatest of what it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.metrics.rates import OwnTime
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.report.pack_samples import GpuSamples, join_gpus, read_columns
from slurm_colloc.store.member_states import MemberPause

if TYPE_CHECKING:
    import pyarrow as pa


# ---- A long series in few points, each with the least, mean and greatest of what it stands for ---
#
# Pure, with numpy. No extreme is lost: what a point stands for lies between its least and greatest.

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.intp]

_DIGITS = 4
_SMALL = 1e-4
Numbers = list[float | None]


@dataclass(frozen=True)
class ThinSeries:
    """A series in even steps of time.

    Attributes:
        mean: Of each step; None where nothing was read in it.
        least: The least reading of each step; empty where no step has more than one.
        greatest: The greatest likewise.
    """

    mean: Numbers
    least: Numbers
    greatest: Numbers

    def build_mapping(self) -> dict[str, Any]:
        """Its JSON form; without what it does not have."""
        value: dict[str, Any] = {"mean": self.mean}
        if self.least:
            value |= {"least": self.least, "greatest": self.greatest}
        return value


def find_places(at: Floats, begin: float, step_s: float) -> Places:
    """In which step of time each moment lies; the first step is 0, and moments may lie outside.

    Args:
        at: Moments, in seconds.
        begin: Where the first step begins.
        step_s: How long a step is.
    """
    import numpy as np

    return np.floor((at - begin) / step_s).astype(np.intp)


def thin(place: Places, values: Floats, count: int) -> ThinSeries:
    """Even steps of time with what was read in each.

    Args:
        place: In which step each value was read.
        values: What was read; NaN where it could not be.
        count: How many steps there are; what lies outside is left out.
    """
    import numpy as np

    kept = np.isfinite(values) & (place >= 0) & (place < count)
    if not kept.all():
        place, values = place[kept], values[kept]
    if np.any(np.diff(place) < 0):
        order = np.argsort(place, kind="stable")
        place, values = place[order], values[order]
    if not len(place):
        return ThinSeries([None] * count, [], [])
    first = np.concatenate([[0], np.flatnonzero(np.diff(place)) + 1])
    filled, number = place[first], np.diff(first, append=len(place))

    def spread(of_each: Floats) -> Numbers:
        whole = np.full(count, np.nan)
        whole[filled] = of_each
        return shorten(whole)

    mean = spread(np.add.reduceat(values, first) / number)
    if number.max() <= 1:
        return ThinSeries(mean, [], [])
    return ThinSeries(
        mean,
        spread(np.minimum.reduceat(values, first)),
        spread(np.maximum.reduceat(values, first)),
    )


def shorten(values: Floats) -> Numbers:
    """Numbers of few digits, as JSON writes them in little room; None for what is not a number."""
    import numpy as np

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        more = np.floor(np.log10(np.abs(values))) - (_DIGITS - 1)
        # What is multiplied and divided by is whole, so that no digits come behind those kept.
        small, large = 10.0 ** np.maximum(-more, 0), 10.0 ** np.maximum(more, 0)
        short = np.round(values / large * small) / small * large
    short = np.where(np.abs(values) < _SMALL, 0.0, short)
    return [
        (int(value) if value.is_integer() else value) if math.isfinite(value) else None
        for value in short.tolist()
    ]


# ---- What a pack's GPU and members did over time, thinned to what a page can draw ----------------

GPU_SHOWN = ("sm_active", "tensor_active", "dram_active", "utilization", "gpu_memory_mb", "power_w")
INSTANCE_SHOWN = ("sm_active", "gpu_memory_mb")
"""Of MIG instances; GPM and NVML tell both of each."""
RATE_WINDOW_S = 5.0
"""A rate is that of the steps in so many seconds of the member's own time."""

_KEY = ("member", "attempt", "start")
_MEASURED = ("at", "steps", "first_step_at", "last_step_at")
_STEP_LEAST_S = 1.0

Stay = tuple[int, int, float, float]
"""A start of a member: its attempt and number, when it was seen first, and last."""


@dataclass(frozen=True)
class PackSeries:
    """What is drawn of a pack.

    Attributes:
        begin: Where the first step begins, in seconds since the epoch.
        step_s: Length of a step.
        count: How many steps there are.
        gpu: By metric.
        instances: The same of each MIG instance, by UUID.
        rates: By member: its steps per second.
        stays: By member: its starts as the monitor has seen them.
        problems: What could not be read, a sentence each.
    """

    begin: float
    step_s: float
    count: int
    gpu: Mapping[str, ThinSeries] = field(default_factory=dict)
    rates: Mapping[int, ThinSeries] = field(default_factory=dict)
    stays: Mapping[int, Sequence[Stay]] = field(default_factory=dict)
    problems: Sequence[str] = ()
    instances: Mapping[str, Mapping[str, ThinSeries]] = field(default_factory=dict)


def read_series(
    pack: Path,
    window: tuple[float, float],
    uuids: tuple[Sequence[str], Sequence[str]],
    pauses: Sequence[MemberPause],
    points: int,
) -> PackSeries:
    """Read a pack's samples and thin them.

    Args:
        pack: The pack's directory.
        window: From its first start to its last end, in seconds since the epoch.
        uuids: Its GPUs, which are drawn as one, none where they are not known; and its MIG
            instances.
        pauses: When its members were paused.
        points: How many steps of time there are to be, at most.
    """
    begin, end = window
    step_s = max(_STEP_LEAST_S, (end - begin) / points)
    count = max(1, int((end - begin) / step_s) + 1)
    problems: list[str] = []
    members = read_columns(pack, "members", (*_KEY, *_MEASURED), problems)
    gpus = read_columns(pack, "gpu", ("at", "uuid", *GPU_SHOWN), problems)
    if members is None and gpus is None and not problems:
        problems.append("there are no samples: no curves are drawn")
    found = PackSeries(begin, step_s, count, problems=tuple(problems))
    own, instances = uuids
    gpu = {} if gpus is None or not own else _thin_gpus(gpus, own, found)
    parts = {
        uuid: thinned
        for uuid in instances
        if gpus is not None and (thinned := _thin_gpus(gpus, (uuid,), found, INSTANCE_SHOWN))
    }
    rates, stays = _thin_members(members, pauses, found) if members else ({}, {})
    return PackSeries(begin, step_s, count, gpu, rates, stays, tuple(problems), parts)


def _to_floats(column: pa.ChunkedArray) -> Floats:
    import numpy as np

    return np.asarray(column.to_numpy(), dtype=np.float64)


def _thin_gpus(
    table: pa.Table,
    uuids: Sequence[str],
    series: PackSeries,
    metrics: Sequence[str] = GPU_SHOWN,
) -> dict[str, ThinSeries]:
    import numpy as np
    import pyarrow.compute as pc

    own = [table.filter(pc.equal(table["uuid"], uuid)) for uuid in uuids]
    gpus = [GpuSamples(one) for one in own if len(one)]
    joined = join_gpus(gpus, metrics).table if gpus else None
    if joined is None:
        return {}
    place = find_places(_to_floats(joined["at"]), series.begin, series.step_s)
    found = {}
    for metric in metrics:
        values = _to_floats(joined[metric])
        if np.isfinite(values).any():
            found[metric] = thin(place, values, series.count)
    return found


def _thin_members(
    table: pa.Table, pauses: Sequence[MemberPause], series: PackSeries
) -> tuple[dict[int, ThinSeries], dict[int, list[Stay]]]:
    import numpy as np

    at, steps, first, last = (_to_floats(table[name]) for name in _MEASURED)
    member, attempt, start = keys = [np.asarray(table[name]) for name in _KEY]
    # Start by start, each in order of time.
    order = np.lexsort((at, *reversed(keys)))
    is_other = np.any([np.diff(values[order]) != 0 for values in keys], axis=0)
    stops = _find_stops(pauses)
    points: dict[int, list[tuple[Floats, Floats]]] = {}
    stays: dict[int, list[Stay]] = {}
    for rows in np.split(order, np.flatnonzero(is_other) + 1):
        number = int(member[rows[0]])
        key = (int(attempt[rows[0]]), int(start[rows[0]]))
        stays.setdefault(number, []).append((*key, float(at[rows[0]]), float(at[rows[-1]])))
        clock = OwnTime(stops.get((number, key[1]), ()))
        rate = _compute_rates(steps[rows], first[rows], last[rows], clock, series)
        if rate is not None:
            points.setdefault(number, []).append(rate)
    rates = {
        number: thin(
            find_places(
                np.concatenate([moments for moments, _ in own]), series.begin, series.step_s
            ),
            np.concatenate([values for _, values in own]),
            series.count,
        )
        for number, own in points.items()
    }
    return rates, stays


def _find_stops(pauses: Sequence[MemberPause]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for pause in pauses:
        end = float("inf") if pause.end is None else pause.end
        found.setdefault((pause.member, pause.start), []).append((pause.begin, end))
    return found


def _compute_rates(
    steps: Floats, first: Floats, last: Floats, clock: OwnTime, series: PackSeries
) -> tuple[Floats, Floats] | None:
    """Rates of one start, at even moments: steps of so many seconds of its own time.

    Time is that of the steps, not of the readings. None where it made too few.
    """
    import numpy as np

    known = np.isfinite(steps) & np.isfinite(last)
    if not known.any():
        return None
    moments = np.concatenate([first[known][:1], last[known]])
    counts = np.concatenate([[1.0], steps[known]])
    kept = np.concatenate([[True], np.diff(moments) > 0])
    moments, counts = moments[kept], np.maximum.accumulate(counts[kept])
    if not np.isfinite(moments).all() or moments[-1] - moments[0] < RATE_WINDOW_S:
        return None
    half_s = RATE_WINDOW_S / 2
    every_s = min(series.step_s, RATE_WINDOW_S)
    # The middle of a step, so that each has one moment where steps are short.
    place = np.ceil((moments[0] + half_s - series.begin) / every_s)
    middles = np.arange(
        series.begin + (place + 0.5) * every_s, moments[-1] - half_s + 1e-9, every_s
    )
    # By its own clock: between two readings it made no step while it was stopped.
    own = _read_clock(moments, clock)
    high, low = _read_clock(middles + half_s, clock), _read_clock(middles - half_s, clock)
    rise, ran_s = np.interp(high, own, counts) - np.interp(low, own, counts), high - low
    with np.errstate(invalid="ignore", divide="ignore"):
        # Mostly stopped, it tells no rate.
        rate = np.where(ran_s >= half_s, rise / ran_s, np.nan)
    return middles, rate


def _read_clock(at: Floats, clock: OwnTime) -> Floats:
    """A member's own time at many moments."""
    import numpy as np

    if not clock.stopped:
        return at
    edges = np.array([edge for window in clock.stopped for edge in window])
    edges = np.minimum(edges, max(at[-1] if len(at) else 0.0, edges[0]) + 1.0)
    shown = np.array([clock.read(float(edge)) for edge in edges])
    return np.where(
        at < edges[0],
        at,
        np.where(at > edges[-1], at - edges[-1] + shown[-1], np.interp(at, edges, shown)),
    )
