"""Slow GPUs as csub tells of them and stays away from them, on a fake Slurm."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurm_colloc.model.gpu_pace import GpuPace, GpuRate, GpuRun
from slurm_colloc.slurm.slurm_commands import NodeState
from slurm_colloc.store.gpu_paces import add_gpu_runs
from slurm_colloc.submission.plan.slow_nodes import choose_exclusion

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm

EACH = ("--gres=gpu:1", "--time=5", "-c1", "--mem=100M")
TOLD = "made 0.67 of the usual rate in 3 of 3 packs"


def note_slow(state: Path, *nodes: str, others: int = 3) -> None:
    """Packs have shown a slow GPU on each of these nodes, and GPUs as they should be elsewhere."""
    now = time.time()
    paces = {**dict.fromkeys(nodes, 6.7), **{f"elsewhere{n}": 10.0 for n in range(others)}}
    runs = [
        GpuRun(f"{node}.{n}", f"GPU-{node}", node, now - n, (GpuRate("k", "s", rate),), 100.0)
        for node, rate in paces.items()
        for n in range(3)
    ]
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    add_gpu_runs(state, "NVIDIA H200", runs)


def read_excluded(slurm: FakeSlurm) -> list[str]:
    """What each call of sbatch has left out."""
    calls = [call for call in slurm.list_all_calls() if call[0] == "sbatch"]
    return [
        next((word.partition("=")[2] for word in call if word.startswith("--exclude=")), "")
        for call in calls
    ]


@pytest.fixture
def trained(user: CsubUser, slurm: FakeSlurm) -> CsubUser:
    user.script("train.sh", "exit 0")
    slurm.pause()
    return user


def test_a_slow_node_is_left_out_where_it_is_asked_and_nowhere_else(
    trained: CsubUser, slurm: FakeSlurm
) -> None:
    note_slow(trained.state, "node1")
    trained.csub(*EACH, "--join=never", "train.sh")
    done = trained.csub(*EACH, "--join=never", "--avoid-slow", "train.sh")
    assert (
        "node1 is left out (--exclude), because one of its GPUs is slow: GPU-node1 (node1) "
        in done.stderr
    )
    assert TOLD in done.stderr
    done = trained.csub("--array=1-4", *EACH, "--avoid-slow", "--exclude=node2", "train.sh")
    assert "node1 is not left out, though it is slow: no other node is left" in done.stderr
    assert read_excluded(slurm) == ["", "node1", "node2"]


def test_the_setting_leaves_it_out_unless_it_is_named(trained: CsubUser, slurm: FakeSlurm) -> None:
    note_slow(trained.state, "node1")
    trained.csub("config", "avoid_slow", "true")
    trained.csub(*EACH, "--join=never", "train.sh")
    trained.csub(*EACH, "--join=never", "--nodelist=node1", "train.sh")
    trained.csub("--join=never", "-c1", "train.sh")
    assert read_excluded(slurm) == ["node1", "", ""]


def test_a_slow_node_that_is_named_is_refused_in_one_sentence(
    trained: CsubUser, slurm: FakeSlurm
) -> None:
    note_slow(trained.state, "node1")
    done = trained.csub(*EACH, "--avoid-slow", "--nodelist=node[1-2]", "train.sh", check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "csub: error: --avoid-slow leaves out node1, which --nodelist names: "
        f"GPU-node1 (node1) {TOLD}: leave out one of the two options\n"
    )
    assert read_excluded(slurm) == []


def test_where_no_other_node_is_left_none_is_left_out(trained: CsubUser, slurm: FakeSlurm) -> None:
    note_slow(trained.state, "node1", "node2", others=9)
    done = trained.csub(*EACH, "--join=never", "--avoid-slow", "train.sh")
    assert "node1,node2 is not left out, though it is slow: no other node is left" in done.stderr
    assert read_excluded(slurm) == [""]


def test_a_node_that_slurm_does_not_know_is_no_matter(trained: CsubUser, slurm: FakeSlurm) -> None:
    note_slow(trained.state, "gone7")
    done = trained.csub(*EACH, "--join=never", "--avoid-slow", "train.sh")
    assert "left out" not in done.stderr
    assert read_excluded(slurm) == [""]


def test_the_doctor_tells_of_slow_gpus_and_forgetting_all_forgets_them(trained: CsubUser) -> None:
    def ask() -> dict[str, object]:
        done = trained.csub("doctor", "--no-job", "--json", check=False)
        checks = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
        return dict(checks.get("gpus", {}))

    assert ask() == {}
    note_slow(trained.state, "node1")
    found = ask()
    assert found["level"] == "yellow"
    assert found["what"] == f"GPU-node1 (node1) {TOLD}"
    assert found["advice"] == (
        "csub --avoid-slow keeps jobs off node1; show it to the administrators"
    )
    trained.csub("profile", "forget", "--all")
    assert ask() == {}


def build_node(name: str, *, gpus: int = 8, partition: str = "gpu") -> NodeState:
    return NodeState(name, partition, partition == "gpu", "idle", gpus, "", "")


def test_what_the_user_leaves_out_stays_left_out() -> None:
    slow = [GpuPace("GPU-a", "n3", "m", 0.6, 4, 4), GpuPace("GPU-b", "n5", "m", throttled=0.2)]
    nodes = [build_node(f"n{n}") for n in range(8)]
    nodes += [build_node("login", gpus=0), build_node("x1", partition="other")]

    def choose(**group: str) -> str:
        return choose_exclusion(group, slow, nodes, is_asked=True).words

    assert choose(exclude="n[1-2]") == "n[1-2],n3,n5"
    assert choose(exclude="n[3-4]") == "n[3-4],n5"
    assert choose(exclude="n[3-5]") == ""
    assert choose(nodelist="n[1-2]") == "n3,n5"
    assert choose(partition="other") == ""
