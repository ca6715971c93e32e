"""A node for root's hooks: simulated GPUs, a directory of root's, and slurmd's part played."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.mps.mps_control import Peer, read_peer
from slurm_colloc.host.system.control_groups import NAME, read_hierarchies
from slurm_colloc.host.system.node_processes import list_processes, read_environment
from slurm_colloc_lab.simgpu.install import snapshot
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node

NOBODY = 65534
OTHER = 61234
# Cgroups are the machine's, also where others run these tests.
NODE = f"hook{os.getpid()}"
COMMENT = "my run [csub/1 mps]"
PATIENCE_S = 90
DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS = 0, 2, 3


@dataclass
class Ended:
    """How a hook ended."""

    status: int
    audit: dict[str, Any]


@dataclass
class HookNode:
    """A node as root's hooks see it.

    Attributes:
        home: A directory that every user may pass through.
        simulation: The simulated GPUs.
    """

    home: Path
    simulation: Path

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def policy(self) -> Path:
        return self.home / "node.toml"

    @property
    def slurm_conf(self) -> Path:
        return self.home / "slurm.conf"

    @property
    def audit_log(self) -> Path:
        return self.home / "log" / "hooks.log"

    @property
    def node(self) -> Node:
        return Node(self.simulation / "nodes" / NODE)

    def write_policy(self, **values: Any) -> None:
        lines = {
            "audit_log": str(self.audit_log),
            "state_directory": str(self.home / "state"),
            **values,
        }
        self.policy.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in lines.items()))
        self.policy.chmod(0o644)

    def environment(self, job_id: str, **variables: str | None) -> dict[str, str]:
        """What slurmd passes on, through a hook's script."""
        found: dict[str, str | None] = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C",
            "SLURM_COLLOC_DRIVER": str(self.simulation),
            "SLURMD_NODENAME": NODE,
            "SLURM_JOB_ID": job_id,
            "SLURM_JOB_UID": str(NOBODY),
            "SLURM_JOB_GID": str(NOBODY),
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_GPUS": "0",
            "SLURM_JOB_COMMENT": COMMENT,
            "SLURM_CONF": str(self.slurm_conf),
            **variables,
        }
        return {name: value for name, value in found.items() if value is not None}

    def argv(self, command: str) -> list[str]:
        return [
            *(sys.executable, "-I", "-B", "-m", "slurm_colloc.host.lifecycle", command),
            *("--run-directory", str(self.run), "--policy", str(self.policy)),
        ]

    def hook(self, command: str, job_id: str, **variables: str | None) -> Ended:
        """Run a hook as slurmd does: it returns once nobody has its output any more."""
        lines = len(self.read_audit())
        ended = subprocess.run(
            self.argv(command),
            env=self.environment(job_id, **variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            start_new_session=True,
        )
        assert (ended.stdout, ended.stderr) == (b"", b"")
        told = self.read_audit()[lines:]
        return Ended(ended.returncode, told[-1] if told else {})

    def prolog(self, job_id: str = "11", **variables: str | None) -> Ended:
        return self.hook("prolog", job_id, **variables)

    def epilog(self, job_id: str = "11", **variables: str | None) -> Ended:
        return self.hook("epilog", job_id, SLURM_JOB_COMMENT="changed by its user", **variables)

    def command(self, name: str) -> dict[str, Any]:
        """`recover` or `status`."""
        ended = subprocess.run(
            self.argv(name),
            env={"SLURM_COLLOC_DRIVER": str(self.simulation), "SLURMD_NODENAME": NODE},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return {"status": ended.returncode, **json.loads(ended.stdout)}

    def fail_nvml(self, *words: str) -> None:
        """Make NVML misbehave from now on; without a word it is well again."""
        (self.simulation / "faults").write_text(" ".join(words) + "\n")

    # -- looking --------------------------------------------------------------------------------

    def read_audit(self) -> list[dict[str, Any]]:
        if not self.audit_log.exists():
            return []
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]

    def setup(self, job_id: str = "11") -> dict[str, Any]:
        return dict(json.loads((self.run / job_id / "setup.json").read_text()))

    def checkpoint_path(self, job_id: str = "11") -> Path:
        return self.run / "jobs" / f"{job_id}.json"

    def change_checkpoint(self, job_id: str = "11", **values: Any) -> None:
        path = self.checkpoint_path(job_id)
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    def peer(self, job_id: str = "11", name: str = "0") -> Peer:
        peer = read_peer(str(self.run / job_id / name / "p"))
        assert peer is not None
        return peer

    def list_programs(self) -> list[int]:
        """Daemons and servers that hooks of this node have started."""
        return [
            process.id.pid
            for process in list_processes()
            if not process.has_ended
            and process.name.startswith(("nvidia-cuda-mps", "python"))
            and (read_environment(process.id.pid).get("CUDA_MPS_PIPE_DIRECTORY") or "").startswith(
                f"{self.run}/"
            )
        ]

    def list_left(self) -> list[str]:
        """Files, cgroups and processes that are there."""
        found = [str(pid) for pid in self.list_programs()]
        if self.run.is_dir():
            found += [str(e) for e in self.run.iterdir() if e.name not in ("jobs", "lock")]
        if (self.run / "jobs").is_dir():
            found += [str(e) for e in (self.run / "jobs").iterdir()]
        found += [str(e) for e in (self.home / "state" / "mig_on").glob("*")]
        for hierarchy in read_hierarchies():
            found += [str(group) for group in Path(hierarchy.mount, NAME).glob(f"{NODE}-*")]
        return found

    def snapshot(self) -> Mapping[str, Any]:
        """What is on every GPU."""
        return snapshot(self.simulation)

    def end_all(self) -> None:
        """Whatever a test has left."""
        self.fail_nvml()
        for pid in self.list_programs():
            os.kill(pid, 9)
        for hierarchy in read_hierarchies():
            for group in Path(hierarchy.mount, NAME).glob(f"{NODE}-*"):
                for _ in range(200):
                    try:
                        group.rmdir()
                        break
                    except OSError:
                        subprocess.run(["sleep", "0.02"], check=True)


def reset_gpus(bed: HookNode) -> None:
    """Every GPU as it comes up, whatever a test has left."""
    for gpu in bed.node.read_gpus():
        whole = dataclasses.replace(
            gpu,
            compute_mode=DEFAULT,
            power_limit_mw=gpu.default_power_limit_mw,
            persistence_mode=1,
        )
        bed.node.write_gpu(whole)


def set_mode(bed: HookNode, nvml_index: int, mode: int) -> None:
    """Set a compute mode as an administrator would."""
    gpu = bed.node.read_gpus()[nvml_index]
    bed.node.write_gpu(dataclasses.replace(gpu, compute_mode=mode))


def check_clean(bed: HookNode) -> None:
    assert bed.list_left() == []


# -- killing a hook -------------------------------------------------------------------------------


def require_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")


def kill_at(bed: HookNode, command: str, call: str, count: int, **variables: str | None) -> bool:
    """Run a hook that is killed at a system call of its own; whether it came so far."""
    ended = subprocess.run(
        [
            *("strace", "-o", "/dev/null", "-e", f"trace={call}"),
            *("-e", f"inject={call}:signal=KILL:when={count}", *bed.argv(command)),
        ],
        env=bed.environment("11", **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), ended
    return ended.returncode != 0


def list_counts(call: str) -> Iterator[int]:
    """At which of these calls to kill: at each, or rarer and rarer where most of them only wait."""
    if call in ("connect", "wait4"):
        return (2**number for number in itertools.count())
    return itertools.count(1)
