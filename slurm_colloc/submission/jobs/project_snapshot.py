"""`--snapshot`: jobs that run in a copy of their project as it is at submission."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.store.project_files import ProjectFiles, list_project
from slurm_colloc.store.snapshots import check_size, take_snapshot
from slurm_colloc.submission.jobs.call_jobs import Call


def move_into_snapshot(call: Call, state_root: Path, directory: str) -> Call:
    """The call with its jobs in a copy of the project, where `--snapshot` asks for it.

    Args:
        call: The call.
        state_root: The state directory, which holds the copy.
        directory: The current directory.

    Raises:
        UsageProblem: The project is too large, or a job has another directory.
        StateError: It cannot be copied.
    """
    if not call.options.flag("snapshot"):
        return call
    project, inner = find_project(call, directory)
    snapshot = take_snapshot(state_root, project)
    return dataclasses.replace(
        call,
        candidates=tuple(
            dataclasses.replace(c, job=_move(c.job, snapshot, inner[c.job.directory]))
            for c in call.candidates
        ),
    )


def find_project(call: Call, directory: str) -> tuple[ProjectFiles, dict[str, str]]:
    """The project that `--snapshot` would copy, and where in it each job's directory lies.

    Args:
        call: The call, in which `--snapshot` is given.
        directory: The current directory.

    Raises:
        UsageProblem: The project is too large or empty, or a job has another directory.
    """
    given = call.options.given("snapshot")
    paths = [path for path in ((given and given.value) or "").split(",") if path]
    project = list_project(directory, paths)
    inner = {job.directory: _find_inner(project, job) for job in (c.job for c in call.candidates)}
    check_size(project)
    return project, inner


def _find_inner(project: ProjectFiles, job: Job) -> str:
    path = Path(os.path.realpath(job.directory))
    if not path.is_relative_to(project.root):
        raise UsageProblem(
            f"--snapshot: {job.script_name} runs in {job.directory}, which is not in the project "
            f"{project.root}"
        )
    return os.path.relpath(path, project.root)


def _move(job: Job, snapshot: Path, inner: str) -> Job:
    """A job in the copy; its output goes where it would have gone."""
    directory = os.path.normpath(snapshot / "tree" / inner)
    pattern = job.output or ("slurm-%j.out" if job.array_task is None else "slurm-%A_%a.out")
    shape = {**dict(job.shape), "chdir": directory}
    # In patterns `%` stands for itself when doubled.
    before = job.directory.replace("%", "%%")
    files = {"output": os.path.join(before, pattern)}
    if job.error is not None:
        files["error"] = os.path.join(before, job.error)
    if job.input is not None:
        files["input"] = os.path.join(before, job.input)
    return dataclasses.replace(
        job,
        directory=directory,
        output=files["output"],
        error=files.get("error"),
        input=files.get("input"),
        shape=tuple({**shape, **files}.items()),
        snapshot=str(snapshot),
    )
