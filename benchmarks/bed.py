"""The private cluster and the user that the measurements submit to and as."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import build_environment, run_timed
from slurm_colloc.slurm.slurm_commands import read_cluster_name
from slurm_colloc.store.all_packs import State
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

CPUS = 64
POLL_S = 0.05
SCRIPT = "#!/bin/bash\ntrue\n"


@dataclass(frozen=True)
class Bed:
    """A cluster of one node with 64 claimed CPUs and one GPU, and a home of its own.

    Attributes:
        home: Home and submission directory.
        environment: Of everything that is measured.
    """

    home: Path
    environment: dict[str, str]

    @property
    def state(self) -> State:
        """The state directory of csub."""
        return State(self.home / "state" / "slurm_colloc", read_cluster_name(self.environment))

    @property
    def csub(self) -> str:
        """The command under test."""
        return str(Path(sys.executable).with_name("csub"))

    def with_state(self, name: str) -> Bed:
        """The same with another state directory."""
        changed = self.environment | {"XDG_STATE_HOME": str(self.home / name)}
        return _Renamed(self.home, changed, name)

    def run(self, argv: Sequence[str]) -> str:
        """Run a program; its standard output."""
        return run_timed(argv, environment=self.environment, directory=self.home)[1]

    def time_ms(self, argv: Sequence[str]) -> float:
        """Run a program; its wall time in milliseconds."""
        return run_timed(argv, environment=self.environment, directory=self.home)[0]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Jobs are taken and not started, so that only their submission costs something."""
        self.run(["scontrol", "update", "PartitionName=gpu", "State=DOWN"])
        try:
            yield
        finally:
            self.cancel_all()
            self.run(["scontrol", "update", "PartitionName=gpu", "State=UP"])

    def cancel_all(self) -> None:
        """End every job, and wait until none is left."""
        self.run(["scancel", "--state=PENDING", "--quiet", "--partition=gpu"])
        self.run(["scancel", "--quiet", "--partition=gpu"])
        wait_until(lambda: not self.run(["squeue", "--noheader"]).strip(), "the queue is empty")


@dataclass(frozen=True)
class _Renamed(Bed):
    state_name: str

    @property
    def state(self) -> State:
        return State(
            self.home / self.state_name / "slurm_colloc", read_cluster_name(self.environment)
        )


def time_csub(bed: Bed, words: Sequence[str]) -> float:
    """Submit with csub and make it forget the packs again; wall time in milliseconds."""
    before = set(bed.state.list_open())
    wall_ms = bed.time_ms([bed.csub, *words])
    forget_packs(bed, before)
    return wall_ms


def forget_packs(bed: Bed, before: set[str]) -> None:
    """Each run finds the same state: its packs no longer count as open."""
    for pack_id in set(bed.state.list_open()) - before:
        bed.state.forget_open(pack_id)


def wait_until(condition: Callable[[], bool], what: str, *, patience_s: float = 90.0) -> None:
    """Wait for something to become true.

    Raises:
        RuntimeError: It did not.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {patience_s:g} s: {what}")
        time.sleep(POLL_S)


@contextlib.contextmanager
def running_bed(*, gpus: int = 1) -> Iterator[Bed]:
    """Bring the cluster up, and take it down at the end.

    Args:
        gpus: GPUs of its node.

    Raises:
        SlurmUnreachable: Slurm is not installed.
    """
    folder = Path(tempfile.mkdtemp(prefix="csb", dir="/var/tmp"))
    folder.chmod(0o755)
    sandbox = Sandbox(folder / "c")
    spec = SandboxSpec(
        sandbox.directory,
        nodes=1,
        gpus_per_node=gpus,
        cpus_per_node=CPUS,
        fake_gpus=True,
        kill_wait_s=2,
    )
    try:
        sandbox.up(spec)
        home = folder / "home"
        home.mkdir()
        script = home / "x.sh"
        script.write_text(SCRIPT)
        script.chmod(0o755)
        environment = build_environment(home, Path(sys.executable).parent) | {
            name: value for name, value in sandbox.env().items() if name != "PATH"
        }
        yield Bed(home, environment)
    finally:
        sandbox.down(purge=True)
        shutil.rmtree(folder, ignore_errors=True)
