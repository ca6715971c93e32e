"""`csub show`: everything about a member or a submission, for people."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.parameters import format_parameters
from slurm_colloc.model.plan import PackRequest, SharingMode
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.sbatch.output_patterns import (
    PatternValues,
    choose_output_paths,
    expand_pattern,
)
from slurm_colloc.model.sbatch.quantities import format_elapsed, format_mb
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.ownership import name_user
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.report.queue_rows import format_elapsed_of, format_where
from slurm_colloc.report.words.degree_words import describe_cost, describe_degree
from slurm_colloc.store.atomic_files import read_bytes
from slurm_colloc.store.pack.degree_record import read_degree
from slurm_colloc.store.pack.member_states import GpuUse
from slurm_colloc.store.pack.node_setup import Setup, read_setup
from slurm_colloc.store.pack.runner_kills import list_kills
from slurm_colloc.store.pack_reading import StateReader

_LOG_BYTES_MOST = 256 << 20


def render_pack(view: PackView, state: StateReader, now: float) -> str:
    """A pack and its members, a line each."""
    record = view.record
    lines = [
        f"{view.pack_name}  {record.name}",
        *_render_pack_fields(view, state),
        "  Members:",
    ]
    for member in view.members:
        code = member.record.exit_code if member.record else None
        lines.append(
            f"    {member.member}  {member.spec.job.name}  {member.state.value}"
            f"{f'  exit {code}' if code is not None else ''}"
            f"{f'  ({member.reason})' if member.reason else ''}"
            f"  {format_elapsed_of(member, now)}"
        )
    return _join(lines)


def _join(lines: Iterable[str]) -> str:
    """The text of some lines, each of which stays one."""
    return "".join(f"{escape_controls(line)}\n" for line in lines)


def _render_pack_fields(view: PackView, state: StateReader) -> list[str]:
    record = view.record
    slurm_state = view.slurm_state.value if view.slurm_state else ""
    job = f", job {view.job_id}" if record.number_of is not None else ""
    lines = [
        *([f"  Slurm:    {slurm_state}{job}"] if slurm_state and not record.local else []),
        *([f"  Part of:  {record.shown_id}"] if record.shown_id else []),
        *_render_sharing(view, read_setup(state.pack_path(record.pack_id))),
        *(f"  Degree:   {said}" for said in _list_degree(view, state)),
        *_render_open(view),
        *(f"  Why:      {reason}" for reason in record.reasons),
    ]
    if record.slurm_options:
        lines.append(f"  Request:  {shlex.join(record.slurm_options)}")
    if record.request is not None and any(member.spec.joined for member in view.members):
        lines.append(f"  Grown to: {_render_request(record.request)}")
    lines += [
        f"  Runner:   {kill.how} at {_render_time(kill.at)}; {kill.outcome}"
        for kill in list_kills(state.pack_path(record.pack_id))
    ]
    lines += [f"  Fallback: {note}" for note in read_fallbacks(state, view)]
    lines.append(f"  State:    {state.pack_path(record.pack_id)}")
    return lines


def _render_open(view: PackView) -> list[str]:
    """How many more jobs a pack that was opened for others has places for."""
    left = view.record.degree - sum(not member.is_final for member in view.members)
    if not view.record.open_for or view.record.closed or left < 1:
        return []
    if all(member.is_final for member in view.members):
        return []
    return [f"  Open:     for {left} more job{'' if left == 1 else 's'}"]


def _render_sharing(view: PackView, setup: Setup | None) -> list[str]:
    """How the GPU is shared: what was asked for, what there really is, and why."""
    record = view.record
    degree = f"{record.degree} at the same time"
    if setup is None or setup.attempt != view.attempt:
        mode = ShareRequest.parse(record.share).describe_mode(record.mode)
        return [f"  Sharing:  {mode}, {degree}"]
    if not setup.mode:
        return [f"  Sharing:  none ({setup.reason or 'the GPU is being prepared'})"]
    lines = [f"  Sharing:  {setup.mode}, {degree} ({setup.reason})"]
    if setup.mode == SharingMode.MPS.value:
        moments = [("control socket", setup.control_ms), ("server", setup.active_ms)]
        told = [f"{name} after {ms:.0f} ms" for name, ms in moments if ms is not None]
        if setup.stop_ms is not None:
            told.append(f"stopped in {setup.stop_ms:.0f} ms")
        if setup.restarts:
            times = "once" if setup.restarts == 1 else f"{setup.restarts} times"
            told.append(f"started again {times}")
        lines.append(f"  MPS:      {_describe_daemon(setup.by)}: {', '.join(told)}")
    if setup.instances:
        lines.append(f"  MIG:      {'+'.join(one.profile for one in setup.instances)}")
        seated = _find_seated(view)
        lines += [
            f"            {one.profile} {one.uuid} ({one.memory_mb} MB, {one.sms} SMs): "
            f"{seated.get(one.uuid, 'free')}{_tell_places(one.places)}"
            for one in setup.instances
        ]
        if setup.can_change:
            lines.append("            divided again if a waiting member needs a larger one")
    if setup.gpus and setup.gpu_name:
        lines.append(f"  GPU:      {setup.gpu_name} {', '.join(setup.gpus)}")
    lines += [f"  Note:     {note}" for note in setup.notes]
    return lines


def _find_seated(view: PackView) -> dict[str, str]:
    """Which members have which MIG instance, by the UUID of that; where none is left, the last."""
    found: dict[str, list[str]] = {}
    ended: dict[str, str] = {}
    for member in view.members:
        use = member.record.gpu if member.record else None
        if use is None or not use.instance:
            continue
        if member.record is not None and member.record.is_final:
            ended[use.uuids[0]] = f"{member.member} (ended)"
        else:
            found.setdefault(use.uuids[0], []).append(str(member.member))
    return ended | {uuid: ", ".join(names) for uuid, names in found.items()}


def _tell_places(places: int) -> str:
    return f" (MPS inside, for {places})" if places > 1 else ""


def _list_degree(view: PackView, state: StateReader) -> list[str]:
    """What its runner has measured of how many run at once, and what that has cost."""
    with contextlib.suppress(StateError):
        degree = read_degree(state.pack_path(view.record.pack_id), view.attempt)
        if degree is not None:
            is_over = all(member.is_final for member in view.members)
            at_once = sum(member.state is MemberState.RUNNING for member in view.members)
            if is_over:
                started = sum(bool(m.record and m.record.starts) for m in view.members)
                at_once = min(started, degree.places)
            told = describe_degree(degree, at_once, is_over=is_over)
            said = (told, describe_cost(degree.cost_s, None))
            return ["; ".join(filter(None, said))] if any(said) else []
    return []


def _describe_daemon(by: str) -> str:
    """Whose daemon it is."""
    if by == "runner":
        return "a daemon of this pack's own"
    return f"the node's own daemon ({by})"


def _render_gpu_use(use: GpuUse | None) -> str:
    if use is None:
        return ""
    parts = [use.mode]
    if use.instance:
        of_mb = f", {format_mb(use.gpu_memory_limit_mb)}" if use.gpu_memory_limit_mb else ""
        if use.inside:
            of_mb += f", shared by {use.inside}, threads at most {use.thread_percentage} %"
        return f"{use.mode}, {use.instance} {', '.join(use.uuids)}{of_mb}"
    if use.thread_percentage is not None:
        parts.append(f"threads at most {use.thread_percentage} %")
    if use.gpu_memory_limit_mb is not None:
        parts.append(f"GPU memory at most {format_mb(use.gpu_memory_limit_mb)}")
    if use.mode == SharingMode.MPS.value:
        parts.append(_CLIENT[use.is_mps_client])
    return ", ".join(parts)


_CLIENT = {
    True: "a client of the MPS server",
    False: "used without MPS: none of these limits binds it",
    None: "not seen to use it",
}


def _render_request(request: PackRequest) -> str:
    parts = [f"{request.cpus} CPUs"]
    if request.host_memory_mb is not None:
        parts.append(f"{format_mb(request.host_memory_mb)} host memory")
    if request.time_limit_s is not None:
        parts.append(f"time limit {format_elapsed(request.time_limit_s)}")
    elif request.is_unlimited:
        parts.append("no time limit")
    return ", ".join(parts)


def render_member(view: PackView, member: MemberView, state: StateReader, now: float) -> str:
    """One member, a field a line."""
    job, plan, record = member.spec.job, member.spec.plan, member.record
    out, err = find_log_paths(view, member)
    fields: list[tuple[str, str]] = [
        ("Name", job.name),
        ("State", f"{member.state.value}{f' ({member.reason})' if member.reason else ''}"),
        ("Exit code", str(record.exit_code) if record and record.exit_code else ""),
        ("Command", shlex.join([job.script_name, *job.arguments])),
        ("Parameters", format_parameters(job.parameters)),
        ("Retry of", job.retry_of),
        ("Snapshot", job.snapshot),
        ("Directory", job.directory),
        ("Output", out),
        ("Error", err or ""),
        ("Node:GPU", format_where(member)),
        ("CPUs", _render_cpus(member)),
        ("Host memory", format_mb(plan.host_memory_mb) if plan.host_memory_mb else "the pack's"),
        ("Started", _render_time(record.started_at if record else None)),
        ("Ended", _render_time(record.ended_at if record else None)),
        ("Elapsed", format_elapsed_of(member, now)),
        ("On the GPU", _render_gpu_use(record.gpu if record else None)),
        ("End", view.cause_of(member)),
        *(("Evidence", line) for line in (record.evidence if record else ())),
        ("Wall limit", format_elapsed(plan.wall_limit_s) if plan.wall_limit_s else "the pack's"),
        ("Starts", str(record.starts) if record else "0"),
        ("Step", (record.step or "plain process") if record and record.started_at else ""),
    ]
    lines = [f"Member {member.member}"]
    lines += [f"  {name + ':':<12} {value}" for name, value in fields if value]
    lines += [view.pack_name, *_render_pack_fields(view, state)]
    return _join(lines)


def _render_cpus(member: MemberView) -> str:
    count = member.spec.plan.cpus
    cpus = member.record.cpus if member.record else ()
    return f"{count} (bound to {','.join(map(str, cpus))})" if cpus else f"{count}"


def _render_time(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def read_fallbacks(state: StateReader, view: PackView) -> list[str]:
    """What the runner had to do otherwise than planned, from its log for people."""
    path = state.pack_path(view.record.pack_id) / "events.jsonl"
    notes: list[str] = []
    try:
        # What lies there may be another user's, and no file at all.
        lines = read_bytes(path, _LOG_BYTES_MOST).decode("utf-8", "replace").splitlines()
    except OSError:
        return notes
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "not_bound":
            notes.append(str(event.get("reason")))
        elif event.get("event") == "mail_failed":
            notes.append(f"a mail to {event.get('to')} was not sent: {event.get('reason')}")
        elif event.get("event") == "settings":
            notes.append(f"not used on the node: {event.get('problem')}")
        elif event.get("event") == "fallback":
            notes.append(
                f"members run as plain processes instead of job steps: {event.get('reason')}"
            )
    return list(dict.fromkeys(notes))


def find_log_paths(view: PackView, member: MemberView) -> tuple[str, str | None]:
    """The member's output and error file; the second is None where both go to one.

    A `%N` in a pattern stays as it is until the member has started.
    """
    job = member.spec.job
    values = _choose_pattern_values(view, member)
    out, err = choose_output_paths(job.output, job.error, values, alone=member.spec.names_alone)
    directory = Path(job.directory)
    return str(directory / out), None if err is None else str(directory / err)


def find_input_path(view: PackView, member: MemberView) -> str | None:
    """The file that the member's script reads; None for none."""
    job = member.spec.job
    if job.input is None:
        return None
    return str(
        Path(job.directory) / expand_pattern(job.input, _choose_pattern_values(view, member))
    )


def _choose_pattern_values(view: PackView, member: MemberView) -> PatternValues:
    job = member.spec.job
    node = member.record.node if member.record and member.record.node else "%N"
    is_own = member.member.job == (view.shown_id or "?")
    return PatternValues(
        # A job alone has its file from Slurm, which knows no submission.
        job_id=(view.own_id if is_own and member.spec.names_alone else member.member.job) or "%j",
        number=member.member.number,
        is_array=job.array_task is not None,
        name=job.name,
        node=node.partition(".")[0],
        user=_name_owner(member),
    )


def _name_owner(member: MemberView) -> str:
    """The user whose job it is: another's may be looked at, too."""
    try:
        uid = os.stat(member.files.path).st_uid  # noqa: PTH116
    except OSError:
        uid = os.getuid()
    return name_user(uid)
