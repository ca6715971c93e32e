"""`csub profile`: usage profiles as tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slurm_colloc.model.measured_curve import KnownCurve
from slurm_colloc.model.quantities import format_count, format_moment
from slurm_colloc.model.usage_profile import (
    MeasuredBy,
    ProfileRecord,
    RunningStatistics,
    ShrunkenMean,
)
from slurm_colloc.report.report_sentences import PEAK_SOURCE_WORDS
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    build_lines,
    build_table,
    format_figure,
    format_mb_figure,
    format_share,
    format_span,
    render,
)

SIGNATURE_SHOWN = 12
"""As many digits of a signature as are shown; they select it, too."""


_MEASURED = {
    MeasuredBy.ALONE: "alone on the GPU, for 10 s or more in each run",
    MeasuredBy.PAUSING: "by pausing: rate, activity and power in moments in which the other "
    "members of its pack were paused, memory and CPUs over its whole run; a run alone of 10 s or "
    "more takes its place",
    MeasuredBy.COMPANY: "in company: memory and CPUs over its whole run; its rate alone is unknown",
}


def render_list(
    records: Sequence[ProfileRecord],
    width: int,
    curves: Sequence[KnownCurve] = (),
    *,
    styled: bool = False,
) -> str:
    """A line for each usage profile.

    Args:
        records: The profiles.
        width: Of the terminal.
        curves: What packs have measured.
        styled: With the terminal's styles.
    """
    columns = [
        Column("SIGNATURE", is_number=False),
        Column("NAME", is_number=False, gives_way=True),
        Column("GPU", is_number=False),
        Column("RUNS"),
        Column("BY", is_number=False),
        Column("STEPS/S"),
        Column("GPU_MEM"),
        Column("SM"),
        Column("CPUS"),
        *([Column("AT_ONCE")] if curves else []),
        Column("UPDATED", is_number=False),
    ]
    rows = [
        (
            record.signature[:SIGNATURE_SHOWN],
            record.name,
            record.gpu_model,
            str(record.samples),
            record.measured_by.value,
            UNKNOWN if record.steps_per_s is None else format_figure(record.steps_per_s.mean),
            format_mb_figure(record.gpu_memory_peak_mb),
            format_share(record.sm_active),
            format_figure(record.cpu_cores, 2),
            *([_render_best(record, curves)] if curves else []),
            time.strftime("%Y-%m-%d", time.localtime(record.updated_at)),
        )
        for record in records
    ]
    return render([build_table(columns, rows, width)], width, styled=styled)


def _render_best(record: ProfileRecord, curves: Sequence[KnownCurve]) -> str:
    """How many of its family at once made the most progress, and how much that was."""
    own = [c.best for c in curves if c.is_of(record) and len(c.families) == 1]
    if not own:
        return UNKNOWN
    best = max(own, key=lambda point: point.at)
    return f"{best.degree} ({best.stp:.1f}x)"


def render_profile(record: ProfileRecord, width: int, curves: Sequence[KnownCurve] = ()) -> str:
    """All of one usage profile, and what packs have measured of its family."""
    lines = [
        ("Signature", record.signature),
        ("Family", record.family),
        ("Name", record.name),
        ("GPU", f"{record.gpu_model} {', '.join(record.gpu_uuids)}"),
        ("Runs", f"{record.samples}, the last {format_moment(record.updated_at)}"),
        ("Measured", _MEASURED[record.measured_by]),
        ("Steps", _render_rate(record.steps_per_s)),
        ("Samples", _render_rate(record.samples_per_s)),
        ("Whole run", _render_run(record)),
        ("GPU memory", _render_gpu_memory(record)),
        ("SM", format_share(record.sm_active)),
        ("Tensor", format_share(record.tensor_active)),
        ("DRAM", format_share(record.dram_active)),
        ("Engine", format_share(record.engine_active)),
        ("PCIe", format_share(record.pcie_share)),
        ("NVLink", format_share(record.nvlink_share)),
        ("CPUs", format_figure(record.cpu_cores, 2)),
        ("Host memory", f"{format_mb_figure(record.host_memory_peak_mb)} at most"),
        ("Data wait", format_share(record.wait_share)),
        *((("Held up by", held),) if (held := _render_held_up(record)) else ()),
        ("Sensitivity", _render_learnt(record.sensitivity, "its slowdown")),
        ("Pressure", _render_learnt(record.pressure, "its partners' slowdown")),
        ("Power", _render_watts(record.energy_w)),
        ("Idle power", _render_watts(record.idle_power_w)),
        *((("By power limit", _render_power(record)),) if len(record.power_curve) > 1 else ()),
        *(("At once", _render_curve(curve)) for curve in curves if curve.is_of(record)),
    ]
    return render([build_lines(lines)], width)


def _render_held_up(record: ProfileRecord) -> str:
    shares = (
        ("copies", record.copies_share),
        ("decoding", record.decoding_share),
        ("disk", record.disk_share),
    )
    return ", ".join(f"{name} {format_share(share)}" for name, share in shares if share is not None)


def _render_power(record: ProfileRecord) -> str:
    return ", ".join(
        f"{point.limit_w:.0f} W: {format_figure(point.steps_per_s)} /s, "
        f"{format_figure(point.joules_per_step)} J per step"
        for point in record.power_curve
    )


def _render_curve(curve: KnownCurve) -> str:
    newest = max(point.at for point in curve.points)
    day = time.strftime("%Y-%m-%d", time.localtime(newest))
    told = ", ".join(f"{point.degree}: {point.stp:.1f}" for point in curve.points)
    packs = max(point.runs for point in curve.points)
    mix = f" with {', '.join(curve.names)}" if len(curve.families) > 1 else ""
    return (
        f"times the progress of one alone by {curve.mode.value}{mix}: {told} "
        f"({format_count(packs, 'run')}, the last {day})"
    )


def _render_learnt(mean: ShrunkenMean | None, whose: str) -> str:
    if mean is None:
        return UNKNOWN
    return f"{mean.value:+.3f} on {whose}, over {format_count(mean.n, 'pack')}"


def _render_gpu_memory(record: ProfileRecord) -> str:
    if record.gpu_memory_peak_mb is None:
        return UNKNOWN
    who = PEAK_SOURCE_WORDS[record.gpu_memory_by]
    return f"{format_mb_figure(record.gpu_memory_peak_mb)} at most, by {who}"


def _render_run(record: ProfileRecord) -> str:
    total = record.steps_total
    if total is None:
        return UNKNOWN
    runs = format_count(total.n, "run")
    return f"{total.mean:.0f} steps over {runs}, {format_span(record.run_s)} alone"


def _render_watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} W"


def _render_rate(rate: RunningStatistics | None) -> str:
    if rate is None:
        return UNKNOWN
    spread = "" if rate.sd is None else f", standard deviation {format_figure(rate.sd)}"
    runs = format_count(rate.n, "run")
    return f"{format_figure(rate.mean)} /s over {runs}{spread}, last {format_figure(rate.last)}"
