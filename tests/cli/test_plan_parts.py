"""Jobs of a call that go to nodes of different kinds, and nodes with GPUs of several types."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from .test_plan import SMALL, LoginNode

BIG_NODES = "big*|224|2000000|gpu:h200:8|infinite|n/a"
SMALL_NODES = "small|16|64000|gpu:a30:4|infinite|n/a"
MIXED = ("gpu*|64|512000|gpu:h200:4|infinite|n/a", "gpu*|64|256000|gpu:a30:4|infinite|n/a")
ANY = "any.sh"
QUEUE = "4711|4711|PENDING|0:00|1:00:00|2026-01-01T00:00:00||Priority|{comment}"


@pytest.fixture
def node(tmp_path: Path) -> LoginNode:
    login = LoginNode(tmp_path)
    (login.home / ANY).write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 --time=30:00\necho any\n")
    return login


def put(node: LoginNode, name: str, body: str) -> None:
    (node.home / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")


def show_nodes(node: LoginNode, *lines: str) -> None:
    put(node, "sinfo", f"echo {shlex.quote(chr(10).join(lines))}")


def write_script(node: LoginNode, name: str, partition: str, gpu_type: str) -> None:
    (node.home / name).write_text(
        f"#!/bin/sh\n#SBATCH -p {partition} --gres=gpu:{gpu_type}:1 --time=1:00:00\n"
        f"#SBATCH --cpus-per-task=4\n#CSUB --gpu-mem=14G\necho {name}\n"
    )


def learn(node: LoginNode, **seen: Any) -> None:
    usual = {"sm_active": 0.1, "dram_active": 0.03, "engine_active": 0.25,
             "gpu_memory_peak_mb": 6000.0}  # fmt: skip
    node.learn(ANY, **{**usual, **seen})


def list_asked(node: LoginNode, *arguments: str) -> list[dict[str, str]]:
    """The options with which sbatch would be called for a call."""
    done = node.csub("plan", *arguments)
    assert done.returncode == 0, done.stderr
    called = node.home / "called"
    lines = called.read_text().splitlines()
    called.unlink()
    return [
        dict(word.partition("=")[::2] for word in shlex.split(line) if word.startswith("--"))
        for line in lines
    ]


@pytest.mark.parametrize("order", ["abce", "ceab", "acbe"])
def test_each_group_is_planned_by_what_its_own_nodes_bring(node: LoginNode, order: str) -> None:
    show_nodes(node, BIG_NODES, SMALL_NODES)
    for name in "ab":
        write_script(node, f"{name}.sh", "big", "h200")
    for name in "ce":
        write_script(node, f"{name}.sh", "small", "a30")
    call = ("pack", *(f"{name}.sh" for name in order))
    found = node.plan(*call)
    packs = [[member["name"][0] for member in pack["members"]] for pack in found["packs"]]
    assert sorted(packs) == [["a", "b"], ["c"], ["e"]]
    firsts = [pack["members"][0]["job_index"] for pack in found["packs"]]
    assert firsts == sorted(firsts)
    assert [order[pack["members"][0]["job_index"]] for pack in found["packs"]] == [
        names[0] for names in packs
    ]
    asked = {options["--partition"]: options for options in list_asked(node, *call)}
    assert int(asked["big"]["--cpus-per-task"]) == 8
    assert int(asked["small"]["--cpus-per-task"]) == 4
    # 64000 MB for four GPUs.
    assert int(asked["small"]["--mem"].removesuffix("M")) <= 16000
    assert sum("2 groups" in reason for reason in found["reasons"]) == 1
    apart = {
        frozenset((pair["first"][0], pair["second"][0])): pair["broken"][0]["constraint"]
        for pair in found["not_together"]
    }
    assert apart[frozenset("ce")] == "cpus"
    assert {apart[frozenset((one, other))] for one in "ab" for other in "ce"} == {"group"}
    for pair in found["not_together"]:
        assert order[pair["first_index"]] == pair["first"][0]
        assert order[pair["second_index"]] == pair["second"][0]


def test_a_pack_asks_for_the_gpu_type_on_which_its_members_were_measured(node: LoginNode) -> None:
    show_nodes(node, *MIXED)
    learn(node)
    found = node.plan("--array=1-6", ANY)
    assert all(pack["known"] and pack["degree"] > 1 for pack in found["packs"])
    assert all(
        "asks for h200, on which its members were measured; --gres=gpu:TYPE:1 names another"
        in pack["reasons"]
        for pack in found["packs"]
    )
    assert {asked["--gres"] for asked in list_asked(node, "--array=1-6", ANY)} == {"gpu:h200:1"}
    # 512000 MB for four GPUs: the other nodes' share is no limit.
    assert {pack["gpu_memory_usable_mb"] for pack in found["packs"]} == {136582}
    alone = node.plan(ANY)
    assert not any("asks for" in reason for reason in alone["packs"][0]["reasons"])
    assert [asked["--gres"] for asked in list_asked(node, ANY)] == ["gpu:1"]


@pytest.mark.parametrize(
    ("nodes", "options", "words"),
    [
        (MIXED, ["--constraint=fast"], "(a30, h200) and none is asked for along with --constraint"),
        (
            (MIXED[1], MIXED[0].replace("h200", "a100")),
            [],
            "(a100, a30) and none is asked for: of what was measured on NVIDIA H200 no more than",
        ),
        (
            (MIXED[1], MIXED[0].replace("gpu*", "other")),
            [],
            "GPUs are of type a30 there: of what was measured on NVIDIA H200 no more than",
        ),
    ],
)
def test_where_another_gpu_may_be_given_only_the_gpu_memory_counts(
    node: LoginNode, nodes: tuple[str, ...], options: list[str], words: str
) -> None:
    show_nodes(node, *nodes)
    learn(node)
    found = node.plan(*options, "--array=1-6", ANY)
    assert any(words in reason for reason in found["reasons"])
    for pack in found["packs"]:
        assert (pack["known"], pack["gpu_memory_usable_mb"]) == (False, None)
        # The peak x 1.2 + 1 GiB.
        assert {member["gpu_memory_mb"] for member in pack["members"]} == {8224}
    asked = list_asked(node, *options, "--array=1-6", ANY)
    assert {called["--gres"] for called in asked} == {"gpu:1"}


def test_the_smallest_gpu_of_several_types_counts(node: LoginNode) -> None:
    show_nodes(node, *MIXED)
    config = node.home / ".config" / "slurm_colloc"
    config.mkdir(parents=True)
    (config / "settings.toml").write_text('[gpu_memory]\nh200 = "141G"\na30 = "24G"\n')
    learn(node)
    packs = node.plan("--constraint=fast", "--array=1-6", ANY)["packs"]
    assert {pack["gpu_memory_usable_mb"] for pack in packs} == {23347}
    assert max(len(pack["members"]) for pack in packs) == 2, "of 8224 MB each"
    # One that only the larger GPU holds is not refused: Slurm may be told which by other means.
    assert len(node.plan("--constraint=fast", "--gpu-mem=40G", "--array=1-2", ANY)["packs"]) == 2
    done = node.csub("plan", "--gpu-mem=142G", "--array=1-2", ANY)
    assert "is more than the GPU's 144384 MB" in done.stderr


def test_a_type_of_any_name_is_taken_for_the_measured_one_where_it_is_the_only_one(
    node: LoginNode,
) -> None:
    show_nodes(node, "gpu*|64|512000|gpu:fast:4|infinite|n/a", SMALL_NODES)
    learn(node)
    found = node.plan("--array=1-6", ANY)
    assert all(pack["known"] for pack in found["packs"])
    assert {asked["--gres"] for asked in list_asked(node, "--array=1-6", ANY)} == {"gpu:1"}


def test_jobs_that_nobody_measured_ask_for_no_type_beside_those_that_were(node: LoginNode) -> None:
    show_nodes(node, *MIXED)
    learn(node)
    (node.home / "new.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 --time=30:00\necho new\n")
    call = ("pack", ANY, "new.sh", ANY, "new.sh")
    found = node.plan(*call)
    assert [[m["job_index"] for m in pack["members"]] for pack in found["packs"]] == [
        [0, 2], [1, 3]
    ]  # fmt: skip
    assert [pack["gpu_memory_usable_mb"] for pack in found["packs"]] == [136582, None]
    assert [asked["--gres"] for asked in list_asked(node, *call)] == ["gpu:h200:1", "gpu:1"]


def submit(node: LoginNode, *scripts: str) -> dict[str, Any]:
    """Submit a pack that then waits in the queue; its record."""
    put(node, "sbatch", 'for word in "$@"; do echo "$word"; done >"$HOME/called"; echo 4711')
    arguments = ["pack", "--degree=4"] if len(scripts) > 1 else []
    done = node.csub(*arguments, "--parsable", "--join=never", *scripts)
    assert done.stdout == "4711\n", done.stderr
    (path,) = (node.state / "packs").glob("*/pack.json")
    words = (node.home / "called").read_text().splitlines()
    (comment,) = [w.partition("=")[2] for w in words if w.startswith("--comment=")]
    put(node, "squeue", f"echo {shlex.quote(QUEUE.format(comment=comment))}")
    return dict(json.loads(path.read_text()))


def would_join(node: LoginNode, *arguments: str) -> str:
    """Why a script would not join the pack, or `joins`."""
    if node.plan("--join=auto", *arguments)["would_join"]:
        return "joins"
    put(node, "sbatch", "echo 4712")
    done = node.csub("--join=auto", "--explain", *arguments)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "not joined: " in line]
    return line.partition("pack 4711: ")[2]


def test_a_pack_that_asks_for_a_type_is_joined_by_what_is_known_there(node: LoginNode) -> None:
    show_nodes(node, *MIXED)
    learn(node)
    record = submit(node, ANY, ANY)
    assert (record["request"]["gpu_type"], record["gpu_type"]) == ("h200", None)
    (node.home / "other.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\necho other\n")
    assert would_join(node, "--profile-like=any.sh", "--time=30:00", "other.sh") == "joins"


def test_who_waits_for_any_gpu_is_joined_by_whatever_fits_its_places(node: LoginNode) -> None:
    show_nodes(node, *MIXED)
    learn(node)
    assert submit(node, ANY)["request"] is None
    (node.home / "other.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\necho other\n")
    told = would_join(node, "--profile-like=any.sh", "--time=30:00", "other.sh")
    assert told == "joins"


def test_a_job_whose_goal_is_another_does_not_join(node: LoginNode) -> None:
    submit(node, SMALL, SMALL)
    assert would_join(node, "--goal=energy", SMALL) == "its --goal is throughput, not energy"


def test_a_qos_that_nobody_tells_is_named_once(node: LoginNode) -> None:
    show_nodes(node, BIG_NODES, SMALL_NODES)
    write_script(node, "a.sh", "big", "h200")
    write_script(node, "c.sh", "small", "a30")
    put(node, "sacctmgr", 'echo "sacctmgr: error: Connection refused" >&2; exit 1')
    reasons = node.plan("pack", "a.sh", "a.sh", "c.sh", "c.sh")["reasons"]
    assert sum("by its QoS is not known: " in reason for reason in reasons) == 1
    put(node, "sacctmgr", "echo \"Only 'accounting_storage/slurmdbd' is supported.\" >&2; exit 1")
    for path in (node.state / "waits").iterdir():
        path.unlink()
    reasons = node.plan("pack", "a.sh", "a.sh", "c.sh", "c.sh")["reasons"]
    assert not any("QoS is not known" in reason for reason in reasons)


def test_jobs_of_one_name_in_several_parts_are_told_apart(node: LoginNode) -> None:
    show_nodes(node, BIG_NODES, SMALL_NODES)
    for folder, partition, gpu_type in (("x", "big", "h200"), ("y", "small", "a30")):
        (node.home / folder).mkdir()
        write_script(node, f"{folder}/train.sh", partition, gpu_type)
    call = ("pack", "x/train.sh", "y/train.sh", "y/train.sh")
    pairs = {pair["first_number"]: pair for pair in node.plan(*call)["not_together"]}
    assert {pair["first"] for pair in pairs.values()} == {"train.sh"}
    assert [pairs[number]["pairs"] for number in (1, 2)] == [2, 1]
    assert pairs[2]["second_number"] == 3
    told = " ".join(node.csub("plan", "--explain", *call, COLUMNS="80").stdout.split())
    assert "train.sh 1 and train.sh 2, 2 such pairs: partition, account" in told
    assert "train.sh 2 and train.sh 3: 2 at once need 8 CPUs, the GPU's share is 4" in told


def test_three_parts_tell_a_reason_once(node: LoginNode) -> None:
    names = ("p", "q", "r")
    show_nodes(node, *(BIG_NODES.replace("big", name) for name in names))
    for name in names:
        (node.home / name).mkdir()
        write_script(node, f"{name}/train.sh", name, "h200")
    (pair,) = node.plan("pack", *(f"{name}/train.sh" for name in names))["not_together"]
    assert (pair["pairs"], pair["broken"][0]["constraint"]) == (3, "group")
