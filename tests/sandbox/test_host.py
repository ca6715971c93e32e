"""What the host offers: cgroups, GPUs, an installed Slurm, ports."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from slurm_colloc.errors import SlurmUnreachable, StateError, UsageProblem
from slurm_colloc_lab.sandbox.cgroups import detect_cgroups, find_node_groups, remove_groups
from slurm_colloc_lab.sandbox.daemons import choose_free_ports, is_port_free, is_port_listening
from slurm_colloc_lab.sandbox.installation import find_installation, find_plugin_directory
from slurm_colloc_lab.sandbox.sandbox_gpus import choose_gpu_files, find_real_gpus, make_fake_gpus

V1 = ("cpuset", "memory", "devices", "freezer", "cpuacct")


def make_v1(root: Path, names: tuple[str, ...] = V1) -> Path:
    for name in names:
        (root / name).mkdir()
        (root / name / "cgroup.procs").touch()
    return root


def test_an_ordinary_user_has_no_cgroups(tmp_path: Path) -> None:
    support = detect_cgroups(make_v1(tmp_path), is_root=False)
    assert support.version == 0
    assert "only root" in support.reason


def test_writable_version_1_is_found_and_swap_only_where_it_is_counted(tmp_path: Path) -> None:
    root = make_v1(tmp_path)
    assert (
        detect_cgroups(root, is_root=True).version,
        detect_cgroups(root, is_root=True).swap,
    ) == (
        1,
        False,
    )
    (root / "memory" / "memory.memsw.limit_in_bytes").touch()
    assert detect_cgroups(root, is_root=True).swap
    assert sorted(entry.name for entry in (root / "cpuset").iterdir()) == ["cgroup.procs"]


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    support = detect_cgroups(make_v1(tmp_path, V1[1:]), is_root=True)
    assert support.version == 0
    assert support.reason.endswith("no cgroup controller cpuset")


def test_version_2_needs_all_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu pids\n")
    support = detect_cgroups(tmp_path, is_root=True)
    assert support.version == 0
    assert support.reason.endswith("no cgroup controller cpuset, memory")


def test_version_2_gets_its_controllers_switched_on_in_system_slice(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs CAP_SYS_ADMIN, which only root has")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    (tmp_path / "system.slice").mkdir()
    for group in (tmp_path, tmp_path / "system.slice"):
        (group / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert detect_cgroups(tmp_path, is_root=True).version == 2
    # In the kernel's file the word is added; in this plain one it replaces the content.
    assert (tmp_path / "system.slice/cgroup.subtree_control").read_text() == "+cpuset"


def test_only_the_groups_of_the_named_nodes_are_removed(tmp_path: Path) -> None:
    for path in ("memory/slurm_a1/uid_0/job_1", "memory/slurm_a10", "memory/slurm_b1"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "system.slice/a1_slurmstepd.scope/job_2").mkdir(parents=True)
    groups = find_node_groups(["a1"], tmp_path)
    assert remove_groups(groups) == []
    assert sorted(path.name for path in (tmp_path / "memory").iterdir()) == [
        "slurm_a10",
        "slurm_b1",
    ]
    assert list((tmp_path / "system.slice").iterdir()) == []


def test_a_group_in_use_is_left_and_reported(tmp_path: Path) -> None:
    group = tmp_path / "memory" / "slurm_a1"
    (group / "job_1").mkdir(parents=True)
    (group / "job_1" / "in_use").touch()
    assert remove_groups([group]) == [group]


def test_real_gpus_are_found_by_number_and_control_files_are_not(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert [gpu.name for gpu in find_real_gpus(tmp_path)] == ["nvidia2", "nvidia10"]


def test_real_gpus_are_shared_out_evenly_unless_fake_ones_are_asked_for() -> None:
    real = tuple(Path(f"/dev/nvidia{number}") for number in range(4))
    shared = choose_gpu_files(real, Path("/d"), nodes=2, per_node=None, fake=False)
    assert shared.real
    assert shared.per_node == (real[:2], real[2:])
    fake = choose_gpu_files(real, Path("/d"), nodes=2, per_node=1, fake=True)
    assert not fake.real
    assert fake.per_node == ((Path("/d/gpu0"),), (Path("/d/gpu1"),))


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 1), (2, None), (1, 2)])
def test_more_nodes_than_the_real_gpus_can_serve_are_refused(
    nodes: int, per_node: int | None
) -> None:
    with pytest.raises(UsageProblem, match="--fake-gpus"):
        choose_gpu_files(
            (Path("/dev/nvidia0"),), Path("/d"), nodes=nodes, per_node=per_node, fake=False
        )


def test_an_ordinary_users_fake_gpus_are_links_to_different_devices(tmp_path: Path) -> None:
    files = (tmp_path / "gpu0", tmp_path / "gpu1")
    make_fake_gpus(files, is_root=False)
    devices = [file.stat() for file in files]
    assert all(stat.S_ISCHR(device.st_mode) for device in devices)
    assert len({device.st_rdev for device in devices}) == 2
    before = [file.readlink() for file in files]
    make_fake_gpus(files, is_root=False)
    assert [file.readlink() for file in files] == before


def test_fake_gpus_that_cannot_be_made_are_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be made"):
        make_fake_gpus((tmp_path / "missing" / "gpu0",), is_root=False)


def test_without_slurm_the_packages_and_the_way_without_it_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slurm_colloc_lab.sandbox.installation.DAEMON_DIRECTORIES", ())
    with pytest.raises(SlurmUnreachable) as caught:
        find_installation({"PATH": "/nowhere"})
    assert "no munged, slurmctld, slurmd, scontrol" in str(caught.value)
    assert "slurmctld slurmd slurm-client munge" in str(caught.value)
    assert "csub --local" in str(caught.value)


def make_unpacked(root: Path, version: str, *, status: int = 0) -> Path:
    sbin, bin_ = root / "usr/sbin", root / "usr/bin"
    sbin.mkdir(parents=True)
    bin_.mkdir()
    for program in (sbin / "munged", sbin / "slurmctld-wlm", sbin / "slurmstepd-wlm"):
        program.touch(mode=0o755)
    (bin_ / "scontrol").touch(mode=0o755)
    slurmd = sbin / "slurmd-wlm"
    slurmd.write_text(f"#!/bin/sh\necho '{version}'\necho 'lost library' >&2\nexit {status}\n")
    slurmd.chmod(0o755)
    plugins = root / "usr/lib/x86_64-linux-gnu/slurm-wlm"
    plugins.mkdir(parents=True)
    (plugins / "auth_munge.so").touch()
    return root


def test_unpacked_packages_are_found_with_their_own_names_and_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_colloc_lab.sandbox.installation.DAEMON_DIRECTORIES", ())
    root = make_unpacked(tmp_path, "slurm-wlm 22.05.8")
    found = find_installation({"PATH": f"{root}/usr/sbin:{root}/usr/bin:/bin:/usr/bin"})
    assert found.version == (22, 5)
    assert found.slurmd == str(root / "usr/sbin/slurmd-wlm")
    assert found.slurmstepd == str(root / "usr/sbin/slurmstepd-wlm")
    assert found.plugin_directory == str(root / "usr/lib/x86_64-linux-gnu/slurm-wlm")
    assert find_plugin_directory(Path("/usr/sbin/slurmd")) is None


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [("slurm 20.11.4", 0, "22.05 or newer"), ("", 127, "lost library")],
)
def test_a_slurm_that_is_too_old_or_does_not_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, status: int, words: str
) -> None:
    monkeypatch.setattr("slurm_colloc_lab.sandbox.installation.DAEMON_DIRECTORIES", ())
    root = make_unpacked(tmp_path, version, status=status)
    with pytest.raises(SlurmUnreachable, match=words):
        find_installation({"PATH": f"{root}/usr/sbin:{root}/usr/bin:/bin:/usr/bin"})


def test_a_port_in_use_is_seen_to_be_so() -> None:
    (port,) = choose_free_ports(1)
    assert is_port_free(port)
    assert not is_port_listening(port)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert not is_port_free(port)
        assert is_port_listening(port)


def test_chosen_ports_differ_and_lie_below_those_of_outgoing_connections() -> None:
    ports = choose_free_ports(20)
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert first < 21000 or max(ports) < first
