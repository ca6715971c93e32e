"""Packs that are measured by pausing their members, on a real Slurm and a simulated GPU."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.system.node_processes import read_process
from slurm_colloc.store.member_states import read_pauses

from ..bed import CsubUser, administrate
from ..wait_until import wait_until
from .mps import explained, journal, pack_directory, write_settings

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=timeslice", "--gres=gpu:1", "-c1", "--mem=700M", "--time=30")
RATE = 20.0

# It trains on the simulated GPU, whose speed depends on who else runs there, and counts its steps.
TRAIN = """\
import os, subprocess, sys, time
from pathlib import Path
from slurm_colloc import progress

sm, stop = sys.argv[1], Path(sys.argv[2])
if os.environ.get("SLURM_ARRAY_TASK_ID") != "1":
    time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
name = os.environ["SLURM_COLLOC_MEMBER"].replace("/", ".")
Path("pid." + name).write_text(str(os.getpid()))
use = subprocess.Popen(
    ["simgpu", "run", "--seconds=600", "--gpu-memory=1G", "--sm=" + sm, "--rate=20", "--report"],
    stdout=subprocess.PIPE, text=True,
)
done = 0
for line in use.stdout:
    steps = int(line.split()[1])
    progress.step(samples=8, steps=steps - done)
    done = steps
    if stop.exists() or Path("stop." + name).exists():
        break
use.kill()
print("steps", done, flush=True)
"""


def write_training(user: CsubUser, sm: int, loading_s: float = 0.0) -> Path:
    """A training that takes a part of the SMs and runs until a file is there; the file.

    All but the first of an array load something before.
    """
    stop = user.home / "stop"
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", f'exec python3 "$HOME/train.py" {sm} {stop} {loading_s}')
    return stop


def read_degree(user: CsubUser, job_id: str) -> dict[str, Any]:
    """What the pack's runner has measured and decided."""
    try:
        return dict(json.loads((pack_directory(user, job_id) / "degree.json").read_text()))
    except FileNotFoundError:
        return {}


def wait_for_decision(user: CsubUser, job_id: str) -> dict[str, Any]:
    """Until it is decided how many run."""
    with explained(user, job_id):
        wait_until(
            lambda: read_degree(user, job_id).get("state") == "SETTLED",
            "it settles",
            patience_s=180,
        )
    return read_degree(user, job_id)


def find_state(user: CsubUser, job_id: str, number: int) -> str:
    """One letter of proc(5) for a member's training; empty where it has ended."""
    pid = int((user.home / f"pid.{job_id}.{number}").read_text())
    found = read_process(pid)
    return "" if found is None else found.state


def count_steps(user: CsubUser, job_id: str, number: int) -> int:
    """As the monitor has told last."""
    latest = json.loads((pack_directory(user, job_id) / "latest.json").read_text())
    return int(latest["members"].get(str(number), {}).get("steps") or 0)


def why(user: CsubUser, member: str) -> str:
    return " ".join(user.csub("why", member).stdout.split())


def test_an_unknown_array_is_measured_and_all_go_on(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user, 8)
    words = ("--gres=gpu:1", "-c1", "--mem=700M", "--time=30")
    job_id = user.submit("--array=1-4", *words, "train.sh")
    user.wait_for_states(job_id, {1: "RUNNING"})
    record = wait_for_decision(user, job_id)
    assert record["parked"] == []
    assert [point["degree"] for point in record["curve"]] == [1, 2, 4]
    assert record["curve"][-1]["stp"] > 3.2
    (alone,) = [rate for rate in record["rates_alone"] if rate["source"] == "pausing"]
    assert alone["steps_per_s"] == pytest.approx(RATE, rel=0.15)
    # They are alike, so they share the GPU's threads, but for the first one.
    limits = [event["gpu"]["thread_percentage"] for event in journal(user, job_id, "start")]
    assert limits == [100, 50, 50, 50]
    stop.touch()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    pauses = read_pauses(pack_directory(user, job_id))
    assert pauses
    assert all(pause.end is not None for pause in pauses)


def test_what_is_printed_is_measured_and_the_report_has_what_sharing_cost(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    stop = user.home / "stop"
    text = TRAIN.replace("from slurm_colloc import progress\n", "").replace(
        "    progress.step(samples=8, steps=steps - done)\n",
        "    if steps // 30 > done // 30:\n        print(f'epoch 1, step {steps}', flush=True)\n",
    )
    (user.home / "train.py").write_text(text)
    user.script("train.sh", f'exec python3 "$HOME/train.py" 8 {stop}')
    regex = r"--progress-regex=step (?P<step>\d+)"
    job_id = user.submit("pack", *OPTIONS, "--gpu-mem=2G", regex, "train.sh", "train.sh")
    record = wait_for_decision(user, job_id)
    (alone,) = [rate for rate in record["rates_alone"] if rate["source"] == "pausing"]
    assert alone["steps_per_s"] == pytest.approx(RATE, rel=0.2)
    stop.touch()
    user.finish(job_id)
    (summary,) = json.loads(user.csub("report", job_id, "--json").stdout)
    for member in summary["members"]:
        assert member["solo"]["steps_per_s"] == pytest.approx(RATE, rel=0.2)
        assert member["slowdown"] == pytest.approx(1.0, rel=0.3)


def test_what_waits_in_another_pack_starts_as_soon_as_its_kind_is_known(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    stop = write_training(user, 8, loading_s=25.0)
    # One GPU is free.
    held = ("--gres=gpu:3", "-c1", "--mem=100M", "--output=/dev/null", "--wrap", "exec sleep 900")
    holder = user.run(["sbatch", "--parsable", *held]).stdout.strip()
    try:
        wait_until(
            lambda: "RUNNING" in user.run(["squeue", "-h", "-o%T", f"-j{holder}"]).stdout, "it runs"
        )
        job_id = user.submit("--array=1-6", *OPTIONS[1:], "--mem=500M", "train.sh")
        user.wait_for_states(job_id, dict.fromkeys(range(1, 7), "RUNNING"))
        # What those from the other pack take was known from the first one.
        assert journal(user, job_id, "memory_unknown") == []
        assert wait_for_decision(user, job_id)["curve"][-1]["degree"] == 6
        stop.touch()
        rows = user.finish(job_id)
    finally:
        user.run(["scancel", holder])
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}


@pytest.mark.smoke
def test_who_is_too_many_is_parked_until_another_ends(mps_user: CsubUser) -> None:
    user = mps_user
    # Each takes all of the GPU: two together make no more than one.
    stop = write_training(user, 100)
    job_id = user.submit("pack", *OPTIONS, "--gpu-mem=2G", "--max-slowdown=1.3", *["train.sh"] * 3)
    record = wait_for_decision(user, job_id)
    assert (record["degree"], record["parked"]) == (1, [2, 3])
    assert find_state(user, job_id, 1) in "SR"
    assert [find_state(user, job_id, number) for number in (2, 3)] == ["T", "T"]
    assert "no more than 1 runs" in why(user, f"{job_id}/2")
    (user.home / f"stop.{job_id}.1").touch()
    user.wait_for_states(job_id, {1: "COMPLETED"})
    wait_until(lambda: find_state(user, job_id, 2) in "SR", "the second goes on")
    assert find_state(user, job_id, 3) == "T"
    # A cancel reaches a paused one, and what it prints is whole.
    user.csub("cancel", "--yes", f"{job_id}/3")
    user.wait_for_states(job_id, {3: "CANCELLED"})
    stop.touch()
    user.finish(job_id)


@pytest.mark.parametrize("which", ["runner", "guard"])
def test_a_kill_leaves_none_stopped(mps_user: CsubUser, which: str) -> None:
    user = mps_user
    stop = write_training(user, 100)
    options = ("--requeue", "--gpu-mem=2G", "--max-slowdown=1.3")
    job_id = user.submit("pack", *OPTIONS, *options, *["train.sh"] * 2)
    wait_for_decision(user, job_id)
    pids = [int((user.home / f"pid.{job_id}.{number}").read_text()) for number in (1, 2)]
    assert find_state(user, job_id, 2) == "T"
    pid = json.loads((pack_directory(user, job_id) / "runner.json").read_text())["pid"]
    if which == "guard":
        # Slurm then ends the job: the batch script is gone.
        runner = read_process(pid)
        assert runner is not None
        pid = runner.parent_pid
    os.kill(pid, signal.SIGKILL)

    def goes_on(pid: int) -> bool:
        found = read_process(pid)
        return found is None or found.state not in "Tt"

    wait_until(lambda: all(goes_on(pid) for pid in pids), "none is stopped", patience_s=60)
    stop.touch()
    user.finish(job_id)


@pytest.mark.long
def test_a_runner_that_hangs_leaves_none_stopped(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user, 100)
    job_id = user.submit("pack", *OPTIONS, "--gpu-mem=2G", "--max-slowdown=1.3", *["train.sh"] * 2)
    wait_for_decision(user, job_id)
    assert find_state(user, job_id, 2) == "T"
    runner = json.loads((pack_directory(user, job_id) / "runner.json").read_text())["pid"]
    os.kill(runner, signal.SIGSTOP)
    try:
        wait_until(lambda: find_state(user, job_id, 2) in "SR", "it goes on", patience_s=120)
    finally:
        os.kill(runner, signal.SIGCONT)
    wait_until(lambda: find_state(user, job_id, 2) == "T", "it is parked again")
    stop.touch()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    pauses = [p for p in read_pauses(pack_directory(user, job_id)) if p.member == 2]
    assert all(pause.end is not None for pause in pauses)


def test_who_is_parked_stays_so_when_slurm_has_suspended_the_job(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    stop = write_training(user, 100)
    job_id = user.submit("pack", *OPTIONS, "--gpu-mem=2G", "--max-slowdown=1.3", *["train.sh"] * 2)
    assert wait_for_decision(user, job_id)["parked"] == [2]
    administrate(user, "scontrol", "suspend", job_id)
    before = count_steps(user, job_id, 1)
    administrate(user, "scontrol", "resume", job_id)
    wait_until(lambda: count_steps(user, job_id, 1) > before + 5 * RATE, "the first goes on")
    # Slurm lets all processes of a job go on, those that it had not stopped among them.
    # It may have been a signal for the second: it is parked again a minute later.
    wait_until(lambda: find_state(user, job_id, 2) == "T", "the second is parked", patience_s=150)
    stop.touch()
    (user.home / f"stop.{job_id}.1").touch()
    user.finish(job_id)


@pytest.mark.parametrize("how", ["setting", "option"])
def test_who_does_not_want_it_is_never_paused(mps_user: CsubUser, how: str) -> None:
    user = mps_user
    if how == "setting":
        write_settings(user, pause=False)
    stop = write_training(user, 30)
    options = ("--no-pause",) if how == "option" else ()
    job_id = user.submit("pack", *OPTIONS, "--gpu-mem=2G", *options, *["train.sh"] * 2)
    user.wait_for_states(job_id, "RUNNING")
    wait_until(
        lambda: read_degree(user, job_id).get("state") == "OFF", "it says so", patience_s=120
    )
    reason = read_degree(user, job_id)["decisions"][-1]["reason"]
    assert re.match("nothing is measured: (the setting pause is off|none of them may be)", reason)
    stop.touch()
    user.finish(job_id)
    assert read_pauses(pack_directory(user, job_id)) == []


def test_what_was_measured_holds_for_others_that_would_join(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user, 100)
    options = ("--gpu-mem=2G", "--max-slowdown=1.3")
    job_id = user.submit("pack", *OPTIONS, *options, *["train.sh"] * 3)
    record = wait_for_decision(user, job_id)
    assert record["degree"] < 3
    words = ("--join", *OPTIONS, "--gpu-mem=2G", "--time=20", "train.sh")
    told = " ".join(user.csub("--explain", *words).stderr.split())
    assert "not joined: pack" in told
    assert "run at once" in told or "1 runs at once" in told
    stop.touch()
    user.finish(job_id)
