"""What the login node tells is judged by what it means for packs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slurm_colloc.diagnosis.login_findings import (
    Finding,
    Level,
    LoginFacts,
    choose_partition,
    compute_exit_status,
    judge_access,
    judge_cgroup,
    judge_controller,
    judge_gres,
    judge_login,
    judge_nodes,
    judge_numbers,
    judge_settings,
    judge_slurm,
    judge_state,
    name_files,
    parse_release,
)
from slurm_colloc.errors import CollocError
from slurm_colloc.slurm.slurm_commands import NodeState

CONFIG = {
    "ClusterName": "sandbox",
    "SlurmctldHost[0]": "login1(10.0.0.1)",
    "SLURM_VERSION": "22.05.8",
    "GresTypes": "gpu",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "ConstrainCores": "yes",
    "ConstrainRAMSpace": "yes",
    "ConstrainDevices": "yes",
}
FACTS = LoginFacts(
    "0.1.0",
    "3.11.2",
    "/opt/bin/python",
    client_version="22.05.8",
    config=CONFIG,
    answer_ms=9.4,
    access="commands",
    state_path="/home/x/state",
    job_id="auto",
    large_ids="",
)


def node(name: str, partition: str = "gpu", state: str = "idle", **more: Any) -> NodeState:
    values = {"is_default": partition == "gpu", "gpus": 2, "version": "22.05.8", "reason": ""}
    return NodeState(name, partition, state=state, **{**values, **more})


def change(**values: Any) -> LoginFacts:
    return dataclasses.replace(FACTS, **values)


def expect(finding: Finding, level: Level, *words: str) -> None:
    assert finding.level is level
    for word in words:
        assert word in " ".join((finding.what, finding.lost, finding.advice))
    assert bool(finding.lost) >= (level is Level.YELLOW)
    assert bool(finding.advice) >= (level is Level.RED)


def test_all_findings_of_a_good_login_node_are_green() -> None:
    nodes = (node("n1"), node("n2"))
    facts = change(nodes=nodes)
    found = judge_login(facts, choose_partition(nodes, ""))
    assert {finding.level for finding in found} == {Level.GREEN}
    assert compute_exit_status(found) == 0
    assert found[4].what == "login1 answers in 9 ms, cluster sandbox"


def test_only_red_makes_an_exit_status_of_1() -> None:
    for level in Level:
        findings = [Finding("a", Level.GREEN, ""), Finding("b", level, "")]
        assert compute_exit_status(findings) == int(level is Level.RED)


def test_settings_and_state() -> None:
    expect(judge_settings(FACTS), Level.GREEN, "built-in values")
    expect(judge_settings(change(settings_files=("~/a.toml",))), Level.GREEN, "~/a.toml")
    broken = change(settings_trouble=CollocError("/etc/x.toml is not TOML"))
    expect(judge_settings(broken), Level.RED, "/etc/x.toml is not TOML", "correct that file")
    expect(judge_state(broken), Level.UNKNOWN, "the settings do not say")
    old = change(settings_warnings=("/etc/x.toml: the setting 'y' was removed",))
    expect(judge_settings(old), Level.YELLOW, "the setting 'y' was removed", "remove it there")
    full = change(state_trouble=CollocError("cannot write /a: No space", hint="make room"))
    expect(judge_state(full), Level.RED, "cannot write /a: No space", "make room")
    bare = change(state_trouble=CollocError("/a cannot be written"))
    expect(judge_state(bare), Level.RED, "set state_dir in the settings")


@pytest.mark.parametrize(
    ("client", "controller", "level", "words"),
    [
        ("22.05.8", "22.05.8", Level.GREEN, ("22.05.8",)),
        ("22.05.8", "22.05.11", Level.GREEN, ()),
        ("26.05.3", "26.05.3", Level.GREEN, ()),
        ("21.08.8", "21.08.8", Level.YELLOW, ("21.08.8", "from 22.05 to 26.05")),
        ("26.11.0", "26.11.0", Level.YELLOW, ("26.11.0",)),
        ("24.11.5", "25.05.1", Level.YELLOW, ("24.11.5", "the controller is 25.05.1")),
        ("22.05.8", "", Level.GREEN, ()),
        ("odd", "22.05.8", Level.GREEN, ("odd",)),
    ],
)
def test_releases_of_slurm(
    client: str, controller: str, level: Level, words: tuple[str, ...]
) -> None:
    facts = change(client_version=client, config={**CONFIG, "SLURM_VERSION": controller})
    expect(judge_slurm(facts), level, *words)


def test_without_slurm_the_rest_is_unknown() -> None:
    facts = change(
        client_version=None,
        client_trouble=CollocError("there is no Slurm here", hint="call csub where sbatch works"),
        config=None,
        access="",
    )
    expect(judge_slurm(facts), Level.RED, "there is no Slurm here", "where sbatch works")
    expect(judge_controller(facts), Level.UNKNOWN)
    expect(judge_access(facts), Level.UNKNOWN)
    expect(judge_nodes(None, None), Level.UNKNOWN)
    expect(judge_gres(None, None), Level.UNKNOWN)
    expect(judge_cgroup(None), Level.UNKNOWN)


def test_a_controller_that_does_not_answer() -> None:
    facts = change(config=None, controller_trouble=CollocError("it does not answer: refused"))
    expect(judge_controller(facts), Level.RED, "refused", "scontrol ping", "csub --local")


def test_access_that_is_demanded_and_cannot_be_had() -> None:
    facts = change(access_trouble=CollocError("pyslurm cannot be used"))
    expect(judge_access(facts), Level.RED, "pyslurm cannot be used", "slurm_access to auto")
    expect(judge_access(FACTS), Level.GREEN, "through commands")


def test_the_partition_is_the_default_or_the_one_that_was_named() -> None:
    nodes = (node("n1"), node("n1", "long"), node("c1", "cpu", gpus=0), node("n2"))
    default = choose_partition(nodes, "")
    assert (default.name, [n.name for n in default.nodes]) == ("gpu", ["n1", "n2"])
    assert (default.gpus, default.others_with_gpus) == (4, ("long",))
    named = choose_partition(nodes, "cpu")
    assert (named.gpus, named.others_with_gpus) == (0, ("gpu", "long"))
    both = choose_partition(nodes, "gpu,long")
    assert [n.name for n in both.nodes] == ["n1", "n2"]
    assert choose_partition(nodes, "nowhere").nodes == ()


def test_nodes_that_take_no_jobs_are_named_with_their_reasons() -> None:
    nodes = (node("n1"), node("n2", state="drained", reason="bad fan"))
    some = judge_nodes(nodes, choose_partition(nodes, ""))
    expect(some, Level.GREEN, "1 of 2 in partition gpu take jobs (not n2 drained (bad fan))")
    down = tuple(node(f"n{number}", state="down*") for number in range(5))
    none = judge_nodes(nodes, choose_partition(down, ""))
    expect(none, Level.RED, "no node of partition gpu", "n2 down* and 2 more", "sinfo -R")
    expect(judge_nodes(nodes, choose_partition(nodes, "x")), Level.RED, "no partition x", "gpu")
    lost = tuple(dataclasses.replace(n, is_default=False) for n in nodes)
    expect(judge_nodes(nodes, choose_partition(lost, "")), Level.RED, "no default partition")


def test_where_slurm_has_no_gpu() -> None:
    nodes = (node("n1"), node("c1", "cpu", gpus=0))
    expect(judge_gres(CONFIG, choose_partition(nodes, "")), Level.GREEN, "2 GPUs on 1 of 1 nodes")
    elsewhere = judge_gres(CONFIG, choose_partition(nodes, "cpu"))
    expect(elsewhere, Level.YELLOW, "no GPU in partition cpu", "runs alone", "--partition=gpu")
    bare = (node("c1", "cpu", gpus=0, is_default=True),)
    nowhere = judge_gres({"GresTypes": "(null)"}, choose_partition(bare, ""))
    expect(nowhere, Level.RED, "no GPU on any node (GresTypes=(null))", "gres.conf")


@pytest.mark.parametrize(
    ("changes", "what", "lost"),
    [
        ({"ConstrainDevices": "no"}, "ConstrainDevices=no", "another job's"),
        ({"ConstrainRAMSpace": "no"}, "ConstrainRAMSpace=no", "host memory"),
        ({"ConstrainCores": "no"}, "ConstrainCores=no", "more CPUs"),
        ({"ProctrackType": "proctrack/linuxproc"}, "ProctrackType=proctrack/linuxproc", "outlive"),
        ({"TaskPlugin": "task/affinity"}, "TaskPlugin=task/affinity", "nothing of a job"),
    ],
)
def test_what_slurm_does_not_enforce_is_named_with_its_loss(
    changes: dict[str, str], what: str, lost: str
) -> None:
    found = judge_cgroup({**CONFIG, **changes})
    assert (found.level, found.what) == (Level.YELLOW, what)
    assert lost in found.lost


def test_cgroup_conf_is_not_spoken_of_where_its_plugin_is_off() -> None:
    found = judge_cgroup({**CONFIG, "TaskPlugin": "task/none", "ConstrainDevices": "no"})
    assert found.what == "TaskPlugin=task/none"
    expect(judge_cgroup(CONFIG), Level.GREEN)
    expect(judge_cgroup({}), Level.YELLOW, "ProctrackType=(none)", "TaskPlugin=(none)")


def test_releases_and_paths_are_read() -> None:
    assert parse_release("slurm") is None
    assert parse_release("25.11.2") == (25, 11)
    assert name_files(("/etc/a", "/home/x/b"), {"HOME": "/home/x"}) == ("/etc/a", "~/b")
    assert name_files(("/home/xy/b",), {"HOME": "/home/x"}) == ("/home/xy/b",)
    assert name_files(("/a",), {}) == ("/a",)


FEDERATION = "the cluster is in the federation campus"


@pytest.mark.parametrize(
    ("job_id", "large_ids", "level", "words"),
    [
        ("auto", "", Level.GREEN, "each member has a SLURM_JOB_ID of its own"),
        ("own", "", Level.GREEN, "each member has a SLURM_JOB_ID of its own"),
        ("pack", "", Level.YELLOW, "one for all members of a pack (job_id in the settings)"),
        ("auto", FEDERATION, Level.YELLOW, f"one for all members of a pack: {FEDERATION}"),
        ("auto", "MaxJobId is 200000000", Level.YELLOW, "MaxJobId is 200000000"),
        ("own", FEDERATION, Level.YELLOW, "which Slurm may give, too"),
        ("auto", None, Level.UNKNOWN, "Slurm did not say"),
    ],
)
def test_one_finding_says_what_the_job_id_of_a_member_is(
    job_id: str, large_ids: str | None, level: Level, words: str
) -> None:
    found = judge_numbers(change(job_id=job_id, large_ids=large_ids))
    assert (found.check, found.level) == ("numbers", level)
    assert words in found.what
    assert bool(found.lost) is (level is Level.YELLOW)
