"""The monitor's one loop: a sample at every tick, a piece of file now and then, an orderly end.

Also: what the monitor says of itself: its gaps, its cost, what it could read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import KW_ONLY, dataclass, field
from slurm_colloc.monitor.gpu_reading import Capabilities
from slurm_colloc.monitor.latest_figures import LatestFigures
from slurm_colloc.monitor.member_progress import Members, say
from slurm_colloc.monitor.nvml_reading import MIG_PREFIX, PATIENCE_S, GpuWatch, NvmlSample
from slurm_colloc.store.atomic_files import drop_temporaries, read_json, write_json
from slurm_colloc.store.member_states import read_attempt
from slurm_colloc.store.pack_directory import read_setup
from slurm_colloc.store.report_files import (
    GPU_METRICS,
    keep_metrics,
    latest_path,
    monitor_path,
)

if TYPE_CHECKING:
    from slurm_colloc.monitor.dcgm_activity import DcgmActivity
    from slurm_colloc.monitor.parquet_pieces import SampleFiles


# ---- What the monitor says of itself: its gaps, its cost, what it could read ---------------------


@dataclass
class MonitorRecord:
    """monitor.json of one attempt.

    Attributes:
        pack: The pack's directory.
        attempt: The attempt's number.
        node: The node's name.
        interval_s: Between two ticks.
        started_at: Epoch seconds.
        gaps: When nothing could be measured.
        capabilities: What could be read.
        ticks_due: How many ticks there should have been.
        ticks_taken: How many there were.
        rows_dropped: Rows that could not be written for so long that they were given up.
        mode: The pack's sharing mode.
        gpus: The GPUs that were watched.
        gpu_models: By UUID what GPU it is, as `name`, `memory_mb` and `index`, nvidia-smi's.
        earlier: The same of the attempts before.
        list_unmatched: By member how many lines --progress-regex matched none of.
    """

    pack: str
    attempt: int
    node: str
    interval_s: float
    started_at: float
    gaps: Gaps
    capabilities: Capabilities
    ticks_due: int = 0
    ticks_taken: int = 0
    rows_dropped: int = 0
    mode: str = ""
    gpus: list[str] = field(default_factory=list)
    gpu_models: dict[str, dict[str, Any]] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    list_unmatched: Callable[[], dict[int, int]] = dict

    def take_over(self) -> None:
        """Keep what the monitor before has said, which this one's file replaces.

        Half a file that it was killed at is removed.
        """
        drop_temporaries(monitor_path(self.pack))
        try:
            before = read_json(monitor_path(self.pack))
        except StateError:
            before = None
        if before is not None:
            earlier = before.pop("earlier", [])
            before.pop("capabilities", None)
            self.earlier = [*earlier, before]

    def write(self, now: float, *, ended: bool = False) -> None:
        """Write it.

        Args:
            now: Epoch seconds.
            ended: This is the last word.

        Raises:
            StateError: It cannot be written.
        """
        write_json(
            monitor_path(self.pack),
            {
                "attempt": self.attempt,
                "node": self.node,
                "interval_s": self.interval_s,
                "started_at": self.started_at,
                "written_at": now,
                "ended_at": now if ended else None,
                "ticks_due": self.ticks_due,
                "ticks_taken": self.ticks_taken,
                "rows_dropped": self.rows_dropped,
                "gaps": self.gaps.list_all(now),
                "gaps_left_out": self.gaps.left_out,
                "cpu_s": time.process_time(),
                "rss_peak_mb": read_status_mb("VmHWM"),
                "own_memory_mb": read_status_mb("RssAnon"),
                "mode": self.mode,
                "gpus": self.gpus,
                "gpu_models": self.gpu_models,
                "capabilities": self.capabilities.as_dict(),
                "unmatched": {str(key): lines for key, lines in self.list_unmatched().items()},
                "earlier": self.earlier,
            },
        )


def read_status_mb(name: str) -> float | None:
    """What the kernel says of this process's memory; None where it cannot be read.

    VmHWM is the most that it has had: getrusage would answer with what the parent had before the
    exec. Pages of libraries count, which all processes share, and of which some kernels map twice
    as many as others. RssAnon is what it alone has now.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


MOST_GAPS = 1000
"""More are not told one by one: a source that comes and goes each second says so in its count."""


@dataclass
class Gaps:
    """The gaps of one attempt, in order of their ends.

    Attributes:
        closed: From, to (epoch seconds), reason.
        left_out: How many more there were than are told.
    """

    closed: list[tuple[float, float, str]] = field(default_factory=list)
    left_out: int = 0
    _open: dict[str, tuple[float, str]] = field(default_factory=dict)

    def add(self, since: float, until: float, reason: str) -> None:
        """Add a gap that is over."""
        if len(self.closed) >= MOST_GAPS:
            self.left_out += 1
        else:
            self.closed.append((since, until, reason))

    def note(self, source: str, at: float, reason: str) -> None:
        """Say at a tick whether a source could be read.

        Args:
            source: Which, such as a GPU's UUID.
            at: When, in epoch seconds.
            reason: Why it could not; empty where it could.
        """
        since = self._open.get(source)
        if since is not None and since[1] != reason:
            del self._open[source]
            self.add(since[0], at, since[1])
        if reason and source not in self._open:
            self._open[source] = (at, reason)

    def list_all(self, now: float) -> list[tuple[float, float, str]]:
        """All gaps; those that last end now."""
        return [*self.closed, *((since, now, reason) for since, reason in self._open.values())]


def describe_missed(work_s: float, interval_s: float, busy_with: str) -> str:
    """Why ticks were missed: the monitor's own work, or it was not let run at all.

    Args:
        work_s: How long the work of the last tick took.
        interval_s: Between two ticks.
        busy_with: What took longest in it.
    """
    if work_s > interval_s:
        return f"monitor: {busy_with} took {work_s:.1f} s"
    return "monitor: it was stopped, or the node was too busy to run it"


# ----
# The monitor's one loop: a sample at every tick, a piece of file now and then, an orderly end.

SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
    signal.SIGALRM,
    signal.SIGCONT,
)
"""What Slurm, or a terminal, may send to everything of a job."""


PROCESSES_S = 5.0
"""Between two looks at the GPUs' process lists."""
EARLY_PROCESSES_S = 1.0
"""The same while a member has only just started."""
PIECE_S = 10.0
"""Between two pieces of the files."""
LATEST_S = 2.0
"""Between two versions of latest.json."""


@dataclass(eq=False)
class Loop:
    """Samples a pack until its runner says that it is over, or is gone.

    Attributes:
        pack: The pack's directory.
        attempt: The attempt's number.
        parent: The runner's pid.
        tick_s: Between two samples, in seconds.
        watch: Reads the GPUs.
        members: Reads the members.
        gpu_files: Where rows of GPUs go.
        member_files: Where rows of members go.
        record: What is said of the monitor itself.
        activity: Reads the GPUs' activity by DCGM; None where the site does not say so.
        progress_root: Where members' programs report their results; empty for nowhere.
    """

    _: KW_ONLY
    pack: str
    attempt: int
    parent: int
    tick_s: float
    watch: GpuWatch
    members: Members
    gpu_files: SampleFiles
    member_files: SampleFiles
    record: MonitorRecord
    activity: DcgmActivity | None = None
    progress_root: str = ""

    def __post_init__(self) -> None:
        self._latest = LatestFigures()
        self._uuids: tuple[str, ...] = ()
        self._setup_stamp: tuple[int, int] | None = None
        self._bound_to: frozenset[int] | None = None
        self._may_use = os.sched_getaffinity(0)
        self._due: dict[str, float] = {}
        self._busy: tuple[float, str] = (0.0, "")
        self._written_problem = ""
        self._last_gpus: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, str] = {}

    def run(self) -> None:
        """Sample until the end."""
        tick_s = self.tick_s
        self._write(lambda: self.record.write(time.time()))
        begin = time.monotonic()
        number = 0
        while True:
            started = time.monotonic()
            at = time.time()
            self._busy = (0.0, "")
            self._tick(at, started)
            work_s = time.monotonic() - started
            self.record.ticks_taken += 1
            ends = self._sleep_until(begin + (number + 1) * tick_s)
            now = time.monotonic()
            passed = max(number + 1, int((now - begin) / tick_s + 1e-6))
            missed = passed - number - 1
            if missed:
                reason = describe_missed(work_s, tick_s, self._busy[1])
                self.record.gaps.add(at, at + (now - started), reason)
            number = passed
            self.record.ticks_due = number + (0 if ends else 1)
            if ends:
                break

    def end(self) -> None:
        """The last sample, the last pieces, one file of each table."""
        at = time.time()
        self._sample(at, time.monotonic(), with_processes=False)
        self._write(lambda: self._write_latest(at))
        for files in (self.member_files, self.gpu_files):
            self._write(files.close)
        self._write(lambda: self.record.write(time.time(), ended=True))
        self.watch.close()
        if self.activity is not None:
            self.activity.close()

    # -- one tick -------------------------------------------------------------------------------

    def _tick(self, at: float, now: float) -> None:
        looks = self._is_due("processes", PROCESSES_S, now)
        if self.members.has_early(now):
            looks |= self._is_due("early processes", EARLY_PROCESSES_S, now)
        self._sample(at, now, with_processes=looks)
        if self._is_due("latest", LATEST_S, now):
            self._write(lambda: self._write_latest(at))
        if self._is_due("piece", PIECE_S, now, first_s=PIECE_S):
            with self._timed("writing"):
                self._write(self.gpu_files.write_piece)
                self._write(self.member_files.write_piece)
                if self.progress_root:
                    self._write(lambda: keep_metrics(self.progress_root, self.pack))
                self.record.rows_dropped = self.gpu_files.dropped + self.member_files.dropped
                self._write(lambda: self.record.write(at))

    def _sample(self, at: float, now: float, *, with_processes: bool) -> None:
        self._read_setup()
        self.watch.ask(self._uuids, with_processes=with_processes)
        # The driver works on its answer while /proc is read; only where its list of processes
        # says whose memory is whose has it to come first.
        sample = self._collect() if with_processes else None
        gpu_lists = None if sample is None else _select_lists(sample)
        with self._timed("reading members"):
            rows = self.members.read(at, now, gpu_lists)
        if sample is None:
            sample = self._collect()
        for row in rows:
            self.member_files.add(row)
        self._latest.update(rows, has_gpu_memory=gpu_lists is not None)
        self._note_gpus(at, sample)
        self._keep_apart()

    def _collect(self) -> NvmlSample:
        with self._timed("NVML"):
            return self.watch.collect(min(PATIENCE_S, self.tick_s / 2))

    def _note_gpus(self, at: float, sample: NvmlSample) -> None:
        self._problems = sample.problems
        general = sample.problems.get("nvml", "")
        self.record.gaps.note("nvml", at, general and f"gpu: {general}")
        known = dict.fromkeys((*self._uuids, *self.record.gpus, *sample.gpus))
        whole = [uuid for uuid in known if not uuid.startswith(MIG_PREFIX)]
        self.record.gpus = whole
        self.record.gpu_models.update(sample.models)
        self._last_gpus = {}
        if self.activity is not None:
            self.activity.follow(whole)
            if problem := self.activity.take_problem():
                say(f"no activity by DCGM: {problem}")
        for uuid in known:
            problem = sample.problems.get(uuid, "")
            self.record.gaps.note(uuid, at, problem and f"gpu {uuid}: {problem}")
            activity = {} if self.activity is None else self.activity.read(uuid)
            values = {**sample.gpus.get(uuid, {}), **activity}
            self.gpu_files.add({"at": at, "attempt": self.attempt, "uuid": uuid, **values})
            self._last_gpus[uuid] = {name: values.get(name) for name in GPU_METRICS}

    def _write_latest(self, at: float) -> None:
        value = {
            "at": at,
            "gpus": self._last_gpus,
            "indexes": {
                uuid: self.record.gpu_models.get(uuid, {}).get("index") for uuid in self._last_gpus
            },
            "problems": self._problems,
            "members": self._latest.build(),
        }
        write_json(latest_path(self.pack), value, outlives_crash=False)

    def _is_due(self, what: str, period_s: float, now: float, first_s: float = 0.0) -> bool:
        """Whether something is to be done now.

        Args:
            what: What.
            period_s: How often.
            now: Monotonic clock.
            first_s: How long after the beginning for the first time.
        """
        due = self._due.setdefault(what, now + first_s)
        # A tick is never exactly on time: what is due within half a tick is done now.
        if now + self.tick_s / 2 < due:
            return False
        self._due[what] = max(due + period_s, now + period_s / 2)
        return True

    def _read_setup(self) -> None:
        """Which GPUs are the pack's may become known, or change, while it runs."""
        try:
            status = os.stat(f"{self.pack}/setup.json")
        except OSError:
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._setup_stamp:
            return
        with contextlib.suppress(StateError):
            setup = read_setup(Path(self.pack))
            if setup is not None:
                # Where no UUID could be read these are numbers of Slurm's.
                gpus = tuple(one for one in setup.gpus if one.startswith(("GPU-", "MIG-")))
                self._uuids = (*gpus, *(one.uuid for one in setup.instances))
                self.record.mode = setup.mode
            self._setup_stamp = stamp

    def _keep_apart(self) -> None:
        """Run on CPUs that no member is bound to, where there are any."""
        bound = self.members.cpus
        if bound == self._bound_to:
            return
        self._bound_to = bound
        chosen = self._may_use - bound or self._may_use
        with contextlib.suppress(OSError):
            for task in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(task), chosen)

    # -- waiting and ending ---------------------------------------------------------------------

    def _sleep_until(self, deadline: float) -> bool:
        """Wait for the next tick; True where the pack is over."""
        while True:
            if os.getppid() != self.parent:
                return True
            left_s = deadline - time.monotonic()
            info = signal.sigtimedwait(SIGNALS, max(0.0, left_s))
            if info is None:
                return self._is_superseded()
            if info.si_signo == signal.SIGTERM:
                if info.si_pid == self.parent or os.getppid() != self.parent:
                    return True
                # Slurm's: what comes next may be a KILL, or half a minute of members that save.
                self._due["piece"] = 0.0

    def _is_superseded(self) -> bool:
        """A newer attempt of this pack has begun, and its monitor writes these files."""
        if not self._is_due("attempt", PIECE_S, time.monotonic()):
            return False
        with contextlib.suppress(OSError, StateError):
            return read_attempt(self.pack) > self.attempt
        return False

    def _write(self, act: Callable[[], None]) -> None:
        """Write something; a full disk, or a file of before that is damaged, ends nothing."""
        try:
            act()
        except (OSError, StateError, ValueError) as error:
            if str(error) != self._written_problem:
                self._written_problem = str(error)
                say(str(error))

    @contextlib.contextmanager
    def _timed(self, what: str) -> Any:
        """Notice what takes longest in a tick."""
        started = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - started
            if took > self._busy[0]:
                self._busy = (took, what)


def _select_lists(sample: NvmlSample) -> dict[str, dict[int, float | None]] | None:
    """The lists of processes by GPU or MIG instance, None where none was read."""
    lists = sample.processes
    if any(uuid.startswith(MIG_PREFIX) for uuid in lists):
        # Those of a divided GPU are the same processes once more, where NVML tells them at all.
        lists = {uuid: one for uuid, one in lists.items() if uuid.startswith(MIG_PREFIX)}
    return lists or None
