"""What the monitor says of packs on a real GPU, against what programs and driver say themselves.

Figures are written and printed, and not judged: a test fails where a pack fails, where a figure is
missing, or where the report breaks its own rules. See run.sh for what lies where. With
CSUB_GPU_SIMULATED=1 all of it runs on the sandbox's simulated GPU, and figures mean nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.report.summary import build_summary

from .bed import HERE, Bed, read_number, running_bed
from .comparison import (
    compute_error,
    compute_mean,
    compute_rise_per_s,
    compute_slowdown,
    describe,
    find_nearest,
    find_settled_window,
    parse_counters,
    parse_segments,
)
from .trainings import read_printed
from .watched import (
    OPTIONS,
    Recordings,
    find_monitor,
    keep_long_output,
    read_cpu_s,
    read_monitor_record,
    read_progress,
    read_report,
    read_rows,
    show,
    take_look,
    wait_until_all_train,
    write_options,
    write_program,
    write_training,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(300),
]

# A usage profile is made of 20 s alone after a warm-up of 10 s.
ALONE_S = read_number("CSUB_GPU_ALONE_S", 34)
SHARED_S = read_number("CSUB_GPU_SHARED_S", 30)
DELAYED_S = read_number("CSUB_GPU_DELAYED_S", 22)
DELAY_MS = read_number("CSUB_GPU_DELAY_MS", 12)
PHASES = os.environ.get("CSUB_GPU_PHASES", "both:2.5:10 one-core:2.5:5 instrument:1:7").split()
CALLS = int(read_number("CSUB_GPU_CALLS", 50))
LOOKS = 3
# The suite is run where time is short: what is less needed is left out rather than cut off.
BUDGET_S = read_number("CSUB_GPU_BUDGET_S", 488)
PATIENCE_S = 240.0
# Start and end of a pack, which are not training, and what comes after the last one.
LAST_PACK_S = 34.0
BATCH_OF = {False: 128, True: 2}
STARTED_S = time.monotonic()
RESULTS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """One Slurm and one user for all of it."""
    with running_bed(archive="kept-measuring.tar.gz") as found:
        keep(found, found.gpu_before, "gpu")
        keep(found, found.is_simulated, "simulated")
        yield found


@pytest.fixture(scope="module")
def recordings(bed: Bed) -> Recordings:
    """What is kept of all packs."""
    return Recordings(bed.out / "measuring.tar.gz")


@pytest.fixture(scope="module")
def training(bed: Bed) -> Path:
    """The script of all trainings; libraries and kernels have been read from disk once."""
    script = write_training(bed)
    program = [sys.executable, str(HERE / "train_small.py"), "--seconds", "1"]
    program += ["--device", "cpu", "--batch", "2"] if bed.is_simulated else []
    bed.user.run([*program, "--progress", str(bed.user.home / "warm")])
    return script


def keep(bed: Bed, value: Any, *path: str) -> None:
    """Write a result under names from outside to inside, before it is judged."""
    place = RESULTS
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    bed.write("measuring.json", RESULTS)


def tell(text: str) -> None:
    """Print a line, with the time since the suite began."""
    print(f"\n{time.monotonic() - STARTED_S:5.0f} s  {text}", end="")


def round_error(value: float | None, truth: float | None) -> float | None:
    error = compute_error(value, truth)
    return None if error is None else round(error, 5)


# -- one pack --------------------------------------------------------------------------------------


def finish(bed: Bed, recordings: Recordings, name: str, job_id: str) -> dict[str, Any]:
    """Wait for a pack's end, keep what it left, and return its summary."""
    rows = bed.finish(job_id, patience_s=PATIENCE_S)
    recordings.jobs[name] = job_id
    summary = read_report(bed, job_id)
    recordings.texts[f"reports/{name}.json"] = json.dumps(summary, indent=1)
    recordings.write(bed)
    keep(bed, summary, "packs", name, "summary")
    show(bed, "report", job_id)
    states = {row["state"] for row in rows.values()}
    assert states == {"COMPLETED"}, bed.user.describe(job_id)
    assert summary["final"] is True
    assert summary["coverage"]["not_watched"] is None
    return summary


def compare_rates(bed: Bed, job_id: str, summary: dict[str, Any]) -> list[dict[str, Any]]:
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
    known = [r["first_step_at"] for r in rows if r["member"] == number and r["first_step_at"]]
    return float(known[-1])


def read_series(bed: Bed, job_id: str, number: int) -> list[tuple[float, ...]]:
    """Columns of a member's own progress, its moments in seconds since the epoch."""
    times, *others = parse_counters(read_progress(bed, job_id, number))
    offset_s = time.time() - time.monotonic()
    return [tuple(moment + offset_s for moment in times), *others]


def clip(window: tuple[float, float], times: tuple[float, ...]) -> tuple[float, float]:
    return max(window[0], times[0]), min(window[1], times[-1])


def judge_rates(bed: Bed, name: str, rates: list[dict[str, Any]]) -> None:
    keep(bed, rates, "packs", name, "rates")
    worst = max(abs(rate["error"]) for rate in rates)
    keep(bed, {"goal": 0.01, "worst_error": worst}, "results", f"rates, {name}")
    tell(f"{name}: rates differ from the programs' own by {worst:.3%} at most (goal 1 %)")


# -- a training alone, and many --------------------------------------------------------------------


def test_a_training_alone_makes_its_profile(
    bed: Bed, recordings: Recordings, training: Path
) -> None:
    tell("a training alone")
    write_options(bed, ALONE_S)
    job_id = bed.submit("alone", *OPTIONS, "--cpus-per-task=1", str(training))
    summary = finish(bed, recordings, "alone", job_id)
    judge_rates(bed, "alone", compare_rates(bed, job_id, summary))
    (member,) = summary["members"]
    profiles = json.loads(bed.user.csub("profile", "list", "--json").stdout)
    keep(bed, profiles, "profiles")
    show(bed, "profile", "list")
    tell(f"alone: SM active {member['sm_share']}, energy {member['energy_j']}")
    assert member["slowdown"] == 1
    assert member["sm_share"]["attribution"] == "exact"
    (profile,) = profiles
    assert profile["gpu_model"] == summary["gpu"]["model"]
    assert profile["steps_per_s"]["mean"] == pytest.approx(member["rate"]["steps_per_s"], rel=0.05)
    for name in ("sm_active", "energy_w", "gpu_memory_peak_mb"):
        assert profile[name] is not None, name


@pytest.mark.parametrize("name", ["timeslice", "mps"])
def test_many_that_share_are_measured(
    bed: Bed, recordings: Recordings, training: Path, name: str
) -> None:
    share = {"timeslice": "timeslice", "mps": "mps!"}[name]
    measure_many(bed, recordings, training, name, share, limit_threads=True)


def measure_many(
    bed: Bed, recordings: Recordings, training: Path, name: str, share: str, *, limit_threads: bool
) -> None:
    """Run a pack of trainings, look at it from outside, and compare."""
    tell(name)
    members = bed.scale.members
    write_options(bed, SHARED_S, limit_threads=limit_threads)
    # Its profile is there; where it were not, none would be made in a pack.
    words = ["--no-probe", f"--share={share}", f"--degree={members}", *OPTIONS]
    words.append("--cpus-per-task=1")
    job_id = bed.submit(name, "pack", *words, *[str(training)] * members)
    wait_until_all_train(bed, job_id, members)
    tell(f"{name}: all train")
    looks = look_at(bed, recordings, job_id, name)
    summary = finish(bed, recordings, name, job_id)
    setup = bed.read_setup(job_id)
    printed = [read_printed(bed, job_id, number) for number in range(1, members + 1)]
    keep(bed, [row["thread_percentage"] for row in printed], "packs", name, "thread_percentages")
    judge_rates(bed, name, compare_rates(bed, job_id, summary))
    memory = compare_memory(bed, job_id, name, looks)
    compare_use(bed, job_id, name, summary)
    compare_cost(bed, job_id, name)
    if not bed.is_simulated:
        recordings.write(bed)
    assert setup["mode"] == share.removesuffix("!")
    for member in summary["members"]:
        # Its script has run alone before.
        assert member["solo"]["source"] == "profile"
        assert member["slowdown"] > 0
        assert member["sm_share"]["attribution"] == "modelled"
        assert member["energy_j"]["attribution"] == "modelled"
        assert member["gpu_memory_mb"]["attribution"] == "per_process"
    assert {row["member"] for row in memory} == set(range(1, members + 1))
    assert summary["unexplained"]["sm_active"]["members_unknown"] == []
    assert summary["pack"]["stp"] is not None


def look_at(bed: Bed, recordings: Recordings, job_id: str, name: str) -> list[dict[str, Any]]:
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
    over_s = after[0] - before[0]
    used = None
    if before[1] is not None and after[1] is not None:
        used = round((after[1] - before[1]) / over_s, 5)
    found = {"cpu_cores": used, "over_s": round(over_s, 2)}
    keep(bed, found, "packs", name, "monitor_settled")
    return looks


def measure_calls(bed: Bed, name: str) -> None:
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
    bed: Bed, job_id: str, name: str, looks: list[dict[str, Any]]
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


def compare_use(bed: Bed, job_id: str, name: str, summary: dict[str, Any]) -> None:
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


def compare_cost(bed: Bed, job_id: str, name: str) -> None:
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


# -- what it costs ---------------------------------------------------------------------------------


def test_what_watching_costs_is_measured_in_pairs(
    bed: Bed, recordings: Recordings, training: Path
) -> None:
    del training
    segments = bed.user.home / "progress" / "segments.csv"
    script = write_program(bed, "paired.sh", ["paired.py", "--segments", str(segments), *PHASES])
    job_id = bed.submit("paired", *OPTIONS, "--cpus-per-task=4", str(script))
    tell(f"pairs: {' '.join(PHASES)}")
    finish(bed, recordings, "paired", job_id)
    text = segments.read_text()
    (bed.out / "measuring.csv").write_text(text)
    told = read_printed(bed, job_id, 1)
    keep(bed, told, "pairs", "machine")
    every = parse_segments(text)
    for words in PHASES:
        phase, _, groups = words.split(":")
        found = compute_slowdown([one for one in every if one.phase == phase])
        keep(bed, {"goal_percent": 0.5, **dataclasses.asdict(found)}, "results", f"cost, {phase}")
        tell(
            f"{phase}: {show_percent(found.mean)} ({show_percent(found.low)} to "
            f"{show_percent(found.high)}), median {show_percent(found.median)}, {found.groups} "
            f"groups, {found.step_ms:.3f} ms a step, monitor {found.monitor_share} of a core"
        )
        assert found.groups == int(groups)
    assert len(told["cpus"]) > 1


def show_percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.3f} %"


# -- data stalls -----------------------------------------------------------------------------------


def test_injected_delays_of_data_are_found_again(
    bed: Bed, recordings: Recordings, training: Path
) -> None:
    del training
    scripts = []
    for workers in (0, 2):
        # Workers sleep side by side.
        delay_ms = DELAY_MS * (1 if workers == 0 else 2 * workers)
        words = ["train_delayed.py", f"--delay-ms={delay_ms:g}", f"--workers={workers}"]
        words.append(f"--seconds={DELAYED_S:g}")
        scripts.append(write_program(bed, f"delayed.{workers}.sh", words, progress=True))
    tell("delayed data")
    # What they are alone is of no interest here.
    options = ["--no-probe", "--share=timeslice", "--degree=2", *OPTIONS, "--cpus-per-task=2"]
    job_id = bed.submit("delayed", "pack", *options, *map(str, scripts))
    summary = finish(bed, recordings, "delayed", job_id)
    rows = read_rows(bed.find_pack(job_id), "members")
    found = []
    for member, workers in zip(summary["members"], (0, 2), strict=True):
        number = member["member"]
        times, waited, slept, _ = read_series(bed, job_id, number)
        window = clip(find_settled_window(member, find_first_step_at(rows, number)), times)
        truth = compute_rise_per_s(times, waited, window)
        said = member["stall"]["data"]
        found.append(
            {
                "workers": workers,
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
    for member, row in zip(summary["members"], found, strict=True):
        assert member["progress"] == "optimizer"
        assert member["samples"]
        assert row["report"] is not None
        # Without a wait there is nothing to find; where processors are slow, two workers suffice.
        assert row["program"] > 0.05 or (bed.is_simulated and row["workers"])


# -- at the end ------------------------------------------------------------------------------------


def test_members_without_thread_limits_are_measured_where_time_is_left(
    bed: Bed, recordings: Recordings, training: Path
) -> None:
    left_s = BUDGET_S - (time.monotonic() - STARTED_S)
    keep(bed, round(left_s), "seconds_left_before_the_last_pack")
    if left_s < SHARED_S + LAST_PACK_S:
        pytest.skip(f"{left_s:.0f} s are left")
    measure_many(bed, recordings, training, "mps-unlimited", "mps!", limit_threads=False)
    limits = RESULTS["packs"]["mps-unlimited"]["thread_percentages"]
    assert set(limits) == {"100"}


def test_the_recordings_give_the_same_figures_again(
    bed: Bed, recordings: Recordings, tmp_path: Path
) -> None:
    recordings.write(bed)
    subprocess.run(["tar", "-xzf", recordings.path, "-C", tmp_path], check=True)
    names = json.loads((tmp_path / "names.json").read_text())
    size_kb = recordings.path.stat().st_size // 1024
    tell(f"recordings: {sorted(names)}, {size_kb} KiB")
    keep(bed, {"packs": sorted(names), "kib": size_kb}, "recordings")
    for name, place in names.items():
        state = tmp_path / "state"
        again = build_summary(state / "packs" / place["pack"], state)
        before = json.loads((tmp_path / "reports" / f"{name}.json").read_text())
        assert len(again["members"]) == len(before["members"]) > 0
        for one, other in zip(again["members"], before["members"], strict=True):
            for key in ("rate", "sm_share", "gpu_memory_mb", "stall", "steps", "energy_j"):
                assert one[key] == other[key], (name, key)
        assert again["unexplained"] == before["unexplained"]


def test_nothing_of_the_monitor_is_left(bed: Bed) -> None:
    after = bed.wait_until_nothing_is_left()
    keep(bed, after, "at_the_end")
    sums = {
        name: statistics.fmean(r["report_steps_per_s"] for r in pack["rates"])
        for name, pack in RESULTS.get("packs", {}).items()
        if "rates" in pack
    }
    tell(f"mean rates: {sums}")
    tell(json.dumps(RESULTS.get("results", {}), indent=1))
    assert after["left"] == {}
