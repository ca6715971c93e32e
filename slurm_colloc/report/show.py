"""`csub show`: everything about a member or a submission, for people."""

from __future__ import annotations

import json
import shlex
import time

from slurm_colloc.model.quantities import format_elapsed, format_mb
from slurm_colloc.report.logs import find_log_paths
from slurm_colloc.report.queue import compute_elapsed_s, format_where
from slurm_colloc.report.survey import MemberView, PackView
from slurm_colloc.store.packs import State


def render_pack(view: PackView, state: State, now: float) -> str:
    """A pack and its members, a line each."""
    record = view.record
    lines = [
        f"Pack {view.job_id or '(not known to Slurm yet)'}  {record.name}",
        *_render_pack_fields(view, state),
        "  Members:",
    ]
    for member in view.members:
        code = member.record.exit_code if member.record else None
        lines.append(
            f"    {member.member}  {member.spec.job.name}  {member.state.value}"
            f"{f'  exit {code}' if code is not None else ''}"
            f"{f'  ({member.reason})' if member.reason else ''}"
            f"  {format_elapsed(compute_elapsed_s(member, now))}"
        )
    return "\n".join(lines) + "\n"


def _render_pack_fields(view: PackView, state: State) -> list[str]:
    record = view.record
    slurm_state = view.slurm_state.value if view.slurm_state else ""
    lines = [
        *([f"  Slurm:    {slurm_state}"] if slurm_state and not record.local else []),
        f"  Sharing:  {record.mode.value}, {record.degree} at the same time",
        *(f"  Why:      {reason}" for reason in record.reasons),
    ]
    if record.slurm_options:
        lines.append(f"  Request:  {shlex.join(record.slurm_options)}")
    lines += [f"  Fallback: {note}" for note in read_fallbacks(state, view)]
    lines.append(f"  State:    {state.pack_path(record.pack_id)}")
    return lines


def render_member(view: PackView, member: MemberView, state: State, now: float) -> str:
    """One member, a field a line."""
    job, plan, record = member.spec.job, member.spec.plan, member.record
    out, err = find_log_paths(view, member)
    fields: list[tuple[str, str]] = [
        ("Name", job.name),
        ("State", f"{member.state.value}{f' ({member.reason})' if member.reason else ''}"),
        ("Exit code", str(record.exit_code) if record and record.exit_code else ""),
        ("Command", shlex.join([job.script_name, *job.arguments])),
        ("Directory", job.directory),
        ("Output", out),
        ("Error", err or ""),
        ("Node:GPU", format_where(member)),
        ("CPUs", _render_cpus(member)),
        ("Host memory", format_mb(plan.host_memory_mb) if plan.host_memory_mb else "the pack's"),
        ("Started", _render_time(record.started_at if record else None)),
        ("Ended", _render_time(record.ended_at if record else None)),
        ("Elapsed", format_elapsed(compute_elapsed_s(member, now))),
        ("Wall limit", format_elapsed(plan.wall_limit_s) if plan.wall_limit_s else "the pack's"),
        ("Starts", str(record.starts) if record else "0"),
        ("Step", (record.step or "plain process") if record and record.started_at else ""),
    ]
    lines = [f"Member {member.member}"]
    lines += [f"  {name + ':':<12} {value}" for name, value in fields if value]
    lines += [f"Pack {view.job_id}", *_render_pack_fields(view, state)]
    return "\n".join(lines) + "\n"


def _render_cpus(member: MemberView) -> str:
    count = member.spec.plan.cpus
    cpus = member.record.cpus if member.record else ()
    return f"{count} (bound to {','.join(map(str, cpus))})" if cpus else f"{count}"


def _render_time(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def read_fallbacks(state: State, view: PackView) -> list[str]:
    """What the runner had to do otherwise than planned, from its log for people."""
    path = state.pack_path(view.record.pack_id) / "events.jsonl"
    notes: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return notes
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "not_bound":
            notes.append(str(event.get("reason")))
        elif event.get("event") == "fallback":
            notes.append(
                f"members run as plain processes instead of job steps: {event.get('reason')}"
            )
    return list(dict.fromkeys(notes))
