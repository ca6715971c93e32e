"""Members that never had their turn: said, and submitted again where that is allowed."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import read_parent

pytestmark = pytest.mark.slurm

OPTIONS = ("--gres=gpu:1", "-c1", "--mem=100M", "--degree=1", "--pack-size=4")
NOTE = 'echo "$SLURM_COLLOC_MEMBER $1" >>ran.txt'


def start_one_of_three(user: CsubUser, *options: str) -> str:
    """A pack of three, one at a time, whose first member runs until it is ended."""
    user.script("first.sh", f"{NOTE}; until [ -e end ]; do sleep 0.1; done")
    user.script("next.sh", NOTE)
    pack = user.submit("pack", *OPTIONS, *options, "first.sh", "next.sh b", "next.sh c")
    user.wait_for_states(pack, {1: "RUNNING"})
    return pack


def kill_batch_script(user: CsubUser) -> None:
    """Kill the batch script of the only pack that runs: the guard of its runner."""
    (path,) = user.state.glob("packs/*/runner.json")
    runner = json.loads(path.read_text())["pid"]
    os.kill(read_parent(runner), signal.SIGKILL)


def end_pack(user: CsubUser, pack: str) -> None:
    """Kill the batch script, so that Slurm ends the pack as FAILED, and wait for that."""
    kill_batch_script(user)
    wait_until(
        lambda: (
            user.run(["squeue", "-h", "-j", pack, "--states=all", "-o%T"]).stdout.strip()
            == "FAILED"
        ),
        "Slurm has ended the pack",
    )


@pytest.mark.smoke
def test_members_that_never_started_are_submitted_again_once(small: CsubUser) -> None:
    pack = start_one_of_three(small)
    end_pack(small, pack)
    told = small.csub("queue")
    assert f"2 members never started ({pack}/2-3; the pack: FAILED); submitted again as job" in (
        told.stderr
    )
    new = told.stderr.split()[-1]
    # The same call shows them in their new pack.
    shown = [line.split()[0] for line in told.stdout.splitlines()[1:]]
    assert shown == [f"{new}/2", f"{new}/3"]
    assert small.csub("queue").stderr == ""
    rows = small.members(pack)
    assert {number: row["state"] for number, row in rows.items()} == {
        1: "LOST",
        2: "REQUEUED",
        3: "REQUEUED",
    }
    again = small.finish(new)
    assert {number: row["state"] for number, row in again.items()} == {
        2: "COMPLETED",
        3: "COMPLETED",
    }
    assert sorted(small.output("ran.txt").splitlines()) == [
        f"{pack}/1 ",
        f"{new}/2 b",
        f"{new}/3 c",
    ]
    assert small.output(f"slurm-{new}_2.out") == ""


def test_the_captured_environment_goes_along_and_away(small: CsubUser) -> None:
    small.extra["SECRET"] = "a b\n c"
    pack = start_one_of_three(small)
    small.script("next.sh", 'printf "%s" "$SECRET" >secret.txt')
    end_pack(small, pack)
    new = small.csub("queue").stderr.split()[-1]
    small.finish(new)
    assert small.output("ran.txt").count(f"{new}/") == 2
    assert list(small.state.glob("packs/*/members/*/env")) == []


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        (("--no-requeue",), "--no-requeue was given"),
    ],
)
def test_where_it_is_not_allowed_it_is_said_and_not_done(
    small: CsubUser, options: tuple[str, ...], obstacle: str
) -> None:
    pack = start_one_of_three(small, *options)
    end_pack(small, pack)
    told = small.csub("queue").stderr
    assert f"({pack}/2-3; the pack: FAILED); not submitted again: {obstacle}" in told
    assert small.csub("queue").stderr == ""
    assert small.members(pack)[2]["state"] == "LOST"


def test_a_cancelled_pack_is_not_submitted_again(small: CsubUser) -> None:
    pack = start_one_of_three(small)
    later = small.submit("pack", *OPTIONS, "next.sh d", "next.sh e")
    small.run(["scancel", later])
    small.run(["scancel", pack])
    small.wait_for_states(pack, "CANCELLED")
    small.wait_for_states(later, "CANCELLED")
    assert small.csub("queue").stderr == ""
    # Slurm may still be completing them.
    assert set(small.run(["squeue", "-h", "--me", "--format=%A"]).stdout.split()) <= {pack, later}


def test_who_waits_when_the_packs_time_is_up_gets_another_turn(small: CsubUser) -> None:
    pack = start_one_of_three(small)
    administrator = CsubUser("root", os.geteuid(), os.getegid(), small.home, small.sandbox)
    administrator.run(["scontrol", "update", f"JobId={pack}", "EndTime=now+1"])
    over = time.time() + 2
    wait_until(lambda: time.time() > over, "its time is up")
    # A place becomes free, mostly before Slurm ends the pack, which it does within half a minute:
    # nothing can be started any more.
    small.script("end", "")
    rows = small.wait_for_states(pack, {2: "REQUEUED", 3: "REQUEUED"}, patience_s=120)
    assert rows[1]["state"] in ("COMPLETED", "TIMEOUT")
    (path,) = (entry.name for entry in (small.state / "open").iterdir())
    new = (small.state / "packs" / path / "slurm_job_id").read_text().strip()
    rows = small.finish(new)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "COMPLETED"]


def test_it_is_tried_again_while_slurm_is_away(
    small: CsubUser,
) -> None:
    pack = start_one_of_three(small)
    end_pack(small, pack)
    folder = small.home / "bin"
    folder.mkdir()
    sbatch = folder / "sbatch"
    sbatch.write_text(
        "#!/bin/sh\n"
        "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2\n"
        "exit 1\n"
    )
    sbatch.chmod(0o755)
    path = small.environment["PATH"]
    small.extra["PATH"] = f"{folder}:{path}"
    told = small.csub("queue").stderr
    assert (
        "the next call of csub will try to submit them again: Slurm's controller does not answer"
        in told
    )
    small.extra["PATH"] = path
    new = small.csub("queue").stderr.split()[-1]
    assert small.finish(new)[2]["state"] == "COMPLETED"


def test_a_member_that_was_moved_is_followed(small: CsubUser) -> None:
    pack = start_one_of_three(small)
    end_pack(small, pack)
    new = small.csub("queue").stderr.split()[-1]
    ended = small.csub("wait", f"{pack}/2", check=False)
    assert ended.returncode == 0
    assert f"{new}/2" in ended.stderr


def test_a_pack_that_was_over_and_is_requeued_starts_only_what_is_still_open(
    small: CsubUser,
) -> None:
    pack = start_one_of_three(small)
    small.csub("hold", f"{pack}/3")
    end_pack(small, pack)
    new = small.csub("queue").stderr.split()[-1]
    small.finish(new)
    (ended,) = (path for path in small.state.glob("packs/*/ended.json"))
    assert small.members(pack)[3]["state"] == "PENDING"
    # The first is not settled as long as the third is held: it is started again.
    small.run(["scontrol", "requeue", pack])
    wait_until(lambda: not ended.exists(), "the next attempt has taken the last word back")
    small.wait_for_states(pack, {1: "RUNNING", 2: "REQUEUED", 3: "PENDING"})
    small.csub("release", f"{pack}/3")
    small.script("end", "")
    rows = small.finish(pack)
    assert {number: row["state"] for number, row in rows.items()} == {
        1: "COMPLETED",
        2: "REQUEUED",
        3: "COMPLETED",
    }
    assert sorted(small.output("ran.txt").splitlines()) == sorted(
        [f"{pack}/1 ", f"{new}/2 b", f"{pack}/1 ", f"{pack}/3 c"]
    )


def test_a_pack_whose_end_was_settled_starts_nothing_when_it_is_requeued(
    small: CsubUser,
) -> None:
    """Its captured environments are gone: what was shown stays, instead of a failure."""
    pack = start_one_of_three(small, "--degree=3")
    states = {1: "RUNNING", 2: "COMPLETED", 3: "COMPLETED"}
    small.wait_for_states(pack, states)
    end_pack(small, pack)
    assert small.csub("queue").stderr == ""
    states[1] = "LOST"
    small.wait_for_states(pack, states)
    (path,) = small.state.glob("packs/*")
    assert (path / "ended.json").exists()
    small.run(["scontrol", "requeue", pack])
    wait_until(lambda: not (path / "ended.json").exists(), "the next attempt has begun")
    wait_until(lambda: not small.run(["squeue", "-h", "--me"]).stdout.strip(), "it is over at once")
    rows = small.members(pack)
    assert {number: row["state"] for number, row in rows.items()} == states
    assert rows[1]["reason"] == "its pack had ended (FAILED) before it was requeued"
    assert len(small.output("ran.txt").splitlines()) == 3
    assert list((small.state / "open").iterdir()) == []
