"""The first sentence of a report, the same in the terminal, the page, the mail and JSON; pure.

Also: what a report says of single members after its first sentence: who waits, failed, moved; what
sharing a GPU brought, defined once for whole packs and for some of their members.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from slurm_colloc.metrics.sharing_cost import complete_solo_times
from slurm_colloc.model.member import MemberState, is_guest
from slurm_colloc.model.quantities import format_count
from slurm_colloc.report.summary_file import Summary, SummaryMember
from slurm_colloc.report.terminal_tables import format_figure, format_share, format_span

# ----
# What a report says of single members after its first sentence: who waits, failed, moved; pure.

_NAMED_MOST = 3
_GPU_USED_MB = 1.0

ENDS = {
    MemberState.FAILED.value: "failed",
    MemberState.OUT_OF_MEMORY.value: "ran out of host memory",
    MemberState.TIMEOUT.value: "reached the time limit",
    MemberState.CANCELLED.value: "cancelled",
    MemberState.PREEMPTED.value: "preempted",
    MemberState.NODE_FAIL.value: "lost with its node",
    MemberState.LOST.value: "lost",
}
BAD_STATES = frozenset(ENDS)
"""States of members that did not end well."""


def is_never_on_gpu(summary: Summary, member: SummaryMember) -> bool:
    """Whether a member had a GPU, and was looked at, and never had memory on it."""
    peak = memory["peak"] if (memory := member["gpu_memory_mb"]) else None
    return summary["gpu"]["uuid"] is not None and peak is not None and peak < _GPU_USED_MB


def tell_waiting(members: Sequence[SummaryMember]) -> str:
    """How many have not started yet; empty where none waits."""
    waiting = sum(
        not member["starts"] and member["state"] == MemberState.PENDING.value for member in members
    )
    if not waiting:
        return ""
    return f"{waiting} {'has' if waiting == 1 else 'have'} not started yet."


def tell_guests(summaries: Sequence[Summary], ran: Sequence[SummaryMember]) -> str:
    """Who was taken over by a pack of another submission, and by which."""
    ids = {member["id"] for member in ran}
    hosts: dict[str, list[str]] = {}
    for summary in summaries:
        host = str(summary["submission"] or "")
        for member in summary["members"]:
            home, _, number = member["id"].partition("/")
            is_elsewhere = host and (home != host if number else is_guest(member["member"]))
            if is_elsewhere and member["started_at"] is not None and member["id"] in ids:
                hosts.setdefault(host, []).append(member["id"])
    told = []
    for host, guests in hosts.items():
        if len(guests) == len(ran):
            who = "It" if len(ran) == 1 else f"All {len(ran)}"
            told.append(f"{who} ran in the pack of {host}.")
            continue
        told.append(f"{len(guests)} ran in the pack of {host} ({_name_first(guests)}).")
    return " ".join(told)


def tell_ends(every: Sequence[SummaryMember]) -> str:
    """Who did not end well: a count for each way to end, and the first few by name."""
    told = []
    members = list_last_tries(every)
    counts = Counter(member["state"] for member in members if member["state"] in ENDS)
    for state, word in ENDS.items():
        if not counts[state]:
            continue
        own = [member for member in members if member["state"] == state]
        named = _name_first([f"{member['id']}{_tell_code(member, ': ')}" for member in own])
        verb = "" if word.startswith(("failed", "ran", "reached")) else "was "
        if len(own) > 1 and verb:
            verb = "were "
        who = f"All {len(own)}" if len(own) == len(members) > 1 else str(len(own))
        if len(members) == 1:
            told.append(f"It {verb}{word}{_tell_code(own[0], ' with ')}.")
        else:
            told.append(f"{who} {verb}{word} ({named}).")
    return " ".join([*told, *_tell_retries(every, members)])


def list_last_tries(members: Iterable[SummaryMember]) -> list[SummaryMember]:
    """Members without those that were tried again: of each job the last try is what counts.

    A retry is a member of its own, which says what it tries again.
    """
    members = list(members)
    ids = {member["id"]: member for member in members}
    last: dict[str, SummaryMember] = {}

    def began(member: SummaryMember) -> tuple[bool, float]:
        # One that still waits is the newest.
        return member["started_at"] is None, member["started_at"] or 0.0

    for member in sorted(members, key=began):
        first, seen = member, set()
        while (of := first["retry_of"]) in ids and of not in seen:
            seen.add(of)
            first = ids[of]
        last[first["retry_of"] or first["id"]] = member
    chosen = {member["id"] for member in last.values()}
    return [member for member in members if member["id"] in chosen]


def _tell_retries(members: Sequence[SummaryMember], last: Sequence[SummaryMember]) -> list[str]:
    """What came of those that were tried again."""
    again = [member for member in last if member["retry_of"]]
    good = sum(member["state"] == MemberState.COMPLETED.value for member in again)
    bad = [member for member in again if member["state"] in ENDS]
    told = []
    if good:
        which = f"All {good}" if good == len(last) else f"{good} of the {len(last)}"
        what = "It" if len(last) == 1 else which
        told.append(f"{what} completed only when tried again.")
    if bad:
        all_bad = sum(member["state"] in ENDS for member in last)
        who = "All of these" if len(bad) == all_bad > 1 else f"{len(bad)} of these"
        ended = [member for member in members if member["state"] in ENDS]
        tries = {
            sum(member["retry_of"] in (other["id"], other["retry_of"]) for other in ended)
            for member in bad
        }
        often = f"{min(tries)} times" if len(tries) == 1 else f"up to {max(tries)} times"
        often = "twice" if tries == {2} else often
        told.append(f"{'It' if all_bad == 1 else who} failed {often}.")
    return told


def _name_first(names: Sequence[str]) -> str:
    """The first few of some, and dots for the others."""
    return f"{', '.join(names[:_NAMED_MOST])}{', ...' if len(names) > _NAMED_MOST else ''}"


def _tell_code(member: SummaryMember, link: str) -> str:
    if member["state"] != MemberState.FAILED.value:
        return ""
    if member["exit_signal"]:
        return f"{link}signal {member['exit_signal']}"
    return f"{link}exit code {member['exit_code']}" if member["exit_code"] else ""


def tell_restarts(ran: Sequence[SummaryMember]) -> str:
    """How many were started more than once; empty where none was."""
    again = [member for member in ran if member["starts"] > 1]
    if not again:
        return ""
    if len(ran) == 1:
        return f"It was interrupted and started again ({again[0]['starts']} starts)."
    verb = "was" if len(again) == 1 else "were"
    who = f"All {len(again)}" if len(again) == len(ran) else str(len(again))
    return f"{who} {verb} interrupted and started again."


def tell_unused(summaries: Sequence[Summary], ran: Sequence[SummaryMember]) -> str:
    """Who never used the GPU that was held for it."""
    ids = {member["id"] for member in ran}
    own = [
        member["id"]
        for summary in summaries
        for member in summary["members"]
        if member["id"] in ids and is_never_on_gpu(summary, member)
    ]
    if not own:
        return ""
    if len(ran) == 1:
        return "It never used the GPU."
    if len(own) == len(ran):
        return "None of them ever used the GPU."
    return f"{len(own)} never used the GPU ({_name_first(own)})."


def count_company(summaries: Sequence[Summary], ran: Sequence[SummaryMember]) -> int:
    """How many others of their packs ran while one of them did."""
    ids = {member["id"] for member in ran}
    count = 0
    for summary in summaries:
        started = [member for member in summary["members"] if member["started_at"] is not None]
        own = [member for member in started if member["id"] in ids]
        count += sum(
            member["id"] not in ids and any(_overlap(member, other) for other in own)
            for member in started
        )
    return count


def _overlap(first: SummaryMember, second: SummaryMember) -> bool:
    ends = [m["ended_at"] for m in (first, second) if m["ended_at"] is not None]
    return not ends or max(m["started_at"] or 0.0 for m in (first, second)) < min(ends)


# ----
# What sharing a GPU brought, defined once for whole packs and for some of their members; pure.
#
# The gain is the time that the jobs would have taken one after the other, each alone on the GPU,
# over the time for which their packs had a GPU. Of some members only, that time is their part of
# it: while k members are there, each has taken a k-th. The parts of all add up to the whole.

EVEN = 1.03
"""A gain or a slowdown of less is none."""

_OVERLAP_LEAST = 0.05
"""Of the packs' time: with less, one was about to end as the next began, and none shared."""


def compute_gain(summaries: Sequence[Summary]) -> tuple[float | None, float]:
    """The time that all would have taken one after the other, and the time that they took.

    Returns:
        Seconds; the first is None where it is unknown of a pack.
    """
    ran = [summary for summary in summaries if summary["window"] is not None]
    packs = [summary["pack"] for summary in ran]
    # Of one pack that is time on the clock, of several that of all their GPUs.
    gpus = [1 if len(ran) == 1 else count_gpus(summary) for summary in ran]
    serial = [pack["serial_s"] for pack in packs if pack["serial_s"] is not None]
    shared_s = sum((p["shared_s"] or 0.0) * count for p, count in zip(packs, gpus, strict=True))
    if len(serial) < len(packs):
        return None, shared_s
    return sum(one * count for one, count in zip(serial, gpus, strict=True)), shared_s


def has_shared(summaries: Sequence[Summary]) -> bool:
    """Whether members of packs that have run were there together, for more than a moment."""
    overlap_s = sum(summary["pack"]["overlap_s"] for summary in summaries)
    shared_s = sum(summary["pack"]["shared_s"] or 0.0 for summary in summaries)
    return bool(overlap_s > _OVERLAP_LEAST * shared_s)


def count_gpus(summary: Summary) -> int:
    """How many GPUs a pack had; one where none was seen."""
    return max(1, len(summary["gpus"]))


def compute_part_gain(
    summaries: Sequence[Summary], chosen: Sequence[SummaryMember]
) -> tuple[float | None, float]:
    """The same for some members that have started.

    Args:
        summaries: The packs in which they ran.
        chosen: The members, out of these summaries.

    Returns:
        Seconds: how long they would have taken one after the other, None where that of one is not
        known; and their part of the time for which their packs had a GPU.
    """
    ids = {member["id"] for member in chosen}
    stayed: list[tuple[float, float | None]] = []
    part_s = 0.0
    for summary in summaries:
        if summary["window"] is None:
            continue
        stays = {
            member["id"]: (member["started_at"], member["ended_at"] or summary["window"]["to"])
            for member in summary["members"]
            if member["started_at"] is not None
        }
        edges = sorted({edge for stay in stays.values() for edge in stay})
        for low, high in itertools.pairwise(edges):
            there = {who for who, (begin, end) in stays.items() if begin <= low and high <= end}
            part_s += (high - low) * len(there & ids) / len(there) if there else 0.0
        for member in summary["members"]:
            if member["id"] in ids and member["id"] in stays:
                begin, end = stays[member["id"]]
                stayed.append((end - begin, member["solo_time_s"]))
    serial = complete_solo_times(stayed)
    known = [time_s for time_s in serial if time_s is not None]
    return (sum(known) if len(known) == len(serial) else None), part_s


def say_span(seconds: float) -> str:
    """`24 s`, `3 min 20 s`: no tenths where they say nothing."""
    return f"{seconds:.0f} s" if 9.95 <= seconds < 59.5 else format_span(seconds)


def tell_gain(serial_s: float, shared_s: float, *, of_gpu_time: bool) -> str:
    """How much more work a GPU did, or how much sooner all was done, by sharing.

    Args:
        serial_s: The time that all would have taken one after the other.
        shared_s: The time that they took.
        of_gpu_time: It is time of GPUs, several of which may have run at once, and not wall time.
    """
    if shared_s <= 0 or serial_s <= 0:
        return "no gain"
    gain = serial_s / shared_s
    if 1 / EVEN < gain < EVEN:
        return "no gain"
    if of_gpu_time:
        times = f"{_round(gain)} times the work per GPU hour"
    else:
        word = "faster" if gain >= EVEN else "slower"
        times = f"{_round(max(gain, 1 / gain))} times {word} in wall time"
    return times if gain >= EVEN else f"{times}: sharing did not pay"


def _round(value: float) -> str:
    """Two digits that are seen to differ from 1."""
    return f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"


def tell_part_gain(
    summaries: Sequence[Summary], ran: Sequence[SummaryMember], *, final: bool
) -> str:
    """What sharing brought some members, by their part of the GPU's time; empty where unknown."""
    serial_s, part_s = compute_part_gain(summaries, ran)
    if serial_s is None or part_s <= 0:
        return ""
    instead = "instead of" if final else "for work of"
    if len(ran) == 1:
        verb, alone = "; it took" if final else "; so far it has had", "alone"
    else:
        verb, alone = " and took" if final else " and have taken", "one after the other"
    return (
        f"{verb} {say_span(part_s)} of GPU time {instead} {say_span(serial_s)} {alone} "
        f"({tell_gain(serial_s, part_s, of_gpu_time=True)})"
    )


# ----
# The first sentence of a report, the same in the terminal, the page, the mail and JSON; pure.

_ALIKE = 1.1
"""Slowdowns that differ by less are told by their mean."""
_COVERAGE_LEAST = 0.9
_SHORT_S = 60.0
"""Where a rate is unknown although steps were counted, a shorter run is why."""


def tell_headline(summaries: Sequence[Summary], chosen: Collection[str] | None = None) -> str:
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


def name_jobs(members: Sequence[SummaryMember]) -> str:
    """`trainings` where steps were counted of each, else `jobs`; singular for one."""
    word = "training" if all(member["steps"] for member in members) else "job"
    return word if len(members) == 1 else f"{word}s"


def find_over_bound(members: Sequence[SummaryMember]) -> list[SummaryMember]:
    """Those that were slower than was accepted for them."""
    return [
        member
        for member in members
        if member["slowdown"] is not None
        and member["accepted_slowdown"] is not None
        and member["slowdown"] > member["accepted_slowdown"] * 1.005
    ]


def _tell_not_started(members: Sequence[SummaryMember]) -> str:
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


def _tell_one(summaries: Sequence[Summary], member: SummaryMember, *, final: bool) -> str:
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
    summaries: Sequence[Summary], ran: Sequence[SummaryMember], tries: int, *, final: bool
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


def _tell_places(packs: Sequence[Summary]) -> str:
    """On how many GPUs, where they are those of one Slurm job; in how many packs otherwise."""
    jobs = {summary["job"] or summary["pack_id"] for summary in packs}
    if len(jobs) == len(packs):
        return f" in {len(packs)} packs"
    gpus = sum(map(count_gpus, packs))
    return f" on {gpus} GPUs" if len(jobs) == 1 else f" on {gpus} GPUs of {len(jobs)} jobs"


def _has_no_gpu(summaries: Sequence[Summary], members: Sequence[SummaryMember]) -> bool:
    """Whether none asked for a GPU and none was seen."""
    asked = any(member["request"]["gpus"] != 0 for member in members)
    return not asked and all(summary["gpu"]["uuid"] is None for summary in summaries)


def _tell_cost(members: Sequence[SummaryMember]) -> str:
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


def _tell_bound(members: Sequence[SummaryMember]) -> str:
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


def _tell_chosen(summaries: Sequence[Summary], ran: Sequence[SummaryMember], *, final: bool) -> str:
    """What is told of some members of a submission: no figure of the others."""
    others = count_company(summaries, ran)
    company = f" with {format_count(others, 'other')}" if others else ""
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
    summaries: Sequence[Summary], ran: Sequence[SummaryMember], *, final: bool
) -> str:
    without = _has_no_gpu(summaries, ran)
    return "" if without else tell_part_gain(summaries, ran, final=final)


def _tell_room(summaries: Sequence[Summary], *, final: bool) -> str:
    """How many more would have fitted, by what their runners measured."""
    room = count_room(summaries)
    if not room:
        return ""
    return f"{room} more would {'have fitted' if final else 'fit'}."


def count_room(summaries: Sequence[Summary]) -> int:
    """How many more members like these would fit; 0 where none, or where it was not measured."""
    return sum(s["degree"]["room"] or 0 for s in summaries if s["degree"] is not None)


def _tell_coverage(summaries: Sequence[Summary]) -> str:
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


def _has_figures(summary: Summary) -> bool:
    """Whether anything of what was watched is known."""
    read = [
        (m["steps"], m["gpu_memory_mb"], m["cpu_cores"], m["host_memory_peak_mb"])
        for m in summary["members"]
    ]
    found = [*itertools.chain(*read), *summary["gpu_use"].values()]
    return any(value is not None for value in found)
