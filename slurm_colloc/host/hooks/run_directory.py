"""Root's directory on a node: checkpoints, locks, and what each job may see; who: root.

Also: what root has begun for a job on this node, as one value; its file is run_directory's; the job
as slurmd describes it to a hook; pure. Only the comment is the user's own text; A file system of
its own for what a job's user may write below /run; who: root.

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
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_colloc.errors import NodeError, StateError, UsageProblem
from slurm_colloc.host.system.directories import (
    OPEN_DIRECTORY,
    empty_directory,
    explain,
    open_own_directory,
    open_trusted,
    write_json,
)
from slurm_colloc.host.system.node_processes import ProcessId, read_boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurm_colloc.host.mig.plan_cut import MigClaim


# ---- What root has begun for a job on this node, as one value; its file is run_directory's -------
#
# Everything that is undone is undone from here and by job id alone: a job's comment can change
# while it runs, and an epilog may come without any credential.

DEFAULT_RUN = "/run/slurm_colloc"
SETUP = "setup.json"
SETUP_SCHEMA = 1
SCHEMA = 1

PREPARING = "preparing"
READY = "ready"
UNDOING = "undoing"
PHASES = (PREPARING, READY, UNDOING)

SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{12,13}")
"""What Slurm calls a job from 25.11 on: `s` and base 32 (src/common/sluid.c)."""

_JOB_ID = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True)
class Checkpoint:
    """One job, for the hook that has to undo what was done for it.

    Args:
        job_id: Its number in Slurm.
        uid: Whose job it is.
        gid: That user's group.
        phase: `preparing`, `ready` or `undoing`.
        mode: What is prepared: `mps` or `mig`, or empty for nothing.
        restart: How often Slurm had restarted the job.
        gpus: UUIDs of its GPUs.
        daemons: Names of the daemons' directories below RUN/JOBID.
        cgroups: Control groups made for them.
        compute_modes: The GPUs' compute modes from before, by UUID; only of those that were to be
            changed.
        mig: What is changed of the GPUs' MIG; each had no instance before.
        sluid: Slurm's other name of the job, which its control groups have from 26.05 on; empty
            before 25.11.
        seen: Slurm was seen to run something of the job.
        boot: The boot in which this was written.
        made_at: When (seconds since 1970).
        doubt: Why it is not known whether a GPU is divided for the job; empty where it is. Never in
            a file.
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
    mig: tuple[MigClaim, ...] = ()
    sluid: str = ""
    seen: bool = False
    boot: str = field(default_factory=read_boot_id)
    made_at: float = field(default_factory=time.time)
    doubt: str = ""

    @property
    def divides(self) -> bool:
        """A GPU is, or may be, divided for the job in this boot."""
        return bool(self.mig or self.doubt) and self.boot == read_boot_id()


class DamagedCheckpoint(StateError):
    """A checkpoint cannot be read, or is of a newer version.

    Args:
        message: In words.
        data: What is in its file.
    """

    def __init__(self, message: str, data: bytes = b"") -> None:
        super().__init__(message)
        self.data = data


def is_job_id(text: str) -> bool:
    """Whether a text is a job's number."""
    return _JOB_ID.fullmatch(text) is not None


def pack_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint as the JSON object of its file; pure."""
    values = dict(vars(checkpoint))
    del values["doubt"]
    return {
        "schema": SCHEMA,
        **values,
        "compute_modes": dict(checkpoint.compute_modes),
        "mig": [_describe_claim(claim) for claim in checkpoint.mig],
    }


def parse_checkpoint(job_id: str, value: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint in such an object; pure.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: It is another job's.
    """
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
        mig=tuple(map(_parse_claim, value["mig"])),
        sluid=str(value["sluid"]),
        seen=bool(value["seen"]),
        boot=str(value["boot"]),
        made_at=float(value["made_at"]),
    )


def guess_checkpoint(job_id: str, problem: DamagedCheckpoint) -> Checkpoint:
    """What can be undone by a checkpoint that cannot be read whole; pure.

    Args:
        job_id: The job.
        problem: What was raised.
    """
    try:
        value = json.loads(problem.data.decode("ascii"))
        return Checkpoint(
            job_id,
            -1,
            -1,
            phase=UNDOING,
            gpus=tuple(map(str, value["gpus"])),
            mig=tuple(map(_parse_claim, value["mig"])),
            boot=str(value["boot"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Checkpoint(job_id, -1, -1, phase=UNDOING, doubt=str(problem))


# Most jobs have none, and their hooks do not load what reads them.


def _describe_claim(claim: MigClaim) -> dict[str, Any]:
    from slurm_colloc.host.mig.plan_cut import describe_claim

    return describe_claim(claim)


def _parse_claim(value: Mapping[str, Any]) -> MigClaim:
    from slurm_colloc.host.mig.plan_cut import parse_claim

    return parse_claim(value)


@dataclass(frozen=True)
class Leader:
    """A daemon's first process, as it wrote itself down while it was still root's.

    Args:
        id: Which process; it leads a session.
        uid: Whose it became then.
        groups: The control groups that it had entered.
    """

    id: ProcessId
    uid: int
    groups: tuple[str, ...]


_LEADER = re.compile(r"([1-9][0-9]{0,9}) ([0-9]{1,20}) ([0-9]{1,10})\n((?:/[!-~]{1,4000}\n){0,32})")


def parse_leader(text: str) -> Leader | None:
    """Read what a daemon's process wrote before it was the user's; None where it broke off.

    Args:
        text: `PID START UID`, then a line for each control group.
    """
    match = _LEADER.fullmatch(text)
    if match is None:
        return None
    return Leader(ProcessId(int(match[1]), int(match[2])), int(match[3]), tuple(match[4].split()))


# ---- The job as slurmd describes it to a hook; pure. Only the comment is the user's own text -----

DEFAULT_SLURM_CONF = "/etc/slurm/slurm.conf"

_NUMBER = re.compile(r"[0-9]{1,10}")
_NO_ID = 2**32 - 1
_GPU_LIST = re.compile(r"[0-9]{1,4}(?:,[0-9]{1,4}){0,255}")


@dataclass(frozen=True)
class HookJob:
    """What a hook knows of its job.

    Args:
        job_id: Its number in Slurm, digits only.
        uid: Whose it is; None where slurmd does not say, as in an epilog without a credential.
        gid: That user's group; None likewise.
        comment: The job's comment, the user's text; empty for none.
        partition: Where it runs.
        account: Which account it is charged to.
        gpus: Slurm's numbers of its GPUs on this node (`slurm_index`, the minor number of the
            device file); empty for none, None where they are no such list.
        node: Slurm's name of this node.
        restart: How often Slurm has restarted the job.
        cpus: How many CPUs it has on this node; None where slurmd does not say it in one number.
        sluid: Slurm's other name of the job (25.11 and later); empty for none.
        slurm_conf: Where slurmd has its slurm.conf.
    """

    job_id: str
    uid: int | None
    gid: int | None
    comment: str = ""
    partition: str = ""
    account: str = ""
    gpus: tuple[int, ...] | None = ()
    node: str = ""
    restart: int = 0
    cpus: int | None = None
    sluid: str = ""
    slurm_conf: str = DEFAULT_SLURM_CONF


def read_hook_job(environ: Mapping[str, str]) -> HookJob:
    """Read the variables of a prolog or an epilog.

    Raises:
        UsageProblem: There is no job id.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not is_job_id(job_id):
        raise UsageProblem("SLURM_JOB_ID is not a job's number: this is for slurmd to call")
    return HookJob(
        job_id=job_id,
        uid=_read_id(environ, "SLURM_JOB_UID"),
        gid=_read_id(environ, "SLURM_JOB_GID"),
        comment=environ.get("SLURM_JOB_COMMENT", ""),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        account=environ.get("SLURM_JOB_ACCOUNT", ""),
        gpus=_read_gpus(environ.get("SLURM_JOB_GPUS", "")),
        node=environ.get("SLURMD_NODENAME", ""),
        restart=_read_number(environ, "SLURM_JOB_RESTART_COUNT") or 0,
        cpus=_read_number(environ, "SLURM_JOB_CPUS_PER_NODE") or None,
        sluid=_read_sluid(environ.get("SLURM_JOB_SLUID", "")),
        slurm_conf=environ.get("SLURM_CONF") or DEFAULT_SLURM_CONF,
    )


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def _read_sluid(text: str) -> str:
    return text if SLUID.fullmatch(text) else ""


def _read_id(environ: Mapping[str, str], name: str) -> int | None:
    number = _read_number(environ, name)
    # The kernel takes the largest one for "leave it as it is", which is root.
    return number if number is not None and number < _NO_ID else None


def _read_gpus(text: str) -> tuple[int, ...] | None:
    if not text:
        return ()
    if not _GPU_LIST.fullmatch(text):
        return None
    numbers = tuple(map(int, text.split(",")))
    return numbers if len(set(numbers)) == len(numbers) else None


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
