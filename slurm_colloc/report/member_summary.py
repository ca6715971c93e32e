"""A member's part of summary.json; docs/json.md describes the fields.

Also: the results of members, such as their loss: printed, reported by Python, or logged to a
tracker.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.presence import AttributedPart, Attribution, Interference, list_windows
from slurm_colloc.metrics.rates import measure_windows, sum_known
from slurm_colloc.metrics.sharing_cost import Stall
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.power_curve import NEAR_W
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.model.result_metrics import (
    METRICS_MOST,
    MetricExpression,
    parse_metric,
    parse_number,
)
from slurm_colloc.report.member_figures import (
    CONTEXT_ASSUMED_MB,
    Figures,
    GpuMemoryPeak,
    build_instance,
    choose_highest,
    count_up,
)
from slurm_colloc.report.member_views import MemberView
from slurm_colloc.report.pack_run import MemberRun, PackRun
from slurm_colloc.report.solo_rates import FAMILY, PROFILE, SoloRate
from slurm_colloc.report.summary_file import (
    SummaryChange,
    SummaryGpuMemory,
    SummaryMember,
    SummaryMetric,
    SummaryPart,
    SummaryPower,
    SummaryRate,
    SummarySolo,
    SummaryStall,
)
from slurm_colloc.store.atomic_files import TooSlow, limited_cpu, open_regular
from slurm_colloc.store.report_files import Metrics, read_metrics, read_own_outputs

# ---- A member's part of summary.json; docs/json.md describes the fields -------------------------


def _find_start(member: MemberRun) -> float | None:
    """When it began; of one that runs and that nothing watches, by what its runner wrote."""
    begin = min((stay.begin for stay in member.stays), default=None)
    record = member.view.record
    if begin is None and record is not None and member.view.state is MemberState.RUNNING:
        return record.started_at
    return begin


def build_member(
    run: PackRun,
    figures: Figures,
    together_slowdown: float | None,
    energy: AttributedPart | None,
    energy_unknown: str,
) -> SummaryMember:
    """A member's part of summary.json."""
    member, view = figures.member, figures.member.view
    record, job = view.record, view.spec.job
    code = record.exit_code if record is not None and view.is_final else None
    use = record.gpu if record is not None else None
    gpu_memory = choose_highest(member.starts, run.count_gpus_of(member))
    progress = [start.last("progress") for start in member.starts]
    notes = [*_list_notes(run, figures), *([energy_unknown] if energy is None else [])]
    notes.append(_tell_assumed(gpu_memory))
    return {
        "member": member.number,
        "id": str(view.member),
        "job_id": view.own_id or None,
        "name": view.name,
        "parameters": dict(view.parameters),
        "retry_of": view.retry_of or None,
        "request": {
            "cpus": job.cpus,
            "gpus": job.gpus,
            "host_memory_mb": job.host_memory_mb,
            "gpu_memory_mb": job.gpu_memory_mb,
            "time_limit_s": job.time_limit_s,
        },
        "accepted_slowdown": _find_accepted(run, view),
        "state": view.state.value,
        "cause": run.view.cause_of(view) or None,
        "script": job.script_name,
        "arguments": list(job.arguments),
        "directory": job.directory,
        "node": record.node if record is not None else None,
        "gpu_uuids": list(use.uuids) if use is not None else [],
        "mode": run.view.mode_of(view),
        "exit_code": None if code is None else code.code,
        "exit_signal": None if code is None else code.signal,
        "started_at": _find_start(member),
        "ended_at": record.ended_at if record is not None and view.is_final else None,
        "joined_at": view.spec.joined_at or None,
        "stopped_s": member.stopped_s,
        "starts": max(len(member.starts), record.starts if record is not None else 0),
        "steps": _as_int(figures.steps),
        "skipped": _as_int(count_up(member, "skipped")),
        "samples": _as_int(count_up(member, "samples")),
        "progress": next((word for word in reversed(progress) if word is not None), None),
        "unmatched_lines": _count_unmatched(run, figures),
        "rate": _build_rate(figures),
        "solo": _build_solo(figures.solo),
        "slowdown": figures.slowdown,
        "predicted_slowdown": figures.predicted_slowdown,
        "together_slowdown": together_slowdown,
        "solo_time_s": figures.solo_time_s,
        "gpu_memory_mb": _build_gpu_memory(gpu_memory),
        "cpu_s": _add_up(member, "cpu_s"),
        "cpu_cores": _count_cores(member),
        "host_memory_peak_mb": max(
            (peak for start in member.starts if (peak := start.peak("host_memory_mb")) is not None),
            default=None,
        ),
        "read_bytes": _as_int(_add_up(member, "read_bytes")),
        "written_bytes": _as_int(_add_up(member, "written_bytes")),
        "sm_share": build_part(figures.sm),
        "mig": build_instance(run, member),
        "energy_j": build_part(energy),
        "stall": _build_stall(figures.stall),
        "interference": _build_interference(figures.interference),
        "power": _build_power(run, member),
        "unknown": _list_unknown(figures),
        "notes": [note for note in notes if note],
        "metrics": {},
    }


def _build_power(run: PackRun, member: MemberRun) -> SummaryPower | None:
    """The power limit that would suit it, by its curve; None where it has none, or that held."""
    curve = () if member.profile is None else member.profile.power_curve
    if len(curve) < 2:
        return None
    bound = _find_accepted(run, member.view)
    if bound is None:
        return None
    from slurm_colloc.planning.power_limit import choose_limit

    choice = choose_limit([curve], bound, may_measure=False)
    held_w = run.compute_mean(member, "power_limit_w", list_windows(member.stays))
    if not choice.limit_w or (held_w is not None and held_w < choice.limit_w + NEAR_W):
        return None
    return {
        "limit_w": choice.limit_w,
        "slowdown": choice.slowdown,
        "energy_share": choice.energy_share,
    }


def _find_accepted(run: PackRun, view: MemberView) -> float | None:
    policy = run.view.record.policy
    return view.spec.job.max_slowdown or (None if policy is None else policy.slowdown_bound)


def build_part(part: AttributedPart | None) -> SummaryPart | None:
    """A number and the word for how it was obtained."""
    return None if part is None else {"value": part.value, "attribution": part.attribution}


def _build_rate(figures: Figures) -> SummaryRate:
    shared = figures.shared_rate
    return {
        "steps_per_s": figures.rate.steps_per_s,
        "samples_per_s": figures.rate.samples_per_s,
        "window_s": figures.rate.window_s,
        "spread": figures.rate.spread,
        "shared_steps_per_s": None if shared is None else shared.steps_per_s,
        "warm_up_s": figures.warm_up_s,
        "paused_s": figures.paused_s,
        "unknown": figures.rate.reason or None,
    }


def _build_solo(solo: SoloRate | None) -> SummarySolo | None:
    if solo is None:
        return None
    return {
        "steps_per_s": solo.steps_per_s,
        "source": solo.source,
        "n": solo.n,
        "measured_by": solo.measured_by.value,
    }


def _build_gpu_memory(peak: GpuMemoryPeak | None) -> SummaryGpuMemory | None:
    if peak is None:
        return None
    return {
        "peak": peak.peak_mb,
        "attribution": Attribution.PER_PROCESS.value,
        "by": peak.by.value,
        "allocator_peak": peak.allocator_mb,
        "outside_allocator": peak.outside_mb,
    }


def _tell_assumed(peak: GpuMemoryPeak | None) -> str:
    if peak is None or not peak.is_assumed:
        return ""
    return (
        "NVML did not tell what it holds outside PyTorch's allocator: "
        f"{CONTEXT_ASSUMED_MB:.0f} MB are assumed in its peak of GPU memory"
    )


def _count_cores(member: MemberRun) -> float | None:
    clock = member.own_time
    measured_s = sum(clock.read(start.end) - clock.read(start.begin) for start in member.starts)
    # The counter of a start stands at what it had used when it was seen first.
    rise_s = sum_known(start.compute_rise("cpu_s") for start in member.starts)
    return None if rise_s is None or measured_s <= 0 else rise_s / measured_s


def _add_up(member: MemberRun, name: str) -> float | None:
    """A counter over all starts; None where it was not read in one of them, or there are none."""
    return sum_known(start.peak(name) for start in member.starts)


def _as_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _build_stall(stall: Stall) -> SummaryStall:
    is_split = stall.device is not None
    return {
        "data": stall.data,
        "host": stall.host,
        "device": stall.device,
        "sharing": stall.sharing,
        "data_alone": stall.data_alone,
        "overlap": stall.overlap,
        "alone_s": stall.alone_s,
        "attribution": Attribution.EXACT.value if is_split else None,
    }


def _build_interference(found: Sequence[Interference]) -> list[SummaryChange]:
    return [
        {
            "at": entry.at,
            "came": list(entry.came),
            "went": list(entry.went),
            "before_steps_per_s": entry.before,
            "after_steps_per_s": entry.after,
            "ratio": entry.ratio,
        }
        for entry in found
    ]


def _list_unknown(figures: Figures) -> dict[str, str]:
    """Why its rate or its slowdown is unknown."""
    if not figures.member.stays:
        return {}
    found = {"rate": figures.rate.reason} if figures.rate.reason else {}
    if figures.unknown and figures.unknown != figures.rate.reason:
        found["slowdown"] = figures.unknown
    return found


def _list_notes(run: PackRun, figures: Figures) -> list[str]:
    member, view = figures.member, figures.member.view
    notes: list[str] = []
    if not member.stays:
        return notes
    unmatched = _count_unmatched(run, figures)
    if unmatched is not None:
        lines = format_count(unmatched, "line")
        notes.append(f"--progress-regex matched none of {lines} that it has printed")
    notes += figures.stall.unknown
    if _is_of_another_gpu(run, figures):
        notes.append(
            "its solo rate is from another GPU of this model; such GPUs differ by some percent"
        )
    if figures.solo is not None and figures.solo.source == FAMILY:
        count = figures.solo.n
        notes.append(
            f"its solo rate is that of {count} of its relatives (the same script with other "
            "arguments), and wrong where these change what a step does"
        )
    if len(member.starts) > 1:
        notes.append(f"started {len(member.starts)} times; its steps are those of all starts")
    if view.state in (MemberState.FAILED, MemberState.OUT_OF_MEMORY) and view.reason:
        notes.append(view.reason)
    if measure_windows(list_windows(member.stays)) and not member.starts:
        notes.append("the monitor has not seen it")
    return notes


def _count_unmatched(run: PackRun, figures: Figures) -> int | None:
    """Lines of which --progress-regex matched none; None where it matched, or there is no such."""
    member = figures.member
    if member.view.spec.job.progress_regex is None or figures.steps is not None:
        return None
    return run.count_unmatched(member.view.place)


def _is_of_another_gpu(run: PackRun, figures: Figures) -> bool:
    solo, profile = figures.solo, figures.member.profile
    if solo is None or solo.source != PROFILE or profile is None or run.gpu_uuid is None:
        return False
    return run.gpu_uuid not in profile.gpu_uuids


# ----
# The results of members, such as their loss: printed, reported by Python, or logged to a tracker.
#
# What a member prints is read when its pack is summed up, and only what lies behind the beginning
# of its own output. Its expressions and its output are a user's: no more than so many bytes are
# read, for no more than so much CPU time, and only files of the pack's owner.

PRINTED = "printed"
"""The source of what was found in a member's output."""
BYTES_MOST = 8 << 20
"""Of each output file, its end."""
PATIENCE_S = 0.5
"""CPU time that the output of one member may take."""

_LINE_END = re.compile(rb"[\r\n]+")
_LONGEST_LINE = 4096
_FILES_MOST = 8
_SHOWN_MOST = 40


def add_metrics(run: PackRun, members: Sequence[SummaryMember]) -> None:
    """Fill `metrics` of members' parts of a summary, and notes on what was not found.

    Args:
        run: The pack.
        members: Their parts.
    """
    reported: dict[int, Metrics] = {}
    problem = ""
    try:
        reported = read_metrics(run.path)
    except StateError as error:
        problem = f"results that it has reported cannot be read: {error}"
    views = {member.number: member.view for member in run.members}
    owner = None
    with contextlib.suppress(OSError):
        owner = run.path.stat().st_uid
    for member in members:
        notes: list[str] = [problem] if problem else []
        printed = _Printed()
        view = views[member["member"]]
        # A damaged spec.json is told of elsewhere.
        with contextlib.suppress(StateError):
            texts = view.spec.job.metrics
            if texts and member["started_at"] is not None:
                printed.read(view, texts, owner)
                notes += printed.notes
        found: dict[str, SummaryMetric] = {
            name: {"last": one.last, "least": one.least, "greatest": one.greatest,
                   "source": one.source}
            for name, one in reported.get(member["member"], {}).items()
        }  # fmt: skip
        # What the job itself has asked for comes first, and counts more.
        member["metrics"] = {**printed.found, **found, **printed.found}
        member["notes"] += notes


class _Printed:
    """What one member has printed."""

    def __init__(self) -> None:
        self.found: dict[str, SummaryMetric] = {}
        self.notes: list[str] = []
        self._wrong: dict[str, str] = {}
        self._lines = 0

    def read(self, view: MemberView, texts: Sequence[str], owner: int | None) -> None:
        """Look for metrics in its output files.

        Args:
            view: The member.
            texts: What it asks for.
            owner: Whose files may be read; None for none.
        """
        expressions = list(_parse_all(texts))
        if threading.current_thread() is not threading.main_thread():
            # Nothing ends a regular expression in another.
            self.notes.append("what it printed is read only by csub itself: no printed metrics")
            return
        try:
            own = read_own_outputs(view.files.path)
            with limited_cpu(PATIENCE_S):
                for path, begin in () if own is None else own.files[:_FILES_MOST]:
                    self._search(path, begin, expressions, owner)
        except StateError as error:
            self.notes.append(f"no printed metrics: {error}")
        except TooSlow:
            self.notes.append(
                f"--metric took more than {PATIENCE_S:g} s on its output: printed metrics are "
                "those found until then"
            )
            return
        names = [name for one in expressions for name in one.names.values()]
        self.notes += [self._explain(name) for name in names if name not in self.found]

    def _explain(self, name: str) -> str:
        wrong = self._wrong.get(name)
        if wrong is None:
            lines = format_count(self._lines, "line")
            return f"{name} unknown: its --metric matched none of {lines} of output"
        return f"{name} unknown: its --metric found '{wrong}', which is not a number"

    def _search(
        self, path: str, begin: int, expressions: Sequence[MetricExpression], owner: int | None
    ) -> None:
        for line in _read_lines(path, begin, owner):
            self._lines += 1
            for expression in expressions:
                for name, text in expression.search(line):
                    self._note(name, text)

    def _note(self, name: str, text: str) -> None:
        value = parse_number(text)
        if value is None:
            self._wrong[name] = escape_controls(cut(text, _SHOWN_MOST))
            return
        last = value if math.isfinite(value) else None
        before = self.found.get(name)
        if before is None:
            before = {"last": None, "least": None, "greatest": None, "source": PRINTED}
            self.found[name] = before
        before["last"] = last
        if last is not None:
            least, greatest = before["least"], before["greatest"]
            before["least"] = last if least is None else min(least, last)
            before["greatest"] = last if greatest is None else max(greatest, last)


def _parse_all(texts: Sequence[str]) -> Iterator[MetricExpression]:
    for text in texts[:METRICS_MOST]:
        # They were checked when the job was submitted; since then they lay in a file of a user's.
        with contextlib.suppress(ValueError):
            yield parse_metric(text)


def _read_lines(path: str, begin: int, owner: int | None) -> Iterator[str]:
    """The lines of an output file from where the member's own begin, or of its end."""
    try:
        descriptor = open_regular(path)
    except (OSError, ValueError):
        return
    try:
        status = os.fstat(descriptor)
        if status.st_uid != owner:
            return
        # It was emptied since.
        begin = begin if 0 <= begin <= status.st_size else 0
        data = os.pread(descriptor, BYTES_MOST, max(begin, status.st_size - BYTES_MOST))
    except OSError:
        return
    finally:
        os.close(descriptor)
    for line in _LINE_END.split(data):
        if line:
            yield line[:_LONGEST_LINE].decode("utf-8", "replace")
