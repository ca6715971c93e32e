"""A pack's monitor, and the directory in which members publish their progress."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping

import slurm_colloc.instrument
from slurm_colloc.errors import StateError
from slurm_colloc.instrument.layout import STALLS, VARIABLE
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.plan import WATCHED_FROM_MB, Unwatched, is_watched
from slurm_colloc.runtime.allocation import read_host_memory_mb
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.step_command import StartedProcess, start_process
from slurm_colloc.settings import Settings
from slurm_colloc.store.atomic_files import make_directory, write_json
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.indexes import note_due
from slurm_colloc.store.progress_counters import write_follow_request
from slurm_colloc.store.report_files import keep_metrics, keep_own_outputs, keep_tracker_runs

START_AFTER_S = 3.0
"""After the first member; what is over before has nothing to show but its accounting."""

RESTARTS_MAX = 3
"""How often a monitor that ended by itself is started again."""

STOP_WAIT_S = 3.0
"""How long the monitor may take to write what it still has."""

STOP_AGAIN_S = 0.2
"""How often it is told to: a TERM that comes while Slurm's own waits is lost in that."""

_BASES = ("/dev/shm", "/tmp")
"""Where members may publish their progress, the best first."""

_PREFIX = "csub-progress-"


def find_obstacle(settings: Settings, host_memory_mb: int | None) -> tuple[Unwatched, str] | None:
    """Why a pack is not watched, also in words; None where it is; pure.

    Args:
        settings: The settings of this node.
        host_memory_mb: What it may use; None where that is not limited or not known.
    """
    if not settings.monitor:
        return Unwatched.SETTING, "monitor = false in the settings"
    if not is_watched(host_memory_mb):
        return Unwatched.HOST_MEMORY, (
            f"the pack has {host_memory_mb} MB of host memory, and the monitor would take 90 MB; "
            f"packs with at least {WATCHED_FROM_MB} MB are watched"
        )
    return None


@dataclass(eq=False, kw_only=True)
class PackMonitor:
    """Starts and ends the monitor of an attempt.

    Attributes:
        pack: The attempt of the pack.
    """

    pack: PackContext

    def __post_init__(self) -> None:
        self.obstacle = ""
        """Why the pack is not watched; empty where it is."""
        self._root = ""
        self._lock: int | None = None
        self._begin_at: float | None = None
        self._process: StartedProcess | None = None
        self._summary: StartedProcess | None = None
        self._starts = 0

    def open(self) -> None:
        """Make the place where members publish their progress, or write down why there is none."""
        host_memory_mb = read_host_memory_mb(self.pack.allocation.environment)
        obstacle = find_obstacle(self.pack.settings, host_memory_mb)
        if obstacle is None:
            remove_forgotten()
            try:
                self._make_root()
            except OSError as error:
                obstacle = Unwatched.NO_PLACE, f"{error.filename}: {error.strerror}"
        if obstacle is not None:
            self._refuse(*obstacle)

    def _make_root(self) -> None:
        base = next((path for path in _BASES if os.access(path, os.W_OK | os.X_OK)), _BASES[-1])
        # A name that cannot be there yet, on a path where all users can write.
        name = f"{_PREFIX}{os.urandom(8).hex()}"
        making = f"{base}/.{name}"
        lock = -1
        os.mkdir(making, 0o700)
        try:
            lock = os.open(f"{making}/lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Found only now: it is not to be taken for forgotten before it is locked.
            os.rename(making, f"{base}/{name}")
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
            if lock >= 0:
                os.close(lock)
            raise
        self._root, self._lock = f"{base}/{name}", lock

    def _refuse(self, kind: Unwatched, reason: str) -> None:
        self.obstacle = reason
        self.pack.journal.write("not_watched", reason=reason)
        with contextlib.suppress(OSError, StateError):
            make_directory(self.pack.path / "report")
            value = {
                "attempt": self.pack.attempt,
                "node": self.pack.allocation.node,
                "not_watched": reason,
                "not_watched_kind": kind.value,
            }
            write_json(f"{self.pack.path}/report/monitor.json", value)

    # -- members ------------------------------------------------------------------------------

    def place(self, member: Member, environment: Mapping[str, str]) -> dict[str, str]:
        """What is added to the environment of a member that starts now.

        Args:
            member: The member.
            environment: Its environment up to now.
        """
        if member.spec.job.metrics:
            with contextlib.suppress(StateError):
                number = format_number(member.number)
                keep_own_outputs(self.pack.path / "members" / number, member.outputs)
        if not self._root:
            return {}
        directory = self.find_progress(member, is_next=True)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            # It was held at the last moment, and starts only now.
            pass
        except OSError as error:
            self.pack.journal.write("no_progress", member=member.number, reason=str(error))
            return {}
        if self._begin_at is None:
            self._begin_at = time.monotonic() + START_AFTER_S
        if member.spec.job.progress_regex is not None:
            with contextlib.suppress(StateError):
                write_follow_request(directory, member.spec.job.progress_regex, member.outputs)
        if not (self.pack.settings.instrument and member.spec.job.instrument):
            return {}
        added = injected_environment(environment, directory)
        if added and member.spec.job.tells_stalls:
            added[STALLS] = f"{member.prefix}.stalls"
        return added

    def find_progress(self, member: Member, *, is_next: bool = False) -> str:
        """Where a start of a member counts its steps; empty where it does not.

        Args:
            member: The member.
            is_next: Its next start; otherwise its present one.
        """
        start = member.record.starts + int(is_next)
        return f"{self._root}/{format_number(member.number)}.{start}" if self._root else ""

    # -- the monitor --------------------------------------------------------------------------

    def work(self) -> None:
        """Start the monitor once that is due, and again where it has ended."""
        if self._begin_at is None or time.monotonic() < self._begin_at:
            return
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._process = None
            self.pack.journal.write("monitor_ended", status=status)
        if self._starts > RESTARTS_MAX:
            self._begin_at = None
            self._give_up()
            return
        self._starts += 1
        with contextlib.suppress(StateError):
            note_due(self.pack.path.parent.parent, self.pack.path.name)
        # One that ends at once is not started again at once.
        self._begin_at = time.monotonic() + 10.0 * self._starts
        words = [str(self.pack.path), str(self.pack.attempt), self._root]
        words += ["--interval", f"{self.pack.settings.monitor_interval_s:g}"]
        words += ["--activity", self.pack.settings.activity_source]
        self._process = self._start("monitor.log", "slurm_colloc.monitor", *words)
        if self._process is not None:
            self.pack.journal.write("monitor", pid=self._process.pid)

    def _give_up(self) -> None:
        """Say why nothing was measured, where no monitor could say anything."""
        said = ""
        with contextlib.suppress(OSError), open(f"{self.pack.path}/monitor.log", "rb") as file:
            lines = file.read(65536).decode("utf-8", "replace").splitlines()
            said = lines[-1] if lines else ""
        if not os.path.exists(f"{self.pack.path}/report/monitor.json"):
            told = f"the monitor ended at each start{said and f': {said}'}"
            self._refuse(Unwatched.FAILED, told)

    def _start(self, log: str, module: str, *words: str) -> StartedProcess | None:
        argv = [sys.executable, "-IB", "-m", module, *words]
        # An arena for each thread that a driver or library starts would be memory for nothing.
        environment = {**self.pack.allocation.own_environment, "MALLOC_ARENA_MAX": "1"}
        try:
            return start_process(argv, environment, f"{self.pack.path}/{log}")
        except OSError as error:
            self.pack.journal.write("not_started", program=module, reason=str(error))
            return None

    def stop(self) -> None:
        """Have the monitor write what it still has, and end it."""
        process, self._process = self._process, None
        self._begin_at = None
        if process is not None and process.poll() is None and not _end(process):
            process.kill()
            self.pack.journal.write("monitor_killed")
        if self._root:
            with contextlib.suppress(OSError, StateError):
                keep_tracker_runs(self._root, self.pack.path)
            with contextlib.suppress(OSError, StateError):
                keep_metrics(self._root, self.pack.path)
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = ""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin_summary(self, *, wants_mail: bool = False) -> None:
        """Have the summary of a pack made that was watched.

        Args:
            wants_mail: A mail waits for a table of members, also where nothing was watched.
        """
        if self._starts == 0:
            if wants_mail:
                words = ("report", "--write-mail", str(self.pack.path))
                self._summary = self._start("summary.log", "slurm_colloc", *words)
            return
        with contextlib.suppress(StateError):
            # First: who sees that all members have ended waits for it.
            note_due(self.pack.path.parent.parent, self.pack.path.name, is_ending=True)
        words = ("report", "--write", str(self.pack.path))
        self._summary = self._start("summary.log", "slurm_colloc", *words)

    @property
    def is_summarizing(self) -> bool:
        """The summary is being made."""
        return self._summary is not None and self._summary.poll() is None

    @property
    def has_summary_left(self) -> bool:
        """The pack was watched, and its summary is left to the next call of csub."""
        return self._starts > 0 and (self._summary is None or self._summary.poll() != 0)


def remove_forgotten() -> None:
    """Remove what runners have left that were killed."""
    for base in _BASES:
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(base)):
                if not entry.name.startswith(_PREFIX):
                    continue
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove_unless_locked(entry.path)


def _remove_unless_locked(directory: str) -> None:
    try:
        lock = os.open(f"{directory}/lock", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # Another runner is removing it.
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _end(process: StartedProcess) -> bool:
    """Tell the monitor to end, until it has; False where it takes too long."""
    deadline = time.monotonic() + STOP_WAIT_S
    tell_at = 0.0
    while process.poll() is None:
        now = time.monotonic()
        if now > deadline:
            return False
        if now >= tell_at:
            tell_at = now + STOP_AGAIN_S
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)  # noqa: TID251 - its own
        time.sleep(0.01)
    return True


SITE_DIRECTORY = os.path.join(os.path.dirname(slurm_colloc.instrument.__file__), "site")
"""Where the injected sitecustomize lies, in a checkout and in an installed wheel."""


def injected_environment(
    environment: Mapping[str, str], directory: str, site: str = SITE_DIRECTORY
) -> dict[str, str]:
    """The variables to set for one start of a member.

    Args:
        environment: The member's, complete but for these.
        directory: Where its counter files go; made by the caller, 0700, empty.
        site: The directory of the injected sitecustomize, as the member sees it.

    Returns:
        Nothing where PYTHONPATH cannot name the directory, because there is a colon in it.
    """
    if os.pathsep in site:
        return {}
    path = environment.get("PYTHONPATH", "")
    # An empty entry is the working directory, so nothing is added to an empty variable.
    others = [entry for entry in path.split(os.pathsep) if entry != site] if path else []
    return {"PYTHONPATH": os.pathsep.join([site, *others]), VARIABLE: directory}
