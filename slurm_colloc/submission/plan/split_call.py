"""The parts of a call: jobs for which Slurm is asked in one way, and what those are planned by.

Also: requests that no node of the partition can ever hold.

Each part has nodes of its own, so what a GPU brings with it, how jobs slow each other down there
and how long requests wait is read for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from slurm_colloc.errors import NoPackPossible, SlurmUnreachable
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import Capacity, KnownBy, UsageProfile
from slurm_colloc.model.quantities import format_count, format_time_limit
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import NodeShape
from slurm_colloc.submission.jobs.call_jobs import Candidate
from slurm_colloc.submission.plan.known_jobs import Knowledge, gather_knowledge
from slurm_colloc.submission.plan.target_nodes import Destination, Destinations, match_gpu_type

# ---- Requests that no node of the partition can ever hold; pure ----------------------------------
#
# Slurm takes many of them and lets them wait for ever, with the reasons PartitionConfig or
# PartitionTimeLimit (squeue(1), JOB REASON CODES), unless the site sets EnforcePartLimits.

_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_CPUS = ("cpus-per-task", "cpus-per-gpu")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


def refuse_impossible(
    job: Job,
    shapes: Sequence[NodeShape],
    *,
    max_time_s: int | None = None,
    name_place: Callable[..., str] | None = None,
) -> None:
    """Refuse a job that would wait for ever.

    Args:
        job: The job. Of one with several GPUs, tasks or nodes only the time is looked at: it may
            get several nodes, and sbatch itself refuses what they cannot hold.
        shapes: The kinds of nodes on which it may land. None of them tells nothing: a partition
            that is not there is named by sbatch itself.
        max_time_s: How long a job may run there by its partition; None for no limit.
        name_place: What to call the job, by names of options of which one is wrong; None for its
            script's name.

    Raises:
        NoPackPossible: No node there can hold it, or none may for so long.
    """
    if not shapes:
        return
    where = _name_partitions(shapes)
    name = name_place or (lambda *_: job.script_name)
    if job.gpus <= 1 and not job.alone_because:
        _refuse_too_large_job(job, shapes, where, name)
    if max_time_s is not None and job.time_limit_s is not None and job.time_limit_s > max_time_s:
        raise NoPackPossible(
            f"{name('time')}: it asks for --time={format_time_limit(job.time_limit_s)}, and "
            f"{where} allows {format_time_limit(max_time_s)} at most",
            hint="give a shorter --time, or another partition",
        )


def refuse_large_pack(gpus: int, gpu_type: str | None, shapes: Sequence[NodeShape]) -> None:
    """Refuse a number of GPUs for each pack that no node has.

    Args:
        gpus: How many.
        gpu_type: Of which type; None for any.
        shapes: The kinds of nodes on which packs may land; none of them tells nothing.

    Raises:
        NoPackPossible: No node there has so many.
    """
    most = find_gpus_most(gpu_type, shapes)
    if most is not None and gpus > most:
        raise NoPackPossible(
            f"--gpus-per-pack={gpus}, and a node of {_name_partitions(shapes)} has "
            f"{format_count(most, 'GPU')} at most",
            hint="ask for fewer, or for node",
        )


def find_gpus_most(gpu_type: str | None, shapes: Sequence[NodeShape]) -> int | None:
    """GPUs of the node that has the most; None where none is known to have any."""
    return max((_count_gpus(shape, gpu_type) for shape in shapes), default=0) or None


def _refuse_too_large_job(
    job: Job, shapes: Sequence[NodeShape], where: str, name: Callable[..., str]
) -> None:
    counts = {shape: _count_gpus(shape, job.gpu_type) for shape in shapes}
    if job.gpus > max(counts.values()):
        kind = f" of type {job.gpu_type}" if job.gpu_type else ""
        raise NoPackPossible(
            f"{name(*_GPUS)}: it asks for a GPU{kind}, and no node of {where} has any",
            hint="sinfo -o '%P %c %m %G' shows what each partition has",
        )
    usable = [shape for shape, count in counts.items() if count >= job.gpus]
    cpus = max(shape.cpus for shape in usable)
    if job.cpus > cpus:
        raise NoPackPossible(
            f"{name(*_CPUS)}: it asks for {format_count(job.cpus, 'CPU')}, and a node of {where} "
            f"has {cpus} at most",
            hint="ask for fewer, or for another partition",
        )
    memory = max(shape.host_memory_mb for shape in usable)
    if job.host_memory_mb is not None and job.host_memory_mb > memory:
        raise NoPackPossible(
            f"{name(*_MEMORY)}: it asks for {job.host_memory_mb} MB of host memory, and a node of "
            f"{where} has {memory} MB at most",
            hint="ask for less, or for another partition",
        )


def _count_gpus(shape: NodeShape, gpu_type: str | None) -> int:
    return sum(count for kind, count in shape.gpus if gpu_type is None or kind == gpu_type)


def _name_partitions(shapes: Sequence[NodeShape]) -> str:
    names = list(dict.fromkeys(shape.partition for shape in shapes))
    return f"partition{'s' * (len(names) > 1)} {', '.join(names)}"


# ----
# The parts of a call: jobs for which Slurm is asked in one way, and what those are planned by.

_MEASURED = (KnownBy.EXACT, KnownBy.FAMILY)


@dataclass(frozen=True)
class Part:
    """Jobs of a call for which Slurm is asked in one way.

    Attributes:
        indices: Which jobs of the call, in its order.
        jobs: They, with the GPU type that packs of several ask for.
        capacity: What one GPU brings with it where they may land.
        knowledge: What is known of them, by place among them.
        asks_for: The GPU type that their user did not name, but packs of several ask for; None
            for none.
        reasons: What the user should know of it, a sentence each.
        warnings: Those of the reasons that tell of a danger.
        destination: Where they may land.
    """

    indices: tuple[int, ...]
    jobs: tuple[Job, ...]
    capacity: Capacity
    knowledge: Knowledge
    asks_for: str | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    destination: Destination | None = None


LARGEST_GPU_MEMORY_MB = 288 * 1024
"""Of one GPU that can be bought (B300); `gpu_memory` in the settings comes before it."""


def divide_call(
    candidates: Sequence[Candidate],
    settings: Settings,
    destinations: Destinations,
    *,
    keeps_whole: bool = False,
    gpus_asked: str = "auto",
) -> list[Part]:
    """Divide the jobs of a call into parts, and read what each is planned by.

    Args:
        candidates: The jobs of the call.
        settings: The settings.
        destinations: Tells where they may land.
        keeps_whole: Jobs with the same options stay one part, since a limit on how many run at
            once counts for all of them.
        gpus_asked: How many GPUs a pack is to have, as in Policy.

    Raises:
        SlurmUnreachable: Slurm does not answer.
        NoPackPossible: A job asks for more than any GPU or node has.
        UsageProblem: `--profile-like` names nothing.
    """
    buckets: dict[object, list[int]] = {}
    for index, candidate in enumerate(candidates):
        buckets.setdefault((candidate.job.group, candidate.job.gpu_type), []).append(index)
    parts: list[Part] = []
    for indices in buckets.values():
        chosen = [candidates[index] for index in indices]
        knowledge = gather_knowledge(chosen, settings)
        shares = any(c.job.came_together and c.job.gpus for c in chosen)
        destination = _find_destination([c.job for c in chosen], destinations, shares=shares)
        _refuse_too_large(chosen, destination.gpu_memory_most_mb)
        if destination.gpu_memory_most_mb is None:
            _refuse_what_none_has(chosen)
        for candidate in chosen:
            refuse_impossible(
                candidate.job,
                destination.shapes,
                max_time_s=destination.max_time_s,
                name_place=candidate.name_place,
            )
        if shares and gpus_asked.isdigit():
            refuse_large_pack(int(gpus_asked), chosen[0].job.gpu_type, destination.shapes)
        chosen = _separate_wide(chosen, destination)
        if not shares:
            jobs = tuple(c.job for c in chosen)
            part = Part(tuple(indices), jobs, Capacity(), knowledge, destination=destination)
            parts.append(_warn(part, knowledge.profiles))
            continue
        own = _settle_gpu_type(
            indices, chosen, knowledge, destination, destinations, keeps_whole=keeps_whole
        )
        by_index = {indices[place]: profile for place, profile in knowledge.profiles.items()}
        for part in own:
            # By what was measured of them, also where it does not hold for the GPU there.
            measured = {
                place: by_index[index]
                for place, index in enumerate(part.indices)
                if index in by_index
            }
            parts.append(_warn(part, measured))
    return parts


def _separate_wide(candidates: Sequence[Candidate], destination: Destination) -> list[Candidate]:
    """Jobs with more GPUs than a node has run alone: Slurm may give them several nodes."""
    found = []
    for candidate in candidates:
        job = candidate.job
        most = find_gpus_most(job.gpu_type, destination.shapes)
        if most is not None and job.gpus > most and not job.alone_because:
            why = f"it asks for {job.gpus} GPUs, and a node there has {most} at most"
            job = replace(job, alone_because=why)
        found.append(replace(candidate, job=job))
    return found


def _find_destination(
    jobs: Sequence[Job], destinations: Destinations, *, shares: bool
) -> Destination:
    """Where jobs may land; Slurm is asked only where some may share, or might wait for ever."""
    first = next((job for job in jobs if job.gpus), None)
    if first is None:
        return Destination(Capacity())
    try:
        return destinations.read(first)
    except SlurmUnreachable:
        # Jobs that run alone are sbatch's to refuse; it has more to say.
        if shares:
            raise
        return Destination(Capacity())


def _warn(part: Part, profiles: Mapping[int, UsageProfile]) -> Part:
    """A part with a warning for each job whose user states less GPU memory than it has taken."""
    warnings = []
    for place, profile in profiles.items():
        job, peak_mb = part.jobs[place], profile.gpu_memory_peak_mb
        if profile.known_by is KnownBy.EXACT and profile.sm_activity == 0:
            warnings.append(
                f"{job.name}: its earlier runs never used the GPU (SM activity 0 %): a job without "
                "--gres starts sooner"
            )
        if profile.known_by not in _MEASURED or not job.gpu_memory_mb or not peak_mb:
            continue
        if job.gpu_memory_mb < peak_mb:
            who = "its earlier runs" if profile.known_by is KnownBy.EXACT else "its relatives"
            warnings.append(
                f"{job.name}: --gpu-mem={job.gpu_memory_mb}M counts, but {who} took up to "
                f"{peak_mb} MB: it may run out of GPU memory"
            )
    told = tuple(dict.fromkeys(warnings))
    return replace(part, reasons=(*part.reasons, *told), warnings=told)


def _refuse_too_large(candidates: Sequence[Candidate], most_mb: int | None) -> None:
    for candidate in candidates:
        job = candidate.job
        if most_mb and job.gpu_memory_mb and job.gpu_memory_mb > most_mb:
            raise NoPackPossible(
                f"{candidate.name_place('gpu-mem')}: --gpu-mem={job.gpu_memory_mb}M is more than "
                f"the GPU's {most_mb} MB",
                hint="ask for another GPU type, or for less",
            )


def _refuse_what_none_has(candidates: Sequence[Candidate]) -> None:
    """Where nobody says how much memory the GPUs there have, that of the largest one counts."""
    for candidate in candidates:
        wanted = candidate.job.gpu_memory_mb
        if wanted and wanted > LARGEST_GPU_MEMORY_MB:
            raise NoPackPossible(
                f"{candidate.name_place('gpu-mem')}: --gpu-mem={wanted}M is more than any GPU has "
                f"(at most {LARGEST_GPU_MEMORY_MB} MB)",
                hint="ask for less; --gpu-mem is for all of the job's processes on one GPU",
            )


def _settle_gpu_type(
    indices: Sequence[int],
    candidates: Sequence[Candidate],
    knowledge: Knowledge,
    destination: Destination,
    destinations: Destinations,
    *,
    keeps_whole: bool,
) -> Iterator[Part]:
    """One part; or two, of which that with the measured jobs asks for the GPUs of its profiles."""
    jobs = [candidate.job for candidate in candidates]
    match = match_gpu_type(knowledge.gpu_models, destination, dict(jobs[0].group))
    places = range(len(jobs))
    measured = [p for p in places if p in knowledge.profiles and knowledge.profiles[p].gpu_model]
    if match.gpu_type is not None and keeps_whole and len(measured) < len(jobs):
        reason = (
            "some of the jobs have been measured and others not, so no GPU type is asked for: of "
            "what was measured no more than the GPU memory is taken over (--gres=gpu:TYPE:1 lets "
            "csub plan by it)"
        )
        match = replace(match, gpu_type=None, is_other=True, reason=reason)
    if match.is_other:
        knowledge = knowledge.as_of_another_gpu(match.reason)
    if match.gpu_type is None:
        # All GPUs there are of the model that was watched, or else its memory is not in there.
        _refuse_too_large(candidates, destination.gpu_memory_most_mb or knowledge.gpu_memory_mb)
        yield _build(indices, jobs, destination, knowledge)
        return
    typed = [replace(jobs[place], gpu_type=match.gpu_type) for place in measured]
    part = _build(
        [indices[place] for place in measured],
        typed,
        destinations.read(typed[0]),
        knowledge.select(measured),
    )
    yield replace(part, asks_for=match.gpu_type)
    rest = sorted(set(places).difference(measured))
    if rest:
        # They may land on any GPU there, whose memory nothing tells.
        unmeasured = replace(knowledge.select(rest), gpu_memory_mb=None)
        yield _build(
            [indices[place] for place in rest],
            [jobs[place] for place in rest],
            destination,
            unmeasured,
        )


def _build(
    indices: Sequence[int], jobs: Sequence[Job], destination: Destination, knowledge: Knowledge
) -> Part:
    capacity = complete_capacity(destination.capacity, knowledge)
    return Part(
        tuple(indices),
        tuple(jobs),
        capacity,
        knowledge,
        reasons=destination.reasons,
        destination=destination,
    )


def complete_capacity(capacity: Capacity, knowledge: Knowledge | None) -> Capacity:
    """With the GPU's memory as the monitor saw it, where the site does not say."""
    if capacity.gpu_memory_mb is not None or knowledge is None:
        return capacity
    return replace(capacity, gpu_memory_mb=knowledge.gpu_memory_mb)
