"""What a report says of single members after its first sentence: who waits, failed, moved; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_colloc.model.member import MemberState

Member = dict[str, Any]
"""A member's part of a summary."""

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


def is_never_on_gpu(summary: dict[str, Any], member: Member) -> bool:
    """Whether a member had a GPU, and was looked at, and never had memory on it."""
    peak = (member["gpu_memory_mb"] or {}).get("peak")
    return summary["gpu"]["uuid"] is not None and peak is not None and peak < _GPU_USED_MB


def tell_waiting(members: Sequence[Member]) -> str:
    """How many have not started yet; empty where none waits."""
    waiting = sum(
        not member["starts"] and member["state"] == MemberState.PENDING.value for member in members
    )
    if not waiting:
        return ""
    return f"{waiting} {'has' if waiting == 1 else 'have'} not started yet."


def tell_guests(summaries: Sequence[dict[str, Any]], ran: Sequence[Member]) -> str:
    """Who was taken over by a pack of another submission, and by which."""
    ids = {member["id"] for member in ran}
    hosts: dict[str, list[str]] = {}
    for summary in summaries:
        host = str(summary["submission"] or "")
        for member in summary["members"]:
            is_guest = host and str(member["id"]).partition("/")[0] != host
            if is_guest and member["started_at"] is not None and member["id"] in ids:
                hosts.setdefault(host, []).append(member["id"])
    told = []
    for host, guests in hosts.items():
        if len(guests) == len(ran):
            who = "It" if len(ran) == 1 else f"All {len(ran)}"
            told.append(f"{who} ran in the pack of {host}.")
            continue
        more = ", ..." if len(guests) > _NAMED_MOST else ""
        named = ", ".join(guests[:_NAMED_MOST])
        told.append(f"{len(guests)} ran in the pack of {host} ({named}{more}).")
    return " ".join(told)


def tell_ends(every: Sequence[Member]) -> str:
    """Who did not end well: a count for each way to end, and the first few by name."""
    told = []
    members = list_last_tries(every)
    counts = Counter(member["state"] for member in members if member["state"] in ENDS)
    for state, word in ENDS.items():
        if not counts[state]:
            continue
        own = [member for member in members if member["state"] == state]
        named = ", ".join(_name_end(member) for member in own[:_NAMED_MOST])
        more = ", ..." if len(own) > _NAMED_MOST else ""
        verb = "" if word.startswith(("failed", "ran", "reached")) else "was "
        if len(own) > 1 and verb:
            verb = "were "
        who = f"All {len(own)}" if len(own) == len(members) > 1 else str(len(own))
        if len(members) == 1:
            told.append(f"It {verb}{word}{_tell_code(own[0], ' with ')}.")
        else:
            told.append(f"{who} {verb}{word} ({named}{more}).")
    return " ".join([*told, *_tell_retries(every, members)])


def list_last_tries(members: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Members without those that were tried again: of each job the last try is what counts.

    A retry is a member of its own, which says what it tries again.
    """
    members = list(members)
    ids = {str(member["id"]): member for member in members}
    last: dict[str, Mapping[str, Any]] = {}

    def began(member: Mapping[str, Any]) -> tuple[bool, float]:
        # One that still waits is the newest.
        return member["started_at"] is None, member["started_at"] or 0.0

    for member in sorted(members, key=began):
        first, seen = member, set()
        while (of := first["retry_of"]) in ids and of not in seen:
            seen.add(of)
            first = ids[of]
        last[str(first["retry_of"] or first["id"])] = member
    chosen = {str(member["id"]) for member in last.values()}
    return [member for member in members if str(member["id"]) in chosen]


def _tell_retries(members: Sequence[Member], last: Sequence[Member]) -> list[str]:
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
        tries = {sum(_is_try_of(member, other) for other in members) for member in bad}
        often = f"{min(tries)} times" if len(tries) == 1 else f"up to {max(tries)} times"
        often = "twice" if tries == {2} else often
        told.append(f"{'It' if all_bad == 1 else who} failed {often}.")
    return told


def _is_try_of(member: Member, other: Member) -> bool:
    first = member["retry_of"]
    return other["state"] in ENDS and first in (other["id"], other["retry_of"])


def _name_end(member: Member) -> str:
    return f"{member['id']}{_tell_code(member, ': ')}"


def _tell_code(member: Member, link: str) -> str:
    if member["state"] != MemberState.FAILED.value:
        return ""
    if member["exit_signal"]:
        return f"{link}signal {member['exit_signal']}"
    return f"{link}exit code {member['exit_code']}" if member["exit_code"] else ""


def tell_restarts(ran: Sequence[Member]) -> str:
    """How many were started more than once; empty where none was."""
    again = [member for member in ran if member["starts"] > 1]
    if not again:
        return ""
    if len(ran) == 1:
        return f"It was interrupted and started again ({again[0]['starts']} starts)."
    verb = "was" if len(again) == 1 else "were"
    who = f"All {len(again)}" if len(again) == len(ran) else str(len(again))
    return f"{who} {verb} interrupted and started again."


def tell_unused(summaries: Sequence[dict[str, Any]], ran: Sequence[Member]) -> str:
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
    more = ", ..." if len(own) > _NAMED_MOST else ""
    return f"{len(own)} never used the GPU ({', '.join(own[:_NAMED_MOST])}{more})."


def count_company(summaries: Sequence[dict[str, Any]], ran: Sequence[Member]) -> int:
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


def _overlap(first: Member, second: Member) -> bool:
    ends = [m["ended_at"] for m in (first, second) if m["ended_at"] is not None]
    return not ends or max(first["started_at"], second["started_at"]) < min(ends)
