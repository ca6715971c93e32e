"""The options with which sbatch is called for the packs of one Slurm job; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.model.plan import PackRequest
from slurm_colloc.model.sbatch.arrays import format_task_ids
from slurm_colloc.model.sbatch.quantities import format_time_limit
from slurm_colloc.submission.packs.hook_token import HookChoice, build_hook_request
from slurm_colloc.submission.plan.planned_pack import PlannedPack

GROWABLE = frozenset(
    {"chdir", "cpus-per-task", "error", "gpus", "gpus-per-node", "gres", "input", "mail-type",
     "mail-user", "mem", "mem-per-cpu", "nodes", "ntasks", "ntasks-per-node", "open-mode",
     "output", "time"}
)  # fmt: skip
"""Options of a lone job that `scontrol update` can overrule, or that its runner can do itself,
once another job has joined it."""


_WITH_A_DATE = re.compile(r"\d{4}-\d\d-\d\d.*", re.ASCII)


@dataclass(frozen=True)
class Batch:
    """The packs that become one Slurm job.

    Attributes:
        packs: The packs.
        indices: Their elements of the job array.
        is_array: They are elements of a job array.
        packs_at_once: How many of them may run at the same time; None for no limit.
        name: The Slurm job's: `train+3` for packs of four, the job's own where it is alone.
        group: The options for Slurm in which all members agree.
        request: What sbatch is asked for: of all packs the largest of each; None for jobs alone.
    """

    packs: tuple[PlannedPack, ...]
    indices: tuple[int, ...]
    is_array: bool
    packs_at_once: int | None
    name: str
    group: tuple[tuple[str, str], ...]
    request: PackRequest | None


def group_into_batches(packs: Sequence[PlannedPack], packs_at_once: int | None) -> list[Batch]:
    """Packs that ask Slurm for the same kind of thing become elements of one array.

    Tasks of an array that run alone keep the user's own task numbers as elements, so that Slurm
    shows them as sbatch would.

    Args:
        packs: The packs of a plan.
        packs_at_once: How many of them may run at the same time; None for no limit.
    """
    buckets: dict[object, list[PlannedPack]] = {}
    for number, pack in enumerate(packs):
        plan, first = pack.plan, pack.candidates[0].job
        key: object
        if plan.request is not None:
            key = ("shared", plan.group, plan.request.gpu_type)
        elif first.array_task is not None:
            key = ("tasks", plan.group, first.shape)
        else:
            key = ("lone", number)
        buckets.setdefault(key, []).append(pack)
    return [_build_batch(alike, packs_at_once) for alike in buckets.values()]


def _build_batch(packs: Sequence[PlannedPack], packs_at_once: int | None) -> Batch:
    first = packs[0].candidates[0].job
    lone = [pack.candidates[0].job.array_task for pack in packs if pack.plan.request is None]
    tasks = tuple(task.task_id for task in lone if task is not None)
    largest = max(len(pack.candidates) for pack in packs)
    requests = [pack.plan.request for pack in packs if pack.plan.request is not None]
    return Batch(
        packs=tuple(packs),
        indices=tasks or tuple(range(len(packs))),
        is_array=bool(tasks) or len(packs) > 1,
        packs_at_once=packs_at_once,
        name=f"{first.name}+{largest - 1}" if largest > 1 else first.name,
        group=packs[0].plan.group,
        request=_merge_requests(requests) if requests else None,
    )


def compute_own_meaning(group: Sequence[tuple[str, str]]) -> str:
    """Why options that look the same mean something else to another call; empty where none does."""
    for name, value in group:
        if name in ("begin", "deadline") and not _WITH_A_DATE.fullmatch(value):
            return f"its --{name}={value} means another moment for another job"
        if name == "dependency" and "singleton" in value:
            return "it came with --dependency=singleton"
    return ""


@dataclass(frozen=True)
class SbatchOptions:
    """The options of sbatch for a batch.

    Attributes:
        words: As they stand on its command line.
        notes: What could not be asked for, and why; a sentence each.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()


def build_options(
    batch: Batch, submission: str, log: str, *, hooks: HookChoice | None = None
) -> SbatchOptions:
    """The options of sbatch.

    Args:
        batch: The packs of this Slurm job.
        submission: The submission's id.
        log: Path of the pack's log, `%a` in it for the element.
        hooks: Whether packs ask for the hooks of their nodes.

    Raises:
        UsageProblem: The user's comment leaves no room for csub's mark.
    """
    first = batch.packs[0].candidates[0].job
    group = dict(batch.group)
    words = []
    if batch.is_array:
        limit = f"%{batch.packs_at_once}" if batch.packs_at_once is not None else ""
        words.append(f"--array={format_task_ids(batch.indices)}{limit}")
    words.append(f"--job-name={batch.name}")
    plans = [pack.plan for pack in batch.packs]
    asked = build_hook_request(plans, group, submission, hooks or HookChoice())
    words.append(f"--comment={asked.comment}")
    group.pop("comment", None)
    if asked.constraint is not None:
        group["constraint"] = asked.constraint
    if batch.request is None:
        # As the user wrote it; the log is the member's own output.
        words += [_option(name, value) for name, value in first.shape]
    else:
        words += build_request_options(batch.request)
        words += [f"--output={log}", "--open-mode=append", f"--chdir={first.directory}"]
    if first.depends:
        # Slurm knows no members: see model.sbatch.dependency.
        group["dependency"] = first.slurm_dependency
    words += [_option(name, value) for name, value in sorted(group.items())]
    if "export" not in group:
        words.append("--export=ALL")
    return SbatchOptions(tuple(words), asked.notes)


def build_request_options(request: PackRequest) -> list[str]:
    """The options that ask for a pack's resources."""
    kind = f"{request.gpu_type}:" if request.gpu_type else ""
    options = [
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={request.cpus}",
        f"--gres=gpu:{kind}{request.gpus}",
    ]
    if request.host_memory_mb is not None:
        options.append(f"--mem={request.host_memory_mb}M")
    if request.is_unlimited or request.time_limit_s is not None:
        options.append(f"--time={format_time_limit(request.time_limit_s)}")
    return options


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


def _option(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"
