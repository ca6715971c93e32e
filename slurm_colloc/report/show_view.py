"""`csub show`: everything about a member or a submission, for people.

Also: the GPUs of a job with several: a line for each, named as nvidia-smi does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.rates import sum_known
from slurm_colloc.model.job import ShareRequest, format_parameters
from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.job_values import PatternValues, choose_output_paths, expand_pattern
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import PackRequest, SharingMode
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.quantities import (
    format_count,
    format_elapsed,
    format_mb,
    format_moment,
)
from slurm_colloc.ownership import name_user
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.queue_rows import format_elapsed_of, format_where
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    format_figure,
    format_mb_figure,
    format_share,
)
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import read_bytes
from slurm_colloc.store.member_states import GpuUse
from slurm_colloc.store.pack_directory import Setup, read_setup
from slurm_colloc.store.runner_requests import read_degree
from slurm_colloc.store.written_ends import list_kills

if TYPE_CHECKING:
    from slurm_colloc.report.summary_file import Summary, SummaryGpu
    from slurm_colloc.store.pack_directory import PackRecord

    _Row = tuple[Summary, SummaryGpu]
    _GpuColumn = tuple[Column, Callable[[_Row], str], Callable[[Sequence[_Row]], str], bool]


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
        f"  Runner:   {kill.how} at {format_moment(kill.at)}; {kill.outcome}"
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
    return [f"  Open:     for {format_count(left, 'more job')}"]


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
        whose = "a daemon of this pack's own"
        if setup.by != "runner":
            whose = f"the node's own daemon ({setup.by})"
        lines.append(f"  MPS:      {whose}: {', '.join(told)}")
    if setup.instances:
        lines.append(f"  MIG:      {'+'.join(one.profile for one in setup.instances)}")
        seated = _find_seated(view)
        lines += [
            f"            {one.profile} {one.uuid} ({one.memory_mb} MB, {one.sms} SMs): "
            f"{seated.get(one.uuid, 'free')}{_tell_places(one.places)}"
            for one in setup.instances
        ]
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
            from slurm_colloc.report.speed_words import describe_cost, describe_degree

            is_over = all(member.is_final for member in view.members)
            at_once = sum(member.state is MemberState.RUNNING for member in view.members)
            if is_over:
                started = sum(bool(m.record and m.record.starts) for m in view.members)
                at_once = min(started, degree.places)
            told = describe_degree(degree, at_once, is_over=is_over)
            said = (told, describe_cost(degree.cost_s, None))
            return ["; ".join(filter(None, said))] if any(said) else []
    return []


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
        ("Started", format_moment(record.started_at) if record and record.started_at else ""),
        ("Ended", format_moment(record.ended_at) if record and record.ended_at else ""),
        ("Elapsed", format_elapsed_of(member, now)),
        ("On the GPU", _render_gpu_use(record.gpu if record else None)),
        ("End", view.cause_of(member)),
        *(("Evidence", line) for line in (record.evidence if record else ())),
        ("Wall limit", format_elapsed(plan.wall_limit_s) if plan.wall_limit_s else "the pack's"),
        ("Starts", str(record.starts) if record else "0"),
        ("Step", (record.step or "plain process") if record and record.started_at else ""),
    ]
    address = f" ({member.member.address})" if member.member.joined_as else ""
    lines = [f"Member {member.member}{address}"]
    lines += [f"  {name + ':':<12} {value}" for name, value in fields if value]
    lines += [view.pack_name, *_render_pack_fields(view, state)]
    return _join(lines)


def _render_cpus(member: MemberView) -> str:
    count = member.spec.plan.cpus
    cpus = member.record.cpus if member.record else ()
    return f"{count} (bound to {','.join(map(str, cpus))})" if cpus else f"{count}"


def read_fallbacks(state: StateReader, view: PackView) -> list[str]:
    """What the runner had to do otherwise than planned, from its log for people."""
    notes = [
        told.format_map(defaultdict(lambda: None, event))
        for event in read_events(state.pack_path(view.record.pack_id))
        if (told := _FALLBACKS.get(str(event.get("event"))))
    ]
    return list(dict.fromkeys(notes))


_FALLBACKS = {
    "not_bound": "{reason}",
    "mail_failed": "a mail to {to} was not sent: {reason}",
    "settings": "not used on the node: {problem}",
    "no_places": "member {member} shares /tmp with its neighbours: {reason}",
    "fallback": "members run as plain processes instead of job steps: {reason}",
}


def read_events(pack: Path, having: bytes = b"") -> Iterator[dict[str, Any]]:
    """What a pack's runner has written into its log for people; nothing where that is not there.

    Args:
        pack: Its directory.
        having: Lines without these bytes are passed over.
    """
    try:
        # What lies there may be another user's, and no file at all.
        lines = read_bytes(pack / "events.jsonl", _LOG_BYTES_MOST).splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            event = json.loads(line) if having in line else None
            if isinstance(event, dict):
                yield event


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
    # A job alone has its file from Slurm, which knows no submission.
    job_id = (view.own_id if is_own and member.spec.names_alone else member.member.job) or "%j"
    # Slurm writes the output of a pack of one.
    is_lone = view.record.request is None and not view.record.chain
    return PatternValues(
        job_id=job_id if is_lone else member.spec.name_files_after(job_id),
        own_id=job_id if is_lone else job.own_id or job_id,
        is_alone_in_it=job.is_alone_in_its_id,
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


# ---- The GPUs of a job with several: a line for each, named as nvidia-smi does; pure -------------

SHORT_UUID = len("GPU-12345678")
_MIB_PER_MB = 1.048576
_MEMBERS_WIDTH = 24
_EVEN = 0.05
"""GPUs whose activity differs by less, of 1, are called even."""


def name_gpu(uuid: str, index: int | None) -> str:
    """`GPU 0 (GPU-1b2c3d4e)`: by nvidia-smi's index on the node and the beginning of the UUID.

    Args:
        uuid: The GPU's, or a MIG instance's.
        index: nvidia-smi's; None where it is not known.
    """
    short = uuid[:SHORT_UUID]
    return short if index is None else f"GPU {index} ({short})"


def find_gpu(view: PackView, uuid: str) -> str:
    """`node1:1`: the node and Slurm's index of a GPU of a pack; empty where its members do not say.

    What NVML calls it inside a job may be 0 for each, as the job sees no other.
    """
    for member in view.members:
        record = member.record
        if record is None or record.node is None or record.gpu is None:
            continue
        if uuid in record.gpu.uuids and len(record.gpus) == len(record.gpu.uuids):
            return f"{record.node}:{record.gpus[record.gpu.uuids.index(uuid)]}"
    return ""


def tell_gpu_set(record: PackRecord) -> str:
    """`, GPU set 2 of 8`; empty where its job has one set."""
    count = len(record.gpu_sets)
    return f", GPU set {record.gpu_set + 1} of {count}" if count > 1 else ""


def list_gpus(summaries: Sequence[Summary]) -> list[_Row]:
    """The GPUs of some packs, each with its pack's summary, in the order of nodes and indices."""
    found = [(summary, gpu) for summary in summaries for gpu in summary["gpus"]]
    return sorted(
        found,
        key=lambda row: (
            row[0]["node"] or "",
            row[1]["index"] is None,
            row[1]["index"] or 0,
            row[1]["uuid"],
        ),
    )


def has_several(summaries: Sequence[Summary]) -> bool:
    """Whether a Slurm job of theirs has more than one GPU."""
    by_job: dict[str, set[str]] = {}
    for summary, gpu in list_gpus(summaries):
        by_job.setdefault(summary["job"] or summary["pack_id"], set()).add(gpu["uuid"])
    return any(len(uuids) > 1 for uuids in by_job.values())


def build_gpu_rows(summaries: Sequence[Summary]) -> tuple[list[Column], list[tuple[str, ...]]]:
    """A line for each GPU, and one for all.

    Args:
        summaries: The packs of a submission that has jobs of several GPUs.
    """
    rows = list_gpus(summaries)
    several_nodes = len({summary["node"] for summary, _ in rows}) > 1
    columns: list[_GpuColumn] = [
        (
            Column("NODE", is_number=False),
            lambda row: str(row[0]["node"] or UNKNOWN),
            lambda _: "",
            several_nodes,
        ),
        (
            Column("GPU", is_number=False),
            lambda row: name_gpu(row[1]["uuid"], row[1]["index"]),
            lambda all_rows: f"all {len(all_rows)}",
            True,
        ),
        (Column("MEMBERS", is_number=False, gives_way=True), _name_members, _count_members, True),
        (
            Column("AT\nMOST"),
            lambda row: str(row[0]["pack"]["members_most"]),
            lambda all_rows: str(sum(one["pack"]["members_most"] for one in _list_packs(all_rows))),
            True,
        ),
        (
            Column("DEGREE"),
            lambda row: _read_degree(row[0]) or UNKNOWN,
            lambda _: "",
            any(_read_degree(summary) for summary, _ in rows),
        ),
        _show_mean("BUSY", _read_busy),
        _show_mean("SM", lambda gpu: _read(gpu, "sm_active")),
        _show_mean("DRAM", lambda gpu: _read(gpu, "dram_active")),
        (
            Column("GPU_MEM\nmost"),
            lambda row: format_mb_figure(_read(row[1], "gpu_memory_mb", "max")),
            lambda _: "",
            True,
        ),
        _show_traffic("NVLINK", "nvlink"),
        _show_traffic("PCIE", "pcie"),
    ]
    kept = [column for column in columns if column[3]]
    lines = [tuple(write(row) for _, write, _, _ in kept) for row in rows]
    lines.append(tuple(write(rows) for _, _, write, _ in kept))
    return [column for column, *_ in kept], lines


def tell_balance(summaries: Sequence[Summary]) -> str:
    """How evenly the GPUs were used; empty where that is not known of all of them."""
    gpus = [gpu for _, gpu in list_gpus(summaries)]
    found = find_extremes(gpus)
    if found is None:
        return ""
    metric, *extremes = found
    word = "SM activity" if metric == "sm_active" else metric
    (least, low), (most, high) = (
        (mean, name_gpu(gpu["uuid"], gpu["index"])) for mean, gpu in extremes
    )
    if most - least < _EVEN:
        return f"{word} of all {len(gpus)} GPUs is {format_share(least)}, or nearly"
    return f"{word} goes from {format_share(least)} on {low} to {format_share(most)} on {high}"


def find_extremes(
    gpus: Sequence[SummaryGpu],
) -> tuple[str, tuple[float, SummaryGpu], tuple[float, SummaryGpu]] | None:
    """What tells how busy all of some GPUs were, and the means of the least and the most busy.

    None where nothing tells it of all of them.
    """
    for metric in ("sm_active", "utilization"):
        means = [(mean, gpu) for gpu in gpus if (mean := _read(gpu, metric)) is not None]
        if means and len(means) == len(gpus):
            least, most = (choose(means, key=lambda pair: pair[0]) for choose in (min, max))
            return metric, least, most
    return None


def format_traffic(mib_s: float | None) -> str:
    """`812 MB/s`, `12.1 GB/s`; `unknown` for None."""
    if mib_s is None:
        return UNKNOWN
    mb_s = mib_s * _MIB_PER_MB
    return f"{mb_s:.0f} MB/s" if mb_s < 1000 else f"{format_figure(mb_s / 1000)} GB/s"


def _read(gpu: SummaryGpu, metric: str, of: Literal["mean", "max"] = "mean") -> float | None:
    spread = gpu["use"].get(metric)
    return None if spread is None else spread[of]


def _read_busy(gpu: SummaryGpu) -> float | None:
    """The share of the time in which something ran on it."""
    engine = _read(gpu, "engine_active")
    return _read(gpu, "utilization") if engine is None else engine


def _read_traffic(gpu: SummaryGpu, link: str) -> float | None:
    """What went over a link in both directions together."""
    return sum_known(_read(gpu, f"{link}_{way}_mib_s") for way in ("tx", "rx"))


def _show_mean(title: str, read: Callable[[SummaryGpu], float | None]) -> _GpuColumn:
    def write_all(rows: Sequence[_Row]) -> str:
        total = sum_known(read(gpu) for _, gpu in rows)
        return format_share(None if total is None else total / len(rows))

    return Column(title), lambda row: format_share(read(row[1])), write_all, True


def _show_traffic(title: str, link: str) -> _GpuColumn:
    return (
        Column(title),
        lambda row: format_traffic(_read_traffic(row[1], link)),
        lambda rows: format_traffic(sum_known(_read_traffic(gpu, link) for _, gpu in rows)),
        True,
    )


def _name_members(row: _Row) -> str:
    summary, gpu = row
    ids = {member["member"]: member["id"] for member in summary["members"]}
    names = [ids[number] for number in gpu["members"] if number in ids]
    told = name_members(names) if names else "none"
    return told if len(told) <= _MEMBERS_WIDTH else f"{len(names)} members"


def _count_members(rows: Sequence[_Row]) -> str:
    ran = [
        member
        for summary in _list_packs(rows)
        for member in summary["members"]
        if member["started_at"] is not None
    ]
    return format_count(len(ran), "member")


def _list_packs(rows: Sequence[_Row]) -> list[Summary]:
    return list({summary["pack_id"]: summary for summary, _ in rows}.values())


def _read_degree(summary: Summary) -> str:
    """How many were best, by what its runner has measured; empty where it has not."""
    return str(summary["degree"]["degree"] or "") if summary["degree"] else ""
