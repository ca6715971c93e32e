"""Attempts of a pack, and the states of its members.

Also: held members: `held` in a member's folder keeps its runner from starting it; members of
another submission in a pack: which they are, and where they were submitted; report/pauses.jsonl:
when members were paused. Their runner alone writes it, a line for a change; marks of a whole pack:
its members were taken over before it began, or it is being cancelled.

Each start of a pack has an attempt number. A member's state is written to a file of that
attempt (`state.2.json`) and the newest attempt's file counts, so that a runner which was taken
for dead and still writes can never overwrite what its successor says.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import asdict, dataclass, replace
from slurm_colloc.model.member import (
    FINAL_STATES,
    GUESTS_FROM,
    ExitCode,
    MemberId,
    MemberState,
    WaitKind,
    WaitReason,
    is_guest,
)
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.records import is_known
from slurm_colloc.store import inbox
from slurm_colloc.store.atomic_files import (
    SCHEMA,
    explain_os_errors,
    is_there,
    list_names,
    open_regular,
    read_bytes,
    read_record,
    remove_file,
    write_atomic,
    write_json,
)
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.pack_directory import list_claimed, read_spec


@dataclass(frozen=True)
class GpuUse:
    """How a member was put on the GPU at its last start.

    Attributes:
        mode: The sharing mode that really held: `mps`, `mig`, `timeslice` or `exclusive`.
        thread_percentage: Its MPS thread limit; None for none.
        gpu_memory_limit_mb: Its limit on GPU memory; None for none.
        uuids: The GPUs, or its MIG instance; empty where they could not be read.
        is_mps_client: The MPS daemon lists one of its processes; False where one of its processes
            uses the GPU without MPS; None where it has not been seen on the GPU.
        instance: The profile of its MIG instance, `3g.40gb`; empty without one.
        gpu_instance: NVML's id of its GPU instance; None without one.
        gpu: The GPU of that by UUID; empty without one.
        instance_sms: Streaming multiprocessors of its instance; None without one.
        gpu_sms: Those of the whole GPU; None where unknown.
        inside: How it shares its instance with other members: `mps`; empty where it does not.
    """

    mode: str
    thread_percentage: int | None = None
    gpu_memory_limit_mb: int | None = None
    is_mps_client: bool | None = None
    uuids: tuple[str, ...] = ()
    instance: str = ""
    gpu_instance: int | None = None
    gpu: str = ""
    instance_sms: int | None = None
    gpu_sms: int | None = None
    inside: str = ""

    @property
    def shown_mode(self) -> str:
        """The mode that it has: what was put under MPS, and does without, shares by time slices."""
        is_outside = self.mode == SharingMode.MPS.value and self.is_mps_client is False
        return SharingMode.TIMESLICE.value if is_outside else self.mode

    @property
    def is_under_mps(self) -> bool:
        """An MPS server was to serve it: the GPU's, or its instance's."""
        return SharingMode.MPS.value in (self.mode, self.inside)


@dataclass(frozen=True)
class Retries:
    """What restarts have taught about a member.

    Attributes:
        faults: How often it was restarted after a fault that may have been another member's.
        out_of_gpu_memory: How often it was restarted because it was out of GPU memory.
        apart: It does not run under MPS any more: there, a fault would hit its neighbours.
        alone: It runs with the GPU to itself.
        gpu_memory_mb: What is reserved for it from now on, without a limit, because it was out of
            GPU memory with less; 0 for nothing.
        suspected: A fault has hit it that may have been its own.
        failures: How often it was restarted because it failed by itself (`--retries`).
    """

    faults: int = 0
    out_of_gpu_memory: int = 0
    apart: bool = False
    alone: bool = False
    gpu_memory_mb: int = 0
    suspected: bool = False
    failures: int = 0


@dataclass(frozen=True)
class StateRecord:
    """A member's state as its runner wrote it.

    Attributes:
        state: The state.
        attempt: The pack's attempt that wrote it.
        starts: How often the member was started, over all attempts.
        started_at: Seconds since the epoch; None before the start.
        ended_at: Seconds since the epoch; None before the end.
        exit_code: How it ended; None before the end.
        node: Node name; None before the start.
        gpus: UUIDs, or Slurm's indices where no UUID could be read.
        cpus: CPU numbers it is bound to; empty where it is not bound.
        step: Slurm step id, `4711.2`; None where it runs as a plain process.
        wall_limit_s: Its wall-clock limit; None for none.
        reason: Why it is in this state, for people; of one that waits, why it starts again.
        gpu: How it was put on the GPU; None before its first start, and where it has no GPU.
        cause: The class of its end (model.member.EndCause); empty before that, and where its
            state
            and exit code say all.
        evidence: What that class rests on, a line each.
        retries: What restarts have taught.
        at_door: It was started to load its program, and may not use the GPU yet; says something of
            running members only.
        waits: Why one that waits does; None where nothing is said of it.
        taken_at_once: What of the evidence tells that it took GPU memory before it needed any;
            empty for nothing.
        no_places: Why it shares /tmp with its neighbours, although it was to have its own; empty
            where it does not, and where it was not to.
    """

    state: MemberState
    attempt: int
    starts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: ExitCode | None = None
    node: str | None = None
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    step: str | None = None
    wall_limit_s: int | None = None
    reason: str = ""
    gpu: GpuUse | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
    retries: Retries = Retries()
    at_door: bool = False
    waits: WaitReason | None = None
    taken_at_once: str = ""
    no_places: str = ""

    @property
    def dependency(self) -> str:
        """What it waits for, `afterok:4711/3`; empty where that is not why it waits."""
        waits = self.waits
        return waits.name if waits and waits.kind is WaitKind.DEPENDENCY else ""

    @property
    def is_final(self) -> bool:
        """It will not run again; a state that only a newer csub knows tells by its end."""
        if self.state in FINAL_STATES:
            return True
        return self.ended_at is not None and not is_known(self.state)


def read_attempt(pack: Path | str) -> int:
    """The newest attempt of a pack, 0 before its first start."""
    try:
        return int(read_bytes(f"{pack}/attempt"))
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise StateError(f"{pack}/attempt is damaged", hint="it must hold one number") from error


def begin_attempt(pack: Path | str, least: int) -> int:
    """Start a new attempt and fence all older ones; returns its number.

    Args:
        pack: The pack's directory.
        least: Slurm's restart count plus 1; the number is at least that.
    """
    attempt = max(least, read_attempt(pack) + 1)
    write_atomic(f"{pack}/attempt", f"{attempt}\n".encode())
    return attempt


def write_state(pack: Path | str, number: int, record: StateRecord) -> None:
    """Write a member's state under its attempt."""
    value = asdict(record)
    value["exit_code"] = None if record.exit_code is None else str(record.exit_code)
    write_json(f"{pack}/members/{format_number(number)}/state.{record.attempt}.json", value)


def read_state(
    pack: Path | str, number: int, attempt: int, names: Container[str] | None = None
) -> StateRecord | None:
    """Read a member's newest state, None if no runner wrote one.

    Args:
        pack: The pack's directory.
        number: The member's number.
        attempt: The newest attempt of the pack, from `read_attempt`.
        names: The files in the member's directory; None where they were not looked at.
    """
    for candidate in range(attempt, 0, -1):
        if names is not None and f"state.{candidate}.json" not in names:
            continue
        path = f"{pack}/members/{format_number(number)}/state.{candidate}.json"
        if (record := read_record(path, StateRecord)) is not None:
            return record
    return None


PUT_ASIDE = "env.again"
"""The environment of a member that may be tried again (`csub retry`)."""

DONE_WITH = frozenset({MemberState.COMPLETED, MemberState.CANCELLED})
"""The ends after which a member is not tried again as it was."""


def put_environment_aside(pack: Path | str, number: int) -> None:
    """Keep a member's captured environment for another try; nothing reads it but that.

    Raises:
        StateError: It cannot be moved.
    """
    path = f"{pack}/members/{format_number(number)}/env"
    with explain_os_errors("rename", path), contextlib.suppress(FileNotFoundError):
        os.rename(path, f"{path.removesuffix('env')}{PUT_ASIDE}")


def remove_environment(pack: Path | str, number: int) -> None:
    """Remove a member's captured environment: it may hold secrets.

    Raises:
        StateError: It cannot be removed.
    """
    remove_file(f"{pack}/members/{format_number(number)}/env")


# ---- Held members: `held` in a member's folder keeps its runner from starting it -----------------
#
# csub writes and removes `held`. A runner that has nothing but held members left ends its pack, so
# that they keep no GPU. It first links `held` to `left`, which fails if csub has just removed it:
# so either the runner starts a released member, or csub finds `left` and submits it again.

HELD = "held"
LEFT = "left"


def _path(pack: Path | str, number: int, name: str) -> str:
    return f"{pack}/members/{format_number(number)}/{name}"


def write_held(pack: Path | str, number: int) -> None:
    """Hold a member.

    Raises:
        StateError: It cannot be written.
    """
    write_atomic(_path(pack, number, HELD), b"")


def remove_held(pack: Path | str, number: int) -> bool:
    """Release a member; False where its runner has left it behind, so that it is not started.

    Raises:
        StateError: It cannot be removed.
    """
    if was_left(pack, number):
        return False
    remove_file(_path(pack, number, HELD))
    # The runner may have come in between.
    return not was_left(pack, number)


def is_held(pack: Path | str, number: int) -> bool:
    """True while a member is held, or was left behind by its pack.

    Raises:
        StateError: It cannot be told: one that is held must not start.
    """
    return is_there(_path(pack, number, HELD)) or was_left(pack, number)


def was_left(pack: Path | str, number: int) -> bool:
    """True where the pack has ended, or ends, without starting this member.

    Raises:
        StateError: It cannot be told.
    """
    return is_there(_path(pack, number, LEFT))


def leave_behind(pack: Path | str, number: int) -> bool:
    """Leave a held member behind; False where it was released just now, and is to be started."""
    try:
        os.link(_path(pack, number, HELD), _path(pack, number, LEFT))
    except FileExistsError:
        return True
    except FileNotFoundError:
        return was_left(pack, number)
    except OSError:
        # A file system without links: the moment between the two calls stays unguarded.
        if not is_there(_path(pack, number, HELD)):
            return False
        write_atomic(_path(pack, number, LEFT), b"")
    return True


def forget_hold(pack: Path | str, number: int) -> None:
    """Remove both marks of a member that is taken care of: submitted again, or cancelled."""
    for name in (HELD, LEFT):
        with contextlib.suppress(OSError):
            os.unlink(_path(pack, number, name))


def cancel_left(pack: Path | str, number: int) -> None:
    """Cancel a member that its pack has left behind: no runner is there to write it down.

    Raises:
        StateError: It cannot be written.
    """
    cancelled = _path(pack, number, "cancelled")
    for name in ("taken", "begun"):
        # As inbox.withdraw does: what is not taken is not started by a later attempt either.
        with contextlib.suppress(OSError):
            os.rename(_path(pack, number, name), cancelled)
    if not is_there(cancelled):
        write_atomic(cancelled, b"")
    remove_environment(pack, number)
    forget_hold(pack, number)


def may_have_begun(pack: Path | str, number: int, attempt: int, starts: int) -> bool:
    """True where the runner has begun the start that follows a member's `starts` starts.

    The runner writes the start's first file and then looks whether the member is held; csub holds
    it and then looks here. The one that comes second sees the other.

    Raises:
        StateError: It cannot be told.
    """
    prefix = f"run.{attempt}.{starts + 1}."
    names = list_names(f"{pack}/members/{format_number(number)}", "look at")
    return any(name.startswith(prefix) for name in names)


# ---- Members of another submission in a pack: which they are, and where they were submitted ------
#
# A pack is a place. The number of a member's directory is its number in that place: the user's own
# number for members of the pack's submission, and for one of another submission a number that its
# runner has given it, far above all others. Which member that is stands in `home.json` in the
# member's directory, which moves with it.

_OF_AN_ATTEMPT = 10_000
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class HomeRecord:
    """Where a member of another submission was submitted (home.json).

    Attributes:
        job: The id of its submission.
        number: Its number there.
        pack_id: The pack for which it was planned.
        created_at: When that was submitted, in seconds since the epoch.
        submit_directory: Where csub was called for it.
        submit_host: The host on which csub was called for it.
    """

    job: str = ""
    number: int = 0
    pack_id: str = ""
    created_at: float = 0.0
    submit_directory: str = ""
    submit_host: str = ""


def choose_guest_number(attempt: int, count: int) -> int | None:
    """The number of the next member of another submission; None where there is none left.

    An attempt has numbers of its own: what an earlier one decided late is in its way nowhere.

    Args:
        attempt: The attempt that takes it.
        count: How many it has numbered before.
    """
    number = GUESTS_FROM + attempt * _OF_AN_ATTEMPT + count
    return number if count < _OF_AN_ATTEMPT and number <= _LARGEST else None


def write_home(pack: Path, number: int, home: HomeRecord) -> None:
    """Write down which member it is, before another pack takes it over; it counts only there.

    Raises:
        StateError: It cannot be written.
    """
    path = pack / "members" / format_number(number) / "home.json"
    write_json(path, asdict(home))


def read_home(pack: Path | str, number: int) -> HomeRecord | None:
    """Where a member was submitted; None for one of the pack's own submission.

    Raises:
        StateError: It is damaged.
    """
    if not is_guest(number):
        return None
    return read_record(f"{pack}/members/{format_number(number)}/home.json", HomeRecord)


def name_member(pack: Path | str, shown_id: str, number: int) -> MemberId:
    """The name of a member of a pack.

    Args:
        pack: The pack's directory.
        shown_id: The id that its own members are named after.
        number: The member's number in the pack.

    Raises:
        StateError: What says it is damaged.
    """
    home, joined_as = read_home(pack, number), read_spec(Path(pack), number).joined_as
    if home is None:
        return MemberId(shown_id, number, joined_as)
    return MemberId(home.job, home.number, joined_as)


def find_guest(pack: Path | str, member: MemberId) -> int | None:
    """The number in a pack of a member of another submission; None where it is not there.

    Raises:
        StateError: What says it is damaged, or the file system fails.
    """
    names = list_names(f"{pack}/members", "look at")
    for number in sorted(int(name) for name in names if name.isdigit()):
        home = read_home(pack, number)
        if home is not None and (home.job, home.number) == (member.job, member.number):
            return number
    return None


def group_by_home(pack: Path | str, numbers: Iterable[int]) -> list[tuple[str, list[int]]]:
    """The numbers of members by the id of their submission, empty for the pack's own.

    Raises:
        StateError: What says it is damaged.
    """
    groups: dict[str, list[int]] = {}
    for number in numbers:
        home = read_home(pack, number)
        groups.setdefault("" if home is None else home.job, []).append(number)
    return sorted(groups.items())


def find_next_number(numbers: Iterable[int]) -> int:
    """The number of one more member of a pack's own submission."""
    return max((number for number in numbers if not is_guest(number)), default=0) + 1


# ----
# report/pauses.jsonl: when members were paused. Their runner alone writes it, a line for a
# change.
#
# Paused time is not counted: it belongs to no rate, slowdown or limit of the member, and while it
# lasts the member is no neighbour of the others.

NAME = "report/pauses.jsonl"
MEASURED = "measured"
"""Paused for a moment, so that others can be measured without it."""
PARKED = "parked"
"""Paused until a place is free for it."""
AT_DOOR = "at the door"
"""Not paused: it loads its program, and waits before its first use of the GPU."""

_MOST_BYTES = 64 << 20

Start = tuple[int, int]
"""A member's number, and the number of its start."""


@dataclass(frozen=True)
class MemberPause:
    """A time in which the processes of a member were stopped, or did not use the GPU yet.

    Attributes:
        member: Its number.
        start: Which of its starts.
        begin: Seconds since the epoch.
        end: Seconds since the epoch; None where it had not ended when the file was written last.
        reason: `measured`, `parked` or `at the door`.
    """

    member: int
    start: int
    begin: float
    end: float | None
    reason: str


def append_change(
    pack: Path | str,
    at: float,
    *,
    paused: Sequence[Start] = (),
    resumed: Sequence[Start] = (),
    reason: str = MEASURED,
) -> None:
    """Write down who is paused, or goes on, from a moment on.

    Args:
        pack: The pack's directory.
        at: When, in seconds since the epoch.
        paused: Who is paused.
        resumed: Who goes on.
        reason: Why those are paused.

    Raises:
        OSError: It cannot be written.
    """
    change = {"schema": SCHEMA, "at": at, "paused": paused, "resumed": resumed, "reason": reason}
    # O_APPEND and one write: a line is there whole, or what is left of it is passed over.
    with contextlib.suppress(FileExistsError):
        # The monitor, which makes it otherwise, may not have begun.
        os.mkdir(f"{pack}/{NAME}".rpartition("/")[0], 0o700)
    descriptor = os.open(
        f"{pack}/{NAME}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        os.write(descriptor, f"{json.dumps(change)}\n".encode())
    finally:
        os.close(descriptor)


def read_pauses(pack: Path | str) -> list[MemberPause]:
    """All pauses of a pack's members, in the order in which they began; empty without any.

    Lines that make no sense, or that another version has written, are passed over.
    """
    try:
        descriptor = open_regular(f"{pack}/{NAME}")
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        content = file.read(_MOST_BYTES)
    open_pauses: dict[Start, MemberPause] = {}
    found: list[MemberPause] = []
    for line in content.splitlines():
        change = _parse_change(line)
        if change is None:
            continue
        at, paused, resumed, reason = change
        ended = [open_pauses.pop(key) for key in resumed if key in open_pauses]
        found += [replace(pause, end=at) for pause in ended]
        for key in paused:
            open_pauses.setdefault(key, MemberPause(*key, at, None, reason))
    return sorted([*found, *open_pauses.values()], key=lambda pause: (pause.begin, pause.member))


def _parse_change(line: bytes) -> tuple[float, list[Start], list[Start], str] | None:
    try:
        value: dict[str, Any] = json.loads(line)
        if value["schema"] != SCHEMA:
            return None
        paused = [(int(member), int(start)) for member, start in value["paused"]]
        resumed = [(int(member), int(start)) for member, start in value["resumed"]]
        return float(value["at"]), paused, resumed, str(value["reason"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


# ----
# Marks of a whole pack: its members were taken over before it began, or it is being cancelled.

CANCELLING = "cancelling"
"""A mark: csub has told Slurm to cancel the pack's job, or is at it."""


@dataclass(frozen=True)
class EmptiedRecord:
    """All that a pack had went to another before it began (emptied.json).

    Attributes:
        by: The pack that took the last of them.
        at: When, in seconds since the epoch.
    """

    by: str = ""
    at: float = 0.0


def empty_pack(pack: Path, by: str) -> bool:
    """Close a pack that has not begun, once nothing is left in it to run; False where that is not.

    Members that were cancelled while they waited stay in it. The caller holds the pack's lock, so
    that neither a runner begins nor a job joins meanwhile.

    Args:
        pack: The pack's directory.
        by: The pack that has taken its members.

    Raises:
        StateError: It cannot be told, or not be written down.
        OSError: Likewise.
    """
    if has_left_to_run(pack) or not inbox.close(str(pack)):
        return False
    write_json(pack / "emptied.json", asdict(EmptiedRecord(by, time.time())))
    return True


def has_left_to_run(pack: Path) -> bool:
    """Whether a pack has begun, or has members that wait or are on their way to another.

    Raises:
        StateError: It cannot be told.
        OSError: Likewise.
    """
    if read_attempt(pack) or inbox.list_moving(str(pack)):
        return True
    folders = (pack / "members" / format_number(number) for number in list_claimed(pack))
    return any(not is_there(folder / "cancelled") for folder in folders)


def read_emptied(pack: Path) -> str:
    """The pack that took over all that a pack had; empty where that is not so.

    Raises:
        StateError: The mark is damaged.
    """
    record = read_record(pack / "emptied.json", EmptiedRecord)
    return "" if record is None else record.by or "?"


@contextlib.contextmanager
def being_cancelled(pack: Path) -> Iterator[None]:
    """Mark a pack while Slurm is told to cancel its job; the caller holds its lock.

    The mark stays where that was done, so that no other pack takes its members over afterwards.

    Raises:
        StateError: It cannot be written.
    """
    mark = pack / CANCELLING
    # It is for others that look now: a machine that fails has no need of it.
    write_atomic(mark, b"", outlives_crash=False)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(mark)
        raise


def is_being_cancelled(pack: Path) -> bool:
    """Whether csub has told Slurm to cancel a pack's job, or is at it."""
    return is_there(pack / CANCELLING)
