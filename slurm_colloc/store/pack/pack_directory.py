"""One pack's directory: writing it whole, and reading its files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    is_there,
    read_bytes,
    write_atomic,
    write_json,
)
from slurm_colloc.store.file_locks import is_locked
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.pack_records import (
    MemberSpec,
    PackRecord,
    build_pack_mapping,
    build_spec_mapping,
)
from slurm_colloc.store.record_files import read_record

ENTRY = "entry.json"
"""A joiner's entry, until it goes into the inbox."""
SLURM_SECOND_S = 1.0
"""Slurm says when a job ended in whole seconds, rounded down."""


@dataclasses.dataclass(frozen=True)
class PackEndRecord:
    """Slurm's last word on a pack's job (ended.json).

    Attributes:
        slurm_state: The job's state, in Slurm's words.
        ended_at: When it ended, in seconds since the epoch; None where that is not known.
    """

    slurm_state: str = ""
    ended_at: float | None = None


@dataclasses.dataclass(frozen=True)
class MovedMember:
    """Where a member was submitted again (moved.json).

    Attributes:
        pack_id: In which pack.
        number: Its number there, the same as here.
    """

    pack_id: str
    number: int = 0


@dataclasses.dataclass(frozen=True)
class NewMember:
    """Everything a member needs, ready to be written."""

    spec: MemberSpec
    script: bytes
    environment: bytes


@dataclasses.dataclass(frozen=True)
class NewPack:
    """A pack that is not on disk yet."""

    record: PackRecord
    members: tuple[NewMember, ...]


def read_pack(path: Path) -> PackRecord | None:
    """Read a pack's pack.json; None if there is none.

    Raises:
        StateError: It is damaged.
    """
    return read_record(f"{path}/pack.json", PackRecord)


def read_spec(pack: Path, number: int) -> MemberSpec:
    """Read a member's spec.json.

    Raises:
        StateError: It is missing or damaged.
    """
    path = pack / "members" / format_number(number) / "spec.json"
    spec = read_record(path, MemberSpec)
    if spec is None:
        raise StateError(f"{path} is missing")
    return spec


def read_slurm_job_id(pack: Path) -> str | None:
    """The Slurm job id of a pack, `4711` or `4711_2`; None while it is not known."""
    try:
        return read_bytes(f"{pack}/slurm_job_id").decode().strip() or None
    except FileNotFoundError:
        return None


def write_ended(pack: Path, state: SlurmJobState, ended_at: float | None = None) -> None:
    """Write Slurm's last word on a pack's job: Slurm itself forgets it after some minutes.

    Args:
        pack: The pack's directory.
        state: How it ended.
        ended_at: When it ended, in seconds since the epoch; None where that is not known.

    Raises:
        StateError: It cannot be written.
    """
    record = PackEndRecord(state.value, ended_at)
    write_json(pack / "ended.json", dataclasses.asdict(record))


def read_ended(pack: Path) -> SlurmJobState | None:
    """Slurm's last word on a pack's job; None while there is none."""
    record = read_record(f"{pack}/ended.json", PackEndRecord)
    return None if record is None else SlurmJobState.parse(record.slurm_state)


def read_end_limit(pack: Path) -> float | None:
    """The latest moment at which a member of a pack can have ended, by Slurm's last word.

    That is when Slurm says that the job ended, or else when its last word was written.

    Returns:
        Seconds since the epoch; None while there is no last word.

    Raises:
        StateError: It is damaged.
    """
    record = read_record(f"{pack}/ended.json", PackEndRecord)
    if record is None:
        return None
    if record.ended_at is not None:
        return record.ended_at + SLURM_SECOND_S
    with contextlib.suppress(OSError):
        return (pack / "ended.json").stat().st_mtime
    return None


def read_end_time(pack: Path) -> float | None:
    """When a pack's Slurm job ended; None where that is not known.

    Raises:
        StateError: It is damaged.
    """
    record = read_record(f"{pack}/ended.json", PackEndRecord)
    return None if record is None else record.ended_at


def forget_ended(pack: Path) -> None:
    """Take Slurm's last word back: its job runs again."""
    with explain_os_errors("remove", pack / "ended.json"):
        (pack / "ended.json").unlink(missing_ok=True)


def is_unanswered(pack: Path) -> bool:
    """True where Slurm did not answer its submission: its job may still turn up.

    Raises:
        StateError: It cannot be told.
    """
    return is_there(pack / "unanswered")


def is_local_alive(pack: Path) -> bool:
    """True while the runner of a pack without Slurm is alive: it holds this lock.

    Raises:
        StateError: It cannot be told.
    """
    return is_locked(pack / "alive")


def list_members(pack: Path) -> list[int]:
    """Numbers of all members of a pack, sorted; one that has not entered is none."""
    return [number for number in list_claimed(pack) if has_entered(pack, number)]


def list_claimed(pack: Path) -> list[int]:
    """Numbers that are taken in a pack, those of joiners that have not entered included."""
    try:
        names = os.listdir(pack / "members")
    except OSError as error:
        raise StateError(f"cannot read {pack}: {os.strerror(error.errno or 0)}") from error
    return sorted(int(name) for name in names if name.isdigit())


def has_entered(pack: Path, number: int) -> bool:
    """True once a member has entered: its files are whole and its entry has left its place.

    Raises:
        StateError: It cannot be told; what has not entered may be removed.
    """
    directory = f"{pack}/members/{format_number(number)}"
    # In this order: a joiner writes its entry first and its spec.json last.
    return is_there(f"{directory}/spec.json") and not is_there(f"{directory}/{ENTRY}")


def drop_unentered(pack: Path) -> None:
    """Remove what joiners left that were killed; to be called under the pack's lock.

    No other process writes these files, so the one that began is gone.
    """
    for number in list_claimed(pack):
        if not has_entered(pack, number):
            drop_claimed(pack, number)


def drop_unfinished(pack: Path) -> None:
    """Remove all that joiners left that were killed, once the pack is over; under its lock."""
    drop_unentered(pack)
    for pattern in ("pack.json.tmp*", "members/*/spec.json.tmp*"):
        for path in pack.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()


def drop_claimed(pack: Path, number: int) -> None:
    """Remove a member that has not entered; at no moment does it look as if it had."""
    directory = pack / "members" / format_number(number)
    with contextlib.suppress(OSError):
        (directory / "spec.json").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def write_moved(pack: Path, number: int, pack_id: str) -> None:
    """Note that a member is submitted again in another pack, under the same number."""
    path = pack / "members" / format_number(number) / "moved.json"
    write_json(path, dataclasses.asdict(MovedMember(pack_id, number)))


def read_moved(pack: Path, number: int) -> str | None:
    """The pack in which a member was submitted again; None if it was not.

    Where that submission came to nothing its pack is gone, and the note means nothing.

    Raises:
        StateError: It cannot be told.
    """
    moved = read_record(pack / "members" / format_number(number) / "moved.json", MovedMember)
    if moved is None or not is_there(pack.parent / moved.pack_id):
        return None
    return moved.pack_id


def write_pack(path: Path, pack: NewPack, *, outlives_crash: bool = True) -> None:
    """Write a pack's directory with its first members already waiting in the inbox.

    Members' files are not waited for one by one until they are on the disk: an array has thousands
    of them. A network file system has them when they are closed; elsewhere a crash of this machine
    within seconds after the submission may cost them.

    Args:
        path: The directory.
        pack: The pack.
        outlives_crash: Its pack.json is waited for.
    """
    for name in ("", "inbox", "members", "control"):
        os.mkdir(path / name if name else path, 0o700)
    record = build_pack_mapping(pack.record)
    write_json(path / "pack.json", record, outlives_crash=outlives_crash)
    # Slurm would make it with the user's umask.
    os.close(os.open(path / "pack.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # Tasks of an array share script and environment: written once, linked into each member.
    written: dict[tuple[str, bytes], Path] = {}
    for member in pack.members:
        name = format_number(member.spec.job.number)
        directory = path / "members" / name
        os.mkdir(directory, 0o700)
        write_spec(directory, member.spec, outlives_crash=False)
        for file_name, data, mode in (
            ("script", member.script, 0o700),
            ("env", member.environment, 0o600),
        ):
            earlier = written.get((file_name, data))
            target = directory / file_name
            if earlier is not None:
                with contextlib.suppress(OSError):
                    os.link(earlier, target)
                    continue
            write_atomic(target, data, mode, outlives_crash=False)
            written[(file_name, data)] = target
        entry = {"number": member.spec.job.number}
        write_json(path / "inbox" / f"{name}.json", entry, outlives_crash=False)


def write_record(path: Path, record: PackRecord) -> None:
    """Write pack.json; after the submission only who holds the pack's lock may."""
    write_json(path / "pack.json", build_pack_mapping(record))


def write_spec(directory: Path, spec: MemberSpec, *, outlives_crash: bool = True) -> None:
    """Write a member's spec.json; see `write_all`."""
    write_json(directory / "spec.json", build_spec_mapping(spec), outlives_crash=outlives_crash)


def write_joiner(path: Path, member: NewMember) -> None:
    """Write the files of a joiner whose number is claimed, ready to enter.

    The entry comes first and spec.json last: see `has_entered`.
    """
    number = member.spec.job.number
    directory = path / "members" / format_number(number)
    write_json(directory / ENTRY, {"number": number})
    write_atomic(directory / "script", member.script, 0o700)
    write_atomic(directory / "env", member.environment)
    write_spec(directory, member.spec)


def build_environment_block(environment: Mapping[bytes, bytes]) -> bytes:
    """An environment as NUL-separated `NAME=value`, as in /proc/PID/environ."""
    return b"\0".join(name + b"=" + value for name, value in environment.items())


def parse_environment_block(block: bytes) -> dict[bytes, bytes]:
    """The inverse of build_environment_block."""
    environment = {}
    for item in block.split(b"\0"):
        name, separator, value = item.partition(b"=")
        if separator:
            environment[name] = value
    return environment
