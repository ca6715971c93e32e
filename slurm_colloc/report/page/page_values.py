"""All that the page of a submission shows, as values: texts for its template, numbers to draw."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.report.advice import list_advice
from slurm_colloc.report.best_members import Ranking, choose_columns, choose_ranking
from slurm_colloc.report.differing_arguments import tell_members_apart
from slurm_colloc.report.gpu_views import build_gpu_rows, has_several, name_gpu, tell_balance
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.member_remarks import ENDS
from slurm_colloc.report.page.drawn_instances import (
    build_instance_drawings,
    count_instance_series,
    name_instances,
)
from slurm_colloc.report.page.first_facts import list_facts, list_failures, tell_who
from slurm_colloc.report.page.gpu_lines import build_time_line
from slurm_colloc.report.page.pack_timeline import Band, build_bands, list_moments
from slurm_colloc.report.page.page_shape import (
    GpuTable,
    Member,
    MemberRow,
    PackPart,
    Page,
    PageSource,
    StallRow,
    Summary,
)
from slurm_colloc.report.page.read_series import PackSeries, read_series
from slurm_colloc.report.report_view import (
    choose_ids,
    choose_word,
    find_instance_word,
    format_metric,
    list_details,
    list_members,
    list_setup,
    name_submission,
    name_summary,
)
from slurm_colloc.report.sharing_gain import say_span
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    format_figure,
    format_mb_figure,
    format_share,
    format_slowdown,
    format_span,
)
from slurm_colloc.store.pack.member_pauses import read_pauses

NUMBERS_MOST = 100_000
"""So many numbers are drawn at most: some 500 kB of a page."""
POINTS_MOST = 1200
POINTS_LEAST = 40
ROWS_MOST = 400
"""Members in the table; more would make the page larger than a megabyte."""

_GPU_HEADS = {
    "NODE": "Node",
    "GPU": "GPU",
    "MEMBERS": "Members",
    "AT\nMOST": "At once, at most",
    "DEGREE": "Degree",
    "BUSY": "Busy",
    "SM": "SM",
    "DRAM": "DRAM",
    "GPU_MEM\nmost": "GPU memory, at most",
    "NVLINK": "NVLink",
    "PCIE": "PCIe",
}
_SERIES_OF_GPU = 6
_ARGUMENTS_MOST = 160
_NAME_MOST = 60
_TIME = "%Y-%m-%d %H:%M:%S %Z"
_METRICS_MOST = 5
_METRIC_MOST = 40
_TOLD_LEAST_S = 2.0
"""Points of less are the readings themselves."""


def build_page(sources: Sequence[PageSource], user: str = "", best: str = "") -> Page:
    """All that is on the page of one submission.

    Args:
        sources: Its packs, at least one.
        user: Whose it is; empty where that is not known.
        best: By which result members are ordered, see report.best_members.

    Raises:
        StateError: The samples cannot be read at all.
        UsageProblem: No member has that result.
    """
    summaries = [source.summary for source in sources]
    chosen = choose_ids([(source.summary, source.chosen) for source in sources])
    members = list_members([(source.summary, source.chosen) for source in sources], best)
    ranking = choose_ranking(members, best)
    metrics = choose_columns(members, ranking)
    shown = {str(member["id"]) for member in members[:ROWS_MOST]}
    points, drawn = _choose_points(sources)
    parts, drawing, bands = [], [], []
    for place, source in enumerate(sources):
        part, numbers, own = _build_part(source, points if place < drawn else None, shown)
        parts.append(part)
        bands.append(own)
        if numbers is not None:
            drawing.append(numbers)
    job = name_submission(summaries[0], sources[0].chosen)
    names = list(dict.fromkeys(member["name"] for member in members))
    named = ", ".join(cut(name, _NAME_MOST) for name in names[:3]) + (
        ", ..." if len(names) > 3 else ""
    )
    return Page(
        job=escape_controls(job),
        title=escape_controls(named),
        headline=tell_headline(summaries, chosen),
        who=tell_who(summaries, members, user),
        when=_tell_when(summaries),
        facts=list_facts(sources),
        failures=list_failures(sources),
        metrics=[escape_controls(cut(name, _METRIC_MOST)) for name in metrics[:_METRICS_MOST]],
        best="" if ranking is None else _tell_order(ranking),
        metrics_left_out=max(0, len(metrics) - _METRICS_MOST),
        time_line=build_time_line(sources, bands),
        advice=[
            (escape_controls(advice.describe()), escape_controls(advice.act))
            for advice in list_advice(summaries, chosen)
        ],
        attributions={name: choose_word(members, name) for name in ("gpu_memory_mb", "sm_share")},
        rows=_build_rows(members[:ROWS_MOST], metrics[:_METRICS_MOST]),
        rows_left_out=max(0, len(members) - ROWS_MOST),
        gpus=_build_gpus(summaries) if chosen is None else None,
        packs=parts,
        packs_not_drawn=len(sources) - drawn,
        drawing={"packs": drawing},
    )


def _build_gpus(summaries: Sequence[Summary]) -> GpuTable | None:
    if not has_several(summaries):
        return None
    columns, rows = build_gpu_rows(summaries)
    return GpuTable(
        heads=[(_GPU_HEADS[column.title], column.is_number) for column in columns],
        rows=[tuple(escape_controls(cell) for cell in row) for row in rows],
        balance=tell_balance(summaries),
    )


def _choose_points(sources: Sequence[PageSource]) -> tuple[int, int]:
    """How many steps of time each pack has, and how many packs are drawn: the page stays small."""
    budget, drawn = NUMBERS_MOST // POINTS_LEAST, 0
    series = 0
    for source in sources:
        walls = count_instance_series(source.summary)
        more = 3 * (_SERIES_OF_GPU + walls + len(source.members))
        if drawn and series + more > budget:
            break
        series += more
        drawn += 1
    return max(POINTS_LEAST, min(POINTS_MOST, NUMBERS_MOST // max(1, series))), drawn


def _tell_when(summaries: Sequence[Summary]) -> str:
    windows = [summary["window"] for summary in summaries if summary["window"] is not None]
    if not windows:
        return ""
    begin, end = min(w["from"] for w in windows), max(w["to"] for w in windows)
    if all(summary["final"] for summary in summaries):
        first, last = (time.strftime("%Y-%m-%d", time.localtime(at)) for at in (begin, end))
        # Of one day the date is said once.
        shown = time.strftime("%H:%M:%S %Z" if first == last else _TIME, time.localtime(end))
        return f"{_format_time(begin).rpartition(' ')[0]} to {shown}"
    return f"{_format_time(begin)} until now: still running"


def _format_time(at: float) -> str:
    return time.strftime(_TIME, time.localtime(at))


def _tell_order(ranking: Ranking) -> str:
    first = "smallest" if ranking.less_is_better else "largest"
    return f"{first} {escape_controls(cut(ranking.metric, _METRIC_MOST))} first"


def _build_rows(members: Sequence[Member], metrics: Sequence[str]) -> list[MemberRow]:
    calls = tell_members_apart(members)
    return [_build_row(member, call, metrics) for member, call in zip(members, calls, strict=True)]


def _build_row(member: Member, arguments: str, metrics: Sequence[str]) -> MemberRow:
    bound = member["accepted_slowdown"]
    code, signal = member["exit_code"], member["exit_signal"]
    told = f"signal {signal}" if signal else f"exit code {code}" if code else ""
    return MemberRow(
        id=escape_controls(str(member["id"])),
        name=escape_controls(cut(member["name"], _NAME_MOST)),
        arguments=escape_controls(cut(arguments, _ARGUMENTS_MOST)),
        state=escape_controls(str(member["state"])),
        metrics=tuple(format_metric(member, name) for name in metrics),
        elapsed=_tell_elapsed(member),
        steps=UNKNOWN if member["steps"] is None else f"{member['steps']:,.0f}",
        rate=format_figure(member["rate"]["steps_per_s"]),
        alone=format_figure((member["solo"] or {}).get("steps_per_s")),
        slowdown=format_slowdown(member["slowdown"]),
        predicted=format_slowdown(member["predicted_slowdown"]),
        over=bool(bound and member["slowdown"] and member["slowdown"] > bound * 1.005),
        gpu_memory=format_mb_figure((member["gpu_memory_mb"] or {}).get("peak")),
        sm=format_share((member["sm_share"] or {}).get("value")),
        cpus=format_figure(member["cpu_cores"], 2),
        wait=format_share(member["stall"]["data"]),
        exit=told,
        instance=escape_controls(find_instance_word(member)),
    )


def _tell_elapsed(member: Member) -> str:
    """How long it ran; empty where it has not started, or has not ended."""
    if member["started_at"] is None or member["ended_at"] is None:
        return ""
    return say_span(max(0.0, member["ended_at"] - member["started_at"]))


def _tell_about(source: PageSource) -> str:
    """What is said of a pack that is folded."""
    members, window = source.members, source.summary["window"]
    bad = sum(member["state"] in ENDS for member in members)
    known = [member["slowdown"] for member in members if member["slowdown"] is not None]
    words = [
        f"{len(members)} member{'' if len(members) == 1 else 's'}",
        f"{bad} did not end well" if bad else "",
        "" if window is None else say_span(window["to"] - window["from"]),
        f"slowdown {format_slowdown(sum(known) / len(known))}" if known else "",
    ]
    return ", ".join(filter(None, words))


def _build_part(
    source: PageSource, points: int | None, shown: Collection[str]
) -> tuple[PackPart, dict[str, Any] | None, dict[int, list[Band]]]:
    summary = source.summary
    window = summary["window"]
    pauses = read_pauses(source.path)
    series = None
    if points is not None and window is not None:
        edges = (window["from"], window["to"])
        uuids = (_list_uuids(summary), list(name_instances(summary)))
        series = read_series(source.path, edges, uuids, pauses, points)
    bands = build_bands(summary, {} if series is None else series.stays, pauses)
    moments = list_moments({**summary, "members": source.members}, bands, source.path)
    where = _name_gpus(summary)
    if summary["gpu"]["uuid"] is None and summary["gpu"]["model"] is None:
        where = "no GPU"
    node = f" on {summary['node']}" if summary["node"] else ""
    drawing = None if series is None else _build_drawing(source, series, bands)
    problems = [] if series is None else [("Problem", text) for text in series.problems]
    part = PackPart(
        job=escape_controls(name_summary(summary).removeprefix("Pack ")),
        title=escape_controls(f"{where}{node}"),
        about=_tell_about(source),
        drawn=drawing is not None,
        resolution="" if series is None else _tell_resolution(series),
        setup=_clean([*list_setup(summary, source.chosen), *problems]),
        planned=_list_planned(source.members),
        curve=_list_curve(summary),
        moments=[
            (format_span(max(0.0, moment.at_s)), escape_controls(moment.text)) for moment in moments
        ],
        stalls=[
            _build_stall(member)
            for member in source.members
            if member["id"] in shown and _has_stall(member)
        ],
        details=_clean(list_details(summary, source.chosen)),
    )
    return part, drawing, bands


def _list_uuids(summary: Summary) -> list[str]:
    gpus = [gpu["uuid"] for gpu in summary["gpus"]]
    return gpus or ([] if summary["gpu"]["uuid"] is None else [summary["gpu"]["uuid"]])


def _name_gpus(summary: Summary) -> str:
    model = summary["gpu"]["model"] or "a GPU that is not known"
    gpus = summary["gpus"]
    if len(gpus) < 2 and not summary["gpu_sets"]:
        return str(model)
    return f"{', '.join(name_gpu(one['uuid'], one['index']) for one in gpus)}, {model}"


def _clean(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(label, escape_controls(text)) for label, text in lines]


def _tell_resolution(series: PackSeries) -> str:
    thinned = any(found.least for found in (*series.gpu.values(), *series.rates.values()))
    if not thinned or series.step_s < _TOLD_LEAST_S:
        return ""
    return (
        f"Each point stands for {format_span(series.step_s)}: the line is the mean, the shade goes "
        "from the least to the greatest reading."
    )


def _build_drawing(
    source: PageSource, series: PackSeries, bands: Mapping[int, Sequence[Band]]
) -> dict[str, Any]:
    """What the page's script draws of a pack."""
    members = source.members
    calls = tell_members_apart(members)
    summary = source.summary
    return {
        "job": str(summary["job"] or summary["pack_id"]),
        "begin": series.begin,
        "length": round(summary["window"]["to"] - series.begin, 1),
        "step": series.step_s,
        "count": series.count,
        "gpu": {metric: found.build_mapping() for metric, found in series.gpu.items()},
        "gpus": len(_list_uuids(summary)),
        "gpu_memory_mb": summary["gpu"]["memory_mb"],
        "instances": build_instance_drawings(summary, series),
        "members": [
            {
                "id": escape_controls(str(member["id"])),
                "label": escape_controls(cut(call or member["name"], _NAME_MOST)),
                "state": escape_controls(str(member["state"])),
                "bands": [list(band) for band in bands.get(member["member"], ())],
                "alone": (member["solo"] or {}).get("steps_per_s"),
                "accepted": member["accepted_slowdown"],
                "rate": series.rates[member["member"]].build_mapping()
                if member["member"] in series.rates
                else None,
            }
            for member, call in zip(members, calls, strict=True)
        ],
    }


def _list_planned(members: Sequence[Member]) -> list[tuple[str, str, str, str, str]]:
    """What was planned of members and what came: id, slowdowns, MIG instances (empty for none)."""
    found = []
    for member in members:
        predicted, mig = member["predicted_slowdown"], member["mig"] or {}
        wanted, instance = (escape_controls(mig.get(name) or "") for name in ("planned", "profile"))
        if predicted is not None or wanted:
            came = format_slowdown(member["together_slowdown"] or member["slowdown"])
            who = escape_controls(str(member["id"]))
            found.append((who, format_slowdown(predicted), came, wanted, instance))
    return found


def _list_curve(summary: Summary) -> list[tuple[str, str, str, str]]:
    """How much so many together do: the degree, progress, the worst slowdown, what it was of."""
    degree = summary["degree"] or {}
    return [
        (
            str(point["degree"]),
            format_figure(point["stp"]),
            format_slowdown(point["worst_slowdown"]),
            format_span(point["window_s"]),
        )
        for point in sorted(degree.get("curve") or (), key=lambda point: point["degree"])
    ]


def _has_stall(member: Member) -> bool:
    stall = member["stall"]
    return any(stall[name] is not None for name in ("data", "device", "sharing"))


def _build_stall(member: Member) -> StallRow:
    stall = member["stall"]
    told = [
        f"{word} {format_share(stall[name])}"
        for name, word in (
            ("data", "waited for data"),
            ("host", "waited for the host"),
            ("device", "had a kernel running"),
            ("sharing", "lost to sharing"),
        )
        if stall[name] is not None
    ]
    percents = {
        name: None if stall[name] is None else round(100 * stall[name])
        for name in ("data", "host", "device", "sharing")
    }
    return StallRow(
        id=escape_controls(str(member["id"])), text=", ".join(told) or UNKNOWN, **percents
    )
