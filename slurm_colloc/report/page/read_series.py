"""What a pack's GPU and members did over time, thinned to what a page can draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.own_time import OwnTime
from slurm_colloc.report.page.thin_series import ThinSeries, thin
from slurm_colloc.report.summary.pack_samples import GpuSamples, join_gpus
from slurm_colloc.report.summary.sample_tables import read_table
from slurm_colloc.store.pack.member_pauses import MemberPause
from slurm_colloc.store.pack.sample_files import list_sample_files

if TYPE_CHECKING:
    import pyarrow as pa

    from slurm_colloc.report.page.thin_series import Floats

GPU_SHOWN = ("sm_active", "tensor_active", "dram_active", "utilization", "gpu_memory_mb", "power_w")
RATE_WINDOW_S = 5.0
"""A rate is that of the steps in so many seconds of the member's own time."""

_MEMBER_COLUMNS = ("at", "attempt", "member", "start", "steps", "first_step_at", "last_step_at")
_STEP_LEAST_S = 1.0
_TRIES = 3

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


def read_series(
    pack: Path,
    window: tuple[float, float],
    gpu_uuids: Sequence[str],
    pauses: Sequence[MemberPause],
    points: int,
) -> PackSeries:
    """Read a pack's samples and thin them.

    Args:
        pack: The pack's directory.
        window: From its first start to its last end, in seconds since the epoch.
        gpu_uuids: Its GPUs, which are drawn as one; none where they are not known.
        pauses: When its members were paused.
        points: How many steps of time there are to be, at most.
    """
    begin, end = window
    step_s = max(_STEP_LEAST_S, (end - begin) / points)
    count = max(1, int((end - begin) / step_s) + 1)
    problems: list[str] = []
    members = _read(pack, "members", _MEMBER_COLUMNS, problems)
    gpus = _read(pack, "gpu", ("at", "uuid", *GPU_SHOWN), problems)
    if members is None and gpus is None and not problems:
        problems.append("there are no samples: no curves are drawn")
    found = PackSeries(begin, step_s, count, problems=tuple(problems))
    gpu = {} if gpus is None or not gpu_uuids else _thin_gpus(gpus, gpu_uuids, found)
    rates, stays = ({}, {}) if members is None else _thin_members(members, pauses, found)
    return PackSeries(begin, step_s, count, gpu, rates, stays, tuple(problems))


def _read(pack: Path, table: str, columns: Sequence[str], problems: list[str]) -> pa.Table | None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise StateError(
            f"samples are Parquet files, which need pyarrow ({error})",
            hint="install it alongside csub: pip install pyarrow",
        ) from error

    def choose(
        _files: Sequence[Any],
    ) -> tuple[Callable[[pa.Table], pa.Table], Sequence[str], float]:
        return (lambda rows: rows), columns, 0.0

    for _ in range(_TRIES):
        try:
            return read_table(list_sample_files(pack, table), choose, problems)[0]
        except FileNotFoundError:
            # A running monitor has made one file of several meanwhile.
            continue
    problems.append(f"the samples in {pack}/report change faster than they can be read")
    return None


def _to_floats(column: pa.ChunkedArray) -> Floats:
    import numpy as np

    return np.asarray(column.to_numpy(), dtype=np.float64)


def _thin_gpus(table: pa.Table, uuids: Sequence[str], series: PackSeries) -> dict[str, ThinSeries]:
    import numpy as np

    gpus = [GpuSamples(one) for uuid in uuids if (one := _select_gpu(table, uuid)) is not None]
    joined = join_gpus(gpus, GPU_SHOWN).table if gpus else None
    if joined is None:
        return {}
    at = _to_floats(joined["at"])
    found = {}
    for metric in GPU_SHOWN:
        values = _to_floats(joined[metric])
        if np.isfinite(values).any():
            found[metric] = thin(at, values, series.begin, series.step_s, series.count)
    return found


def _select_gpu(table: pa.Table, uuid: str) -> pa.Table | None:
    import pyarrow.compute as pc

    own = table.filter(pc.equal(table["uuid"], uuid))
    return own if len(own) else None


def _thin_members(
    table: pa.Table, pauses: Sequence[MemberPause], series: PackSeries
) -> tuple[dict[int, ThinSeries], dict[int, list[Stay]]]:
    import numpy as np

    names = ("at", "attempt", "member", "start", "steps", "first_step_at", "last_step_at")
    at, attempt, member, start, steps, first, last = (_to_floats(table[name]) for name in names)
    order = np.lexsort((at, start, attempt, member))
    keys = np.stack([member, attempt, start])[:, order]
    cuts = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    stops = _find_stops(pauses)
    points: dict[int, list[tuple[Floats, Floats]]] = {}
    stays: dict[int, list[Stay]] = {}
    for rows in np.split(order, cuts):
        number = int(member[rows[0]])
        key = (int(attempt[rows[0]]), int(start[rows[0]]))
        stays.setdefault(number, []).append((*key, float(at[rows[0]]), float(at[rows[-1]])))
        clock = OwnTime(stops.get((number, key[1]), ()))
        rate = _compute_rates(steps[rows], first[rows], last[rows], clock, series)
        if rate is not None:
            points.setdefault(number, []).append(rate)
    rates = {
        number: thin(
            np.concatenate([moments for moments, _ in own]),
            np.concatenate([values for _, values in own]),
            series.begin,
            series.step_s,
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
