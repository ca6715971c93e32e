"""The options with which sbatch is called for the packs of one Slurm job; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import PackPlan, PackRequest, Plan
from slurm_colloc.model.sbatch.arrays import format_task_ids
from slurm_colloc.model.sbatch.quantities import format_time_limit
from slurm_colloc.submission.packs.hook_token import HookChoice, build_hook_request

GROWABLE = frozenset(
    {"chdir", "cpus-per-task", "error", "gpus", "gpus-per-node", "gres", "input", "mail-type",
     "mail-user", "mem", "mem-per-cpu", "nodes", "ntasks", "ntasks-per-node", "open-mode",
     "output", "time"}
)  # fmt: skip
"""Options of a lone job that `scontrol update` can overrule, or that its runner can do itself,
once somebody has joined it."""


_WITH_A_DATE = re.compile(r"\d{4}-\d\d-\d\d.*", re.ASCII)


@dataclass(frozen=True)
class Batch:
    """The packs that become one Slurm job.

    Attributes:
        packs: The packs.
        indices: Their elements of the job array.
        is_array: They are elements of a job array.
    """

    packs: tuple[PackPlan, ...]
    indices: tuple[int, ...]
    is_array: bool


def group_into_batches(plan: Plan, jobs: Sequence[Job]) -> list[Batch]:
    """Packs that ask Slurm for the same kind of thing become elements of one array.

    Tasks of an array that run alone keep the user's own task numbers as elements, so that Slurm
    shows them as sbatch would.
    """
    buckets: dict[object, list[PackPlan]] = {}
    for pack in plan.packs:
        first = jobs[pack.members[0].job_index]
        key: object
        if pack.request is not None:
            key = ("shared", pack.group, pack.request.gpu_type)
        elif first.array_task is not None:
            key = ("tasks", pack.group, first.shape)
        else:
            key = ("lone", pack.members[0].job_index)
        buckets.setdefault(key, []).append(pack)
    batches = []
    for packs in buckets.values():
        first = jobs[packs[0].members[0].job_index]
        is_array = len(packs) > 1
        indices = tuple(range(len(packs)))
        if packs[0].request is None and first.array_task is not None:
            is_array = True
            indices = tuple(_task_id(jobs[pack.members[0].job_index]) for pack in packs)
        batches.append(Batch(tuple(packs), indices, is_array))
    return batches


def _task_id(job: Job) -> int:
    assert job.array_task is not None
    return job.array_task.task_id


def compute_own_meaning(group: Sequence[tuple[str, str]]) -> str:
    """Why options that look the same mean something else to another call; empty where none does."""
    for name, value in group:
        if name in ("begin", "deadline") and not _WITH_A_DATE.fullmatch(value):
            return f"its --{name}={value} means another moment for another job"
        if name == "dependency" and "singleton" in value:
            return "it came with --dependency=singleton"
    return ""


def build_options(
    batch: Batch,
    jobs: Sequence[Job],
    packs_at_once: int | None,
    submission: str,
    log: str,
    *,
    hooks: HookChoice | None = None,
) -> list[str]:
    """The options of sbatch.

    Args:
        batch: The packs of this Slurm job.
        jobs: The jobs of the call.
        packs_at_once: How many packs may run at the same time.
        submission: The submission's id.
        log: Path of the pack's log, `%a` in it for the element.
        hooks: Whether packs ask for the hooks of their nodes.

    Raises:
        UsageProblem: The user's comment leaves no room for csub's mark.
    """
    first = jobs[batch.packs[0].members[0].job_index]
    group = dict(batch.packs[0].group)
    options = []
    if batch.is_array:
        limit = f"%{packs_at_once}" if packs_at_once is not None else ""
        options.append(f"--array={format_task_ids(batch.indices)}{limit}")
    options.append(f"--job-name={build_name(batch, jobs)}")
    asked = build_hook_request(batch.packs, group, submission, hooks or HookChoice())
    options.append(f"--comment={asked.comment}")
    group.pop("comment", None)
    if asked.constraint is not None:
        group["constraint"] = asked.constraint
    if batch.packs[0].request is None:
        # As the user wrote it; the log is the member's own output.
        options += [_option(name, value) for name, value in first.shape]
    else:
        options += build_request_options(merge_requests(batch.packs))
        options += [f"--output={log}", "--open-mode=append", f"--chdir={first.directory}"]
    if first.depends:
        # Slurm knows no members: see model.sbatch.dependency.
        group["dependency"] = first.slurm_dependency
    options += [_option(name, value) for name, value in sorted(group.items())]
    if "export" not in group:
        options.append("--export=ALL")
    return options


def build_name(batch: Batch, jobs: Sequence[Job]) -> str:
    """The Slurm job's name: `train+3` for packs of four, the job's own where it is alone."""
    first = jobs[batch.packs[0].members[0].job_index].name
    largest = max(len(pack.members) for pack in batch.packs)
    return f"{first}+{largest - 1}" if largest > 1 else first


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


def merge_requests(packs: Sequence[PackPlan]) -> PackRequest:
    """Elements of an array ask for the same: the largest of each."""
    requests = [pack.request for pack in packs if pack.request is not None]
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
