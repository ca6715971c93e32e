"""The packs of one user: making them whole or not at all, and finding them again.

<state>/packs/<pack id>/     a pack, see docs/architecture.md
<state>/open/<pack id>       exists while the pack may still change: what a sweep looks at
<state>/jobs/<job id>.json   which packs a Slurm job id stands for
<state>/making/              packs that are being written
<state>/script.*.json        the batch script as it was rendered last, see submission.render
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import NotFound, SlurmNoAnswer, StateError
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.store.files import (
    explain_os_errors,
    make_directory,
    read_json,
    write_atomic,
    write_json,
)
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.records import (
    MemberSpec,
    PackRecord,
    build_pack_mapping,
    build_spec_mapping,
    parse_pack,
    parse_spec,
)

UNFINISHED_S = 10.0
"""A file is written and renamed in one go; one that is not by then never will be."""


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
    """

    def __init__(self, root: Path) -> None:
        self.root = root
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
        try:
            descriptor = os.open(self._lock_path(submission), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

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
        if record.index == record.indices[0] or not (self.jobs / f"{job_id}.json").exists():
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

    def read_pack(self, pack_id: str) -> PackRecord | None:
        """Read pack.json; None if there is no such pack."""
        return read_pack(self.packs / pack_id)

    def find_packs(self, job_id: str) -> list[str]:
        """Ids of the packs that a Slurm job id stands for, in order.

        Raises:
            NotFound: csub knows no such job.
        """
        value = read_json(self.jobs / f"{job_id}.json")
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


def write_job_index(root: Path, job_id: str, record: PackRecord) -> None:
    """Write which packs a Slurm job id stands for; the content is the same whoever writes it."""
    write_json(
        root / "jobs" / f"{job_id}.json",
        {"submission": record.submission, "indices": record.indices},
    )


def read_pack(path: Path) -> PackRecord | None:
    """Read a pack's pack.json; None if there is none.

    Raises:
        StateError: It is damaged.
    """
    value = read_json(path / "pack.json")
    if value is None:
        return None
    try:
        return parse_pack(value)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path / 'pack.json'} is damaged ({error})") from error


def read_spec(pack: Path, number: int) -> MemberSpec:
    """Read a member's spec.json.

    Raises:
        StateError: It is missing or damaged.
    """
    path = pack / "members" / format_number(number) / "spec.json"
    value = read_json(path)
    if value is None:
        raise StateError(f"{path} is missing")
    try:
        return parse_spec(value)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path} is damaged ({error})") from error


def read_slurm_job_id(pack: Path) -> str | None:
    """The Slurm job id of a pack, `4711` or `4711_2`; None while it is not known."""
    try:
        return (pack / "slurm_job_id").read_text().strip() or None
    except FileNotFoundError:
        return None


def write_ended(pack: Path, state: SlurmJobState) -> None:
    """Write Slurm's last word on a pack's job: Slurm itself forgets it after some minutes."""
    write_json(pack / "ended.json", {"slurm_state": state.value})


def read_ended(pack: Path) -> SlurmJobState | None:
    """Slurm's last word on a pack's job; None while there is none."""
    value = read_json(pack / "ended.json")
    return None if value is None else SlurmJobState.parse(str(value.get("slurm_state", "")))


def is_unanswered(pack: Path) -> bool:
    """True where Slurm did not answer its submission: its job may still turn up."""
    return (pack / "unanswered").exists()


def is_local_alive(pack: Path) -> bool:
    """True while the runner of a pack without Slurm is alive: it holds this lock."""
    try:
        descriptor = os.open(pack / "alive", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def list_members(pack: Path) -> list[int]:
    """Numbers of all members of a pack, sorted."""
    try:
        names = os.listdir(pack / "members")
    except OSError as error:
        raise StateError(f"cannot read {pack}: {os.strerror(error.errno or 0)}") from error
    return sorted(int(name) for name in names if name.isdigit())


def write_pack(path: Path, pack: NewPack) -> None:
    """Write a pack's directory with its first members already waiting in the inbox."""
    for name in ("", "inbox", "members", "control"):
        os.mkdir(path / name if name else path, 0o700)
    write_json(path / "pack.json", build_pack_mapping(pack.record))
    # Slurm would make it with the user's umask.
    os.close(os.open(path / "pack.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # Tasks of an array share script and environment: written once, linked into each member.
    written: dict[tuple[str, bytes], Path] = {}
    for member in pack.members:
        name = format_number(member.spec.job.number)
        directory = path / "members" / name
        os.mkdir(directory, 0o700)
        write_json(directory / "spec.json", build_spec_mapping(member.spec))
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
            write_atomic(target, data, mode)
            written[(file_name, data)] = target
        write_json(path / "inbox" / f"{name}.json", {"number": member.spec.job.number})


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
