"""One pack as figures need it: its members' records joined with their samples.

Also: reading one pack: what its members wrote, samples and pauses, and what is known of their jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.metrics.presence import Phase, Stay, compute_phases, leave_out_stops, list_windows
from slurm_colloc.metrics.rates import (
    NEVER_STOPPED,
    WINDOW_LEAST_S,
    OwnTime,
    Settled,
    Window,
    measure_windows,
    settle,
)
from slurm_colloc.model.gpu_pace import GpuPace
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.usage_profile import ProfileRecord, choose_relatives
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.pack_samples import (
    NO_GPU,
    GpuSamples,
    Samples,
    StartSamples,
    join_gpus,
    read_samples,
)
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import read_bytes, read_json
from slurm_colloc.store.gpu_paces import read_paces
from slurm_colloc.store.member_states import MemberPause, read_pauses
from slurm_colloc.store.pack_directory import Setup, read_setup
from slurm_colloc.store.profiles import (
    compute_family,
    compute_kind,
    compute_signature,
    list_profiles,
)
from slurm_colloc.store.report_files import monitor_path
from slurm_colloc.store.runner_requests import DegreeRecord, read_degree
from slurm_colloc.store.written_ends import read_run_times

_GPU_PREFIX = "GPU-"


@dataclass(frozen=True)
class MemberRun:
    """A member and what was measured.

    Attributes:
        view: What was written about it.
        starts: Its samples, a start each, in order.
        stays: From each of its starts to its end, whether it ran all the time or was stopped.
        signature: Of its job; None where its script cannot be read.
        family: That of its script, whatever the arguments.
        kind: The signature without numbers among the arguments.
        profile: Its usage profile on this GPU model; None where there is none.
        relatives: The usage profiles of its relatives on this GPU model, if these agree.
        own_time: Tells when its runner had stopped it.
    """

    view: MemberView
    starts: tuple[StartSamples, ...]
    stays: tuple[Stay, ...]
    signature: str | None
    family: str | None
    profile: ProfileRecord | None
    relatives: tuple[ProfileRecord, ...] = ()
    own_time: OwnTime = NEVER_STOPPED
    kind: str | None = None

    @property
    def number(self) -> int:
        """Its number in the pack."""
        return self.view.place

    def settle(self) -> tuple[Settled, ...]:
        """Its progress, a start each, without warm-up and pauses; large where it ran long."""
        return tuple(settle(start.build_progress(self.own_time)) for start in self.starts)

    @cached_property
    def present(self) -> tuple[Stay, ...]:
        """When it was there: it ran, and was not stopped."""
        return tuple(leave_out_stops(self.stays, self.own_time))

    @property
    def present_s(self) -> float:
        """How long it was there."""
        return measure_windows(list_windows(self.present))

    @property
    def stopped_s(self) -> float:
        """How long its runner had stopped it."""
        return sum(self.own_time.count_stopped_s(stay.begin, stay.end) for stay in self.stays)

    @property
    def visits(self) -> tuple[Stay, ...]:
        """When it was there, as others feel it: a stop of a moment is no going."""
        return tuple(leave_out_stops(self.stays, self.own_time.keep_longer(WINDOW_LEAST_S)))


@dataclass(frozen=True)
class PackRun:
    """A pack and what was measured in it.

    Attributes:
        path: Its directory.
        view: What was written about it.
        setup: How its node was prepared; None where that was not written.
        monitor: What the monitor says of itself; None where it did not run.
        samples: All samples.
        members: Its members by number.
        problems: What could not be read, a sentence each.
        degree: What its runner has measured and decided of how many run at once; None where
            nothing.
        slow_gpus: Those of its GPUs that are slow, by what packs have noted.
    """

    path: Path
    view: PackView
    setup: Setup | None
    monitor: Mapping[str, Any] | None
    samples: Samples
    members: tuple[MemberRun, ...]
    problems: tuple[str, ...]
    degree: DegreeRecord | None = None
    slow_gpus: tuple[GpuPace, ...] = ()

    @property
    def pace(self) -> float:
        """How fast the pack's slowest GPU is against others of its model; 1 for all but slow ones.

        So fast are rates alone here, over what they are elsewhere.
        """
        return min((p.rate for p in self.slow_gpus if p.has_slow_jobs and p.rate), default=1.0)

    def count_unmatched(self, member: int) -> int | None:
        """Lines of a member's output of which --progress-regex matched none; None for no such."""
        monitor = self.monitor or {}
        records = [*(monitor.get("earlier") or ()), monitor]
        told = [found.get("unmatched") for found in records if isinstance(found, Mapping)]
        lines = [of.get(str(member)) for of in told if isinstance(of, Mapping)]
        return next((count for count in reversed(lines) if isinstance(count, int)), None)

    @property
    def gpu_model(self) -> str | None:
        """The GPU's model; None where unknown."""
        return self.gpu_details[0]

    @property
    def gpu_details(self) -> tuple[str | None, int | None]:
        """The GPU's model and its memory in MB, from who has seen it; None where unknown."""
        return find_gpu_details(self.setup, self.monitor)

    @cached_property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The pack's GPUs: those of its setup, else those that were measured.

        Those of an earlier start of a pack that was requeued are not among them.
        """
        known = self.setup.gpus if self.setup is not None else ()
        named = tuple(uuid for uuid in known if uuid.startswith(_GPU_PREFIX))
        if named:
            return named
        newest = (self.monitor or {}).get("gpus") or ()
        seen = tuple(uuid for uuid in newest if uuid in self.samples.gpus)
        return seen or tuple(u for u in self.samples.gpus if u.startswith(_GPU_PREFIX)) or known

    @property
    def gpu_uuid(self) -> str | None:
        """The first of them; None where none is known."""
        return next(iter(self.gpu_uuids), None)

    @property
    def gpu(self) -> GpuSamples:
        """What was measured of the pack's GPUs, as of one; false where nothing was."""
        return self.join_gpus(self.gpu_uuids)

    def find_gpus_of(self, member: MemberRun) -> tuple[str, ...]:
        """The GPUs that a member used at its last start; the pack's where that is unknown."""
        record = member.view.record
        use = record.gpu if record is not None else None
        used = () if use is None else (*use.uuids, use.gpu)
        own = tuple(uuid for uuid in self.gpu_uuids if uuid in used)
        return own or self.gpu_uuids

    def count_gpus_of(self, member: MemberRun) -> int:
        """How many GPUs a member used; 1 where none is known."""
        return max(1, len(self.find_gpus_of(member)))

    def count_share_of(self, member: MemberRun) -> float:
        """How many of the pack's GPUs a member used, over all of them."""
        return self.count_gpus_of(member) / max(1, len(self.gpu_uuids))

    def look_at(self, member: MemberRun) -> GpuSamples:
        """What was measured of a member's GPUs, as of one; false where nothing was."""
        return self.join_gpus(self.find_gpus_of(member))

    def join_gpus(self, uuids: tuple[str, ...]) -> GpuSamples:
        """What was measured of some of the GPUs, as of one."""
        if uuids not in self._joined:
            measured = [self.samples.gpus[uuid] for uuid in uuids if uuid in self.samples.gpus]
            self._joined[uuids] = join_gpus(measured) if measured else NO_GPU
        return self._joined[uuids]

    @cached_property
    def _joined(self) -> dict[tuple[str, ...], GpuSamples]:
        return {}

    def compute_mean(
        self, member: MemberRun, metric: str, windows: Sequence[Window]
    ) -> float | None:
        """The mean of a metric of a member's GPUs over windows; None where it was not measured."""
        return self.look_at(member).get(metric).compute_mean(windows)

    def compute_power_w(self, member: MemberRun, windows: Sequence[Window]) -> float | None:
        """Mean power of each of a member's GPUs over windows, in watts."""
        power_w = self.compute_mean(member, "power_w", windows)
        return None if power_w is None else power_w / self.count_gpus_of(member)

    @cached_property
    def phases(self) -> list[Phase]:
        """The run, cut wherever a member came or went, or was stopped or went on."""
        return compute_phases(stay for member in self.members for stay in member.present)

    @property
    def window(self) -> Window | None:
        """From the first start to the last end; None before the first start."""
        stays = [stay for member in self.members for stay in member.stays]
        if not stays:
            return None
        return min(stay.begin for stay in stays), max(stay.end for stay in stays)

    @property
    def is_final(self) -> bool:
        """No member will run again."""
        return all(member.view.is_final for member in self.members)


def find_gpu_details(
    setup: Setup | None, monitor: Mapping[str, Any] | None
) -> tuple[str | None, int | None]:
    """The model of a pack's GPU and its memory in MB; None where unknown; pure.

    Args:
        setup: What the runner has found; it does not look where a job runs alone.
        monitor: The monitor's record.
    """
    if setup is not None and setup.gpu_name:
        return setup.gpu_name, setup.gpu_memory_mb
    for model in ((monitor or {}).get("gpu_models") or {}).values():
        if model.get("name"):
            return model["name"], model.get("memory_mb")
    return None, None


# ----
# Reading one pack: what its members wrote, samples and pauses, and what is known of their jobs.


def look_at_pack(path: Path) -> PackView:
    """A pack as its runner wrote it, without asking Slurm.

    Raises:
        NotFound: There is no such pack.
        StateError: It is damaged.
    """
    views = survey_packs(StateReader(path.parent.parent), [path.name], None)
    if not views:
        raise NotFound(f"{path} is not a pack of csub")
    return views[0]


def read_run(path: Path, profiles: Path, view: PackView | None = None) -> PackRun:
    """Read a pack.

    Args:
        path: The pack's directory.
        profiles: The state directory that has the usage profiles.
        view: What Slurm and the runner say about it; None for what the runner wrote.

    Raises:
        NotFound: There is no such pack.
        StateError: It is damaged, or its samples cannot be read at all.
    """
    view = view or look_at_pack(path)
    problems = []
    setup, monitor, degree = None, None, None
    try:
        setup = read_setup(path)
    except StateError as problem:
        problems.append(str(problem))
    try:
        monitor = read_json(monitor_path(path))
    except StateError as problem:
        problems.append(str(problem))
    try:
        degree = read_degree(path, view.attempt)
    except StateError as problem:
        problems.append(str(problem))
    interval_s = monitor.get("interval_s") if monitor is not None else None
    samples = read_samples(path, interval_s or 1.0)
    last_at = max((s.end for starts in samples.starts.values() for s in starts), default=None)
    model, _ = find_gpu_details(setup, monitor)
    known = [] if model is None else list_profiles(profiles)[0]
    pauses: dict[int, list[MemberPause]] = {}
    for pause in read_pauses(path):
        pauses.setdefault(pause.member, []).append(pause)
    here = [record for record in known if record.gpu_model == model]
    members = tuple(
        _build_member(
            member,
            samples.starts.get(member.place, ()),
            last_at,
            here,
            pauses.get(member.place, ()),
        )
        for member in view.members
    )
    told = (*problems, *samples.problems)
    run = PackRun(path, view, setup, monitor, samples, members, told, degree)
    return add_slow_gpus(run, profiles)


def add_slow_gpus(run: PackRun, root: Path) -> PackRun:
    """With what is known of its GPUs by now.

    Args:
        run: The pack.
        root: The state directory that has it.
    """
    if run.gpu_model is None:
        return run
    paces = read_paces(root, run.gpu_model)
    slow = tuple(pace for pace in paces if pace.uuid in run.gpu_uuids and pace.is_slow)
    return replace(run, slow_gpus=slow)


def _build_member(
    view: MemberView,
    starts: tuple[StartSamples, ...],
    last_at: float | None,
    profiles: Sequence[ProfileRecord],
    pauses: Sequence[MemberPause],
) -> MemberRun:
    """A member's records joined with its samples.

    Args:
        view: What was written about it.
        starts: Its samples.
        last_at: When the newest of the pack's was read; None without any.
        profiles: The usage profiles on its GPU model.
        pauses: When its runner had paused it.
    """
    signature = family = kind = profile = None
    relatives: tuple[ProfileRecord, ...] = ()
    with contextlib.suppress(OSError, StateError):
        script = read_bytes(f"{view.files.path}/script")
        signature = compute_signature(script, view.spec.job)
        family = compute_family(script, view.spec.job)
        kind = compute_kind(script, view.spec.job)
    if signature is not None and kind is not None:
        profile = next((record for record in profiles if record.signature == signature), None)
        of_family = [record for record in profiles if record.family == family]
        relatives = tuple(choose_relatives(of_family, kind))
    spans = _find_spans(view, starts, last_at)
    stays = tuple(Stay(begin, end, view.place) for begin, end in sorted(spans.values()))
    own_time = OwnTime(_find_stops(pauses, spans))
    return MemberRun(view, starts, stays, signature, family, profile, relatives, own_time, kind)


def _find_spans(
    view: MemberView, starts: tuple[StartSamples, ...], last_at: float | None
) -> dict[tuple[int, int], Window]:
    """From when to when a start lasted, by attempt and start.

    By its samples, and for the last start by what its runner wrote, too; earlier ones that nothing
    has watched by what its wrapper wrote.
    """
    record = view.record
    stays = {(s.attempt, s.start): (s.begin, s.end) for s in starts}
    if record is not None and record.started_at is not None:
        if record.starts > len(stays):
            with contextlib.suppress(StateError):
                stays = {**read_run_times(view.files.path, view.files.names), **stays}
        key = (record.attempt, record.starts)
        ended_at = record.ended_at
        if ended_at is None and view.state is MemberState.RUNNING:
            ended_at = last_at
        begin, end = stays.get(key, (record.started_at, record.started_at))
        stays[key] = (min(begin, record.started_at), max(end, ended_at or end))
    return {key: (begin, end) for key, (begin, end) in stays.items() if end > begin}


def _find_stops(
    pauses: Sequence[MemberPause], spans: Mapping[tuple[int, int], Window]
) -> list[Window]:
    """When a member was stopped.

    A pause whose end is not written down lasts until the start's: its runner was killed, or it
    lasts still.
    """
    ends = {start: end for (_, start), (_, end) in sorted(spans.items())}
    first = min((begin for begin, _ in spans.values()), default=0.0)
    last = max(ends.values(), default=0.0)
    stops = []
    for pause in pauses:
        end = ends.get(pause.start) if pause.end is None else pause.end
        # What it did not live through is nothing, nor is what is not a number.
        if end is not None and end > pause.begin:
            stops.append((max(first, pause.begin), min(last, end)))
    return stops
