"""What root has begun for a job on this node, in files that only root can read or write.

Everything that is undone is undone from here and by job id alone: a job's comment can change while
it runs, and an epilog may come without any credential. `RUN` is /run/slurm_colloc:

    RUN/lock             byte ranges: 0 for who holds which GPU, 1 + JOBID for all about one job
    RUN/jobs/JOBID.json  the checkpoint, there from before the first step until after the last
    RUN/JOBID/           what the job may see: setup.json, and a directory for each daemon

The kernel frees the locks with the process, and a daemon that was started does not inherit them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.host.boot import read_boot_id
from slurm_colloc.host.removal import remove_directory
from slurm_colloc.host.trusted import OPEN_DIRECTORY, open_trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_RUN = "/run/slurm_colloc"
JOBS = "jobs"
SETUP = "setup.json"
SETUP_SCHEMA = 1
LOCK = "lock"
SCHEMA = 1

PREPARING = "preparing"
READY = "ready"
UNDOING = "undoing"
PHASES = (PREPARING, READY, UNDOING)

_LIMIT_BYTES = 1 << 20
_POLL_S = 0.01
_JOB_ID = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True)
class Checkpoint:
    """One job, for whoever has to undo what was done for it.

    Args:
        job_id: Slurm's number of it.
        uid: Whose job it is.
        gid: That user's group.
        phase: `preparing`, `ready` or `undoing`.
        mode: What is prepared: `mps`, or empty for nothing.
        restart: How often Slurm had restarted the job.
        gpus: UUIDs of its GPUs.
        daemons: Names of the daemons' directories below RUN/JOBID.
        cgroups: Cgroups made for them.
        compute_modes: The GPUs' compute modes from before, by UUID; only of those that were to be
            changed.
        seen: Slurm was seen to run something of the job.
        boot: The boot in which this was written.
        made_at: When (seconds since 1970).
    """

    job_id: str
    uid: int
    gid: int
    phase: str = PREPARING
    mode: str = ""
    restart: int = 0
    gpus: tuple[str, ...] = ()
    daemons: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    compute_modes: Mapping[str, str] = field(default_factory=dict)
    seen: bool = False
    boot: str = field(default_factory=read_boot_id)
    made_at: float = field(default_factory=time.time)


class RunDirectory:
    """Root's directory on this node.

    Args:
        path: Its absolute path, below directories that nobody else can exchange.
        makes: Make what is missing of it.

    Raises:
        FileNotFoundError: It is not there and is not to be made.
        NodeError: It is not root's alone.
        OSError: It cannot be opened or made.
    """

    def __init__(self, path: str, *, makes: bool) -> None:
        # Only what leads to it may be a link, as /var/run is: see directories.
        parent, name = os.path.split(os.path.abspath(path))
        parent = os.path.realpath(parent)
        self.path = os.path.join(parent, name)
        self._descriptor = self._jobs = self._lock = -1
        try:
            above = open_trusted(parent)
            try:
                self._descriptor = _open_own(above, name, 0o755, self.path, makes=makes)
            finally:
                os.close(above)
            self._jobs = _open_own(
                self._descriptor, JOBS, 0o700, f"{self.path}/{JOBS}", makes=makes
            )
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if makes else 0)
            self._lock = os.open(LOCK, flags, 0o600, dir_fd=self._descriptor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give up what is open, and with it every lock."""
        for descriptor in (self._descriptor, self._jobs, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._jobs = self._lock = -1

    # -- locks ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked_gpus(self, timeout_s: float) -> Iterator[None]:
        """Be the only one to look who holds which GPU.

        Raises:
            TimeoutError: Another hook has held it all that time.
        """
        with self._locked(0, timeout_s):
            yield

    @contextlib.contextmanager
    def locked_job(self, job_id: str, timeout_s: float) -> Iterator[None]:
        """Be the only one to do something about a job.

        Raises:
            TimeoutError: Another hook has held it all that time.
        """
        with self._locked(1 + int(job_id), timeout_s):
            yield

    @contextlib.contextmanager
    def _locked(self, start: int, timeout_s: float) -> Iterator[None]:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
                break
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    raise TimeoutError("another hook is at work on it") from None
            time.sleep(_POLL_S)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, start)

    # -- checkpoints ----------------------------------------------------------------------------

    def list_jobs(self) -> tuple[str, ...]:
        """Ids of the jobs that have a checkpoint."""
        names = [name[:-5] for name in os.listdir(self._jobs) if name.endswith(".json")]
        return tuple(sorted(filter(is_job_id, names), key=int))

    def list_drafts(self) -> tuple[str, ...]:
        """Ids of the jobs whose checkpoint somebody writes, or was killed over."""
        names = os.listdir(self._jobs)
        drafts = [name[1:-5] for name in names if name[0] == "." and name.endswith(".json")]
        return tuple(sorted(filter(is_job_id, drafts), key=int))

    def list_directories(self) -> tuple[str, ...]:
        """Ids of the jobs that have a directory."""
        return tuple(sorted(filter(is_job_id, os.listdir(self._descriptor)), key=int))

    def read(self, job_id: str) -> Checkpoint | None:
        """Read a job's checkpoint; None where there is none.

        Raises:
            StateError: It is damaged, or of a newer version.
        """
        name = f"{job_id}.json"
        try:
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._jobs)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"the checkpoint {name} cannot be read ({error.strerror})") from error
        with open(opened, "rb") as file:
            data = file.read(_LIMIT_BYTES)
        try:
            value = json.loads(data.decode("ascii"))
            if value["schema"] > SCHEMA:
                raise StateError(f"the checkpoint {name} was written by a newer version")
            return _parse(job_id, value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"the checkpoint {name} is damaged ({error})") from error

    def read_quietly(self, job_id: str) -> Checkpoint | None:
        """The same, None also where it cannot be read."""
        with contextlib.suppress(StateError):
            return self.read(job_id)
        return None

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a job's checkpoint, whole or not at all.

        Raises:
            OSError: It cannot be written; the one before is still there.
        """
        _write_file(self._jobs, f"{checkpoint.job_id}.json", _pack(checkpoint), 0o600)

    def remove(self, job_id: str) -> None:
        """Forget a job; the last step of all."""
        for name in (f".{job_id}.json", f"{job_id}.json"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._jobs)

    # -- what the job may see -------------------------------------------------------------------

    def make_directory(self, job_id: str) -> None:
        """Make the job's directory, through which others may pass.

        Raises:
            OSError: It cannot be made, or is there already.
        """
        os.mkdir(job_id, 0o711, dir_fd=self._descriptor)
        os.chmod(job_id, 0o711, dir_fd=self._descriptor, follow_symlinks=True)

    def write_setup(self, job_id: str, value: Mapping[str, Any]) -> None:
        """Tell the job what was prepared for it.

        Raises:
            OSError: It cannot be written.
        """
        opened = os.open(job_id, OPEN_DIRECTORY, dir_fd=self._descriptor)
        try:
            _write_file(opened, SETUP, value, 0o644)
        finally:
            os.close(opened)

    def has_setup(self, job_id: str) -> bool:
        """Whether the job was told."""
        return os.path.isfile(f"{self.path}/{job_id}/{SETUP}")

    def remove_directory(self, job_id: str) -> tuple[str, ...]:
        """Remove the job's directory; what is left of it, with reasons."""
        return remove_directory(f"{self.path}/{job_id}")


def is_job_id(text: str) -> bool:
    """Whether a text is a job's number."""
    return _JOB_ID.fullmatch(text) is not None


def _open_own(parent: int, name: str, mode: int, path: str, *, makes: bool) -> int:
    """Open a directory of root's alone."""
    if makes:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
    try:
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        raise NodeError(f"{path} is no directory") from error
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(descriptor)
        raise NodeError(
            f"{path} is not root's alone (user {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):o})"
        )
    if makes and stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(descriptor, mode)
    return descriptor


def _write_file(directory: int, name: str, value: Mapping[str, Any], mode: int) -> None:
    temporary = f".{name}"
    # One that a killed hook has left is in nobody's use: whoever writes here holds the lock.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        with open(opened, "w", encoding="ascii") as file:
            json.dump(value, file)
            os.fchmod(opened, mode)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _pack(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **{name: value for name, value in vars(checkpoint).items() if name != "compute_modes"},
        "compute_modes": dict(checkpoint.compute_modes),
    }


def _parse(job_id: str, value: Mapping[str, Any]) -> Checkpoint:
    if value["job_id"] != job_id or value["phase"] not in PHASES:
        raise ValueError("it is not of this job")
    return Checkpoint(
        job_id=job_id,
        uid=int(value["uid"]),
        gid=int(value["gid"]),
        phase=str(value["phase"]),
        mode=str(value["mode"]),
        restart=int(value["restart"]),
        gpus=tuple(map(str, value["gpus"])),
        daemons=tuple(map(str, value["daemons"])),
        cgroups=tuple(map(str, value["cgroups"])),
        compute_modes={str(gpu): str(mode) for gpu, mode in value["compute_modes"].items()},
        seen=bool(value["seen"]),
        boot=str(value["boot"]),
        made_at=float(value["made_at"]),
    )
