"""An unknown job runs alone first: its neighbours wait, then start; what it shows is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..wait_until import wait_until
from .conftest import CsubUser
from .mps import explained, journal, pack_directory, write_settings

pytestmark = pytest.mark.slurm

GPU = ("--share=mps", "--gres=gpu:1", "-c1", "--mem=1G")
LONG = (*GPU, "--time=30")

# Without PyTorch, so it says itself how far it is. It uses the simulated GPU through a child.
TRAIN = """\
import subprocess, sys, time
from pathlib import Path
from slurm_colloc import progress

use = subprocess.Popen(["simgpu", "run", "--seconds=300", "--gpu-memory=2G", "--sm=20"])
stop = Path(sys.argv[1])
while not stop.exists():
    time.sleep(0.02)
    progress.step(samples=8)
use.kill()
"""


def write_training(user: CsubUser) -> Path:
    """A training that runs until a file is there; the file."""
    stop = user.home / "stop"
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", f'exec python3 "$HOME/train.py" {stop}')
    return stop


def read_summary(user: CsubUser, job_id: str) -> dict[str, Any]:
    (summary,) = json.loads(user.csub("report", "--json", job_id).stdout)
    return dict(summary)


def count_steps(user: CsubUser, job_id: str, number: int) -> int:
    latest = json.loads((pack_directory(user, job_id) / "latest.json").read_text())
    return int(latest["members"].get(str(number), {}).get("steps") or 0)


def states(user: CsubUser, job_id: str) -> list[str]:
    return [row["state"] for _, row in sorted(user.members(job_id).items())]


def test_the_first_of_a_family_runs_alone_until_its_rate_is_steady(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user)
    words = ("train.sh --lr 0.1", "train.sh --lr 0.2", "train.sh --lr 0.3")
    job_id = user.submit("pack", *LONG, *words)
    user.wait_for_states(job_id, {1: "RUNNING"})
    wait_until(lambda: "alone first" in user.members(job_id)[3]["reason"], "it says why it waits")
    assert states(user, job_id) == ["RUNNING", "PENDING", "PENDING"]
    assert f"waits: {job_id}/1 runs alone first, 200 s at most" in user.csub(
        "why", f"{job_id}/2"
    ).stdout.replace("\n", " ")
    with explained(user, job_id):
        wait_until(lambda: journal(user, job_id, "probed"), "the window is over", patience_s=120)
    user.wait_for_states(job_id, "RUNNING")
    (over,) = journal(user, job_id, "probed")
    # On a busy machine no rate may be steady.
    assert over["member"] == 1
    assert over["reason"].startswith(("its rate is steady", "the mean of its rate is known to"))
    # A limit would have held as long as the process lives.
    limits = [event["gpu"]["thread_percentage"] for event in journal(user, job_id, "start")]
    assert limits[0] == 100
    assert set(limits[1:]) == {66}
    with explained(user, job_id):
        wait_until(lambda: count_steps(user, job_id, 3) >= 1000, "all have shared for a while")
    stop.touch()
    user.finish(job_id)
    # csub wait has waited for it.
    assert (pack_directory(user, job_id) / "report" / "summary.json").exists()
    members = read_summary(user, job_id)["members"]
    assert [member["solo"]["source"] for member in members] == ["this run", "family", "family"]
    assert all(member["slowdown"] > 0.5 for member in members)
    (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
    assert profile["steps_per_s"]["n"] == 1
    # Known now, and so is the rest of its family.
    again = user.submit("pack", *LONG, "train.sh --lr 0.1", "train.sh --lr 0.15")
    user.finish(again)
    assert journal(user, again, "probe") == []


def test_neighbours_start_when_the_probed_one_has_ended(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user)
    job_id = user.submit("pack", *LONG, "train.sh", "train.sh", "train.sh")
    user.wait_for_states(job_id, {1: "RUNNING"})
    wait_until(lambda: "alone first" in user.members(job_id)[2]["reason"], "it says why it waits")
    user.csub("cancel", "--yes", f"{job_id}/1")
    # Nothing is known yet; but a pack waits for one of its members only.
    user.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING", 3: "RUNNING"})
    assert [event["member"] for event in journal(user, job_id, "probe")] == [1]
    assert [event["reason"] for event in journal(user, job_id, "probed")] == ["it has ended"]
    assert not user.members(job_id)[2]["reason"]
    stop.touch()
    user.finish(job_id)


def test_who_has_no_neighbours_just_runs(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user)
    job_id = user.submit(*LONG, "--degree=2", "train.sh")
    user.wait_for_states(job_id, {1: "RUNNING"})
    stop.touch()
    user.finish(job_id)
    assert journal(user, job_id, "probe") == []


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"probe": False}, LONG),
        ({}, (*LONG, "--no-probe")),
        ({}, (*GPU, "--time=10")),
        ({}, (*GPU[:3], "--mem=100M", "--time=30")),
    ],
    ids=["setting", "option", "short", "unwatched"],
)
def test_who_is_not_probed(
    mps_user: CsubUser, settings: dict[str, Any], options: tuple[str, ...]
) -> None:
    user = mps_user
    write_settings(user, **settings)
    user.script("short.sh", "sleep 1")
    job_id = user.submit("pack", *options, "short.sh", "short.sh")
    user.finish(job_id)
    assert journal(user, job_id, "probe") == []


def test_who_cannot_start_holds_nobody_up(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user)
    job_id = user.submit("pack", *LONG, "--hold", "train.sh", "train.sh")
    # Its runner finds nothing to start it with.
    (pack_directory(user, job_id) / "members" / "0001" / "env").unlink()
    user.csub("release", job_id)
    user.wait_for_states(job_id, {1: "FAILED", 2: "RUNNING"})
    assert [event["member"] for event in journal(user, job_id, "probe")] == [1, 2]
    stop.touch()
    user.finish(job_id)


def test_time_slices_are_probed_too(mps_user: CsubUser) -> None:
    user = mps_user
    stop = write_training(user)
    job_id = user.submit("pack", *LONG, "--share=timeslice", "train.sh", "train.sh")
    user.wait_for_states(job_id, {1: "RUNNING"})
    wait_until(lambda: journal(user, job_id, "probe"), "the first is probed")
    stop.touch()
    user.finish(job_id)


@pytest.mark.smoke
def test_probe_ends_by_itself_and_shows_the_usage_profile(mps_user: CsubUser) -> None:
    user = mps_user
    write_training(user)
    with_a_day = ("--gres=gpu:1", "-c1", "--mem=1G", "--time=1-0")
    told = user.csub("probe", "--wait", *with_a_day, "train.sh", "--lr", "0.1")
    assert "Signature:" in told.stdout
    (row,) = user.members("last").values()
    assert (row["state"], row["reason"]) == ("CANCELLED", "its probe window is over")
    (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
    assert profile["steps_per_s"]["mean"] > 0
    assert profile["gpu_memory_peak_mb"] >= 2048
    # The run itself is of the same signature.
    job_id = user.submit("pack", *LONG, "train.sh --lr 0.1", "train.sh --lr 0.2")
    user.wait_for_states(job_id, "RUNNING")
    assert journal(user, job_id, "probe") == []
    user.csub("cancel", "--yes", job_id)


def test_probe_refuses_what_it_cannot_do(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("tell.sh", "true")
    told = user.csub("probe", "tell.sh", check=False)
    assert told.returncode == 2
    assert "tell.sh asks for no GPU" in told.stderr
    told = user.csub("probe", "--array=1-2", "--gres=gpu:1", "tell.sh", check=False)
    assert told.returncode == 2
    assert "takes one job" in told.stderr
    told = user.csub("probe", "--gres=gpu:1", "--mem=100M", "tell.sh", check=False)
    assert told.returncode == 2
    assert "csub probe would measure nothing: --mem is 100 MB" in told.stderr
    assert user.csub("queue").stdout.count("\n") <= 1
