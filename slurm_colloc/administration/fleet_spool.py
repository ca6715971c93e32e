"""Taking users' reports out of the spool: nothing of them is believed that Slurm does not say, too.

A file is opened without following links, must be a plain one with one name, small, and whole JSON
of the right shape. Its owner, as the kernel tells it, must be the owner of the job in Slurm's
accounting; cluster, node, times and GPUs must be those of the job.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from slurm_colloc.errors import UsageProblem, failed_to
from slurm_colloc.model.fleet_record import BYTES_MOST, FleetRecord, parse_fleet_record
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.slurm.accounting import AccountedJob
from slurm_colloc.store.atomic_files import ENDING, HALF
from slurm_colloc.store.foreign_files import (
    UnexpectedFile,
    open_file,
    parse_foreign,
    read_descriptor,
)

FILES_MOST = 20_000
"""Of one run; the rest waits for the next."""
FILES_OF_USER_MOST = 2_000
"""Of one user in one run, refused ones by themselves, so that no user can keep others waiting."""
SECONDS_OF_USER = 10.0
"""How long one run deals with the files of one user; the rest waits for the next."""
WAITING_OF_USER_MOST = 20_000
"""Files of one user that may wait; what is beyond that is refused, so that it is met only once."""
SURPLUS_MOST = 200_000
"""Of such files, in one run."""
PATIENCE_S = 86_400.0
"""How long a report waits for Slurm's accounting to know its job."""
_SLACK_S = 120.0
"""By how much clocks of nodes and of the controller may differ."""
_ANYONE = -1


@dataclass(frozen=True)
class Arrival:
    """A report that has been read.

    Attributes:
        name: Its file's name.
        uid: Whose file it is.
        age_s: For how long it has been there.
        record: What it says.
    """

    name: str
    uid: int
    age_s: float
    record: FleetRecord


@dataclass(frozen=True)
class Accepted:
    """A report that agrees with what Slurm says.

    Attributes:
        record: What it says.
        job: What Slurm says.
    """

    record: FleetRecord
    job: AccountedJob


@dataclass
class Collection:
    """What one run has found.

    Attributes:
        accepted: Reports to keep.
        rejected: How many were refused, by the reason.
        waiting: How many wait for Slurm to know their job, or for the next run.
        uncounted: How many of these had a GPU, and by Slurm their job had none.
        done: Names of files that may go.
    """

    accepted: list[Accepted] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    uncounted: int = 0
    done: list[str] = field(default_factory=list)

    def reject(self, name: str, reason: str) -> None:
        """Refuse a file, which goes."""
        self.rejected[reason] += 1
        self.done.append(name)


def collect(
    spool: str,
    ask: Callable[[Sequence[str]], Mapping[str, AccountedJob]],
    now: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Collection:
    """Read what is in the spool and compare it with Slurm; nothing is removed.

    Args:
        spool: The directory.
        ask: Asks Slurm about jobs.
        now: Seconds since the epoch; None for the time it is.
        clock: Seconds that only grow, for what a user's files cost.

    Raises:
        SlurmError: Slurm cannot be asked; then nothing is refused.
        StateError: The spool cannot be read.
    """
    moment = time.time() if now is None else now
    found = Collection()
    arrivals = _read_all(spool, found, moment, clock)
    jobs = ask(sorted({arrival.record.job_id for arrival in arrivals})) if arrivals else {}
    for arrival in arrivals:
        job = jobs.get(arrival.record.job_id)
        is_patient = arrival.age_s < PATIENCE_S
        if job is None and not is_patient:
            found.reject(arrival.name, "unknown job")
            continue
        if job is None or job.ended_at is None:
            found.waiting += 1
            continue
        problem = judge(arrival, job)
        if problem == "gpus" and not job.gpus and is_patient:
            # Slurm may count no GPUs at all, which its administrator can mend.
            found.waiting += 1
            found.uncounted += 1
        elif problem:
            found.reject(arrival.name, problem)
        else:
            found.accepted.append(Accepted(arrival.record, job))
            found.done.append(arrival.name)
    return found


def judge(arrival: Arrival, job: AccountedJob) -> str:
    """Why a report does not agree with Slurm's job; empty where it does; pure."""
    record = arrival.record
    if arrival.uid != job.uid:
        return "owner"
    if record.cluster and record.cluster.lower() != job.cluster.lower():
        return "cluster"
    begin, end = job.started_at, job.ended_at
    if begin is None or end is None:
        return "time"
    if record.started_at < begin - _SLACK_S or record.ended_at > end + _SLACK_S:
        return "time"
    if record.gpus > job.gpus or record.gpu_set >= max(1, job.gpus):
        return "gpus"
    # Slurm writes a single node as its name alone; it may know it with a domain.
    is_one = "[" not in job.nodes and "," not in job.nodes
    if is_one and record.node.partition(".")[0] != job.nodes.partition(".")[0]:
        return "node"
    return ""


def _read_all(
    spool: str, found: Collection, now: float, clock: Callable[[], float]
) -> list[Arrival]:
    reader = _SpoolReader(found, now, clock)
    with failed_to("read", spool), _opened(spool) as folder, os.scandir(folder) as entries:
        # In the order in which they are met: a listing of millions is not sorted.
        for entry in entries:
            if len(reader.arrivals) + len(found.done) - reader.surplus >= FILES_MOST:
                break
            reader.take(folder, entry.name)
    return reader.arrivals


@contextlib.contextmanager
def _opened(spool: str) -> Iterator[int]:
    descriptor = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _SpoolReader:
    """Reads files one after the other.

    Args:
        found: Takes those that are refused.
        now: Seconds since the epoch.
        clock: Seconds that only grow.
    """

    def __init__(self, found: Collection, now: float, clock: Callable[[], float]) -> None:
        self.arrivals: list[Arrival] = []
        self.surplus = 0
        """How many files were refused because their owner has too many."""
        self._clock = clock
        self._spent_s: defaultdict[int, float] = defaultdict(float)
        self._waiting_of_user: Counter[int] = Counter()
        self._found = found
        self._now = now
        self._of_user: Counter[int] = Counter()
        self._refused_of_user: Counter[int] = Counter()

    def take(self, folder: int, name: str) -> None:
        """Read one file, whatever it is, where its owner's part of this run is not used up."""
        begin_s = self._clock()
        try:
            look = os.lstat(name, dir_fd=folder)
        except OSError:
            # It has gone meanwhile.
            return
        owner = _choose_owner(look)
        if not self._leave(name, owner, look):
            self._take(folder, name, owner, look)
        self._spent_s[owner] += self._clock() - begin_s

    def _leave(self, name: str, owner: int, look: os.stat_result) -> bool:
        """Whether a file is not read in this run; one too many is never read."""
        used = max(self._of_user[owner], self._refused_of_user[owner])
        is_full = used >= FILES_OF_USER_MOST or self._spent_s[owner] >= SECONDS_OF_USER
        # A file that is just being written is left alone.
        if not is_full and not (name.startswith(HALF) and self._is_young(look)):
            return False
        self._waiting_of_user[owner] += 1
        if self._waiting_of_user[owner] <= WAITING_OF_USER_MOST or self.surplus >= SURPLUS_MOST:
            self._found.waiting += is_full
            return True
        self.surplus += 1
        self._found.reject(name, "too many")
        return True

    def _is_young(self, look: os.stat_result) -> bool:
        return self._now - look.st_ctime <= PATIENCE_S

    def _take(self, folder: int, name: str, owner: int, look: os.stat_result) -> None:
        reason = ""
        if not stat.S_ISREG(look.st_mode):
            reason = "kind"
        elif name.startswith(HALF) or not name.endswith(ENDING):
            reason = "name"
        else:
            try:
                data, status = _read(folder, name)
                record = parse_fleet_record(parse_foreign(data, "a report", strict=True))
            except UnexpectedFile as problem:
                reason = problem.what
            except PermissionError:
                # A whole report may be read.
                reason = "mode"
            except OSError:
                # It has gone meanwhile.
                return
            except (UsageProblem, ValueError):
                reason = "content"
        if reason:
            self._refused_of_user[owner] += 1
            self._found.reject(name, reason)
            return
        self._of_user[status.st_uid] += 1
        # Its owner may set the time at which it was written, and not this one.
        age_s = max(0.0, self._now - status.st_ctime)
        self.arrivals.append(Arrival(name, status.st_uid, age_s, record))


def _choose_owner(look: os.stat_result) -> int:
    """Who put a file there; another name of somebody's file may be anyone's work."""
    is_own = stat.S_ISDIR(look.st_mode) or look.st_nlink == 1
    return look.st_uid if is_own else _ANYONE


def _read(folder: int, name: str) -> tuple[bytes, os.stat_result]:
    """A file's content and whose it is; both of the same opened file."""
    # Another name of somebody else's file would have its owner.
    descriptor = open_file(name, folder=folder, is_alone=True)
    try:
        return read_descriptor(descriptor, name, BYTES_MOST), os.fstat(descriptor)
    finally:
        os.close(descriptor)


def remove_done(spool: str, names: Sequence[str]) -> list[str]:
    """Remove files that were read; the names of those that cannot be removed.

    Raises:
        StateError: The spool cannot be opened.
    """
    left = []
    with failed_to("open", spool), _opened(spool) as folder:
        for name in names:
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=folder)
                    continue
                left.append(name)
            except OSError:
                left.append(name)
    return left
