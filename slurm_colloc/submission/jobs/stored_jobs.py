"""Jobs as they were stored, to be submitted again, perhaps with other options.

Also: `--snapshot`: jobs that run in a copy of their project as it is at submission.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import Policy
from slurm_colloc.model.quantities import (
    parse_gpu_memory_mb,
    parse_host_memory_mb,
    parse_time_limit_s,
)
from slurm_colloc.slurm.options import Concern, Given, Options
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import explain_os_errors
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import PUT_ASIDE
from slurm_colloc.store.pack_directory import MemberSpec, parse_environment_block
from slurm_colloc.store.snapshots import ProjectFiles, check_size, list_project, take_snapshot
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate
from slurm_colloc.submission.jobs.job_options import parse_count, parse_option

SERVED = frozenset({"begin", "dependency", "hold"})
"""Options of the first submission that have had their effect."""

_HOST_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "time": ("time_limit_s", parse_time_limit_s),
    "mem": ("host_memory_mb", parse_host_memory_mb),
    "cpus-per-task": ("cpus", parse_count),
    "gpu-mem": ("gpu_memory_mb", parse_gpu_memory_mb),
}
"""What may be changed of a member, and the field of its job that says it."""


def read_stored_environment(pack: Path, number: int) -> dict[str, str] | None:
    """A member's captured environment; None where it is not kept any more.

    Raises:
        StateError: It cannot be read.
    """
    folder = pack / "members" / format_number(number)
    with explain_os_errors("read", folder):
        for name in ("env", PUT_ASIDE):
            try:
                block = (folder / name).read_bytes()
            except FileNotFoundError:
                continue
            return {
                key.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
                for key, value in parse_environment_block(block).items()
            }
    return None


def read_stored_script(pack: Path, number: int) -> bytes:
    """A member's script, as it was at submission.

    Raises:
        StateError: It cannot be read.
    """
    path = pack / "members" / format_number(number) / "script"
    with explain_os_errors("read", path):
        return path.read_bytes()


def read_stored_job(pack: Path, number: int, spec: MemberSpec) -> Candidate:
    """A member's job with its script and environment.

    Args:
        pack: The pack's directory.
        number: The number of the member's directory there.
        spec: What it runs.

    Raises:
        StateError: One of them cannot be read.
    """
    environment = read_stored_environment(pack, number)
    if environment is None:
        path = pack / "members" / format_number(number) / "env"
        raise StateError(f"cannot read {path}: it is not there any more")
    return Candidate(spec.job, read_stored_script(pack, number), environment)


def read_stored_policy(state: StateReader, job_id: str) -> Policy | None:
    """The policy of a submission, of whose packs others may have taken all members over.

    Args:
        state: The state directory.
        job_id: The submission's id.

    Returns:
        None where none of its packs is there, or none tells.

    Raises:
        StateError: One cannot be read.
    """
    takers = state.list_takers(job_id)
    own = (state.read_pack(name) for name in state.find_packs(job_id) if name not in takers)
    return next((record.policy for record in own if record is not None and record.policy), None)


def change_job(job: Job, given: Sequence[Given]) -> Job:
    """A job with other options.

    Args:
        job: The job as it was.
        given: The options. Of its own its time limit, memory and CPUs can be changed, and all that
            jobs of a pack have in common for Slurm, such as the partition.

    Raises:
        UsageProblem: One cannot be changed, or has a wrong value.
    """
    shape, group = dict(job.shape), dict(job.group)
    changes: dict[str, Any] = {}
    options = Options(tuple(given))
    for item in given:
        name = item.option.canonical_name
        if name in _FIELDS:
            field, parse = _FIELDS[name]
            changes[field] = parse_option(options, name, item.value or "", parse)
            if name == "mem":
                shape = {key: value for key, value in shape.items() if key not in _HOST_MEMORY}
            if not item.option.own:
                shape[name] = item.value or ""
        elif item.option.concern is Concern.GROUP and not item.option.own:
            group[name] = item.value or ""
        elif item.option.concern is not Concern.CALL:
            raise UsageProblem(
                f"{item.origin}: --{name} cannot be changed for another try",
                hint=f"--{', --'.join(_FIELDS)} can, and what a whole pack asks Slurm for, such as "
                "--partition; everything else takes a new submission",
            )
    return dataclasses.replace(
        job, shape=tuple(shape.items()), group=tuple(sorted(group.items())), **changes
    )


# ---- `--snapshot`: jobs that run in a copy of their project as it is at submission ---------------


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
