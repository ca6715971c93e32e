"""What the monitor says of packs on a real GPU, against what programs and driver say themselves.

Figures are written and printed, and not judged: a test fails where a pack fails, where a figure is
missing, or where the report breaks its own rules. See run.sh for what lies where. With
CSUB_GPU_SIMULATED=1 all of it runs on the sandbox's simulated GPU, and figures mean nothing.
"""

from __future__ import annotations

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

from slurm_colloc.report.pack_summary import build_summary

from .compared import (
    compare_cost,
    compare_delays,
    compare_memory,
    compare_rates,
    compare_use,
    judge_pairs,
    judge_rates,
    look_at,
)
from .figures import RESULTS, STARTED_S, keep, tell
from .gpu_node import HERE, GpuNode, read_number, running_gpu_node
from .trainings import read_printed
from .watched import (
    OPTIONS,
    Recordings,
    read_report,
    read_rows,
    show,
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
PAIRS_S = read_number("CSUB_GPU_PAIRS_S", 150)
SEGMENT_S = read_number("CSUB_GPU_SEGMENT_S", 4)
# The suite is run where time is short: what is less needed is left out rather than cut off.
BUDGET_S = read_number("CSUB_GPU_BUDGET_S", 488)
PATIENCE_S = 240.0
# Start and end of a pack, which are not training, and what comes after the last one.
LAST_PACK_S = 34.0
ALL_PARTS = ("alone", "timeslice", "mps", "pairs", "delayed", "mps-unlimited")
PARTS = os.environ.get("CSUB_GPU_PARTS", " ".join(ALL_PARTS)).split()


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    """One Slurm and one user for all of it."""
    with running_gpu_node(archive="kept-measuring.tar.gz") as found:
        keep(found, found.gpu_before, "gpu")
        keep(found, found.is_simulated, "simulated")
        yield found


@pytest.fixture(scope="module")
def recordings(bed: GpuNode) -> Recordings:
    """What is kept of all packs."""
    return Recordings(bed.out / "measuring.tar.gz")


@pytest.fixture(scope="module")
def training(bed: GpuNode) -> Path:
    """The script of all trainings; libraries and kernels have been read from disk once."""
    script = write_training(bed)
    program = [sys.executable, str(HERE / "train_small.py"), "--seconds", "1"]
    program += ["--device", "cpu", "--batch", "2"] if bed.is_simulated else []
    bed.user.run([*program, "--progress", str(bed.user.home / "warm")])
    return script


def leave_out_unless_asked_for(part: str) -> None:
    """Skip a part that CSUB_GPU_PARTS does not name."""
    unknown = set(PARTS) - set(ALL_PARTS)
    assert not unknown, f"CSUB_GPU_PARTS: no such parts {sorted(unknown)}; {' '.join(ALL_PARTS)}"
    if part not in PARTS:
        pytest.skip(f"{part} is not in CSUB_GPU_PARTS")


# -- one pack --------------------------------------------------------------------------------------


def finish(bed: GpuNode, recordings: Recordings, name: str, job_id: str) -> dict[str, Any]:
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


# -- a training alone, and many --------------------------------------------------------------------


def test_a_training_alone_makes_its_profile(
    bed: GpuNode, recordings: Recordings, training: Path
) -> None:
    leave_out_unless_asked_for("alone")
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
    bed: GpuNode, recordings: Recordings, training: Path, name: str
) -> None:
    leave_out_unless_asked_for(name)
    share = {"timeslice": "timeslice", "mps": "mps!"}[name]
    measure_many(bed, recordings, training, name, share, limit_threads=True)


def measure_many(
    bed: GpuNode,
    recordings: Recordings,
    training: Path,
    name: str,
    share: str,
    *,
    limit_threads: bool,
) -> None:
    """Run a pack of trainings, look at it from outside, and compare."""
    tell(name)
    members = bed.scale.members
    write_options(bed, SHARED_S, limit_threads=limit_threads)
    # Its profile is there; where it were not, none would be made in a pack.
    words = ["--no-pause", f"--share={share}", f"--degree={members}", *OPTIONS]
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


# -- what it costs ---------------------------------------------------------------------------------


def test_what_watching_costs_is_measured_in_pairs(
    bed: GpuNode, recordings: Recordings, training: Path
) -> None:
    del training
    leave_out_unless_asked_for("pairs")
    units = bed.user.home / "progress" / "units.csv"
    words = ["paired.py", "--units", str(units), f"--seconds={PAIRS_S:g}"]
    script = write_program(bed, "paired.sh", [*words, f"--segment={SEGMENT_S:g}"])
    job_id = bed.submit("paired", *OPTIONS, "--cpus-per-task=4", str(script))
    tell(f"pairs: {PAIRS_S:g} s in segments of {SEGMENT_S:g} s")
    finish(bed, recordings, "paired", job_id)
    text = units.read_text()
    (bed.out / "measuring.csv").write_text(text)
    judge_pairs(bed, read_rows(bed.find_pack(job_id), "gpu"), text, read_printed(bed, job_id, 1))


# -- data stalls -----------------------------------------------------------------------------------


def test_injected_delays_of_data_are_found_again(
    bed: GpuNode, recordings: Recordings, training: Path
) -> None:
    del training
    leave_out_unless_asked_for("delayed")
    scripts = []
    for workers in (0, 2):
        # Workers sleep side by side.
        delay_ms = DELAY_MS * (1 if workers == 0 else 2 * workers)
        words = ["train_delayed.py", f"--delay-ms={delay_ms:g}", f"--workers={workers}"]
        words.append(f"--seconds={DELAYED_S:g}")
        scripts.append(write_program(bed, f"delayed.{workers}.sh", words, progress=True))
    tell("delayed data")
    # What they are alone is of no interest here.
    options = ["--no-pause", "--share=timeslice", "--degree=2", *OPTIONS, "--cpus-per-task=2"]
    job_id = bed.submit("delayed", "pack", *options, *map(str, scripts))
    summary = finish(bed, recordings, "delayed", job_id)
    found = compare_delays(bed, job_id, summary, (0, 2))
    for member, row in zip(summary["members"], found, strict=True):
        assert member["progress"] == "optimizer"
        assert member["samples"]
        assert row["report"] is not None
        # Without a wait there is nothing to find; where processors are slow, two workers suffice.
        assert row["program"] > 0.05 or (bed.is_simulated and row["workers"])


# -- at the end ------------------------------------------------------------------------------------


def test_members_without_thread_limits_are_measured_where_time_is_left(
    bed: GpuNode, recordings: Recordings, training: Path
) -> None:
    leave_out_unless_asked_for("mps-unlimited")
    left_s = BUDGET_S - (time.monotonic() - STARTED_S)
    keep(bed, round(left_s), "seconds_left_before_the_last_pack")
    if left_s < SHARED_S + LAST_PACK_S:
        pytest.skip(f"{left_s:.0f} s are left")
    measure_many(bed, recordings, training, "mps-unlimited", "mps!", limit_threads=False)
    limits = RESULTS["packs"]["mps-unlimited"]["thread_percentages"]
    assert set(limits) == {"100"}


def test_the_recordings_give_the_same_figures_again(
    bed: GpuNode, recordings: Recordings, tmp_path: Path
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


def test_nothing_of_the_monitor_is_left(bed: GpuNode) -> None:
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
