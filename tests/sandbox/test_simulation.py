"""The simulated GPUs of a sandbox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_command import main
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec
from slurm_colloc_lab.simgpu.install import list_nodes, snapshot

pytestmark = pytest.mark.slurm
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

RunAs = Callable[..., subprocess.CompletedProcess[str]]

_LOOK = """
import json, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps([pynvml.nvmlDeviceGetUUID(handle) for handle in handles]))
"""


def run(sandbox: Sandbox, *argv: str) -> str:
    ended = subprocess.run(
        argv,
        env={**os.environ, **sandbox.env()},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def small(sandbox: Sandbox, *, simgpu: bool = True) -> SandboxSpec:
    return SandboxSpec(sandbox.directory, nodes=1, gpus_per_node=1, fake_gpus=True, simgpu=simgpu)


@needs_compiler
def test_every_node_has_the_gpus_that_slurm_knows_of(shared_sandbox: Sandbox) -> None:
    status = shared_sandbox.status()
    assert status.simulation_reason == (
        f"NVML, MPS and processes in {shared_sandbox.layout.simgpu}"
    )
    nodes = list_nodes(shared_sandbox.layout.simgpu)
    assert [node.name for node in nodes] == list(shared_sandbox.node_names)
    for node in nodes:
        srun = ["srun", "-w", node.name, "-n1", "--gres=gpu:2", "--mem=64"]
        seen = json.loads(run(shared_sandbox, *srun, sys.executable, "-c", _LOOK))
        assert seen == [gpu.uuid for gpu in node.read_gpus()]


@needs_compiler
def test_a_job_sees_the_gpus_that_it_was_given(shared_sandbox: Sandbox) -> None:
    if shared_sandbox.status().cgroup_version == 0:
        pytest.skip("without cgroups Slurm cannot keep a job from another's devices")
    name = shared_sandbox.node_names[1]
    (first, second) = list_nodes(shared_sandbox.layout.simgpu)[1].read_gpus()
    script = f"{sys.executable} -c '{_LOOK}'; echo $CUDA_VISIBLE_DEVICES"
    srun = ["srun", "-w", name, "--gres=gpu:1", "--mem=64", "-n1"]
    held = subprocess.Popen(
        [*srun, "sh", "-c", f"{script}; read _"],
        env={**os.environ, **shared_sandbox.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert held.stdout is not None
        lines = [held.stdout.readline() for _ in range(2)]
        other = run(shared_sandbox, *srun, "sh", "-c", script).splitlines()
    finally:
        held.communicate("\n", timeout=60)
    assert sorted([json.loads(lines[0]), json.loads(other[0])]) == sorted(
        [[first.uuid], [second.uuid]]
    )
    # What is left is numbered from 0 for CUDA too.
    assert [lines[1].strip(), other[1]] == ["0", "0"]


@needs_compiler
def test_slurm_s_commands_stay_the_same(shared_sandbox: Sandbox) -> None:
    path = shared_sandbox.env()["PATH"]
    for name in ("sbatch", "srun", "scancel", "scontrol"):
        assert shutil.which(name, path=path) == shutil.which(name)
    assert sorted(entry.name for entry in (shared_sandbox.layout.simgpu / "bin").iterdir()) == [
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "simgpu",
    ]
    based = shared_sandbox.env({"PATH": "/mine:/usr/bin", "LD_LIBRARY_PATH": "/libs"})
    assert based["PATH"] == f"{shared_sandbox.layout.simgpu}/bin:/mine:/usr/bin"
    assert based["LD_LIBRARY_PATH"] == f"{shared_sandbox.layout.simgpu}/lib:/libs"


@needs_compiler
@pytest.mark.root
def test_other_users_train_on_it(
    shared_sandbox: Sandbox, users: tuple[str, str], run_as: RunAs
) -> None:
    before = snapshot(shared_sandbox.layout.simgpu)
    for user in users:
        argv = ["srun", "--gres=gpu:1", "--mem=64", "simgpu", "run", "--steps", "2", "--report"]
        ended = run_as(user, argv, sandbox=shared_sandbox)
        assert ended.stdout.splitlines()[-1] == "step 2 rate 10.000"
    assert snapshot(shared_sandbox.layout.simgpu) == before


def test_it_can_be_left_out(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(sandbox.directory)]
    assert main(["up", "--nodes=1", "--gpus-per-node=1", "--fake-gpus", "--no-simgpu", *where]) == 0
    assert list(sandbox.env()) == ["SLURM_CONF"]
    assert not sandbox.layout.simgpu.exists()
    capsys.readouterr()
    assert main(["status", *where]) == 0
    assert "\nsimgpu   none, as asked for\n" in capsys.readouterr().out


def test_without_a_compiler_the_cluster_comes_up_and_says_so(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("scontrol", "sinfo", "srun", "squeue", "scancel", "slurmd", "slurmctld", "munged"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sandbox.up(small(sandbox))
    status = sandbox.status()
    assert status.running
    assert status.simulation_reason.startswith("none: the simulated NVML library needs a C comp")
    assert "install gcc" in status.simulation_reason
    assert "SIMGPU_ROOT" not in sandbox.env()


@needs_compiler
def test_it_goes_with_the_cluster_and_comes_with_a_new_one(sandbox: Sandbox) -> None:
    sandbox.up(small(sandbox))
    (node,) = list_nodes(sandbox.layout.simgpu)
    first = [gpu.uuid for gpu in node.read_gpus()]
    assert sandbox.env()["SIMGPU_ROOT"] == str(sandbox.layout.simgpu)
    # What is repaired keeps its simulation.
    sandbox.kill_node(sandbox.node_names[0])
    sandbox.up()
    assert [gpu.uuid for gpu in node.read_gpus()] == first
    sandbox.down()
    assert not sandbox.layout.simgpu.exists()
    sandbox.up(small(sandbox, simgpu=False))
    assert not sandbox.layout.simgpu.exists()


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="hooks prepare GPUs for other users")
def test_mig_is_on_as_a_site_has_it_until_the_node_is_rebooted(sandbox: Sandbox) -> None:
    options = ["--nodes=1", "--gpus-per-node=1", "--fake-gpus", "--hooks", "--mig"]
    assert main(["up", *options, "--dir", str(sandbox.directory)]) == 0
    assert 'mig = "switch"\n' in (sandbox.layout.hooks / "node.toml").read_text()
    (node,) = list_nodes(sandbox.layout.simgpu)
    ask = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);"
        "print(n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h))"
    )
    srun = ["srun", "-n1", "--gres=gpu:1", "--mem=64", sys.executable, "-c", ask]
    assert run(sandbox, *srun) == "[1, 1] 7\n"
    run(sandbox, "simgpu", "reboot", node.name)
    # A repair is no boot: the site's own unit has not run.
    sandbox.kill_node(node.name)
    sandbox.up()
    assert run(sandbox, *srun) == "[0, 0] 0\n"
    run(sandbox, "simgpu", "mig", "on")
    assert run(sandbox, *srun) == "[1, 1] 7\n"


def test_mig_needs_simulated_gpus(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--mig", "--no-simgpu", "--dir", str(sandbox.directory)]) == 2
    assert "--mig is for simulated GPUs" in capsys.readouterr().err
