"""The packs of one user: making them whole or not at all, and finding them again.

<state>/packs/<pack id>/     a pack, see docs/architecture.md
<state>/open/<pack id>       exists while the pack may still change: what a sweep looks at
<state>/jobs/<job id>.json   which packs a Slurm job id stands for
<state>/jobs/<job id>.takers/<pack id>   packs of other submissions that may have members of it
<state>/making/              packs that are being written
<state>/script.*.json        the batch script as it was rendered last, see
submission.packs.batch_script
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_colloc.errors import NotFound, SlurmNoAnswer, StateError
from slurm_colloc.ownership import build_refusal, find_caller, find_owner, protect
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    is_there,
    make_directory,
    read_file_clock,
    suppress_damage,
    sync_file_system,
    write_atomic,
    write_json,
)
from slurm_colloc.store.job_index import JobIndex
from slurm_colloc.store.pack.pack_directory import NewPack, write_pack
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack_reading import (
    SOURCES,
    UNFINISHED_S,
    StateReader,
    build_index_path,
    build_takers_path,
    name_gpu_set,
)
from slurm_colloc.store.record_files import read_record

SYNCED_EACH_MOST = 16
"""Packs of one Slurm job whose files are waited for one by one; of more, all are at once."""


def make_submission_id() -> str:
    """A name that no other call has: the time for people, random bits for certainty."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"


class State(StateReader):
    """The caller's own state directory; directories are made 0700, files 0600.

    Args:
        root: Its path.
        cluster: Name of the Slurm cluster that job ids are of; empty where it is not known.
    """

    def prepare(self) -> None:
        """Make the directories.

        Raises:
            StateError: They cannot be made, or belong to another user.
        """
        if not self.making.is_dir() or not self.open.is_dir():
            for path in (self.root, self.packs, self.open, self.jobs, self.making):
                make_directory(path)
        with explain_os_errors("look at", self.root):
            owner = self.root.stat().st_uid
        if owner != find_caller():
            raise StateError(
                f"the state directory {self.root} belongs to uid {owner}, you are {find_caller()}",
                hint="set state_dir in the settings, or XDG_STATE_HOME, to a directory of yours",
            )

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
        for folder, pattern in ((self.jobs, "*.tmp*"), (self.packs, f"{submission}[.~]*/*.tmp*")):
            for path in folder.glob(pattern):
                with contextlib.suppress(FileNotFoundError):
                    changed_at = path.stat().st_mtime
                    if read_file_clock(path.parent) - changed_at > UNFINISHED_S:
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
                    path = workplace / pack.record.pack_id
                    write_pack(path, pack, outlives_crash=len(packs) <= SYNCED_EACH_MOST)
            if len(packs) > SYNCED_EACH_MOST:
                sync_file_system(workplace)
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

    def discard(self, pack_id: str) -> None:
        """Remove a pack that no Slurm job knows."""
        doomed = self.making / f"{pack_id}.discarded"
        with contextlib.suppress(OSError):
            # Out of sight first: no reader sees a half-removed pack.
            os.rename(self.packs / pack_id, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        self.forget_open(pack_id)

    def record_job(self, records: Sequence[PackRecord], job_id: str) -> None:
        """Write down which Slurm job the packs of one sbatch became.

        Args:
            records: The packs.
            job_id: The id that sbatch gave.
        """
        is_each = len(records) <= SYNCED_EACH_MOST
        for record in records:
            self.record_pack_job(record, job_id, outlives_crash=is_each)
        if not is_each:
            sync_file_system(self.packs)
        self.forget_lock(records[0].submission)

    def note_taker(self, source: str, job_id: str, taker: str) -> None:
        """Write down that members of one submission may be in a pack of another from now on.

        Args:
            source: The pack where they wait.
            job_id: The id after which they are named.
            taker: The pack of the other submission.

        Raises:
            StateError: It cannot be written.
        """
        for folder, name in (
            (build_takers_path(self.root, job_id, self.cluster), taker),
            (self.packs / taker / SOURCES, source),
        ):
            make_directory(folder)
            if not (folder / name).exists():
                write_atomic(folder / name, b"")

    def forget_lock(self, submission: str) -> None:
        """Note that a submission is complete."""
        with contextlib.suppress(OSError):
            os.unlink(self._lock_path(submission))

    def add_parts(self, job_id: str, parts: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """Note that a submission has more Slurm jobs; one csub of a user at a time does it.

        Args:
            job_id: The submission's id.
            parts: The name that each has in `submission`, and its elements.

        Raises:
            NotFound: There is no such submission.
        """
        path = build_index_path(self.root, job_id, self.cluster)
        index = read_record(path, JobIndex)
        if index is None:
            raise NotFound(f"csub has no job {job_id} in {self.root}")
        whole = dataclasses.replace(index, parts=(*index.list_parts(), *parts))
        write_json(path, dataclasses.asdict(whole))

    def record_pack_job(
        self, record: PackRecord, job_id: str, *, outlives_crash: bool = True
    ) -> None:
        """Write down which Slurm job one pack became; see `atomic_files.write_all`."""
        # The index first: a pack that has its id is looked at no more.
        index = build_index_path(self.root, job_id, record.cluster)
        if record.index == record.indices[0] or not is_there(index):
            write_job_index(self.root, job_id, record)
        path = self.packs / record.pack_id / "slurm_job_id"
        data = f"{build_element_id(record, job_id)}\n".encode()
        write_atomic(path, data, outlives_crash=outlives_crash)

    def forget_open(self, pack_id: str) -> None:
        """Note that a pack will not change any more."""
        with explain_os_errors("remove", self.open), contextlib.suppress(FileNotFoundError):
            os.unlink(self.open / pack_id)


def open_state(root: Path, cluster: str = "", owner_uid: int | None = None) -> StateReader:
    """Open a state directory: a `State` where it is the caller's own, else one to read alone.

    Once another user's was opened, nothing in this process writes into it any more.

    Args:
        root: Its path; it need not exist.
        cluster: Name of the Slurm cluster; empty where it is not known.
        owner_uid: Whose it is; None for the owner of the directory.
    """
    owner_uid = find_owner(root) if owner_uid is None else owner_uid
    if owner_uid in (None, find_caller()):
        return State(root, cluster)
    state = StateReader(root, cluster, owner_uid)
    protect(root, owner_uid)
    return state


def open_own_state(root: Path, cluster: str = "", owner_uid: int | None = None) -> State:
    """Open the caller's own state directory, to change it.

    Args:
        root: Its path; it need not exist.
        cluster: Name of the Slurm cluster; empty where it is not known.
        owner_uid: Whose it is; None for the owner of the directory.

    Raises:
        StateError: It is another user's.
    """
    state = open_state(root, cluster, owner_uid)
    if not isinstance(state, State):
        raise build_refusal(root, state.owner_name)
    return state


def build_element_id(record: PackRecord, job_id: str) -> str:
    """What Slurm calls a pack's job: `4711`, or `4711_2` for an element of an array."""
    return f"{job_id}_{record.index}" if record.is_array else job_id


def write_job_index(root: Path, job_id: str, record: PackRecord) -> None:
    """Write which packs a Slurm job id stands for; each writer would write the same.

    What has become a part of it since then stays.
    """
    path = build_index_path(root, job_id, record.cluster)
    # One that is damaged is written anew; of one that cannot be read now nothing may be lost.
    with suppress_damage():
        known = read_record(path, JobIndex)
        own = (name_gpu_set(record.submission, record.gpu_set), record.indices)
        if known is not None and own in known.list_parts():
            return
    index = JobIndex(record.submission, record.indices, record.parts)
    write_json(path, dataclasses.asdict(index))
