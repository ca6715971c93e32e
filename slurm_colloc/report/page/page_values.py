"""All that the page of a submission shows, as values: texts for its template, numbers to draw.

Also: what a page tells first: how long, how fast, whether sharing paid, and what failed.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.report.advice import list_advice
from slurm_colloc.report.headline import (
    ENDS,
    compute_gain,
    compute_part_gain,
    find_over_bound,
    has_shared,
    say_span,
    tell_gain,
    tell_headline,
)
from slurm_colloc.report.page.series import INSTANCE_SHOWN, PackSeries, read_series
from slurm_colloc.report.page.timelines import (
    Band,
    Fact,
    PageSource,
    build_bands,
    build_instance_drawings,
    build_time_line,
    list_moments,
    name_instances,
)
from slurm_colloc.report.report_view import (
    Ranking,
    choose_columns,
    choose_ids,
    choose_ranking,
    choose_word,
    find_instance_word,
    format_metric,
    list_details,
    list_members,
    list_setup,
    name_submission,
    name_summary,
)
from slurm_colloc.report.show_view import build_gpu_rows, has_several, name_gpu, tell_balance
from slurm_colloc.report.summary_file import Summary, SummaryMember
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    format_figure,
    format_mb_figure,
    format_share,
    format_slowdown,
    format_span,
    tell_members_apart,
)
from slurm_colloc.store.member_states import read_pauses

# ---- What a page tells first: how long, how fast, whether sharing paid, and what failed; pure ----

_CALL_MOST = 100
_STATES_TOLD = 3


def list_facts(sources: Sequence[PageSource]) -> list[Fact]:
    """The figures that a reader looks for first.

    Args:
        sources: The packs.
    """
    summaries = [source.summary for source in sources]
    members = [member for source in sources for member in source.members]
    ran = [member for member in members if member["started_at"] is not None]
    return [
        _count_jobs(members),
        _tell_length(summaries, ran),
        _tell_rate(ran),
        _tell_slowdown(ran),
        _tell_gain(sources, ran),
    ]


def _count_jobs(members: Sequence[SummaryMember]) -> Fact:
    """How they stand; of one that was tried again its last try counts."""
    last = {member["retry_of"] or member["id"]: member for member in members}
    counts = Counter(member["state"] for member in last.values())
    told = [f"{count} {escape_controls(state)}" for state, count in counts.most_common()]
    more = ", ..." if len(told) > _STATES_TOLD else ""
    bad = any(state in ENDS for state in counts)
    return Fact("Jobs", str(len(last)), f"{', '.join(told[:_STATES_TOLD])}{more}", is_bad=bad)


def _tell_length(summaries: Sequence[Summary], ran: Sequence[SummaryMember]) -> Fact:
    windows = [summary["window"] for summary in summaries if summary["window"] is not None]
    if not windows or not ran:
        return Fact("Ran for", "not started")
    first = min(member["started_at"] or 0.0 for member in ran)
    last = max(member["ended_at"] or max(w["to"] for w in windows) for member in ran)
    is_over = all(member["ended_at"] is not None for member in ran)
    spans = _list_spans(ran)
    each = f"each {say_span(statistics.mean(spans))} on average" if len(spans) > 1 else ""
    state = each if is_over else "so far"
    return Fact("Ran for", say_span(max(0.0, last - first)), state)


def _tell_rate(ran: Sequence[SummaryMember]) -> Fact:
    rates = [m["rate"]["steps_per_s"] for m in ran if m["rate"]["steps_per_s"] is not None]
    if not rates:
        return Fact("Speed", UNKNOWN, "no steps were measured")
    note = _of(len(rates), len(ran), "mean")
    return Fact("Speed", f"{format_figure(statistics.mean(rates))} steps/s", note)


def _tell_slowdown(ran: Sequence[SummaryMember]) -> Fact:
    known = [member["slowdown"] for member in ran if member["slowdown"] is not None]
    if not known:
        return Fact("Slowdown", UNKNOWN, "how fast it is alone is not known")
    bounds = {m["accepted_slowdown"] for m in ran} - {None}
    accepted = f"; accepted {format_figure(bounds.pop())}" if len(bounds) == 1 else ""
    value = format_slowdown(statistics.mean(known))
    note = f"{_of(len(known), len(ran), 'times slower than alone, mean')}{accepted}"
    return Fact("Slowdown", value, note, is_bad=bool(find_over_bound(ran)))


def _of(known: int, count: int, what: str) -> str:
    if count == 1:
        return what.removesuffix("mean").rstrip(", ")
    return f"{what} of {known}" if known == count else f"{what}, {known} of {count} known"


def _tell_gain(sources: Sequence[PageSource], ran: Sequence[SummaryMember]) -> Fact:
    label = "Did sharing pay?"
    packs = [source.summary for source in sources if source.summary["window"] is not None]
    if not packs or not ran or not has_shared(packs):
        return Fact(label, "not shared", "one at a time on its GPU" if ran else "")
    if all(source.chosen is None for source in sources):
        serial_s, shared_s = compute_gain(packs)
    else:
        serial_s, shared_s = compute_part_gain(packs, ran)
    if serial_s is None or shared_s <= 0:
        return Fact(label, UNKNOWN, "how long they take alone is not known")
    note = f"{say_span(shared_s)} of GPU time; one after the other {say_span(serial_s)}"
    is_part = any(source.chosen is not None for source in sources)
    told = tell_gain(serial_s, shared_s, of_gpu_time=is_part or len(packs) > 1)
    return Fact(label, told, note, is_bad=serial_s < shared_s)


def list_failures(sources: Sequence[PageSource]) -> list[dict[str, str]]:
    """Members that did not end well; those that ended alike are one row.

    Args:
        sources: The packs.
    """
    members = [member for source in sources for member in source.members]
    calls = dict(zip((id(m) for m in members), tell_members_apart(members), strict=True))
    tries = {m["retry_of"]: m for m in members if m["retry_of"]}
    groups: dict[tuple[str, str, str], list[SummaryMember]] = {}
    for source in sources:
        for member in source.members:
            if member["state"] not in ENDS:
                continue
            line = escape_controls(source.last_lines.get(member["member"], ""))
            key = (_tell_end(member), line, _tell_again(member, tries))
            groups.setdefault(key, []).append(member)
    return [
        {
            "who": escape_controls(name_members([member["id"] for member in own])),
            "call": escape_controls(cut(calls[id(own[0])], _CALL_MOST)) if len(own) == 1 else "",
            "how": f"{how}{_tell_after(own)}",
            "line": line,
            "note": note,
        }
        for (how, line, note), own in groups.items()
    ]


def _tell_end(member: SummaryMember) -> str:
    code, signal = member["exit_code"], member["exit_signal"]
    told = f"signal {signal}" if signal else "" if code is None else f"exit code {code}"
    word = ENDS[member["state"]]
    if member["state"] == MemberState.FAILED.value:
        return told or word
    return f"{word}, {told}" if told and code else word


def _tell_after(own: Sequence[SummaryMember]) -> str:
    if not (spans := _list_spans(own)):
        return ""
    low, high = format_span(min(spans)), format_span(max(spans))
    return f" after {low}" if low == high else f" after {low} to {high}"


def _list_spans(members: Sequence[SummaryMember]) -> list[float]:
    """How long each ran that has started and ended."""
    return [
        member["ended_at"] - member["started_at"]
        for member in members
        if member["started_at"] is not None and member["ended_at"] is not None
    ]


def _tell_again(member: SummaryMember, tries: Mapping[str, SummaryMember]) -> str:
    """How its last try stands, where it was tried again."""
    last = tries.get(member["retry_of"] or member["id"])
    if last is None or last is member:
        return ""
    return f"tried again as {escape_controls(str(last['id']))}: {escape_controls(last['state'])}"


def tell_who(summaries: Sequence[Summary], members: Sequence[SummaryMember], user: str) -> str:
    """Whose jobs, where, on what.

    Args:
        summaries: The packs.
        members: The members that are shown.
        user: Whose they are; empty where that is not known.
    """
    models = list(dict.fromkeys(s["gpu"]["model"] for s in summaries if s["gpu"]["model"]))
    nodes = list(dict.fromkeys(s["node"] for s in summaries if s["node"]))
    where = f" on {nodes[0]}" if len(nodes) == 1 else f" on {len(nodes)} nodes" if nodes else ""
    packs = f"{len(summaries)} packs" if len(summaries) > 1 and len(members) > 1 else ""
    told = (user, f"{', '.join(models[:2])}{where}", packs)
    return escape_controls(", ".join(filter(None, told)))


# ----
# All that the page of a submission shows, as values: texts for its template, numbers to draw.

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


def build_page(sources: Sequence[PageSource], user: str = "", best: str = "") -> dict[str, Any]:
    """All that is on the page of one submission, as its template takes it; texts are harmless.

    Args:
        sources: Its packs, at least one.
        user: Whose it is; empty where that is not known.
        best: By which result members are ordered, see report.report_view.

    Raises:
        StateError: The samples cannot be read at all.
        UsageProblem: No member has that result.
    """
    summaries = [source.summary for source in sources]
    chosen = choose_ids([(source.summary, source.chosen) for source in sources])
    members = list_members([(source.summary, source.chosen) for source in sources], best)
    ranking = choose_ranking(members, best)
    metrics = choose_columns(members, ranking)
    shown = {member["id"] for member in members[:ROWS_MOST]}
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
    return {
        "job": escape_controls(job),
        "title": escape_controls(named),
        "headline": tell_headline(summaries, chosen),
        "who": tell_who(summaries, members, user),
        "when": _tell_when(summaries),
        "facts": list_facts(sources),
        "failures": list_failures(sources),
        "metrics": [escape_controls(cut(name, _METRIC_MOST)) for name in metrics[:_METRICS_MOST]],
        "best": "" if ranking is None else _tell_order(ranking),
        "metrics_left_out": max(0, len(metrics) - _METRICS_MOST),
        "time_line": build_time_line(sources, bands),
        "advice": [
            (escape_controls(advice.describe()), escape_controls(advice.act))
            for advice in list_advice(summaries, chosen)
        ],
        "attributions": {
            "gpu_memory_mb": choose_word(member["gpu_memory_mb"] for member in members),
            "sm_share": choose_word(member["sm_share"] for member in members),
        },
        "rows": _build_rows(members[:ROWS_MOST], metrics[:_METRICS_MOST]),
        "rows_left_out": max(0, len(members) - ROWS_MOST),
        "gpus": _build_gpus(summaries) if chosen is None else None,
        "packs": parts,
        "packs_not_drawn": len(sources) - drawn,
        "drawing": {"packs": drawing},
    }


def _build_gpus(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    if not has_several(summaries):
        return None
    columns, rows = build_gpu_rows(summaries)
    return {
        "heads": [(_GPU_HEADS[column.title], column.is_number) for column in columns],
        "rows": [tuple(escape_controls(cell) for cell in row) for row in rows],
        "balance": tell_balance(summaries),
    }


def _choose_points(sources: Sequence[PageSource]) -> tuple[int, int]:
    """How many steps of time each pack has, and how many packs are drawn: the page stays small."""
    budget, drawn = NUMBERS_MOST // POINTS_LEAST, 0
    series = 0
    for source in sources:
        walls = len(INSTANCE_SHOWN) * len(name_instances(source.summary))
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


def _build_rows(members: Sequence[SummaryMember], metrics: Sequence[str]) -> list[dict[str, Any]]:
    calls = tell_members_apart(members)
    return [_build_row(member, call, metrics) for member, call in zip(members, calls, strict=True)]


def _build_row(member: SummaryMember, arguments: str, metrics: Sequence[str]) -> dict[str, Any]:
    code, signal = member["exit_code"], member["exit_signal"]
    told = f"signal {signal}" if signal else f"exit code {code}" if code else ""
    solo, memory, sm = member["solo"], member["gpu_memory_mb"], member["sm_share"]
    return {
        "id": escape_controls(member["id"]),
        "name": escape_controls(cut(member["name"], _NAME_MOST)),
        "arguments": escape_controls(cut(arguments, _ARGUMENTS_MOST)),
        "state": escape_controls(member["state"]),
        "metrics": tuple(format_metric(member, name) for name in metrics),
        "elapsed": say_span(max(0.0, *spans)) if (spans := _list_spans([member])) else "",
        "steps": UNKNOWN if member["steps"] is None else f"{member['steps']:,.0f}",
        "rate": format_figure(member["rate"]["steps_per_s"]),
        "alone": format_figure(solo["steps_per_s"] if solo else None),
        "slowdown": format_slowdown(member["slowdown"]),
        "predicted": format_slowdown(member["predicted_slowdown"]),
        "over": bool(find_over_bound([member])),
        "gpu_memory": format_mb_figure(memory["peak"] if memory else None),
        "sm": format_share(sm["value"] if sm else None),
        "cpus": format_figure(member["cpu_cores"], 2),
        "wait": format_share(member["stall"]["data"]),
        "exit": told,
        "instance": escape_controls(find_instance_word(member)),
    }


def _tell_about(source: PageSource) -> str:
    """What is said of a pack that is folded."""
    members, window = source.members, source.summary["window"]
    bad = sum(member["state"] in ENDS for member in members)
    known = [member["slowdown"] for member in members if member["slowdown"] is not None]
    words = [
        format_count(len(members), "member"),
        f"{bad} did not end well" if bad else "",
        "" if window is None else say_span(window["to"] - window["from"]),
        f"slowdown {format_slowdown(sum(known) / len(known))}" if known else "",
    ]
    return ", ".join(filter(None, words))


def _build_part(
    source: PageSource, points: int | None, shown: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any] | None, dict[int, list[Band]]]:
    """What is said of a pack, what is drawn of it, and its members' bands."""
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
    drawing = None
    if series is not None and window is not None:
        drawing = _build_drawing(source, series, bands, window["to"])
    problems = [] if series is None else [("Problem", text) for text in series.problems]
    part = {
        "job": escape_controls(name_summary(summary).removeprefix("Pack ")),
        "title": escape_controls(f"{where}{node}"),
        "about": _tell_about(source),
        "drawn": drawing is not None,
        "resolution": "" if series is None else _tell_resolution(series),
        "setup": _clean([*list_setup(summary, source.chosen), *problems]),
        "planned": _list_planned(source.members),
        "curve": _list_curve(summary),
        "moments": [(format_span(max(0.0, at_s)), escape_controls(text)) for at_s, text in moments],
        "stalls": [
            _build_stall(member)
            for member in source.members
            if member["id"] in shown
            and any(member["stall"][kind] is not None for kind in ("data", "device", "sharing"))
        ],
        "details": _clean(list_details(summary, source.chosen)),
    }
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
    source: PageSource,
    series: PackSeries,
    bands: Mapping[int, Sequence[Band]],
    end: float,
) -> dict[str, Any]:
    """What the page's script draws of a pack."""
    members = source.members
    calls = tell_members_apart(members)
    summary = source.summary
    return {
        "job": summary["job"] or summary["pack_id"],
        "begin": series.begin,
        "length": round(end - series.begin, 1),
        "step": series.step_s,
        "count": series.count,
        "gpu": {metric: found.build_mapping() for metric, found in series.gpu.items()},
        "gpus": len(_list_uuids(summary)),
        "gpu_memory_mb": summary["gpu"]["memory_mb"],
        "instances": build_instance_drawings(summary, series),
        "members": [
            {
                "id": escape_controls(member["id"]),
                "label": escape_controls(cut(call or member["name"], _NAME_MOST)),
                "state": escape_controls(member["state"]),
                "bands": [list(band) for band in bands.get(member["member"], ())],
                "alone": solo["steps_per_s"] if (solo := member["solo"]) else None,
                "accepted": member["accepted_slowdown"],
                "rate": series.rates[member["member"]].build_mapping()
                if member["member"] in series.rates
                else None,
            }
            for member, call in zip(members, calls, strict=True)
        ],
    }


def _list_planned(members: Sequence[SummaryMember]) -> list[tuple[str, str, str, str, str]]:
    """What was planned of members and what came: id, slowdowns, MIG instances (empty for none)."""
    found = []
    for member in members:
        predicted, mig = member["predicted_slowdown"], member["mig"]
        kinds = (mig["planned"], mig["profile"]) if mig else (None, None)
        wanted, instance = (escape_controls(kind or "") for kind in kinds)
        if predicted is not None or wanted:
            came = format_slowdown(member["together_slowdown"] or member["slowdown"])
            who = escape_controls(member["id"])
            found.append((who, format_slowdown(predicted), came, wanted, instance))
    return found


def _list_curve(summary: Summary) -> list[tuple[str, str, str, str]]:
    """How much so many together do: the degree, progress, the worst slowdown, what it was of."""
    points = summary["degree"]["curve"] if summary["degree"] else []
    return [
        (
            str(point["degree"]),
            format_figure(point["stp"]),
            format_slowdown(point["worst_slowdown"]),
            format_span(point["window_s"]),
        )
        for point in sorted(points, key=lambda point: point["degree"])
    ]


def _build_stall(member: SummaryMember) -> dict[str, Any]:
    """What the time of a member went into: in words, and in whole per cent as it is drawn."""
    stall = member["stall"]
    told = [
        f"{word} {format_share(share)}"
        for word, share in (
            ("waited for data", stall["data"]),
            ("waited for the host", stall["host"]),
            ("had a kernel running", stall["device"]),
            ("lost to sharing", stall["sharing"]),
        )
        if share is not None
    ]
    drawn = {"data": stall["data"], "host": stall["host"], "sharing": stall["sharing"]}
    return {
        "id": escape_controls(member["id"]),
        "text": ", ".join(told) or UNKNOWN,
        **{name: None if share is None else round(100 * share) for name, share in drawn.items()},
    }
