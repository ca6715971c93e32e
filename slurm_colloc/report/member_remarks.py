"""What a report says of single members after its first sentence: who waits, failed, moved; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
        # A summary of an older csub has none.
        host = str(summary.get("submission") or "")
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


def tell_ends(members: Sequence[Member]) -> str:
    """Who did not end well: a count for each way to end, and the first few by name."""
    told = []
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
    return " ".join([*told, *_tell_retries(members)])


def find_made_good(members: Sequence[Member]) -> frozenset[str]:
    """The ids of those that did not end well and have completed in another try."""
    done = {m.get("retry_of") for m in members if m["state"] == MemberState.COMPLETED.value}
    return frozenset(
        str(member["id"])
        for member in members
        if member["state"] in ENDS and (member.get("retry_of") or member["id"]) in done
    )


def _tell_retries(members: Sequence[Member]) -> list[str]:
    """How many of those that did not end well have completed in another try."""
    ends = [member for member in members if member["state"] in ENDS]
    count = len(find_made_good(members))
    if not count:
        return []
    who = "It" if len(ends) == 1 else "All of these" if count == len(ends) else f"{count} of these"
    return [f"{who} completed when tried again."]


def _name_end(member: Member) -> str:
    return f"{member['id']}{_tell_code(member, ': ')}"


def _tell_code(member: Member, link: str) -> str:
    if member["state"] != MemberState.FAILED.value:
        return ""
    if member.get("exit_signal"):
        return f"{link}signal {member['exit_signal']}"
    return f"{link}exit code {member['exit_code']}" if member.get("exit_code") else ""


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
