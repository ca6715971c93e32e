"""Jobs that wait for a member: one small file each in `dependents/` of the member's pack.

csub writes it once sbatch has answered; the pack's runner reads it and removes it when it has let
the job go. Where it is missing, the job starts when the pack is over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import make_directory, read_json, write_json


@dataclasses.dataclass(frozen=True)
class Dependent:
    """A job that waits for members of this pack.

    Attributes:
        job_id: The Slurm job that waits.
        conditions: What it waits for in this pack, as (kind, number).
        is_any: One of all its conditions is enough, also of those outside this pack.
    """

    job_id: str
    conditions: tuple[tuple[str, int], ...]
    is_any: bool = False


def write_dependent(pack: Path, dependent: Dependent) -> None:
    """Tell a pack's runner of a job that waits for its members.

    Raises:
        StateError: It cannot be written.
    """
    make_directory(pack / "dependents")
    write_json(
        pack / "dependents" / f"{dependent.job_id}.json",
        {
            "job_id": dependent.job_id,
            "conditions": dependent.conditions,
            "is_any": dependent.is_any,
        },
    )


def list_dependents(pack: Path) -> list[Dependent]:
    """The jobs that wait for members of a pack; damaged files are passed over."""
    try:
        names = sorted(os.listdir(pack / "dependents"))
    except OSError:
        return []
    found = []
    for name in names:
        if not name.endswith(".json"):
            continue
        with contextlib.suppress(StateError, KeyError, TypeError, ValueError):
            value = read_json(pack / "dependents" / name)
            if value is not None:
                conditions = tuple((str(kind), int(number)) for kind, number in value["conditions"])
                found.append(Dependent(str(value["job_id"]), conditions, bool(value["is_any"])))
    return found


def forget_dependent(pack: Path, job_id: str) -> None:
    """Note that a job does not wait any more."""
    with contextlib.suppress(OSError):
        os.unlink(pack / "dependents" / f"{job_id}.json")
