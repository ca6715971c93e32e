"""summary.json: all figures of one pack; docs/report.md describes every field and formula."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.model.degree.measured_curve import CurvePoint, DegreeState, RateAlone
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.report.member_views import (
    PackView,
)
from slurm_colloc.report.show_view import read_fallbacks
from slurm_colloc.report.summary.gpu_figures import (
    build_gpu_use,
    build_gpus,
    build_imbalance,
    build_throttled,
)
from slurm_colloc.report.summary.instance_figures import build_layout
from slurm_colloc.report.summary.member_figures import Figures, compute_figures
from slurm_colloc.report.summary.member_metrics import add_metrics
from slurm_colloc.report.summary.member_summary import build_member
from slurm_colloc.report.summary.open_pack import build_open
from slurm_colloc.report.summary.pack_run import PackRun
from slurm_colloc.report.summary.read_pack_run import read_run
from slurm_colloc.report.summary.shared_slowdown import measure_together
from slurm_colloc.report.summary.sharing_summary import (
    build_pack,
    build_unexplained,
    compute_energy,
)
from slurm_colloc.report.summary.summary_file import SUMMARY_SCHEMA, summary_path
from slurm_colloc.report.summary.summary_shape import Summary
from slurm_colloc.report.words.degree_words import describe_degree
from slurm_colloc.store.atomic_files import make_directory, write_json
from slurm_colloc.store.pack.sample_files import report_directory
from slurm_colloc.store.pack_reading import StateReader

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
        "gpus": build_gpus(run),
        "imbalance": build_imbalance(run),
        "energy_j": energy.window_j,
        "unexplained": build_unexplained(run, figures, energy),
        "members": members,
        "pack": pack,
        "degree": _build_degree(run, pack["members_most"]),
        "open": build_open(run),
        "notes": _list_notes(run),
    }


def _build_setup(run: PackRun) -> dict[str, Any] | None:
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


def _build_degree(run: PackRun, members_most: int) -> dict[str, Any] | None:
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
        "curve": [_build_point(point) for point in record.curve],
        "rates_alone": [_build_rate_alone(rate) for rate in record.rates_alone],
        "decisions": [
            {
                "at": decision.at,
                "state": decision.state.value,
                "running": decision.running,
                "degree": decision.degree,
                "stp": decision.stp,
                "reason": decision.reason,
            }
            for decision in record.decisions
        ],
    }


def _build_point(point: CurvePoint) -> dict[str, Any]:
    return {
        "degree": point.degree,
        "stp": point.stp,
        "error": point.error,
        "worst_slowdown": point.worst_slowdown,
        "worst_member": point.worst_member,
        "worst_bound": point.worst_bound,
        "window_s": point.window_s,
        "members": list(point.members),
    }


def _build_rate_alone(rate: RateAlone) -> dict[str, Any]:
    return {
        "member": rate.member,
        "steps_per_s": rate.steps_per_s,
        "error": rate.error,
        "window_s": rate.window_s,
        "at": rate.at,
        "source": rate.source.value,
        "thread_percentage": rate.thread_percentage,
    }


def _build_coverage(run: PackRun) -> dict[str, Any] | None:
    monitor = run.monitor
    if monitor is None:
        return None
    due, taken = monitor.get("ticks_due"), monitor.get("ticks_taken")
    # A gap that had not ended when the monitor was killed has no end.
    gaps = [gap for gap in monitor.get("gaps") or [] if None not in gap[:2]]
    return {
        "share": min(1.0, taken / due) if due and taken is not None else None,
        "not_watched": monitor.get("not_watched"),
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
