"""One pack's directory: writing it whole, and reading its files.

Also: pack.json and spec.json: what csub wrote down for the runner and for readers; setup.json: how
the node was really prepared for a pack, and why so; division.json: how the GPUs of a Slurm job on a
node are divided among its GPU sets there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import asdict, dataclass, fields
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.plan import MemberPlan, PackRequest, Policy, SharingMode, SharingReasons
from slurm_colloc.model.setting_values import RunnerSettings
from slurm_colloc.ownership import find_caller, refuse_planted_pack
from slurm_colloc.store.atomic_files import (
    is_locked,
    is_there,
    read_bytes,
    read_record,
    remove_file,
    remove_tree,
    write_atomic,
    write_json,
)
from slurm_colloc.store.inbox import format_number

if TYPE_CHECKING:
    from slurm_colloc.model.chain import ChainRecord

# ---- pack.json and spec.json: what csub wrote down for the runner and for readers ----------------


@dataclass(frozen=True)
class PackRecord:
    """What was planned for a pack (pack.json).

    Attributes:
        pack_id: Name of the pack's directory.
        submission: The csub call it came from.
        index: Its element of the Slurm job array, 0 where the job is no array.
        indices: The elements of all packs of that Slurm job.
        is_array: The Slurm job is a job array.
        created_at: Seconds since the epoch.
        name: Name of the Slurm job.
        mode: Planned sharing mode.
        share: What `--share` asked for, as text; see model.job.
        degree: Members that run at the same time, at most. Those above its own number are places
            for members of other packs of the submission.
        request: What was asked of Slurm; None for a job alone.
        group: Options that all members share.
        reasons: Why the pack looks like this.
        members: Numbers of its first members, in start order.
        submit_directory: Where csub was called.
        submit_host: The host on which csub was called.
        client_environment: What sbatch was given as environment; everything else that the
            batch script finds was added by Slurm or the site, and belongs to the members too.
        slurm_options: Options that sbatch was called with, for people.
        local: True where it runs without Slurm.
        cluster: Name of the Slurm cluster; empty where it is not known.
        policy: How far sharing may go in it; None where no job may join it.
        gpu_type: The GPU type that its jobs ask for; None for any.
        closed: Why no job may join it; empty where it is open to joiners.
        refusals: Why its jobs did not join the packs that were there, a sentence each.
        resubmissions: How often its members were submitted again because they never started.
        shown_id: The id that its members are named after, where the call became several Slurm
            jobs and this is not the first; else empty.
        parts: The Slurm jobs of the call, as the name that each has in `submission` and its
            elements; in the packs of the first, where there are several.
        settings: What its runner goes by; None for those of its node.
        layout: The words of the MIG instances that it asks its node for; none in other modes.
        layout_places: How many members have each of those at once; none for one each.
        gpu_set: Which of the GPU sets of its Slurm job it fills, from 0; `request` and `degree`
            are those of this set.
        gpu_sets: How many GPUs each set of the Slurm job has; none where the job has one set.
        open_for: For how many more jobs than its own it asked Slurm, so that they can join it
            while it runs.
        sharing: What of its reasons is about sharing.
        power_limit_w: The power limit that it asked root for; 0 for none.
        chain: Of how many Slurm jobs, one after the other, it is made at most; 0 where it is not.
    """

    pack_id: str
    submission: str
    index: int
    indices: tuple[int, ...]
    is_array: bool
    created_at: float
    name: str
    mode: SharingMode
    degree: int
    request: PackRequest | None
    group: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    members: tuple[int, ...]
    submit_directory: str
    submit_host: str
    client_environment: tuple[tuple[str, str], ...]
    slurm_options: tuple[str, ...]
    local: bool = False
    cluster: str = ""
    policy: Policy | None = None
    gpu_type: str | None = None
    closed: str = ""
    refusals: tuple[str, ...] = ()
    resubmissions: int = 0
    share: str = "timeslice"
    shown_id: str = ""
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    settings: RunnerSettings | None = None
    layout: tuple[str, ...] = ()
    layout_places: tuple[int, ...] = ()
    gpu_set: int = 0
    gpu_sets: tuple[int, ...] = ()
    open_for: int = 0
    sharing: SharingReasons = SharingReasons()
    power_limit_w: int = 0
    chain: int = 0

    @property
    def array_index(self) -> int | None:
        """Which element of its Slurm job it is; None where that is no job array."""
        return self.index if self.is_array else None

    @property
    def number_of(self) -> tuple[int, int] | None:
        """Which of the packs of its call it is, from 1, and how many these are.

        None where it has a name of its own in Slurm: as the only one, as a task by itself, or in a
        further Slurm job of the call, which does not know the others.
        """
        if self.request is None or not self.is_array or (self.shown_id and not self.parts):
            return None
        parts = self.parts or ((self.submission, self.indices),)
        packs = [(name, index) for name, indices in parts for index in indices]
        own = (self.submission, self.index)
        return (packs.index(own) + 1, len(packs)) if own in packs and len(packs) > 1 else None


@dataclass(frozen=True)
class MemberSpec:
    """What a member runs (spec.json); its script and environment lie next to it.

    Attributes:
        job: The job.
        plan: Its place in the plan.
        umask: Of the shell that submitted it.
        names_alone: Its output is named as sbatch names that of a job: `%j` alone is enough.
        joined: The submission by which it joined the pack; empty for a first member.
        joined_at: When it joined, in seconds since the epoch; 0 for a first member.
        submit_directory: Where csub was called for it, where it joined; empty for a first member.
    """

    job: Job
    plan: MemberPlan
    umask: int
    names_alone: bool = False
    joined: str = ""
    joined_at: float = 0.0
    submit_directory: str = ""

    def name_files_after(self, job_id: str) -> str:
        """What `%A` is in the names of its files.

        Args:
            job_id: The id of its submission.
        """
        return (self.names_alone and self.job.own_id) or job_id

    @property
    def joined_as(self) -> str:
        """The number by which its user knows it, where it joined a pack; else empty."""
        return self.job.own_id if self.job.has_joined else ""


_PLAIN = (str, bool, int, float, tuple)


def build_pack_mapping(record: PackRecord) -> dict[str, Any]:
    """The JSON form of pack.json."""
    # asdict would copy each of the numbers in it, and a thousand packs have a thousand of them.
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: value if isinstance(value, _PLAIN) or value is None else asdict(value)
        for name, value in values.items()
    }


# ---- One pack's directory: writing it whole, and reading its files -------------------------------

ENTRY = "entry.json"
"""A joiner's entry, until it goes into the inbox."""
SLURM_SECOND_S = 1.0
"""Slurm says when a job ended in whole seconds, rounded down."""


@dataclass(frozen=True)
class PackEndRecord:
    """Slurm's last word on a pack's job (ended.json).

    Attributes:
        slurm_state: The job's state, in Slurm's words.
        ended_at: When it ended, in seconds since the epoch; None where that is not known.
    """

    slurm_state: str = ""
    ended_at: float | None = None


@dataclass(frozen=True)
class MovedMember:
    """Where a member was submitted again (moved.json).

    Attributes:
        pack_id: In which pack.
        number: Its number there, the same as here.
    """

    pack_id: str
    number: int = 0


@dataclass(frozen=True)
class NewMember:
    """Everything a member needs, ready to be written."""

    spec: MemberSpec
    script: bytes
    environment: bytes


@dataclass(frozen=True)
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


def read_own_pack(path: Path, owner: int | None = None) -> PackRecord | None:
    """The same of a pack that must be a user's own, and that no other user can change.

    Args:
        path: Its directory.
        owner: The user's uid; None for the caller's.

    Raises:
        StateError: It is damaged, or no such pack.
    """
    refuse_planted_pack(path, find_caller() if owner is None else owner)
    return read_pack(path)


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
    write_json(pack / "ended.json", asdict(record))


def read_chain(pack: Path) -> ChainRecord:
    """The links of a pack (chain.json); none where it is no chain.

    Raises:
        StateError: It is damaged.
    """
    # Few packs are chains.
    from slurm_colloc.model.chain import ChainRecord

    return read_record(pack / "chain.json", ChainRecord) or ChainRecord()


def write_chain(pack: Path, record: ChainRecord) -> None:
    """Write chain.json; only the running link's runner may, or who has the pack's lock."""
    write_json(pack / "chain.json", asdict(record))


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
    remove_file(pack / "ended.json")


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
        remove_tree(directory)


def write_moved(pack: Path, number: int, pack_id: str) -> None:
    """Note that a member is submitted again in another pack, under the same number."""
    path = pack / "members" / format_number(number) / "moved.json"
    write_json(path, asdict(MovedMember(pack_id, number)))


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
    write_json(directory / "spec.json", asdict(spec), outlives_crash=outlives_crash)


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


# ---- setup.json: how the node was really prepared for a pack, and why so -------------------------


@dataclass(frozen=True)
class SetupInstance:
    """A MIG instance that a member can have.

    Attributes:
        uuid: What CUDA calls it.
        profile: NVML's name of its profile.
        gpu_instance: NVML's id of its GPU instance.
        memory_mb: Its memory (MiB).
        sms: Its streaming multiprocessors.
        places: How many members have it at once; several share it by MPS.
    """

    uuid: str
    profile: str
    gpu_instance: int
    memory_mb: int
    sms: int
    places: int = 1


@dataclass(frozen=True)
class Setup:
    """What an attempt of a pack found and prepared on its node.

    Attributes:
        attempt: The attempt that wrote it.
        asked: What `--share` asked for.
        mode: The sharing mode that really holds; empty where none could be had.
        reason: Why this mode: what allowed it, or what stood in the way of the one asked for.
        node: The node.
        by: What prepared it: `runner`, or `prolog` for the node's own; empty where nothing was to
            be prepared.
        gpus: The GPUs by UUID; empty where they could not be read.
        gpu_memory_mb: Memory of one GPU; None where it could not be read.
        gpu_name: The GPU's model; None where it could not be read.
        client_cap: How many MPS clients the GPU takes; None where unknown.
        control_ms: From the daemon's start to its proved control socket, in ms.
        active_ms: From the daemon's start to a server that takes clients, in ms.
        stop_ms: How long the daemon took to stop, in ms; None while it runs.
        restarts: How often the daemon had to be started again.
        notes: What else is worth knowing, a sentence each.
        instances: The MIG instances on the GPU; none in other modes.
        takes_one: The GPU takes one member at a time.
    """

    attempt: int
    asked: str
    mode: str
    reason: str
    node: str
    by: str = ""
    gpus: tuple[str, ...] = ()
    gpu_memory_mb: int | None = None
    gpu_name: str | None = None
    client_cap: int | None = None
    control_ms: float | None = None
    active_ms: float | None = None
    stop_ms: float | None = None
    restarts: int = 0
    notes: tuple[str, ...] = ()
    instances: tuple[SetupInstance, ...] = ()
    takes_one: bool = False


def write_setup(pack: Path, setup: Setup) -> None:
    """Write a pack's setup.json; the runner of the newest attempt alone does."""
    write_json(f"{pack}/setup.json", asdict(setup))


def read_setup(pack: Path) -> Setup | None:
    """Read a pack's setup.json, None where no runner has written one.

    Raises:
        StateError: It is damaged.
    """
    return read_record(f"{pack}/setup.json", Setup)


# ---- division.json: how the GPUs of a Slurm job on a node are divided among its GPU sets there ---
#
# It lies in the directory of the pack of the node's first set, and is written before any runner
# there begins: one process divides, so that no two sets are ever given the same GPU or CPU.

_NAME = "division.json"


@dataclass(frozen=True)
class GpuSetShare:
    """What one GPU set has of its Slurm job.

    Attributes:
        gpus: Its GPUs, as CUDA_VISIBLE_DEVICES takes them: by UUID where NVML tells.
        slurm_gpus: The same as Slurm's indices (SLURM_JOB_GPUS).
        cpus: Its CPUs; none where members are not bound.
        host_memory_mb: What its members may use together; None where Slurm sets no limit.
        problem: Why nothing can run on it; empty where it can.
    """

    gpus: tuple[str, ...] = ()
    slurm_gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    host_memory_mb: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class GpuDivision:
    """The shares of all GPU sets.

    Attributes:
        restarts: How often Slurm had restarted the job when it was written; a division of another
            start does not count.
        shares: One for each GPU set of the job, in their order.
        is_near: Each set's CPUs are those nearest to its GPUs, by the kernel.
        notes: What could not be told, a sentence each.
    """

    restarts: int = 0
    shares: tuple[GpuSetShare, ...] = ()
    is_near: bool = False
    notes: tuple[str, ...] = ()


def read_division(pack: Path) -> GpuDivision | None:
    """Read division.json; None if there is none.

    Args:
        pack: The directory of the first GPU set's pack.

    Raises:
        StateError: It is damaged or cannot be read.
    """
    return read_record(pack / _NAME, GpuDivision)


def read_problem(pack: Path, number: int, restarts: int) -> str:
    """Why nothing can run in a GPU set; empty where it can, and where no division of now says it.

    Args:
        pack: The directory of the pack of the job's first GPU set.
        number: The set's number.
        restarts: How often Slurm has restarted the job.
    """
    with contextlib.suppress(StateError):
        division = read_division(pack)
        if division is not None and division.restarts == restarts:
            return "".join(share.problem for share in division.shares[number : number + 1])
    return ""


def write_division(pack: Path, division: GpuDivision) -> None:
    """Write division.json.

    Args:
        pack: The directory of the first GPU set's pack.
        division: What it says.

    Raises:
        StateError: It cannot be written.
    """
    write_json(pack / _NAME, asdict(division))
