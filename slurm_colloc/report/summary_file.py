"""summary.json: its fields, as types; whether a value has them; reading it; light to load.

docs/json.md says what the fields mean. Also: a pack's summary for readers: the one that its end has
left, else one made now.
"""

from __future__ import annotations

import datetime as dt
import functools
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, final

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.presence import Attribution
from slurm_colloc.model.records import is_number
from slurm_colloc.report.member_views import PackView
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.member_states import read_attempt
from slurm_colloc.store.report_files import report_directory

# ---- The fields of summary.json ------------------------------------------------------------------
#
# A file may be damaged, or another user's: a value is checked by these types, and then believed.
# What no report is made of is an `object` that may be missing; unknown fields are passed over.

Number = Annotated[float, lambda value: abs(value) < 1e18]
Count = Annotated[int, lambda value: 0 <= value < 1e18]
Moment = Annotated[float, lambda value: 0 <= value < 1e11]
"""Seconds since the epoch, as a calendar has them."""
AttributionWord = Annotated[str, frozenset(Attribution).__contains__]


@final
class SummaryPart(TypedDict):
    """A member's part of something, and how it was obtained."""

    value: Number | None
    attribution: AttributionWord


class SummaryRequest(TypedDict):
    """What was asked for a member."""

    cpus: Number | None
    gpus: Number
    host_memory_mb: Number | None
    gpu_memory_mb: Number | None
    time_limit_s: Number | None


class SummaryRate(TypedDict):
    """A member's rate."""

    steps_per_s: Number | None
    samples_per_s: Number | None
    window_s: NotRequired[object]
    spread: NotRequired[object]
    shared_steps_per_s: NotRequired[object]
    warm_up_s: NotRequired[object]
    paused_s: NotRequired[object]
    unknown: NotRequired[object]


class SummarySolo(TypedDict):
    """A member's rate alone."""

    steps_per_s: Number | None
    source: NotRequired[object]
    n: NotRequired[object]
    measured_by: NotRequired[object]


class SummaryGpuMemory(TypedDict):
    """A member's peak of GPU memory, in MB."""

    peak: Number | None
    attribution: AttributionWord
    by: str | None
    allocator_peak: NotRequired[object]
    outside_allocator: NotRequired[object]


class SummaryMig(TypedDict):
    """A member's MIG instance."""

    planned: str | None
    profile: str | None
    uuid: str | None
    memory_mb: Number | None
    shared_by: str | None
    sms: NotRequired[object]
    gpu_memory_peak_mb: NotRequired[object]
    sm_active: NotRequired[object]
    dram_active: NotRequired[object]
    attribution: NotRequired[object]


class SummaryStall(TypedDict):
    """What a member's time went into, in shares of it."""

    data: Number | None
    host: Number | None
    device: Number | None
    sharing: Number | None
    data_alone: Number | None
    overlap: Number | None
    alone_s: Number | None
    attribution: AttributionWord | None


class SummaryChange(TypedDict):
    """A change of a member's rate as others came or went."""

    at: Moment
    came: list[Count]
    went: list[Count]
    before_steps_per_s: Number
    after_steps_per_s: Number
    ratio: Number


class SummaryPower(TypedDict):
    """The power limit that would suit a member."""

    limit_w: Number | None
    slowdown: Number | None
    energy_share: Number | None


class SummaryMetric(TypedDict):
    """A result of a member's program, which may be as large as it likes."""

    last: float | None
    least: float | None
    greatest: float | None
    source: str


class SummaryMember(TypedDict):
    """A member."""

    member: Count
    id: str
    job_id: NotRequired[str | None]
    name: str
    parameters: dict[str, str]
    retry_of: str | None
    request: SummaryRequest
    accepted_slowdown: Number | None
    state: str
    cause: str | None
    script: str | None
    arguments: list[str] | None
    directory: str | None
    node: str | None
    gpu_uuids: list[str]
    mode: str | None
    exit_code: Number | None
    exit_signal: Number | None
    started_at: Moment | None
    ended_at: Moment | None
    started_time: NotRequired[object]
    ended_time: NotRequired[object]
    joined_at: Moment | None
    stopped_s: Number | None
    starts: Count
    steps: Number | None
    skipped: NotRequired[object]
    samples: NotRequired[object]
    progress: NotRequired[object]
    unmatched_lines: Number | None
    rate: SummaryRate
    solo: SummarySolo | None
    slowdown: Number | None
    predicted_slowdown: Number | None
    together_slowdown: Number | None
    solo_time_s: Number | None
    gpu_memory_mb: SummaryGpuMemory | None
    cpu_s: NotRequired[object]
    cpu_cores: Number | None
    host_memory_peak_mb: Number | None
    read_bytes: NotRequired[object]
    written_bytes: NotRequired[object]
    sm_share: SummaryPart | None
    mig: SummaryMig | None
    energy_j: SummaryPart | None
    stall: SummaryStall
    interference: list[SummaryChange]
    power: NotRequired[SummaryPower | None]
    metrics: dict[str, SummaryMetric]
    unknown: dict[str, str]
    notes: list[str]


class SummaryFairness(TypedDict):
    """How alike the members' slowdowns are."""

    jain: Number | None
    min_over_max: NotRequired[object]


class SummaryPrediction(TypedDict):
    """Mean slowdowns, predicted and measured."""

    members: Count
    over: str
    predicted: Number
    measured: Number
    error: Number


class SummaryPack(TypedDict):
    """What sharing gained or cost."""

    stp: Number | None
    stp_at_least: Number | None
    antt: Number | None
    prediction: SummaryPrediction | None
    fairness: SummaryFairness | None
    members: Count
    members_most: Count
    overlap_s: Number
    serial_s: Number | None
    shared_s: Number | None
    gpu_hours_saved: Number | None
    kwh_saved: Number | None
    kwh_how: str | None
    idle_power_w: Number | None
    idle_power_from: str | None
    unknown: list[str]
    slowdown_unknown: list[str]


class SummarySpread(TypedDict):
    """The values of a metric of a GPU."""

    mean: Number
    p50: NotRequired[object]
    p95: Number
    max: Number
    attribution: AttributionWord


class SummaryGpu(TypedDict):
    """A GPU."""

    index: Count | None
    uuid: str
    model: str | None
    memory_mb: Number | None
    members: list[Count]
    use: dict[str, SummarySpread | None]
    throttled_s: dict[str, Number | None]
    slow: str | None
    energy_j: Number | None


class SummaryFirstGpu(TypedDict):
    """The GPU of a pack; of several the first."""

    uuid: str | None
    model: str | None
    memory_mb: Number | None


class SummarySetup(TypedDict):
    """How the node was prepared."""

    mode: str
    asked: str
    reason: str
    by: str
    notes: list[str]


class SummaryInstance(TypedDict):
    """A MIG instance of a layout."""

    profile: str
    uuid: str
    memory_mb: Number | None
    sms: Number | None
    places: Number | None


class SummaryLayout(TypedDict):
    """A MIG layout."""

    planned: list[str]
    came: list[SummaryInstance]


SummaryWindow = TypedDict("SummaryWindow", {"from": Moment, "to": Moment})


class SummaryCoverage(TypedDict):
    """What the monitor has read."""

    share: Number | None
    not_watched: str | None
    not_watched_kind: str | None
    interval_s: NotRequired[object]
    ticks_due: NotRequired[object]
    ticks_taken: NotRequired[object]
    gaps: list[object]
    gap_s: Number | None
    monitor_cpu_s: NotRequired[object]
    monitor_rss_peak_mb: NotRequired[object]
    not_readable: dict[str, object]


class SummaryUnexplained(TypedDict):
    """What was measured of the GPU, and what of it is the members'."""

    measured: Number | None
    explained: Number | None
    rest: Number | None
    members_unknown: list[Count]


class SummaryAllUnexplained(TypedDict):
    """What belongs to no member."""

    sm_active: SummaryUnexplained | None
    energy_j: SummaryUnexplained


class SummaryPoint(TypedDict):
    """What so many members together do."""

    degree: Count
    stp: Number | None
    error: NotRequired[object]
    worst_slowdown: Number | None
    worst_member: NotRequired[object]
    worst_bound: NotRequired[object]
    window_s: Number | None
    members: NotRequired[object]


class SummaryDecision(TypedDict):
    """How many may run at once from then on."""

    at: Moment
    state: NotRequired[object]
    running: NotRequired[object]
    degree: Count
    stp: NotRequired[object]
    reason: str
    best: NotRequired[object]


class SummaryCores(TypedDict):
    """The cores that a member had."""

    member: Count
    own: Count
    cores: Count
    most: Count
    of: Count
    wait_share: Number | None
    gain: Number | None


class SummaryWorkers(TypedDict):
    """The workers that a member's DataLoader has."""

    member: Count
    workers: Count
    cores: Count
    advised: Count


class SummaryDegree(TypedDict):
    """What the runner measured of degrees."""

    state: NotRequired[object]
    degree: Count
    places: NotRequired[object]
    room: Count | None
    parked: NotRequired[object]
    why: str | None
    cost_s: Number | None
    cost_share: Number | None
    curve: list[SummaryPoint]
    rates_alone: NotRequired[object]
    decisions: list[SummaryDecision]
    cores: list[SummaryCores]
    workers: list[SummaryWorkers]


class SummaryHours(TypedDict):
    """Hours of something."""

    asked: Number | None
    used: Number | None


SummaryOpen = TypedDict(
    "SummaryOpen",
    {
        "for": Count,
        "joined": Count,
        "cpu_hours": SummaryHours,
        "host_memory_gb_hours": SummaryHours,
    },
)


class SummaryHandover(TypedDict):
    """From one link of a chain to the next."""

    waited_s: Number | None
    interruption_s: Number | None
    overlap_s: Number | None


class SummaryChain(TypedDict):
    """The links of a chain."""

    links: list[str]
    links_most: Count
    handovers: list[SummaryHandover]
    interruption_s: Number | None
    overlap_s: Number | None
    problem: str | None


class SummaryExtreme(TypedDict):
    """The GPU that was used most, or least."""

    uuid: str
    mean: Number


class SummaryImbalance(TypedDict):
    """How unevenly the GPUs were used."""

    metric: str
    least: SummaryExtreme
    most: SummaryExtreme


class Summary(TypedDict):
    """The value of summary.json."""

    headline: NotRequired[object]
    schema: NotRequired[object]
    pack_id: str
    gpu_set: Count
    gpu_sets: list[Count]
    number_of: Annotated[list[Count], lambda value: len(value) == 2] | None
    attempt: NotRequired[object]
    job: str | None
    submission: str | None
    name: str
    node: str | None
    made_at: Moment | None
    made_time: NotRequired[object]
    final: bool
    gpu: SummaryFirstGpu
    setup: SummarySetup | None
    layout: SummaryLayout | None
    window: Annotated[SummaryWindow, lambda value: value["from"] <= value["to"]] | None
    coverage: SummaryCoverage | None
    gpu_use: dict[str, SummarySpread | None]
    throttled_s: dict[str, Number | None]
    gpus: list[SummaryGpu]
    imbalance: SummaryImbalance | None
    energy_j: Number | None
    unexplained: SummaryAllUnexplained
    members: list[SummaryMember]
    pack: SummaryPack
    degree: SummaryDegree | None
    open: SummaryOpen | None
    chain: SummaryChain | None
    problems: list[str]
    notes: list[str]


# ---- Whether a value has these fields; pure ------------------------------------------------------


def fits_summary(value: object) -> typing.TypeGuard[Summary]:
    """Whether a report can be made of it: each field that is read has the kind that it should."""
    return _make_check(Summary)(value)


@functools.cache
def _make_check(hint: Any) -> Callable[[Any], bool]:
    """What tells whether a value of JSON is of a type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Annotated, NotRequired):
        holds = (_make_check(inner[0]), *inner[1:])
        return lambda value: all(fits(value) for fits in holds)
    if origin in (typing.Union, types.UnionType):
        kinds = [*map(_make_check, inner)]
        return lambda value: any(fits(value) for fits in kinds)
    if origin in (list, dict):
        each = _make_check(inner[-1])
        return lambda value: (
            isinstance(value, origin)
            and all(map(each, value.values() if origin is dict else value))
        )
    if typing.is_typeddict(hint):
        fields = [
            (name, _make_check(kind), typing.get_origin(kind) is NotRequired)
            for name, kind in typing.get_type_hints(hint, include_extras=True).items()
            # Whatever stands there fits.
            if kind != NotRequired[object]
        ]
        return lambda value: (
            isinstance(value, dict)
            and all(fits(value[n]) if n in value else may_miss for n, fits, may_miss in fields)
        )
    if hint in (int, float):
        return lambda value: is_number(value) and isinstance(value, (int, hint))
    return lambda value: isinstance(value, hint)


# ---- The summary that a pack's end has left: where it lies, and reading it; light to load --------

SUMMARY_SCHEMA = 1


def summary_path(pack: Path) -> Path:
    """Where a pack's summary lies."""
    return Path(report_directory(pack)) / "summary.json"


def read_summary(pack: Path) -> Summary | None:
    """The summary that the newest attempt of a pack left; None where there is no final one."""
    try:
        value = read_json(summary_path(pack))
        attempt = read_attempt(pack)
    except StateError:
        return None
    if value is None or value.get("schema") != SUMMARY_SCHEMA or not fits_summary(value):
        return None
    return value if value.get("final") is True and value.get("attempt") == attempt else None


def read_path(part: Mapping[str, object], path: Iterable[str]) -> object:
    """What stands there in a part of a summary; None where it has no such fields."""
    value: object = part
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def choose_members(summary: Summary, numbers: Collection[int] | None) -> list[SummaryMember]:
    """The members of a summary with these numbers; all for None."""
    return [
        member for member in summary["members"] if numbers is None or member["member"] in numbers
    ]


# ---- A pack's summary for readers: the one that its end has left, else one made now --------------


def find_summary(state: StateReader, view: PackView) -> Summary:
    """The summary of a pack, with its times for people; nothing is written.

    Args:
        state: The state directory that has the pack and the usage profiles.
        view: The pack.

    Raises:
        NotFound: There is no such pack.
        StateError: It is damaged, or its samples cannot be read at all.
    """
    path = state.pack_path(view.record.pack_id)
    left = read_summary(path) if all(member.is_final for member in view.members) else None
    if left is None:
        # Making one loads twice as much as showing one.
        from slurm_colloc.report.pack_summary import build_summary

        left = build_summary(path, state.root, view)
    return add_times(left)


def add_times(summary: Summary) -> Summary:
    """A summary with times for people."""
    members: list[SummaryMember] = [
        {
            **entry,
            "started_time": format_time(entry["started_at"]),
            "ended_time": format_time(entry["ended_at"]),
        }
        for entry in summary["members"]
    ]
    return {**summary, "made_time": format_time(summary["made_at"]), "members": members}


def format_time(at: float | None) -> str | None:
    """A moment in ISO 8601 with milliseconds, in UTC; None for None.

    Args:
        at: Seconds since the epoch.
    """
    if at is None:
        return None
    try:
        moment = dt.datetime.fromtimestamp(at, dt.UTC)
    except (OverflowError, OSError, ValueError):
        # A clock that was wrong wrote it.
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
