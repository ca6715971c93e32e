"""What csub cancel, queue, show and wait decide and say."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import time

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from ..wait_until import wait_until

FOREVER = "while :; do sleep 0.1; done"


def test_cancelling_a_member_that_waits_in_a_running_pack(user: CsubUser) -> None:
    user.script("go.sh", "touch ran.$1; while [ ! -e go ]; do sleep 0.1; done")
    job_id = user.submit(
        "pack", "--gres=gpu:1", "--degree=1", "--pack-size=3", "go.sh 1", "go.sh 2", "go.sh 3"
    )
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING", 3: "PENDING"})
    user.csub("cancel", f"{job_id}/2")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "CANCELLED", 3: "PENDING"})
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "CANCELLED", "COMPLETED"]
    assert not (user.home / "ran.2").exists()
    assert rows[2]["starts"] == 0


def test_cancelling_a_member_of_a_pack_that_waits_for_slurm(user: CsubUser) -> None:
    user.script("ran.sh", "touch ran.$1")
    job_id = user.submit("pack", "--gres=gpu:1", "--hold", "ran.sh 1", "ran.sh 2", "ran.sh 3")
    user.wait_for_states(job_id, "PENDING")
    user.csub("cancel", f"{job_id}/2")
    user.wait_for_states(job_id, {1: "PENDING", 2: "CANCELLED", 3: "PENDING"})
    user.run(["scontrol", "release", job_id])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "CANCELLED", "COMPLETED"]
    assert sorted(path.name for path in user.home.glob("ran.[0-9]")) == ["ran.1", "ran.3"]


def test_cancelling_the_last_members_ends_the_pack(user: CsubUser) -> None:
    user.script("go.sh", FOREVER)
    job_id = user.submit("pack", "--gres=gpu:1", "go.sh", "go.sh")
    user.wait_for_states(job_id, "RUNNING")
    user.csub("cancel", f"{job_id}/1")
    user.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING"})
    user.csub("cancel", f"{job_id}/2")
    user.wait_for_states(job_id, "CANCELLED")
    wait_until(
        lambda: not user.run(["squeue", "-h", "-j", job_id], check=False).stdout.strip(),
        "the Slurm job has ended",
    )


def test_queue_shows_a_row_for_each_member(user: CsubUser) -> None:
    user.script("go.sh", "while [ ! -e go ]; do sleep 0.1; done")
    job_id = user.submit(
        "pack", "--gres=gpu:1", "-J", "a name", "--time=10", "--degree=2", "--pack-size=3",
        "go.sh", "go.sh", "go.sh",
    )  # fmt: skip
    held = user.submit("--hold", "go.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    lines = user.csub("queue").stdout.splitlines()
    assert lines[0].split() == [
        "MEMBER", "NAME", "STATE", "MODE", "NODE:GPU", "TIME", "LEFT", "REASON",
    ]  # fmt: skip
    first, _, third, alone = lines[1:]
    assert first.startswith(f"{job_id}/1")
    assert "a name" in first
    assert "RUNNING" in first
    assert "timeslice" in first
    node = user.members(job_id)[1]["node"]
    gpus = ",".join(user.members(job_id)[1]["slurm_gpu_indices"])
    assert f" {node}:{gpus} " in first
    assert re.fullmatch(r"14:\d\d|15:00", first.split()[-1])
    assert third.split()[-1] == "Degree"
    assert alone.split()[:3] == [f"{held}/1", "go.sh", "PENDING"]
    assert alone.split()[-1] == "JobHeldUser"
    row = json.loads(user.csub("queue", "--json").stdout)[0]
    assert (
        row.items()
        >= {
            "member": f"{job_id}/1",
            "name": "a name",
            "state": "RUNNING",
            "mode": "timeslice",
            "degree": 2,
            "slurm_job_id": job_id,
            "slurm_state": "RUNNING",
            "wall_limit_s": 900,
            "exit_code": None,
            "ended_at": None,
            "starts": 1,
            "script": "go.sh",
            "arguments": [],
            "directory": str(user.home),
        }.items()
    )
    assert row["step"].startswith(f"{job_id}.")
    user.csub("cancel", held)
    user.run(["touch", "go"])
    user.finish(job_id)
    everything = json.loads(user.csub("queue", "--all", "--json").stdout)
    assert {row["member"]: row["state"] for row in everything} == {
        f"{job_id}/1": "COMPLETED",
        f"{job_id}/2": "COMPLETED",
        f"{job_id}/3": "COMPLETED",
        f"{held}/1": "CANCELLED",
    }
    assert len(user.csub("queue").stdout.splitlines()) == 1


def test_show_tells_everything_about_a_pack_and_a_member(user: CsubUser) -> None:
    user.script("three.sh", "exit 3")
    user.script("ok.sh", "exit 0")
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=64M", "three.sh --lr 'a b'", "ok.sh")
    user.finish(job_id)
    pack = user.csub("show", job_id).stdout
    assert pack.startswith(f"Pack {job_id} ")
    assert f"{job_id}/1  three.sh  FAILED  exit 3:0" in pack
    assert f"{job_id}/2  ok.sh  COMPLETED  exit 0:0" in pack
    member = user.csub("show", f"{job_id}/1").stdout
    assert member.startswith(f"Member {job_id}/1\n")
    for words in ("FAILED", "3:0", "three.sh --lr 'a b'", f"slurm-{job_id}_1.out", "64"):
        assert words in member
    [row] = json.loads(user.csub("show", "--json", f"{job_id}/1").stdout)
    assert row["arguments"] == ["--lr", "a b"]
    assert user.csub("show", f"{job_id}/9", check=False).returncode == 7


def test_wait_for_one_member_does_not_wait_for_its_neighbours(user: CsubUser) -> None:
    user.script("quick.sh", "exit 4")
    user.script("go.sh", "while [ ! -e go ]; do sleep 0.1; done")
    job_id = user.submit("pack", "--gres=gpu:1", "quick.sh", "go.sh")
    assert user.run(["csub", "wait", f"{job_id}/1"], check=False).returncode == 4
    assert user.members(job_id)[2]["state"] == "RUNNING"
    user.run(["touch", "go"])
    assert user.run(["csub", "wait", f"{job_id}/2"], check=False).returncode == 0


def run_on_a_terminal(user: CsubUser, argv: list[str], answer: str) -> tuple[int, str]:
    """Run a program on a real terminal and answer its question; exit status and what it showed."""
    master, slave = os.openpty()
    process = subprocess.Popen(
        argv,
        env={**user.environment, "TERM": "dumb"},
        cwd=user.home,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        **user.identity,
    )
    os.close(slave)
    shown = b""
    answered = False
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while chunk := os.read(master, 4096):
            shown += chunk
            if b"[y/N]" in shown and not answered:
                answered = True
                os.write(master, answer.encode())
    os.close(master)
    return process.wait(timeout=60), shown.decode().replace("\r\n", "\n")


def submit_three_that_share(user: CsubUser) -> str:
    user.script("train.sh", FOREVER, directives="#SBATCH --gres=gpu:1 --time=5")
    first = user.submit("--begin=2099-01-01T12:00", "train.sh", "1")
    for number in ("2", "3"):
        joined = user.csub("--join", "--open=never", "--begin=2099-01-01T12:00", "train.sh", number)
        assert f"{first}/{number}, shares a pack" in joined.stderr
    return first


def test_on_a_terminal_jobs_of_several_submissions_are_shown_before_they_end(
    user: CsubUser,
) -> None:
    job_id = submit_three_that_share(user)
    second, third = user.list_joined(job_id)
    whole = f"{job_id}/1-3"
    for answer in ("\n", "n\n", "\x04"):
        status, shown = run_on_a_terminal(user, ["csub", "cancel", whole], answer)
        assert status == 1
        assert "End these 3 jobs of 3 submissions? [y/N]" in shown
        assert "nothing was cancelled" in shown
        for number, name in enumerate((f"{job_id}/1", second, third), start=1):
            assert re.search(rf"{name} +train.sh +PENDING +0:00 +train.sh {number}", shown)
    assert {row["state"] for row in user.members(job_id).values()} == {"PENDING"}
    # One of them alone is nobody else's business.
    status, shown = run_on_a_terminal(user, ["csub", "cancel", third], "")
    assert (status, shown) == (0, f"csub: cancelled: {third}\n")
    status, shown = run_on_a_terminal(user, ["csub", "cancel", whole], "y\n")
    assert status == 0
    assert "End these 2 jobs of 2 submissions? [y/N]" in shown
    user.wait_for_states(job_id, "CANCELLED")


def test_yes_and_a_pipe_are_not_asked(user: CsubUser) -> None:
    job_id = submit_three_that_share(user)
    told = ", ".join(user.list_joined(job_id))
    status, shown = run_on_a_terminal(user, ["csub", "cancel", "--yes", f"{job_id}/2-3"], "")
    assert (status, shown) == (0, f"csub: cancelled: {told}\n")
    user.wait_for_states(job_id, {1: "PENDING", 2: "CANCELLED", 3: "CANCELLED"})
    user.csub("cancel", job_id)
    user.wait_for_states(job_id, "CANCELLED")
    piped = submit_three_that_share(user)
    assert user.csub("cancel", f"{piped}/1-3").stdout == ""
    user.wait_for_states(piped, "CANCELLED")


def test_a_pack_of_one_submission_is_cancelled_without_a_question(user: CsubUser) -> None:
    user.script("train.sh", FOREVER)
    job_id = user.submit("pack", "--gres=gpu:1", "--hold", "train.sh 1", "train.sh 2")
    told = (0, f"csub: cancelled: {job_id}/1-2\n")
    assert run_on_a_terminal(user, ["csub", "cancel", job_id], "") == told
    user.wait_for_states(job_id, "CANCELLED")


def test_a_bare_id_ends_no_job_of_another_call_and_asks_nothing(user: CsubUser) -> None:
    job_id = submit_three_that_share(user)
    second, _ = user.list_joined(job_id)
    told = (0, f"csub: cancelled: {job_id}/1\n")
    assert run_on_a_terminal(user, ["csub", "cancel", job_id], "") == told
    user.wait_for_states(job_id, {1: "CANCELLED", 2: "PENDING", 3: "PENDING"})
    assert "already ended" in user.csub("cancel", job_id).stderr
    user.csub("cancel", second)
    user.wait_for_states(job_id, {2: "CANCELLED", 3: "PENDING"})
    user.csub("cancel", "--yes", "all")


def test_who_joins_while_the_question_is_open_is_not_cancelled(user: CsubUser) -> None:
    job_id = submit_three_that_share(user)
    master, slave = os.openpty()
    process = subprocess.Popen(
        ["csub", "cancel", f"{job_id}/1-3"],
        env=user.environment,
        cwd=user.home,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        **user.identity,
    )
    os.close(slave)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(master, 4096)
    joined = user.csub("--join", "--open=never", "--begin=2099-01-01T12:00", "train.sh", "4")
    assert f"{job_id}/4, shares a pack" in joined.stderr
    os.write(master, b"y\n")
    with contextlib.suppress(OSError):
        while os.read(master, 4096):
            pass
    os.close(master)
    assert process.wait(timeout=60) == 0
    user.wait_for_states(job_id, {1: "CANCELLED", 2: "CANCELLED", 3: "CANCELLED", 4: "PENDING"})


def refuse_scancel(user: CsubUser, job_id: str, words: str) -> None:
    """Have scancel refuse one job, as Slurm does, and do what it is asked with all others."""
    folder = user.home / "bin"
    folder.mkdir()
    script = folder / "scancel"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = {job_id} ]; then echo "scancel: error: {words}" >&2; exit 1; fi\n'
        f'exec {user.find("scancel")} "$@"\n'
    )
    script.chmod(0o755)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"


def test_a_refused_scancel_stops_no_other_and_is_told(user: CsubUser) -> None:
    user.script("go.sh", FOREVER)
    first, second, third = (user.submit("--gres=gpu:1", "go.sh") for _ in range(3))
    for job_id in (first, second, third):
        user.wait_for_states(job_id, "RUNNING")
    refuse_scancel(user, first, f"Kill job error on job id {first}: Access/permission denied")
    ended = user.csub("cancel", first, second, third, check=False)
    assert ended.returncode == 4
    assert ended.stderr == (
        f"csub: error: scancel: Kill job error on job id {first}: Access/permission denied\n"
    )
    user.wait_for_states(second, "CANCELLED")
    user.wait_for_states(third, "CANCELLED")
    assert user.members(first)[1]["state"] == "RUNNING"


def test_each_refusal_names_its_job_and_members_of_other_packs_are_cancelled(
    user: CsubUser,
) -> None:
    user.script("go.sh", FOREVER)
    alone = user.submit("--gres=gpu:1", "go.sh")
    pack = user.submit("pack", "--gres=gpu:1", "go.sh", "go.sh")
    user.wait_for_states(alone, "RUNNING")
    user.wait_for_states(pack, "RUNNING")
    refuse_scancel(user, alone, "Unspecified error")
    ended = user.csub("cancel", alone, f"{pack}/2", check=False)
    assert ended.returncode == 4
    assert ended.stderr == f"csub: error: {alone}: scancel: Unspecified error\n"
    user.wait_for_states(pack, {1: "RUNNING", 2: "CANCELLED"})


def test_two_refusals_are_two_sentences(user: CsubUser) -> None:
    user.script("go.sh", FOREVER)
    jobs = [user.submit("--gres=gpu:1", "go.sh") for _ in range(2)]
    for job_id in jobs:
        user.wait_for_states(job_id, "RUNNING")
    refuse_scancel(user, '"$1"', "Unspecified error")
    ended = user.csub("cancel", *jobs, check=False)
    assert ended.returncode == 4
    assert ended.stderr == "".join(
        f"csub: error: {job_id}: scancel: Unspecified error\n" for job_id in jobs
    )


def test_packs_that_wait_are_cancelled_by_one_scancel(user: CsubUser, slurm: FakeSlurm) -> None:
    slurm.pause()
    user.script("go.sh", FOREVER)
    job_id = user.submit("--gres=gpu:1", "--time=5", "--array=1-20", "go.sh")
    packs = sorted((user.state / "packs").iterdir())
    assert len(packs) > 2
    before = len(slurm.list_all_calls())
    # Another csub is at one of them for a moment: that one waits, and the others do not.
    with (packs[1] / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cancelling = user.start(["csub", "cancel", job_id])
        wait_until(lambda: len(list_elements(user)) == 1, "the others are cancelled")
    with cancelling:
        assert cancelling.wait(60) == 0
    told = [call for call in slurm.list_all_calls()[before:] if call[0] == "scancel"]
    assert [len(call) - 1 for call in told] == [len(packs) - 1, 1]
    user.wait_for_states(job_id, "CANCELLED")
    # Each is over when csub says so, and not when it was looked at first.
    asked = [call for call in slurm.list_all_calls()[before:] if call[:3] == ["scontrol", "show"]]
    assert not [call for call in asked if "job" in call]
    for pack in packs:
        ended = json.loads((pack / "ended.json").read_text())
        assert ended["slurm_state"] == "CANCELLED"
        assert abs(time.time() - ended["ended_at"]) < 600
    assert len(json.loads(user.csub("history", "--json").stdout)) == 20


def test_what_slurm_refuses_of_several_is_tried_one_by_one(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    slurm.pause()
    user.script("go.sh", FOREVER)
    job_id = user.submit("--gres=gpu:1", "--time=5", "--array=1-12", "go.sh")
    folder = user.home / "path"
    folder.mkdir()
    # This scancel takes one id, and not those of the second pack.
    program = folder / "scancel"
    real = slurm.directory / "bin" / "scancel"
    bad = list_elements(user)[1]
    program.write_text(
        f'#!/bin/sh\n[ $# = 1 ] && [ "$1" != {bad} ] && exec {real} "$@"\n'
        'echo "scancel: error: not today" >&2; exit 1\n'
    )
    program.chmod(0o755)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    refused = user.csub("cancel", job_id, check=False)
    assert refused.returncode == 4
    assert f"{bad}: scancel: not today" in refused.stderr
    states = {row["state"] for row in user.members(job_id).values()}
    assert states == {"CANCELLED", "PENDING"}
    assert [row["state"] for row in user.members(job_id).values()].count("PENDING") == 4
    assert len(list((user.state / "packs").glob("*/cancelling"))) == 2


def list_elements(user: CsubUser) -> list[str]:
    return user.run(["squeue", "-h", "-r", "--me", "-o", "%i"]).stdout.split()
