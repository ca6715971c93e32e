"""What a page tells first: how long, how fast, whether sharing paid, and what failed; pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.report.differing_arguments import tell_members_apart
from slurm_colloc.report.headline import find_over_bound
from slurm_colloc.report.member_remarks import ENDS
from slurm_colloc.report.page.page_shape import Fact, FailureRow, Member, PageSource, Summary
from slurm_colloc.report.sharing_gain import (
    compute_gain,
    compute_part_gain,
    has_shared,
    say_span,
    tell_gain,
)
from slurm_colloc.report.terminal_tables import UNKNOWN, format_figure, format_slowdown, format_span

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


def _count_jobs(members: Sequence[Member]) -> Fact:
    """How they stand; of one that was tried again its last try counts."""
    last = {str(member["retry_of"] or member["id"]): member for member in members}
    counts = Counter(str(member["state"]) for member in last.values())
    told = [f"{count} {escape_controls(state)}" for state, count in counts.most_common()]
    more = ", ..." if len(told) > _STATES_TOLD else ""
    bad = any(state in ENDS for state in counts)
    return Fact("Jobs", str(len(last)), f"{', '.join(told[:_STATES_TOLD])}{more}", is_bad=bad)


def _tell_length(summaries: Sequence[Summary], ran: Sequence[Member]) -> Fact:
    windows = [summary["window"] for summary in summaries if summary["window"] is not None]
    if not windows or not ran:
        return Fact("Ran for", "not started")
    first = min(member["started_at"] for member in ran)
    last = max(member["ended_at"] or max(w["to"] for w in windows) for member in ran)
    is_over = all(member["ended_at"] is not None for member in ran)
    spans = [
        member["ended_at"] - member["started_at"]
        for member in ran
        if member["ended_at"] is not None
    ]
    each = f"each {say_span(statistics.mean(spans))} on average" if len(spans) > 1 else ""
    state = each if is_over else "so far"
    return Fact("Ran for", say_span(max(0.0, last - first)), state)


def _tell_rate(ran: Sequence[Member]) -> Fact:
    rates = [m["rate"]["steps_per_s"] for m in ran if m["rate"]["steps_per_s"] is not None]
    if not rates:
        return Fact("Speed", UNKNOWN, "no steps were measured")
    note = _of(len(rates), len(ran), "mean")
    return Fact("Speed", f"{format_figure(statistics.mean(rates))} steps/s", note)


def _tell_slowdown(ran: Sequence[Member]) -> Fact:
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


def _tell_gain(sources: Sequence[PageSource], ran: Sequence[Member]) -> Fact:
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


def list_failures(sources: Sequence[PageSource]) -> list[FailureRow]:
    """Members that did not end well; those that ended alike are one row.

    Args:
        sources: The packs.
    """
    members = [member for source in sources for member in source.members]
    calls = dict(zip((id(m) for m in members), tell_members_apart(members), strict=True))
    tries = {str(m["retry_of"]): m for m in members if m["retry_of"]}
    groups: dict[tuple[str, str, str], list[Member]] = {}
    for source in sources:
        for member in source.members:
            if member["state"] not in ENDS:
                continue
            line = escape_controls(source.last_lines.get(member["member"], ""))
            key = (_tell_end(member), line, _tell_again(member, tries))
            groups.setdefault(key, []).append(member)
    return [
        FailureRow(
            who=escape_controls(name_members([str(member["id"]) for member in own])),
            call=escape_controls(cut(calls[id(own[0])], _CALL_MOST)) if len(own) == 1 else "",
            how=f"{how}{_tell_after(own)}",
            line=line,
            note=note,
        )
        for (how, line, note), own in groups.items()
    ]


def _tell_end(member: Member) -> str:
    code, signal = member["exit_code"], member["exit_signal"]
    told = f"signal {signal}" if signal else "" if code is None else f"exit code {code}"
    word = ENDS[member["state"]]
    if member["state"] == MemberState.FAILED.value:
        return told or word
    return f"{word}, {told}" if told and code else word


def _tell_after(own: Sequence[Member]) -> str:
    spans = [
        member["ended_at"] - member["started_at"]
        for member in own
        if member["ended_at"] is not None and member["started_at"] is not None
    ]
    if not spans:
        return ""
    low, high = format_span(min(spans)), format_span(max(spans))
    return f" after {low}" if low == high else f" after {low} to {high}"


def _tell_again(member: Member, tries: Mapping[str, Member]) -> str:
    """How its last try stands, where it was tried again."""
    last = tries.get(str(member["retry_of"] or member["id"]))
    if last is None or last is member:
        return ""
    return f"tried again as {escape_controls(str(last['id']))}: {escape_controls(last['state'])}"


def tell_who(summaries: Sequence[Summary], members: Sequence[Member], user: str) -> str:
    """Whose jobs, where, on what.

    Args:
        summaries: The packs.
        members: The members that are shown.
        user: Whose they are; empty where that is not known.
    """
    return escape_controls(", ".join(filter(None, _list_who(summaries, members, user))))


def _list_who(summaries: Sequence[Summary], members: Sequence[Member], user: str) -> Iterator[str]:
    yield user
    models = list(dict.fromkeys(s["gpu"]["model"] for s in summaries if s["gpu"]["model"]))
    nodes = list(dict.fromkeys(s["node"] for s in summaries if s["node"]))
    where = f" on {nodes[0]}" if len(nodes) == 1 else f" on {len(nodes)} nodes" if nodes else ""
    yield f"{', '.join(models[:2])}{where}"
    packs = len(summaries)
    shown = f"{packs} packs" if packs > 1 else ""
    yield shown if len(members) > 1 else ""
