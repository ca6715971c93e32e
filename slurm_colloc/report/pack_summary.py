"""summary.json: all figures of one pack; fields in docs/json.md, formulas in docs/report.md.

Also: each GPU of a pack in summary.json: what it is, what it did, who was on it; docs/json.md;
what a pack that was open for others asked for and its members did not: part of summary.json.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.metrics.presence import attribute_whole
from slurm_colloc.metrics.rates import describe_values
from slurm_colloc.model.late_definitions import asdict
from slurm_colloc.model.measured_curve import DegreeState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.power_curve import NEAR_W
from slurm_colloc.report.member_figures import (
    Figures,
    build_layout,
    compute_figures,
    measure_together,
)
from slurm_colloc.report.member_summary import add_metrics, build_member
from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.pack_run import PackRun, read_run
from slurm_colloc.report.pack_samples import GpuSamples
from slurm_colloc.report.sharing_summary import (
    build_pack,
    build_unexplained,
    compute_energy,
)
from slurm_colloc.report.show_view import find_extremes, read_fallbacks
from slurm_colloc.report.speed_words import describe_degree
from slurm_colloc.report.summary_file import (
    SUMMARY_SCHEMA,
    Summary,
    SummaryChain,
    SummaryCoverage,
    SummaryDegree,
    SummaryGpu,
    SummaryImbalance,
    SummaryOpen,
    SummarySetup,
    SummarySpread,
    summary_path,
)
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import make_directory, write_json
from slurm_colloc.store.pack_directory import read_chain
from slurm_colloc.store.report_files import GPU_METRICS, report_directory

# ----
# Each GPU of a pack in summary.json: what it is, what it did, who was on it; docs/json.md.

_COUNTERS = ("energy_j", "throttle_power_s", "throttle_thermal_s", "throttle_brake_s")


def _build_gpu(run: PackRun, uuid: str) -> SummaryGpu:
    samples = run.join_gpus((uuid,))
    models = (run.monitor or {}).get("gpu_models") or {}
    model = models.get(uuid) or {}
    details = run.gpu_details if uuid == run.gpu_uuid else (None, None)
    return {
        "index": model.get("index"),
        "uuid": uuid,
        "model": model.get("name") or details[0],
        "memory_mb": model.get("memory_mb") or details[1],
        "members": [
            one.number for one in run.members if one.stays and uuid in run.find_gpus_of(one)
        ],
        "use": build_gpu_use(run, samples),
        "throttled_s": build_throttled([samples]),
        "slow": next((pace.describe() for pace in run.slow_gpus if pace.uuid == uuid), None),
        "energy_j": _measure_energy(run, samples),
    }


def build_gpu_use(run: PackRun, samples: GpuSamples) -> dict[str, SummarySpread | None]:
    """What was measured of some GPUs as of one, from the first start of a member to the last end.

    Args:
        run: The pack.
        samples: Of its GPUs, or of one of them.
    """
    word = attribute_whole([member for member in run.members if member.stays]).value
    found: dict[str, Any] = {}
    for metric in GPU_METRICS:
        if metric in _COUNTERS or not samples or run.window is None:
            continue
        spread = describe_values(samples.get(metric).select([run.window]))
        found[metric] = None if spread is None else {**asdict(spread), "attribution": word}
    return found


def build_throttled(gpus: Sequence[GpuSamples]) -> dict[str, float | None]:
    """For how long the clocks were held down, by reason; of several GPUs the one held longest."""
    found: dict[str, float | None] = {}
    for metric in _COUNTERS[1:]:
        rises = [rise for samples in gpus if (rise := _count_rise(samples, metric)) is not None]
        name = metric.removeprefix("throttle_").removesuffix("_s")
        found[name] = max(rises, default=None)
    return found


def _count_rise(samples: GpuSamples, metric: str) -> float | None:
    values = [value for value in samples.get(metric).values if value is not None]
    rise = values[-1] - values[0] if values else None
    return None if rise is None or rise < 0 else rise


def _measure_energy(run: PackRun, samples: GpuSamples) -> float | None:
    track = samples.get("energy_j")
    if run.window is None or not track.at:
        return None
    begin, end = max(run.window[0], track.at[0]), min(run.window[1], track.at[-1])
    return track.compute_increase((begin, end)) if end > begin else None


def build_imbalance(gpus: Sequence[SummaryGpu]) -> SummaryImbalance | None:
    """How unevenly the GPUs were used; None for one GPU, and where that is unknown of one."""
    found = find_extremes(gpus) if len(gpus) > 1 else None
    if found is None:
        return None
    metric, (least, low), (most, high) = found
    return {
        "metric": metric,
        "least": {"uuid": low["uuid"], "mean": least},
        "most": {"uuid": high["uuid"], "mean": most},
    }


# ----
# What a pack that was open for others asked for and its members did not: part of summary.json.

_MB_PER_GB = 1024


def build_open(run: PackRun) -> SummaryOpen | None:
    """Hours of CPUs and host memory, asked of Slurm and by the members' users; None for others.

    Counted from the pack's first start to its last end. Each figure is None where unknown.
    """
    record = run.view.record
    if not record.open_for:
        return None
    request = record.request
    held_h = None if run.window is None else (run.window[1] - run.window[0]) / 3600
    cpus = None if request is None else request.cpus
    memory_mb = None if request is None else request.host_memory_mb
    times = [sum(stay.end - stay.begin for stay in m.stays) / 3600 for m in run.members]
    jobs = [member.view.spec.job for member in run.members]
    return {
        "for": record.open_for,
        "joined": sum(bool(member.view.spec.joined) for member in run.members),
        "cpu_hours": {
            "asked": None if cpus is None or held_h is None else cpus * held_h,
            "used": _add(zip((job.cpus for job in jobs), times, strict=True)),
        },
        "host_memory_gb_hours": {
            "asked": None
            if memory_mb is None or held_h is None
            else memory_mb / _MB_PER_GB * held_h,
            "used": _add(
                (None if job.host_memory_mb is None else job.host_memory_mb / _MB_PER_GB, time_h)
                for job, time_h in zip(jobs, times, strict=True)
                if time_h > 0
            ),
        },
    }


def build_chain(run: PackRun) -> SummaryChain | None:
    """The links of a chain, and what it cost to go from one to the next; None for other packs."""
    record = run.view.record
    if not record.chain:
        return None
    from slurm_colloc.model.chain import compute_handovers, sum_known

    chain = read_chain(run.path)
    handovers = compute_handovers(chain)
    return {
        "links": [link.job_id for link in chain.links if link.began_at is not None],
        "links_most": record.chain,
        "handovers": _list_values(handovers),
        "interruption_s": sum_known(handover.interruption_s for handover in handovers),
        "overlap_s": sum_known(handover.overlap_s for handover in handovers),
        "problem": chain.problem or chain.ended or None,
    }


def _add(parts: Iterable[tuple[float | None, float]]) -> float | None:
    """The sum of amounts times hours; None where an amount is unknown."""
    total = 0.0
    for amount, time_h in parts:
        if amount is None:
            return None
        total += amount * time_h
    return total


# ---- summary.json: all figures of a pack; fields in docs/json.md, formulas in docs/report.md -----

_GAPS_MOST = 50


def build_summary(pack: Path, profiles: Path, view: PackView | None = None) -> Summary:
    """Compute the summary of a pack from what its runner and monitor wrote.

    What it takes and raises is what `read_run` does.
    """
    run = read_run(pack, profiles, view)
    return _build(run, compute_figures(run))


def _build(run: PackRun, figures: Sequence[Figures]) -> Summary:
    energy = compute_energy(run, figures)
    together = measure_together(run, figures)
    pack = build_pack(run, figures, energy, together)
    members = [
        build_member(
            run,
            entry,
            together.get(entry.member.number),
            energy.split.parts.get(entry.member.number),
            energy.explain(entry.member.number),
        )
        for entry in figures
    ]
    add_metrics(run, members)
    gpus = [_build_gpu(run, uuid) for uuid in run.gpu_uuids]
    return {
        "schema": SUMMARY_SCHEMA,
        "pack_id": run.view.record.pack_id,
        "gpu_set": run.view.record.gpu_set,
        "gpu_sets": list(run.view.record.gpu_sets),
        "number_of": None if run.view.record.number_of is None else list(run.view.record.number_of),
        "attempt": run.view.attempt,
        "job": run.view.job_id or None,
        "submission": run.view.shown_id or None,
        "name": run.view.record.name,
        "node": run.setup.node if run.setup is not None else None,
        "made_at": time.time(),
        "final": run.is_final,
        "gpu": {
            "uuid": run.gpu_uuid,
            "model": run.gpu_model,
            "memory_mb": run.gpu_details[1],
        },
        "setup": _build_setup(run),
        "layout": build_layout(run),
        "window": None if run.window is None else {"from": run.window[0], "to": run.window[1]},
        "coverage": _build_coverage(run),
        "gpu_use": build_gpu_use(run, run.gpu),
        "throttled_s": build_throttled([run.join_gpus((uuid,)) for uuid in run.gpu_uuids]),
        "gpus": gpus,
        "imbalance": build_imbalance(gpus),
        "energy_j": energy.window_j,
        "unexplained": build_unexplained(run, figures, energy),
        "members": members,
        "pack": pack,
        "degree": _build_degree(run, pack["members_most"]),
        "open": build_open(run),
        "chain": build_chain(run),
        "problems": list(run.problems),
        "notes": _list_notes(run),
    }


def _build_setup(run: PackRun) -> SummarySetup | None:
    setup = run.setup
    if setup is None:
        return None
    return {
        "mode": setup.mode,
        "asked": setup.asked,
        "reason": setup.reason,
        "by": setup.by,
        "notes": [*setup.notes, *read_fallbacks(StateReader(run.path.parent.parent), run.view)],
    }


def _build_degree(run: PackRun, members_most: int) -> SummaryDegree | None:
    record = run.degree
    if record is None:
        return None
    length_s = run.window[1] - run.window[0] if run.window is not None else 0.0
    is_undone = run.is_final and record.state is DegreeState.MEASURING
    return {
        "state": (DegreeState.OFF if is_undone else record.state).value,
        "degree": record.degree,
        "places": record.places,
        "room": record.room,
        "parked": list(record.parked),
        "why": describe_degree(record, members_most, is_over=run.is_final) or None,
        "cost_s": record.cost_s,
        "cost_share": record.cost_s / length_s if length_s > 0 else None,
        "curve": _list_values(record.curve),
        "rates_alone": _list_values(record.rates_alone),
        "decisions": _list_values(record.decisions),
        "cores": _list_values(record.cores),
        "workers": _list_values(record.workers),
    }


def _list_values(records: Iterable[Any]) -> list[Any]:
    """Records as they stand in JSON, under the names of their fields."""
    return [asdict(record) for record in records]


def _build_coverage(run: PackRun) -> SummaryCoverage | None:
    monitor = run.monitor
    if monitor is None:
        return None
    due, taken = monitor.get("ticks_due"), monitor.get("ticks_taken")
    # A gap that had not ended when the monitor was killed has no end.
    gaps = [gap for gap in monitor.get("gaps") or [] if None not in gap[:2]]
    return {
        "share": min(1.0, taken / due) if due and taken is not None else None,
        "not_watched": monitor.get("not_watched"),
        "not_watched_kind": monitor.get("not_watched_kind"),
        "interval_s": monitor.get("interval_s"),
        "ticks_due": due,
        "ticks_taken": taken,
        "gaps": gaps[:_GAPS_MOST],
        "gap_s": sum(gap[1] - gap[0] for gap in gaps),
        "monitor_cpu_s": monitor.get("cpu_s"),
        "monitor_rss_peak_mb": monitor.get("rss_peak_mb"),
        "not_readable": {
            metric: state.get("state")
            for metric, state in sorted((monitor.get("capabilities") or {}).items())
            if isinstance(state, dict) and state.get("state") != "ok"
        },
    }


def _list_notes(run: PackRun) -> list[str]:
    notes = list(run.problems)
    if run.samples.is_empty:
        notes.append("there are no samples: the monitor did not run, or wrote nothing yet")
    elif not run.gpu:
        notes.append("nothing could be read of the GPU")
    notes += _tell_activity(run)
    notes += _tell_power_limit(run)
    if run.setup is not None and run.setup.mode == SharingMode.MIG.value:
        notes.append(
            "power is the whole GPU's, and nothing tells that of a MIG instance: the members' "
            "energy is estimated"
        )
    known = (*run.gpu_uuids, "MIG-")
    others = [uuid for uuid in run.samples.gpus if not uuid.startswith(known)]
    if others:
        own = ", ".join(run.gpu_uuids)
        notes.append(f"figures are of {own}; {', '.join(others)} was measured, too")
    if run.samples.stride_s > 0:
        notes.append(f"long run: each row stands for {run.samples.stride_s:.0f} s")
    if run.gpu_model is None and run.members:
        notes.append("the GPU's model is not known, so there are no usage profiles")
    return notes


def _tell_power_limit(run: PackRun) -> list[str]:
    """That another power limit held than the one that was asked for."""
    asked_w = run.view.record.power_limit_w
    held_w = run.gpu.get("power_limit_w").compute_mean([run.window]) if run.window else None
    if not asked_w or (held_w is not None and abs(held_w - asked_w) < NEAR_W):
        return []
    told = f"a power limit of {asked_w} W was asked for, and "
    if held_w is None:
        return [f"{told}which one held was not read"]
    return [f"{told}{held_w:.0f} W held: that is for the site's policy and hooks to say"]


def _tell_activity(run: PackRun) -> list[str]:
    """Why the GPU's SM activity is unknown, where the rest of it was read."""
    state = ((run.monitor or {}).get("capabilities") or {}).get("sm_active")
    if not run.gpu or not isinstance(state, dict) or state.get("state") in (None, "ok"):
        return []
    reason = state.get("detail") or state["state"]
    return [f"SM activity is unknown ({reason}): so are the members' shares of it"]


def write_summary(run: PackRun, figures: Sequence[Figures]) -> Summary:
    """Write a pack's summary.json, whole or not at all; what it tells.

    Raises:
        StateError: It cannot be written, or something that it tells cannot be read.
    """
    summary = _build(run, figures)
    make_directory(report_directory(run.path))
    write_json(summary_path(run.path), summary)
    return summary
