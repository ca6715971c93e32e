"""A simulation of GPUs, programs on it, and NVIDIA's own Python binding to look at it."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc_lab.simgpu.gpu_models import A100_40, H200, GpuModel
from slurm_colloc_lab.simgpu.install import (
    make_simulation,
    simulation_environment,
    snapshot,
)
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node

from ..wait_until import wait_until

PATIENCE_S = 60.0
NOBODY = 65534

_PRELUDE = """
import json, sys, time
import pynvml as n
n.nvmlInit()
def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
def pids(list):
    return [process.pid for process in list]
"""


@dataclass
class Simulation:
    """A simulation with the programs that a test started on it."""

    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def node(self) -> Node:
        return Node(self.directory / "nodes" / "n1")

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.node.read_gpus()]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.node.read_processes()]

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.directory)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent"}
        return {**base, **simulation_environment(self.directory, base), **(extra or {})}

    def run(
        self,
        *arguments: str,
        extra: Mapping[str, str] | None = None,
        uid: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `simgpu ARGUMENTS` to its end."""
        return subprocess.run(
            ["simgpu", *arguments],
            env=self.environment(extra),
            executable=str(self.directory / "bin" / "simgpu"),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **_as_user(uid),
        )

    def start(
        self,
        *arguments: str,
        extra: Mapping[str, str] | None = None,
        uid: int | None = None,
        ready: bool = True,
    ) -> subprocess.Popen[str]:
        """Start `simgpu run ARGUMENTS`, and wait until it has described itself."""
        process = subprocess.Popen(
            [str(self.directory / "bin" / "simgpu"), "run", *arguments],
            env=self.environment(extra),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **_as_user(uid),
        )
        self.started.append(process)
        if ready:
            wait_until(lambda: self._is_at_work(process), f"{arguments} works")
        return process

    def ask(
        self, code: str, *, extra: Mapping[str, str] | None = None, uid: int | None = None
    ) -> Any:
        """Run code with pynvml as `n`, initialised; what it leaves in `answer`."""
        ended = self.ask_raw(f"{_PRELUDE}\n{code}\nprint(json.dumps(answer))", extra, uid)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def ask_raw(
        self, code: str, extra: Mapping[str, str] | None = None, uid: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run code as it is."""
        return subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(extra),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **_as_user(uid),
        )

    def _is_at_work(self, process: subprocess.Popen[str]) -> bool:
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.fail(f"ended with {process.returncode}: {process.stderr.read()}")
        return any(
            one.pid == process.pid and one.updated_s > 0 for one in self.node.read_processes()
        )


@contextlib.contextmanager
def running_simulation(
    prefix: str, nodes: Mapping[str, Sequence[GpuModel]], *, mig: bool = False
) -> Iterator[Simulation]:
    """A simulation that ends with all that was started on it."""
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    # Not below pytest's own directory: other users could not reach it, and it is too long a path
    # for sockets.
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/var/tmp"))
    directory.chmod(0o755)
    made = Simulation(directory / "sim")
    try:
        make_simulation(made.directory, nodes, mig=mig)
        yield made
    finally:
        for process in made.started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    """A node with an H200 and an A100, and another one with an H200."""
    with running_simulation("sgt", {"n1": [H200, A100_40], "n2": [H200]}) as made:
        yield made


@pytest.fixture
def stranger() -> int:
    """The uid of somebody who owns nothing here."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    return pwd.getpwuid(NOBODY).pw_uid


def _as_user(uid: int | None) -> dict[str, Any]:
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
