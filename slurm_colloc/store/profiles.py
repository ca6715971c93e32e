"""`profiles/SIGNATURE.GPUMODEL.json`: the usage profiles of one user, read.

Also: the JSON form of a usage profile; `profiles/families`: which usage profiles are of one family,
without opening all of them; which scripts have ended their neighbours by a fault on the GPU, and
must first prove themselves.

They are written by store.profile_updates alone.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import (
    asdict,
    dataclass,
    fields,
    hash_sha256,
    late_pattern,
    replace,
)
from slurm_colloc.model.power_curve import PowerPoint
from slurm_colloc.model.records import build_record
from slurm_colloc.model.usage_profile import (
    LARGEST,
    ProfileRecord,
    RunningStatistics,
    ShrunkenMean,
    choose_relatives,
)
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    hold_lock,
    make_directory,
    read_bytes,
    read_record,
    write_atomic,
    write_json,
)
from slurm_colloc.store.foreign_files import parse_foreign, show_foreign
from slurm_colloc.store.indexes import append_lines

# ---- The JSON form of a usage profile ------------------------------------------------------------

PROFILE_SCHEMA = 1

_SIGNATURE = late_pattern(r"[0-9a-f]{32}")

_NUMBER_MOST = 1e15
_COUNT_MOST = 10**9
_TEXT_MOST = 1000
_TEXTS_MOST = 10_000
_MODEL_MOST = 100
"""It stands in a file's name."""


def build_profile_mapping(record: ProfileRecord) -> dict[str, Any]:
    """The JSON form of a usage profile."""
    value = {"schema": PROFILE_SCHEMA, **asdict(record)}
    # Slurm sets no such bound to a job's name, and what is written must be read.
    value["name"] = record.name[:_TEXT_MOST]
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
    if value.get("schema") != PROFILE_SCHEMA or value.get("schema") is True:
        raise UsageProblem(
            f"{where}: schema: it is of version {show_foreign(value.get('schema'))}, "
            f"this csub reads {PROFILE_SCHEMA}"
        )
    try:
        record = build_record(ProfileRecord, value)
        _check_ranges(record)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageProblem(f"{where}: {error}") from error
    return record


def _check_ranges(record: ProfileRecord) -> None:
    """See that a profile is one that csub could have written.

    Raises:
        ValueError: It is not; the text names the field.
    """
    for name in ("signature", "family"):
        if not _SIGNATURE.fullmatch(getattr(record, name)):
            raise ValueError(f"{name}: {show_foreign(getattr(record, name))} are not 32 hex digits")
    if len(record.gpu_model) > _MODEL_MOST:
        raise ValueError(f"gpu_model: is longer than {_MODEL_MOST} characters")
    if record.gpu_memory_total_mb is not None and record.gpu_memory_total_mb < 1:
        shown = show_foreign(record.gpu_memory_total_mb)
        raise ValueError(f"gpu_memory_total_mb: must be at least 1 MB, is {shown}")
    _check_count("samples", record.samples)
    _check_curve(record.power_curve)
    for field in fields(record):
        if field.name != "power_curve":
            _check_item(field.name, getattr(record, field.name))


def _check_item(name: str, item: object) -> None:
    if isinstance(item, str | tuple):
        _check_texts(name, item)
    elif isinstance(item, RunningStatistics):
        _check_count(name, item.n)
        for number in (item.mean, item.sd or 0.0, item.last):
            _check_number(name, number)
    elif isinstance(item, ShrunkenMean):
        _check_count(name, item.n)
        # A sum of so many may be off by a rounding.
        if abs(item.total) > item.n * LARGEST * (1 + 1e-9):
            raise ValueError(f"{name}: total: must be between -n and n")
    elif isinstance(item, int | float):
        _check_number(name, item)


def _check_count(name: str, count: int) -> None:
    if not 1 <= count <= _COUNT_MOST:
        raise ValueError(f"{name}: must be from 1 to {_COUNT_MOST}")


def _check_curve(curve: Sequence[PowerPoint]) -> None:
    for point in curve:
        _check_count("power_curve", point.runs)
        for number in (point.limit_w, point.steps_per_s, point.power_w):
            _check_number("power_curve", number)
            if number == 0:
                raise ValueError("power_curve: its numbers cannot be 0")


def _check_texts(name: str, item: str | tuple[str, ...]) -> None:
    texts = (item,) if isinstance(item, str) else item
    if len(texts) > _TEXTS_MOST or any(len(text) > _TEXT_MOST for text in texts):
        raise ValueError(f"{name}: must be at most {_TEXTS_MOST} texts of {_TEXT_MOST} characters")


def _check_number(name: str, number: float) -> None:
    if number < 0:
        raise ValueError(f"{name}: cannot be less than 0, is {number:g}")
    if number > _NUMBER_MOST:
        raise ValueError(f"{name}: cannot be more than {_NUMBER_MOST:g}, is {number:g}")


# ---- `profiles/families`: which usage profiles are of one family, without opening all of them ----
#
# A line for each profile, `FAMILY SIGNATURE.GPUMODEL.json`, only ever appended to. It may lack
# profiles that were copied there and name some that have gone: the folder says which there are,
# and those that it lacks are read once and written into it.

FOLDER = "profiles"
FILE_NAME = late_pattern(r"([0-9a-f]{32})\.([a-z0-9-]+)\.json")

_INDEX = "families"
_LINE_BYTES = 33
"""Of a line before the name."""


class ProfileNames:
    """The usage profiles of a user, by the names of their files, each thing looked at once.

    Args:
        root: The state directory.

    Attributes:
        problem: Why the folder cannot be read, once it was looked at; None where nothing is wrong.
    """

    def __init__(self, root: Path) -> None:
        self.problem: StateError | None = None
        self._root = root
        self._is_complete = False

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all files; none where there is no folder, or it cannot be read."""
        folder = self._root / FOLDER
        names: list[str] = []
        try:
            with explain_os_errors("read", folder):
                names = os.listdir(folder)
        except StateError as problem:
            # A folder that cannot be read is not an empty one.
            if not isinstance(problem.__cause__, FileNotFoundError):
                self.problem = problem
        # What else lies there, with a name that is no text perhaps, is not csub's.
        return frozenset(filter(FILE_NAME.fullmatch, names))

    @cached_property
    def _index(self) -> bytes:
        return _read_index(self._root)

    @cached_property
    def _by_signature(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for name in sorted(self.names):
            found.setdefault(name[:32], []).append(name)
        return found

    def find_signature(self, signature: str) -> Sequence[str]:
        """The profiles of a signature, on every GPU model."""
        return self._by_signature.get(signature, ())

    def find_family(self, family: str, read_family: Callable[[str], str | None]) -> list[str]:
        """The profiles of a family.

        Args:
            family: The family.
            read_family: Opens a profile by its file's name and tells its family; asked for those
                that the index lacks.
        """
        if not self._is_complete:
            self._complete(read_family)
        return sorted(self.names.intersection(_find_lines(self._index, f"{family} ")))

    def _complete(self, read_family: Callable[[str], str | None]) -> None:
        """Read what the index lacks, and write it into the index."""
        self._is_complete = True
        missing = self.names - _list_indexed(self._index)
        fresh = {
            name: found for name in sorted(missing) if (found := read_family(name)) is not None
        }
        if fresh:
            whole = self._index[: self._index.rfind(b"\n") + 1]
            self._index = whole + _build_lines(fresh)
            _append(self._root, fresh, wait_s=0.0)


def _read_index(root: Path) -> bytes:
    try:
        return read_bytes(root / FOLDER / _INDEX)
    except OSError:
        return b""


def _find_lines(text: bytes, words: str) -> list[str]:
    """The names on the lines with some words; once each."""
    mark = words.encode()
    found: dict[str, None] = {}
    at = text.find(mark)
    while at >= 0:
        begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        # The last line may be half there while another process writes it.
        if end >= 0:
            found[text[begin + _LINE_BYTES : end].decode("ascii", "replace")] = None
        at = text.find(mark, at + 1)
    return list(found)


def _list_indexed(text: bytes) -> frozenset[str]:
    return frozenset(
        line[_LINE_BYTES:] for line in text.decode("ascii", "replace").split("\n")[:-1]
    )


def add_to_index(root: Path, families: Mapping[str, str]) -> None:
    """Note profiles that have just come; the caller holds the folder's lock.

    What cannot be written now is found when it is looked for.

    Args:
        root: The state directory.
        families: The family of each, by the name of its file.
    """
    with contextlib.suppress(OSError):
        _write_lines(root, families)


def keep_in_index(root: Path, names: Iterable[str]) -> None:
    """Leave only these profiles in the index; the caller holds the folder's lock.

    Raises:
        StateError: It cannot be written.
    """
    kept = set(names)
    lines = _read_index(root).decode("ascii", "replace").split("\n")[:-1]
    text = "".join(f"{line}\n" for line in lines if line[_LINE_BYTES:] in kept)
    write_atomic(root / FOLDER / _INDEX, text.encode("ascii", "replace"))


def _append(root: Path, families: Mapping[str, str], *, wait_s: float) -> None:
    """Add lines, if no other process writes just now."""
    # Somebody else's index stays as it is.
    with (
        contextlib.suppress(OSError, StateError),
        hold_lock(root / FOLDER / "lock", wait_s) as lock,
    ):
        if lock:
            _write_lines(root, families)


def _build_lines(families: Mapping[str, str]) -> bytes:
    return "".join(f"{family} {name}\n" for name, family in families.items()).encode()


def _write_lines(root: Path, families: Mapping[str, str]) -> None:
    if families:
        append_lines(root / FOLDER / _INDEX, _build_lines(families))


# ----
# Which scripts have ended their neighbours by a fault on the GPU, and must first prove
# themselves.
#
# `faults/<signature>.json` in the state directory. A job with such a signature runs alone until it
# has succeeded alone.

_FAULTS_FOLDER = "faults"


@dataclass(frozen=True)
class FaultRecord:
    """A fault that has hit a job's neighbours (faults/SIGNATURE.json).

    Attributes:
        member: Which member it was, `4711/3`.
        evidence: What that rests on.
        ended_daemon: Its script ends the MPS daemon of its neighbours, and it does so also where it
            succeeds.
    """

    member: str = ""
    evidence: tuple[str, ...] = ()
    ended_daemon: bool = False


def compute_signature(script: bytes, job: Job) -> str:
    """The exact signature of a job: its script's content, its arguments and its array task.

    Of a job of several GPUs their number counts, too: on one it would take something else.
    """
    task = "" if job.array_task is None else str(job.array_task.task_id)
    told = b""
    # With their lengths, so that no part can be taken for another.
    gpus = [f"gpus={job.gpus}".encode()] if job.gpus > 1 else []
    for part in (task.encode(), script, *map(os.fsencode, job.arguments), *gpus):
        told += f"{len(part)}:".encode() + part
    return hash_sha256(told)[:32]


def note_culprit(root: Path, signature: str, record: FaultRecord) -> None:
    """Write down that a job has hit its neighbours.

    Args:
        root: The state directory.
        signature: The job's.
        record: How.

    Raises:
        StateError: It cannot be written.
    """
    make_directory(root / _FAULTS_FOLDER)
    write_json(f"{root}/{_FAULTS_FOLDER}/{signature}.json", asdict(record))


def forget_culprit(root: Path, signature: str) -> bool:
    """A job has succeeded alone; True where that ends what had been written down."""
    if (record := find_culprit(root, signature)) is not None and record.ended_daemon:
        return False
    with contextlib.suppress(OSError):
        os.unlink(root / _FAULTS_FOLDER / f"{signature}.json")
        return True
    return False


def find_culprit(root: Path, signature: str) -> FaultRecord | None:
    """What is on record for a signature; None where nothing is."""
    with contextlib.suppress(StateError):
        return read_record(f"{root}/{_FAULTS_FOLDER}/{signature}.json", FaultRecord)
    return None


def has_culprits(root: Path) -> bool:
    """Any fault is on record; asked before scripts are looked at."""
    try:
        with os.scandir(root / _FAULTS_FOLDER) as entries:
            return any(entry.name.endswith(".json") for entry in entries)
    except OSError:
        return False


# ---- `profiles/SIGNATURE.GPUMODEL.json`: the usage profiles of one user, read --------------------

_EDGE = r"=,:;/\[\](){}\s\"'"
_NUMBER = late_pattern(
    rf"(?a)(?<![^{_EDGE}])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![^{_EDGE}])"
)
"""A word that is a number as a whole: `--lr=1e-4`, `8`, not the digits in resnet18 or llama-7b."""


def slug_gpu_model(name: str) -> str:
    """`nvidia-h200` of `NVIDIA H200`: what stands in file names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def compute_family(script: bytes, job: Job) -> str:
    """The signature of a job's script, whatever its arguments and its array task."""
    return compute_signature(script, replace(job, arguments=(), array_task=None))


def compute_kind(script: bytes, job: Job) -> str:
    """The signature without numbers among the arguments, and without the array task.

    Jobs that differ in nothing else count as alike while a pack is measured, and as the closest
    relatives. Digits that are part of a word stay: they often name another model.
    """
    words = (_NUMBER.sub("", argument) for argument in job.arguments)
    kept = tuple(word for word in words if word)
    return compute_signature(script, replace(job, arguments=kept, array_task=None))


def profile_path(root: Path, signature: str, gpu_model: str) -> Path:
    """Where a usage profile lies."""
    return root / FOLDER / f"{signature}.{slug_gpu_model(gpu_model)}.json"


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
