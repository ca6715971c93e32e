"""Where a member's output is, and following it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.model.output import PatternValues, choose_output_paths
from slurm_colloc.ownership import name_user
from slurm_colloc.report.survey import MemberView, PackView

CHUNK_BYTES = 1 << 16


def find_log_paths(view: PackView, member: MemberView) -> tuple[str, str | None]:
    """The member's output and error file; the second is None where both go to one.

    A `%N` in a pattern stays as it is until the member has started.
    """
    job = member.spec.job
    node = member.record.node if member.record and member.record.node else "%N"
    values = PatternValues(
        job_id=view.shown_id or "%j",
        number=member.member.number,
        is_array=job.array_task is not None,
        name=job.name,
        node=node.partition(".")[0],
        user=_name_owner(member),
    )
    out, err = choose_output_paths(job.output, job.error, values, alone=member.spec.names_alone)
    directory = Path(job.directory)
    return str(directory / out), None if err is None else str(directory / err)


def _name_owner(member: MemberView) -> str:
    """The user whose job it is: another's may be looked at, too."""
    try:
        uid = os.stat(member.files.path).st_uid  # noqa: PTH116
    except OSError:
        uid = os.getuid()
    return name_user(uid)


def read_from(path: str, offset: int) -> Iterator[bytes]:
    """The bytes of a file from an offset on; nothing if it is not there yet, or is no file."""
    try:
        # A pipe of that name would keep the caller waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
