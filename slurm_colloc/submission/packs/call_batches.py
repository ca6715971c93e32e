"""The Slurm jobs that the packs of a call become, and which element each pack is; pure.

One number has one meaning: the index of a pack in its job array is none that the user could mean
by a task, so that `4711_1` never names a pack (`model.job_ids` reads it as member 4711/1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.errors import SlurmRefused
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.model.sbatch.dependency import join_conditions
from slurm_colloc.submission.plan.planned_pack import PlannedPack

MAX_ARRAY_SIZE = 1001
"""Slurm's default (slurm.conf(5)), where it cannot be read."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """The packs that become one Slurm job.

    Attributes:
        packs: The packs.
        indices: Their elements of the job array.
        is_array: They are elements of a job array.
        packs_at_once: How many of them may run at the same time; None for no limit.
        name: The Slurm job's, which is that of its first job.
        group: The options for Slurm in which all members agree.
        request: What sbatch is asked for: of all packs the largest of each; None for jobs alone.
        after: The place, among the batches of the call, of the one that must be over first; None
            for none.
    """

    packs: tuple[PlannedPack, ...]
    indices: tuple[int, ...]
    is_array: bool
    packs_at_once: int | None
    name: str
    group: tuple[tuple[str, str], ...]
    request: PackRequest | None
    after: int | None = None


@dataclasses.dataclass(frozen=True)
class PlaceInCall:
    """How a Slurm job stands to the others of its call; nothing where there are none.

    Attributes:
        shown_id: The id of the first, after which all members are named; empty for the first.
        parts: All of them, see PackRecord; for the first alone.
        after_job: The one that must be over first; empty for none.
    """

    shown_id: str = ""
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    after_job: str = ""

    @property
    def is_one_of_several(self) -> bool:
        """The call became several Slurm jobs."""
        return bool(self.shown_id or self.parts)


ONLY_ONE = PlaceInCall()
"""The call became one Slurm job."""


def find_wait(pack: PlannedPack) -> str | None:
    """What Slurm is told that a pack waits for, where its members wait for members of others.

    Returns:
        A value of --dependency, empty for nothing; None where it is the user's own.
    """
    jobs = [candidate.job for candidate in pack.candidates]
    if not any(job.depends for job in jobs):
        return None
    return join_conditions(job.slurm_dependency for job in jobs)


def may_need_array(packs: Sequence[PlannedPack]) -> bool:
    """How large an array may be counts for these packs."""
    return len(packs) > 1 or any(
        candidate.job.array_task is not None and pack.plan.request is None
        for pack in packs
        for candidate in pack.candidates
    )


def read_array_size(config: Mapping[str, str]) -> int:
    """MaxArraySize, from what `scontrol show config` says."""
    text = config.get("MaxArraySize", "")
    return int(text) if text.isdecimal() else MAX_ARRAY_SIZE


def group_into_batches(
    packs: Sequence[PlannedPack],
    packs_at_once: int | None,
    max_array_size: int = MAX_ARRAY_SIZE,
) -> list[Batch]:
    """Packs that ask Slurm for the same kind of thing become elements of one array.

    Tasks of an array that run alone keep the user's own task numbers as elements, so that Slurm
    shows them as sbatch would. Where an array has no room for all packs there are several.

    Args:
        packs: The packs of a plan.
        packs_at_once: How many of them may run at the same time; None for no limit.
        max_array_size: Slurm's MaxArraySize: the largest index, and one.

    Raises:
        SlurmRefused: A task that runs alone has an index that Slurm does not take.
    """
    buckets: dict[object, list[PlannedPack]] = {}
    for number, pack in enumerate(packs):
        plan, first = pack.plan, pack.candidates[0].job
        wait = find_wait(pack)
        key: object
        if plan.request is not None:
            # A job array has one comment, and so one layout to ask its nodes for.
            words = tuple(instance.word for instance in plan.layout)
            key = ("shared", plan.group, plan.request.gpu_type, wait, words)
        elif first.array_task is not None:
            key = ("tasks", plan.group, first.shape, wait)
        else:
            key = ("lone", number)
        buckets.setdefault(key, []).append(pack)
    taken = {c.job.number for pack in packs for c in pack.candidates}
    batches = [
        _build_batch(part, indices)
        for alike in buckets.values()
        for part, indices in _divide(alike, taken, max_array_size)
    ]
    return _limit(batches, packs_at_once)


def _divide(
    alike: Sequence[PlannedPack], taken: Collection[int], max_array_size: int
) -> list[tuple[Sequence[PlannedPack], tuple[int, ...]]]:
    """The arrays of packs that are alike; a pack without an index is a job by itself."""
    task = alike[0].candidates[0].job.array_task
    if alike[0].plan.request is None and task is not None:
        indices = tuple(pack.candidates[0].job.number for pack in alike)
        if max(indices) >= max_array_size:
            raise SlurmRefused(
                "sbatch: Batch job submission failed: Invalid job array specification",
                hint=f"task {max(indices)} runs alone, and Slurm takes indices up to "
                f"{max_array_size - 1} (MaxArraySize)",
            )
        return [(alike, indices)]
    if len(alike) == 1:
        return [(alike, ())]
    free = choose_elements(len(alike), taken, max_array_size)
    size = max(1, len(free))
    parts = [alike[at : at + size] for at in range(0, len(alike), size)]
    return [(part, free[-len(part) :] if len(part) > 1 else ()) for part in parts]


def choose_elements(count: int, taken: Collection[int], max_array_size: int) -> tuple[int, ...]:
    """Indices for packs, the largest that there are, ascending; fewer where there are no more.

    Args:
        count: How many.
        taken: Numbers of the user's own: tasks and members of the call.
        max_array_size: Slurm's MaxArraySize.
    """
    found: list[int] = []
    for index in range(max_array_size - 1, -1, -1):
        if len(found) == count:
            break
        if index not in taken:
            found.append(index)
    return tuple(reversed(found))


def _build_batch(packs: Sequence[PlannedPack], indices: tuple[int, ...]) -> Batch:
    requests = [pack.plan.request for pack in packs if pack.plan.request is not None]
    return Batch(
        packs=tuple(packs),
        indices=indices or (0,),
        is_array=bool(indices),
        packs_at_once=None,
        name=packs[0].candidates[0].job.name,
        group=packs[0].plan.group,
        request=_merge_requests(requests) if requests else None,
    )


def _limit(batches: Sequence[Batch], packs_at_once: int | None) -> list[Batch]:
    """Batches of which no more packs run at the same time than may: they wait for each other."""
    if packs_at_once is None:
        return list(batches)
    largest = max((len(batch.packs) for batch in batches), default=1)
    # As many side by side as the limit has room for.
    lanes = max(1, packs_at_once // largest)
    return [
        dataclasses.replace(
            batch,
            packs_at_once=packs_at_once if batch.is_array else None,
            after=place - lanes if place >= lanes else None,
        )
        for place, batch in enumerate(batches)
    ]


def find_place(
    batches: Sequence[Batch], names: Sequence[str], job_ids: Sequence[str]
) -> PlaceInCall:
    """How the next Slurm job of a call stands to those before it.

    Args:
        batches: All of them.
        names: The name of each in the state.
        job_ids: The ids of those that are submitted.
    """
    after = batches[len(job_ids)].after
    after_job = "" if after is None else job_ids[after]
    if job_ids or len(batches) == 1:
        return PlaceInCall(shown_id=job_ids[0] if job_ids else "", after_job=after_job)
    indices = (batch.indices for batch in batches)
    return PlaceInCall(parts=tuple(zip(names, indices, strict=True)))


def _merge_requests(requests: Sequence[PackRequest]) -> PackRequest:
    memories = [request.host_memory_mb for request in requests]
    is_unlimited = any(request.is_unlimited for request in requests)
    times = [None if is_unlimited else request.time_limit_s for request in requests]
    return PackRequest(
        gpus=requests[0].gpus,
        gpu_type=requests[0].gpu_type,
        cpus=max(request.cpus for request in requests),
        host_memory_mb=None if None in memories else max(m for m in memories if m is not None),
        time_limit_s=None if None in times else max(t for t in times if t is not None),
        is_unlimited=is_unlimited,
    )
