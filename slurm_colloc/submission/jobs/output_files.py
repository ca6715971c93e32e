"""The files that members write their output to: none is a directory, and none is a neighbour's."""

from __future__ import annotations

import os
from collections.abc import Iterable

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.sbatch.output_patterns import (
    PatternValues,
    choose_output_paths,
    expand_pattern,
    is_device,
)
from slurm_colloc.slurm.options import Options


def refuse_directories(options: Options, job: Job) -> None:
    """Refuse an `--output` or `--error` that is a directory: Slurm would fail the job.

    Raises:
        UsageProblem: It is one; the message says where it was given.
    """
    for name, pattern in (("output", job.output), ("error", job.error)):
        if pattern is None:
            continue
        path = expand_pattern(pattern, _choose_values(job))
        if os.path.isdir(os.path.join(job.directory, path)):
            raise UsageProblem(
                f"{options.origin(name)}: --{name}={pattern} is a directory, and a file is needed",
                hint=f"--{name}={pattern.rstrip('/')}/%x-%a.out names one in it",
            )


def list_output_files(job: Job, *, alone: bool, job_id: str = "%j") -> set[str]:
    """Where a member writes, as absolute paths; devices are left out, who writes there is many.

    Args:
        job: The job.
        alone: It is named as sbatch would, see `MemberSpec.names_alone`.
        job_id: The id of its Slurm job; where it is not known yet, the pattern for it.
    """
    output, error = choose_output_paths(
        job.output, job.error, _choose_values(job, job_id), alone=alone
    )
    return {
        os.path.normpath(os.path.join(job.directory, path))
        for path in (output, error)
        if path is not None and not is_device(path)
    }


def refuse_shared_files(jobs: Iterable[Job]) -> None:
    """Refuse members of one call that would write one file, as `x1%a` and `x%a` may.

    Args:
        jobs: Jobs that share, each in a pack with others.

    Raises:
        UsageProblem: Two of them would.
    """
    jobs = list(jobs)
    patterns = {(job.directory, job.output) for job in jobs}
    if len(patterns) <= 1 and all(job.error is None for job in jobs):
        # The number alone makes them differ.
        return
    writers: dict[str, Job] = {}
    for job in jobs:
        for path in list_output_files(job, alone=False):
            other = writers.setdefault(path, job)
            if other is not job:
                raise UsageProblem(
                    f"member {other.number} ({other.script_name}) and member {job.number} "
                    f"({job.script_name}) would both write {path}",
                    hint="use --output and --error patterns that differ in more than the number",
                )


def _choose_values(job: Job, job_id: str = "%j") -> PatternValues:
    """What is not known before the start stands for itself."""
    return PatternValues(
        job_id=job_id,
        number=job.number,
        is_array=job.array_task is not None,
        name=job.name,
        node="%N",
        user="%u",
    )
