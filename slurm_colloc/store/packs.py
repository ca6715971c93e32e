"""The packs of one user: making them whole or not at all, and finding them again.

<state>/packs/<pack id>/     a pack, see docs/architecture.md
<state>/open/<pack id>       exists while the pack may still change: what a sweep looks at
<state>/jobs/<job id>.json   which packs a Slurm job id stands for
<state>/making/              packs that are being written
<state>/script.*.json        the batch script as it was rendered last, see submission.render
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_colloc.errors import NotFound, SlurmNoAnswer, StateError
from slurm_colloc.store.directory import NewPack, read_pack, write_pack
from slurm_colloc.store.files import (
    explain_os_errors,
    is_locked,
    make_directory,
    read_json,
    write_atomic,
    write_json,
)
from slurm_colloc.store.records import (
    PackRecord,
)

UNFINISHED_S = 10.0
"""A file is written and renamed in one go; one that is not by then never will be."""


def build_pack_id(submission: str, index: int) -> str:
    """Name of a pack's directory."""
    return f"{submission}.{index}"


def make_submission_id() -> str:
    """A name that no other call has: the time for people, random bits for certainty."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"


class State:
    """The state directory of one user.

    Args:
        root: Its path; directories are made 0700, files 0600.
        cluster: Name of the Slurm cluster that job ids are of; empty where it is not known.
    """

    def __init__(self, root: Path, cluster: str = "") -> None:
        self.root = root
        self.cluster = cluster
        self.packs = root / "packs"
        self.open = root / "open"
        self.jobs = root / "jobs"
        self.making = root / "making"

    def prepare(self) -> None:
        """Make the directories.

        Raises:
            StateError: They cannot be made, or belong to somebody else.
        """
        if not self.making.is_dir() or not self.open.is_dir():
            for path in (self.root, self.packs, self.open, self.jobs, self.making):
                make_directory(path)
        with explain_os_errors("look at", self.root):
            owner = self.root.stat().st_uid
        if owner != os.geteuid():
            raise StateError(
                f"the state directory {self.root} belongs to uid {owner}, you are {os.geteuid()}",
                hint="set state_dir in the settings, or XDG_STATE_HOME, to a directory of yours",
            )

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
                    age_s = time.time() - (self.making / name).stat().st_mtime
                    if age_s > UNFINISHED_S:
                        submissions.add(name[:-4])
        return sorted(submissions)

    def drop_making(self, submission: str) -> None:
        """Remove what an interrupted csub left half-written; last the lock that names it."""
        for folder, pattern in ((self.making, "*"), (self.open, ".*.tmp*")):
            for path in folder.glob(f"{submission}{pattern}"):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif path != self._lock_path(submission):
                    path.unlink(missing_ok=True)
        if self._drop_unfinished_files(submission):
            self.forget_lock(submission)

    def _drop_unfinished_files(self, submission: str) -> bool:
        """Remove temporary files of a killed csub; False if one may be of a living process."""
        done = True
        for folder, pattern in ((self.jobs, "*.tmp*"), (self.packs, f"{submission}.*/*.tmp*")):
            for path in folder.glob(pattern):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > UNFINISHED_S:
                        path.unlink()
                    else:
                        done = False
        return done

    @contextlib.contextmanager
    def writing(self, packs: Sequence[NewPack]) -> Iterator[int]:
        """Write packs, hold their lock while the body submits them, and drop them if it fails.

        The lock belongs to the open file, so a child that inherits the descriptor holds it too:
        while csub or its sbatch lives, a sweep leaves the packs alone.

        Yields:
            The descriptor of the lock, to be inherited by sbatch.
        """
        submission = packs[0].record.submission
        workplace = self.making / submission
        lock = self._make_lock(submission)
        placed: list[str] = []
        try:
            with explain_os_errors("write", workplace):
                os.mkdir(workplace, 0o700)
                for pack in packs:
                    write_pack(workplace / pack.record.pack_id, pack)
            for pack in packs:
                pack_id = pack.record.pack_id
                placed.append(pack_id)
                write_atomic(self.open / pack_id, b"")
                with explain_os_errors("write", self.packs):
                    os.rename(workplace / pack_id, self.packs / pack_id)
            with contextlib.suppress(OSError):
                os.rmdir(workplace)
            yield lock
        except SlurmNoAnswer:
            # Slurm may have the job, or get it late: the sweep finds it by its comment, or drops
            # the packs in the end.
            for pack_id in placed:
                with contextlib.suppress(StateError):
                    write_atomic(self.packs / pack_id / "unanswered", b"")
            raise
        except BaseException:
            for pack_id in placed:
                self.discard(pack_id)
            shutil.rmtree(workplace, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(self._lock_path(submission))
            raise
        finally:
            os.close(lock)

    def _make_lock(self, submission: str) -> int:
        """Make a submission's lock; it is held before a sweep can see it."""
        path = self._lock_path(submission)
        hidden = path.with_suffix(".new")
        with explain_os_errors("write", path):
            lock = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.rename(hidden, path)
            except BaseException:
                os.close(lock)
                with contextlib.suppress(OSError):
                    os.unlink(hidden)
                raise
        return lock

    def _lock_path(self, submission: str) -> Path:
        return self.making / f"{submission}.lock"

    def is_being_submitted(self, submission: str) -> bool:
        """True while the csub that made a submission, or its sbatch, is alive."""
        return is_locked(self._lock_path(submission))

    def discard(self, pack_id: str) -> None:
        """Remove a pack that no Slurm job knows."""
        doomed = self.making / f"{pack_id}.discarded"
        with contextlib.suppress(OSError):
            # Out of sight first: nobody sees a half-removed pack.
            os.rename(self.packs / pack_id, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        self.forget_open(pack_id)

    def record_job(self, records: Sequence[PackRecord], job_id: str) -> None:
        """Write down which Slurm job the packs of one sbatch became.

        Args:
            records: The packs.
            job_id: The id that sbatch gave.
        """
        for record in records:
            self.record_pack_job(record, job_id)
        self.forget_lock(records[0].submission)

    def forget_lock(self, submission: str) -> None:
        """Note that a submission is complete."""
        with contextlib.suppress(OSError):
            os.unlink(self._lock_path(submission))

    def record_pack_job(self, record: PackRecord, job_id: str) -> None:
        """Write down which Slurm job one pack became."""
        # The index first: a pack that has its id is looked at no more.
        index = build_index_path(self.root, job_id, record.cluster)
        if record.index == record.indices[0] or not index.exists():
            write_job_index(self.root, job_id, record)
        path = self.packs / record.pack_id / "slurm_job_id"
        write_atomic(path, f"{build_element_id(record, job_id)}\n".encode())

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

    def forget_open(self, pack_id: str) -> None:
        """Note that a pack will not change any more."""
        with explain_os_errors("remove", self.open), contextlib.suppress(FileNotFoundError):
            os.unlink(self.open / pack_id)

    def is_elsewhere(self, record: PackRecord) -> bool:
        """True for a pack of another cluster: Slurm here knows nothing of it."""
        return bool(record.cluster and self.cluster and record.cluster != self.cluster)

    def read_pack(self, pack_id: str) -> PackRecord | None:
        """Read pack.json; None if there is no such pack."""
        return read_pack(self.packs / pack_id)

    def find_packs(self, job_id: str) -> list[str]:
        """Ids of the packs that a Slurm job id stands for, in order.

        Raises:
            NotFound: csub knows no such job.
        """
        value = read_json(build_index_path(self.root, job_id, self.cluster))
        if value is not None:
            ids = [build_pack_id(value["submission"], index) for index in value["indices"]]
            found = [pack_id for pack_id in ids if (self.packs / pack_id).is_dir()]
            if found:
                return found
        raise NotFound(
            f"csub has no job {job_id} in {self.root}",
            hint="csub queue --all lists what it knows; a plain Slurm job is seen with squeue",
        )


def build_element_id(record: PackRecord, job_id: str) -> str:
    """What Slurm calls a pack's job: `4711`, or `4711_2` for an element of an array."""
    return f"{job_id}_{record.index}" if record.is_array else job_id


def build_index_path(root: Path, job_id: str, cluster: str) -> Path:
    """The file that says which packs a job id of a cluster stands for."""
    is_of_a_cluster = cluster and not job_id.startswith("L")
    return root / "jobs" / (f"{cluster}.{job_id}.json" if is_of_a_cluster else f"{job_id}.json")


def write_job_index(root: Path, job_id: str, record: PackRecord) -> None:
    """Write which packs a Slurm job id stands for; the content is the same whoever writes it."""
    write_json(
        build_index_path(root, job_id, record.cluster),
        {"submission": record.submission, "indices": record.indices},
    )
