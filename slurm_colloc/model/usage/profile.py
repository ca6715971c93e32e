"""Usage profiles: what a job used while it was alone on a GPU, over all its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.model.plan import KnownBy, PeakSource, UsageProfile
from slurm_colloc.model.usage.observation import (
    Completion,
    MeasuredBy,
    Observation,
    RunningStatistics,
)
from slurm_colloc.model.usage.shrunken_mean import ShrunkenMean

_SEEN_MOST = 64

PCIE_MIB_S = 55_000.0
"""What PCIe 5.0 x16 carries in one direction in practice (63 GB/s by its specification)."""

NVLINK_MIB_S = 429_000.0
"""What NVLink 4 carries in one direction on a Hopper GPU: 450 GB/s by its specification. On others
the share is that of this number, too: planning compares jobs on one model."""

FAMILY_SPREAD = 0.1
"""Relatives whose rates alone differ by more than that, over their mean, say nothing of another's
rate: something among their arguments matters for it."""

CURVE_SPREAD = 1.5
"""Jobs have one measured curve if their rates alone differ by no more than this factor: hosts that
are fast and slow by turns differ by as much, another model by more."""

RUN_MOST_S = 365 * 86_400.0
"""No run takes longer than a year: figures that say so are wrong."""


def keep_newest(sources: tuple[str, ...]) -> tuple[str, ...]:
    """As many of the newest runs or packs as a usage profile names."""
    return sources[-_SEEN_MOST:]


def rates_agree(rates: Sequence[float]) -> bool:
    """Whether the rates alone of a family are one rate, as far as they are known."""
    if not rates:
        return True
    return max(rates) - min(rates) <= FAMILY_SPREAD * sum(rates) / len(rates)


def may_be_one_kind(rates: Sequence[float]) -> bool:
    """Whether rates alone are near enough for one measured curve, as far as they are known."""
    return not rates or max(rates) <= CURVE_SPREAD * min(rates)


SUREST = (MeasuredBy.ALONE, MeasuredBy.PAUSING, MeasuredBy.COMPANY)
"""In which order ways of measuring take each other's place."""

MEANS = ("sm_active", "dram_active", "tensor_active", "cpu_cores", "wait_share", "energy_w",
         "idle_power_w", "engine_active", "pcie_share", "nvlink_share")  # fmt: skip
PEAKS = (
    "gpu_memory_peak_mb", "gpu_memory_usual_mb", "host_memory_peak_mb", "gpu_memory_total_mb",
)  # fmt: skip
RATES = ("steps_per_s", "samples_per_s")


@dataclass(frozen=True)
class ProfileRecord:
    """A usage profile; every figure is None where unknown.

    Attributes:
        signature: Of the job.
        family: That of its script, whatever the arguments.
        name: Name of the job that was seen last.
        gpu_model: The GPU's model.
        gpu_uuids: The GPUs it was measured on.
        samples: How many runs it is made of.
        updated_at: Seconds since the epoch.
        gpu_memory_peak_mb: Largest peak.
        host_memory_peak_mb: Largest peak.
        sm_active: Mean over the runs, as the next ones.
        dram_active: See Observation.
        tensor_active: See Observation.
        cpu_cores: See Observation.
        wait_share: See Observation.
        energy_w: See Observation.
        idle_power_w: See Observation.
        steps_per_s: Solo rate.
        samples_per_s: Solo rate in samples.
        seen: The newest runs that are in it.
        engine_active: See Observation.
        pcie_share: See Observation.
        nvlink_share: See Observation.
        gpu_memory_total_mb: Memory of the GPU.
        steps_total: Steps of the runs that came to their own end, those that shared included.
        completed: The newest of these.
        sensitivity: By how much more than the model predicts it is slowed down in packs.
        pressure: By how much more than that its partners are.
        compared: The newest packs that these two are made of.
        measured_by: How its runs were measured: the surer way takes the place of the others.
        gpu_memory_by: Who says what the largest peak of GPU memory is.
        gpu_memory_usual_mb: The largest use past the first seconds.
        kind: The signature without numbers among the arguments: the closest relatives.
    """

    signature: str
    family: str
    name: str
    gpu_model: str
    gpu_uuids: tuple[str, ...]
    samples: int
    updated_at: float
    gpu_memory_peak_mb: float | None = None
    host_memory_peak_mb: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    tensor_active: float | None = None
    cpu_cores: float | None = None
    wait_share: float | None = None
    energy_w: float | None = None
    idle_power_w: float | None = None
    steps_per_s: RunningStatistics | None = None
    samples_per_s: RunningStatistics | None = None
    seen: tuple[str, ...] = ()
    engine_active: float | None = None
    pcie_share: float | None = None
    gpu_memory_total_mb: float | None = None
    steps_total: RunningStatistics | None = None
    completed: tuple[str, ...] = ()
    sensitivity: ShrunkenMean | None = None
    pressure: ShrunkenMean | None = None
    compared: tuple[str, ...] = ()
    measured_by: MeasuredBy = MeasuredBy.ALONE
    gpu_memory_by: PeakSource = PeakSource.NVML
    gpu_memory_usual_mb: float | None = None
    nvlink_share: float | None = None
    kind: str = ""

    @classmethod
    def start(cls, observation: Observation) -> ProfileRecord:
        """The profile of a first run."""
        empty = cls(
            observation.signature, observation.family, observation.name, observation.gpu_model,
            (), 0, observation.at, kind=observation.kind,
            measured_by=observation.measured_by,
            gpu_memory_by=observation.gpu_memory_by,
        )  # fmt: skip
        return empty.add(observation)

    def add(self, observation: Observation) -> ProfileRecord:
        """With one more run; unchanged where that run is in it already.

        Of a run that was measured in a less sure way a profile takes the peaks only; to one in a
        surer way it gives way in all that was measured.
        """
        if observation.source in self.seen:
            return self
        values: dict[str, object] = {}
        for name in PEAKS:
            known = [v for v in (getattr(self, name), getattr(observation, name)) if v is not None]
            values[name] = max(known, default=None)
        values["gpu_memory_by"] = choose_peak_source(
            (one.gpu_memory_peak_mb, one.gpu_memory_by) for one in (self, observation)
        )
        uuids = (*self.gpu_uuids, observation.gpu_uuid)
        merged = replace(
            self,
            name=observation.name,
            gpu_uuids=tuple(dict.fromkeys(uuid for uuid in uuids if uuid)),
            updated_at=max(self.updated_at, observation.at),
            seen=keep_newest((*self.seen, observation.source)),
            **values,  # type: ignore[arg-type]
        )
        surer = SUREST.index(self.measured_by) - SUREST.index(observation.measured_by)
        if surer < 0:
            return merged
        gives_way = surer > 0
        return merged._add_figures(observation, gives_way=gives_way)

    def _add_figures(self, observation: Observation, *, gives_way: bool) -> ProfileRecord:
        """With the means and rates of one more run, in place of what there is where that gives way.

        What was not measured in that run stays as it was.
        """
        samples = 0 if gives_way else self.samples
        values: dict[str, object] = {}
        for name in MEANS:
            mean, value = getattr(self, name), getattr(observation, name)
            values[name] = value if gives_way and value is not None else mean
            if not gives_way:
                values[name] = _merge_mean(mean, samples, value)
        for name in RATES:
            rate, value = getattr(self, name), getattr(observation, name)
            if value is not None:
                is_first = rate is None or gives_way
                rate = RunningStatistics.start(value) if is_first else rate.add(value)
            values[name] = rate
        return replace(
            self,
            samples=samples + 1,
            measured_by=observation.measured_by,
            **values,  # type: ignore[arg-type]
        )

    def complete(self, completion: Completion) -> ProfileRecord:
        """With the steps of a run that came to its end; unchanged where they are in it already."""
        if completion.source in self.completed or completion.steps <= 0:
            return self
        steps = completion.steps
        total = self.steps_total
        return replace(
            self,
            steps_total=RunningStatistics.start(steps) if total is None else total.add(steps),
            completed=keep_newest((*self.completed, completion.source)),
        )

    @property
    def run_s(self) -> float | None:
        """Seconds that a whole run takes alone; None where its steps or its rate are unknown."""
        if self.steps_total is None or self.steps_per_s is None or self.steps_per_s.mean <= 0:
            return None
        run_s = self.steps_total.mean / self.steps_per_s.mean
        return run_s if run_s <= RUN_MOST_S else None

    def for_planning(self, known_by: KnownBy = KnownBy.EXACT) -> UsageProfile:
        """What planning asks for.

        Args:
            known_by: How it came to be the profile of the job that is planned.
        """
        return UsageProfile(
            gpu_memory_peak_mb=_round_up(self.gpu_memory_peak_mb),
            gpu_memory_usual_mb=_round_up(self.gpu_memory_usual_mb),
            host_memory_peak_mb=_round_up(self.host_memory_peak_mb),
            sm_activity=self.sm_active,
            dram_activity=self.dram_active,
            tensor_activity=self.tensor_active,
            engine_activity=self.engine_active,
            pcie_share=self.pcie_share,
            nvlink_share=self.nvlink_share,
            cpu_cores=self.cpu_cores,
            power_w=self.energy_w,
            idle_power_w=self.idle_power_w,
            steps_per_s=None if self.steps_per_s is None else self.steps_per_s.mean,
            run_s=self.run_s,
            known_by=known_by,
            gpu_model=self.gpu_model,
            sensitivity=0.0 if self.sensitivity is None else self.sensitivity.value,
            pressure=0.0 if self.pressure is None else self.pressure.value,
            gpu_memory_by=self.gpu_memory_by,
            family=self.family if known_by in (KnownBy.EXACT, KnownBy.FAMILY) else "",
        )


def agree(records: Sequence[ProfileRecord]) -> bool:
    """Whether relatives on one GPU model tell of each other: by their rates, else SM activity."""
    rates = [record.steps_per_s.mean for record in records if record.steps_per_s is not None]
    if rates:
        return rates_agree(rates)
    return rates_agree([record.sm_active for record in records if record.sm_active is not None])


def choose_relatives(records: Sequence[ProfileRecord], kind: str) -> Sequence[ProfileRecord]:
    """Those of a family on one GPU model that tell of a job: the closest if they agree, else all.

    Args:
        records: The family.
        kind: The job's signature without numbers among its arguments.

    Returns:
        They; none where they disagree.
    """
    closest = [record for record in records if record.kind == kind]
    for chosen in (closest, records):
        if chosen and any(map(tells_rate, chosen)) and agree(chosen):
            return chosen
    return ()


def tells_rate(record: ProfileRecord) -> bool:
    """Whether it tells what a job does alone: who reported no step alone will report none again."""
    return record.steps_per_s is not None or record.measured_by is MeasuredBy.ALONE


def choose_peak_source(peaks: Iterable[tuple[float | None, PeakSource]]) -> PeakSource:
    """Who says what the largest of several peaks is; of equal ones the allocator does."""
    known = [(peak, by is PeakSource.ALLOCATOR) for peak, by in peaks if peak is not None]
    return PeakSource.ALLOCATOR if max(known, default=(0.0, False))[1] else PeakSource.NVML


def _merge_mean(mean: float | None, n: int, value: float | None) -> float | None:
    """A mean of n runs with one more; a run in which it was unknown changes nothing."""
    if value is None or mean is None:
        return mean if value is None else value
    return mean + (value - mean) / (n + 1)


def _round_up(value: float | None) -> int | None:
    return None if value is None else math.ceil(value)
