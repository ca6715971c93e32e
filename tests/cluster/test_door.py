"""Members that wait for GPU memory load PyTorch meanwhile, on a real Slurm and a simulated GPU."""

from __future__ import annotations

import os
import signal

import pytest

from slurm_colloc.store.member_states import AT_DOOR, read_pauses

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import explained, journal, pack_directory, runner_pid, write_settings

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

OPTIONS = ("--array=1-4", "--gres=gpu:1", "-c1", "--mem=900M", "--time=30", "--share=timeslice")

# PyTorch is the real one, of a build without CUDA: after its lazy start, which fails here as soon
# as it begins, the simulated GPU is used in its place. Two such programs fit.
TRAIN = """\
import os, subprocess
from pathlib import Path
import torch
from slurm_colloc import progress

name = os.environ["SLURM_COLLOC_MEMBER"].replace("/", ".")
def tell(what):
    with open(what + "." + name, "a") as file:
        print(os.getpid(), os.environ.get("SLURM_RESTART_COUNT", 0), file=file)

tell("loaded")
try:
    torch.cuda.init()
except (AssertionError, RuntimeError):
    tell("began")
use = subprocess.Popen(
    ["simgpu", "run", "--seconds=900", "--gpu-memory=50G", "--sm=8", "--rate=20", "--report"],
    stdout=subprocess.PIPE, text=True,
)
done = 0
for line in use.stdout:
    steps = int(line.split()[1])
    progress.step(samples=8, steps=steps - done)
    done = steps
    if Path("stop").exists() or Path("stop." + name).exists():
        break
use.kill()
"""


def submit(user: CsubUser, *options: str) -> str:
    """Submit four trainings; the job id."""
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", 'exec python3 "$HOME/train.py"')
    return user.submit(*OPTIONS, *options, "train.sh")


def find_at_door(user: CsubUser, job_id: str) -> list[int]:
    """Members that have loaded their program and wait for GPU memory."""
    found = []
    for number, row in user.members(job_id).items():
        reason = row["reason"] or ""
        if reason.startswith("at the door: ") and "has no memory left" in reason:
            assert row["state"] == "RUNNING"
            found.append(number)
    return found


def wait_for_two_at_the_door(user: CsubUser, job_id: str) -> list[int]:
    """Until two run and two wait behind them; the latter's numbers."""

    def find_two() -> list[int]:
        # Two may wait while a third one is about to come, and go on before it.
        found = find_at_door(user, job_id)
        others = (user.home / f"began.{job_id}.{n}" for n in {1, 2, 3, 4} - {*found})
        return found if len(found) == 2 and all(path.exists() for path in others) else []

    with explained(user, job_id):
        at_door: list[int] = wait_until(find_two, "two wait", patience_s=240)
    for number in at_door:
        assert (user.home / f"loaded.{job_id}.{number}").exists()
        assert not (user.home / f"began.{job_id}.{number}").exists()
    return at_door


def wait_for_words(user: CsubUser, member: str, words: str) -> None:
    """Until `csub why` says something of a member: while others are measured it says that."""
    wait_until(
        lambda: words in " ".join(user.csub("why", member).stdout.split()), words, patience_s=120
    )


@pytest.mark.smoke
def test_who_waits_for_gpu_memory_has_loaded_its_program(mps_user: CsubUser) -> None:
    user = mps_user
    job_id = submit(user)
    first, second = wait_for_two_at_the_door(user, job_id)
    said = "at the door: its program is loaded, and it waits: the GPU has no memory left"
    wait_for_words(user, f"{job_id}/{first}", said)
    (running,) = {1, 2, 3, 4} - {first, second, 1}
    told = " ".join(user.csub("why", f"{job_id}/1").stdout.split())
    assert f"sharing with {job_id}/{running} " in told
    assert f"{job_id}/{first} and {job_id}/{second} are at the door" in told
    # The next one begins as soon as another ends; it has loaded once.
    (user.home / f"stop.{job_id}.1").touch()
    began = user.home / f"began.{job_id}.{first}"
    wait_until(lambda: user.output(began.name), "it goes on", patience_s=120)
    assert began.read_text() == (user.home / f"loaded.{job_id}.{first}").read_text()
    assert user.members(job_id)[first]["reason"] is None
    # A cancel reaches the other one.
    user.csub("cancel", "--yes", f"{job_id}/{second}")
    user.wait_for_states(job_id, {second: "CANCELLED"})
    assert not (user.home / f"began.{job_id}.{second}").exists()
    (user.home / "stop").touch()
    rows = user.finish(job_id)
    assert {n for n, row in rows.items() if row["state"] == "COMPLETED"} == {1, running, first}
    pauses = [p for p in read_pauses(pack_directory(user, job_id)) if p.reason == AT_DOOR]
    assert {first, second} <= {pause.member for pause in pauses}
    assert all(pause.end is not None for pause in pauses)


def test_a_kill_of_the_runner_loses_none_that_waits(mps_user: CsubUser) -> None:
    user = mps_user
    job_id = submit(user, "--requeue")
    at_door = wait_for_two_at_the_door(user, job_id)
    os.kill(runner_pid(user, job_id), signal.SIGKILL)
    with explained(user, job_id):
        for number in at_door:
            # It goes on without its runner, or starts again with all others.
            wait_until((user.home / f"began.{job_id}.{number}").exists, "on", patience_s=300)
            (user.home / f"stop.{job_id}.{number}").touch()
    (user.home / "stop").touch()
    rows = user.finish(job_id, patience_s=400)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}


def test_without_the_setting_who_waits_has_not_started(mps_user: CsubUser) -> None:
    user = mps_user
    write_settings(user, door=False)
    job_id = submit(user)

    def waits() -> bool:
        rows = list(user.members(job_id).values())
        reasons = [row["reason"] or "" for row in rows if row["state"] == "PENDING"]
        return len(reasons) == 2 and all("has no memory left" in reason for reason in reasons)

    with explained(user, job_id):
        wait_until(waits, "two wait", patience_s=240)
    states = sorted(row["state"] for row in user.members(job_id).values())
    assert states == ["PENDING", "PENDING", "RUNNING", "RUNNING"]
    wait_until(lambda: len(list(user.home.glob("began.*"))) == 2, "two have begun")
    assert len(list(user.home.glob("loaded.*"))) == 2
    assert journal(user, job_id, "at_door") == []
    user.csub("cancel", "--yes", job_id)
