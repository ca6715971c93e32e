"""Taking users' reports out of the spool: nothing of them is believed that Slurm does not say, too.

A file is opened without following links, must be a plain one with one name, small, and whole JSON
of the right shape. Its owner, as the kernel tells it, must be the owner of the job in Slurm's
accounting; node, times and GPUs must be those of the job.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.fleet_record import BYTES_MOST, FleetRecord, parse_fleet_record
from slurm_colloc.slurm.job_accounts import AccountedJob
from slurm_colloc.store.foreign_json import parse_foreign
from slurm_colloc.store.site_spool import ENDING, HALF

FILES_MOST = 20_000
"""Of one run; the rest waits for the next."""
FILES_OF_USER_MOST = 2_000
"""Of one user in one run, so that none can keep others waiting."""
PATIENCE_S = 86_400.0
"""How long a report waits for Slurm's accounting to know its job."""
_SLACK_S = 120.0
"""By how much clocks of nodes and of the controller may differ."""


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
        waiting: How many wait for Slurm to know their job.
        done: Names of files that may go.
    """

    accepted: list[Accepted] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    done: list[str] = field(default_factory=list)

    def reject(self, name: str, reason: str) -> None:
        """Refuse a file, which goes."""
        self.rejected[reason] += 1
        self.done.append(name)


def collect(
    spool: str,
    ask: Callable[[Sequence[str]], Mapping[str, AccountedJob]],
    now: float | None = None,
) -> Collection:
    """Read what is in the spool and compare it with Slurm; nothing is removed.

    Args:
        spool: The directory.
        ask: Asks Slurm about jobs.
        now: Seconds since the epoch; None for the time it is.

    Raises:
        SlurmError: Slurm cannot be asked; then nothing is refused.
        StateError: The spool cannot be read.
    """
    moment = time.time() if now is None else now
    found = Collection()
    arrivals = _read_all(spool, found, moment)
    jobs = ask(sorted({arrival.record.job_id for arrival in arrivals})) if arrivals else {}
    for arrival in arrivals:
        job = jobs.get(arrival.record.job_id)
        if job is None or (job.ended_at is None and arrival.age_s < PATIENCE_S):
            if arrival.age_s < PATIENCE_S:
                found.waiting += 1
            else:
                found.reject(arrival.name, "unknown job")
            continue
        problem = judge(arrival, job)
        if problem:
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
    begin, end = job.started_at, job.ended_at
    if begin is None or record.started_at < begin - _SLACK_S:
        return "time"
    if end is not None and record.ended_at > end + _SLACK_S:
        return "time"
    if record.gpus > max(1, job.gpus):
        return "gpus"
    # Slurm writes a single node as its name alone; it may know it with a domain.
    is_one = "[" not in job.nodes and "," not in job.nodes
    if is_one and record.node.partition(".")[0] != job.nodes.partition(".")[0]:
        return "node"
    return ""


def _read_all(spool: str, found: Collection, now: float) -> list[Arrival]:
    reader = _SpoolReader(found, now)
    try:
        with _opened(spool) as folder, os.scandir(folder) as entries:
            # In the order in which they are met: a listing of millions is not sorted.
            for entry in entries:
                if len(reader.arrivals) + len(found.done) >= FILES_MOST:
                    break
                reader.take(folder, entry.name)
    except OSError as error:
        raise StateError(f"cannot read {spool}: {os.strerror(error.errno or 0)}") from error
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
    """

    def __init__(self, found: Collection, now: float) -> None:
        self.arrivals: list[Arrival] = []
        self._found = found
        self._now = now
        self._of_user: Counter[int] = Counter()

    def take(self, folder: int, name: str) -> None:
        """Read one file, whatever it is."""
        try:
            data, status = _read(folder, name)
        except _NoReport as problem:
            written = problem.status.st_mtime if problem.status is not None else 0.0
            # A file that is just being written is left alone.
            if not name.startswith(HALF) or self._now - written > PATIENCE_S:
                self._found.reject(name, problem.reason)
            return
        except OSError:
            # It has gone meanwhile, or may not be read: its owner's business.
            return
        self._of_user[status.st_uid] += 1
        if self._of_user[status.st_uid] > FILES_OF_USER_MOST:
            self._found.waiting += 1
            return
        try:
            record = parse_fleet_record(parse_foreign(data, "a report", strict=True))
        except (UsageProblem, ValueError):
            self._found.reject(name, "content")
            return
        age_s = max(0.0, self._now - status.st_mtime)
        self.arrivals.append(Arrival(name, status.st_uid, age_s, record))


class _NoReport(Exception):
    def __init__(self, reason: str, status: os.stat_result | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


def _read(folder: int, name: str) -> tuple[bytes, os.stat_result]:
    """A file's content and whose it is; both of the same opened file."""
    look = os.lstat(name, dir_fd=folder)
    if not stat.S_ISREG(look.st_mode):
        raise _NoReport("kind", None)
    if name.startswith(HALF) or not name.endswith(ENDING):
        raise _NoReport("name", look)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _NoReport("kind", None)
        # Another name of somebody else's file would have its owner.
        if status.st_nlink != 1:
            raise _NoReport("links", None)
        if status.st_size > BYTES_MOST:
            raise _NoReport("size", None)
        data = b""
        while part := os.read(descriptor, BYTES_MOST + 1 - len(data)):
            data += part
            if len(data) > BYTES_MOST:
                raise _NoReport("size", None)
        return data, status
    finally:
        os.close(descriptor)


def remove_done(spool: str, names: Sequence[str]) -> int:
    """Remove files that were read; how many stay because they cannot be removed.

    Raises:
        StateError: The spool cannot be opened.
    """
    left = 0
    try:
        with _opened(spool) as folder:
            for name in names:
                try:
                    os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except IsADirectoryError:
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=folder)
                        continue
                    left += 1
                except OSError:
                    left += 1
    except OSError as error:
        raise StateError(f"cannot open {spool}: {os.strerror(error.errno or 0)}") from error
    return left
