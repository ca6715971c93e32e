"""The first sentence of a report, the same in the terminal, the page, the mail and JSON; pure.

The gain is that of report.sharing_gain.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.report.member_remarks import (
    ENDS,
    Member,
    count_company,
    list_last_tries,
    tell_ends,
    tell_guests,
    tell_restarts,
    tell_unused,
    tell_waiting,
)
from slurm_colloc.report.sharing_gain import (
    EVEN,
    compute_gain,
    count_gpus,
    has_shared,
    say_span,
    tell_gain,
    tell_part_gain,
)
from slurm_colloc.report.terminal_tables import format_figure, format_share

_ALIKE = 1.1
"""Slowdowns that differ by less are told by their mean."""
_COVERAGE_LEAST = 0.9
_SHORT_S = 60.0
"""Where a rate is unknown although steps were counted, a shorter run is why."""


def tell_headline(
    summaries: Sequence[dict[str, Any]], chosen: Collection[str] | None = None
) -> str:
    """What happened, whether sharing paid, and what it cost.

    Args:
        summaries: The summaries of the packs of one submission, at least one.
        chosen: The ids of the members it is to tell of, `4711/3`; None for all.

    Returns:
        One sentence or a few, plain text. Nothing in it comes from a user.
    """
    members = [m for summary in summaries for m in summary["members"]]
    if chosen is not None:
        members = [member for member in members if member["id"] in chosen]
    started = [member for member in members if member["started_at"] is not None]
    if not started:
        return _tell_not_started(members)
    # What was tried again is one job; all its tries have taken time.
    ran = list_last_tries(started)
    tries = len(started) if len(started) > len(ran) else 0
    final = all(summary["final"] for summary in summaries)
    if chosen is not None:
        first = _tell_chosen(summaries, ran, final=final)
    elif len(started) == 1:
        first = _tell_one(summaries, ran[0], final=final)
    else:
        first = _tell_several(summaries, ran, tries, final=final)
    parts = [first, _tell_room(summaries, final=final) if chosen is None else ""]
    parts.append(tell_waiting(members))
    parts.append(tell_guests(summaries, ran) if chosen is not None else "")
    parts += [tell_ends(members), tell_restarts(ran), tell_unused(summaries, ran)]
    parts.append(_tell_coverage(summaries))
    return " ".join(part for part in parts if part)


def name_jobs(members: Sequence[Member]) -> str:
    """`trainings` where steps were counted of each, else `jobs`; singular for one."""
    word = "training" if all(member["steps"] for member in members) else "job"
    return word if len(members) == 1 else f"{word}s"


def find_over_bound(members: Sequence[Member]) -> list[Member]:
    """Those that were slower than was accepted for them."""
    return [
        member
        for member in members
        if member["slowdown"] is not None
        and member["accepted_slowdown"] is not None
        and member["slowdown"] > member["accepted_slowdown"] * 1.005
    ]


def _tell_not_started(members: Sequence[Member]) -> str:
    count = len(members)
    ended = [m for m in members if m["state"] in ENDS]
    if ended and len(ended) == count:
        who = "The job" if count == 1 else f"None of the {count} jobs"
        told = "never started" if count == 1 else "was ever started"
        return f"{who} {told}. {tell_ends(members)}"
    started = [m for m in members if m["starts"] or m["state"] == MemberState.RUNNING.value]
    if started:
        verb = "has" if len(started) == 1 else "have"
        who = "The job has" if count == 1 else f"{len(started)} of {count} jobs {verb}"
        if len(started) == count > 1:
            who = f"The {count} jobs have"
        return f"{who} just started; nothing is measured yet."
    if count == 1:
        return "The job has not started yet."
    return f"None of the {count} jobs has started yet."


def _tell_one(summaries: Sequence[dict[str, Any]], member: Member, *, final: bool) -> str:
    summary = next(s for s in summaries if member in s["members"])
    window = summary["window"]
    noun = name_jobs([member])
    span = say_span(window["to"] - window["from"]) if window else "a moment"
    gpu = summary["gpu"]
    without = _has_no_gpu([summary], [member])
    count = count_gpus(summary)
    where = " without a GPU" if without else f" on its {gpu['model'] or 'GPU'}"
    if count > 1 and not without:
        where = f" on its {count} GPUs" + (f" ({gpu['model']})" if gpu["model"] else "")
    verb, so_far = ("ran", "") if final else ("has run", " so far")
    text = f"1 {noun} {verb} alone{where} for {span}{so_far}"
    rate = member["rate"]["steps_per_s"]
    if rate is not None:
        text += f", at {format_figure(rate)} steps/s"
    elif member["steps"] and window and window["to"] - window["from"] < _SHORT_S and final:
        text += ", too short to measure how fast it was"
    sm = summary["gpu_use"].get("sm_active")
    if sm is not None and not without:
        whose = "the GPUs'" if count > 1 else "the GPU's"
        text += f", and kept {format_share(sm['mean'])} of {whose} processors busy"
    return f"{text}."


def _tell_several(
    summaries: Sequence[dict[str, Any]], ran: Sequence[Member], tries: int, *, final: bool
) -> str:
    packs = [summary for summary in summaries if summary["window"] is not None]
    overlap = has_shared(packs)
    serial_s, shared_s = compute_gain(packs)
    most = sum(summary["pack"]["members_most"] for summary in packs)
    who = f"{len(ran)} {name_jobs(ran)}{f' in {tries} tries' if tries else ''}"
    if len(ran) == 1:
        verb, so_far = ("took", "") if final else ("has taken", " so far")
        of = "" if _has_no_gpu(packs, ran) else " of GPU time"
        return f"{who} {verb} {say_span(shared_s)}{of}{so_far}."
    if len(packs) > 1:
        who += _tell_places(packs)
    elif overlap and most < len(ran):
        who += f", at most {most} at a time,"
    without = _has_no_gpu(packs, ran)
    gpu_time = "" if len(packs) == 1 else " in all" if without else " of GPU time"
    if not overlap:
        told = "ran" if final else "have run"
        span = f"{say_span(shared_s)}{gpu_time}"
        return f"{who} {told} one at a time, for {span.removesuffix(' in all')} in all."
    together = "" if len(packs) > 1 else " together"
    if without:
        verb, so_far = ("ran", "") if final else ("have run", " so far")
        span = f"{say_span(shared_s)}{gpu_time}{so_far}"
        return f"{who} {verb}{together} without a GPU, for {span}."
    if final:
        text = f"{who}{together} took {say_span(shared_s)}{gpu_time}"
    else:
        text = f"{who} have run{together} for {say_span(shared_s)}{gpu_time} so far"
    if serial_s is None:
        text += "; how long they take one after the other is not known"
    else:
        instead = " instead of" if final else ", for work of"
        text += f"{instead} {say_span(serial_s)} one after the other"
        text += f" ({tell_gain(serial_s, shared_s, of_gpu_time=len(packs) > 1)})"
    cost = _tell_cost(ran)
    return f"{text}; {cost}." if cost else f"{text}."


def _tell_places(packs: Sequence[dict[str, Any]]) -> str:
    """On how many GPUs, where they are those of one Slurm job; in how many packs otherwise."""
    jobs = {summary["job"] or summary["pack_id"] for summary in packs}
    if len(jobs) == len(packs):
        return f" in {len(packs)} packs"
    gpus = sum(map(count_gpus, packs))
    return f" on {gpus} GPUs" if len(jobs) == 1 else f" on {gpus} GPUs of {len(jobs)} jobs"


def _has_no_gpu(summaries: Sequence[dict[str, Any]], members: Sequence[Member]) -> bool:
    """Whether none asked for a GPU and none was seen."""
    asked = any(member["request"]["gpus"] != 0 for member in members)
    return not asked and all(summary["gpu"]["uuid"] is None for summary in summaries)


def _tell_cost(members: Sequence[Member]) -> str:
    """How much slower than alone they were, and whether that was accepted."""
    slowdowns = [m["slowdown"] for m in members if m["slowdown"] is not None]
    if not slowdowns:
        return ""
    low, high = min(slowdowns), max(slowdowns)
    who = "each"
    if len(slowdowns) < len(members):
        known = len(slowdowns)
        who = "the one that is known" if known == 1 else f"the {known} that are known"
    if high < EVEN:
        return f"{who} ran as fast as alone"
    if high / low <= _ALIKE and low >= EVEN:
        mean = sum(slowdowns) / len(slowdowns)
        text = f"{who} ran {mean:.2f} times slower than alone"
    elif low >= EVEN:
        text = f"{'they' if who == 'each' else who} ran {low:.2f} to {high:.2f} times slower than "
        text += "alone"
    else:
        text = f"{'they' if who == 'each' else who} ran up to {high:.2f} times slower than alone"
    return f"{text}{_tell_bound(members)}"


def _tell_bound(members: Sequence[Member]) -> str:
    known = [m for m in members if m["slowdown"] is not None and m["accepted_slowdown"] is not None]
    bounds = {member["accepted_slowdown"] for member in known}
    if not known:
        return ""
    bound = (
        f"the accepted {format_figure(bounds.pop())}" if len(bounds) == 1 else "what is accepted"
    )
    over = find_over_bound(known)
    if not over:
        return f", within {bound}"
    return f", over {bound}" if len(over) == len(members) else f", {len(over)} over {bound}"


def _tell_chosen(summaries: Sequence[dict[str, Any]], ran: Sequence[Member], *, final: bool) -> str:
    """What is told of some members of a submission: no figure of the others."""
    others = count_company(summaries, ran)
    company = f" with {others} other{'' if others == 1 else 's'}" if others else ""
    verb = "ran" if final else "runs" if len(ran) == 1 else "run"
    if len(ran) > 1:
        text, cost = f"{len(ran)} {name_jobs(ran)} {verb}{company}", _tell_cost(ran)
        gain = _tell_own_gain(summaries, ran, final=final)
        return f"{'; '.join(filter(None, (f'{text}{gain}', cost)))}."
    (member,) = ran
    text = f"{member['id']} {verb}{company or ' alone'}"
    rate = member["rate"]["steps_per_s"]
    if rate is not None:
        text += f" at {format_figure(rate)} steps/s"
    if member["slowdown"] is not None and others:
        text += f", {_tell_cost(ran).removeprefix('each ran ')}"
    return f"{text}{_tell_own_gain(summaries, ran, final=final) if others else ''}."


def _tell_own_gain(
    summaries: Sequence[dict[str, Any]], ran: Sequence[Member], *, final: bool
) -> str:
    without = _has_no_gpu(summaries, ran)
    return "" if without else tell_part_gain(summaries, ran, final=final)


def _tell_room(summaries: Sequence[dict[str, Any]], *, final: bool) -> str:
    """How many more would have fitted, by what their runners measured."""
    room = count_room(summaries)
    if not room:
        return ""
    return f"{room} more would {'have fitted' if final else 'fit'}."


def count_room(summaries: Sequence[dict[str, Any]]) -> int:
    """How many more members like these would fit; 0 where none, or where it was not measured."""
    degrees = [summary["degree"] for summary in summaries]
    return sum((degree or {}).get("room") or 0 for degree in degrees)


def _tell_coverage(summaries: Sequence[dict[str, Any]]) -> str:
    """What the figures rest on, where that is less than all."""
    shares, lost = [], False
    for summary in summaries:
        if summary["window"] is None:
            continue
        coverage = summary["coverage"]
        if coverage is None or coverage["not_watched"]:
            shares.append(0.0)
        elif summary["final"] and not _has_figures(summary):
            shares.append(0.0)
            lost = True
        elif coverage["share"] is not None:
            shares.append(coverage["share"])
    if not shares:
        return ""
    least = min(shares)
    if least >= _COVERAGE_LEAST:
        return ""
    if max(shares) == 0:
        why = "what the monitor wrote is missing" if lost else "the monitor did not run"
        return f"Nothing was measured: {why}."
    return (
        f"The monitor missed up to {format_share(1 - least)} of the time."
        if len(shares) > 1
        else f"The monitor missed {format_share(1 - least)} of the time."
    )


def _has_figures(summary: dict[str, Any]) -> bool:
    """Whether anything of what was watched is known."""
    read = ("steps", "gpu_memory_mb", "cpu_cores", "host_memory_peak_mb")
    members = summary["members"]
    return any(member[name] is not None for member in members for name in read) or any(
        spread is not None for spread in summary["gpu_use"].values()
    )
