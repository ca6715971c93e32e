"""`--goal=energy` on a real Slurm: a limit is learned, set by root's prolog, and set back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.simgpu.install import snapshot

from ..bed import CsubUser, user_of
from ..wait_until import wait_until
from .hooks import changed_policy, read_audit, require_other_users, sandbox_with_hooks
from .mps import explained, pack_directory

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.long]

ALONE = "simgpu run --sm 90 --dram 60 --seconds 40 --rate 20 --report"
OPTIONS = (
    *("--goal=energy", "--gres=gpu:1", "--mem=2G", "--time=5", "--join=never"),
    *("--max-slowdown=1.5", r"--progress-regex=^step (?P<step>[0-9]+)"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """One node with two simulated GPUs."""
    with sandbox_with_hooks() as sandbox:
        yield sandbox


@pytest.fixture
def user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    require_other_users(accounts[0])
    with user_of(cluster, accounts[0]) as somebody:
        yield somebody


def read_limits(cluster: Sandbox) -> set[int]:
    (node,) = snapshot(cluster.layout.simgpu).values()
    return {int(str(gpu["power_limit_mw"])) for gpu in node.values()}


def read_power(user: CsubUser, job_id: str) -> str:
    """What `csub why` says of the power limit."""
    record = json.loads((pack_directory(user, job_id) / "pack.json").read_text())
    return str(record["sharing"]["power"])


def run_alone(user: CsubUser) -> str:
    job_id = user.submit(*OPTIONS, "alone.sh")
    with explained(user, job_id):
        (row,) = user.finish(job_id, patience_s=240).values()
        assert row["state"] == "COMPLETED"
        # The summary is the last thing that its node writes, or the report's first.
        user.csub("report", job_id)
    return job_id


def test_a_second_pack_runs_under_a_lower_limit_and_the_card_has_its_own_again(
    user: CsubUser, cluster: Sandbox
) -> None:
    before = read_limits(cluster)
    user.script("alone.sh", ALONE)
    with changed_policy(cluster, power_limit_min_w=300):
        first = run_alone(user)
        assert read_power(user, first).startswith("no power limit: a job was not measured alone")
        assert not read_audit(cluster, "prolog", first)
        second = run_alone(user)
    assert "to measure it" in read_power(user, second)
    (prolog,) = read_audit(cluster, "prolog", second)
    assert prolog["action"] == "prepared", prolog
    wait_until(lambda: read_audit(cluster, "epilog", second), "its epilog")
    assert read_limits(cluster) == before

    summaries = [
        json.loads(user.csub("report", "--json", one).stdout)[0] for one in (first, second)
    ]
    limits = [summary["gpu_use"]["power_limit_w"]["mean"] for summary in summaries]
    assert limits[1] < limits[0] == max(before) / 1000
    assert "J per step" in user.csub("report", "--detail", second).stdout
    shown = user.csub("profile", "show", "alone.sh").stdout
    assert f"{limits[0]:.0f} W: " in shown
    assert f"{limits[1]:.0f} W: " in shown
