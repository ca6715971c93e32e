"""What a user can do about what a report shows: each note with its act; pure.

A note stands here only where somebody can act; what is merely worth knowing is told by `--detail`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import EndCause, MemberState
from slurm_colloc.model.plan import Unwatched
from slurm_colloc.model.quantities import format_mb
from slurm_colloc.report.headline import (
    compute_gain,
    count_room,
    find_over_bound,
    has_shared,
    is_never_on_gpu,
    list_last_tries,
)
from slurm_colloc.report.summary_file import Summary, SummaryMember
from slurm_colloc.report.terminal_tables import format_figure, format_mb_figure, format_share

_WAIT_LEAST = 0.3
"""Waiting for data for less of the time is left alone."""
_MEMORY_TIMES = 4.0
_MEMORY_LEAST_MB = 2048.0
"""So much more host memory than was used, and so many times as much, are worth a note."""
_MARGIN = 1.25
_BUSY, _FEW = 0.85, 0.35
"""The GPU looks busy by its utilization, and few of its processors work."""
_LONG_S = 60.0
_GAIN_LEAST = 1.03


@dataclass(frozen=True)
class Advice:
    """A note on which somebody can act.

    Attributes:
        members: The ids of whom it is; empty for the whole submission.
        finding: What was seen, with its number, as a clause without a subject where it is of
            members.
        act: What to do, as a clause.
    """

    members: tuple[str, ...]
    finding: str
    act: str

    def say(self) -> str:
        """`54/2 waited for data 52 % of its time: give its DataLoader more workers`."""
        return f"{self.describe()}: {self.act}"

    def describe(self) -> str:
        """Whom it is about and what was seen, without the act."""
        who = name_members(self.members)
        return f"{who}{' ' if who else ''}{self.finding}"


def list_advice(summaries: Sequence[Summary], chosen: Sequence[str] | None = None) -> list[Advice]:
    """All notes on the packs of a submission, the weightiest first.

    Args:
        summaries: Their summaries.
        chosen: The ids of the members to tell of, of which alone it is; None for all.
    """
    last = list_last_tries(member for summary in summaries for member in summary["members"])
    counting = {member["id"] for member in last}
    grouped: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for rule in _OF_MEMBERS:
        for summary in summaries:
            for member in summary["members"]:
                if chosen is not None and member["id"] not in chosen:
                    continue
                if rule is _ended_badly and member["id"] not in counting:
                    continue
                for finding, act, *share in rule(summary, member):
                    grouped.setdefault((finding, act), []).append((member["id"], *share))
    found = [_join(finding, act, own) for (finding, act), own in grouped.items()]
    found += _ask_for_less(
        m for s in summaries for m in s["members"] if chosen is None or m["id"] in chosen
    )
    if chosen is None:
        found += [Advice((), *told) for rule in _OF_ALL for told in rule(summaries)]
    return found


def _join(finding: str, act: str, own: Sequence[tuple[Any, ...]]) -> Advice:
    """The same note on several members, with the range of its shares."""
    shares = [share for _, *told in own for share in told if share is not None]
    low, high = (f"{100 * edge(shares, default=0.0):.0f}" for edge in (min, max))
    text = f"{low} %" if low == high else f"{low} to {high} %"
    names = tuple(name for name, *_ in own)
    act = act.replace("{who}", name_members(names))
    return Advice(names, finding.replace("{share}", text), act)


_Told = Iterator[tuple[str, str] | tuple[str, str, float | None]]
"""What was seen, and what to do, to `{who}`; and the share that stands for `{share}` in the first.
"""
_ToldOfAll = Iterator[tuple[str, str]]


def _ended_badly(_summary: Summary, member: SummaryMember) -> _Told:
    if member["cause"] == EndCause.CUDA_OUT_OF_MEMORY.value:
        yield "ran out of GPU memory", "csub --gpu-mem=SIZE SCRIPT keeps as much free for it"
    elif member["state"] == MemberState.OUT_OF_MEMORY.value:
        asked = member["request"]["host_memory_mb"]
        had = f" ({format_mb(int(asked))})" if asked else ""
        yield f"ran out of host memory{had}", "submit it again with a larger --mem"
    elif member["state"] == MemberState.TIMEOUT.value:
        yield "reached its time limit", "submit it again with a longer --time"
    elif member["state"] == MemberState.FAILED.value:
        yield "failed", "csub why {who} says how, csub logs {who} what it wrote"
    elif member["state"] in (MemberState.PREEMPTED.value, MemberState.NODE_FAIL.value):
        yield "did not finish", "with csub --requeue it would have started again"
    elif member["state"] == MemberState.LOST.value:
        yield "was lost with its runner", f"csub explain {member['id']} says what is known"


def _never_on_gpu(summary: Summary, member: SummaryMember) -> _Told:
    if member["started_at"] is not None and is_never_on_gpu(summary, member):
        yield (
            "never used the GPU",
            "let it check torch.cuda.is_available(); without --gres it would start sooner",
        )


def _waits_for_data(summary: Summary, member: SummaryMember) -> _Told:
    wait = member["stall"]["data"]
    if wait is None or wait < _WAIT_LEAST:
        return
    for told in summary["degree"]["workers"] if summary["degree"] else ():
        if told["member"] == member["member"]:
            from slurm_colloc.report.speed_words import describe_workers

            why = describe_workers(told["workers"], told["cores"])
            act = f"num_workers={told['advised']}"
            yield f"waited for data {{share}} of the time, as {why}", act, wait
            return
    cpus, used = member["request"]["cpus"], member["cpu_cores"]
    act = "give the DataLoader more workers (num_workers), or make its data cheaper to prepare"
    if cpus and used is not None and used >= 0.85 * cpus:
        act = (
            f"the {'CPU is' if cpus == 1 else f'{cpus} CPUs are'} busy, so ask for more "
            f"(--cpus-per-task={2 * cpus}) and give the DataLoader as many workers"
        )
    yield "waited for data {share} of the time", act, wait


def _ask_for_less(members: Iterable[SummaryMember]) -> Iterator[Advice]:
    """What has asked for the same memory needs as much as the one that used most."""
    groups: dict[float, list[SummaryMember]] = {}
    for member in members:
        asked = member["request"]["host_memory_mb"]
        if asked and member["host_memory_peak_mb"] and member["state"] in _WHOLE_RUN:
            groups.setdefault(asked, []).append(member)
    for asked, own in groups.items():
        used = max(member["host_memory_peak_mb"] or 0.0 for member in own)
        if asked < _MEMORY_TIMES * used or asked - used < _MEMORY_LEAST_MB:
            continue
        enough_mb = max(1024, math.ceil(used * _MARGIN / 1024) * 1024)
        yield Advice(
            tuple(member["id"] for member in own),
            f"asked for {format_mb(int(asked))} of host memory, {asked / used:.0f} times the "
            f"{format_mb_figure(used)} that were used",
            f"--mem={format_mb(enough_mb)} is enough, and more jobs fit on the node",
        )


_WHOLE_RUN = (MemberState.COMPLETED.value, MemberState.RUNNING.value, MemberState.TIMEOUT.value)


def _counts_no_steps(summary: Summary, member: SummaryMember) -> _Told:
    started, window = member["started_at"], summary["window"]
    if started is None or member["steps"] is not None or not _was_watched(summary):
        return
    # One that has just started may not have been looked at yet.
    end = member["ended_at"] or (window["to"] if window else started)
    if end - started < _LONG_S:
        return
    if member["unmatched_lines"] is not None:
        yield (
            "printed no line that --progress-regex matches, so how fast it trained is unknown",
            "csub logs shows its lines; inside single quotes a #CSUB line keeps backslashes",
        )
        return
    yield (
        "reported no steps, so how fast it trained is unknown",
        "--progress-regex finds them in its output, or it calls slurm_colloc.progress",
    )


def _too_short(summary: Summary, member: SummaryMember) -> _Told:
    # What ended badly has a note of its own.
    is_whole = member["state"] == MemberState.COMPLETED.value and summary["final"]
    if member["steps"] and member["rate"]["steps_per_s"] is None and is_whole:
        yield "ran too briefly for a rate", "one is known from about 20 s of training on"


def _no_rate_alone(summary: Summary, member: SummaryMember) -> _Told:
    if (
        summary["pack"]["overlap_s"] > 0
        and member["request"]["gpus"] != 0
        and member["rate"]["steps_per_s"] is not None
        and member["solo"] is None
    ):
        yield (
            "had no known rate alone, so what sharing cost is unknown",
            "csub probe SCRIPT ARGUMENTS measures it in a few minutes",
        )


def _over_bound(summary: Summary, member: SummaryMember) -> _Told:
    if find_over_bound([member]):
        bound = format_figure(member["accepted_slowdown"])
        most = summary["pack"]["members_most"]
        degree = summary["degree"]
        # Without a curve nothing was measured, and the record says one.
        best = degree["degree"] if degree and degree["curve"] else most
        if best < most:
            remedy = f"their pack has found since that {best} at once is best; packs begin so now"
        else:
            fewer = max(1, most - 1)
            remedy = f"--degree={fewer} makes each faster, --max-slowdown accepts more"
        yield f"ran more than the accepted {bound} times slower than alone", remedy


def _was_watched(summary: Summary) -> bool:
    coverage = summary["coverage"]
    return coverage is not None and not coverage["not_watched"]


def _not_watched(summaries: Sequence[Summary]) -> _ToldOfAll:
    found = [summary["coverage"] for summary in summaries if summary["coverage"] is not None]
    first = next((coverage for coverage in found if coverage["not_watched"]), None)
    acts: dict[str | None, str] = {
        Unwatched.HOST_MEMORY: "with a larger --mem it is measured",
        Unwatched.SETTING: "csub config monitor true turns the monitor on",
    }
    if first is not None and first["not_watched_kind"] in acts:
        yield f"Nothing was measured ({first['not_watched']})", acts[first["not_watched_kind"]]


def _did_not_pay(summaries: Sequence[Summary]) -> _ToldOfAll:
    serial_s, shared_s = compute_gain(summaries)
    if serial_s is not None and has_shared(summaries) and serial_s < shared_s / _GAIN_LEAST:
        yield (
            "Together they took longer than one after the other",
            "csub --share=exclusive runs each alone",
        )


def _has_room(summaries: Sequence[Summary]) -> _ToldOfAll:
    room = count_room(summaries)
    crowded = any(find_over_bound(summary["members"]) for summary in summaries)
    if room and not crowded and all(summary["final"] for summary in summaries):
        most = max(summary["pack"]["members_most"] for summary in summaries)
        each = f"--degree={most + room}" if len(summaries) == 1 else "a larger --degree"
        yield (
            f"{room} more would have fitted on the GPU",
            f"submit more of them in one call, or allow more at a time ({each})",
        )


def _takes_power(_summary: Summary, member: SummaryMember) -> _Told:
    power = member.get("power")
    if power is not None and None not in power.values():
        finding = f"would take {{share}} of its energy per step at {power['limit_w']:.0f} W"
        finding += f", {power['slowdown']:.2f} times as long"
        act = "csub --goal=energy asks for that, where the site lets root set it"
        yield finding, act, power["energy_share"]


def _looks_busy(summaries: Sequence[Summary]) -> _ToldOfAll:
    """Of several packs the one that looks busiest."""
    worst: tuple[float, float] | None = None
    for summary in summaries:
        use = summary["gpu_use"]
        utilization, sm = use.get("utilization"), use.get("sm_active")
        if utilization is None or sm is None:
            continue
        pair = (utilization["mean"], sm["mean"])
        if pair[0] >= _BUSY and pair[1] <= _FEW and (worst is None or pair > worst):
            worst = pair
    if worst is not None and not count_room(summaries):
        seen, worked = map(format_share, worst)
        yield (
            f"The GPU's utilization was {seen}, but only {worked} of its processors (SM) were busy",
            "there is room for others: csub --array, csub pack, or larger batches",
        )


def _on_slow_gpu(summaries: Sequence[Summary]) -> _ToldOfAll:
    slow = dict.fromkeys(gpu["slow"] for s in summaries for gpu in s["gpus"] if gpu["slow"])
    for told in slow:
        yield told, "csub --avoid-slow keeps jobs off its node; show it to the administrators"


def _fell_back(summaries: Sequence[Summary]) -> _ToldOfAll:
    reasons = [
        setup["reason"]
        for setup in (summary["setup"] for summary in summaries)
        if setup is not None and setup["mode"] == "timeslice" and setup["reason"]
        and setup["asked"].startswith(("auto", "mps"))
    ]  # fmt: skip
    if reasons:
        yield (
            f"The GPU was shared by time slices, because MPS was not available ({reasons[0]})",
            "csub doctor says why",
        )


_OF_MEMBERS: tuple[Callable[[Summary, SummaryMember], _Told], ...] = (
    _never_on_gpu, _ended_badly, _over_bound, _waits_for_data, _counts_no_steps, _too_short,
    _no_rate_alone, _takes_power,
)  # fmt: skip
_OF_ALL: tuple[Callable[[Sequence[Summary]], _ToldOfAll], ...] = (
    _not_watched, _did_not_pay, _on_slow_gpu, _fell_back, _has_room, _looks_busy,
)  # fmt: skip
