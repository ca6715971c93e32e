"""`csub why`: one line that says why a member is as it is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.model.member import EndCause, MemberState, SlurmJobState, WaitKind, WaitReason
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.quantities import format_elapsed
from slurm_colloc.model.why_not_now import OF_GPU, RunningMember, StartFacts, why_not_now
from slurm_colloc.report.member_survey import HELD
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.queue_rows import compute_elapsed_s, compute_left_s, format_where
from slurm_colloc.report.speed_words import (
    advise_workers,
    describe_cores,
    describe_degree,
    describe_limit,
    describe_moved,
    describe_pace,
    explain_kept_waiting,
)
from slurm_colloc.report.waiting_reasons import describe_reason, find_reason
from slurm_colloc.store.member_states import StateRecord
from slurm_colloc.store.pack_directory import PackRecord
from slurm_colloc.store.runner_requests import DegreeRecord

_PARTNERS_NAMED_MOST = 3
_UNKNOWN = ("", "Unknown", "(null)", "None", "N/A")
_PLAIN = ("", EndCause.EXIT_CODE.value, EndCause.SIGNAL.value, EndCause.NOT_STARTED.value)
"""Ends of which the reason says all."""

_SHARING = {
    SharingMode.TIMESLICE.value: "by time slices",
    SharingMode.MPS.value: "through MPS",
    SharingMode.MIG.value: "in MIG devices of their own",
}


@dataclass(frozen=True)
class Facts:
    """What is known besides the state directory.

    Attributes:
        now: Seconds since the epoch.
        fields: `scontrol show job` of the pack's job, empty where it was not asked for.
        unreachable: Why Slurm could not be asked; empty where it answered.
        moved: The member's new name, where it was submitted again.
        degree: What its runner has measured and decided of how many run at once; None where
            nothing.
        latest: The newest figures of the pack's monitor; None where there are none.
        is_gpu_unprepared: Its runner has not written yet how members share the GPU.
        takes_one: Its GPU takes one member at a time.
        last_line: The last line that it has written, of a failure; empty for none.
        kept_apart: Why it does not start in packs of other submissions that run the same script.
        left_out: Why the pack before its own takes no more members: its own came to be so.
        slow_gpu: Its GPU, where that is slow, and by what that is known; empty where it is not.
        chain: Which link of its chain runs, and what is known of the next; empty for no chain.
    """

    now: float
    fields: Mapping[str, str] = field(default_factory=dict)
    unreachable: str = ""
    moved: str = ""
    degree: DegreeRecord | None = None
    latest: Mapping[str, Any] | None = None
    is_gpu_unprepared: bool = False
    takes_one: bool = False
    last_line: str = ""
    kept_apart: tuple[str, ...] = ()
    left_out: str = ""
    slow_gpu: str = ""
    chain: str = ""


@dataclass(frozen=True)
class WhyLine:
    """Why a member is as it is.

    Attributes:
        member: It.
        first: What it waits for, with whom it shares, or how it ended.
        of_pack: What is so of each member that is in its pack; empty for nothing.
        more: What else there is to say.
        waits_for_that: `first` has it already, as the reason why it waits.
    """

    member: MemberView
    first: str
    of_pack: str = ""
    more: tuple[str, ...] = ()
    waits_for_that: bool = False

    def join(self, *, with_pack: bool = True) -> str:
        """The clauses as one text, also what is so of its pack."""
        of_pack = self.of_pack if with_pack and not self.waits_for_that else ""
        return "; ".join(filter(None, (self.first, of_pack, *self.more)))

    def __str__(self) -> str:
        return f"{self.member.member} {self.member.state.value}: {self.join()}"


def explain_why(view: PackView, member: MemberView, facts: Facts) -> WhyLine:
    """What it waits for, with whom it shares, or how it ended."""
    if member.state is MemberState.PENDING:
        text = _explain_pending(view, member, facts)
    elif member.state is MemberState.RUNNING:
        text = _explain_running(view, member, facts)
    else:
        text = _explain_ended(view, member, facts)
    degree = ""
    if member.state is MemberState.RUNNING or _waits_in_pack(view, member):
        running = sum(m.state is MemberState.RUNNING for m in view.members)
        degree = describe_degree(facts.degree, running)
    clauses = [] if member.is_final else list_sharing_reasons(view)
    if member.state is MemberState.RUNNING and (advice := advise_workers(member, facts.degree)):
        clauses.append(advice)
    if member.record is not None and member.record.taken_at_once:
        clauses.append(member.record.taken_at_once)
    clauses += member.findings
    if member.record is not None and member.record.no_places:
        clauses.append(f"it shares /tmp with its neighbours: {member.record.no_places}")
    if facts.slow_gpu:
        clauses.append(f"its GPU is slow: {facts.slow_gpu}")
    if facts.left_out and member.state is MemberState.PENDING:
        clauses.append(facts.left_out)
    if facts.chain and (not member.is_final or member.state is MemberState.TIMEOUT):
        clauses.append(facts.chain)
    if facts.unreachable and not member.is_final and not view.record.local:
        clauses.append(f"as last recorded: {facts.unreachable}")
    elif view.is_elsewhere and not member.is_final:
        clauses.append(f"as last recorded: ask csub on {view.where_to_ask}")
    return WhyLine(member, text, degree, tuple(clauses), waits_for_that=degree in text)


def fold_lines(lines: Sequence[WhyLine]) -> list[str]:
    """Equal lines are one, and what is so of several members of a pack is said once."""
    counts = Counter(line.of_pack for line in lines if not line.waits_for_that)
    folded: dict[tuple[str, str, str], list[str]] = {}
    of_packs: dict[str, list[str]] = {}
    for line in lines:
        name, is_shared = str(line.member.member), counts[line.of_pack] > 1
        if is_shared and line.of_pack:
            of_packs.setdefault(line.of_pack, []).append(name)
        key = (line.member.member.job, line.member.state.value, line.join(with_pack=not is_shared))
        folded.setdefault(key, []).append(name)
    found = [f"{name_members(names)} {word}: {said}" for (_, word, said), names in folded.items()]
    return [*found, *(f"{name_members(names)}: {said}" for said, names in of_packs.items())]


def describe_closed(record: PackRecord, names: Sequence[str]) -> str:
    """Why a pack takes no more members, for those that came after it; empty where that is not said.

    Args:
        record: The pack.
        names: Its members' ids.
    """
    why = record.sharing.full
    return (
        f"the pack of {name_members(names)} takes no more members: {why}" if why and names else ""
    )


def _waits_in_pack(view: PackView, member: MemberView) -> bool:
    """Whether it waits for a place in a pack that runs."""
    if member.state is not MemberState.PENDING or member.is_held or view.attempt == 0:
        return False
    return view.record.local or view.slurm_state is SlurmJobState.RUNNING


def list_sharing_reasons(view: PackView) -> list[str]:
    """Why it runs alone, and which packs it did not join for which reason, as written down.

    That its own pack is full or closed is told to those that did not join it.
    """
    record, sharing = view.record, view.record.sharing
    found = [sharing.opened] if sharing.opened else []
    if record.request is None:
        # Why no job may join it, or why it joined none, says more than that it came alone.
        says_more = sharing.came_alone and (record.closed or record.refusals)
        alone = ("" if says_more else sharing.alone) or record.closed
        found += [f"it runs alone: {alone}"] if alone else []
    found += [f"it {sharing.not_opened}"] if sharing.not_opened else []
    found += [sharing.power] if sharing.power else []
    return found + [f"it did not join {text}" for text in record.refusals]


def _explain_pending(view: PackView, member: MemberView, facts: Facts) -> str:
    if member.is_held:
        # Its runner holds what it must not start yet, see runtime.may_start.
        held = StartFacts(is_held=True, dependency=member.dependency)
        return f"{why_not_now(held)}; csub release {member.member} lets it go on"
    if view.record.local:
        if view.attempt == 0:
            return f"waits on {view.record.submit_host} until the packs before it have ended"
        return _explain_in_pack(view, member, facts)
    if view.slurm_state is SlurmJobState.PENDING:
        has_run = member.record is not None and member.record.starts > 0
        again = f"to be started again ({view.kill}): " if view.kill and has_run else ""
        said = f"{again}{_explain_slurm_pending(view, member, facts)}"
        return "; ".join([said, *facts.kept_apart])
    if view.slurm_state in (SlurmJobState.RUNNING, SlurmJobState.COMPLETING):
        if view.attempt == 0:
            return "its Slurm job has begun, and the pack is starting"
        return _explain_in_pack(view, member, facts)
    if view.slurm_state is SlurmJobState.SUSPENDED:
        return "its Slurm job is suspended"
    return "it had not started"


def _explain_slurm_pending(view: PackView, member: MemberView, facts: Facts) -> str:
    if not view.job_id:
        return "its submission is not complete: Slurm has not answered yet"
    text = facts.fields.get("Reason", "") if view.slurm is None else view.slurm.reason
    reason = find_reason(text)
    if reason is not None and reason.needs_release:
        return f"{describe_reason(text)}; csub release {view.shown_id} lets it try again"
    word = text.split(",")[0]
    start = read_start(facts.fields)
    if word == "BeginTime":
        return f"may begin {start}" if start else describe_reason(text)
    if word == "Resources":
        needs = describe_request(facts.fields)
        said = f"waits for {needs} to become free (Resources)" if needs else describe_reason(text)
    elif word == "Dependency" and member.dependency:
        # Slurm waits for the pack of a member, see model.job_values.
        said = f"waits for {member.dependency} (Dependency)"
    elif word == "Dependency" and facts.fields.get("Dependency", "") not in _UNKNOWN:
        said = f"waits for {facts.fields['Dependency']} (Dependency)"
    elif word == HELD:
        return f"held; csub release {view.shown_id} lets it go on"
    else:
        said = describe_reason(text)
    if start:
        return f"{said}; Slurm expects to start it {start}"
    waits = reason is not None and word in ("Resources", "Priority")
    return f"{said}; Slurm has not planned its start yet" if waits else said


def _explain_in_pack(view: PackView, member: MemberView, facts: Facts) -> str:
    start = gather_start_facts(view, member, facts)
    why = why_not_now(start)
    if start.too_late:
        # However many places become free.
        return "; ".join(filter(None, (why, describe_limit(facts.degree))))
    if why is None:
        why = "its pack has a free place: it is about to start"
        if start.has_run:
            why = "it starts as soon as its pack has a place for it"
    cause = member.record.reason if start.has_run and member.record is not None else ""
    return f"to be started again ({cause}): {why}" if cause else why


def gather_start_facts(view: PackView, member: MemberView, facts: Facts) -> StartFacts:
    """What decides whether a waiting member starts, as its runner has written it down."""
    running = [m for m in view.members if m.state is MemberState.RUNNING]
    waiting = [
        m for m in view.members if m.state is MemberState.PENDING and not m.is_held and m != member
    ]
    record = member.record
    obstacles = [m.record.waits for m in (member, *waiting) if m.record and m.record.waits]
    own = None if record is None else record.waits
    is_preparing = facts.is_gpu_unprepared and not running
    return StartFacts(
        is_held=member.is_held,
        dependency=member.dependency if member.is_held else "",
        is_moved=member.moved_to is not None,
        too_late=own if own is not None and own.kind is WaitKind.TIME else None,
        alone=record is not None and record.retries.alone,
        has_run=record is not None and record.starts > 0,
        before=tuple(str(m.member) for m in waiting if m.place < member.place),
        # Those that are paused among them.
        degree=view.record.degree if facts.degree is None else facts.degree.places,
        takes_one=facts.takes_one,
        running=tuple(
            RunningMember(
                str(m.member),
                m.record is not None and m.record.retries.alone,
                compute_left_s(view, m, facts.now),
            )
            for m in running
        ),
        pack_waits=WaitReason(WaitKind.PREPARING) if is_preparing else None,
        no_place=next((each for each in obstacles if each.kind is WaitKind.PLACE), None),
        degree_reason=next((each for each in obstacles if each.kind in OF_GPU), None)
        or explain_kept_waiting(
            facts.degree, sum(not (m.record is not None and m.record.at_door) for m in running)
        ),
    )


def _explain_running(view: PackView, member: MemberView, facts: Facts) -> str:
    record = member.record
    if record is None or record.started_at is None:
        return "its Slurm job is running; the node reports nothing else"
    text = f"on {format_where(member)} since {format_moment(record.started_at, facts.now)}"
    if view.slurm_state is SlurmJobState.SUSPENDED:
        text += ", suspended by Slurm"
    others = [m for m in view.members if m.state is MemberState.RUNNING and m != member]
    parked = [m for m in others if m.is_parked]
    loading = [m for m in others if m.record is not None and m.record.at_door]
    told = f"{_tell_others(parked, 'parked')}{_tell_others(loading, 'at the door')}"
    end = f"{told}{_format_end(view, member, facts)}"
    if record.at_door:
        return f"{text}, {member.reason or 'it loads its program'}{end}"
    if member.is_parked and (moved := describe_moved(member, facts.degree)):
        return f"{text}, {moved}{end}"
    if member.is_parked:
        return f"{text}, parked: its processes are paused until a place is free for it{end}"
    kept = describe_moved(member, facts.degree)
    text = ", ".join(filter(None, (text, kept, describe_cores(member, facts.degree))))
    partners = [m for m in others if not m.is_parked and m not in loading]
    if not partners and not parked and not loading:
        return f"{text}, alone in its pack{end}"
    if not partners:
        return f"{text}, the only running member of its pack{end}"
    names = _join(
        [
            f"{m.member} (since {format_moment(m.record.started_at, facts.now)})"
            for m in partners
            if m.record is not None and m.record.started_at is not None
        ]
    )
    if len(partners) > _PARTNERS_NAMED_MOST:
        names = f"{len(partners)} others of its pack"
    how = _SHARING.get(view.mode_of(member), "in one allocation")
    if record.gpu is not None and record.gpu.shown_mode != record.gpu.mode:
        how += ", as it does not reach the pack's MPS daemon: no limit of GPU memory binds it"
    pace = describe_pace(view, member, facts.latest, facts.degree, facts.now)
    told = ", ".join(filter(None, (f"{text}, sharing with {names} {how}", pace)))
    return f"{told}{_tell_limit(record, partners)}{end}"


def _tell_limit(record: StateRecord, partners: Sequence[MemberView]) -> str:
    """What others that came later have changed for a member that began alone; empty for nothing."""
    use, since = record.gpu, record.started_at or 0.0
    if use is None or use.gpu_memory_limit_mb is not None or not use.is_under_mps:
        return ""
    for other in (partner.record for partner in partners):
        is_limited = other and other.gpu and other.gpu.gpu_memory_limit_mb
        if not other or not is_limited or (other.started_at or 0.0) <= since:
            return ""
    return "; it began alone and has no limit of GPU memory, those that came later have theirs"


def _tell_others(others: Sequence[MemberView], what: str) -> str:
    if not others:
        return ""
    verb = "is" if len(others) == 1 else "are"
    return f"; {_join([str(m.member) for m in others])} {verb} {what}"


def _format_end(view: PackView, member: MemberView, facts: Facts) -> str:
    left = compute_left_s(view, member, facts.now)
    return "" if left is None else f"; at most {format_elapsed(max(0, left))} left"


def _explain_ended(view: PackView, member: MemberView, facts: Facts) -> str:
    record = member.record
    if member.state is MemberState.REQUEUED:
        again = f"it never started and was submitted again as {facts.moved or 'another member'}"
        return "; ".join(filter(None, (again, describe_limit(facts.degree))))
    reason = member.reason
    code = record.exit_code if record else None
    if code is not None and (code.code or code.signal):
        shown = f"signal {code.signal}" if code.signal else f"exit code {code.code}"
        if shown not in reason:
            reason = f"{reason}, {shown}" if reason else shown
    cause = view.cause_of(member)
    if member.state is MemberState.FAILED and cause not in _PLAIN:
        reason = f"{cause}: {reason}" if reason else cause
    parts = [reason] if reason else []
    if facts.last_line:
        parts.append(f"the last line of its output: {facts.last_line}")
    if record is not None and record.started_at is not None:
        elapsed = compute_elapsed_s(member, facts.now)
        where = f"ran on {format_where(member)}"
        if elapsed is not None:
            last = " in its last start" if record.starts > 1 else ""
            where += f" for {format_elapsed(elapsed)}{last}"
        parts.append(where)
    else:
        parts.append("it never started")
    if record is not None and record.ended_at is not None:
        parts.append(f"ended {format_moment(record.ended_at, facts.now)}")
    if record is not None and record.starts > 1:
        parts.append(f"started {record.starts} times")
    return "; ".join(filter(None, (*parts, describe_limit(facts.degree))))


def describe_request(fields: Mapping[str, str]) -> str:
    """What a job asks for: `4 CPUs, 16000M host memory and gpu:1 on a node of partition gpu`."""
    tres = fields.get("ReqTRES") or fields.get("TRES", "")
    asked = dict(part.split("=", 1) for part in tres.split(",") if "=" in part)
    parts = []
    if cpus := fields.get("NumCPUs", asked.get("cpu", "")).split("-")[0]:
        parts.append(f"{cpus} CPU{'s' * (cpus != '1')}")
    if memory := asked.get("mem"):
        parts.append(f"{memory} host memory")
    gres = fields.get("TresPerNode") or fields.get("TresPerJob") or ""
    if gres not in _UNKNOWN:
        parts.append(gres.removeprefix("gres:").removeprefix("gres/"))
    partition = fields.get("Partition", "")
    where = f" on a node of partition {partition}" if partition else ""
    if (named := fields.get("ReqNodeList", "")) not in _UNKNOWN:
        where = f" on {named}, which --nodelist names"
    if (left_out := fields.get("ExcNodeList", "")) not in _UNKNOWN:
        where += f", without {left_out} (--exclude)"
    if (features := fields.get("Features", "")) not in _UNKNOWN:
        where += f" with {features} (--constraint)"
    return f"{_join(parts)}{where}" if parts else ""


def read_start(fields: Mapping[str, str]) -> str:
    """When Slurm expects to start a pending job, or lets it begin; empty where it does not say."""
    text = fields.get("StartTime", "")
    return "" if text in _UNKNOWN else f"at {text.replace('T', ' ')}"


def format_moment(moment: float, now: float) -> str:
    """`10:01:07`, with the date where it was another day."""
    then = time.localtime(moment)
    same_day = time.strftime("%F", then) == time.strftime("%F", time.localtime(now))
    return time.strftime("%H:%M:%S" if same_day else "%F %H:%M:%S", then)


def _join(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
