"""Writing usage profiles: what a run adds, what is imported, what is forgotten.

Each file is written under one lock and moved into place, so that packs that end at the same
moment lose nothing. A profile of another schema version is left alone and named.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.usage_profile import (
    Completion,
    Feedback,
    HeldUp,
    MeasuredBy,
    Observation,
    ProfileRecord,
    learn,
)
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    locked_folder,
    write_all,
    write_atomic,
)
from slurm_colloc.store.profiles import (
    FOLDER,
    ProfileNames,
    add_to_index,
    build_profile_mapping,
    keep_in_index,
    profile_path,
    read_profile_file,
)

_Told = TypeVar("_Told")
_Known = TypeVar("_Known", Observation, Completion, HeldUp)


def add_observations(root: Path, observations: Iterable[Observation]) -> list[str]:
    """Merge runs into their usage profiles.

    A file that cannot be read, or is of another version, is not overwritten.

    Returns:
        What could not be merged, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    return _update(
        root,
        observations,
        lambda one, record: record.add(one) if record else ProfileRecord.start(one),
    )


def add_completions(root: Path, completions: Iterable[Completion]) -> list[str]:
    """Write down how many steps runs made that came to their end.

    Only in usage profiles that there are: without a rate alone the steps say nothing.

    Returns:
        What could not be written down, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    return _update(root, completions, lambda one, record: record and record.complete(one))


def add_held_up(root: Path, told: Iterable[HeldUp]) -> list[str]:
    """Write down what holds jobs up, in usage profiles that there are.

    Returns:
        What could not be written down, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    return _update(root, told, lambda one, record: record and record.hold_up(one))


def add_feedback(root: Path, feedback: Feedback) -> list[str]:
    """Write down what a pack showed of its jobs beyond what was predicted.

    Only in usage profiles that there are, and once for a pack.

    Returns:
        What could not be written down, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    problems: list[str] = []
    with locked_folder(root / FOLDER):
        names = {name: None for member in feedback.members for name in member.profiles}
        found = ((name, profile_path(root, name, feedback.gpu_model)) for name in names)
        records = {
            signature: record
            for signature, _, record in _read_each(found, problems)
            if record is not None
        }
        for signature, record in learn(feedback, records).items():
            _write(profile_path(root, signature, feedback.gpu_model), record)
    return problems


def _update(
    root: Path,
    told: Iterable[_Known],
    change: Callable[[_Known, ProfileRecord | None], ProfileRecord | None],
) -> list[str]:
    """Change the usage profiles that something is told of; what could not be written down.

    Args:
        root: The state directory.
        told: What is told.
        change: The new profile from the old one; None where there is none and none is to be.
    """
    problems: list[str] = []
    with locked_folder(root / FOLDER):
        found = ((one, profile_path(root, one.signature, one.gpu_model)) for one in told)
        for one, path, record in _read_each(found, problems):
            merged = change(one, record)
            if merged is not None and merged is not record:
                _write(path, merged)
                if record is None:
                    add_to_index(root, {path.name: merged.family})
    return problems


def _read_each(
    wanted: Iterable[tuple[_Told, Path]], problems: list[str]
) -> Iterator[tuple[_Told, Path, ProfileRecord | None]]:
    """Each usage profile that can be read, or None for one that is not there.

    Args:
        wanted: What it is about, and its file. It is read as it comes, after what was written for
            the one before.
        problems: Takes a sentence for each of the others.
    """
    for told, path in wanted:
        try:
            record = read_profile_file(path)
        except (StateError, UsageProblem) as problem:
            problems.append(f"{problem}; it was left as it is")
            continue
        yield told, path, record


def _write(path: Path, record: ProfileRecord) -> None:
    write_atomic(path, _build_text(record))


def _build_text(record: ProfileRecord) -> bytes:
    return json.dumps(build_profile_mapping(record), separators=(",", ":")).encode() + b"\n"


def import_profiles(root: Path, records: Iterable[ProfileRecord]) -> list[ProfileRecord]:
    """Take over usage profiles, all or none; those made of no more runs than those here are not.

    One that was measured by pausing never takes the place of one of runs alone.

    Returns:
        The profiles that were written.

    Raises:
        StateError: The folder cannot be locked or written.
        UsageProblem: A file that would be replaced cannot be read, or is of another version.
    """
    chosen: dict[Path, ProfileRecord] = {}
    fresh: dict[str, str] = {}
    with locked_folder(root / FOLDER):
        for record in records:
            path = profile_path(root, record.signature, record.gpu_model)
            known = chosen.get(path) or read_profile_file(path)
            if known is None:
                fresh[path.name] = record.family
            if known is None or _rank(known) < _rank(record):
                chosen[path] = record
        write_all({path: _build_text(record) for path, record in chosen.items()})
        add_to_index(root, fresh)
    return list(chosen.values())


def _rank(record: ProfileRecord) -> tuple[bool, int]:
    return record.measured_by is MeasuredBy.ALONE, record.samples


def forget_profiles(root: Path, records: Iterable[ProfileRecord]) -> int:
    """Remove usage profiles.

    Returns:
        How many there were: another csub may have removed some meanwhile.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    removed = 0
    with locked_folder(root / FOLDER):
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
