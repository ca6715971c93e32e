"""Usage profiles: what a job used while it was alone on a GPU, over all its runs.

Also: what one run has shown of a job, as usage profiles take it; means that begin at nothing and
need several values to be believed; what a pack showed of its jobs beyond what the model had
predicted of them; how jobs slow each other down on one GPU model: the coefficients that were fitted
there.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import KnownBy, PeakSource, UsageProfile
from slurm_colloc.model.power_curve import PowerPoint, add_point, is_lowered

# ---- What one run has shown of a job, as usage profiles take it; values only ---------------------


class MeasuredBy(enum.StrEnum):
    """How the figures of a usage profile were obtained."""

    ALONE = "alone"
    """In runs that were alone on the GPU for 10 s at least, after their warm-up."""
    PAUSING = "pausing"
    """Rate and activity in windows of a second or two, while the other members of its pack were
    paused; peaks and host use over the whole run."""
    COMPANY = "company"
    """Peaks and host use over a run in company; its rate alone is not known."""


@dataclass(frozen=True)
class RunningStatistics:
    """Mean and spread of a value over runs, without the runs.

    Attributes:
        mean: Their mean.
        sd: Their standard deviation (n - 1); None for fewer than two.
        n: How many there were.
        last: The newest.
    """

    mean: float
    sd: float | None
    n: int
    last: float

    def add(self, value: float) -> RunningStatistics:
        """With one more value (Welford, Technometrics 4(3), 1962)."""
        n = self.n + 1
        difference = value - self.mean
        mean = self.mean + difference / n
        squares = (self.sd or 0.0) ** 2 * (self.n - 1) + difference * (value - mean)
        return RunningStatistics(mean, math.sqrt(max(0.0, squares) / (n - 1)), n, value)

    @classmethod
    def start(cls, value: float) -> RunningStatistics:
        """Of one value."""
        return cls(value, None, 1, value)


@dataclass(frozen=True)
class Observation:
    """What one start of a member used while it was alone; None where unknown.

    Of a member with several GPUs the figures are those of one: the mean over its GPUs, and the GPU
    memory of the fullest.

    Attributes:
        signature: Of its job (store.profiles.compute_signature).
        family: That of its script, whatever the arguments.
        kind: The same without numbers among the arguments.
        name: Its job name.
        gpu_model: The GPU's model.
        gpu_uuid: The GPU.
        source: Which run it was; the same run is not counted twice.
        at: When it was seen last, in seconds since the epoch.
        window_s: How long it was alone and settled, in seconds.
        gpu_memory_peak_mb: Peak of its GPU memory.
        sm_active: Mean SM activity, 0 to 1.
        dram_active: Mean DRAM activity, 0 to 1.
        tensor_active: Mean activity of the tensor cores, 0 to 1.
        cpu_cores: Mean CPU cores.
        host_memory_peak_mb: Peak of its host memory.
        steps_per_s: Its rate.
        samples_per_s: Its rate in samples.
        wait_share: Share of the time that it waited for data, 0 to 1.
        energy_w: Mean power of the GPU in watts.
        idle_power_w: Power of the GPU before its first step, in watts.
        engine_active: Share of the time in which the GPU worked for it, 0 to 1.
        pcie_share: Share of what PCIe can carry in its busier direction, 0 to 1.
        nvlink_share: Share of what NVLink can carry in its busier direction, 0 to 1.
        gpu_memory_total_mb: Memory of the GPU.
        measured_by: How it was measured.
        gpu_memory_by: Who says what its peak of GPU memory is.
        gpu_memory_usual_mb: The most past its first seconds.
        power_limit_w: The power limit of the GPU meanwhile.
    """

    signature: str
    family: str
    name: str
    gpu_model: str
    gpu_uuid: str
    source: str
    at: float
    window_s: float
    gpu_memory_peak_mb: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    tensor_active: float | None = None
    cpu_cores: float | None = None
    host_memory_peak_mb: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    wait_share: float | None = None
    energy_w: float | None = None
    idle_power_w: float | None = None
    engine_active: float | None = None
    pcie_share: float | None = None
    gpu_memory_total_mb: float | None = None
    measured_by: MeasuredBy = MeasuredBy.ALONE
    gpu_memory_by: PeakSource = PeakSource.NVML
    gpu_memory_usual_mb: float | None = None
    nvlink_share: float | None = None
    kind: str = ""
    power_limit_w: float | None = None


@dataclass(frozen=True)
class HeldUp:
    """What holds a job up alone, as shares of its time; None where unknown.

    Attributes:
        signature: Of the job.
        gpu_model: The GPU's model.
        copies_share: Copies to the GPU.
        decoding_share: Decoding.
        disk_share: Reading files.
    """

    signature: str
    gpu_model: str
    copies_share: float
    decoding_share: float
    disk_share: float | None


@dataclass(frozen=True)
class Completion:
    """A run that came to its own end, whether or not it shared the GPU.

    Attributes:
        signature: Of its job.
        gpu_model: The GPU's model.
        source: Which run it was; the same run is not counted twice.
        steps: All the steps that it made.
    """

    signature: str
    gpu_model: str
    source: str
    steps: float


# ---- Means that begin at nothing and need several values to be believed --------------------------

SHRINKING = 2.0
"""So many values of 0 are taken to have come before the first."""

LARGEST = 1.0
"""A value further from 0 than that counts as that: one run that went wrong teaches little."""


BELIEVED_FROM = 3
FIRST_MOST = 0.15
"""Fewer values than that move a prediction by no more than this: a job that was disturbed once is
still packed, so that it can show what is usual."""


@dataclass(frozen=True)
class ShrunkenMean:
    """The mean of values between -1 and 1, shrunken towards 0; it stays between them itself.

    Attributes:
        total: Their sum.
        n: How many there were.
    """

    total: float = 0.0
    n: int = 0

    @property
    def value(self) -> float:
        """`total / (n + 2)`, and little for the first few values."""
        mean = self.total / (self.n + SHRINKING)
        if self.n >= BELIEVED_FROM:
            return mean
        return max(-FIRST_MOST, min(FIRST_MOST, mean))

    def add(self, value: float) -> ShrunkenMean:
        """With one more value."""
        return ShrunkenMean(self.total + max(-LARGEST, min(LARGEST, value)), self.n + 1)


# ---- Usage profiles: what a job used while it was alone on a GPU, over all its runs --------------

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
        copies_share: Share of its time alone for copies to the GPU, as `csub probe --stalls` told.
        decoding_share: The same for decoding.
        disk_share: The same for reading files; None where they came from a cache, too.
        power_curve: Its rate and power by the power limit, from the highest on. What was measured
            under a lower one is in nothing else but the peaks.
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
    copies_share: float | None = None
    decoding_share: float | None = None
    disk_share: float | None = None
    power_curve: tuple[PowerPoint, ...] = ()

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
        merged = merged._add_limit(observation)
        if is_lowered(merged.power_curve, observation.power_limit_w):
            return merged
        surer = SUREST.index(self.measured_by) - SUREST.index(observation.measured_by)
        if surer < 0:
            return merged
        gives_way = surer > 0
        return merged._add_figures(observation, gives_way=gives_way)

    def _add_limit(self, observation: Observation) -> ProfileRecord:
        limit_w, rate, power_w = (
            observation.power_limit_w,
            observation.steps_per_s,
            observation.energy_w,
        )
        if not (limit_w and rate and power_w) or observation.measured_by is MeasuredBy.COMPANY:
            return self
        seen = PowerPoint(limit_w, rate, power_w)
        return replace(self, power_curve=add_point(self.power_curve, seen))

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

    def hold_up(self, told: HeldUp) -> ProfileRecord:
        """With what holds it up; the newest counts."""
        return replace(
            self,
            copies_share=told.copies_share,
            decoding_share=told.decoding_share,
            disk_share=told.disk_share,
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
            disk_share=self.disk_share,
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
            power_curve=self.power_curve,
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


# ---- What a pack showed of its jobs beyond what the model had predicted of them; pure ------------
#
# Each job has two numbers of its own, so that one that suffers is not taken for one that makes
# others suffer: its `sensitivity`, by how much more than predicted it is slowed down, and its
# `pressure`, by how much more than that its partners are. Both are shrunken means over packs, first
# the one and then, of what is left, the other (the baseline estimate of Koren, "Factor in the
# Neighbors", ACM TKDD 4(1), 2010, with jobs for users and partners for items).


@dataclass(frozen=True)
class Compared:
    """A member whose slowdown in a pack was predicted and measured.

    Attributes:
        number: Its number.
        residual: Its slowdown as measured, less the one that the model alone predicted; None
            where one of them is unknown.
        partners: The members with which it was predicted and measured.
        profiles: Signatures of the usage profiles that stood for it: its own, else its family's.
    """

    number: int
    residual: float | None
    partners: frozenset[int]
    profiles: tuple[str, ...]


@dataclass(frozen=True)
class Feedback:
    """What a pack teaches of its jobs.

    Attributes:
        source: Which pack it was; the same pack is not counted twice.
        gpu_model: The GPU's model.
        members: Its members.
    """

    source: str
    gpu_model: str
    members: tuple[Compared, ...]


def learn(feedback: Feedback, records: Mapping[str, ProfileRecord]) -> dict[str, ProfileRecord]:
    """The usage profiles with what a pack teaches; those that it teaches nothing are left out.

    A pack counts once for a profile, however many of its members that stands for.

    Args:
        feedback: The pack.
        records: The usage profiles of its GPU model, by signature.
    """
    source = feedback.source
    learners = {
        signature: record
        for member in feedback.members
        for signature in member.profiles
        if (record := records.get(signature)) is not None and source not in record.compared
    }
    known = {**records}
    taught = set()
    for signature, record in learners.items():
        residuals = [
            member.residual
            for member in feedback.members
            if member.residual is not None and signature in member.profiles
        ]
        if residuals:
            mean = record.sensitivity or ShrunkenMean()
            known[signature] = replace(record, sensitivity=mean.add(_average(residuals)))
            taught.add(signature)
    left = {
        member.number: max(-LARGEST, min(LARGEST, member.residual))
        - _find_sensitivity(member, known)
        for member in feedback.members
        if member.residual is not None
    }
    for signature in learners:
        pressed = [
            _average(felt)
            for member in feedback.members
            if signature in member.profiles and (felt := _list_felt(member, feedback, left))
        ]
        if pressed:
            mean = known[signature].pressure or ShrunkenMean()
            known[signature] = replace(known[signature], pressure=mean.add(_average(pressed)))
            taught.add(signature)
    return {
        signature: replace(
            known[signature], compared=keep_newest((*known[signature].compared, source))
        )
        for signature in sorted(taught)
    }


def _find_sensitivity(member: Compared, records: Mapping[str, ProfileRecord]) -> float:
    """What planning takes for a member: the mean of the profiles that stand for it."""
    values = [
        record.sensitivity.value
        for signature in member.profiles
        if (record := records.get(signature)) is not None and record.sensitivity is not None
    ]
    return _average(values) if values else 0.0


def _list_felt(member: Compared, feedback: Feedback, left: Mapping[int, float]) -> list[float]:
    """What is left of its partners' residuals."""
    return [
        left[other.number]
        for other in feedback.members
        if other.number != member.number
        and member.number in other.partners
        and other.number in left
    ]


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# ---- How jobs slow each other down on one GPU model: the coefficients that were fitted there -----

"""What a job takes of a GPU, as shares of what it has; see Load."""


@dataclass(frozen=True)
class Load:
    """What a job takes of a GPU and its host while it runs alone at full speed.

    Attributes:
        engine: Share of the time in which the GPU works for it, 0 to 1.
        sm: SM activity, 0 to 1.
        dram: DRAM activity, 0 to 1.
        tensor: Activity of the tensor cores, 0 to 1.
        pcie: Share of what PCIe can carry in its busier direction, 0 to 1.
        disk: Share of its time that it waits for files to be read, 0 to 1.
        cpu_cores: Cores of the host.
        power_w: Power of the GPU above its idle power, in watts.
        sensitivity: What its slowdown was above the model's in earlier packs.
        pressure: What its partners' slowdowns were above the model's in earlier packs.
    """

    engine: float
    sm: float
    dram: float
    tensor: float = 0.0
    pcie: float = 0.0
    disk: float = 0.0
    cpu_cores: float = 1.0
    power_w: float = 0.0
    sensitivity: float = 0.0
    pressure: float = 0.0


@dataclass(frozen=True)
class ModeModel:
    """The contention model of one sharing mode; planning.contention says how they act.

    Without any of them members disturb each other by copies over PCIe alone.

    Attributes:
        turns: Time slicing: how much of a partner's time on the GPU is waited for.
        switching: Time slicing: what changing from one to the other costs on top.
        waiting: MPS: how long kernels wait for SMs that a partner's kernels fill.
        width: MPS: exponent of a thread limit in how many SMs a member's kernels fill.
        narrowing: MPS: how far a thread limit stretches the time on the GPU of a member itself.
        dram: MPS: how far two members that fill the DRAM's bandwidth stretch each other.
        capacity: MPS: SM activity, as measured alone, that the GPU can serve at the same time
            where thread limits add up to no more than the GPU; 0 for no bound.
        crowding: MPS: how much less that is where they add up to very much more.
        copying: How much longer a copy over PCIe takes while a partner copies, too. Where that
            was not measured, 1: each gets half.
    """

    turns: float = 0.0
    switching: float = 0.0
    waiting: float = 0.0
    width: float = 1.0
    narrowing: float = 0.0
    dram: float = 0.0
    capacity: float = 0.0
    crowding: float = 0.0
    copying: float = 1.0


@dataclass(frozen=True)
class Calibration:
    """The models of all sharing modes on one GPU model.

    Attributes:
        gpu_model: NVML's name of the GPU model.
        modes: By sharing mode (`timeslice`, `mps`, `mig`).
        residual: Standard deviation of measured over predicted slowdown, less one.
        idle_power_w: Power of the GPU when nothing runs; None where unknown.
        power_limit_w: Its power limit; None where unknown.
        made_at: When it was measured, in seconds since the epoch.
        driver: NVIDIA driver that it was measured with.
        packs: Of how many packs it was fitted.
        source: Where it comes from, in words.
    """

    gpu_model: str
    modes: Mapping[str, ModeModel]
    residual: float
    idle_power_w: float | None = None
    power_limit_w: float | None = None
    made_at: float = 0.0
    driver: str = ""
    packs: int = 0
    source: str = ""
