"""Packs share through MPS on each node of a cluster, and each daemon has its own node's GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Sandbox]:
    if shutil.which("cc") is None:
        pytest.skip("the simulated NVML library needs a C compiler")
    with running_sandbox(nodes=2, gpus_per_node=1, cpus_per_node=8, simgpu=True) as sandbox:
        yield sandbox


@pytest.mark.smoke
def test_mps_works_on_every_node(two_nodes: Sandbox) -> None:
    with user_of(two_nodes, "nobody") as user:
        check_nodes(user)


def check_nodes(user: CsubUser) -> None:
    user.script("short.sh", "simgpu run --seconds 1")
    nodes = user.run(["sinfo", "-h", "-N", "-o", "%N"]).stdout.split()
    submitted = {
        node: user.submit(
            "pack", "--gres=gpu:1", "--time=5", "--share=mps!", f"--nodelist={node}",
            "short.sh", "short.sh",
        )
        for node in nodes
    }  # fmt: skip
    seen = {}
    for node, job_id in submitted.items():
        rows = user.finish(job_id)
        assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2, user.describe(job_id)
        assert {row["mode"] for row in rows.values()} == {"mps"}
        assert {row["node"] for row in rows.values()} == {node}
        seen[node] = rows[1]["gpu_uuids"]
    first, second = seen.values()
    assert first != second
