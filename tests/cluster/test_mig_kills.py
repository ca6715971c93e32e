"""Jobs whose GPU is divided by MIG under a real Slurm, and kill -9 of any part at random moments.

Eight jobs by default; CSUB_CAMPAIGN_JOBS=100 asks for more, CSUB_CAMPAIGN_SEED for an earlier
run's choices. Whatever is killed: the GPUs are in the end what they were before, and the node is
drained only where a hook was what was killed.
"""

from __future__ import annotations

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
from slurm_colloc.host.system.node_processes import identify, list_processes, read_command_line
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.simgpu.install import snapshot

from ..bed import CsubUser, user_of
from ..signalling import send_signal
from ..wait_until import wait_until
from .hooks import (
    list_prepared,
    read_audit,
    require_other_users,
    run_directory,
    sandbox_with_hooks,
    wait_for_epilog,
)

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.timeout(3600)]

JOBS = int(os.environ.get("CSUB_CAMPAIGN_JOBS", "8"))
SEED = int(os.environ.get("CSUB_CAMPAIGN_SEED") or random.SystemRandom().randrange(1 << 32))
LONGEST_S = 3.0
CAUSES = ("Prolog error", "Epilog error", "Kill task failed")
COMMENT = "[csub/1 mig=3g+2g+1g+1g]"
# Each instance by the UUID that the prolog told.
JOB = """
setup=$1/$SLURM_JOB_ID/setup.json
for uuid in $(grep -o 'MIG-[0-9a-f-]*' "$setup" | sort -u); do
    CUDA_VISIBLE_DEVICES=$uuid simgpu run --seconds 2 &
    echo "$uuid"
done
wait
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """One node with two simulated GPUs whose MIG is on, and hooks that may divide them."""
    with sandbox_with_hooks(mig=True) as sandbox:
        yield sandbox


@pytest.fixture
def user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    require_other_users(accounts[0])
    with user_of(cluster, accounts[0]) as somebody:
        yield somebody


def submit(cluster: Sandbox, user: CsubUser) -> str:
    script = user.script("divided.sh", JOB)
    answer = user.run(
        [
            *("sbatch", "--parsable", "--gres=gpu:1", "--cpus-per-task=1", "--mem=100M"),
            *("--time=2", "--requeue", f"--comment={COMMENT}", "--output=out-%j", str(script)),
            str(run_directory(cluster)),
        ]
    )
    return answer.stdout.strip()


def find_process(cluster: Sandbox, module: str, *words: str) -> int | None:
    """A process of this sandbox's hooks."""
    place = str(run_directory(cluster))
    for process in list_processes():
        line = read_command_line(process.id.pid)
        is_here = any(word.startswith(place) for word in line)
        if is_here and not process.has_ended and {module, *words} <= set(line):
            return process.id.pid
    return None


def kill_part(cluster: Sandbox, part: str, until: float) -> bool:
    """Kill a part as soon as it is there; False where it was not, by then."""
    if part == "slurmd":
        node = cluster.node_names[0]
        cluster.kill_node(node)
        cluster.start_node(node)
        return True
    finders: dict[str, Callable[[], int | None]] = {
        "prolog": lambda: find_process(cluster, "slurm_colloc.host.lifecycle", "prolog"),
        "epilog": lambda: find_process(cluster, "slurm_colloc.host.lifecycle", "epilog"),
        "NVML": lambda: find_process(cluster, "slurm_colloc.host.nvml.mig_child"),
    }
    while time.monotonic() < until:
        pid = finders[part]()
        identity = None if pid is None else identify(pid)
        if identity is not None and send_signal(identity, signal.SIGKILL):
            return True
        time.sleep(0.01)
    return False


def wait_for_end(cluster: Sandbox, user: CsubUser, job_id: str) -> tuple[str, str]:
    """Wait until neither job nor node is busy; the node's state and the reason for it."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        shown = user.run(["squeue", "-h", "-j", job_id, "-o", "%T"], check=False).stdout.strip()
        if shown in ("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
            break
        if shown == "PENDING" and time.monotonic() > deadline - 30:
            # Held again, or its node is drained.
            break
        time.sleep(0.2)
    user.run(["scancel", job_id], check=False)
    wait_until(
        lambda: "COMPLETING" not in read_node(cluster, user)[0], f"the node is done with {job_id}"
    )
    return read_node(cluster, user)


def read_node(cluster: Sandbox, user: CsubUser) -> tuple[str, str]:
    text = user.run(["scontrol", "show", "node", cluster.node_names[0]]).stdout
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    reason = text.partition("Reason=")[2].splitlines()
    return words["State"], reason[0] if reason else ""


def resume(cluster: Sandbox) -> None:
    subprocess.run(
        ["scontrol", "update", f"nodename={cluster.node_names[0]}", "state=resume"],
        env={**os.environ, **cluster.env()},
        capture_output=True,
        check=False,
    )


def recover(cluster: Sandbox) -> None:
    """What the unit of systemd does, or an administrator after a drain."""
    ended = subprocess.run(
        [
            *(sys.executable, "-I", "-B", "-m", "slurm_colloc.host.lifecycle", "recover"),
            *("--run-directory", str(run_directory(cluster))),
            *("--policy", str(cluster.layout.hooks / "node.toml")),
        ],
        env={
            "SLURM_COLLOC_DRIVER": str(cluster.layout.simgpu),
            "SLURMD_NODENAME": cluster.node_names[0],
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def describe_gpus(cluster: Sandbox) -> object:
    return snapshot(Path(cluster.layout.simgpu))


@pytest.mark.smoke
def test_each_program_of_a_job_runs_on_an_instance_and_the_gpu_is_as_it_was(
    cluster: Sandbox, user: CsubUser
) -> None:
    before = describe_gpus(cluster)
    job_id = submit(cluster, user)
    wait_for_epilog(cluster, job_id)
    (prolog,) = read_audit(cluster, "prolog", job_id)
    assert (prolog["mode"], prolog["exit"]) == ("mig", 0)
    lines = (user.home / f"out-{job_id}").read_text()
    assert len({line for line in lines.splitlines() if line.startswith("MIG-")}) == 4
    wait_until(lambda: describe_gpus(cluster) == before, "the GPUs are as they were")
    assert list_prepared(cluster) == []


@pytest.mark.exhaustive
def test_any_part_is_killed_at_any_moment(cluster: Sandbox, user: CsubUser) -> None:
    print(f"seed {SEED}", file=sys.stderr)
    chance = random.Random(SEED)
    before = describe_gpus(cluster)
    done: list[tuple[str, float, bool]] = []
    for number in range(JOBS):
        part = chance.choice(("prolog", "epilog", "NVML", "slurmd", "scancel"))
        delay_s = chance.uniform(0, LONGEST_S)
        wait_s = delay_s / 6 if part in ("prolog", "epilog", "NVML") else delay_s
        job_id = submit(cluster, user)
        time.sleep(wait_s)
        if part == "scancel":
            hit = user.run(["scancel", job_id], check=False).returncode == 0
        else:
            hit = kill_part(cluster, part, time.monotonic() + 2 * LONGEST_S)
        done.append((part, round(wait_s, 3), hit))
        told = f"seed {SEED}, job {number}: {done[-1]}"
        state, reason = wait_for_end(cluster, user, job_id)
        if "DRAIN" in state:
            assert part in ("prolog", "epilog", "NVML"), f"{told}: {state} {reason}"
            assert reason.startswith(CAUSES), f"{told}: {reason}"
        if "DRAIN" in state or "DOWN" in state:
            recover(cluster)
            resume(cluster)
    # A job of which no hook has ever seen a process is taken for dead after a quarter of an hour.
    for checkpoint in (run_directory(cluster) / "jobs").glob("*.json"):
        value = json.loads(checkpoint.read_text())
        checkpoint.write_text(json.dumps({**value, "made_at": value["made_at"] - UNSEEN_S}))
    recover(cluster)
    assert describe_gpus(cluster) == before, f"seed {SEED}: {done}"
    assert list_prepared(cluster) == [], f"seed {SEED}: {done}"
    # And the node divides again.
    job_id = submit(cluster, user)
    wait_for_epilog(cluster, job_id)
    assert read_audit(cluster, "prolog", job_id)[0]["mode"] == "mig"
    assert sum(hit for _, _, hit in done) >= JOBS // 2, f"seed {SEED}: {done}"
    print(f"seed {SEED}: {done}", file=sys.stderr)
