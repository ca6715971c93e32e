from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc_lab.sandbox.cgroups import CgroupSupport
from slurm_colloc_lab.sandbox.installation import parse_version
from slurm_colloc_lab.sandbox.sandbox_record import SandboxRecord, write_record
from slurm_colloc_lab.sandbox.sandbox_spec import (
    Layout,
    SandboxSpec,
    check_directory_name,
    choose_directory,
    choose_node_names,
)
from slurm_colloc_lab.sandbox.sandbox_status import count_gpus, parse_nodes
from slurm_colloc_lab.sandbox.slurm_conf import (
    ClusterPlan,
    Host,
    NodePlan,
    render_cgroup_conf,
    render_gres_conf,
    render_slurm_conf,
)

DIRECTORY = Path("/var/tmp/box")
PLAN = ClusterPlan(
    spec=SandboxSpec(DIRECTORY),
    layout=Layout(DIRECTORY),
    host=Host("lab", 4, "root", is_root=True),
    version=(22, 5),
    controller_port=20001,
    nodes=(
        NodePlan("node1", 20002, (DIRECTORY / "dev/gpu0", DIRECTORY / "dev/gpu1")),
        NodePlan("node2", 20003, (DIRECTORY / "dev/gpu2", DIRECTORY / "dev/gpu3")),
    ),
    cgroups=CgroupSupport(1, swap=True, reason="they are there"),
)
GOLDEN = """\
# Written by 'csub sandbox up', which writes it anew at each start.
ClusterName=sandbox
SlurmctldHost=lab(127.0.0.1)
SlurmctldPort=20001
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/var/tmp/box/run/munge.sock,cred_expire=10
CredType=cred/munge

StateSaveLocation=/var/tmp/box/state
SlurmdSpoolDir=/var/tmp/box/spool/%n
SlurmctldPidFile=/var/tmp/box/run/slurmctld.pid
SlurmdPidFile=/var/tmp/box/run/slurmd.%n.pid
SlurmctldLogFile=/var/tmp/box/log/slurmctld.log
SlurmdLogFile=/var/tmp/box/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true

ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=task=5
PrologFlags=Alloc,Contain
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu

SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2,\
bf_window=10080,bf_resolution=60
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MaxArraySize=20001
MaxJobCount=50000
MinJobAge=300
JobRequeue=1

KillWait=5
MessageTimeout=10
SlurmdTimeout=30
ReturnToService=2

NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=20002 CPUs=16 RealMemory=16000 \
Gres=gpu:2
NodeName=node2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=20003 CPUs=16 RealMemory=16000 \
Gres=gpu:2
PartitionName=gpu Nodes=node1,node2 DefaultTime=60 MaxTime=7-0 State=UP Default=YES \
PriorityTier=10 PreemptMode=OFF
PartitionName=preempt Nodes=node1,node2 DefaultTime=60 MaxTime=7-0 State=UP PriorityTier=1 \
PreemptMode=REQUEUE GraceTime=5
PartitionName=whole Nodes=node1,node2 DefaultTime=60 MaxTime=7-0 State=UP PriorityTier=10 \
PreemptMode=OFF OverSubscribe=EXCLUSIVE
"""


def find_values(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_slurm_conf_of_the_default_cluster_is_this_text() -> None:
    assert render_slurm_conf(PLAN) == GOLDEN


def test_without_cgroups_processes_are_tracked_by_other_means() -> None:
    none = CgroupSupport(0, swap=False, reason="none")
    root = find_values(render_slurm_conf(replace(PLAN, cgroups=none)))
    assert root["ProctrackType"] == "proctrack/linuxproc"
    assert root["TaskPlugin"] == "task/affinity"
    assert root["JobAcctGatherType"] == "jobacct_gather/linux"
    assert root["PrologFlags"] == "Alloc"
    user = Host("lab", 4, "ada", is_root=False)
    mine = find_values(render_slurm_conf(replace(PLAN, cgroups=none, host=user)))
    assert mine["ProctrackType"] == "proctrack/pgid"
    assert mine["SlurmdUser"] == mine["SlurmUser"] == "ada"


def test_cores_are_bound_only_where_the_host_has_them() -> None:
    fitting = replace(PLAN, spec=replace(PLAN.spec, cpus_per_node=4))
    assert find_values(render_slurm_conf(fitting))["SelectTypeParameters"] == "CR_Core_Memory"
    larger = replace(PLAN, spec=replace(PLAN.spec, cpus_per_node=5))
    assert find_values(render_slurm_conf(larger))["SelectTypeParameters"] == "CR_CPU_Memory"


def test_unequal_gpus_of_a_node_are_told_apart() -> None:
    plan = replace(PLAN, spec=replace(PLAN.spec, gpu_type="h100,a100"))
    assert "RealMemory=16000 Gres=gpu:h100:1,gpu:a100:1" in render_slurm_conf(plan)
    lines = render_gres_conf(plan).splitlines()
    assert lines[1].endswith("Name=gpu Type=h100 File=/var/tmp/box/dev/gpu0")
    assert lines[2].endswith("Name=gpu Type=a100 File=/var/tmp/box/dev/gpu1")
    with pytest.raises(UsageProblem, match="'' is not a word"):
        replace(plan.spec, gpu_type="h100,").check()
    assert replace(plan.spec, gpu_type="h100,a100,a30").name_gpu_types(8) == (
        "h100", "h100", "h100", "a100", "a100", "a100", "a30", "a30",
    )  # fmt: skip
    assert plan.spec.name_gpu_types(0) == ()


def test_an_extra_line_takes_the_place_of_ours() -> None:
    spec = replace(PLAN.spec, extra_conf=("killwait=30", "Prolog=/p"))
    lines = render_slurm_conf(replace(PLAN, spec=spec)).splitlines()
    assert [line for line in lines if line.lower().startswith("killwait")] == ["killwait=30"]
    assert "Prolog=/p" in lines


@pytest.mark.parametrize(
    ("version", "cgroup_version", "expected"),
    [
        ((22, 5), 0, {"CgroupPlugin": "cgroup/v1"}),
        ((23, 11), 0, {"CgroupPlugin": "disabled"}),
        ((26, 5), 0, {"CgroupPlugin": "disabled"}),
    ],
)
def test_unusable_cgroups_are_switched_off_in_the_words_of_the_release(
    version: tuple[int, int], cgroup_version: int, expected: dict[str, str]
) -> None:
    plan = replace(
        PLAN, version=version, cgroups=CgroupSupport(cgroup_version, swap=False, reason="none")
    )
    assert find_values(render_cgroup_conf(plan)) == expected


def test_cgroup_conf_limits_cores_memory_swap_and_devices() -> None:
    first = find_values(render_cgroup_conf(PLAN))
    assert first["CgroupAutomount"] == "yes"
    assert first["ConstrainSwapSpace"] == "yes"
    newer = find_values(render_cgroup_conf(replace(PLAN, version=(24, 11))))
    assert "CgroupAutomount" not in newer, "removed from Slurm, and an error there"
    second = find_values(
        render_cgroup_conf(replace(PLAN, cgroups=CgroupSupport(2, swap=False, reason="")))
    )
    assert second["CgroupPlugin"] == "cgroup/v2"
    assert second["IgnoreSystemd"] == "yes"
    assert second["ConstrainSwapSpace"] == "no"
    for values in (first, newer, second):
        assert values["ConstrainCores"] == values["ConstrainRAMSpace"] == "yes"
        assert values["ConstrainDevices"] == "yes"


def test_gres_conf_names_one_file_for_each_gpu_of_each_node() -> None:
    plan = replace(PLAN, spec=replace(PLAN.spec, gpu_type="a100"))
    assert render_gres_conf(plan).splitlines() == [
        "AutoDetect=off",
        "NodeName=node1 Name=gpu Type=a100 File=/var/tmp/box/dev/gpu0",
        "NodeName=node1 Name=gpu Type=a100 File=/var/tmp/box/dev/gpu1",
        "NodeName=node2 Name=gpu Type=a100 File=/var/tmp/box/dev/gpu2",
        "NodeName=node2 Name=gpu Type=a100 File=/var/tmp/box/dev/gpu3",
    ]
    assert "Gres=gpu:a100:2" in render_slurm_conf(plan)


@given(st.integers(min_value=1, max_value=200))
def test_every_accepted_directory_leaves_room_for_all_sockets(length: int) -> None:
    directory = Path("/" + "d" * length)
    layout = Layout(directory)
    node = choose_node_names(directory, 64, plain=False)[-1]
    longest = max(
        len(str(layout.munge_socket)),
        len(str(layout.spool / node / f"{node}_99999999.4294967291")),
    )
    if longest < 108:
        check_directory_name(directory)
    else:
        with pytest.raises(UsageProblem, match="choose a shorter one"):
            check_directory_name(directory)


@pytest.mark.parametrize("text", ["relative/path", "/with blank/x", "/with#hash", "/new\nline"])
def test_directories_that_slurm_conf_cannot_name_are_refused(text: str) -> None:
    with pytest.raises(UsageProblem):
        check_directory_name(Path(text))


@pytest.mark.parametrize(
    "spec",
    [
        SandboxSpec(DIRECTORY, nodes=0),
        SandboxSpec(DIRECTORY, gpus_per_node=-1),
        SandboxSpec(DIRECTORY, gpu_type="a b"),
        SandboxSpec(DIRECTORY, extra_conf=("Prolog=/x\nEpilog=/y",)),
        SandboxSpec(DIRECTORY, requeue_delay_s=1),
    ],
)
def test_settings_that_cannot_work_are_refused(spec: SandboxSpec) -> None:
    with pytest.raises(UsageProblem):
        spec.check()


def test_a_specification_survives_its_record_and_unknown_keys_in_it() -> None:
    spec = SandboxSpec(DIRECTORY, nodes=3, gpu_type="h100", extra_conf=("Prolog=/x",))
    assert SandboxSpec.from_record({**spec.to_record(), "later": 1}) == spec


def test_the_default_directory_is_open_for_root_and_private_for_others() -> None:
    assert choose_directory({}, is_root=True) == Path("/var/tmp/slurm_colloc_sandbox")
    assert choose_directory({"XDG_STATE_HOME": "/s"}, is_root=False) == Path(
        "/s/slurm_colloc/sandbox"
    )
    home = choose_directory({"HOME": "/h", "XDG_STATE_HOME": "relative"}, is_root=False)
    assert home == Path("/h/.local/state/slurm_colloc/sandbox")


def test_the_sandbox_that_a_shell_uses_is_the_one_that_is_meant(tmp_path: Path) -> None:
    conf = tmp_path / "d" / "etc" / "slurm.conf"
    environment = {"SLURM_CONF": str(conf), "HOME": "/h"}
    conf.parent.mkdir(parents=True)
    conf.touch()
    default = choose_directory({"HOME": "/h"}, is_root=False)
    assert choose_directory(environment, is_root=False) == default, "another cluster's"
    (tmp_path / "d" / "sandbox.json").touch()
    for is_root in (False, True):
        assert choose_directory(environment, is_root=is_root) == tmp_path / "d"
    shutil.rmtree(tmp_path / "d")
    assert choose_directory(environment, is_root=True) == tmp_path / "d", "it was removed"
    for other in ("", "etc/slurm.conf", "/x/slurm.conf"):
        assert choose_directory({"SLURM_CONF": other, "HOME": "/h"}, is_root=False) == default


def test_two_directories_have_nodes_of_different_names() -> None:
    first = choose_node_names(Path("/a"), 2, plain=False)
    second = choose_node_names(Path("/b"), 2, plain=False)
    assert not set(first) & set(second)
    assert choose_node_names(Path("/a"), 2, plain=True) == ("node1", "node2")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8", (22, 5)),
        ("slurm 26.05.3", (26, 5)),
        ("slurm 24.11.0-0rc1", (24, 11)),
        ("slurm 23.11", (23, 11)),
        ("nothing", None),
    ],
)
def test_versions_are_read_from_what_slurmd_says(
    text: str, version: tuple[int, int] | None
) -> None:
    assert parse_version(text) == version


def test_nodes_are_read_from_sinfo() -> None:
    (node,) = parse_nodes("node1|drained*|16|16000|gpu:a100:2(S:0-1),mps:100|Prolog error | x\n")
    assert (node.name, node.state, node.gpus) == ("node1", "drained*", 2)
    assert node.reason == "Prolog error | x"
    assert parse_nodes("\nbroken line\n") == ()


@pytest.mark.parametrize(
    ("gres", "count"), [("(null)", 0), ("gpu:2", 2), ("gpu:a:1,gpu:b:3(S:0)", 4), ("shard:8", 0)]
)
def test_gpus_are_counted_in_a_gres_text(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


def test_other_users_can_read_how_to_reach_roots_sandbox(tmp_path: Path) -> None:
    # Its hooks prepare GPUs for ordinary users alone.
    spec = SandboxSpec(tmp_path, hooks=True)
    cgroups = CgroupSupport(0, False, "none")
    layout = Layout(tmp_path)
    write_record(
        layout.record, SandboxRecord(spec, ("n1",), 1, (2,), cgroups, False, "", "", True, False)
    )
    assert layout.record.stat().st_mode & 0o777 == 0o644
