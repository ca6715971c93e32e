"""What a job's request means for sharing: which jobs fit next to it, and why not; pure."""

from __future__ import annotations

import dataclasses
import re

from slurm_colloc.check.collisions import ScriptFinding, Severity
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Capacity, Policy
from slurm_colloc.planning.gpu_sets.gpu_set_packs import choose_set_degree, scale_capacity
from slurm_colloc.planning.plan_packs import (
    GPU_MEMORY_SHARE,
    compute_need,
    compute_overload,
    explain_gpu_count,
)
from slurm_colloc.slurm.options import Options

REQUEST = "the request"
"""Where findings stand that are about what was not said."""

_MOST = 64
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")


@dataclasses.dataclass(frozen=True)
class ResourceRow:
    """One resource.

    Attributes:
        name: `CPUs`, `host memory` or `GPU memory`.
        unit: Of the figures: '' or `MB`.
        asked: What one member needs; None where it did not say.
        available: What there is for one GPU; None where that is not known.
        fits: How many members fit; None where that cannot be said.
    """

    name: str
    unit: str
    asked: int | None
    available: int | None
    fits: int | None


@dataclasses.dataclass(frozen=True)
class SharingFit:
    """What sharing would get.

    Attributes:
        rows: The resources.
        degree: Members that run at the same time at most, by settings or `--degree`.
        members: Members of the same kind in one pack; 1 where the job runs alone.
        alone_because: Why it runs alone; empty if it can share.
    """

    rows: tuple[ResourceRow, ...]
    degree: int
    members: int
    alone_because: str


def compute_sharing(job: Job, capacity: Capacity, policy: Policy) -> SharingFit:
    """How many jobs of this kind share a GPU, or a set of as many as each of them needs."""
    if job.gpus > 1:
        capacity = scale_capacity(capacity, job.gpus)
        policy = dataclasses.replace(policy, degree=choose_set_degree(policy, job.gpus))
    need = compute_need(job, 0, capacity, policy)
    usable = capacity.gpu_memory_mb and int(capacity.gpu_memory_mb * GPU_MEMORY_SHARE)
    figures = (
        ("CPUs", "", need.cpus, capacity.cpus_per_gpu, "cpus_per_gpu"),
        (
            "host memory",
            "MB",
            job.host_memory_mb,
            capacity.host_memory_mb_per_gpu,
            "host_memory_mb_per_gpu",
        ),
        ("GPU memory", "MB", job.gpu_memory_mb, usable, "gpu_memory_mb"),
    )
    rows = []
    for name, unit, asked, available, field in figures:
        fits = None
        if asked is not None and available is not None:
            only = dataclasses.replace(
                Capacity(gpus=capacity.gpus), **{field: getattr(capacity, field)}
            )
            fits = next(
                (n for n in range(_MOST, 0, -1) if not compute_overload([need] * n, n, only)), 0
            )
        rows.append(ResourceRow(name, unit, asked, available, fits))
    alone = job.alone_because or explain_gpu_count(job, policy)
    known = [row.fits for row in rows if row.fits is not None]
    members = 1 if alone else max(1, min([policy.degree, *known]))
    return SharingFit(tuple(rows), policy.degree, members, alone)


def find_request_findings(
    job: Job, options: Options, sharing: SharingFit, capacity: Capacity
) -> list[ScriptFinding]:
    """What in the request keeps a job from sharing, or is good to know."""
    findings = []
    if sharing.alone_because:
        file, line = _place(_find_origin(options, sharing.alone_because))
        advice = "leave it to sbatch, or ask for one GPU, one node and one task"
        if job.gpus == 0 and not job.alone_because:
            advice = "--gres=gpu:1 asks for one"
        elif "--exclusive" in sharing.alone_because or "--mem=0" in sharing.alone_because:
            advice = "leave it out, and say what one job needs: --cpus-per-task, --mem"
        shown = _shown_request(options, sharing.alone_because)
        findings.append(
            ScriptFinding(
                "runs-alone",
                file,
                line,
                shown,
                f"it runs alone: {sharing.alone_because.removeprefix(shown).removeprefix(': ')}",
                advice,
            )
        )
    else:
        for row, name in ((sharing.rows[0], "cpus-per-task"), (sharing.rows[1], "mem")):
            finding = _check_share(row, name, options, sharing.degree)
            if finding is not None:
                findings.append(finding)
        findings += _find_unstated(job, capacity)
    return findings


def _check_share(
    row: ResourceRow, name: str, options: Options, degree: int
) -> ScriptFinding | None:
    """A request of which fewer fit than could share."""
    if row.fits is None or row.available is None or row.asked is None or row.fits >= degree:
        return None
    given = next(
        (n for n in (name, "cpus-per-gpu", "mem-per-cpu", "mem-per-gpu") if options.flag(n)), name
    )
    if row.name != "CPUs" and given == "cpus-per-gpu":
        given = name
    file, line = _place(options.origin(given))
    wanted = next((n for n in range(degree, 1, -1) if row.available // n), 1)
    unit = "M" if row.unit else ""
    advice = ""
    if wanted > max(1, row.fits):
        more = wanted - max(1, row.fits)
        advice = f"{more} more would fit with --{name}={row.available // wanted}{unit}"
    asked = f"--{given}={options.text(given)}" if options.flag(given) else f"{row.asked} {row.name}"
    why = f"the GPU's share is {row.available} {row.unit or row.name}"
    if row.fits > 1:
        why += f": only {row.fits} members fit at the same time"
        return ScriptFinding("large-share", file, line, asked, why, advice, Severity.NOTE)
    return ScriptFinding("whole-share", file, line, asked, f"{why}, so no other job fits", advice)


def _find_unstated(job: Job, capacity: Capacity) -> list[ScriptFinding]:
    """What was not said, and what holds instead."""
    findings = []
    if job.time_limit_s is None and not job.is_unlimited:
        default = capacity.time_limit_default_s
        means = f"the partition's {default} s" if default else "the partition's default"
        findings.append(
            ScriptFinding(
                "no-time",
                REQUEST,
                0,
                "no --time",
                f"{means} limits each member",
                "say how long the job takes alone",
                Severity.NOTE,
            )
        )
    if job.gpu_memory_mb is None:
        findings.append(
            ScriptFinding(
                "no-gpu-mem",
                REQUEST,
                0,
                "no --gpu-mem",
                "whether the members' GPU memory fits together is not checked",
                "say it, as in --gpu-mem=10G",
                Severity.NOTE,
            )
        )
    return findings


def _find_origin(options: Options, reason: str) -> str | None:
    match = re.search(r"--([\w-]+)", reason)
    names = [match[1]] if match else list(_GPU_OPTIONS)
    for name in names:
        try:
            origin = options.origin(name)
        except KeyError:
            continue
        if origin:
            return origin
    return None


def _shown_request(options: Options, reason: str) -> str:
    match = re.search(r"--([\w-]+)", reason)
    names = [match[1]] if match else list(_GPU_OPTIONS)
    for name in names:
        try:
            given = options.given(name)
        except KeyError:
            continue
        if given is not None:
            return f"--{name}" + (f"={given.value}" if given.value else "")
    return "no GPU" if "no GPU" in reason else reason


def _place(origin: str | None) -> tuple[str, int]:
    """`train.sh:3` as file and line; other origins have no line."""
    file, _, line = (origin or REQUEST).rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (origin or REQUEST, 0)
