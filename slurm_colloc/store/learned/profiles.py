"""`profiles/SIGNATURE.GPUMODEL.json`: the usage profiles of one user.

Each file is written under one lock and moved into place, so that packs that end at the same
moment lose nothing. A profile of another schema version is left alone and named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.profile import Completion, Observation, ProfileRecord, rates_agree
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    hold_lock,
    make_directory,
    read_bytes,
    write_all,
    write_atomic,
)
from slurm_colloc.store.foreign_json import parse_foreign
from slurm_colloc.store.learned.faults import compute_signature
from slurm_colloc.store.learned.profile_format import build_profile_mapping, parse_profile
from slurm_colloc.store.learned.profile_index import (
    FOLDER,
    ProfileNames,
    add_to_index,
    keep_in_index,
)

if TYPE_CHECKING:
    from slurm_colloc.model.prediction_feedback import Feedback

_LOCK_WAIT_S = 10.0
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][-+]?\d+)?")


def slug_gpu_model(name: str) -> str:
    """`nvidia-h200` of `NVIDIA H200`: what stands in file names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def compute_family(script: bytes, job: Job) -> str:
    """The signature with every number among the arguments masked, and without the array task."""
    masked = tuple(_NUMBER.sub("#", argument) for argument in job.arguments)
    return compute_signature(script, dataclasses.replace(job, arguments=masked, array_task=None))


def profile_path(root: Path, signature: str, gpu_model: str) -> Path:
    """Where a usage profile lies."""
    return root / FOLDER / f"{signature}.{slug_gpu_model(gpu_model)}.json"


def read_profile(root: Path, signature: str, gpu_model: str) -> ProfileRecord | None:
    """Find the usage profile of a job on a GPU model.

    Returns:
        It; None where there is none that this csub can read.
    """
    with contextlib.suppress(StateError, UsageProblem):
        return _read(profile_path(root, signature, gpu_model))
    return None


def _read(path: Path) -> ProfileRecord | None:
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


def is_known(root: Path, script: bytes, job: Job, gpu_model: str) -> bool:
    """Whether there is a usage profile of a job, or of one of its family.

    One without a rate counts, too: who reported no step alone would report none again.

    Args:
        root: The state directory.
        script: The job's script.
        job: The job.
        gpu_model: The GPU's model.
    """
    own = read_profile(root, compute_signature(script, job), gpu_model)
    return own is not None or tells_of_family(root, compute_family(script, job), gpu_model)


def tells_of_family(
    root: Path, family: str, gpu_model: str | None = None, names: ProfileNames | None = None
) -> bool:
    """Whether the usage profiles of a family (see `compute_family`) tell something of a relative.

    Those whose rates alone differ do not: another relative has to be measured itself.

    Args:
        root: The state directory.
        family: The family.
        gpu_model: On this GPU model; None for any.
        names: The usage profiles that there are, where they are known already.
    """
    rates: dict[str, list[float]] = {}
    for record in read_family(root, family, names)[0]:
        if gpu_model in (None, record.gpu_model):
            known = rates.setdefault(record.gpu_model, [])
            known += [record.steps_per_s.mean] if record.steps_per_s is not None else []
    return any(rates_agree(known) for known in rates.values())


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
            record = _read(root / FOLDER / name)
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


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    path = root / FOLDER / "lock"
    make_directory(root / FOLDER)
    with hold_lock(path, _LOCK_WAIT_S) as lock:
        if lock.problem is not None:
            with explain_os_errors("lock", path):
                raise lock.problem
        if not lock:
            raise StateError(f"{path} is kept by another csub", hint="try again")
        yield


def add_observations(root: Path, observations: Iterable[Observation]) -> list[str]:
    """Merge runs into their usage profiles.

    A file that cannot be read, or is of another version, is not overwritten.

    Returns:
        What could not be merged, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    problems = []
    with _locked(root):
        for observation in observations:
            path = profile_path(root, observation.signature, observation.gpu_model)
            try:
                record = _read(path)
            except (StateError, UsageProblem) as problem:
                problems.append(f"{problem}; it was left as it is")
                continue
            merged = ProfileRecord.start(observation) if record is None else record.add(observation)
            if merged is not record:
                _write(path, merged)
            if record is None:
                add_to_index(root, {path.name: merged.family})
    return problems


def add_completions(root: Path, completions: Iterable[Completion]) -> list[str]:
    """Write down how many steps runs made that came to their end.

    Only in usage profiles that there are: without a rate alone the steps say nothing.

    Returns:
        What could not be written down, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    problems = []
    with _locked(root):
        for completion in completions:
            path = profile_path(root, completion.signature, completion.gpu_model)
            try:
                record = _read(path)
            except (StateError, UsageProblem) as problem:
                problems.append(f"{problem}; it was left as it is")
                continue
            if record is not None and (merged := record.complete(completion)) is not record:
                _write(path, merged)
    return problems


def add_feedback(root: Path, feedback: Feedback) -> list[str]:
    """Write down what a pack showed of its jobs beyond what was predicted.

    Only in usage profiles that there are, and once for a pack.

    Returns:
        What could not be written down, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    # Only the end of a pack needs it, not its planning.
    from slurm_colloc.model.prediction_feedback import learn

    problems = []
    records: dict[str, ProfileRecord] = {}
    with _locked(root):
        for signature in {name: None for member in feedback.members for name in member.profiles}:
            try:
                record = _read(profile_path(root, signature, feedback.gpu_model))
            except (StateError, UsageProblem) as problem:
                problems.append(f"{problem}; it was left as it is")
                continue
            if record is not None:
                records[signature] = record
        for signature, record in learn(feedback, records).items():
            _write(profile_path(root, signature, feedback.gpu_model), record)
    return problems


def _write(path: Path, record: ProfileRecord) -> None:
    write_atomic(path, _build_text(record))


def _build_text(record: ProfileRecord) -> bytes:
    return json.dumps(build_profile_mapping(record), separators=(",", ":")).encode() + b"\n"


def import_profiles(root: Path, records: Iterable[ProfileRecord]) -> list[ProfileRecord]:
    """Take over usage profiles, all or none; those made of no more runs than those here are not.

    Returns:
        The profiles that were written.

    Raises:
        StateError: The folder cannot be locked or written.
        UsageProblem: A file that would be replaced cannot be read, or is of another version.
    """
    chosen: dict[Path, ProfileRecord] = {}
    fresh: dict[str, str] = {}
    with _locked(root):
        for record in records:
            path = profile_path(root, record.signature, record.gpu_model)
            known = chosen.get(path) or _read(path)
            if known is None:
                fresh[path.name] = record.family
            if known is None or known.samples < record.samples:
                chosen[path] = record
        write_all({path: _build_text(record) for path, record in chosen.items()})
        add_to_index(root, fresh)
    return list(chosen.values())


def forget_profiles(root: Path, records: Iterable[ProfileRecord]) -> int:
    """Remove usage profiles.

    Returns:
        How many there were: somebody else may have removed some of them meanwhile.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    removed = 0
    with _locked(root):
        for record in records:
            path = profile_path(root, record.signature, record.gpu_model)
            with explain_os_errors("remove", path), contextlib.suppress(FileNotFoundError):
                path.unlink()
                removed += 1
        names = ProfileNames(root)
        kept = names.names
        if names.problem is None:
            # It may name some that have gone.
            with contextlib.suppress(StateError):
                keep_in_index(root, kept)
    return removed
