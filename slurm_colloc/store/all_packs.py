"""The packs of one user: making them whole or not at all, and finding them again.

Also: the packs of one user as the owner and others can read them: nothing here changes a file;
removing packs that are over, so that the state stays small; a kill at any moment is harmless.

<state>/packs/<pack id>/     a pack, see docs/architecture.md
<state>/open/<pack id>       exists while the pack may still change: what a sweep looks at
<state>/jobs/<job id>.json   which packs a Slurm job id stands for
<state>/jobs/<job id>.takers/<pack id>   packs of other submissions that may have members of it
<state>/making/              packs that are being written
<state>/script.*.json        the batch script as it was rendered last, see
submission.packs.submit_batch
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from slurm_colloc.errors import NotFound, SlurmNoAnswer, StateError
from slurm_colloc.model.job_ids import is_own_number
from slurm_colloc.model.late_definitions import asdict, dataclass, late_pattern, replace
from slurm_colloc.model.member import Selection
from slurm_colloc.ownership import (
    build_refusal,
    find_caller,
    find_owner,
    find_protected_owner,
    name_user,
    protect,
    secure_state,
)
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    is_locked,
    is_there,
    make_directory,
    read_file_clock,
    read_record,
    remove_file,
    remove_tree,
    suppress_damage,
    sync_file_system,
    write_atomic,
    write_json,
)
from slurm_colloc.store.inbox import OVER, parse_mark
from slurm_colloc.store.indexes import JobIndex, build_pack_id
from slurm_colloc.store.member_states import HELD, LEFT
from slurm_colloc.store.own_numbers import (
    claim_numbers,
    find_member,
    find_nearest,
    forget_claims,
    has_given,
    list_numbers,
)
from slurm_colloc.store.pack_directory import (
    ENTRY,
    NewPack,
    PackRecord,
    read_own_pack,
    read_slurm_job_id,
    write_pack,
    write_record,
)

# ---- The packs of one user as the owner and others can read them: nothing here changes a file ----

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
        owner_uid: Whose it is; None for the caller's, or whose it was as it was opened.
    """

    def __init__(self, root: Path, cluster: str = "", owner_uid: int | None = None) -> None:
        self.root = root
        known = find_protected_owner(root) if owner_uid is None else owner_uid
        self.owner_uid = find_caller() if known is None else known
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
        return [name for name in _list_sorted(self.open) if ".tmp" not in name]

    def list_all(self) -> list[str]:
        """Ids of all packs, oldest first."""
        return _list_sorted(self.packs)

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
        """Read pack.json; None if there is no such pack.

        Raises:
            StateError: It is damaged, or the pack is not the owner's alone.
        """
        return read_own_pack(self.packs / pack_id, self.owner_uid)

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

    def resolve(self, selection: Selection) -> Selection:
        """What a number of csub's own stands for: a member where it is. Others stay as they are.

        Raises:
            NotFound: It was given to no member that is still known, or a member of it is named.
            StateError: It cannot be told.
        """
        if not is_own_number(selection.job):
            return selection
        found = find_member(self.root, self.cluster, int(selection.job))
        record = None if found is None else self.read_pack(found[0])
        if found is None or record is None:
            # A federation's own ids are as large.
            if is_there(build_index_path(self.root, selection.job, self.cluster)):
                return selection
            known = map(str, list_numbers(self.root, self.cluster))
            near = find_nearest(selection.job, known)
            raise NotFound(
                f"csub has no job {selection.job} in {self.root}",
                hint=f"did you mean {near}?" if near else "csub queue --all lists what it knows",
            )
        if selection.ranges is not None:
            raise NotFound(
                f"{selection.job} is one job, which has no members",
                hint=f"csub show {selection.job}",
            )
        pack_id, number = found
        job = record.shown_id or (read_slurm_job_id(self.packs / pack_id) or "")
        return Selection.of(job.partition("_")[0], (number,))

    def has_given_numbers(self) -> bool:
        """Numbers of csub's own are in use: Slurm's ids are not as large."""
        return has_given(self.root, self.cluster)

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


def _list_sorted(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateError(f"cannot read {folder}: {os.strerror(error.errno or 0)}") from error


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


# ---- The packs of one user: making them whole or not at all, and finding them again --------------

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
            StateError: They cannot be made, or another user could change them.
        """
        if not self.making.is_dir() or not self.open.is_dir():
            for path in (self.root, self.packs, self.open, self.jobs, self.making):
                make_directory(path)
        # It may have come just now, made by another user.
        secure_state(self.root)

    def drop_making(self, submission: str) -> None:
        """Remove what an interrupted csub left half-written; last the lock that names it."""
        for folder, pattern in ((self.making, "*"), (self.open, ".*.tmp*")):
            for path in folder.glob(f"{submission}{pattern}"):
                if path.is_dir():
                    remove_tree(path)
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
            remove_tree(workplace)
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
        remove_tree(doomed)
        self.forget_open(pack_id)

    def claim_numbers(self, packs: Sequence[tuple[str, Sequence[int]]]) -> Iterator[str]:
        """Numbers of their own for members of packs (store.own_numbers), in the order given.

        Args:
            packs: The packs' ids, each with its members' numbers, ascending.

        Raises:
            StateError: They cannot be claimed.
        """
        first = claim_numbers(self.root, self.cluster, packs)
        count = sum(len(numbers) for _, numbers in packs)
        return map(str, range(first, first + count))

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
        whole = replace(index, parts=(*index.list_parts(), *parts))
        write_json(path, asdict(whole))

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

    def pass_on(self, record: PackRecord, job_id: str) -> None:
        """Make another Slurm job the one that runs a pack; its members keep their names.

        To be called under the pack's lock.

        Args:
            record: The pack.
            job_id: The job, `4720` or `4720_2`.
        """
        path = self.pack_path(record.pack_id)
        now = self.read_pack(record.pack_id) or record
        first = (read_slurm_job_id(path) or job_id).partition("_")[0]
        if not now.shown_id and first != job_id.partition("_")[0]:
            write_record(path, replace(now, shown_id=first))
        self.record_pack_job(record, job_id.partition("_")[0])

    def forget_open(self, pack_id: str) -> None:
        """Note that a pack will not change any more."""
        remove_file(self.open / pack_id)


def open_state(root: Path, cluster: str = "", owner_uid: int | None = None) -> StateReader:
    """Open a state directory: a `State` where it is the caller's own, else one to read alone.

    Once another user's was opened, nothing in this process writes into it any more.

    Args:
        root: Its path; it need not exist.
        cluster: Name of the Slurm cluster; empty where it is not known.
        owner_uid: Whose it is; None for the owner of the directory.

    Raises:
        StateError: It is the caller's own, and another user could change it.
    """
    owner_uid = find_owner(root) if owner_uid is None else owner_uid
    if owner_uid in (None, find_caller()):
        secure_state(root)
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
        StateError: It is another user's, or another user could change it.
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
    write_json(path, asdict(index))


# ----
# Removing packs that are over, so that the state stays small; a kill at any moment is harmless.

DISCARDED = ".discarded"
"""Ending of a pack that was moved out of sight, to be removed; see State.discard."""

ABANDONED_S = 86400.0
"""A temporary file that was not written to for so long is abandoned."""

_TEMPORARY = late_pattern(r".+\.tmp[0-9]+(?:-[A-Za-z0-9_]+-[0-9a-f]{8})?")


def measure_bytes(path: Path) -> int:
    """What a directory tree takes on the disk; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, _, files in os.walk(path):
        for name in (folder, *(f"{folder}/{file}" for file in files)):
            with contextlib.suppress(OSError):
                found = os.lstat(name)
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * 512
    return total


def remove_pack(state: State, pack_id: str) -> bool:
    """Remove a pack that is over; False if another process was quicker.

    Raises:
        StateError: It cannot be removed.
    """
    make_directory(state.making)
    doomed = state.making / f"{pack_id}{DISCARDED}"
    with explain_os_errors("remove", state.pack_path(pack_id)):
        try:
            # Out of sight first: no reader sees a half-removed pack.
            os.rename(state.pack_path(pack_id), doomed)
        except FileNotFoundError:
            return False
    remove_tree(doomed)
    return True


def remove_remains(state: State) -> None:
    """Finish what a killed call began: hidden packs, indexes of packs that are gone, half files.

    Raises:
        StateError: The state cannot be read.
    """
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(state.making):
            if name.endswith(DISCARDED):
                remove_tree(state.making / name)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(state.jobs):
            if name.endswith(".json"):
                _remove_index(state, state.jobs / name)

    forget_claims(state.root, state.list_all())
    with contextlib.suppress(FileNotFoundError):
        # Behind a link lies what is not the state's.
        inside = (path for path in state.root.iterdir() if not path.is_symlink())
        for folder in (state.root, *inside):
            _remove_temporary(folder)


def _remove_temporary(folder: Path) -> None:
    """Remove what `write_all` has left half-written in a folder, once no process can be at it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    changed_at = entry.stat(follow_symlinks=False).st_mtime
                    if read_file_clock(folder) - changed_at > ABANDONED_S:
                        os.unlink(entry.path)


def _remove_index(state: State, path: Path) -> None:
    """Remove the file that says which packs a job is, once none of them is there.

    A pack is in its place before its index is written, and never comes back.
    """
    with contextlib.suppress(StateError, FileNotFoundError):
        index = read_record(path, JobIndex)
        if index is not None and not any(map(is_there, map(state.pack_path, index.list_packs()))):
            takers = path.with_suffix(".takers")
            with contextlib.suppress(FileNotFoundError):
                if any(map(is_there, map(state.pack_path, os.listdir(takers)))):
                    return
                remove_tree(takers)
            os.unlink(path)
