"""The options with which sbatch is called for the packs of one Slurm job; pure."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.model.sbatch.arrays import format_task_ids
from slurm_colloc.model.sbatch.dependency import add_condition
from slurm_colloc.model.sbatch.output_patterns import expand_array_id
from slurm_colloc.model.sbatch.quantities import format_time_limit
from slurm_colloc.slurm.options import takes_value
from slurm_colloc.submission.packs.call_batches import Batch, find_wait
from slurm_colloc.submission.packs.hook_token import HookChoice, build_hook_request

GROWABLE = frozenset(
    {"chdir", "cpus-per-task", "error", "gpus", "gpus-per-node", "gres", "input", "mail-type",
     "mail-user", "mem", "mem-per-cpu", "nodes", "ntasks", "ntasks-per-node", "open-mode",
     "output", "time"}
)  # fmt: skip
"""Options of a lone job that `scontrol update` can overrule, or that its runner can do itself,
once another job has joined it."""


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
    batch: Batch,
    submission: str,
    log: str,
    *,
    hooks: HookChoice | None = None,
    shown_id: str = "",
    after_job: str = "",
) -> SbatchOptions:
    """The options of sbatch.

    Args:
        batch: The packs of this Slurm job.
        submission: The submission's id.
        log: Path of the pack's log, `%a` in it for the element.
        hooks: Whether packs ask for the hooks of their nodes.
        shown_id: The id that its members are named after; empty for the one that Slurm gives.
        after_job: The Slurm job of the call that must be over first; empty for none.

    Raises:
        UsageProblem: The user's comment leaves no room for csub's mark, or their dependency none
            for `after_job`.
    """
    first = batch.packs[0].candidates[0].job
    group = dict(batch.group)
    words = []
    if batch.is_array:
        limit = f"%{batch.packs_at_once}" if batch.packs_at_once is not None else ""
        words.append(f"--array={format_task_ids(batch.indices)}{limit}")
    words.append(f"--job-name={batch.name}")
    group.pop("job-name", None)
    plans = [pack.plan for pack in batch.packs]
    asked = build_hook_request(
        plans, group, submission, hooks or HookChoice(), gpu_sets=batch.gpu_sets
    )
    words.append(f"--comment={asked.comment}")
    group.pop("comment", None)
    if asked.constraint is not None:
        group["constraint"] = asked.constraint
    if batch.request is None:
        # As the user wrote it; the log is the member's own output.
        shape = name_outputs(first, shown_id) if shown_id else first.shape
        words += [_option(name, value) for name, value in shape]
    else:
        words += build_request_options(batch.request, 1 + max(batch.set_nodes, default=0))
        words += [f"--output={log}", "--open-mode=append", f"--chdir={first.directory}"]
    wait = find_wait(batch.elements[0])
    if wait is not None:
        # Slurm knows no members: see model.sbatch.dependency.
        group["dependency"] = wait
    if after_job:
        group["dependency"] = add_condition(group.get("dependency", ""), f"afterany:{after_job}")
    if not group.get("dependency", "-"):
        del group["dependency"]
    words += [_option(name, value) for name, value in sorted(group.items())]
    if "export" not in group:
        words.append("--export=ALL")
    return SbatchOptions(tuple(words), asked.notes)


def name_outputs(job: Job, shown_id: str) -> tuple[tuple[str, str], ...]:
    """The shape of a task alone, with `%A` in its files as in those of the submission's others.

    Args:
        job: The job.
        shown_id: The submission's id, which is that of another Slurm job.
    """
    if job.array_task is None:
        return job.shape
    shape = dict(job.shape)
    shape["output"] = expand_array_id(job.output or "slurm-%A_%a.out", shown_id)
    if job.error is not None:
        shape["error"] = expand_array_id(job.error, shown_id)
    return tuple(shape.items())


def build_request_options(request: PackRequest, nodes: int = 1) -> list[str]:
    """The options that ask for a pack's resources.

    Args:
        request: What it needs on each node.
        nodes: How many nodes. If one of several fails the others are to go on.
    """
    kind = f"{request.gpu_type}:" if request.gpu_type else ""
    options = [
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        *(["--no-kill"] if nodes > 1 else []),
        f"--cpus-per-task={request.cpus}",
        f"--gres=gpu:{kind}{request.gpus}",
    ]
    if request.host_memory_mb is not None:
        options.append(f"--mem={request.host_memory_mb}M")
    if request.is_unlimited or request.time_limit_s is not None:
        options.append(f"--time={format_time_limit(request.time_limit_s)}")
    return options


def _option(name: str, value: str) -> str:
    # Without its value, empty as it is, such an option would take the next word for it.
    return f"--{name}={value}" if value or takes_value(name) else f"--{name}"
