"""What other processes leave for a pack's runner: one small file for each request.

Also: degree.json: how many members of a pack run at once, and why; its runner writes it.

Requests about members lie in `control/`, jobs that wait for members in `dependents/`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import time
from collections.abc import Iterable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import asdict, dataclass, field, replace
from slurm_colloc.model.measured_curve import CurvePoint, DegreeDecision, DegreeState, RateAlone
from slurm_colloc.model.records import is_known
from slurm_colloc.store.atomic_files import make_directory, read_record, write_json


class Action(enum.StrEnum):
    """What may be asked of a runner for one member."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    SIGNAL = "signal"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        action: What to do.
        number: To which member.
        signal: Which signal to send, for SIGNAL; 0 otherwise.
        steps_only: SIGNAL goes to the member's own job steps, not to its script.
        reason: By whom or why, for the member's state.
        path: Where it lies; empty before it is written.
    """

    action: Action
    number: int
    signal: int = 0
    steps_only: bool = False
    reason: str = ""
    path: str = field(default="", compare=False)


def write_request(pack: Path | str, request: Request) -> str:
    """Leave a request for the runner; returns its path, which is gone once it is done.

    Raises:
        StateError: It cannot be written.
    """
    # The time tells apart what one tick of the file system's clock does not.
    name = f"{time.time_ns():020d}-{request.action}-{os.urandom(4).hex()}.json"
    path = f"{pack}/control/{name}"
    value = asdict(request)
    del value["path"]
    write_json(path, value)
    return path


def list_requests(pack: Path | str, unreadable: list[StateError] | None = None) -> list[Request]:
    """All requests that are left, oldest first; those that say nothing are dropped.

    A request stays until `forget_request`: one that was read and not done yet is not lost with the
    process that read it.

    Args:
        pack: The pack's directory.
        unreadable: Takes what is wrong with those that cannot be read now.

    Raises:
        OSError: They cannot be listed.
        StateError: One cannot be read now, and there is no `unreadable`.
    """
    entries = []
    for name in os.listdir(f"{pack}/control"):
        if name.endswith(".json"):
            path = f"{pack}/control/{name}"
            with contextlib.suppress(FileNotFoundError):
                entries.append((os.stat(path).st_mtime_ns, path))
    requests = []
    for _, path in sorted(entries):
        try:
            request = read_record(path, Request)
        except StateError as error:
            if not isinstance(error.__cause__, OSError):
                forget_request(path)
            elif unreadable is None:
                raise
            else:
                unreadable.append(error)
            continue
        if request is None:
            continue
        if is_known(request.action):
            requests.append(replace(request, path=path))
        else:
            # Only a newer csub knows what it asks for.
            forget_request(path)
    return requests


def is_cancel_asked(places: Iterable[tuple[Path | str, int]]) -> bool:
    """Whether a runner was asked to cancel a member, and has not done it.

    Args:
        places: The packs in which the member was or is, with its number in each.

    Raises:
        OSError: The requests cannot be listed.
        StateError: One cannot be read now.
    """
    return any(
        request.action is Action.CANCEL and request.number == number
        for pack, number in places
        for request in list_requests(pack)
    )


def hand_on_requests(source: Path | str, number: int, taker: Path | str, there: int) -> None:
    """Let what was asked of one pack's runner for a member be asked of another's.

    Args:
        source: The pack where the member was.
        number: The member's number there.
        taker: The pack where it is now.
        there: Its number there.

    Raises:
        OSError: The requests cannot be listed.
        StateError: One cannot be read now, or not be written.
    """
    for request in list_requests(source):
        if request.number == number:
            write_request(taker, replace(request, number=there))
            forget_request(request.path)


def forget_request(path: str) -> None:
    """Remove a request that is done, or can never be."""
    with contextlib.suppress(OSError):
        os.unlink(path)


# csub writes a dependent once sbatch has answered; the pack's runner reads it and removes it when
# it has let the job go. Where it is missing, the job starts when the pack is over.


@dataclass(frozen=True)
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
    write_json(pack / "dependents" / f"{dependent.job_id}.json", asdict(dependent))


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
        with contextlib.suppress(StateError):
            dependent = read_record(pack / "dependents" / name, Dependent)
            if dependent is not None:
                found.append(dependent)
    return found


def forget_dependent(pack: Path, job_id: str) -> None:
    """Note that a job does not wait any more."""
    with contextlib.suppress(OSError):
        os.unlink(pack / "dependents" / f"{job_id}.json")


# ---- degree.json: how many members of a pack run at once, and why; its runner writes it ----------

KEPT = 8
"""Decisions that are kept, the newest."""


@dataclass(frozen=True)
class CoreLoan:
    """Cores that a member has, or had, besides its own.

    Attributes:
        member: Its number.
        own: Cores that it asked for.
        cores: Those that it has now.
        most: The most that it had.
        of: Cores of the job.
        wait_share: The part of its time that it waited for data before.
        gain: By what part its rate rose; None before that is known.
    """

    member: int
    own: int
    cores: int
    most: int
    of: int
    wait_share: float
    gain: float | None = None


@dataclass(frozen=True)
class MovedMemory:
    """A member whose GPU memory is in host memory, or cannot be moved.

    Attributes:
        member: Its number.
        mb: GPU memory that is in host memory, in MiB; None where none is, or that is unknown.
        problem: Why it is not moved, or not brought back yet; empty where all went well.
    """

    member: int
    mb: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class WorkersAdvice:
    """A member that waits for data next to cores that its DataLoader's workers cannot use.

    Attributes:
        member: Its number.
        workers: How many there are.
        cores: Those that it has, or could be lent.
        advised: How many would load as fast as it trains, or use all of the cores.
    """

    member: int
    workers: int
    cores: int
    advised: int


@dataclass(frozen=True)
class DegreeRecord:
    """What the runner has measured, and decided.

    Attributes:
        attempt: The attempt that wrote it.
        state: How far the measurement is.
        degree: Members that may run at the same time.
        places: Members that can be there at the same time, parked ones included.
        room: For how many more there is room, beyond those that wait in it; None where that is not
            known.
        free_gpu_memory_mb: GPU memory that is reserved for none, on the GPU with most of it; None
            where unknown.
        memory_has_settled: What is reserved for those that run will not shrink soon.
        parked: Numbers of the members that are paused until a place is free for them.
        curve: The newest points of the curve, by degree.
        rates_alone: The rates alone of members, by number.
        cost_s: What pausing for measurements has cost so far: seconds of the whole pack's progress.
        decisions: The newest decisions, the oldest first.
        cores: Cores that members have, or had, besides their own, by number.
        workers: Members that have too few workers for the cores that there are, by number.
        moved: Members that take turns and whose GPU memory is away, or has to stay, by number.
    """

    attempt: int
    state: DegreeState = DegreeState.OFF
    degree: int = 1
    places: int = 1
    room: int | None = None
    free_gpu_memory_mb: int | None = None
    memory_has_settled: bool = False
    parked: tuple[int, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    rates_alone: tuple[RateAlone, ...] = ()
    cost_s: float = 0.0
    decisions: tuple[DegreeDecision, ...] = ()
    cores: tuple[CoreLoan, ...] = ()
    workers: tuple[WorkersAdvice, ...] = ()
    moved: tuple[MovedMemory, ...] = ()

    @property
    def reason(self) -> str:
        """The reason of the newest decision; empty while there is none."""
        return self.decisions[-1].reason if self.decisions else ""

    def describe(self) -> str:
        """What was decided last; empty where nothing was, or nothing could be measured."""
        return "" if self.state is DegreeState.OFF else self.reason


def write_degree(pack: Path, record: DegreeRecord) -> None:
    """Write a pack's degree.json; the runner of the newest attempt alone does.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{pack}/degree.json", asdict(record))


def read_degree(pack: Path, attempt: int) -> DegreeRecord | None:
    """Read a pack's degree.json; None where no runner of this attempt has written one.

    Raises:
        StateError: It is damaged.
    """
    record = read_record(f"{pack}/degree.json", DegreeRecord)
    return None if record is None or record.attempt != attempt else record
