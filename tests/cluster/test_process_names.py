"""A script that ends all Python of its user ends its own, as under sbatch, and none of csub's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, can_reach_checkout, user_of
from ..wait_until import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs a user whose processes are no others'"),
    pytest.mark.skipif(shutil.which("pkill") is None, reason="needs pkill"),
]

UIDS = range(64911, 64920)

SCRIPT = """
while [ ! -e go ]; do sleep 0.1; done
pkill -u "$USER" python
pkill -9 -u "$USER" -x python3
killall -q -u "$USER" python python3
sleep 1
echo over
"""


def list_names(uid: int) -> list[str]:
    """The names of a user's processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == uid:
                found.append((entry / "comm").read_text().strip())
    return sorted(found)


@pytest.fixture
def apart(cluster: Sandbox) -> Iterator[CsubUser]:
    """A user with a uid that no other process of this machine has."""
    name = f"csub{os.getpid()}k"
    for uid in UIDS:
        words = ["useradd", "--no-create-home", "--uid", str(uid), name]
        if not list_names(uid) and not subprocess.run(words, check=False).returncode:
            break
    else:
        pytest.skip("none of the uids is free")
    try:
        if not can_reach_checkout(name):
            pytest.skip("needs a checkout that ordinary users can read")
        with user_of(cluster, name) as found:
            yield found
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)


def test_a_member_that_ends_all_python_of_its_user_ends_nothing_of_csubs(apart: CsubUser) -> None:
    assert apart.uid in UIDS
    apart.script("all.sh", SCRIPT)
    apart.script("other.sh", "while [ ! -e go ]; do sleep 0.1; done; sleep 2; echo over")
    pack = ("pack", "--gres=gpu:1", "-c1", "--mem=600M", "--time=5", "all.sh", "other.sh")
    job_id = apart.submit(*pack)
    own = ["csub-guard", "csub-member", "csub-member", "csub-monitor", "csub-runner"]
    wait_until(
        lambda: [name for name in list_names(apart.uid) if name.startswith("csub")] == own,
        "both run",
    )
    assert not any("python" in name for name in list_names(apart.uid))
    apart.script("go", "")
    # A csub that tests start is a fork of theirs, and has the name of its interpreter.
    wait_until(lambda: apart.output(f"slurm-{job_id}_1.out") == "over\n", "it has done it")
    rows = apart.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "COMPLETED"]
    assert apart.output(f"slurm-{job_id}_2.out") == "over\n"
    (events,) = apart.state.glob("packs/*/events.jsonl")
    told = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert told.count("monitor") == 1, "it was not started again"
