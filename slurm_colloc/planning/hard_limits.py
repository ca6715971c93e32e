"""Hard limits: what members need together, and whether one GPU has it; pure.

Also: what a member that starts gets of the GPU memory that is reserved for none; what the search
for packs speaks of: a job as it counts there, what a GPU has, a priced pack; dividing the CPUs of
an allocation among the places of a pack.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import MIG_INSTANCES_MAX, KnownBy, SharingMode, UsageProfile
from slurm_colloc.model.usage_profile import Calibration, Load

# ---- What a member that starts gets of the GPU memory that is reserved for none; pure ------------
#
# One whose need is known gets that. An unknown one gets a generous part, so that several start at
# once, each safe from the others: it is what the process may take at most, and is reserved until it
# has shown what it takes.

PART_OF_FREE = 4
PART_OF_GPU = 8
"""An unknown member gets the one part of what is free, and at least the other one of the GPU."""


@dataclass(frozen=True)
class FreeMemory:
    """GPU memory that is reserved for no member.

    Attributes:
        usable_mb: What members may take together of one GPU.
        free_mb: What is left of each, by UUID; less than 0 where more is reserved than there is.
        members: How many members use each.
        enforces: A member can be held to its part.
    """

    usable_mb: int
    free_mb: Mapping[str, int]
    members: Mapping[str, int]
    enforces: bool = True

    def choose_gpus(self, gpus: int) -> tuple[str, ...]:
        """The GPUs that a member of so many gets: most free, then fewest members."""
        order = sorted(self.free_mb, key=lambda gpu: (-self.free_mb[gpu], self.members[gpu]))
        return tuple(order[: max(1, gpus)])

    def find_free_mb(self, gpus: int) -> int:
        """What is free on each of the GPUs that such a member gets."""
        return min(self.free_mb[gpu] for gpu in self.choose_gpus(gpus))

    def choose_part_mb(self, need_mb: int | None, gpus: int = 1) -> int | None:
        """What is reserved for a member that starts now, on each of its GPUs; None for no room.

        Where parts cannot be enforced an unknown member has all that is left: until it has shown
        what it takes no other unknown one starts.

        Args:
            need_mb: What it needs; None where that is not known.
            gpus: How many GPUs it uses.
        """
        free_mb = self.find_free_mb(gpus)
        if need_mb is not None:
            return need_mb if need_mb <= free_mb else None
        least_mb = self.usable_mb // PART_OF_GPU
        if free_mb < least_mb:
            return None
        return max(least_mb, free_mb // PART_OF_FREE) if self.enforces else free_mb

    def reserve(self, part_mb: int, gpus: int = 1) -> FreeMemory:
        """What is free once a member has started that gets so much of each of its GPUs."""
        chosen = self.choose_gpus(gpus)
        return replace(
            self,
            free_mb={
                gpu: mb - part_mb if gpu in chosen else mb for gpu, mb in self.free_mb.items()
            },
            members={gpu: count + (gpu in chosen) for gpu, count in self.members.items()},
        )


def count_starts(free: FreeMemory, needs_mb: Sequence[int | None], gpus: int = 1) -> int:
    """How many of these could start now, in this order, up to the first that finds no room.

    Args:
        free: What is free.
        needs_mb: What each needs; None where that is not known.
        gpus: How many GPUs each uses.
    """
    for count, need_mb in enumerate(needs_mb):
        part_mb = free.choose_part_mb(need_mb, gpus)
        if part_mb is None:
            return count
        free = free.reserve(part_mb, gpus)
    return len(needs_mb)


# ----
# What the search for packs speaks of: a job as it counts there, what a GPU has, a priced pack.


@dataclass(frozen=True)
class Subject:
    """A job that may share, as far as the search looks at it.

    Attributes:
        index: Its index into the jobs of the call.
        cpus: CPUs, at least 1.
        host_memory_mb: Host memory in MB; None where nothing is known of it.
        gpu_memory_mb: GPU memory that it may need at most, in MB, margin included; None unknown.
        run_s: Seconds that it is expected to run alone on the whole GPU.
        load: What it takes of the GPU; None where unknown: then it does not share here.
        max_slowdown: How much slower than alone it may get, 1 or more.
        margin: Relative uncertainty of its predicted slowdown.
        is_corrected: Its pack is measured as it runs, and members that are too many are parked:
            its bound is held without a margin.
        is_borrowed: What it takes was measured on another GPU model than how jobs slow each other
            down.
        kind: Subjects of equal kind are interchangeable: same load, needs, bound and `run_s`.
            None: interchangeable with no other.
    """

    index: int
    cpus: int
    host_memory_mb: int | None
    gpu_memory_mb: int | None
    run_s: float
    load: Load | None
    max_slowdown: float
    margin: float = 0.0
    kind: Hashable = None
    is_corrected: bool = False
    is_borrowed: bool = False

    @property
    def bound_margin(self) -> float:
        """What comes on top of a predicted slowdown that is held against the bound.

        Less than nothing where the prediction is another GPU model's, and corrected: one member too
        many is parked after half a minute, one too few waits for another GPU.
        """
        if not self.is_corrected:
            return self.margin
        return -self.margin if self.is_borrowed else 0.0


@dataclass(frozen=True)
class Limits:
    """What one GPU has for a pack; None means no limit.

    Attributes:
        cpus: CPUs.
        host_memory_mb: Host memory in MB.
        gpu_memory_mb: GPU memory that members may use together, in MB.
        members: Members at most.
        finish_s: Seconds that a pack may last, its setup and its margin included.
        has_instances: Each member has one of equal MIG instances, whatever else there is.
        instance_rooms_mb: What a need may fill of each of 0, 1, 2... equal MIG instances, in MB,
            as far as there can be so many; None where their memory is unknown.
    """

    cpus: int | None = None
    host_memory_mb: int | None = None
    gpu_memory_mb: int | None = None
    members: int | None = None
    finish_s: float | None = None
    has_instances: bool = False
    instance_rooms_mb: tuple[int | None, ...] = (None,) * (MIG_INSTANCES_MAX + 1)

    def list_rooms_mb(self, most: int) -> list[float]:
        """The same up to a number of instances: infinite where unknown, below 0 for too many."""
        rooms = [math.inf if room is None else float(room) for room in self.instance_rooms_mb]
        return (rooms + [-1.0] * most)[: most + 1]


@dataclass(frozen=True)
class Setting:
    """How a pack shares its GPU.

    Attributes:
        mode: Sharing mode.
        percentages: Per member: its MPS thread limit, or under MIG the share of its instance's
            SMs in percent; None for no limit.
    """

    mode: SharingMode
    percentages: tuple[int | None, ...]


@dataclass(frozen=True)
class Priced:
    """A pack under its best setting; what is per member is in the order of the members.

    Attributes:
        setting: The setting.
        slowdowns: Predicted, against alone on the whole GPU, while all members run.
        duration_s: Seconds until the last member ends.
        gpu_s: Seconds for which the pack holds the GPU: the duration and the mode's setup.
        energy_j: Energy of the GPU above nothing, in joules; None where power is unknown.
        cost: What the goal counts; only to be compared with costs under the same goal.
    """

    setting: Setting
    slowdowns: tuple[float, ...]
    duration_s: float
    gpu_s: float
    energy_j: float | None
    cost: float


# Equal MIG instances of one GPU: how many there can be, and what each has.
#
# Of GPUs with 7 compute slices and 8 memory slices (NVIDIA, MIG user guide, supported profiles).

MIG_MEMBERS_MAX = MIG_INSTANCES_MAX
MIG_SLICES = (7, 7, 3, 2, 1, 1, 1, 1)
"""Slices of each of 0, 1, 2... equal instances: all that fit onto 7 slices and 8 eighths."""
MIG_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Eighths of the GPU's memory that an instance of so many slices gets."""


# ---- Hard limits: what members need together, and whether one GPU has it; pure -------------------

GPU_MEMORY_SHARE = 0.95
"""Part of a GPU's memory that needs may fill; the rest is for contexts."""

_GPU_MEMORY_ROOM = 1.2
_GPU_MEMORY_MARGIN_MB = 1024
"""What a job may need over the largest of its earlier runs, or of its relatives': part, and MB."""
_HOST_MEMORY_ROOM = 1.25
_RELATIVE_HOST_MEMORY_ROOM = 1.5
_HOST_MEMORY_MARGIN_MB = 256


@dataclass(frozen=True)
class Broken:
    """A limit that members would break together.

    Attributes:
        constraint: `gpu_memory`, `cpus`, `host_memory`, `clients` (members at once), `pack_size`,
            `queue` (members at once, as smaller packs wait less), `time` (it takes longer than a
            pack may), `duration` (one asks for much less time than the other), `slowdown`, `mig`
            (instances), `cost` (together they cost no less than apart), `unknown` (the load of
            one is unknown), `alone` (one shares with none), `group` (Slurm has to be asked for
            them apart), `order` (packs of unknown jobs are filled in the order of the call) or
            `rule` (the rule that was asked for does not put them together).
        have: What they would come to; None where no number is in the way.
        limit: What is allowed, of `duration` the least; None there, too.
        text: Both in a sentence.
    """

    constraint: str
    have: float | None
    limit: float | None
    text: str


def compute_usable_gpu_memory_mb(gpu_memory_mb: int | None) -> int | None:
    """What needs may fill of a GPU's memory, in MB; None where that is unknown."""
    return None if gpu_memory_mb is None else int(gpu_memory_mb * GPU_MEMORY_SHARE)


def is_borrowed(profile: UsageProfile, calibration: Calibration | None) -> bool:
    """Whether profile and calibration are of two GPU models."""
    if calibration is None or not profile.gpu_model or not calibration.gpu_model:
        return False
    return profile.gpu_model != calibration.gpu_model


def add_gpu_memory_margin(peak_mb: float) -> int:
    """What a process may need at most, in MB, by the largest that was seen of it or its relatives.

    Args:
        peak_mb: Of the whole process, with its CUDA context and the workspaces of libraries.
    """
    return math.ceil(peak_mb * _GPU_MEMORY_ROOM) + _GPU_MEMORY_MARGIN_MB


def compute_gpu_memory_limit_mb(profile: UsageProfile) -> int | None:
    """GPU memory that a job may need at most, its first seconds included; None where unknown."""
    peak_mb = profile.gpu_memory_peak_mb
    return add_gpu_memory_margin(peak_mb) if peak_mb and peak_mb > 0 else None


def compute_gpu_memory_need_mb(profile: UsageProfile) -> int | None:
    """GPU memory that a job takes from its partners while it runs; None where that is unknown.

    It is less than the limit where only its first seconds had the peak: the node lets no member
    start for whose peak there is no room, so not all have theirs at once.
    """
    limit_mb, usual_mb = compute_gpu_memory_limit_mb(profile), profile.gpu_memory_usual_mb
    if limit_mb is None or not usual_mb or usual_mb < 0:
        return limit_mb
    return min(limit_mb, add_gpu_memory_margin(usual_mb))


def compute_host_memory_limit_mb(profile: UsageProfile) -> int | None:
    """Host memory that a job may need at most, in MB; None where no peak is known."""
    peak = profile.host_memory_peak_mb
    if not peak or peak < 0:
        return None
    own = profile.known_by is KnownBy.EXACT
    room = _HOST_MEMORY_ROOM if own else _RELATIVE_HOST_MEMORY_ROOM
    return math.ceil(peak * room) + _HOST_MEMORY_MARGIN_MB


def find_broken(subjects: Sequence[Subject], limits: Limits) -> tuple[Broken, ...]:
    """Every hard limit that these jobs would break if they all ran at once on one GPU.

    A job alone breaks none: what it asks for is Slurm's to grant. A need that is unknown counts
    as nothing.

    Args:
        subjects: The jobs.
        limits: What one GPU has.
    """
    count = len(subjects)
    if count < 2:
        return ()
    broken = []
    if limits.members is not None and count > limits.members:
        text = f"{count} would run at once, {limits.members} may"
        broken.append(Broken("clients", count, limits.members, text))
    if limits.cpus is not None:
        cpus = sum(subject.cpus for subject in subjects)
        if cpus > limits.cpus:
            text = f"{count} at once need {cpus} CPUs, the GPU's share is {limits.cpus}"
            broken.append(Broken("cpus", cpus, limits.cpus, text))
    if limits.host_memory_mb is not None:
        memory = sum(subject.host_memory_mb or 0 for subject in subjects)
        share = limits.host_memory_mb
        if memory > share:
            text = f"{count} at once need {memory} MB of host memory, the GPU's share is {share} MB"
            broken.append(Broken("host_memory", memory, share, text))
    if limits.gpu_memory_mb is not None:
        memory = sum(subject.gpu_memory_mb or 0 for subject in subjects)
        usable = limits.gpu_memory_mb
        if memory > usable:
            text = f"{count} at once need {memory} MB of GPU memory, {usable} MB are usable"
            broken.append(Broken("gpu_memory", memory, usable, text))
    if limits.finish_s is not None:
        longest = max(subject.run_s for subject in subjects)
        if longest > limits.finish_s:
            text = (
                f"the longest runs {longest:.0f} s alone, a pack may last {limits.finish_s:.0f} s"
            )
            broken.append(Broken("time", longest, limits.finish_s, text))
    if limits.has_instances:
        broken += find_broken_instances(subjects, limits)
    return tuple(broken)


def find_broken_instances(subjects: Sequence[Subject], limits: Limits) -> list[Broken]:
    """What these jobs would break if each had one of equal MIG instances of the GPU.

    Args:
        subjects: The jobs.
        limits: What one GPU has.
    """
    count = len(subjects)
    most = len(limits.instance_rooms_mb) - 1
    if count > most:
        text = f"{count} would run at once, a GPU has at most {most} MIG instances"
        return [Broken("mig", count, most, text)]
    need_mb = max(subject.gpu_memory_mb or 0 for subject in subjects)
    room_mb = limits.instance_rooms_mb[count]
    if room_mb is None or need_mb <= room_mb:
        return []
    text = f"one needs {need_mb} MB of GPU memory, each of {count} MIG instances has {room_mb} MB"
    return [Broken("mig", need_mb, room_mb, text)]


# ---- Dividing the CPUs of an allocation among the places of a pack -------------------------------


def format_cpu_mask(cpus: Sequence[int]) -> str:
    """Write CPU numbers as the hexadecimal mask of `--cpu-bind=mask_cpu`."""
    return hex(sum(1 << cpu for cpu in set(cpus)))


def split_cpus(
    cores: Sequence[Sequence[int]], wanted: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """Divide CPUs among members: disjoint, whole cores first, in proportion to what they want.

    Both hardware threads of a core go to one member wherever there are cores enough, since two
    members on the siblings of one core slow each other down.

    Args:
        cores: The allocated CPUs grouped by physical core, each CPU in exactly one group.
        wanted: CPUs each member asked for, at least 1 each.

    Returns:
        A tuple of CPU numbers per member, sorted. Every CPU is given to somebody when at least
        the wanted number exists. None where the CPUs are fewer than the members want together,
        and no disjoint division can give each what it was promised.
    """
    total = sum(len(core) for core in cores)
    if not wanted or total < sum(wanted):
        return None
    groups = sorted((sorted(core) for core in cores), key=lambda core: core[0])
    shares: list[list[int]] = [[] for _ in wanted]
    missing = list(wanted)
    # Largest first: it takes whole cores while there are whole cores.
    order = sorted(range(len(wanted)), key=lambda index: (-wanted[index], index))
    for index in order:
        while groups and missing[index] >= len(groups[0]):
            core = groups.pop(0)
            shares[index] += core
            missing[index] -= len(core)
    needy = [index for index in order if missing[index]]
    if len(groups) >= len(needy):
        # A core for each, so that no two meet on one.
        for index, core in zip(needy, groups, strict=False):
            _move(core, shares[index], min(missing[index], len(core)))
    for index in needy:
        for core in groups:
            _move(core, shares[index], min(wanted[index] - len(shares[index]), len(core)))
    # What was not asked for (whole cores are allocated) goes to who has the other thread of the
    # core, and whole cores to those who have least for what they want.
    started = [core for core in groups if core and len(core) < len(_whole_core(cores, core))]
    for core in [*started, *(core for core in groups if core not in started)]:
        users = [i for i in order if set(shares[i]) & set(_whole_core(cores, core))] or order
        index = min(users, key=lambda i: (len(shares[i]) / wanted[i], i))
        _move(core, shares[index], len(core))
    return tuple(tuple(sorted(share)) for share in shares)


def _move(core: list[int], share: list[int], count: int) -> None:
    """Give the first CPUs that are left of a core to a member."""
    share += core[:count]
    del core[:count]


def _whole_core(cores: Sequence[Sequence[int]], part: Sequence[int]) -> Sequence[int]:
    """The core that these CPUs are left of; nothing where none are left."""
    return next((core for core in cores if part and part[0] in core), ())
