"""The fake and a Slurm that runs, for what is said of both."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import running_sandbox
from ..wait_until import wait_until
from .cluster import FakeSlurm

UNKNOWN_JOB = "999999"
PATIENCE_S = 60.0


class Controlled(Protocol):
    """What the fake and the sandbox both let a test do."""

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]: ...

    def stop_controller(self) -> None: ...

    def start_controller(self) -> None: ...


@dataclasses.dataclass
class SlurmUser:
    """Who uses one of the two with csub's own calls, and a folder that jobs can write to.

    Attributes:
        cluster: The fake or the sandbox.
        folder: The folder.
        client: csub's own way to it.
        is_real: It is a Slurm that runs.
    """

    cluster: Controlled
    folder: Path
    client: SlurmAccess
    is_real: bool

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call one of its programs."""
        ended = subprocess.run(
            argv, cwd=self.folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert not check or ended.returncode == 0, (argv, ended)
        return ended

    def submit(self, *options: str, script: str = "true") -> str:
        """Submit some lines of sh with csub's kind of call; the job id."""
        path = self.folder / f"{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        given = ["--time=5", "--mem=100M", "--output=out.%j", *options]
        return self.client.submit(
            str(path), given, environment=os.environ, directory=str(self.folder)
        )

    def read(self, name: str) -> str:
        """A file in the folder; empty while it is not there."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def find_state(self, job_id: str) -> str:
        """A job's state, as csub lists it."""
        job = self.client.list_jobs().get(job_id)
        return "" if job is None else job.state.value

    def wait_for(self, job_id: str, *states: str) -> None:
        """Wait until a job has one of these states."""
        wait_until(lambda: self.find_state(job_id) in states, f"job {job_id} is {states}")

    def list_steps(self, job_id: str) -> dict[str, str]:
        """The steps that srun has started, by their ids."""
        listed = self.client.list_steps(job_id)
        return {step: name for step, name in listed if step.rpartition(".")[2].isdigit()}

    def field(self, job_id: str, name: str) -> str:
        """A field of `scontrol show job`."""
        fields = self.client.read_job(job_id)
        assert fields is not None
        return fields[name]


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[Sandbox]:
    """One node of a real Slurm, where a requeued job starts again soon."""
    conf = ("MessageTimeout=2",)
    with running_sandbox(nodes=1, cpus_per_node=16, kill_wait_s=2, extra_conf=conf) as sandbox:
        yield sandbox


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.slurm, pytest.mark.smoke])])
def bed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmUser]:
    """The fake, and then the real one."""
    is_real = request.param == "real"
    fake = None
    if is_real:
        cluster: Controlled = request.getfixturevalue("real_cluster")
    else:
        (tmp_path / "slurm").mkdir()
        cluster = fake = FakeSlurm(tmp_path / "slurm")
    for name, value in cluster.env(os.environ).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "home"
    folder.mkdir()
    bed = SlurmUser(cluster, folder, SlurmAccess(), is_real)
    yield bed
    for job_id, job in bed.client.list_jobs().items():
        if job.state in (SlurmJobState.PENDING, SlurmJobState.RUNNING):
            bed.client.cancel(job_id.partition("_")[0])
    if fake is not None:
        fake.close()


GO = "until [ -e go ]; do sleep 0.05; done"
FOREVER = "while :; do sleep 0.1; done"
STEP = "srun --overlap --nodes=1 --ntasks=1 --mem=50 --cpu-bind=none --export=ALL --input=none"
