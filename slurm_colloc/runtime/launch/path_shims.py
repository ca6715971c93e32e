"""Slurm's commands as a member sees them first on its PATH, and what they know of it.

    PACK/bin/NAME               three lines that hand over to runtime.programs.shim
    PACK/members/NNNN/bin       a link to PACK/bin: a shim knows from its own path whose it is
    PACK/members/NNNN/inside    what it has to know, NAME=VALUE, each ended by a NUL
    PACK/members/NNNN/bash_env  read by each bash inside the member, see bash_protection

A program may clear or change its environment; none of this depends on it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.runtime import programs
from slurm_colloc.runtime.launch.member_environment import MemberContext
from slurm_colloc.slurm.real_command import SHIM_MARK
from slurm_colloc.slurm.tables.job_command import describe_command
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    make_directory,
    write_all,
    write_atomic,
)

SHIMMED = ("srun", "scontrol", "scancel", "squeue", "sbatch", "salloc")

_PROGRAM = os.path.join(os.path.dirname(programs.__file__), "shim.py")


def write_shims(pack: Path, python: str) -> None:
    """Write the shims of a pack.

    Raises:
        StateError: They cannot be written.
    """
    directory = pack / "bin"
    make_directory(directory)
    program = f"{shlex.quote(python)} -IBS {shlex.quote(_PROGRAM)}"
    text = f'#!/bin/sh\n{SHIM_MARK.decode()}exec {program} "$0" "$@"\n'
    for name in SHIMMED:
        write_atomic(directory / name, text.encode(), 0o700)


def find_shims(folder: Path) -> str:
    """The directory of a member's shims.

    Args:
        folder: The member's directory.
    """
    return str(folder / "bin")


def build_inside(
    place: MemberContext,
    job: Job,
    plan: MemberPlan,
    *,
    job_id: str,
    submit_directory: str,
    outputs: tuple[str | None, str | None],
    node: str = "",
) -> dict[str, str]:
    """What a member's shims know of it.

    Args:
        place: Where it runs.
        job: The job.
        plan: Its place in the plan.
        job_id: Slurm's id of the pack, as its processes see it.
        submit_directory: Where csub was called.
        outputs: Its files for output and error; the latter None where it is the same.
        node: The node on which its steps run, where the job has others, too; else empty.
    """
    inside = {
        "job_id": job_id,
        "member": place.member,
        "prefix": place.run,
        "cpus": ",".join(str(cpu) for cpu in place.cpus),
        "cpu_count": str(plan.cpus),
        "name": job.name,
        "command": describe_command(job.script_name, job.arguments, submit_directory),
        "directory": os.path.normpath(job.directory),
        "started_at": str(place.started_at),
    }
    if plan.host_memory_mb is not None:
        inside["host_memory_mb"] = str(plan.host_memory_mb)
    if plan.wall_limit_s is not None:
        inside["wall_limit_s"] = str(plan.wall_limit_s)
    if node:
        inside["node"] = node
    output, error = outputs
    if output is not None:
        inside["output"] = os.path.join(job.directory, output)
        inside["error"] = os.path.join(job.directory, error or output)
    if job.array_task is not None:
        inside["task_id"] = f"{place.job_id}_{job.array_task.task_id}"
    return inside


def tell_later_start(folder: Path, at: int) -> None:
    """Have a member's shims say that its time began at another moment.

    Args:
        folder: The member's directory.
        at: In seconds since the epoch.

    Raises:
        StateError: The file cannot be read or written.
    """
    path = folder / "inside"
    with explain_os_errors("read", path):
        lines = path.read_bytes().split(b"\0")
    began = b"started_at="
    changed = [b"%s%d" % (began, at) if line.startswith(began) else line for line in lines]
    write_atomic(path, b"\0".join(changed))


def give_shims(folder: Path, inside: Mapping[str, str], bash_env: str) -> None:
    """Lay out what a member's shims and its bash read.

    Args:
        folder: The member's directory.
        inside: What the shims know of it.
        bash_env: The text of its BASH_ENV.

    Raises:
        OSError: The link cannot be made.
        StateError: The files cannot be written.
    """
    with contextlib.suppress(FileExistsError):
        os.symlink("../../bin", find_shims(folder))
    block = "".join(f"{name}={value}\0" for name, value in inside.items())
    write_all(
        {
            folder / "inside": block.encode("utf-8", "surrogateescape"),
            folder / "bash_env": bash_env.encode("utf-8", "surrogateescape"),
        }
    )
