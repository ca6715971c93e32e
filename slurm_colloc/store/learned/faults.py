"""Which scripts have ended their neighbours by a fault on the GPU, and must first prove themselves.

`faults/<signature>.json` in the state directory. A job with such a signature runs alone until it
has succeeded alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.job import Job
from slurm_colloc.store.atomic_files import make_directory, write_json
from slurm_colloc.store.record_files import read_record

_FOLDER = "faults"


@dataclasses.dataclass(frozen=True)
class FaultRecord:
    """A fault that has hit a job's neighbours (faults/SIGNATURE.json).

    Attributes:
        member: Which member it was, `4711/3`.
        evidence: What that rests on.
    """

    member: str = ""
    evidence: tuple[str, ...] = ()


def compute_signature(script: bytes, job: Job) -> str:
    """The exact signature of a job: its script's content, its arguments and its array task.

    Of a job of several GPUs their number counts, too: on one it would take something else.
    """
    # It takes longer to load than all else that a runner needs of this module.
    import hashlib

    task = "" if job.array_task is None else str(job.array_task.task_id)
    digest = hashlib.sha256()
    # With their lengths, so that no part can be taken for another.
    gpus = [f"gpus={job.gpus}".encode()] if job.gpus > 1 else []
    for part in (task.encode(), script, *map(os.fsencode, job.arguments), *gpus):
        digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()[:32]


def note_culprit(root: Path, signature: str, member: str, evidence: Sequence[str]) -> None:
    """Write down that a job's fault has hit its neighbours.

    Args:
        root: The state directory.
        signature: The job's.
        member: Which member it was, `4711/3`.
        evidence: What that rests on.

    Raises:
        StateError: It cannot be written.
    """
    make_directory(root / _FOLDER)
    record = FaultRecord(member, tuple(evidence))
    write_json(f"{root}/{_FOLDER}/{signature}.json", dataclasses.asdict(record))


def forget_culprit(root: Path, signature: str) -> bool:
    """A job has succeeded alone; True where it had been written down."""
    with contextlib.suppress(OSError):
        os.unlink(root / _FOLDER / f"{signature}.json")
        return True
    return False


def find_culprit(root: Path, signature: str) -> str | None:
    """The member whose fault is on record for a signature; None where none is."""
    with contextlib.suppress(StateError):
        record = read_record(f"{root}/{_FOLDER}/{signature}.json", FaultRecord)
        if record is not None:
            return record.member
    return None


def has_culprits(root: Path) -> bool:
    """Any fault is on record; asked before scripts are looked at."""
    try:
        with os.scandir(root / _FOLDER) as entries:
            return any(entry.name.endswith(".json") for entry in entries)
    except OSError:
        return False
