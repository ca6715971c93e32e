"""Root's directory on a node: checkpoints, locks, and what each job may see; who: root.

Also: a file system of its own for what a job's user may write below /run.

    RUN/lock                byte ranges: 0 for who holds which GPU, 1 + JOBID for one job, and from
                            nvml.mig_child.GPU_LOCKS_AT on one for each GPU whose MIG is changed
    RUN/jobs/JOBID.json     the checkpoint, there from before the first step until after the last
    RUN/jobs/JOBID.N.leader which process daemon N began as
    RUN/JOBID/              what the job may see: setup.json, and a directory for each daemon; a
                            tmpfs of its own where one can be mounted
    RUN/aside/              what is left of directories that had too much in them for one hook

`RUN` is /run/slurm_colloc. The kernel frees the locks with the process, and a daemon that was
started does not inherit them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.host.hooks.hook_job import (
    SCHEMA,
    SETUP,
    Checkpoint,
    DamagedCheckpoint,
    Leader,
    is_job_id,
    pack_checkpoint,
    parse_checkpoint,
    parse_leader,
)
from slurm_colloc.host.system.directories import (
    OPEN_DIRECTORY,
    empty_directory,
    explain,
    open_own_directory,
    open_trusted,
    write_json,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self


# ---- A file system of its own for what a job's user may write below /run; who: root --------------
#
# Pipes and logs of a daemon are the user's to fill. In a tmpfs with limits of its own that costs
# neither the node nor another user anything, and all goes away in one step.

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MOST_LAYERS = 8

INODES = 4096
"""How many files, directories and links: NVIDIA's daemon makes about a dozen (550, 580)."""


def mount_limited(path: str, size_mb: int) -> None:
    """Mount a tmpfs on a directory of root's.

    Args:
        path: The directory, below directories that only root can change.
        size_mb: How much fits into it (MiB).

    Raises:
        OSError: It cannot be mounted, as inside most containers.
    """
    options = f"size={size_mb}m,nr_inodes={INODES},mode=711".encode()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"slurm_colloc", os.fsencode(path), b"tmpfs", flags, options) != 0:
        _raise()


def unmount_all(path: str) -> None:
    """Take away whatever is mounted on a directory, at once, be it in use.

    What still has one of its files open keeps only that file.

    Raises:
        OSError: Something stays mounted there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # A killed prolog may have been followed by another: one on top of the other.
    for _ in range(_MOST_LAYERS):
        if not is_mounted(path):
            return
        if libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            _raise()


def is_mounted(path: str) -> bool:
    """Whether a directory has another file system than the one that holds it."""
    with contextlib.suppress(OSError):
        return os.lstat(path).st_dev != os.lstat(os.path.dirname(path)).st_dev
    return False


def has_own_mounts(job_id: str) -> bool:
    """Whether a job has a mount namespace of its own already, and sees no mount made from now on.

    job_container/tmpfs and namespace/linux keep it as BasePath/JOBID/.ns, a file of type nsfs.

    Args:
        job_id: Slurm's number of the job.
    """
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    return any(
        f"/{job_id}/" in line.partition(" - ")[0] and line.partition(" - ")[2].startswith("nsfs ")
        for line in lines
    )


def _raise() -> None:
    cause = ctypes.get_errno()
    raise OSError(cause, os.strerror(cause))


# ---- Root's directory on a node: checkpoints, locks, and what each job may see; who: root --------

JOBS = "jobs"
ASIDE = "aside"
LOCK = "lock"

_LIMIT_BYTES = 1 << 20
_POLL_S = 0.01
_ASIDE_S = 0.1
_LEADER_SUFFIX = ".leader"


class RunDirectory:
    """Root's directory on this node.

    Args:
        path: Its absolute path, below directories that only root can exchange.
        makes: Make what is missing.
        needs_lock: Without the file of the locks nothing can be done.

    Attributes:
        lock_problem: Why there are no locks; empty where there are.

    Raises:
        FileNotFoundError: It is not there and is not to be made.
        NodeError: It is not root's alone.
        OSError: It cannot be opened or made.
    """

    def __init__(self, path: str, *, makes: bool, needs_lock: bool = True) -> None:
        # Only what leads to it may be a link, as /var/run is: see directories.
        parent, name = os.path.split(os.path.abspath(path))
        parent = os.path.realpath(parent)
        self.path = os.path.join(parent, name)
        self._descriptor = self._jobs = self._lock = -1
        self.lock_problem = ""
        try:
            above = open_trusted(parent)
            try:
                self._descriptor = open_own_directory(above, name, 0o755, self.path, makes=makes)
            finally:
                os.close(above)
            self._jobs = open_own_directory(
                self._descriptor, JOBS, 0o700, f"{self.path}/{JOBS}", makes=makes
            )
            self._open_lock(makes=makes, needs_lock=needs_lock)
        except BaseException:
            self.close()
            raise

    def _open_lock(self, *, makes: bool, needs_lock: bool) -> None:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if makes else 0)
        try:
            self._lock = os.open(LOCK, flags, 0o600, dir_fd=self._descriptor)
        except OSError as error:
            if needs_lock:
                raise
            self.lock_problem = f"{self.lock_path} cannot be opened: {error.strerror}"

    def close(self) -> None:
        """Give up what is open, and with it every lock."""
        for descriptor in (self._descriptor, self._jobs, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._jobs = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- locks ----------------------------------------------------------------------------------

    @property
    def lock_path(self) -> str:
        """Where the locks are, for a program that takes one itself."""
        return f"{self.path}/{LOCK}"

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
        """Ids of the jobs whose checkpoint a hook is writing, or was killed over."""
        names = os.listdir(self._jobs)
        drafts = [name[1:-5] for name in names if name[0] == "." and name.endswith(".json")]
        return tuple(sorted(filter(is_job_id, drafts), key=int))

    def list_directories(self) -> tuple[str, ...]:
        """Ids of the jobs that have a directory."""
        return tuple(sorted(filter(is_job_id, os.listdir(self._descriptor)), key=int))

    def read(self, job_id: str) -> Checkpoint | None:
        """Read a job's checkpoint; None where there is none.

        Raises:
            DamagedCheckpoint: It is damaged, or of a newer version.
        """
        name = f"{job_id}.json"
        try:
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._jobs)
        except FileNotFoundError:
            return None
        except OSError as error:
            told = f"the checkpoint {name} cannot be read ({error.strerror})"
            raise DamagedCheckpoint(told) from error
        with open(opened, "rb") as file:
            data = file.read(_LIMIT_BYTES)
        try:
            value = json.loads(data.decode("ascii"))
            if value["schema"] > SCHEMA:
                raise DamagedCheckpoint(
                    f"the checkpoint {name} was written by a newer version", data
                )
            return parse_checkpoint(job_id, value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCheckpoint(f"the checkpoint {name} is damaged ({error})", data) from error

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
        write_json(self._jobs, f"{checkpoint.job_id}.json", pack_checkpoint(checkpoint), 0o600)

    def remove(self, job_id: str) -> None:
        """Forget a job; the last step of all."""
        leaders = [name for name in os.listdir(self._jobs) if _is_leader_of(name, job_id)]
        # The checkpoint last: while it is there another hook comes back for the rest.
        for name in (*leaders, f".{job_id}.json", f"{job_id}.json"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._jobs)

    # -- who the daemons are --------------------------------------------------------------------

    def open_leader_record(self, job_id: str, daemon: str) -> int:
        """Make the file in which a daemon's process writes itself down; its descriptor.

        Raises:
            OSError: It cannot be made.
        """
        name = f"{job_id}.{daemon}{_LEADER_SUFFIX}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._jobs)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._jobs)

    def read_leaders(self, job_id: str) -> tuple[Leader, ...]:
        """The processes that a job's daemons began as, as far as they had come."""
        found = []
        for name in sorted(os.listdir(self._jobs)):
            if _is_leader_of(name, job_id):
                with contextlib.suppress(OSError):
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                    with open(
                        os.open(name, flags, dir_fd=self._jobs), encoding="ascii", errors="replace"
                    ) as file:
                        found.append(parse_leader(file.read(_LIMIT_BYTES)))
        return tuple(leader for leader in found if leader is not None)

    # -- what the job may see -------------------------------------------------------------------

    def make_directory(self, job_id: str, size_mb: int = 0) -> str:
        """Make the job's directory, through which others may pass.

        Args:
            job_id: Slurm's number of the job.
            size_mb: How much its user may write there (MiB); 0 for a plain directory.

        Returns:
            Why that has no limit; empty where it has one, or none was wanted.

        Raises:
            OSError: It cannot be made, or is there already.
        """
        os.mkdir(job_id, 0o711, dir_fd=self._descriptor)
        os.chmod(job_id, 0o711, dir_fd=self._descriptor, follow_symlinks=True)
        if not size_mb:
            return ""
        try:
            mount_limited(f"{self.path}/{job_id}", size_mb)
        except OSError as error:
            return f"no file system of its own for pipes and logs: {error.strerror}"
        return ""

    def write_setup(self, job_id: str, value: Mapping[str, Any]) -> None:
        """Tell the job what was prepared for it.

        Raises:
            OSError: It cannot be written.
        """
        opened = os.open(job_id, OPEN_DIRECTORY, dir_fd=self._descriptor)
        try:
            write_json(opened, SETUP, value, 0o644)
        finally:
            os.close(opened)

    def has_setup(self, job_id: str) -> bool:
        """Whether the job was told."""
        return os.path.isfile(f"{self.path}/{job_id}/{SETUP}")

    def remove_directory(self, job_id: str, deadline: float | None = None) -> tuple[str, ...]:
        """Take the job's directory away; return what is left, with reasons.

        A file system of its own goes as a whole. Another directory is first put aside, so that the
        job's place is free whatever is in it; what no time was left for is removed by later hooks.

        Args:
            job_id: Slurm's number of the job.
            deadline: Until when to remove, on the monotonic clock.
        """
        path = f"{self.path}/{job_id}"
        try:
            unmount_all(path)
            self._put_aside(job_id)
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (f"{path}: {explain(error)}",)
        self.sweep_aside(time.monotonic() + _ASIDE_S if deadline is None else deadline)
        return ()

    def _put_aside(self, job_id: str) -> None:
        """Give a job's directory a name that no job has; an empty one is removed at once."""
        try:
            os.rmdir(job_id, dir_fd=self._descriptor)
        except NotADirectoryError:
            # Not of our making, and root's directory holds nothing of others.
            os.unlink(job_id, dir_fd=self._descriptor)
        except FileNotFoundError:
            raise
        except OSError:
            aside = open_own_directory(
                self._descriptor, ASIDE, 0o700, f"{self.path}/{ASIDE}", makes=True
            )
            try:
                fresh = f"{job_id}.{os.urandom(6).hex()}"
                os.rename(job_id, fresh, src_dir_fd=self._descriptor, dst_dir_fd=aside)
            finally:
                os.close(aside)

    def sweep_aside(self, deadline: float) -> int:
        """Remove what was put aside, as far as the time goes; how many directories are left.

        Args:
            deadline: Until when, on the monotonic clock.
        """
        try:
            aside = open_own_directory(
                self._descriptor, ASIDE, 0o700, f"{self.path}/{ASIDE}", makes=False
            )
        except (OSError, NodeError):
            return 0
        try:
            left = len(empty_directory(aside, deadline))
        finally:
            os.close(aside)
        with contextlib.suppress(OSError):
            os.rmdir(ASIDE, dir_fd=self._descriptor)
        return left


def _is_leader_of(name: str, job_id: str) -> bool:
    return name.startswith(f"{job_id}.") and name.endswith(_LEADER_SUFFIX)
