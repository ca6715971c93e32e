"""Which GPUs, CPUs and host memory each GPU set of a Slurm job gets; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.host.nvml.nvml_answer import Gpu, NvmlAnswer, choose_job_gpus
from slurm_colloc.planning.cpu_division import split_cpus
from slurm_colloc.store.pack.gpu_division import GpuSetShare


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class GpuSetWant:
    """What a GPU set was planned to have.

    Attributes:
        gpus: How many GPUs.
        cpus: How many CPUs.
        host_memory_mb: Host memory; None where Slurm was asked for none.
    """

    gpus: int
    cpus: int
    host_memory_mb: int | None = None


def list_job_gpus(
    answer: NvmlAnswer, environ: Mapping[str, str], *, takes_mig: bool = False
) -> tuple[tuple[JobGpu, ...], str]:
    """The GPUs of the job, in Slurm's order, and what could not be told of them.

    Args:
        answer: What NVML says.
        environ: The batch script's environment, as Slurm made it.
        takes_mig: A GPU that is divided by MIG is what was asked for.
    """
    indices = _split(environ.get("SLURM_JOB_GPUS", ""))
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
    words = _split(environ.get("CUDA_VISIBLE_DEVICES", "")) or indices
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


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def assign_gpus(gpus: Sequence[JobGpu], sizes: Sequence[int]) -> tuple[tuple[JobGpu, ...], ...]:
    """Give each set its GPUs; fewer than it wants where they do not suffice.

    The larger sets choose first: GPUs of one model that are near to the same CPUs, if there are
    enough of them. What cannot be used is left to the smallest, so that it costs least.

    Args:
        gpus: All of them, in Slurm's order.
        sizes: How many each set wants.
    """
    left = [*(gpu for gpu in gpus if not gpu.problem), *(gpu for gpu in gpus if gpu.problem)]
    found: dict[int, tuple[JobGpu, ...]] = {}
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        chosen = _choose_alike(left, sizes[number])
        found[number] = tuple(chosen)
        left = [gpu for gpu in left if gpu not in chosen]
    return tuple(found[number] for number in range(len(sizes)))


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
    assigned = assign_gpus(gpus, [want.gpus for want in wants])
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
        shares[number] = dataclasses.replace(
            shares[number], cpus=cpus[place], host_memory_mb=memory[place]
        )
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
