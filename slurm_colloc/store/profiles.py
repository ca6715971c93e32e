"""`profiles/SIGNATURE.GPUMODEL.json`: the usage profiles of one user.

Each file is written under one lock and moved into place, so that packs that end at the same
moment lose nothing. A profile of another schema version is left alone and named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.profile import (
    MEANS,
    PEAKS,
    RATES,
    Observation,
    ProfileRecord,
    RunningStatistics,
    rates_agree,
)
from slurm_colloc.store.faults import compute_signature
from slurm_colloc.store.files import make_directory, read_bytes, write_atomic
from slurm_colloc.store.locks import hold_lock

PROFILE_SCHEMA = 1

_FOLDER = "profiles"
_LOCK_WAIT_S = 10.0
_SIGNATURE = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][-+]?\d+)?")
_FILE_NAME = re.compile(r"([0-9a-f]{32})\.([a-z0-9-]+)\.json")


def slug_gpu_model(name: str) -> str:
    """`nvidia-h200` of `NVIDIA H200`: what stands in file names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def compute_family(script: bytes, job: Job) -> str:
    """The signature with every number among the arguments masked, and without the array task."""
    masked = tuple(_NUMBER.sub("#", argument) for argument in job.arguments)
    return compute_signature(script, dataclasses.replace(job, arguments=masked, array_task=None))


def profile_path(root: Path, signature: str, gpu_model: str) -> Path:
    """Where a usage profile lies."""
    return root / _FOLDER / f"{signature}.{slug_gpu_model(gpu_model)}.json"


def build_profile_mapping(record: ProfileRecord) -> dict[str, Any]:
    """The JSON form of a usage profile."""
    value = {"schema": PROFILE_SCHEMA, **dataclasses.asdict(record)}
    return {key: list(item) if isinstance(item, tuple) else item for key, item in value.items()}


def parse_profile(value: object, where: str) -> ProfileRecord:
    """Read the JSON form of a usage profile.

    Args:
        value: The value.
        where: Where it stands, for the message.

    Raises:
        UsageProblem: It is no usage profile, or one of another schema version.
    """
    if not isinstance(value, dict):
        raise UsageProblem(f"{where}: a usage profile is a JSON object")
    if value.get("schema") != PROFILE_SCHEMA:
        raise UsageProblem(
            f"{where}: schema: it is of version {_show(value.get('schema'))}, "
            f"this csub reads {PROFILE_SCHEMA}"
        )
    known = {field.name for field in dataclasses.fields(ProfileRecord)}
    fields: dict[str, Any] = {}
    for key in ("signature", "family", "name", "gpu_model"):
        fields[key] = _take(value, key, where, str, "a text")
    for key in ("signature", "family"):
        if not _SIGNATURE.fullmatch(fields[key]):
            raise UsageProblem(f"{where}: {key}: {_show(fields[key])} are not 32 hex digits")
    fields["samples"] = _take(value, "samples", where, int, "a whole number")
    if fields["samples"] < 1:
        raise UsageProblem(f"{where}: samples: must be at least 1")
    fields["updated_at"] = _take_number(value, "updated_at", where)
    if fields["updated_at"] is None:
        raise UsageProblem(f"{where}: updated_at: must be a number")
    for key in ("gpu_uuids", "seen"):
        texts = value.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UsageProblem(f"{where}: {key}: must be a list of texts")
        fields[key] = tuple(texts)
    for key in (*MEANS, *PEAKS):
        fields[key] = _take_number(value, key, where)
    for key in RATES:
        fields[key] = _take_statistics(value.get(key), f"{where}: {key}")
    return ProfileRecord(**{key: item for key, item in fields.items() if key in known})


def _take(value: Mapping[str, Any], key: str, where: str, kind: type, words: str) -> Any:
    item = value.get(key)
    if not isinstance(item, kind) or isinstance(item, bool):
        raise UsageProblem(f"{where}: {key}: must be {words}, is {_show(item)}")
    return item


def _take_number(value: Mapping[str, Any], key: str, where: str) -> float | None:
    item = value.get(key)
    if item is None:
        return None
    if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
        raise UsageProblem(f"{where}: {key}: must be a number or null, is {_show(item)}")
    if item < 0:
        raise UsageProblem(f"{where}: {key}: cannot be less than 0, is {_show(item)}")
    return float(item)


def _take_statistics(value: object, where: str) -> RunningStatistics | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UsageProblem(f"{where}: must be null or have mean, sd, n and last")
    n = _take(value, "n", where, int, "a whole number")
    mean, last = _take_number(value, "mean", where), _take_number(value, "last", where)
    if n < 1 or mean is None or last is None:
        raise UsageProblem(f"{where}: must be null or have mean, sd, n and last")
    return RunningStatistics(mean, _take_number(value, "sd", where), n, last)


def _show(value: object) -> str:
    """A value of a foreign file in a message: short, and without escape sequences."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


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
        value = json.loads(read_bytes(path).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{path}: it is not JSON ({error})") from error
    return parse_profile(value, str(path))


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
    return own is not None or compute_family(script, job) in list_families(root, gpu_model)


def list_families(root: Path, gpu_model: str | None = None) -> set[str]:
    """The families (see `compute_family`) whose usage profiles tell something of a relative.

    Those whose rates alone differ do not: another relative has to be measured itself.

    Args:
        root: The state directory.
        gpu_model: On this GPU model; None for any.
    """
    rates: dict[tuple[str, str], list[float]] = {}
    for record in list_profiles(root)[0]:
        if gpu_model in (None, record.gpu_model):
            known = rates.setdefault((record.family, record.gpu_model), [])
            known += [record.steps_per_s.mean] if record.steps_per_s is not None else []
    return {family for (family, _), known in rates.items() if rates_agree(known)}


def list_profiles(root: Path) -> tuple[list[ProfileRecord], list[str]]:
    """All usage profiles, newest first, and what is wrong with those that cannot be read."""
    found, problems = [], []
    try:
        names = sorted(os.listdir(root / _FOLDER))
    except OSError:
        names = []
    for name in names:
        if _FILE_NAME.fullmatch(name):
            try:
                record = _read(root / _FOLDER / name)
            except (StateError, UsageProblem) as problem:
                problems.append(str(problem))
                continue
            if record is not None:
                found.append(record)
    found.sort(key=lambda record: (-record.updated_at, record.signature, record.gpu_model))
    return found, problems


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    make_directory(root / _FOLDER)
    with hold_lock(root / _FOLDER / "lock", _LOCK_WAIT_S) as lock:
        if not lock:
            raise StateError(
                f"{root / _FOLDER}/lock is kept by another csub, or the file system has no locks",
                hint="try again",
            )
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
            except UsageProblem as problem:
                problems.append(f"{problem}; it was left as it is")
                continue
            merged = ProfileRecord.start(observation) if record is None else record.add(observation)
            if merged is not record:
                _write(path, merged)
    return problems


def _write(path: Path, record: ProfileRecord) -> None:
    text = json.dumps(build_profile_mapping(record), separators=(",", ":"))
    write_atomic(path, text.encode() + b"\n")


def import_profiles(root: Path, records: Iterable[ProfileRecord]) -> list[ProfileRecord]:
    """Take over usage profiles; those made of no more runs than the ones here are not.

    Returns:
        The profiles that were written.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    written = []
    with _locked(root):
        for record in records:
            here = read_profile(root, record.signature, record.gpu_model)
            if here is None or here.samples < record.samples:
                _write(profile_path(root, record.signature, record.gpu_model), record)
                written.append(record)
    return written


def forget_profiles(root: Path, records: Iterable[ProfileRecord]) -> None:
    """Remove usage profiles.

    Raises:
        StateError: The folder cannot be locked.
    """
    with _locked(root):
        for record in records:
            path = profile_path(root, record.signature, record.gpu_model)
            path.unlink(missing_ok=True)
