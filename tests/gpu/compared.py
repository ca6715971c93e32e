"""A pack's figures by the monitor next to those of programs, driver and GPU, and what they cost."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from .comparison import (
    compute_mean,
    compute_rise_per_s,
    describe,
    find_nearest,
    find_settled_window,
    parse_counters,
)
from .cost import (
    Timeline,
    convert_to_monotonic,
    estimate_instrument,
    estimate_presence,
    estimate_ticks,
    parse_units,
)
from .estimates import TRIMMED, Estimate, add_up
from .figures import RESULTS, keep, round_error, tell
from .gpu_node import HERE, GpuNode, read_number
from .mappings import read_mappings
from .trainings import read_printed
from .watched import (
    Recordings,
    find_monitor,
    keep_long_output,
    read_cpu_s,
    read_monitor_record,
    read_progress,
    read_rows,
    show,
    take_look,
)

CALLS = int(read_number("CSUB_GPU_CALLS", 50))
LOOKS = 3
BATCH_OF = {False: 128, True: 2}


def compare_rates(bed: GpuNode, job_id: str, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Each member's rate by the report against what its program has printed, in the same window."""
    batch = BATCH_OF[bed.is_simulated]
    rows = read_rows(bed.find_pack(job_id), "members")
    found = []
    for member in summary["members"]:
        window = find_settled_window(member, find_first_step_at(rows, member["member"]))
        times, images = read_series(bed, job_id, member["member"])[:2]
        steps = [count / batch for count in images]
        begin, end = clip(window, times)
        paused_s = member["rate"]["paused_s"]
        # The report leaves pauses out; what few steps were in them is not known.
        printed = compute_rise_per_s(times, steps, (begin, end))
        printed *= (end - begin) / (end - begin - paused_s)
        said = member["rate"]["steps_per_s"]
        found.append(
            {
                "member": member["member"],
                "report_steps_per_s": said,
                "program_steps_per_s": printed,
                "window_s": round(end - begin, 2),
                "paused_s": paused_s,
                "error": round_error(said, printed),
            }
        )
    return found


def find_first_step_at(rows: list[dict[str, Any]], number: int) -> float:
    """When a member's first step ended, in seconds since the epoch."""
    known = [r["first_step_at"] for r in rows if r["member"] == number and r["first_step_at"]]
    return float(known[-1])


def read_series(bed: GpuNode, job_id: str, number: int) -> list[tuple[float, ...]]:
    """Columns of a member's own progress, its moments in seconds since the epoch."""
    times, *others = parse_counters(read_progress(bed, job_id, number))
    offset_s = time.time() - time.monotonic()
    return [tuple(moment + offset_s for moment in times), *others]


def clip(window: tuple[float, float], times: tuple[float, ...]) -> tuple[float, float]:
    """A window without what lies outside of some readings."""
    return max(window[0], times[0]), min(window[1], times[-1])


def judge_rates(bed: GpuNode, name: str, rates: list[dict[str, Any]]) -> None:
    """Keep the rates of a pack, and tell the worst of them."""
    keep(bed, rates, "packs", name, "rates")
    worst = max(abs(rate["error"]) for rate in rates)
    keep(bed, {"goal": 0.01, "worst_error": worst}, "results", f"rates, {name}")
    tell(f"{name}: rates differ from the programs' own by {worst:.3%} at most (goal 1 %)")


def look_at(bed: GpuNode, recordings: Recordings, job_id: str, name: str) -> list[dict[str, Any]]:
    """Look at a running pack from outside, by nvidia-smi, csub and the monitor's own calls."""
    monitor = find_monitor(bed, job_id)
    before = time.monotonic(), read_cpu_s(monitor)
    looks = []
    for number in range(1, LOOKS + 1):
        looks.append(take_look(bed, job_id, recordings, f"{name}-{number}"))
        if number == 1:
            show(bed, "top", "--once")
            show(bed, "report", job_id)
        elif number == 2:
            keep_long_output(bed, recordings, name)
            measure_calls(bed, name)
    after = time.monotonic(), read_cpu_s(monitor)
    mappings = read_mappings(monitor)
    keep(bed, mappings, "packs", name, "monitor_memory")
    tell(f"{name}: the monitor's memory {json.dumps(mappings, indent=1)}")
    over_s = after[0] - before[0]
    used = None
    if before[1] is not None and after[1] is not None:
        used = round((after[1] - before[1]) / over_s, 5)
    found = {"cpu_cores": used, "over_s": round(over_s, 2)}
    keep(bed, found, "packs", name, "monitor_settled")
    return looks


def measure_calls(bed: GpuNode, name: str) -> None:
    """How long the monitor's kinds of calls take while the pack runs."""
    uuid = bed.gpu_before["uuid"]
    argv = [sys.executable, str(HERE / "nvml_calls.py"), uuid, str(CALLS)]
    told = json.loads(bed.user.run(argv).stdout.splitlines()[-1])
    found = {kind: describe(values) for kind, values in told["took_ms"].items() if values}
    keep(bed, found, "packs", name, "calls_ms")
    keep(bed, told["refused"], "packs", name, "calls_refused")
    for kind, row in found.items():
        tell(f"  {kind}: {row['median']:.3f} ms, 95 % within {row['p95']:.3f} ms")
    assert found
    assert all(row["n"] == CALLS for row in found.values())


def compare_memory(
    bed: GpuNode, job_id: str, name: str, looks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """gpu_memory by the monitor against nvidia-smi's at the same moment."""
    rows = read_rows(bed.find_pack(job_id), "members")
    found = []
    for look in looks:
        for number, size in look["members_mb"].items():
            own = [row for row in rows if row["member"] == int(number)]
            # The monitor asks every 5 s.
            said = find_nearest(own, "gpu_memory_mb", look["at"], 5.0)
            found.append(
                {
                    "at": look["at"],
                    "member": int(number),
                    "nvidia_smi_mb": size,
                    "monitor_mb": said,
                    "error": round_error(said, size),
                }
            )
    keep(bed, looks, "packs", name, "looks")
    keep(bed, found, "packs", name, "gpu_memory")
    errors = [abs(row["error"]) for row in found if row["error"] is not None]
    worst = max(errors, default=None)
    keep(bed, {"goal": 0.01, "worst_error": worst, "n": len(errors)}, "results", f"memory, {name}")
    sizes = sorted({str(row["nvidia_smi_mb"]) for row in found})
    tell(f"{name}: gpu_memory differs from nvidia-smi by {worst} at most ({sizes} MiB)")
    return [row for row in found if row["error"] is not None]


def compare_use(bed: GpuNode, job_id: str, name: str, summary: dict[str, Any]) -> None:
    """The members' modelled SM activity and energy against what the GPU says."""
    pack = bed.find_pack(job_id)
    members = [row for row in read_rows(pack, "members") if row["last_step_at"]]
    numbers = [member["member"] for member in summary["members"]]
    firsts = [find_first_step_at(members, number) for number in numbers]
    lasts = [max(r["last_step_at"] for r in members if r["member"] == n) for n in numbers]
    gpu = read_rows(pack, "gpu")
    window = (max(firsts), min(lasts))
    measured = compute_mean(gpu, "sm_active", window)
    modelled = sum(member["sm_share"]["value"] for member in summary["members"])
    rest = summary["unexplained"]
    found = {
        "whole pack, by the report": {
            kind: {
                **rest[kind],
                "error": round_error(rest[kind]["explained"], rest[kind]["measured"]),
            }
            for kind in ("sm_active", "energy_j")
        },
        "while all train": {
            "window_s": round(window[1] - window[0], 2),
            "sm_active": measured,
            "members_sum": modelled,
            "error": round_error(modelled, measured),
            "power_w": compute_mean(gpu, "power_w", window),
            "dram_active": compute_mean(gpu, "dram_active", window),
        },
        "slowdowns": [member["slowdown"] for member in summary["members"]],
        "stp": summary["pack"]["stp"],
    }
    keep(bed, found, "packs", name, "use")
    keep(
        bed,
        {
            "while all train": found["while all train"]["error"],
            "sm_active": found["whole pack, by the report"]["sm_active"]["error"],
            "energy_j": found["whole pack, by the report"]["energy_j"]["error"],
        },
        "results",
        f"use, {name}",
    )
    tell(f"{name}: STP {summary['pack']['stp']:.2f}; {found['while all train']}")
    tell(f"{name}: {found['whole pack, by the report']}")
    assert measured is not None


def compare_cost(bed: GpuNode, job_id: str, name: str) -> None:
    """What the monitor itself used."""
    record = read_monitor_record(bed.find_pack(job_id))
    wall_s = record["written_at"] - record["started_at"]
    found = {
        "goals": {"cpu_cores": 0.01, "rss_peak_mb": 80},
        "cpu_cores, its start and end included": round(record["cpu_s"] / wall_s, 5),
        "cpu_s": record["cpu_s"],
        "wall_s": round(wall_s, 2),
        "cpu_cores, between two looks": RESULTS["packs"][name]["monitor_settled"]["cpu_cores"],
        "rss_peak_mb": record["rss_peak_mb"],
        "own_memory_mb": record["own_memory_mb"],
        "threads": RESULTS["packs"][name]["monitor_memory"].get("status", {}).get("Threads"),
        "ticks": [record["ticks_due"], record["ticks_taken"]],
        "gaps": record["gaps"],
    }
    keep(bed, found, "results", f"monitor, {name}")
    keep(bed, record["capabilities"], "packs", name, "capabilities")
    tell(f"{name}: monitor {found}")
    sources = {
        metric: f"{state['source']} {state['state']} {state['detail']}".strip()
        for metric, state in sorted(record["capabilities"].items())
    }
    if RESULTS.get("sources") != sources:
        keep(bed, sources, "sources")
        tell(f"{name}: metrics {json.dumps(sources, indent=1)}")
    assert record["rss_peak_mb"] is not None


def compare_delays(
    bed: GpuNode, job_id: str, summary: dict[str, Any], workers: Sequence[int]
) -> list[dict[str, Any]]:
    """Each member's wait for data by the report against its program's own; `workers` by member."""
    rows = read_rows(bed.find_pack(job_id), "members")
    found = []
    for member, count in zip(summary["members"], workers, strict=True):
        number = member["member"]
        times, waited, slept, _ = read_series(bed, job_id, number)
        window = clip(find_settled_window(member, find_first_step_at(rows, number)), times)
        truth = compute_rise_per_s(times, waited, window)
        said = member["stall"]["data"]
        found.append(
            {
                "workers": count,
                "report": said,
                "program": round(truth, 5),
                "slept": round(compute_rise_per_s(times, slept, window), 5) or None,
                "points": None if said is None else round(100 * (said - truth), 3),
                "printed": read_printed(bed, job_id, number),
            }
        )
    keep(bed, {"goal_points": 5, "members": found}, "results", "delays")
    for row in found:
        tell(f"{row['workers']} workers: stall {row['report']}, program {row['program']}")
    return found


# -- what measuring costs -----------------------------------------------------------------------

GOAL_PERCENT = 0.5
STEPS_IN_UNIT = 4


def judge_pairs(
    bed: GpuNode, gpu_rows: list[dict[str, Any]], text: str, told: dict[str, Any]
) -> None:
    """Keep and tell what counting and monitor cost, each with its interval.

    Args:
        bed: Where.
        gpu_rows: The pack's samples of its GPU, one at each tick.
        text: The units.
        told: What paired.py has printed: cores, and both clocks at begin and end.
    """
    units = parse_units(text)
    ticks = convert_to_monotonic(
        sorted({float(row["at"]) for row in gpu_rows}), [tuple(pair) for pair in told["clocks"]]
    )
    timeline = Timeline(units, ticks)
    took_ms = [1000 * unit.took_s / STEPS_IN_UNIT for unit in units]
    machine = {
        **told,
        "units": len(units),
        "ticks": len(ticks),
        "segments": len(timeline.find_segments()),
        "step_ms_deciles": [round(value, 4) for value in statistics.quantiles(took_ms, n=10)],
    }
    keep(bed, machine, "pairs")
    trimmed, plain = estimate_instrument(units)
    lost = estimate_ticks(timeline)
    presence = estimate_presence(timeline)
    out = round(100 * TRIMMED)
    _tell_cost(
        bed, "instrument", trimmed, others={"plain_mean": plain}, percent_trimmed_at_each_end=out
    )
    _tell_cost(bed, "ticks", lost.ticks, met=lost.met)
    _tell_cost(bed, "control", lost.control)
    _tell_cost(
        bed, "between ticks", presence.fast_mode, others={"low_quantile": presence.low_quantile}
    )
    total = add_up([trimmed, lost.ticks, presence.fast_mode])
    _tell_cost(bed, "total", total)
    assert trimmed is not None, "no group of units"
    assert lost.met, "no tick of the monitor met the training"
    assert len(told["cpus"]) > 1


def _tell_cost(
    bed: GpuNode,
    name: str,
    found: Estimate | None,
    others: dict[str, Estimate | None] | None = None,
    **more: int,
) -> None:
    """Keep an estimate, and others of the same thing, and print a line."""
    value: dict[str, Any] = {"goal_percent": GOAL_PERCENT, **_to_json(found), **more}
    told = _describe(found)
    for other, one in (others or {}).items():
        value[other] = _to_json(one)
        told += f"; {other.replace('_', ' ')} {_describe(one)}"
    told += "".join(f"; {key.replace('_', ' ')} {number}" for key, number in more.items())
    keep(bed, value, "results", f"cost, {name}")
    tell(f"cost, {name}: {told}")


def _to_json(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {**dict.fromkeys(field.name for field in dataclasses.fields(Estimate)), "n": 0}
    return dataclasses.asdict(found)


def _describe(found: Estimate | None) -> str:
    if found is None:
        return "unknown"
    ends = f"{_show(found.low)} to {_show(found.high)}"
    return f"{_show(found.mean)} ({ends}), median {_show(found.median)}, n {found.n}"


def _show(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f} %"
