"""The packs of one user as the owner and others can read them: nothing here changes a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.ownership import find_caller, name_user
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    is_there,
    read_file_clock,
    suppress_damage,
)
from slurm_colloc.store.file_locks import is_locked
from slurm_colloc.store.job_index import JobIndex, build_pack_id
from slurm_colloc.store.pack.member_holds import HELD, LEFT
from slurm_colloc.store.pack.pack_directory import ENTRY, read_pack, read_slurm_job_id
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack.take_over import OVER, parse_mark
from slurm_colloc.store.record_files import read_record

SOURCES = "sources"
"""In a pack's directory: the packs of other submissions of which it may have members."""

UNFINISHED_S = 10.0
"""A file is written and renamed in one go; one that is not by then never will be."""


class StateReader:
    """The state directory of one user, who may be another than the caller.

    `packs.State` adds what changes it, and is made for the caller's own alone: see
    `packs.open_state`.

    Args:
        root: Its path.
        cluster: Name of the Slurm cluster that job ids are of; empty where it is not known.
        owner_uid: Whose it is; None for the caller's.
    """

    def __init__(self, root: Path, cluster: str = "", owner_uid: int | None = None) -> None:
        self.root = root
        self.owner_uid = find_caller() if owner_uid is None else owner_uid
        self.cluster = cluster
        self.packs = root / "packs"
        self.open = root / "open"
        self.jobs = root / "jobs"
        self.making = root / "making"

    @property
    def owner_name(self) -> str:
        """The owner's name."""
        return name_user(self.owner_uid)

    def pack_path(self, pack_id: str) -> Path:
        """Where a pack lies."""
        return self.packs / pack_id

    def list_making(self) -> list[str]:
        """Submissions that have a lock: being made now, or interrupted."""
        try:
            names = os.listdir(self.making)
        except FileNotFoundError:
            return []
        submissions = {name[:-5] for name in names if name.endswith(".lock")}
        for name in names:
            # A lock that was never finished: killed within its first moments.
            if name.endswith(".new"):
                with contextlib.suppress(OSError):
                    changed_at = (self.making / name).stat().st_mtime
                    if read_file_clock(self.making) - changed_at > UNFINISHED_S:
                        submissions.add(name[:-4])
        return sorted(submissions)

    def is_being_submitted(self, submission: str) -> bool:
        """True while the csub that made a submission, or its sbatch, is alive.

        Raises:
            StateError: It cannot be told.
        """
        return is_locked(self._lock_path(submission))

    def _lock_path(self, submission: str) -> Path:
        return self.making / f"{submission}.lock"

    def list_open(self) -> list[str]:
        """Ids of the packs that may still change, oldest first."""
        try:
            return sorted(name for name in os.listdir(self.open) if ".tmp" not in name)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(f"cannot read {self.open}: {os.strerror(error.errno or 0)}") from error

    def list_all(self) -> list[str]:
        """Ids of all packs, oldest first."""
        try:
            return sorted(os.listdir(self.packs))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(
                f"cannot read {self.packs}: {os.strerror(error.errno or 0)}"
            ) from error

    def is_elsewhere(self, record: PackRecord) -> bool:
        """True for a pack that is not known to be of this cluster.

        Slurm here may not know its job, or know another one by its id.
        """
        is_known = record.local or (self.cluster and record.cluster)
        return not is_known or self.is_of_another(record)

    def is_of_another(self, record: PackRecord) -> bool:
        """True for a pack that is known to be of another cluster."""
        if record.local or not (self.cluster and record.cluster):
            return False
        return record.cluster.lower() != self.cluster.lower()

    def read_pack(self, pack_id: str) -> PackRecord | None:
        """Read pack.json; None if there is no such pack."""
        return read_pack(self.packs / pack_id)

    def _list_indexes(self, job_id: str) -> Iterator[Path]:
        """Where the packs of a job id may be written down, the surest place first."""
        path = build_index_path(self.root, job_id, self.cluster)
        yield path
        # The cluster was not known when it was submitted.
        yield build_index_path(self.root, job_id, "")
        if not self.cluster:
            # To look at, one that a single cluster has given is no riddle.
            found = list(self.jobs.glob(f"*.{job_id}.json"))
            if len(found) == 1:
                yield found[0]

    def find_packs(self, job_id: str) -> list[str]:
        """Ids of the packs that a Slurm job id stands for, in order.

        Behind its own come those that have taken members of it over (`list_takers`), in which
        other members are, too.

        Raises:
            NotFound: csub knows no such job.
            StateError: It cannot be told.
        """
        takers = self.list_takers(job_id)
        for path in self._list_indexes(job_id):
            index = read_record(path, JobIndex)
            found = [] if index is None else index.list_packs()
            found = [pack_id for pack_id in found if is_there(self.packs / pack_id)]
            if found:
                return [*found, *takers]
        if takers:
            return takers
        raise NotFound(
            f"csub has no job {job_id} in {self.root}",
            hint="csub queue --all lists what it knows; a plain Slurm job is seen with squeue",
        )

    def list_takers(self, job_id: str) -> list[str]:
        """Ids of packs of other submissions that may have taken members of one over.

        Args:
            job_id: The id after which its members are named.

        Raises:
            StateError: It cannot be told.
        """
        return self._list_named(build_takers_path(self.root, job_id, self.cluster))

    def list_sources(self, pack_id: str) -> list[str]:
        """Ids of packs of other submissions of which a pack may have taken members over.

        Raises:
            StateError: It cannot be told.
        """
        return self._list_named(self.packs / pack_id / SOURCES)

    def _list_named(self, folder: Path) -> list[str]:
        """The packs that are there of those that a directory names; none where it is missing."""
        with explain_os_errors("look at", folder):
            try:
                names = sorted(os.listdir(folder))
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [name for name in names if is_there(self.packs / name)]

    def list_sisters(self, record: PackRecord) -> list[str]:
        """Ids of the packs of a pack's submission, its own among them, in order.

        Some may not be there any more; where the whole submission cannot be found, those of the
        pack's own Slurm job.

        Raises:
            StateError: The file system fails.
        """
        if record.shown_id:
            with contextlib.suppress(NotFound), suppress_damage():
                takers = self.list_takers(record.shown_id)
                return [name for name in self.find_packs(record.shown_id) if name not in takers]
        return JobIndex(record.submission, record.indices, record.parts).list_packs()

    def find_slurm_jobs(self, job_id: str) -> tuple[str, ...]:
        """The Slurm jobs that the id of a submission stands for; none where csub knows no such."""
        index = read_record(build_index_path(self.root, job_id, self.cluster), JobIndex)
        if index is None:
            return ()
        found = []
        for submission, indices in index.list_parts():
            path = self.packs / build_pack_id(submission, indices[0])
            element_id = read_slurm_job_id(path) if is_there(path) else None
            if element_id:
                found.append(element_id.partition("_")[0])
        # The GPU sets of one Slurm job are parts with the same id.
        return tuple(dict.fromkeys(found))


def explain_unreadable(path: Path, error: OSError | StateError) -> StateError:
    """What is wrong with a pack that cannot be read."""
    if isinstance(error, StateError):
        return error
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StateError(f"cannot read {error.filename or path}: {reason}")


def name_gpu_set(submission: str, number: int) -> str:
    """The name that the packs of a GPU set have in the state: a part of the call like others.

    Args:
        submission: The name of the Slurm job's packs.
        number: The GPU set's number, from 0; the first has no name of its own.
    """
    return f"{submission}~{number}" if number else submission


def list_gpu_set_packs(record: PackRecord) -> list[str]:
    """Ids of the packs of all GPU sets of a pack's Slurm job, its own among them, in order."""
    count = max(1, len(record.gpu_sets))
    names = (name_gpu_set(record.submission, number) for number in range(count))
    return [build_pack_id(name, record.index) for name in names]


def list_node_packs(record: PackRecord, node: int) -> list[str]:
    """Ids of those of them whose GPU sets are on one node of the job, in order.

    Args:
        record: A pack of the job.
        node: The node, counted from 0.
    """
    names = list_gpu_set_packs(record)
    nodes = record.set_nodes or (0,) * len(names)
    return [name for name, at in zip(names, nodes, strict=True) if at == node]


def find_submission(pack_id: str) -> str:
    """The name of the Slurm job's packs, from a pack's id."""
    return pack_id.rpartition(".")[0].partition("~")[0]


def build_index_path(root: Path, job_id: str, cluster: str) -> Path:
    """The file that says which packs a job id of a cluster stands for."""
    is_of_a_cluster = cluster and not job_id.startswith("L")
    return root / "jobs" / (f"{cluster}.{job_id}.json" if is_of_a_cluster else f"{job_id}.json")


def build_takers_path(root: Path, job_id: str, cluster: str) -> Path:
    """The directory that names the packs of other submissions that have members of a job."""
    return build_index_path(root, job_id, cluster).with_suffix(".takers")


@dataclass(frozen=True, slots=True)
class MemberFiles:
    """A member's directory as it was at one moment.

    Attributes:
        number: The member's number.
        path: Its directory.
        names: The files in it.
    """

    number: int
    path: str
    names: AbstractSet[str]

    @property
    def is_cancelled(self) -> bool:
        """It was taken out of the queue before it started."""
        return "cancelled" in self.names

    @property
    def is_held(self) -> bool:
        """Its runner must not start it."""
        return HELD in self.names or LEFT in self.names

    @property
    def taker(self) -> str:
        """The pack that has taken it over and not accepted it yet; empty for none."""
        marks = (name for name in self.names if name.startswith(OVER))
        return parse_mark(next(marks, ""), self.number).taker

    @property
    def is_moved(self) -> bool:
        """It was submitted again in another pack, see `read_moved`."""
        return "moved.json" in self.names


def list_member_files(pack: Path | str) -> list[MemberFiles]:
    """All members of a pack by number; a joiner that has not entered is none.

    A directory this small is listed in one go, so that the files of a joiner that has just
    entered are seen together (see `directory.has_entered`).

    Raises:
        StateError: The pack cannot be read.
    """
    root = f"{pack}/members"
    found = []
    try:
        for name in os.listdir(root):
            if name.isdigit():
                path = f"{root}/{name}"
                try:
                    names = frozenset(os.listdir(path))
                except FileNotFoundError:
                    # A joiner that has not entered was dropped just now.
                    continue
                if "spec.json" in names and ENTRY not in names:
                    found.append(MemberFiles(int(name), path, names))
    except OSError as error:
        raise StateError(f"cannot read {pack}: {os.strerror(error.errno or 0)}") from error
    found.sort(key=lambda files: files.number)
    return found
