"""Reading one pack: what its members wrote, samples and pauses, and what is known of their jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.metrics.own_time import OwnTime
from slurm_colloc.metrics.presence import Stay
from slurm_colloc.metrics.series import Window
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.usage.profile import ProfileRecord, choose_relatives
from slurm_colloc.report.member_survey import (
    survey_packs,
)
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun, find_gpu_details
from slurm_colloc.report.summary.pack_samples import (
    Samples,
    StartSamples,
    read_samples,
)
from slurm_colloc.store.atomic_files import read_bytes, read_json
from slurm_colloc.store.learned.faults import compute_signature
from slurm_colloc.store.learned.profiles import compute_family, compute_kind, list_profiles
from slurm_colloc.store.pack.degree_record import read_degree
from slurm_colloc.store.pack.member_pauses import MemberPause, read_pauses
from slurm_colloc.store.pack.node_setup import read_setup
from slurm_colloc.store.pack.sample_files import monitor_path
from slurm_colloc.store.pack_reading import StateReader


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
    here = tuple(record for record in known if record.gpu_model == model)
    reading = _Reading(samples, last_at, here, pauses)
    members = tuple(_build_member(member, reading) for member in view.members)
    told = (*problems, *samples.problems)
    return PackRun(path, view, setup, monitor, samples, members, told, degree)


@dataclass(frozen=True)
class _Reading:
    """What was read of a whole pack.

    Attributes:
        samples: All samples.
        last_at: When the newest was read; None without any.
        profiles: The usage profiles on its GPU model.
        pauses: By number, when its runner had paused members.
    """

    samples: Samples
    last_at: float | None
    profiles: tuple[ProfileRecord, ...]
    pauses: Mapping[int, Sequence[MemberPause]]


def _build_member(view: MemberView, reading: _Reading) -> MemberRun:
    number = view.place
    starts = reading.samples.starts.get(number, ())
    signature = family = kind = profile = None
    relatives: tuple[ProfileRecord, ...] = ()
    with contextlib.suppress(OSError, StateError):
        script = read_bytes(f"{view.files.path}/script")
        signature = compute_signature(script, view.spec.job)
        family = compute_family(script, view.spec.job)
        kind = compute_kind(script, view.spec.job)
    here = reading.profiles
    if signature is not None and kind is not None:
        profile = next((record for record in here if record.signature == signature), None)
        of_family = [record for record in here if record.family == family]
        relatives = tuple(choose_relatives(of_family, kind))
    spans = _find_spans(view, starts, reading.last_at)
    stays = tuple(Stay(begin, end, number) for begin, end in sorted(spans.values()))
    own_time = OwnTime(_find_stops(reading.pauses.get(number, ()), spans))
    return MemberRun(view, starts, stays, signature, family, profile, relatives, own_time, kind)


def _find_spans(
    view: MemberView, starts: tuple[StartSamples, ...], last_at: float | None
) -> dict[tuple[int, int], Window]:
    """From when to when a start lasted, by attempt and start.

    By its samples, and for the last start by what its runner wrote, too.
    """
    record = view.record
    stays = {(s.attempt, s.start): (s.begin, s.end) for s in starts}
    if record is not None and record.started_at is not None:
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
