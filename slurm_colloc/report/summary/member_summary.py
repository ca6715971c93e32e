"""A member's part of summary.json; docs/report.md describes the fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slurm_colloc.metrics.attribution import (
    AttributedPart,
    Attribution,
)
from slurm_colloc.metrics.interference import Interference
from slurm_colloc.metrics.rates import (
    sum_known,
)
from slurm_colloc.metrics.series import measure_windows
from slurm_colloc.metrics.stalls import Stall
from slurm_colloc.model.member import MemberState
from slurm_colloc.report.member_views import MemberView
from slurm_colloc.report.summary.gpu_memory_peaks import (
    CONTEXT_ASSUMED_MB,
    GpuMemoryPeak,
    choose_highest,
)
from slurm_colloc.report.summary.instance_figures import build_instance
from slurm_colloc.report.summary.member_figures import Figures, count_up
from slurm_colloc.report.summary.member_identity import build_identity
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun
from slurm_colloc.report.summary.pack_samples import StartSamples
from slurm_colloc.report.summary.solo_rates import FAMILY, PROFILE, SoloRate


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
) -> dict[str, Any]:
    """A member's part of summary.json."""
    member, view = figures.member, figures.member.view
    record = view.record
    gpu_memory = choose_highest(member.starts, run.count_gpus_of(member))
    notes = [*_list_notes(run, figures), *([energy_unknown] if energy is None else [])]
    notes.append(_tell_assumed(gpu_memory))
    return {
        "member": member.number,
        "id": str(view.member),
        "name": view.name,
        "parameters": dict(view.parameters),
        "retry_of": view.retry_of or None,
        **_build_request(run, view),
        "state": view.state.value,
        "cause": run.view.cause_of(view) or None,
        **build_identity(run.view, view),
        "started_at": _find_start(member),
        "ended_at": record.ended_at if record is not None and view.is_final else None,
        "joined_at": view.spec.joined_at or None,
        "stopped_s": member.stopped_s,
        "starts": max(len(member.starts), record.starts if record is not None else 0),
        "steps": _as_int(figures.steps),
        "skipped": _as_int(count_up(member, "skipped")),
        "samples": _as_int(count_up(member, "samples")),
        "progress": _last(member, lambda start: start.last("progress")),
        "unmatched_lines": _count_unmatched(run, figures),
        "rate": _build_rate(figures),
        "solo": _build_solo(figures.solo),
        "slowdown": figures.slowdown,
        "predicted_slowdown": figures.predicted_slowdown,
        "together_slowdown": together_slowdown,
        "solo_time_s": figures.solo_time_s,
        "gpu_memory_mb": _build_gpu_memory(gpu_memory),
        **_build_host_use(member),
        "sm_share": build_part(figures.sm),
        "mig": build_instance(run, member),
        "energy_j": build_part(energy),
        "stall": _build_stall(figures.stall),
        "interference": _build_interference(figures.interference),
        "notes": [note for note in notes if note],
    }


def _build_request(run: PackRun, view: MemberView) -> dict[str, Any]:
    """What was asked for it."""
    job, policy = view.spec.job, run.view.record.policy
    return {
        "request": {
            "cpus": job.cpus,
            "gpus": job.gpus,
            "host_memory_mb": job.host_memory_mb,
            "gpu_memory_mb": job.gpu_memory_mb,
            "time_limit_s": job.time_limit_s,
        },
        "accepted_slowdown": job.max_slowdown
        or (None if policy is None else policy.slowdown_bound),
    }


def build_part(part: AttributedPart | None) -> dict[str, Any] | None:
    """A number and the word for how it was obtained."""
    if part is None:
        return None
    return {"value": part.value, "attribution": part.attribution.value}


def _build_rate(figures: Figures) -> dict[str, Any]:
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


def _build_solo(solo: SoloRate | None) -> dict[str, Any] | None:
    if solo is None:
        return None
    return {
        "steps_per_s": solo.steps_per_s,
        "source": solo.source,
        "n": solo.n,
        "measured_by": solo.measured_by.value,
    }


def _build_gpu_memory(peak: GpuMemoryPeak | None) -> dict[str, Any] | None:
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


def _build_host_use(member: MemberRun) -> dict[str, Any]:
    cpu_s = _add_up(member, "cpu_s")
    clock = member.own_time
    measured_s = sum(clock.read(start.end) - clock.read(start.begin) for start in member.starts)
    # The counter of a start stands at what it had used when it was seen first.
    rise_s = sum_known(_compute_rise(start, "cpu_s") for start in member.starts)
    peaks = [start.peak("host_memory_mb") for start in member.starts]
    return {
        "cpu_s": cpu_s,
        "cpu_cores": None if rise_s is None or measured_s <= 0 else rise_s / measured_s,
        "host_memory_peak_mb": max((peak for peak in peaks if peak is not None), default=None),
        "read_bytes": _as_int(_add_up(member, "read_bytes")),
        "written_bytes": _as_int(_add_up(member, "written_bytes")),
    }


def _compute_rise(start: StartSamples, name: str) -> float | None:
    first = start.first(name)
    return None if first is None else float(start.last(name) - first)


def _add_up(member: MemberRun, name: str) -> float | None:
    """A counter over all starts; None where it was not read in one of them, or there are none."""
    return sum_known(start.peak(name) for start in member.starts)


def _as_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _last(member: MemberRun, read: Callable[[StartSamples], Any]) -> Any:
    found = (read(start) for start in reversed(member.starts))
    return next((value for value in found if value is not None), None)


def _build_stall(stall: Stall) -> dict[str, Any]:
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


def _build_interference(found: Sequence[Interference]) -> list[dict[str, Any]]:
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


def _list_notes(run: PackRun, figures: Figures) -> list[str]:
    member, view = figures.member, figures.member.view
    notes: list[str] = []
    if not member.stays:
        return notes
    unmatched = _count_unmatched(run, figures)
    if unmatched is not None:
        lines = "1 line" if unmatched == 1 else f"{unmatched} lines"
        notes.append(f"--progress-regex matched none of {lines} that it has printed")
    if figures.rate.reason:
        notes.append(f"rate unknown: {figures.rate.reason}")
    if figures.unknown and figures.unknown != figures.rate.reason:
        notes.append(f"slowdown unknown: {figures.unknown}")
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
    if measure_windows((stay.begin, stay.end) for stay in member.stays) and not member.starts:
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
