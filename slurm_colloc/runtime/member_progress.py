"""What a runner sees of its members: what they take, their rates alone, what they are like.

Also: rates of members over windows of a second or longer, from the counters that they publish;
latest.json: the monitor's newest figures, as the runner reads them; what members take of the GPU's
memory, as it is seen while they run, with a margin; how many members run at once best, by what
earlier packs of the same scripts measured.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, field, replace
from slurm_colloc.model.measured_curve import KnownCurve, RateAlone, RateSource
from slurm_colloc.model.measurement import MeasuredRate
from slurm_colloc.model.member import takes_at_once
from slurm_colloc.model.plan import Policy
from slurm_colloc.planning.hard_limits import add_gpu_memory_margin
from slurm_colloc.planning.known_degree import KnownDegree, find_degree
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.store.atomic_files import read_bytes, read_json
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.progress_counters import MemberProgress, read_member_progress
from slurm_colloc.store.report_files import latest_path

# ---- Rates of members over windows of a second or longer, from the counters that they publish ----

STEPS_LEAST = 3
SETTLED_S = 1.0
"""A member has settled after so many steps and so long after its first: what it does first is
slower (compilers, caches, autotuning)."""

_GAPS_KEPT = 9
_GAPS_LEAST = 2


@dataclass(frozen=True)
class StepCount:
    """A member's steps at one moment.

    Attributes:
        at: When it was looked (CLOCK_MONOTONIC).
        steps: Steps so far.
        first_step_s: When the first one ended, on the same clock; None before.
        last_step_s: When the newest one ended, likewise.
        trainers: Processes that have made steps.
        ranks: The largest number of ranks that one of them names; None where none does.
        gpu_reserved_peak: Bytes that PyTorch's allocator had at most; None where it does not say.
        gpu_reserved: Bytes that it has now; likewise.
        is_printed: They are read from what it prints, as its lines come.
        line_s: Seconds from one such line to the next; None before that is known.
        samples: Samples that the steps took; None where unknown.
    """

    at: float
    steps: int
    first_step_s: float | None
    last_step_s: float | None
    trainers: int
    ranks: int | None
    gpu_reserved_peak: int | None = None
    gpu_reserved: int | None = None
    is_printed: bool = False
    line_s: float | None = None
    samples: int | None = None

    @property
    def has_settled(self) -> bool:
        """Its rate is one that it can keep."""
        first = self.first_step_s
        if self.is_printed:
            # A line may stand for many steps.
            return self.line_s is not None
        return first is not None and self.steps >= STEPS_LEAST and self.at - first >= SETTLED_S


@dataclass
class _Lines:
    """When a start of a member has printed how far it is."""

    last_s: float
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS_KEPT))

    def find_usual_s(self) -> float | None:
        """Seconds from one line to the next, pauses left out; None before that is known."""
        if len(self.gaps) < _GAPS_LEAST:
            return None
        # As the median of `statistics`, which loads decimals, fractions and random numbers.
        ordered, half = sorted(self.gaps), len(self.gaps) // 2
        return (ordered[half] + ordered[~half]) / 2


class WindowRates:
    """Reads the counters of a pack's members.

    Args:
        find_directory: Where the present start of a member counts; empty where it does not.
        clock: CLOCK_MONOTONIC in seconds, as the counters have it.
    """

    def __init__(
        self,
        find_directory: Callable[[Member], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_directory = find_directory
        self._clock = clock
        self._begun: dict[int, StepCount] = {}
        self._lines: dict[str, _Lines] = {}
        self._running_since = 0.0

    def read(self, member: Member) -> StepCount | None:
        """A member's steps now; None where it counts none, or none yet."""
        directory = self._find_directory(member)
        found = read_member_progress(directory) if directory else None
        if found is None or found.source is None:
            return None
        count = _count(self._clock(), found)
        return self._note_line(directory, count) if count.is_printed else count

    def _note_line(self, directory: str, count: StepCount) -> StepCount:
        last_s = count.last_step_s or count.at
        lines = self._lines.setdefault(directory, _Lines(last_s))
        if last_s > lines.last_s:
            lines.gaps.append(last_s - lines.last_s)
            lines.last_s = last_s
        return replace(count, line_s=lines.find_usual_s())

    def begin(self, members: Iterable[Member], running_since: float) -> None:
        """Begin a window.

        Args:
            members: Those that run in it.
            running_since: Since when just these run.
        """
        self._running_since = running_since
        found = ((member.number, self.read(member)) for member in members)
        self._begun = {number: count for number, count in found if count is not None}

    def look(self, members: Iterable[Member]) -> None:
        """Look between begin and end: what is printed counts from its first line in the window."""
        for member in members:
            begun = self._begun.get(member.number)
            if begun is None or not begun.is_printed or self._is_within(begun):
                continue
            if (count := self.read(member)) is not None:
                self._begun[member.number] = count

    def _is_within(self, count: StepCount) -> bool:
        return count.last_step_s is not None and count.last_step_s >= self._running_since

    def end(self, members: Iterable[Member]) -> dict[int, float | None]:
        """Steps per second in the window; None where a member made no step in it.

        It may have been at something else, a checkpoint for example: that is not a rate of 0.
        """
        return {member.number: self._compute(self.read(member), member) for member in members}

    def _compute(self, end: StepCount | None, member: Member) -> float | None:
        begin = self._begun.get(member.number)
        if begin is None or end is None or end.steps <= begin.steps:
            return None
        steps = end.steps - begin.steps
        first, last = begin.last_step_s, end.last_step_s
        # From step to step, unless it was paused in between.
        if first is not None and last is not None and self._running_since <= first < last:
            return steps / (last - first)
        if begin.is_printed:
            # Without two lines in the window it would be that of before.
            return None
        return steps / (end.at - begin.at) if end.at > begin.at else None


def _count(at: float, found: MemberProgress) -> StepCount:
    ranks = [process.world for process in found.processes if process.world is not None]
    return StepCount(
        at,
        found.steps,
        found.first_step_s,
        found.last_step_s,
        found.trainers,
        max(ranks, default=None),
        found.gpu_reserved_peak,
        found.gpu_reserved,
        is_printed=found.source == "regex",
        samples=found.samples,
    )


# ---- latest.json: the monitor's newest figures, as the runner reads them -------------------------
#
# A process that can write to the pack's directory may have written something else into it, or a
# monitor of another version. Figures that are not such as the monitor writes count as none at all.

RATE_LEAST, RATE_MOST = 1e-6, 1e9
"""Steps per second; what is outside is none's rate."""

AHEAD_S = 5.0
"""Figures of so much later than now are of another clock."""

_USUAL = (0.0, 1e15)
_SHARE = (0.0, 1.5)
"""Of an activity, 0 to 1; hardware counters round."""

_RANGES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "members": {
        "start": _USUAL,
        "steps": _USUAL,
        "steps_per_s": (RATE_LEAST, RATE_MOST),
        "last_step_age_s": _USUAL,
        "settled_s": _USUAL,
        "mean_steps_per_s": (RATE_LEAST, RATE_MOST),
        "mean_error": _USUAL,
        "gpu_memory_mb": _USUAL,
        "loader_workers": _USUAL,
        "cpu_cores": _USUAL,
        "wait_share": _USUAL,
    },
    "gpus": {
        "sm_active": _SHARE,
        "dram_active": _SHARE,
        "engine_active": _SHARE,
        "pcie_rx_mib_s": _USUAL,
        "pcie_tx_mib_s": _USUAL,
    },
}


def read_latest(pack: Path) -> Mapping[str, Any] | None:
    """The monitor's newest figures; None where there are none, or such as no monitor writes."""
    with contextlib.suppress(StateError):
        value = read_json(latest_path(pack))
        if is_sound(value, time.time()):
            return value
    return None


def is_sound(value: Any, now: float) -> bool:
    """Whether figures are such as the monitor writes; pure.

    Args:
        value: What was read.
        now: Seconds since the epoch.
    """
    if not isinstance(value, dict) or not _is_within(value.get("at"), (0.0, now + AHEAD_S)):
        return False
    for name, ranges in _RANGES.items():
        entries = value.get(name)
        if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
            return False
        for entry in entries.values():
            found = ((entry.get(figure), allowed) for figure, allowed in ranges.items())
            if not all(i is None or i == 0 or _is_within(i, allowed) for i, allowed in found):
                return False
    return True


def _is_within(item: object, allowed: tuple[float, float]) -> bool:
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    # Not a number is in no range.
    return allowed[0] <= item <= allowed[1]


# ---- What members take of the GPU's memory, as it is seen while they run, with a margin ----------
#
# What counts is NVML's figure of the process: context, kernels and workspaces are in it. PyTorch's
# allocator tells its own peak at once and truly, and is a part of that. NVML is asked by the
# monitor, a second or more late, and misses what was given back in between.

SETTLED_STEPS_LEAST = 10
FIRST_SECONDS_S = 5.0
"""After so many steps, and so long after the first, what a program takes has settled: in its first
seconds it may take several times as much (cuDNN tries its algorithms), or far less."""
HELD_S = 15.0
"""What a program without counted steps has not exceeded for so long is taken for its most."""
AT_ONCE_S = 3.0
"""How long after a process first has GPU memory what it has is what it took at once."""
OUTSIDE_ASSUMED_MB = 768.0
"""What a process takes outside its allocator (CUDA context, library workspaces), where NVML does
not tell: 762 MB were measured for a ResNet on an H100."""

_MIB = 1 << 20


@dataclass
class _Seen:
    """What was seen of a member's present start.

    Attributes:
        start: Which.
        nvml_mb: The most that NVML has told.
        nvml_now_mb: What it told last.
        most_at: When it told the most, in seconds since the epoch.
        reserved_peak_mb: What the allocator had at most.
        reserved_mb: What it has now.
        stepping_s: Since its first step.
        steps: Steps so far.
        held_s: Since NVML has told the most that it has told.
        settled_mb: The most that the process has had since it has settled; None before.
        first_at: When NVML first told of any, in seconds since the epoch.
        at_once_mb: The most that it told then and a moment later, before any step.
    """

    start: int
    nvml_mb: float = 0.0
    nvml_now_mb: float | None = None
    reserved_peak_mb: float | None = None
    reserved_mb: float | None = None
    stepping_s: float = 0.0
    steps: int = 0
    held_s: float = 0.0
    most_at: float = 0.0
    settled_mb: float | None = None
    first_at: float | None = None
    at_once_mb: float = 0.0

    @property
    def has_settled(self) -> bool:
        """What it takes is known: it makes steps, or counts none and has held what it has."""
        if self.steps:
            return self.steps >= SETTLED_STEPS_LEAST and self.stepping_s >= FIRST_SECONDS_S
        return bool(self.nvml_mb) and self.held_s >= HELD_S

    @property
    def _outside_mb(self) -> float:
        if self.nvml_now_mb is None or self.reserved_mb is None:
            return OUTSIDE_ASSUMED_MB
        return max(0.0, self.nvml_now_mb - self.reserved_mb)

    @property
    def _process_mb(self) -> float:
        """What the process has now; 0 where nothing tells."""
        inside = self.reserved_mb + self._outside_mb if self.reserved_mb else 0.0
        return max(self.nvml_now_mb or 0.0, inside)

    @property
    def peak_mb(self) -> float | None:
        """What the process had at most; None where that is not known yet."""
        if not self.has_settled:
            return None
        inside = self.reserved_peak_mb + self._outside_mb if self.reserved_peak_mb else 0.0
        return max(self.nvml_mb, inside) or None

    def note_at_once(self, at: float) -> None:
        """Note what it takes in its first moments; PyTorch's allocator takes what is asked for."""
        if not self.nvml_mb or self.steps or self.reserved_mb is not None:
            return
        if self.first_at is None:
            self.first_at = at
        if at <= self.first_at + AT_ONCE_S:
            self.at_once_mb = max(self.at_once_mb, self.nvml_now_mb or 0.0)

    def look(self) -> None:
        """Note what it has now, once it has settled."""
        if self.has_settled and self._process_mb:
            self.settled_mb = max(self._process_mb, self.settled_mb or 0.0)


class GpuMemoryUse:
    """Keeps what was seen of each member."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def note_nvml(self, number: int, start: int, gpu_memory_mb: float | None, at: float) -> None:
        """What the monitor has read of NVML, and when; None where it could not be read."""
        seen = self._find(number, start)
        seen.nvml_now_mb = gpu_memory_mb
        if gpu_memory_mb and gpu_memory_mb > seen.nvml_mb:
            seen.nvml_mb, seen.most_at = gpu_memory_mb, at
        seen.held_s = at - seen.most_at if seen.nvml_mb else 0.0
        seen.note_at_once(at)
        seen.look()

    def note_count(self, number: int, start: int, count: StepCount) -> None:
        """What a member's own counters say."""
        seen = self._find(number, start)
        seen.steps = count.steps
        if count.first_step_s is not None:
            seen.stepping_s = count.at - count.first_step_s
        if count.gpu_reserved_peak is not None:
            seen.reserved_peak_mb = count.gpu_reserved_peak / _MIB
        if count.gpu_reserved is not None:
            seen.reserved_mb = count.gpu_reserved / _MIB
        seen.look()

    def list_seen(self) -> list[int]:
        """Members of which it is known what they took at most."""
        return [number for number, seen in self._seen.items() if seen.peak_mb is not None]

    def is_used(self, number: int, start: int) -> bool:
        """Whether a member has been seen to take any."""
        seen = self._seen.get(number)
        return seen is not None and seen.start == start and bool(seen.nvml_mb or seen.reserved_mb)

    def find_peak_mb(self, number: int) -> int | None:
        """What a member took at most, with a margin; None where that is not known."""
        seen = self._seen.get(number)
        peak_mb = None if seen is None else seen.peak_mb
        return None if peak_mb is None else add_gpu_memory_margin(peak_mb)

    def find_process_mb(self, number: int, start: int) -> float | None:
        """The most that its process was seen to take; None where nothing was seen."""
        seen = self._seen.get(number)
        if seen is None or seen.start != start:
            return None
        return max(seen.nvml_mb, seen.reserved_peak_mb or 0.0) or None

    def find_at_once_mb(self, number: int, start: int) -> float | None:
        """What a member took at once, before any step; None where unknown, or PyTorch takes it."""
        seen = self._seen.get(number)
        if seen is None or seen.start != start or seen.reserved_mb is not None:
            return None
        return seen.at_once_mb or None

    def find_settled_mb(self, number: int, start: int) -> int | None:
        """What a member that has settled may take, with a margin; None before, or unknown."""
        seen = self._seen.get(number)
        if seen is None or seen.start != start or seen.settled_mb is None:
            return None
        return add_gpu_memory_margin(seen.settled_mb)

    def _find(self, number: int, start: int) -> _Seen:
        seen = self._seen.get(number)
        if seen is None or seen.start != start:
            seen = self._seen[number] = _Seen(start)
        return seen


# ---- What a runner sees of its members: what they take, their rates alone, what they are like ----


def choose_common_bound(policy: Policy | None) -> float | None:
    """The slowdown that is accepted for members that say nothing of it; None for any."""
    return policy.slowdown_bound if policy is not None else None


@dataclass(eq=False, kw_only=True)
class ProgressReader:
    """Looks at the members of a pack.

    Attributes:
        pack: The attempt of the pack.
        rates: Reads their counters.
        bound: The slowdown that is accepted for members without one of their own; None for any.
    """

    pack: PackContext
    rates: WindowRates
    bound: float | None = None

    def __post_init__(self) -> None:
        self._begun_at = time.time()
        self._stamp: tuple[int, int] | None = None
        self._families: dict[int, tuple[str, str]] = {}
        self._gpu_memory = GpuMemoryUse()
        self.taken_at_once: set[int] = set()
        """Members that took most of what they may take before they needed any."""
        self.rates_alone: dict[int, RateAlone] = {}
        """Measured rates alone, by member number."""
        self.looked_at = 0.0
        """Of when the newest figures are, in seconds since the epoch; 0 for none."""
        self.figures: Mapping[str, Any] = {}
        """The newest of each member, by its number as text."""

    def work(self) -> None:
        """See what the members that run take now."""
        latest = self._read()
        for member in self.pack.members.with_process():
            number, start = member.number, member.record.starts
            found = {} if latest is None else latest["members"].get(str(number)) or {}
            if found.get("start") == start:
                assert latest is not None
                used_mb = found.get("gpu_memory_mb")
                self._gpu_memory.note_nvml(number, start, used_mb, float(latest["at"]))
            if (count := self.rates.read(member)) is not None:
                self._gpu_memory.note_count(number, start, count)

    def _read(self) -> Mapping[str, Any] | None:
        path = latest_path(str(self.pack.path))
        with contextlib.suppress(OSError):
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            value = read_latest(self.pack.path)
            # An earlier attempt may have left some.
            if value is not None and value["at"] > max(self._begun_at, self.looked_at):
                self.looked_at, self.figures = value["at"], value["members"]
                return value
        return None

    def find_gpu_need_mb(self, member: Member) -> int | None:
        """What a member takes of the GPU's memory, with a margin, by what it or one like it took.

        None where neither has been seen yet.
        """
        own = self._gpu_memory.find_peak_mb(member.number)
        family = self.find_family(member)
        if own is not None or not family:
            return own
        alike = [n for n in self._gpu_memory.list_seen() if self.find_family_of(n) == family]
        return max((self._gpu_memory.find_peak_mb(n) or 0 for n in alike), default=None)

    def find_gpu_settled_mb(self, member: Member) -> int | None:
        """What a member may take that has settled, with a margin; None before."""
        return self._gpu_memory.find_settled_mb(member.number, member.record.starts)

    def find_gpu_at_once_mb(self, member: Member) -> float | None:
        """What it took in its first seconds on the GPU, before any step; None where unknown."""
        return self._gpu_memory.find_at_once_mb(member.number, member.record.starts)

    def find_gpu_process_mb(self, member: Member) -> float | None:
        """The most that its process was seen to take; None where nothing was seen."""
        return self._gpu_memory.find_process_mb(member.number, member.record.starts)

    def uses_gpu_memory(self, member: Member) -> bool:
        """Whether it has been seen to take any."""
        return self._gpu_memory.is_used(member.number, member.record.starts)

    def counts_steps(self, member: Member) -> bool:
        """Whether something counts its steps."""
        job = member.spec.job
        return (self.pack.settings.instrument and job.instrument) or job.progress_regex is not None

    def find_bound(self, member: Member) -> float | None:
        """The slowdown that is accepted for a member; None for any."""
        return member.spec.plan.max_slowdown or self.bound

    def note_alone(self, measured: MeasuredRate) -> None:
        """The rate of a member while all others were paused."""
        use = self.pack.members.by_number[measured.member].gpu
        self.rates_alone[measured.member] = RateAlone(
            measured.member, measured.steps_per_s, measured.error, measured.window_s, time.time(),
            RateSource.PAUSING, None if use is None else use.thread_percentage,
        )  # fmt: skip

    def find_rate_alone(self, member: Member) -> RateAlone | None:
        """Its rate alone, by the plan or as measured: its own, or that of its family."""
        if (own := self.rates_alone.get(member.number)) is not None:
            return own
        family = self.find_family(member)
        for number, rate in self.rates_alone.items() if family else ():
            if self.find_family_of(number) == family:
                return RateAlone(
                    member.number, rate.steps_per_s, rate.error, rate.window_s, rate.at,
                    RateSource.FAMILY, rate.thread_percentage,
                )  # fmt: skip
        planned = member.spec.plan.solo_steps_per_s
        if planned is None:
            return None
        return RateAlone(member.number, planned, source=RateSource.PROFILE)

    def takes_at_once(self, member: Member) -> bool:
        """Whether it takes what it gets: by its program, or because one like it has done so."""
        family = self.find_family(member)
        if any(family and self.find_family_of(number) == family for number in self.taken_at_once):
            return True
        path = f"{self.pack.path}/members/{format_number(member.number)}/script"
        return takes_at_once(read_program(path, member.spec.job).decode("latin-1"))

    def find_family_of(self, number: int) -> str:
        """What a member is like that was here, though another pack may have it by now."""
        member = self.pack.members.by_number.get(number)
        return (
            self._families.get(number, ("", ""))[0] if member is None else self.find_family(member)
        )

    def find_family(self, member: Member) -> str:
        """What it is like; empty where that cannot be read."""
        return self._sign(member)[0]

    def find_script(self, member: Member) -> str:
        """The family of its script, whatever its arguments; empty where it cannot be read."""
        return self._sign(member)[1]

    def _sign(self, member: Member) -> tuple[str, str]:
        """Both of a member.

        One that may come from another pack cannot be read here yet: that is not kept.
        """
        known = self._families.get(member.number)
        if known is not None:
            return known
        # Loaded only by packs that are measured.
        from slurm_colloc.store.profiles import compute_family, compute_kind

        path = f"{self.pack.path}/members/{format_number(member.number)}/script"
        try:
            script = read_bytes(path)
        except OSError:
            return "", ""
        job = member.spec.job
        found = compute_kind(script, job), compute_family(script, job)
        self._families[member.number] = found
        return found


def read_program(script: str, job: Job) -> bytes:
    """A job's script, and the Python files that it or its arguments name, as far as there are such.

    Args:
        script: Its path.
        job: The job.
    """
    text = b""
    with contextlib.suppress(OSError, ValueError):
        text = read_bytes(script)
        words = [*os.fsdecode(text).split(), *job.arguments]
        named = {os.path.join(job.directory, w.strip("\"';")) for w in words if ".py" in w}
        # A pipe would be waited for.
        for path in filter(os.path.isfile, named):
            text += b"\n" + read_bytes(path)
    return text


# ---- How many members run at once best, by what earlier packs of the same scripts measured -------


@dataclass(eq=False)
class KnownCurves:
    """Reads the curves of a user, each once.

    Attributes:
        root: The state directory.
        progress: Knows which script a member runs, and how slow it may be.
        gpu_mode: The pack's GPU, and how its members share it.
    """

    root: Path
    progress: ProgressReader
    gpu_mode: GpuMode

    def __post_init__(self) -> None:
        self._curves: dict[tuple[str, ...], list[KnownCurve]] = {}

    def find_degree(self, members: Sequence[Member]) -> KnownDegree | None:
        """How many of these run at once; None where exactly their scripts were never measured."""
        model, mode = self.gpu_mode.setup.gpu_name, self.gpu_mode.mode
        families = [self.progress.find_script(member) for member in members]
        if len(members) < 2 or model is None or mode is None or not all(families):
            return None
        kinds = Counter(families)
        curves = [c for c in self._read(tuple(sorted(kinds)), model) if c.mode is mode]
        if not curves:
            return None
        bounds = [self.progress.find_bound(member) for member in members]
        rates = {
            family: rate
            for family, member in zip(families, members, strict=True)
            if (rate := member.spec.plan.solo_steps_per_s) is not None
        }
        bound = min((bound for bound in bounds if bound is not None), default=math.inf)
        return find_degree(curves, kinds, bound, rates)

    def _read(self, families: tuple[str, ...], gpu_model: str) -> list[KnownCurve]:
        if families not in self._curves:
            from slurm_colloc.store.curves import read_curves

            self._curves[families], _ = read_curves(self.root, gpu_model, families)
        return self._curves[families]
