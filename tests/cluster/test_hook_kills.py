"""Packs under root's hooks, and kill -9 of any part at random moments.

Ten packs by default; CSUB_CAMPAIGN_PACKS=100 asks for more, CSUB_CAMPAIGN_SEED for an earlier
run's choices. Whatever is killed: nothing foreign is touched, nothing stays behind, and the node
is drained only where the hook that says so was what was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.hooks.recover_jobs import UNSEEN_S
from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc.host.system.node_processes import ProcessId, identify
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, user_of
from ..signalling import send_signal
from ..wait_until import wait_until
from .hooks import (
    list_prepared,
    read_audit,
    require_other_users,
    run_directory,
    sandbox_with_hooks,
)
from .mps import Untouched, list_processes, runner_pid, server_pid

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.exhaustive,
    pytest.mark.timeout(3600),
]

PACKS = int(os.environ.get("CSUB_CAMPAIGN_PACKS", "10"))
SEED = int(os.environ.get("CSUB_CAMPAIGN_SEED") or random.SystemRandom().randrange(1 << 32))
LONGEST_S = 3.0
OPTIONS = (
    "--gres=gpu:1",
    "--cpus-per-task=1",
    "--mem=100M",
    "--time=2",
    "--share=mps!",
    "--requeue",
)
MEMBER = "simgpu run --seconds 2.5"
OTHER = 61234
# What Slurm says of a node whose hook has not ended by itself.
CAUSES = ("Prolog error", "Epilog error", "Kill task failed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """One node with two simulated GPUs, whose hooks prepare MPS."""
    with sandbox_with_hooks() as sandbox:
        yield sandbox


@pytest.fixture
def user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    require_other_users(accounts[0])
    with user_of(cluster, accounts[0]) as somebody:
        yield somebody


@pytest.fixture
def strangers(accounts: tuple[str, ...]) -> Iterator[list[ProcessId]]:
    """Processes of root, of another user and of the user itself, which no hook may touch."""
    import pwd

    uids = (0, OTHER, pwd.getpwnam(accounts[0]).pw_uid)
    children = [
        subprocess.Popen(["sleep", "3600"], user=uid, group=uid, extra_groups=[], cwd="/")
        for uid in uids
    ]
    try:
        yield [identity for child in children if (identity := identify(child.pid)) is not None]
    finally:
        for child in children:
            child.kill()
            child.wait()


def find_hook(cluster: Sandbox, name: str) -> int | None:
    """The process of a hook of this sandbox that runs now."""
    place = os.fsencode(str(run_directory(cluster)))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if {b"slurm_colloc.host.lifecycle", place, name.encode()} <= set(words):
                    return int(entry.name)
    return None


def find_daemon_of(cluster: Sandbox, job_id: str) -> int | None:
    peer = read_peer(str(run_directory(cluster) / job_id / "0" / "p"))
    return None if peer is None else peer.pid


def find_quietly(find: Callable[[], int | None]) -> int | None:
    try:
        return find()
    except (AssertionError, IndexError, KeyError, OSError, ValueError):
        return None


def kill_part(cluster: Sandbox, user: CsubUser, job_id: str, part: str, until: float) -> bool:
    """Kill a part as soon as it is there; False where it was not, by then."""
    if part == "slurmd":
        node = cluster.node_names[0]
        cluster.kill_node(node)
        cluster.start_node(node)
        return True
    finders: dict[str, Callable[[], int | None]] = {
        "prolog": lambda: find_hook(cluster, "prolog"),
        "epilog": lambda: find_hook(cluster, "epilog"),
        "daemon": lambda: find_daemon_of(cluster, job_id),
        "server": lambda: server_pid(user, job_id),
        "runner": lambda: runner_pid(user, job_id),
    }
    while time.monotonic() < until:
        pid = find_quietly(finders[part])
        identity = None if pid is None else identify(pid)
        if identity is not None and send_signal(identity, signal.SIGKILL):
            return True
        time.sleep(0.005)
    return False


def read_node_state(cluster: Sandbox, user: CsubUser) -> tuple[str, str]:
    text = user.run(["scontrol", "show", "node", cluster.node_names[0]]).stdout
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    reason = text.partition("Reason=")[2].splitlines()
    return words["State"], reason[0] if reason else ""


def end_job(user: CsubUser, job_id: str) -> None:
    """Wait for a job's end; one that is requeued again and again is cancelled."""
    deadline = time.monotonic() + 25
    while time.monotonic() < deadline:
        shown = user.run(["squeue", "-h", "-j", job_id, "-o", "%T"], check=False)
        if shown.returncode or shown.stdout.strip() in ("", "COMPLETED", "FAILED", "CANCELLED"):
            return
        if "PENDING" in shown.stdout and time.monotonic() > deadline - 20:
            break
        time.sleep(0.2)
    user.run(["scancel", job_id], check=False)


def resume(cluster: Sandbox) -> None:
    subprocess.run(
        ["scontrol", "update", f"nodename={cluster.node_names[0]}", "state=resume"],
        env={**os.environ, **cluster.env()},
        capture_output=True,
        check=False,
    )


def test_any_part_is_killed_at_any_moment(
    cluster: Sandbox, user: CsubUser, strangers: list[ProcessId]
) -> None:
    print(f"seed {SEED}", file=sys.stderr)
    chance = random.Random(SEED)
    untouched = Untouched(user)
    user.script("train.sh", MEMBER)
    done: list[tuple[str, float, bool]] = []
    for number in range(PACKS):
        part = chance.choice(("prolog", "epilog", "daemon", "server", "slurmd", "runner"))
        delay_s = chance.uniform(0, LONGEST_S)
        # A prolog lasts a tenth of a second: the delay goes into it.
        wait_s = delay_s / 30 if part in ("prolog", "epilog") else delay_s
        job_id = user.submit("--array=1-2", *OPTIONS, "train.sh")
        time.sleep(wait_s)
        hit = kill_part(cluster, user, job_id, part, time.monotonic() + 2 * LONGEST_S)
        done.append((part, round(wait_s, 3), hit))
        told = f"seed {SEED}, pack {number}: {done[-1]}"
        end_job(user, job_id)
        wait_until(
            lambda: "COMPLETING" not in read_node_state(cluster, user)[0],
            f"the node is done ({told})",
        )
        state, reason = read_node_state(cluster, user)
        if "DRAIN" in state:
            assert part in ("prolog", "epilog"), f"{told}: {state} {reason}"
            assert reason.startswith(CAUSES), f"{told}: {reason}"
        if "DRAIN" in state or "DOWN" in state:
            resume(cluster)
        assert [identify(one.pid) for one in strangers] == strangers, told
    # A job of which no hook has ever seen a process is taken for dead after a quarter of an hour.
    for checkpoint in (run_directory(cluster) / "jobs").glob("*.json"):
        value = json.loads(checkpoint.read_text())
        checkpoint.write_text(json.dumps({**value, "made_at": value["made_at"] - UNSEEN_S}))
    # The next job's prolog undoes what dead hooks have left; boot does the same.
    last = user.submit("--array=1-2", *OPTIONS, "train.sh")
    user.finish(last)
    wait_until(lambda: not list_prepared(cluster), f"nothing is left (seed {SEED}: {done})")
    # Strangers of the user's own are no part of any pack.
    strange = {one.pid for one in strangers}
    left = {pid: words for pid, words in list_processes(user).items() if pid not in strange}
    assert left == {}, f"seed {SEED}: {left}"
    signals = [s for line in read_audit(cluster) for s in line.get("signals", [])]
    assert {entry["uid"] for entry in signals} <= {user.uid}
    assert [identify(one.pid) for one in strangers] == strangers
    assert sum(hit for _, _, hit in done) >= PACKS // 2, f"seed {SEED}: {done}"
    print(f"seed {SEED}: {done}", file=sys.stderr)
    del untouched
