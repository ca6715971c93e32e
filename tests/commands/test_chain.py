"""What `csub --chain` decides and says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

ONE = ("--gres=gpu:1", "--time=5")
SAVES = "trap 'exit 0' TERM; echo $SLURM_JOB_ID >> ran; while [ ! -e go ]; do sleep 0.1; done"


def find_pack(user: CsubUser) -> Path:
    (path,) = (user.state / "packs").glob("*/pack.json")
    return path.parent


def start(user: CsubUser) -> str:
    user.script("train.sh", SAVES)
    job_id = user.submit("--chain=3", *ONE, "train.sh")
    user.wait_for_states(job_id, "RUNNING")
    wait_until((find_pack(user) / "chain.json").exists, "it has begun")
    return job_id


def refuse(user: CsubUser, *words: str) -> str:
    refused = user.csub(*words, check=False)
    assert refused.returncode == 2, refused
    assert refused.stderr.startswith("csub: error: ")
    assert refused.stderr.count("\n") == 1
    assert not list((user.state / "packs").glob("*/pack.json"))
    return refused.stderr


def test_what_only_loses_work_is_refused(user: CsubUser) -> None:
    user.script("plain.sh", "python train.py")
    (user.home / "train.py").write_text("print('hello')\n")
    assert "add --saves" in refuse(user, "--chain", *ONE, "plain.sh")
    for number in ("0", "1", "101", "x"):
        told = refuse(user, f"--chain={number}", "--saves", *ONE, "plain.sh")
        assert f"--chain={number}: a number from 2 to 100 is needed" in told
    assert "needs Slurm" in refuse(user, "--chain", "--saves", "--local", *ONE, "plain.sh")
    user.script("piped.sh", "python piped.py")
    os.mkfifo(user.home / "piped.py")
    assert "add --saves" in refuse(user, "--chain", *ONE, "piped.sh")
    several = refuse(user, "pack", "--chain", "--saves", "--gpus-per-pack=2", *ONE, "plain.sh")
    assert "has one GPU set" in several
    settings = user.home / ".config/slurm_colloc/settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('gpus_per_pack = "2"\n')
    by_setting = refuse(user, "pack", "--chain", "--saves", *ONE, "plain.sh", "plain.sh")
    assert "the settings have gpus_per_pack = '2': a pack" in by_setting
    assert "add --gpus-per-pack=1" in by_setting


@pytest.mark.parametrize("sign", ["--signal=USR1@60", "--saves", "train.py"])
def test_what_saves_is_taken(user: CsubUser, sign: str) -> None:
    user.script("plain.sh", "python train.py")
    is_option = sign.startswith("--")
    text = "" if is_option else "model.load_state_dict(torch.load('last.pt'))\n"
    (user.home / "train.py").write_text(text)
    words = [sign] if is_option else []
    planned = user.csub("--chain", *words, "--array=1-2", "--dry-run", *ONE, "plain.sh")
    assert planned.stdout.startswith("Pack of members 1-2")


def test_a_chain_that_ends_in_its_first_link_has_no_other(user: CsubUser) -> None:
    job_id = start(user)
    assert "link 1 of at most 3" in user.csub("why", job_id).stdout
    user.run(["touch", "go"])
    assert user.finish(job_id)[1]["state"] == "COMPLETED"
    (link,) = json.loads((find_pack(user) / "chain.json").read_text())["links"]
    assert link["job_id"] == job_id
    assert user.output("ran") == f"{job_id}\n"


def test_a_killed_runners_chain_is_passed_on_by_the_next_call(user: CsubUser) -> None:
    """Its successor waits; what squeue shows of both decides."""
    job_id = start(user)
    pack = find_pack(user)
    later = submit_successor(user, job_id, pack)
    chain = json.loads((pack / "chain.json").read_text())
    chain["links"].append({"job_id": later})
    runner = json.loads((pack / "runner.json").read_text())
    user.run(["kill", "-STOP", str(runner["pid"])])
    (pack / "chain.json").write_text(json.dumps(chain))
    user.run(["kill", "-KILL", str(runner["pid"])])
    wait_until(lambda: is_over(user, job_id), "its job is over")
    rows = user.members(job_id)
    assert rows[1]["state"] == "PENDING"
    assert (pack / "slurm_job_id").read_text() == f"{later}\n"
    # It keeps its name, and both names find it.
    assert list(user.members(later)) == [1]
    user.csub("cancel", job_id, "--yes")
    wait_until(lambda: is_over(user, later), "its successor is cancelled")
    assert user.members(job_id)[1]["state"] == "CANCELLED"


def test_a_damaged_chain_is_told_and_cancelled_all_the_same(user: CsubUser) -> None:
    job_id = start(user)
    pack = find_pack(user)
    later = submit_successor(user, job_id, pack)
    (pack / "chain.json").write_text('{"links": 3')
    damaged = f"{pack}/chain.json is damaged"
    for command in ("queue", "why", "explain", "show", "report", "release"):
        shown = user.csub(*([command] if command == "queue" else [command, job_id]), check=False)
        assert "Traceback" not in shown.stdout + shown.stderr
        assert (damaged in shown.stdout + shown.stderr) is (command in {"why", "explain", "report"})
    cancelled = user.csub("cancel", job_id, "--yes")
    assert cancelled.stderr.count("\n") == 1
    assert damaged in cancelled.stderr
    wait_until(lambda: is_over(user, job_id) and is_over(user, later), "both are cancelled")


def test_a_link_begins_with_a_damaged_chain(user: CsubUser) -> None:
    user.script("train.sh", SAVES)
    (user.home / "go").touch()
    job_id = user.submit("--chain=3", "--hold", *ONE, "train.sh")
    pack = find_pack(user)
    (pack / "chain.json").write_text('{"links": 3')
    user.csub("release", job_id)
    assert user.finish(job_id)[1]["state"] == "COMPLETED"
    (link,) = json.loads((pack / "chain.json").read_text())["links"]
    assert link["job_id"] == job_id
    assert "it is chain.damaged now" in user.output(f"slurm-{job_id}.out")


def submit_successor(user: CsubUser, job_id: str, pack: Path) -> str:
    """As its runner would, for an hour from now."""
    words = ["--begin=now+1hour", "--gres=gpu:1", f"--comment={read_comment(user, job_id)}"]
    return user.run(["sbatch", "--parsable", *words, str(next(pack.glob("*.sh")))]).stdout.strip()


def read_comment(user: CsubUser, job_id: str) -> str:
    return user.run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%k"]).stdout.strip()


def is_over(user: CsubUser, job_id: str) -> bool:
    shown = user.run(["squeue", "--noheader", "--format=%i"]).stdout.split()
    return job_id not in shown
