"""What a plan looks like to those who ask why: values only, rendered by others."""

from __future__ import annotations

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.plan import KnownBy, SharingMode
from slurm_colloc.planning.hard_limits import Broken


@dataclass(frozen=True)
class MemberExplanation:
    """A member of a planned pack; what is unknown is None.

    Attributes:
        job_index: Index into the jobs of the call.
        number: Its number within the call.
        name: Its job name.
        known_by: Where what is known of it comes from.
        slowdown: Predicted, against alone on the whole GPU, while all members run.
        max_slowdown: What is accepted; None where it was not said.
        solo_steps_per_s: Its rate alone.
        predicted_steps_per_s: The same over its slowdown.
        run_s: Seconds that it is expected to run alone; None where earlier runs do not tell.
        thread_percentage: Its MPS thread limit.
        gpu_memory_mb: GPU memory that it may use.
        gpu_memory_by: What that rests on: `stated`, or `allocator` or `nvml` for the peak of
            earlier runs (model.plan.PeakSource); None where it is not known.
        sm_activity: SM activity that it brings while all run: alone, over its slowdown.
        dram_activity: The same of DRAM.
        pcie_share: The same of what PCIe can carry in its busier direction; None where unknown.
        disk_share: The share of its time that files are read for it; None where unknown.
        cpus: Its CPUs.
        wall_limit_s: Its wall limit.
        instance: The word of its MIG instance; empty where it has none.
    """

    job_index: int
    number: int
    name: str
    known_by: KnownBy
    slowdown: float | None
    max_slowdown: float | None
    solo_steps_per_s: float | None
    predicted_steps_per_s: float | None
    run_s: float | None
    thread_percentage: int | None
    gpu_memory_mb: int | None
    sm_activity: float | None
    dram_activity: float | None
    pcie_share: float | None
    disk_share: float | None
    cpus: int
    wall_limit_s: int | None
    gpu_memory_by: str | None = None
    instance: str = ""


@dataclass(frozen=True)
class SeatExplanation:
    """A seat of a planned MIG layout (model.plan.PlannedSeat), and who has it.

    Attributes:
        word: As the layout names it.
        profile: Its profile by the tables.
        instance: The number of its GPU instance.
        start: The first memory slice.
        size: Its memory slices.
        memory_mb: Its memory; None where the GPU is not known.
        sms: Its streaming multiprocessors.
        gpu_slices: Memory slices of the GPU.
        places: Members that have it at once.
        number: The member, by its number within the call; None where it is free.
        others: Those that share it with that one.
    """

    word: str
    profile: str
    instance: int
    start: int
    size: int
    memory_mb: int | None
    sms: int
    gpu_slices: int
    places: int
    number: int | None
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class PackExplanation:
    """A planned pack; sums are over the members that run at once, None where one is unknown.

    Attributes:
        members: In start order.
        mode: Sharing mode.
        degree: Members that run at once.
        is_measured: How many of its members run at once is measured as it starts.
        known: All loads are known.
        normalised_progress: Sum of the members' speeds, each over its speed alone.
        gpu_memory_mb: Sum of what the members may use.
        gpu_memory_usable_mb: What needs may fill of the GPU's memory.
        sm_activity: Sum of the members' SM activity, 1 for the whole GPU.
        dram_activity: The same of DRAM.
        pcie_share: The same of PCIe.
        disk_share: The same of the disk.
        predicted_finish_s: Seconds from its start, with what its mode takes to be set up, to the
            end of its last member: so long it holds its GPU. None where earlier runs do not tell
            how long one of them takes.
        energy_wh: Energy of the GPU while the pack holds it, in watt hours; None where that is
            unknown, or the power of one of them.
        time_limit_s: What is asked of Slurm; None for its default or what the job asked for.
        reasons: A sentence each.
        layout: Its MIG instances, and who sits on each; none in other modes.
        gpus: Its GPUs.
        slurm_job: Packs with the same number are GPU sets of one Slurm job; None for one that has
            its job to itself.
        node: On which node of the Slurm job it is, from 0.
        cpus: CPUs that it asks for; None for what the job asked for.
        host_memory_mb: The same of host memory; None also for Slurm's default.
        open_for: For how many more jobs it asks, so that they can join it while it runs.
    """

    members: tuple[MemberExplanation, ...]
    mode: SharingMode
    degree: int
    is_measured: bool
    known: bool
    normalised_progress: float | None
    gpu_memory_mb: int | None
    gpu_memory_usable_mb: int | None
    sm_activity: float | None
    dram_activity: float | None
    pcie_share: float | None
    disk_share: float | None
    predicted_finish_s: float | None
    energy_wh: float | None
    time_limit_s: int | None
    reasons: tuple[str, ...]
    layout: tuple[SeatExplanation, ...] = ()
    gpus: int = 1
    slurm_job: int | None = None
    cpus: int | None = None
    host_memory_mb: int | None = None
    open_for: int = 0


@dataclass(frozen=True)
class PairExplanation:
    """Why jobs of two kinds are in different packs.

    Attributes:
        first: Name of one job.
        second: Name of the other.
        first_index: Its index into the jobs of the call.
        second_index: The same of the other.
        first_number: Its number within the call.
        second_number: The same of the other.
        packs: The names in the pack that the second would have joined, where the two alone
            could share; empty where they could not.
        pack_indices: Those members' indices into the jobs of the call.
        pairs: For how many pairs this one stands: of interchangeable jobs in packs that are
            alike, or of the same names with the same reason.
        broken: What is in the way: all limits that are broken, at least one.
        text: The same in a sentence.
    """

    first: str
    second: str
    first_index: int
    second_index: int
    first_number: int
    second_number: int
    packs: tuple[str, ...]
    pack_indices: tuple[int, ...]
    pairs: int
    broken: tuple[Broken, ...]
    text: str


@dataclass(frozen=True)
class PlanExplanation:
    """A plan and its reasons.

    Attributes:
        packs: As in the plan.
        pairs: Jobs that were not put together.
        pairs_left_out: Pairs of jobs for which none of those stands.
        reasons: What holds for the whole plan.
        packs_at_once: Packs that may run at the same time; None for all.
        gpus: GPUs that there are for them; None where that is not known.
    """

    packs: tuple[PackExplanation, ...]
    pairs: tuple[PairExplanation, ...]
    pairs_left_out: int
    reasons: tuple[str, ...]
    packs_at_once: int | None = None
    gpus: int | None = None
