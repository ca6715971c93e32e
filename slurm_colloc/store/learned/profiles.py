"""`profiles/SIGNATURE.GPUMODEL.json`: the usage profiles of one user, read.

They are written by store.learned.profile_updates alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.usage.profile import ProfileRecord, choose_relatives
from slurm_colloc.store.atomic_files import read_bytes
from slurm_colloc.store.foreign_json import parse_foreign
from slurm_colloc.store.learned.faults import compute_signature
from slurm_colloc.store.learned.profile_format import parse_profile
from slurm_colloc.store.learned.profile_index import FOLDER, ProfileNames

_EDGE = r"=,:;/\[\](){}\s\"'"
_NUMBER = re.compile(
    rf"(?<![^{_EDGE}])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![^{_EDGE}])", re.ASCII
)
"""A word that is a number as a whole: `--lr=1e-4`, `8`, not the digits in resnet18 or llama-7b."""


def slug_gpu_model(name: str) -> str:
    """`nvidia-h200` of `NVIDIA H200`: what stands in file names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def compute_family(script: bytes, job: Job) -> str:
    """The signature of a job's script, whatever its arguments and its array task."""
    return compute_signature(script, dataclasses.replace(job, arguments=(), array_task=None))


def compute_kind(script: bytes, job: Job) -> str:
    """The signature without numbers among the arguments, and without the array task.

    Jobs that differ in nothing else count as alike while a pack is measured, and as the closest
    relatives. Digits that are part of a word stay: they often name another model.
    """
    words = (_NUMBER.sub("", argument) for argument in job.arguments)
    kept = tuple(word for word in words if word)
    return compute_signature(script, dataclasses.replace(job, arguments=kept, array_task=None))


def profile_path(root: Path, signature: str, gpu_model: str) -> Path:
    """Where a usage profile lies."""
    return root / FOLDER / f"{signature}.{slug_gpu_model(gpu_model)}.json"


def read_profile(root: Path, signature: str, gpu_model: str) -> ProfileRecord | None:
    """Find the usage profile of a job on a GPU model.

    Returns:
        It; None where there is none that this csub can read.
    """
    with contextlib.suppress(StateError, UsageProblem):
        return read_profile_file(profile_path(root, signature, gpu_model))
    return None


def read_profile_file(path: Path) -> ProfileRecord | None:
    """Read one file; None where there is none.

    Raises:
        StateError: It cannot be read.
        UsageProblem: It is damaged, or of another version, job or GPU.
    """
    try:
        data = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror or error}") from error
    record = parse_profile(parse_foreign(data, str(path)), str(path))
    named = profile_path(path.parent.parent, record.signature, record.gpu_model).name
    if named != path.name:
        # It would tell of one job what another has done.
        raise UsageProblem(f"{path}: its contents are of another job or GPU, that of {named}")
    return record


def tells_of_family(root: Path, script: bytes, job: Job, names: ProfileNames | None = None) -> bool:
    """Whether the usage profiles of a job's relatives tell how fast it is, on any GPU model.

    Where their rates alone differ it has to be measured itself.

    Args:
        root: The state directory.
        script: The job's script.
        job: The job.
        names: The usage profiles that there are, where they are known already.
    """
    by_model: dict[str, list[ProfileRecord]] = {}
    for record in read_family(root, compute_family(script, job), names)[0]:
        by_model.setdefault(record.gpu_model, []).append(record)
    kind = compute_kind(script, job)
    return any(choose_relatives(records, kind) for records in by_model.values())


def read_family(
    root: Path, family: str, names: ProfileNames | None = None
) -> tuple[list[ProfileRecord], list[str]]:
    """The usage profiles of a family, and what is wrong with those that cannot be read."""
    names = names or ProfileNames(root)
    problems: list[str] = []

    def find_family(name: str) -> str | None:
        records, told = read_named(root, [name])
        problems.extend(told)
        return records[0].family if records else None

    records, told = read_named(root, names.find_family(family, find_family))
    problems += [*_tell_unread(names), *told]
    return [record for record in records if record.family == family], problems


def read_named(root: Path, names: Iterable[str]) -> tuple[list[ProfileRecord], list[str]]:
    """Usage profiles by the names of their files, and what is wrong with those of them.

    One that has gone meanwhile is in neither.
    """
    found, problems = [], []
    for name in names:
        try:
            record = read_profile_file(root / FOLDER / name)
        except (StateError, UsageProblem) as problem:
            problems.append(str(problem))
            continue
        if record is not None:
            found.append(record)
    return found, problems


def list_profiles(
    root: Path, names: ProfileNames | None = None
) -> tuple[list[ProfileRecord], list[str]]:
    """All usage profiles, newest first, and what is wrong with those that cannot be read."""
    names = names or ProfileNames(root)
    found, problems = read_named(root, sorted(names.names))
    found.sort(key=lambda record: (-record.updated_at, record.signature, record.gpu_model))
    return found, [*_tell_unread(names), *problems]


def _tell_unread(names: ProfileNames) -> list[str]:
    return [] if names.problem is None else [names.problem.message]
