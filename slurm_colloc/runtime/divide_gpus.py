"""Divides what Slurm gave a job on a node among its GPU sets there, before any runner begins.

Also: which GPUs, CPUs and host memory each GPU set of a Slurm job gets; the GPU of a pack without
Slurm: one lock for each GPU of the machine, however it is named.

Who: the user; where: the job's node, in the process that starts its runners.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from slurm_colloc.errors import StateError
from slurm_colloc.host.nvml.nvml_query import (
    Gpu,
    NvmlAnswer,
    choose_job_gpus,
    probe_gpus,
    split_words,
)
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.hard_limits import split_cpus
from slurm_colloc.runtime.allocation import Allocation, explain_unbound, read_host_memory_mb
from slurm_colloc.runtime.settled_mode import GpuPatience
from slurm_colloc.store.all_packs import list_gpu_set_packs
from slurm_colloc.store.atomic_files import make_directory
from slurm_colloc.store.pack_directory import (
    GpuDivision,
    GpuSetShare,
    PackRecord,
    read_pack,
    read_problem,
    write_division,
)

# ---- Which GPUs, CPUs and host memory each GPU set of a Slurm job gets; pure ---------------------


@dataclass(frozen=True)
class JobGpu:
    """A GPU of the Slurm job.

    Attributes:
        word: What CUDA_VISIBLE_DEVICES is to have: its UUID where that is known.
        slurm_index: Slurm's number for it; empty where Slurm gives none.
        pci_bus_id: Where it is; None where unknown.
        model: Its name; None where unknown.
        near: The CPUs nearest to it; none where the kernel does not say.
        problem: Why nothing can run on it; empty where that is not so.
    """

    word: str
    slurm_index: str = ""
    pci_bus_id: str | None = None
    model: str | None = None
    near: frozenset[int] = frozenset()
    problem: str = ""


@dataclass(frozen=True)
class GpuSetWant:
    """What a GPU set was planned to have.

    Attributes:
        gpus: How many GPUs.
        cpus: How many CPUs.
        host_memory_mb: Host memory; None where Slurm was asked for none.
        time_limit_s: Time for its longest member, in seconds; None for no limit.
    """

    gpus: int
    cpus: int
    host_memory_mb: int | None = None
    time_limit_s: int | None = None


def list_job_gpus(
    answer: NvmlAnswer, environ: Mapping[str, str], *, takes_mig: bool = False
) -> tuple[tuple[JobGpu, ...], str]:
    """The GPUs of the job, in Slurm's order, and what could not be told of them.

    Args:
        answer: What NVML says.
        environ: The batch script's environment, as Slurm made it.
        takes_mig: A GPU that is divided by MIG is what was asked for.
    """
    indices = split_words(environ.get("SLURM_JOB_GPUS", ""))
    chosen = choose_job_gpus(answer, environ)
    if chosen.uuids:
        numbers = indices if len(indices) == len(chosen.uuids) else [""] * len(chosen.uuids)
        found = zip(chosen.uuids, numbers, strict=True)
        return tuple(
            _describe(uuid, number, answer.find(uuid), takes_mig=takes_mig)
            for uuid, number in found
        ), ""
    by_minor = {str(gpu.minor_number): gpu for gpu in answer.gpus if gpu.minor_number is not None}
    known = [by_minor.get(index) for index in indices]
    reason = answer.problem or chosen.reason
    if any(gpu is not None and gpu.uuid is not None for gpu in known):
        # Slurm's numbers are those of the device files, so what NVML does not show is lost.
        return tuple(
            _describe(gpu.uuid, index, gpu, takes_mig=takes_mig)
            if gpu is not None and gpu.uuid is not None
            else JobGpu(index, index, problem=f"NVML does not show GPU {index} (slurm_index)")
            for index, gpu in zip(indices, known, strict=True)
        ), reason
    words = split_words(environ.get("CUDA_VISIBLE_DEVICES", "")) or indices
    numbers = indices if len(indices) == len(words) else [""] * len(words)
    return tuple(JobGpu(*pair) for pair in zip(words, numbers, strict=True)), reason


def _describe(uuid: str, number: str, gpu: Gpu | None, *, takes_mig: bool) -> JobGpu:
    if gpu is None:
        return JobGpu(uuid, number)
    problem = ""
    if gpu.doubt:
        problem = f"NVML cannot be believed: {gpu.doubt}"
    elif gpu.mig_enabled and not takes_mig:
        problem = f"{uuid} has MIG on, where programs find nothing but instances"
    elif gpu.compute_mode == "PROHIBITED":
        problem = f"{uuid} is in compute mode PROHIBITED"
    return JobGpu(uuid, number, gpu.pci_bus_id, gpu.name, problem=problem)


def assign_gpus(
    gpus: Sequence[JobGpu], wants: Sequence[GpuSetWant]
) -> tuple[tuple[JobGpu, ...], ...]:
    """Give each set its GPUs; fewer than it wants where they do not suffice.

    The larger sets choose first, of equally large ones the one with the longest member: GPUs of one
    model that are near to the same CPUs, if there are enough of them. What cannot be used is left
    to the smallest, so that it costs least.

    Args:
        gpus: All of them, the fastest first, else in Slurm's order.
        wants: What each set was planned with; those that end last come first.
    """
    sizes = [want.gpus for want in wants]
    times = [math.inf if want.time_limit_s is None else want.time_limit_s for want in wants]
    left = [*(gpu for gpu in gpus if not gpu.problem), *(gpu for gpu in gpus if gpu.problem)]
    found: dict[int, tuple[JobGpu, ...]] = {}
    for number in sorted(range(len(wants)), key=lambda n: (-sizes[n], -times[n], n)):
        chosen = _choose_alike(left, sizes[number])
        found[number] = tuple(chosen)
        left = [gpu for gpu in left if gpu not in chosen]
    return tuple(found[number] for number in range(len(wants)))


def _choose_alike(left: Sequence[JobGpu], size: int) -> list[JobGpu]:
    """So many GPUs that belong together best; those that can be used come first."""
    alike: dict[tuple[str | None, frozenset[int]], list[JobGpu]] = {}
    for gpu in left:
        if not gpu.problem:
            alike.setdefault((gpu.model, gpu.near), []).append(gpu)
    enough = [group for group in alike.values() if len(group) >= size]
    # Of what is near only as much as needed is broken up; one alone is the next in order.
    group = min(enough, key=len) if enough and size > 1 else left
    return list(group[:size])


def assign_cpus(
    cores: Sequence[Sequence[int]],
    near: Sequence[frozenset[int]],
    wanted: Sequence[int],
) -> tuple[tuple[tuple[int, ...], ...] | None, bool]:
    """Give each set its CPUs: whole cores near to its GPUs, in proportion to what it wants.

    Where the near ones do not suffice for all, all are divided without regard to nearness, since a
    set that is short of CPUs loses more than one whose CPUs are farther away.

    Args:
        cores: The job's CPUs, grouped by physical core.
        near: The CPUs nearest to the GPUs of each set; none where unknown.
        wanted: How many CPUs each set was planned with.

    Returns:
        The CPUs of each set, None where there are too few; and whether they are the near ones.
    """
    by_set: dict[int, tuple[int, ...]] = {}
    for sets, cpus in _join_overlapping(near):
        own = [core for core in cores if cpus.issuperset(core)]
        shares = split_cpus(own, [wanted[number] for number in sets]) if cpus else None
        if shares is None:
            return split_cpus(cores, wanted), False
        by_set.update(zip(sets, shares, strict=True))
    found = tuple(by_set[number] for number in range(len(wanted)))
    # A set whose GPUs lie on two sockets may have crowded out one that has only one of these.
    return found, all(map(frozenset.issuperset, near, found))


def _join_overlapping(
    near: Sequence[frozenset[int]],
) -> Iterator[tuple[list[int], frozenset[int]]]:
    """Sets that have CPUs in common, and all of these; each set is in one of the groups."""
    groups: list[tuple[list[int], frozenset[int]]] = []
    for number, own in enumerate(near):
        sets, cpus = [number], own
        apart = []
        for others, theirs in groups:
            if theirs & cpus or not (theirs or cpus):
                sets = [*others, *sets]
                cpus |= theirs
            else:
                apart.append((others, theirs))
        groups = [*apart, (sets, cpus)]
    yield from groups


def assign_host_memory(total_mb: int | None, wants: Sequence[GpuSetWant]) -> list[int | None]:
    """Give each set its host memory: what it was planned with, and of the rest in proportion.

    Args:
        total_mb: What Slurm lets the job use; None where it sets no limit.
        wants: What the sets were planned with.
    """
    if total_mb is None:
        return [None] * len(wants)
    weights = [want.host_memory_mb or 0 for want in wants]
    if not all(weights):
        weights = [want.gpus for want in wants]
    return [total_mb * weight // sum(weights) for weight in weights]


def build_shares(
    gpus: Sequence[JobGpu],
    wants: Sequence[GpuSetWant],
    cores: Sequence[Sequence[int]],
    host_memory_mb: int | None,
    *,
    unbound: str = "",
) -> tuple[tuple[GpuSetShare, ...], bool, tuple[str, ...]]:
    """Divide all that a job has among its GPU sets.

    Args:
        gpus: Its GPUs.
        wants: What the sets were planned with.
        cores: The CPUs that it may use, grouped by physical core.
        host_memory_mb: What it may use; None where that is not limited.
        unbound: Why members are not bound to CPUs; empty where they are.

    Returns:
        The share of each set, whether all CPUs are near, and what could not be done.
    """
    assigned = assign_gpus(gpus, wants)
    problems = [
        _find_problem(own, want.gpus, len(gpus)) for own, want in zip(assigned, wants, strict=True)
    ]
    notes = []
    spare = len(gpus) - sum(want.gpus for want in wants)
    if spare > 0:
        notes.append(f"{spare} of its GPUs are in no set")
    if all(problems):
        # What keeps one from running is no reason where the others cannot run either: each tries.
        notes += dict.fromkeys(problems)
        problems = ["" if own else problem for own, problem in zip(assigned, problems, strict=True)]
    able = [number for number, problem in enumerate(problems) if not problem]
    cpus, is_near, why = _divide_cpus(
        cores,
        [_find_near(assigned[number]) for number in able],
        [max(1, wants[number].cpus) for number in able],
        unbound,
    )
    memory = assign_host_memory(host_memory_mb, [wants[number] for number in able])
    shares = [
        GpuSetShare(
            tuple(gpu.word for gpu in own),
            tuple(gpu.slurm_index for gpu in own if gpu.slurm_index),
            problem=problem,
        )
        for own, problem in zip(assigned, problems, strict=True)
    ]
    for place, number in enumerate(able):
        shares[number] = replace(shares[number], cpus=cpus[place], host_memory_mb=memory[place])
    return tuple(shares), is_near, (*notes, *filter(None, [why]))


def _divide_cpus(
    cores: Sequence[Sequence[int]],
    near: Sequence[frozenset[int]],
    wanted: Sequence[int],
    unbound: str,
) -> tuple[tuple[tuple[int, ...], ...], bool, str]:
    """The CPUs of each set, none of any where members are not bound; and why not, or not near."""
    none = tuple(() for _ in wanted)
    if unbound or not wanted:
        return none, False, unbound
    cpus, is_near = assign_cpus(cores, near, wanted)
    if cpus is None:
        return none, False, "it has fewer CPUs than its GPU sets want: they are not divided"
    if is_near:
        return cpus, True, ""
    why = "too few are near" if all(near) else "the kernel does not say which are near"
    return cpus, False, f"CPUs are not divided by nearness: {why}"


def _find_near(gpus: Sequence[JobGpu]) -> frozenset[int]:
    """The CPUs nearest to any of these GPUs; none where that is not known of all."""
    if not all(gpu.near for gpu in gpus):
        return frozenset()
    return frozenset().union(*(gpu.near for gpu in gpus))


def _find_problem(gpus: Sequence[JobGpu], wanted: int, total: int) -> str:
    if len(gpus) < wanted:
        return f"Slurm gave {total} GPUs, and {len(gpus)} of the {wanted} of this set are left"
    return next((gpu.problem for gpu in gpus if gpu.problem), "")


# ----
# Divides what Slurm gave a job on a node among its GPU sets there, before any runner begins.

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""Where the kernel says which CPUs are nearest to a device (sysfs-bus-pci, local_cpulist)."""


def divide_job(packs: Sequence[Path], record: PackRecord, allocation: Allocation) -> GpuDivision:
    """Divide the job's GPUs, CPUs and host memory, and write division.json.

    NVML that does not answer costs nothing but the names: GPUs are then divided as Slurm counts
    them.

    Args:
        packs: The directories of the packs of its sets, in order.
        record: The first one's pack.json.
        allocation: What Slurm gave the job.
    """
    answer = probe_gpus(GpuPatience().nvml_s)
    division = build_division(
        answer,
        [_read_want(pack, gpus) for pack, gpus in zip(packs, record.gpu_sets, strict=True)],
        allocation,
        takes_mig=record.mode is SharingMode.MIG,
        paces=_read_paces(packs[0].parent.parent),
    )
    with contextlib.suppress(StateError):
        # For those that look; the runners are told by this process.
        write_division(packs[0], division)
    return division


def find_own_problem(pack: Path, record: PackRecord, restarts: int) -> str:
    """Why nothing can run in a pack's GPU set, by the division of its job; empty where it can.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        restarts: How often Slurm has restarted the job.
    """
    first = list_gpu_set_packs(record)[0]
    return read_problem(pack.parent / first, record.gpu_set, restarts)


def build_division(
    answer: NvmlAnswer,
    wants: Sequence[GpuSetWant],
    allocation: Allocation,
    *,
    takes_mig: bool = False,
    pci_devices: Path = PCI_DEVICES,
    paces: Mapping[str, float] = MappingProxyType({}),
) -> GpuDivision:
    """The division; nothing is written.

    Args:
        answer: What NVML says.
        wants: What each set was planned with.
        allocation: What Slurm gave.
        takes_mig: GPUs that are divided by MIG are what was asked for.
        pci_devices: The kernel's files of PCI devices.
        paces: How fast GPUs are against others of their model, by UUID.
    """
    gpus, doubt = list_job_gpus(answer, allocation.environment, takes_mig=takes_mig)
    gpus = tuple(replace(gpu, near=read_near_cpus(gpu.pci_bus_id, pci_devices)) for gpu in gpus)
    gpus = tuple(sorted(gpus, key=lambda gpu: -paces.get(gpu.word, 1.0)))
    shares, is_near, notes = build_shares(
        gpus,
        wants,
        allocation.cores,
        read_host_memory_mb(allocation.environment),
        unbound=explain_unbound(allocation),
    )
    if doubt:
        notes = (*notes, f"not all of its GPUs are known by UUID: {doubt}")
    return GpuDivision(allocation.restarts, shares, is_near, notes)


def _read_want(pack: Path, gpus: int) -> GpuSetWant:
    """What a set was planned with; of one whose record cannot be read its own runner tells."""
    with contextlib.suppress(StateError):
        record = read_pack(pack)
        if record is not None and record.request is not None:
            request = record.request
            return GpuSetWant(gpus, request.cpus, request.host_memory_mb, request.time_limit_s)
    return GpuSetWant(gpus, 1)


def _read_paces(root: Path) -> dict[str, float]:
    """How fast GPUs are by the user's own packs; nothing of those of which nothing is known."""
    if not os.path.isdir(root / "gpus"):
        return {}
    from slurm_colloc.store.gpu_paces import read_paces

    return {pace.uuid: pace.rate for pace in read_paces(root) if pace.rate is not None}


def read_near_cpus(pci_bus_id: str | None, pci_devices: Path = PCI_DEVICES) -> frozenset[int]:
    """The CPUs nearest to a device; none where the kernel does not say.

    Args:
        pci_bus_id: As NVML writes it, with a domain of eight digits.
        pci_devices: The kernel's files.
    """
    if pci_bus_id is None:
        return frozenset()
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        text = (pci_devices / f"{domain[-4:]}:{rest}" / "local_cpulist").read_text()
        return frozenset(parse_cpu_list(text))
    except (OSError, ValueError):
        return frozenset()


def parse_cpu_list(text: str) -> list[int]:
    """The CPUs of a list as the kernel writes it, `0-3,8`.

    Raises:
        ValueError: It is none.
    """
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def build_set_environment(
    environ: Mapping[str, str], share: GpuSetShare, want_cpus: int
) -> dict[str, str]:
    """The batch script's environment as it would be in a job that has this share alone; pure.

    Args:
        environ: That of the whole job.
        share: What the set has.
        want_cpus: The CPUs that it was planned with, which count where none are bound.
    """
    found = dict(environ)
    cpus = str(len(share.cpus) or want_cpus)
    found["CUDA_VISIBLE_DEVICES"] = ",".join(share.gpus)
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
        if name in found:
            found[name] = ",".join(share.slurm_gpus)
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        if name in found:
            found[name] = cpus
    if "SLURM_GPUS_ON_NODE" in found:
        found["SLURM_GPUS_ON_NODE"] = str(len(share.gpus))
    if share.host_memory_mb is not None:
        for name in ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"):
            found.pop(name, None)
        found["SLURM_MEM_PER_NODE"] = str(share.host_memory_mb)
    return found


def enter_share(share: GpuSetShare, want_cpus: int) -> None:
    """Make this process one that has a set's share alone; see `build_set_environment`."""
    environment = build_set_environment(os.environ, share, want_cpus)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if share.cpus:
        # What was read before is not the kernel's last word: a CPU may have been taken since.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, share.cpus)


# ----
# The GPU of a pack without Slurm: one lock for each GPU of the machine, however it is named.

_GPUS = Path("/proc/driver/nvidia/gpus")
_MACHINE = "machine"
POLL_S = 0.2


def list_gpu_uuids() -> list[str]:
    """UUIDs of this machine's NVIDIA GPUs, from the driver's own files; empty without one.

    They come by their PCI addresses, as CUDA counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    uuids = []
    try:
        for information in sorted(_GPUS.glob("*/information")):
            for line in information.read_text().splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "GPU UUID":
                    uuids.append(value.strip())
    except OSError:
        return []
    return uuids


def choose_gpus(visible: str | None, uuids: Sequence[str]) -> list[str]:
    """The GPUs that a user lets a pack use, by UUID as far as they are known.

    Args:
        visible: CUDA_VISIBLE_DEVICES: indexes or UUIDs, which may be shortened; None where it is
            not set. As for CUDA, an empty text means none, and what follows a word that names no
            GPU does not count.
        uuids: The machine's GPUs; empty where they cannot be read.

    Returns:
        Each once; a word as it is where no UUID is known for it.
    """
    if visible is None:
        return list(uuids)
    chosen: list[str] = []
    for word in map(str.strip, visible.split(",")):
        found = [word] if word and not uuids else _find(word, uuids)
        if len(found) != 1 or word.startswith("-"):
            break
        chosen += found
    return list(dict.fromkeys(chosen))


def _find(word: str, uuids: Sequence[str]) -> list[str]:
    if word.isdecimal():
        return list(uuids[int(word) : int(word) + 1])
    # An instance of a GPU (MIG) has a UUID of its own.
    if word.startswith("MIG-"):
        return [word]
    return [uuid for uuid in uuids if word and uuid.startswith(word)]


def wait_for_gpu(directory: Path) -> str:
    """Wait until a GPU of this machine (or the machine, if it has none) is free for a pack.

    What CUDA_VISIBLE_DEVICES is to be in this process is set there.

    Args:
        directory: Where the locks lie; one lock each, held until this process ends.

    Returns:
        The GPU, or `machine`.
    """
    make_directory(directory)
    gpus = choose_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), list_gpu_uuids())
    while True:
        for slot in gpus or [_MACHINE]:
            name = "".join(c if c.isalnum() or c == "-" else "_" for c in slot)
            lock = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            if gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = slot
            return slot
        time.sleep(POLL_S)
