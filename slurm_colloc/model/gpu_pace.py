"""How fast each GPU is against others of its model, by what packs have noted; pure values.

Only rates alone are compared: of one in company it is not known what its neighbours cost it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from slurm_colloc.model.late_definitions import dataclass, field, replace
from slurm_colloc.model.usage_profile import MeasuredBy, rates_agree

SLOW = 0.9
"""A GPU below it is slow: such of one model differ by some percent."""
PACKS_LEAST = 3
"""So many packs in which it was say so, and no fewer."""
THROTTLED = 0.05
"""Of the time in which packs ran: for so long heat or the power brake held its clocks down."""
WATCHED_LEAST_S = 60.0

RUNS_MOST, RATES_MOST, GPUS_MOST = 8, 8, 256
"""What is kept: the newest packs of a GPU, kinds of one pack, GPUs of a model seen last."""
KEPT_S = 30 * 86_400.0
"""What is so much older than the newest pack says nothing of today's GPU."""

_BATCH_DIGITS, _MEMORY_DIGITS = 3, 2
"""Jobs of one kind that differ in these are unlike: a larger batch, a wider model."""


@dataclass(frozen=True)
class GpuRate:
    """A rate alone on a GPU.

    Attributes:
        kind: Of the job: its script, and its arguments without numbers.
        signature: Of the job.
        steps_per_s: The rate.
        measured_by: How.
        samples_per_step: Its batch size; None where unknown.
        gpu_memory_mb: What it takes past its first seconds; None where unknown.

    Raises:
        ValueError: The rate is none.
    """

    kind: str
    signature: str
    steps_per_s: float
    measured_by: MeasuredBy = MeasuredBy.ALONE
    samples_per_step: float | None = None
    gpu_memory_mb: float | None = None

    def __post_init__(self) -> None:
        if self.steps_per_s <= 0:
            raise ValueError(f"steps_per_s: must be above 0, is {self.steps_per_s}")


@dataclass(frozen=True)
class GpuRun:
    """What a pack has shown of a GPU.

    Attributes:
        pack: The pack.
        uuid: The GPU.
        node: Where it is.
        at: The pack's end, in seconds since the epoch.
        rates: Of its jobs.
        watched_s: How long the GPU was watched.
        throttled_s: For how long heat or the power brake held its clocks down; None where unknown.
    """

    pack: str
    uuid: str
    node: str
    at: float
    rates: tuple[GpuRate, ...] = ()
    watched_s: float = 0.0
    throttled_s: float | None = None


@dataclass(frozen=True)
class GpuRuns:
    """What packs have shown of the GPUs of a model.

    Attributes:
        gpu_model: The model.
        runs: In order of time.
    """

    gpu_model: str
    runs: tuple[GpuRun, ...] = ()

    def add(self, newer: Sequence[GpuRun]) -> GpuRuns:
        """With more of them, each once; the oldest go."""
        by_key = {(run.pack, run.uuid): run for run in (*self.runs, *newer)}
        ordered = sorted(by_key.values(), key=lambda run: run.at)
        oldest = ordered[-1].at - KEPT_S if ordered else 0.0
        by_gpu: dict[str, list[GpuRun]] = {}
        for run in ordered:
            if run.at >= oldest:
                own = by_gpu.pop(run.uuid, [])
                # The GPU that was seen last comes last.
                by_gpu[run.uuid] = [*own, replace(run, rates=run.rates[:RATES_MOST])][-RUNS_MOST:]
        kept = chain.from_iterable(list(by_gpu.values())[-GPUS_MOST:])
        return replace(self, runs=tuple(sorted(kept, key=lambda run: run.at)))


@dataclass(frozen=True)
class GpuPace:
    """How fast a GPU is against others of its model.

    Attributes:
        uuid: The GPU.
        node: Where it was seen last.
        model: Its model.
        rate: Median over packs of their jobs' rates over the jobs' usual ones; None where no job
            of it ran on another GPU of the model.
        packs: How many packs tell.
        slow_packs: In how many of them it was below 0.9.
        throttled: Part of the time in which heat or the power brake held its clocks down; None
            where unknown.
    """

    uuid: str
    node: str
    model: str
    rate: float | None = None
    packs: int = 0
    slow_packs: int = 0
    throttled: float | None = None

    @property
    def is_slow(self) -> bool:
        """Its jobs were slow in several packs, or it was throttled."""
        return self.has_slow_jobs or self.is_throttled

    @property
    def has_slow_jobs(self) -> bool:
        """Its jobs were slow in several packs."""
        return self.rate is not None and self.rate < SLOW and self.slow_packs >= PACKS_LEAST

    @property
    def is_throttled(self) -> bool:
        """Heat or the power brake held its clocks down."""
        return self.throttled is not None and self.throttled >= THROTTLED

    def describe(self) -> str:
        """`GPU-2c1b41f0 (node7) made 0.67 of the usual rate in 3 of 4 packs`."""
        parts = []
        if self.has_slow_jobs:
            parts.append(
                f"made {self.rate:.2f} of the usual rate in {self.slow_packs} of {self.packs} packs"
            )
        if self.is_throttled:
            parts.append(f"was throttled {100 * (self.throttled or 0.0):.0f} % of the time")
        return f"{self.uuid} ({self.node}) {' and '.join(parts)}"


def compare_paces(runs: GpuRuns) -> list[GpuPace]:
    """The GPUs of a model, the slowest first; those of which nothing can be said at the end."""
    recent = runs.runs
    votes: dict[tuple[str, str], list[float]] = {}
    for alike in _group(recent):
        by_gpu: dict[str, list[float]] = {}
        for run, rate in alike:
            by_gpu.setdefault(run.uuid, []).append(rate.steps_per_s)
        if len(by_gpu) < 2:
            continue
        usual = _find_middle(_find_middle(rates) for rates in by_gpu.values())
        for run, rate in alike:
            votes.setdefault((run.uuid, run.pack), []).append(rate.steps_per_s / usual)
    found = []
    for uuid in dict.fromkeys(run.uuid for run in recent):
        own = [run for run in recent if run.uuid == uuid]
        packs = [_find_middle(told) for (of, _), told in votes.items() if of == uuid]
        known = [run for run in own if run.throttled_s is not None]
        watched_s = sum(run.watched_s for run in known)
        throttled_s = sum(run.throttled_s or 0.0 for run in known)
        found.append(
            GpuPace(
                uuid,
                own[-1].node,
                runs.gpu_model,
                _find_middle(packs) if packs else None,
                len(packs),
                sum(pack < SLOW for pack in packs),
                throttled_s / watched_s if watched_s >= WATCHED_LEAST_S else None,
            )
        )
    return sorted(found, key=lambda pace: (pace.rate is None, pace.rate or 0.0, pace.uuid))


@dataclass
class _Kind:
    """Rates of one kind of job, measured in one way, of one batch size and about one memory.

    Attributes:
        rates: Each with its run.
    """

    rates: list[tuple[GpuRun, GpuRate]] = field(default_factory=list)

    def split(self) -> list[list[tuple[GpuRun, GpuRate]]]:
        """The rates that may be compared.

        Those of all its jobs where numbers among their arguments do not matter: two jobs ran
        equally fast on one GPU, and on none unlike ones. Otherwise those of each job by itself.
        """
        by_signature: dict[str, list[tuple[GpuRun, GpuRate]]] = {}
        on_gpu: dict[str, dict[str, list[float]]] = {}
        for run, rate in self.rates:
            by_signature.setdefault(rate.signature, []).append((run, rate))
            own = on_gpu.setdefault(run.uuid, {})
            own.setdefault(rate.signature, []).append(rate.steps_per_s)
        several = [list(map(_find_middle, own.values())) for own in on_gpu.values() if len(own) > 1]
        if several and all(map(rates_agree, several)):
            return [self.rates]
        return list(by_signature.values())


def _group(runs: Sequence[GpuRun]) -> list[list[tuple[GpuRun, GpuRate]]]:
    kinds: dict[tuple[str, ...], _Kind] = {}
    for run in runs:
        for rate in run.rates:
            batch = _round(rate.samples_per_step, _BATCH_DIGITS)
            memory = _round(rate.gpu_memory_mb, _MEMORY_DIGITS)
            key = (rate.kind, rate.measured_by.value, batch, memory)
            kinds.setdefault(key, _Kind()).rates.append((run, rate))
    return [alike for kind in kinds.values() for alike in kind.split()]


def _round(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _find_middle(values: Iterable[float]) -> float:
    # As the median of `statistics`, which loads decimals, fractions and random numbers.
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2
