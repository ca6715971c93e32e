"""Packs over several nodes: one Slurm job, runners on each node, one queue of members."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from slurm_colloc.store.pack_directory import read_division, read_pack
from slurm_colloc.store.written_ends import read_runner
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, administrate, running_sandbox, user_of
from ..wait_until import wait_until
from .test_gpu_sets import (
    END,
    NOTE,
    UNTIL_END,
    has_begun,
    let_end,
    list_packs,
    make_runs,
    read_job,
    read_runs,
)

pytestmark = pytest.mark.slurm

# Two places on each of two GPUs of two nodes.
ASKED = (
    "--requeue", "--gres=gpu:1", "-c2", "--mem=50M", "--time=10", "--share=timeslice",
    "--nodes-per-pack=2",
)  # fmt: skip
WORK = (
    f"{NOTE}; srun printenv SLURMD_NODENAME >>$name; "
    'echo "$SLURMD_NODENAME $SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES" >>"$name"; '
    f"{UNTIL_END}; {END}"
)


@pytest.fixture(scope="module")
def pair() -> Iterator[Sandbox]:
    """Two nodes of two GPUs."""
    with running_sandbox(
        nodes=2, gpus_per_node=2, cpus_per_node=8, simgpu=True, gpu_type="h100"
    ) as sandbox:
        yield sandbox


@pytest.fixture
def user(pair: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(pair, accounts[0]) as found:
        make_runs(found)
        found.script("work.sh", WORK)
        yield found


def submit(user: CsubUser, count: int) -> tuple[str, list[str]]:
    """An array that fills both nodes; its id, and the names of the nodes."""
    job_id = user.submit(*ASKED, f"--array=1-{count}", "work.sh")
    wait_until(lambda: count_waiting(user) == 8, "both nodes are filled")
    names = read_job(user, job_id)["NodeList"]
    return job_id, user.run(["scontrol", "show", "hostnames", names]).stdout.split()


def count_waiting(user: CsubUser) -> int:
    """Members that run and have said all they say before they wait."""
    return sum(lines[-1][0] != "end" and len(lines) % 4 == 3 for lines in read_runs(user).values())


def list_sets(user: CsubUser) -> list[Path]:
    """The packs' directories in the order of their GPU sets, the first two on the first node."""
    return sorted(list_packs(user), key=lambda path: path.name.partition("~")[2])


def list_by_node(user: CsubUser, nodes: Sequence[str]) -> list[list[int]]:
    """The members that run on each node."""
    found: list[list[int]] = [[] for _ in nodes]
    for number, lines in read_runs(user).items():
        if lines[-1][0] != "end":
            found[nodes.index(lines[-1][0])].append(number)
    return found


def test_one_slurm_job_keeps_the_gpus_of_both_nodes_busy_to_the_end(user: CsubUser) -> None:
    words = (*ASKED, "--array=1-12", "work.sh")
    shown = user.csub("plan", *words).stdout
    assert "Pack 1, 4 GPUs of 2 nodes: 12 members" in shown
    table = shown.partition("BEGINS WITH")[2].splitlines()[1:5]
    assert [line.split()[:3] for line in table] == [
        ["1", "1", "1-9:4"], ["1", "2", "2-10:4"], ["2", "1", "3-11:4"], ["2", "2", "4-12:4"]
    ]  # fmt: skip
    tried = user.csub("--dry-run", *words).stdout
    assert "Pack of 4 GPUs on 2 nodes:" in tried
    assert "  GPU 1 of node 2, members 3-11:4: timeslice" in tried
    job_id, nodes = submit(user, 12)
    assert len(nodes) == 2
    assert user.run(["squeue", "-h", "-o", "%A %D", "-u", user.name]).stdout.split() == [
        job_id, "2"
    ]  # fmt: skip
    divisions = [read_division(list_sets(user)[number]) for number in (0, 2)]
    assert [division and division.node for division in divisions] == nodes
    gpus = {share.gpus[0] for division in divisions if division for share in division.shares}
    runs = read_runs(user)
    assert {lines[0][2] for lines in runs.values()} == gpus
    assert len(gpus) == 4
    for lines in runs.values():
        # Its own steps run where it does, and it sees no other node.
        (step,), (node, listed, count) = lines[1:3]
        assert step == node == listed
        assert count == "1"
    here, there = list_by_node(user, nodes)
    assert (len(here), len(there)) == (4, 4)
    rows = {line.split()[0]: line for line in user.csub("queue", job_id).stdout.splitlines()[1:]}
    assert all(f" {nodes[0]}:" in rows[f"{job_id}/{number}"] for number in here)
    assert all(f" {nodes[1]}:" in rows[f"{job_id}/{number}"] for number in there)
    assert f" {nodes[1]}:" in user.csub("why", f"{job_id}/{there[0]}").stdout
    shown = user.csub("top", "--once").stdout
    assert [
        f"GPU set {number} of 4 on {node}" in shown
        for number, node in ((1, nodes[0]), (2, nodes[0]), (3, nodes[1]), (4, nodes[1]))
    ] == [True] * 4
    # All places that become free are on one node, until it has had all that waited for the other.
    for begun in (9, 10, 11, 12):
        let_end(user, list_by_node(user, nodes)[1][0])
        wait_until(partial(has_begun, user, begun), "the place is filled")
        wait_until(lambda: count_waiting(user) == 8, "it has come up")
    assert len(list_by_node(user, nodes)[0]) == 4
    gone = list_by_node(user, nodes)[1][0]
    user.csub("cancel", f"{job_id}/{gone}")
    user.wait_for_states(job_id, {gone: "CANCELLED"})
    (user.home / "end").touch()
    found = user.finish(job_id)
    assert {row["state"] for number, row in found.items() if number != gone} == {"COMPLETED"}
    assert sorted(found) == list(range(1, 13))
    # As failed, for the sake of what was cancelled.
    wait_until(lambda: read_job(user, job_id)["JobState"] == "FAILED", "the job ends")
    report = user.csub("report", job_id).stdout
    assert "12 jobs on 4 GPUs" in report
    assert [report.count(f"{node} GPU") for node in nodes] == [2, 2]


def test_after_a_runner_of_the_second_node_was_killed_the_job_starts_again(user: CsubUser) -> None:
    job_id, nodes = submit(user, 10)
    runner = read_runner(list_sets(user)[3])
    assert runner is not None
    done = list_by_node(user, nodes)[1][0]
    let_end(user, done)
    user.wait_for_states(job_id, {done: "COMPLETED"})
    os.kill(runner.pid, signal.SIGKILL)
    wait_until(
        lambda: sum(len(lines) > 4 for lines in read_runs(user).values()) >= 4,
        "members run again",
        patience_s=120,
    )
    (user.home / "end").touch()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert sum(line[0] == "start" for line in read_runs(user)[done]) == 1
    assert read_job(user, job_id)["Restarts"] == "1"


def test_members_of_a_node_that_fails_start_again_on_the_other(user: CsubUser) -> None:
    job_id, nodes = submit(user, 10)
    here, there = list_by_node(user, nodes)
    try:
        administrate(
            user, "scontrol", "update", f"nodename={nodes[1]}", "state=down", "reason=test"
        )
        rows = user.wait_for_states(job_id, dict.fromkeys(there, "PENDING"))
        assert all(
            rows[number]["reason"] == f"{nodes[1]} has left the job; it runs again"
            for number in there
        )
        let_end(user, *here)
        wait_until(lambda: count_again(user, there, nodes[0]) >= 2, "they run on the other node")
        (user.home / "end").touch()
        rows = user.finish(job_id)
    finally:
        administrate(
            user, "scontrol", "update", f"nodename={nodes[1]}", "state=resume", check=False
        )
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}, user.describe(job_id)
    runs = read_runs(user)
    for number in there:
        assert [line[0] for line in runs[number]].count("start") == 2
        assert [line[0] for line in runs[number]].count("end") == 1
        assert runs[number][-2][0] == nodes[0]
    # The others have heard nothing, and what became of the node is not the job's failure.
    assert all([line[0] for line in runs[number]].count("start") == 1 for number in here)
    wait_until(lambda: read_job(user, job_id)["JobState"] == "COMPLETED", "the job ends")
    assert read_job(user, job_id)["Restarts"] == "0"


def count_again(user: CsubUser, numbers: Sequence[int], node: str) -> int:
    runs = read_runs(user)
    return sum(runs[number][-1][0] == node and len(runs[number]) == 6 for number in numbers)


def test_a_cancelled_job_ends_on_both_nodes(user: CsubUser) -> None:
    job_id, _ = submit(user, 10)
    user.csub("cancel", "--yes", job_id)
    user.wait_for_states(job_id, "CANCELLED")
    assert "end" not in {line[0] for lines in read_runs(user).values() for line in lines}
    wait_until(lambda: read_job(user, job_id)["JobState"] == "CANCELLED", "the job ends")


def test_what_is_tried_again_has_both_nodes_again(user: CsubUser) -> None:
    user.script("fail.sh", "exit 1")
    job_id = user.submit(*ASKED, "--array=1-8", "fail.sh")
    user.finish(job_id)
    first = list_packs(user)
    user.csub("retry", job_id)
    records = [read_pack(path) for path in list_packs(user) if path not in first]
    assert {record and record.set_nodes for record in records} == {(0, 0, 1, 1)}
    assert all(record and "--nodes=2" in record.slurm_options for record in records)
