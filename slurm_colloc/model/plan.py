"""What planning is given and what it answers.

Also: how long jobs may run, and how many at once, by their quality of service (QoS); how long jobs
waited in a partition, by what they asked for; a seat of a planned MIG layout.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass, field, fields
from slurm_colloc.model.power_curve import PowerPoint

# ---- A seat of the MIG layout that a pack is planned with; a value -------------------------------


@dataclass(frozen=True)
class PlannedSeat:
    """One seat of a planned MIG layout: a compute instance, mostly of a GPU instance of its own.

    Attributes:
        word: As the layout names it, `3g`.
        profile: The profile of its GPU instance by the tables; NVML's on the node is what counts.
        instance: The number of its GPU instance in the layout.
        start: The first memory slice of that.
        size: Its memory slices.
        memory_mb: Its memory (MiB); None where the GPU is not known.
        sms: What it computes with.
        gpu_slices: Memory slices of the whole GPU.
        places: Members that have it at once: more than one share it by MPS.
    """

    word: str
    profile: str
    instance: int
    start: int
    size: int
    memory_mb: int | None
    sms: int
    gpu_slices: int
    places: int = 1


def name_seat(word: str, number: int) -> PlannedSeat:
    """A seat of which only its word is left, in a plan that is taken up again."""
    return PlannedSeat(word, word, number, 0, 0, None, 0, 0)


# ---- How long jobs may run, and how many at once, by their quality of service (QoS) --------------

USUAL = "normal"
"""The QoS that Slurm makes itself, and gives to users who have no default of their own."""


@dataclass(frozen=True)
class Qos:
    """A quality of service.

    Attributes:
        max_wall_s: Its MaxWall in seconds; None for no limit.
        over_partition: It counts before the partition's own QoS (OverPartQOS).
        over_max_time: Its jobs may run for longer than MaxTime of their partition
            (PartitionTimeLimit).
        jobs_at_once: Jobs of a user that may run, or be submitted, at the same time; None for no
            limit (MaxJobsPU, MaxSubmitPU).
        gpus_at_once: GPUs that a user may have at the same time (MaxTRESPU); None for no limit.
        gpus_per_job: GPUs of a job (MaxTRES); None for no limit.
    """

    max_wall_s: int | None = None
    over_partition: bool = False
    over_max_time: bool = False
    jobs_at_once: int | None = None
    gpus_at_once: int | None = None
    gpus_per_job: int | None = None


@dataclass(frozen=True)
class Association:
    """What a user is by one of their accounts, with what it takes over from that account.

    Attributes:
        account: The account.
        partition: The partition to which it is confined; empty for none.
        is_default: The account is that of jobs that ask for none.
        qos: The QoS of jobs that ask for none.
        max_wall_s: Its MaxWall in seconds; None for no limit.
        jobs_at_once: Its MaxJobs or MaxSubmit; as in Qos.
        gpus_at_once: Its GrpTRES; as in Qos.
        gpus_per_job: Its MaxTRES; as in Qos.
    """

    account: str
    partition: str = ""
    is_default: bool = False
    qos: str = USUAL
    max_wall_s: int | None = None
    jobs_at_once: int | None = None
    gpus_at_once: int | None = None
    gpus_per_job: int | None = None


@dataclass(frozen=True)
class UserLimits:
    """How much a user may have at the same time; None for no limit, or where it is not known.

    Attributes:
        jobs_at_once: Slurm jobs.
        gpus_at_once: GPUs.
        gpus_per_job: GPUs of one Slurm job.
    """

    jobs_at_once: int | None = None
    gpus_at_once: int | None = None
    gpus_per_job: int | None = None


NO_LIMITS = UserLimits()
"""Nothing is limited."""


@dataclass(frozen=True)
class QosTable:
    """What Slurm tells of its qualities of service.

    Attributes:
        known: Each by its name, which Slurm keeps in small letters.
        associations: The user's own.
        partitions: QoS of partitions that have one, by the partition's name.
        default_partition: The partition of who asks for none; empty where there is none.
        unknown: Why nothing is known, in words; empty where something is.
    """

    known: Mapping[str, Qos] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    partitions: Mapping[str, str] = field(default_factory=dict)
    default_partition: str = ""
    unknown: str = ""

    def find_max_wall_s(
        self, qos: str | None, account: str | None, partition: str | None
    ) -> int | None:
        """How long a job may run; None where there is no limit, or it is not known.

        A partition's QoS counts before the job's, unless that says otherwise, and the association
        after both (Slurm, "Resource Limits"). Of several partitions, or several QoS, the shortest
        counts.

        Args:
            qos: `--qos`; None for the user's default.
            account: `--account`; None for the user's default.
            partition: `--partition`; None for the cluster's default.
        """
        return self._find_least("max_wall_s", qos, account, partition)

    def find_user_limits(
        self, qos: str | None, account: str | None, partition: str | None
    ) -> UserLimits:
        """How much the user may have at the same time; as `find_max_wall_s`."""
        names = [field.name for field in fields(UserLimits)]
        return UserLimits(*(self._find_least(n, qos, account, partition) for n in names))

    def _find_least(
        self, name: str, qos: str | None, account: str | None, partition: str | None
    ) -> int | None:
        limits = [
            self._find_in(name, place, chosen, rows)
            for place, rows in self._list_places(account, partition)
            for chosen in _choose(qos, rows)
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def lifts_max_time(self, qos: str | None, account: str | None, partition: str | None) -> bool:
        """Whether a job may run for longer than MaxTime of its partition; as `find_max_wall_s`."""
        return all(
            self.known.get(chosen, Qos()).over_max_time
            for _, rows in self._list_places(account, partition)
            for chosen in _choose(qos, rows)
        )

    def _find_in(
        self, name: str, partition: str, qos: str, rows: Sequence[Association]
    ) -> int | None:
        own = self.known.get(qos, Qos())
        theirs = self.known.get(self.partitions.get(partition, "").lower(), Qos())
        first, second = (own, theirs) if own.over_partition else (theirs, own)
        of_rows = {getattr(row, name) for row in rows}
        last = of_rows.pop() if len(of_rows) == 1 else None
        limits = (getattr(first, name), getattr(second, name), last)
        return next((limit for limit in limits if limit is not None), None)

    def _list_places(
        self, account: str | None, partition: str | None
    ) -> list[tuple[str, list[Association]]]:
        """Each partition, and what the user is in it: one row, or several where it is unknown."""
        rows = list(self.associations)
        if account is not None:
            rows = [row for row in rows if row.account == account.lower()]
        elif any(row.is_default for row in rows):
            rows = [row for row in rows if row.is_default]
        names = (partition or self.default_partition).split(",")
        return [
            (
                name,
                [row for row in rows if row.partition == name]
                or [row for row in rows if not row.partition],
            )
            for name in names
        ]


def _choose(qos: str | None, rows: Sequence[Association]) -> list[str]:
    """The QoS that a job gets; nothing that tells of none where it cannot be told apart."""
    if qos:
        return qos.lower().split(",")
    found = {row.qos for row in rows} or {USUAL}
    return sorted(found) if len(found) == 1 else [""]


# ---- What planning is given and what it answers --------------------------------------------------

WATCHED_FROM_MB = 1024
"""Host memory from which on a pack is watched: a smaller one would miss what the monitor takes."""

MPS_CLIENTS_MAX = 48
"""Clients of one MPS server (NVIDIA, Multi-Process Service, "Client-Server Connections")."""

MIG_INSTANCES_MAX = 7
"""GPU instances of one GPU (NVIDIA, Multi-Instance GPU, "Supported MIG Profiles")."""


def is_watched(host_memory_mb: int | None) -> bool:
    """Whether a pack with so much host memory is watched; None where it has no limit."""
    return host_memory_mb is None or host_memory_mb >= WATCHED_FROM_MB


class Unwatched(enum.StrEnum):
    """Why a pack is not watched."""

    SETTING = "setting"
    HOST_MEMORY = "host_memory"
    NO_PLACE = "no_place"
    """Members have no place where they may publish their progress."""
    FAILED = "failed"
    """The monitor ended at each start."""


class SharingMode(enum.StrEnum):
    """How the members of a pack share the GPU."""

    EXCLUSIVE = "exclusive"
    TIMESLICE = "timeslice"
    MPS = "mps"
    MIG = "mig"


class KnownBy(enum.StrEnum):
    """Where what is known of a job comes from, the surest first."""

    EXACT = "exact"
    """The same script with the same arguments was measured."""
    FAMILY = "family"
    """The same script was measured with other arguments."""
    LIKE = "like"
    """The user named a job that was measured (`--profile-like`)."""
    STATED = "stated"
    """The user said what it needs (`--gpu-mem`), nothing was measured."""
    UNKNOWN = "unknown"


class Goal(enum.StrEnum):
    """What the choice of packs makes small."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    ENERGY = "energy"


class PeakSource(enum.StrEnum):
    """Who says how much GPU memory a job takes at most."""

    ALLOCATOR = "allocator"
    """PyTorch's allocator, with what NVML tells of the rest: the true peak of the runs."""
    NVML = "nvml"
    """NVML, at its looks: what was held in between is not in it."""


@dataclass(frozen=True)
class UsageProfile:
    """Solo use of a job on a GPU model; every figure is None where unknown.

    Attributes:
        gpu_memory_peak_mb: Peak of its GPU memory, its context included.
        gpu_memory_usual_mb: The most past its first seconds, which may take several times that.
        host_memory_peak_mb: Peak of its host memory.
        sm_activity: Mean SM activity, 0 to 1.
        dram_activity: Mean DRAM activity, 0 to 1.
        tensor_activity: Mean activity of the tensor cores, 0 to 1.
        engine_activity: Share of the time in which the GPU works for it, 0 to 1.
        pcie_share: Share of what PCIe can carry in its busier direction, 0 to 1.
        nvlink_share: The same of NVLink. Figures of a job with several GPUs are those of one of
            them.
        disk_share: Share of its time that it waits for files to be read, 0 to 1.
        cpu_cores: Mean CPU cores.
        power_w: Mean power of the GPU while it runs, in watts.
        idle_power_w: Power of the GPU before its first step, in watts.
        steps_per_s: Its rate alone.
        run_s: Seconds that a run takes alone on the whole GPU: the steps of earlier runs over
            the rate alone.
        known_by: Where this comes from.
        gpu_model: The GPU model that it was measured on; empty where unknown.
        sensitivity: What its slowdown was above the model's in earlier packs.
        pressure: What its partners' slowdowns were above the model's in earlier packs.
        gpu_memory_by: Who says what its peak of GPU memory is.
        family: Its family (`store.profiles.compute_family`), by which measured curves are
            found; empty where its relatives are too unlike for one.
        power_curve: Its rate and power by the power limit, from the highest on.
    """

    gpu_memory_peak_mb: int | None = None
    host_memory_peak_mb: int | None = None
    sm_activity: float | None = None
    dram_activity: float | None = None
    tensor_activity: float | None = None
    engine_activity: float | None = None
    pcie_share: float | None = None
    cpu_cores: float | None = None
    power_w: float | None = None
    idle_power_w: float | None = None
    steps_per_s: float | None = None
    run_s: float | None = None
    known_by: KnownBy = KnownBy.UNKNOWN
    gpu_model: str = ""
    sensitivity: float = 0.0
    pressure: float = 0.0
    gpu_memory_by: PeakSource = PeakSource.NVML
    gpu_memory_usual_mb: int | None = None
    nvlink_share: float | None = None
    family: str = ""
    power_curve: tuple[PowerPoint, ...] = ()
    disk_share: float | None = None


@dataclass(frozen=True)
class Capacity:
    """What one GPU of the partition, or a GPU set, brings with it: the smallest over its nodes.

    Attributes:
        cpus_per_gpu: The node's CPUs over its GPUs; None where unknown.
        host_memory_mb_per_gpu: The node's memory over its GPUs; None where unknown.
        gpu_memory_mb: Memory of one GPU; None where unknown.
        time_limit_max_s: The least of the partition's MaxTime, the QoS's MaxWall and the site's
            cap; None where infinite or unknown.
        time_limit_default_s: The partition's DefaultTime; None where infinite or unknown.
        gpus_per_node: GPUs of a node, the least of its nodes that have any; None where unknown.
        gives_whole_nodes: A job gets whole nodes, whatever it asks for (OverSubscribe=EXCLUSIVE).
        limits: How much the user may have at the same time, by QoS and account.
        gpus: How many GPUs the shares of CPUs and host memory are of; GPU memory is that of one.
    """

    cpus_per_gpu: int | None = None
    host_memory_mb_per_gpu: int | None = None
    gpu_memory_mb: int | None = None
    time_limit_max_s: int | None = None
    time_limit_default_s: int | None = None
    gpus_per_node: int | None = None
    gives_whole_nodes: bool = False
    limits: UserLimits = NO_LIMITS
    gpus: int = 1


@dataclass(frozen=True)
class Policy:
    """How far sharing may go.

    Attributes:
        degree: Members that run at the same time on a GPU, at most. Where the user did not ask
            for it, jobs whose load is known may be more: up to `degree_max`.
        pack_size: Members of a pack, at most; those above the degree wait in it. None means
            as many as the degree.
        slowdown_bound: Slowdown that is accepted for jobs that do not say; wall limits are
            stretched by it.
        running_limit: `%limit` of an array: members that run at the same time over all packs.
        mode: Sharing mode of packs with a degree above 1.
        share: What `--share` asked for, as text; see model.job.
        start_margin_s: Time that a pack asks for on top, for starting and ending.
        pack_time_max_s: The site's cap on a pack's time limit; None for no cap.
        monitor_mb: Host memory that a pack asks for on top, for what watches it.
        measure_s: Time that a pack asks for on top, because it is measured how many of its
            members run at once best.
        measures: Packs are measured by pausing members as they run, and those that are too many
            are parked.
        goal: What the choice of packs makes small.
        degree_is_asked: The user said how many may run at the same time.
        degree_max: Members of known load that run at the same time, at most; one MPS
            server takes no more.
        modes: Sharing modes that may be chosen from; none means `mode` alone.
        is_small_for_queue: `degree_max` is lower than it would be, as smaller packs wait less.
        join: Packs of other submissions in which its jobs may run: `auto`, `pending` (those that
            have not begun) or `never`.
        may_cut: Jobs that MPS does not hold may have MIG instances, although that was not asked
            for: the site's nodes make them.
        gpus_asked: How many GPUs a pack is to have: a number, `node` (those of a node), `set`
            (those of one GPU set) or `auto`.
        gpus_per_pack: GPUs of a pack, settled from that once the nodes are known.
        mixes_gpus: Jobs with fewer GPUs may be in the GPU set of one with more: their user has put
            them together.
        mps_inside: Members may share a MIG instance by MPS where more of them run at once than
            the layout has instances.
    """

    degree: int = 4
    pack_size: int | None = None
    slowdown_bound: float = 1.5
    running_limit: int | None = None
    mode: SharingMode = SharingMode.MPS
    share: str = "auto"
    start_margin_s: int = 60
    pack_time_max_s: int | None = None
    monitor_mb: int = 0
    measure_s: int = 0
    measures: bool = False
    goal: Goal = Goal.THROUGHPUT
    degree_is_asked: bool = False
    degree_max: int = MPS_CLIENTS_MAX
    modes: tuple[SharingMode, ...] = ()
    is_small_for_queue: bool = False
    join: str = "never"
    may_cut: bool = False
    gpus_asked: str = "auto"
    gpus_per_pack: int = 1
    mps_inside: bool = False
    mixes_gpus: bool = False

    @property
    def has_gpu_sets(self) -> bool:
        """A pack may have several GPUs."""
        return self.gpus_per_pack > 1


@dataclass(frozen=True)
class MemberPlan:
    """A member's place in a pack.

    Attributes:
        job_index: Index into the jobs that were given to `plan`.
        cpus: CPUs of its own.
        host_memory_mb: Host memory limit of its step; None for no limit of its own.
        wall_limit_s: Wall-clock limit, stretched; None for none of its own.
        gpu_memory_limit_mb: Limit on GPU memory; None for none.
        thread_percentage: MPS thread limit; None for none.
        predicted_slowdown: Its slowdown among these members; None where unknown.
        model_slowdown: The same by the model alone, without what earlier packs of these jobs
            showed; None where that is the same.
        solo_steps_per_s: Its rate alone on the whole GPU; None where unknown.
        max_slowdown: The slowdown that is accepted for it; None where that was not said.
        instance: The word of its MIG instance, or of one that it may have once it no longer
            waits; empty where it has none.
        gpus: GPUs of its set that it uses.
    """

    job_index: int
    cpus: int
    host_memory_mb: int | None
    wall_limit_s: int | None
    gpu_memory_limit_mb: int | None = None
    thread_percentage: int | None = None
    predicted_slowdown: float | None = None
    solo_steps_per_s: float | None = None
    max_slowdown: float | None = None
    model_slowdown: float | None = None
    instance: str = ""
    gpus: int = 1


@dataclass(frozen=True)
class PackRequest:
    """What the pack asks Slurm for; None means that Slurm's default stands.

    Attributes:
        gpus: GPUs.
        gpu_type: Their type; None for any.
        cpus: CPUs.
        host_memory_mb: Host memory in MB.
        time_limit_s: Time limit in seconds.
        is_unlimited: It asks for no time limit; then time_limit_s is None.
    """

    gpus: int
    gpu_type: str | None
    cpus: int
    host_memory_mb: int | None
    time_limit_s: int | None
    is_unlimited: bool = False


@dataclass(frozen=True)
class SharingReasons:
    """Why a pack shares as it does; empty for what is not so of it.

    Attributes:
        alone: Why its job runs alone.
        came_alone: That is only because no other came with it: another may join it.
        full: Why it takes no more members.
        opened: That it is open for others, and what it asks for them.
        not_opened: That it asks for nothing for others, and why.
        power: Which power limit it asks for, or why none, with `--goal=energy`.
    """

    alone: str = ""
    came_alone: bool = False
    full: str = ""
    opened: str = ""
    not_opened: str = ""
    power: str = ""


@dataclass(frozen=True)
class PackPlan:
    """One pack.

    Attributes:
        members: In the order in which they start.
        degree: How many run at the same time, at most: more than its members, where members of
            other packs of the call may be taken over.
        mode: Sharing mode.
        request: What is asked of Slurm; None for a job alone, which gets what it asked for.
        group: The options that all members share, passed to sbatch.
        predicted_slowdown: Per member, in the same order; None where there is no model yet.
        reasons: Why the pack looks like this, a sentence each.
        predicted_finish_s: Seconds from its start to the end of its last member; None where
            unknown.
        known: The loads of all members are known, and so is how far they slow each other down.
        layout: The MIG instances for those that run at once; none in other modes.
        slurm_job: Packs of the plan with the same number are GPU sets of one Slurm job; None for
            one that has its job to itself.
        open_for: For how many more jobs it asks, so that they can join it while it runs.
        sharing: What of its reasons is about sharing.
        power_limit_w: The power limit that it asks root for; 0 for none.
    """

    members: tuple[MemberPlan, ...]
    degree: int
    mode: SharingMode
    request: PackRequest | None
    group: tuple[tuple[str, str], ...]
    predicted_slowdown: tuple[float, ...] | None
    reasons: tuple[str, ...]
    predicted_finish_s: float | None = None
    known: bool = False
    layout: tuple[PlannedSeat, ...] = ()
    slurm_job: int | None = None
    open_for: int = 0
    sharing: SharingReasons = SharingReasons()
    power_limit_w: int = 0


@dataclass(frozen=True)
class Plan:
    """The packs of one call.

    Attributes:
        packs: In submission order; every job is in exactly one.
        packs_at_once: How many packs may run at the same time; None for no limit.
        reasons: What holds for the whole plan, a sentence each.
    """

    packs: tuple[PackPlan, ...]
    packs_at_once: int | None
    reasons: tuple[str, ...]


# ---- How long jobs waited in a partition, by what they asked for ---------------------------------

LEAST_JOBS = 20
"""Fewer jobs make no estimate."""

BUCKETS_S = (3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)
"""Time limits that are counted together end here; what is longer, or has none, is one more."""


@dataclass(frozen=True)
class PastJob:
    """A job that has waited.

    Attributes:
        gpus: GPUs that it asked for.
        time_limit_s: Its time limit; None for none.
        wait_s: From when it could have started to its start, in seconds.
    """

    gpus: int
    time_limit_s: int | None
    wait_s: float


@dataclass(frozen=True)
class WaitEstimate:
    """How long a request waits, by jobs that asked for the like.

    Attributes:
        median_s: Half of them waited no longer.
        p90_s: Nine of ten waited no longer.
        jobs: How many they were.
        of: What they had in common with the request, in words.
    """

    median_s: float
    p90_s: float
    jobs: int
    of: str


Cell = tuple[int | None, int | None]
"""GPUs and bucket of the time limit; None for any."""


@dataclass(frozen=True)
class WaitTable:
    """Waits in one partition.

    Attributes:
        jobs: How many jobs it is made of.
        cells: Number of jobs, median and 90th percentile of their waits in seconds, of cells
            with enough jobs.
        unknown: Why there are none, in words; empty where there are.
    """

    jobs: int
    cells: Mapping[Cell, tuple[int, float, float]] = field(default_factory=dict)
    unknown: str = ""

    def estimate(self, gpus: int, time_limit_s: int | None) -> WaitEstimate | None:
        """How long a request will wait, by the finest cell with enough jobs; None where none has.

        Args:
            gpus: GPUs that are asked for.
            time_limit_s: The time limit; None for none.
        """
        bucket = choose_bucket(time_limit_s)
        words = f"{gpus} GPU{'' if gpus == 1 else 's'}"
        finer: tuple[tuple[Cell, str], ...] = (
            ((gpus, bucket), f"{words} and {_describe_bucket(bucket)}"),
            ((gpus, None), words),
            ((None, None), "any request"),
        )
        for cell, of in finer:
            if cell in self.cells:
                jobs, median_s, p90_s = self.cells[cell]
                return WaitEstimate(median_s, p90_s, jobs, of)
        return None


def choose_bucket(time_limit_s: int | None) -> int:
    """The bucket of a time limit."""
    if time_limit_s is None:
        return len(BUCKETS_S)
    return next((i for i, most in enumerate(BUCKETS_S) if time_limit_s <= most), len(BUCKETS_S))


def _describe_bucket(bucket: int) -> str:
    if bucket == len(BUCKETS_S):
        return f"more than {BUCKETS_S[-1] // 3600} h"
    return f"at most {BUCKETS_S[bucket] // 3600} h"


def build_wait_table(jobs: Iterable[PastJob]) -> WaitTable:
    """Count waits by what was asked for; cells with too few jobs are left out."""
    waits: dict[Cell, list[float]] = {}
    for job in jobs:
        bucket = choose_bucket(job.time_limit_s)
        for cell in ((job.gpus, bucket), (job.gpus, None), (None, None)):
            waits.setdefault(cell, []).append(job.wait_s)
    count = len(waits.get((None, None), ()))
    cells = {
        cell: (len(found), find_quantile(found, 0.5), find_quantile(found, 0.9))
        for cell, found in waits.items()
        if len(found) >= LEAST_JOBS
    }
    unknown = "" if cells else f"{count} job{'' if count == 1 else 's'} in sacct"
    return WaitTable(count, cells, unknown)


def find_quantile(values: list[float], share: float) -> float:
    """A quantile, on the line between the two values around it."""
    values.sort()
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])
