"""The state of a sandbox at one moment, as values."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import SlurmError
from slurm_colloc.host.system.child_programs import run_program
from slurm_colloc_lab.sandbox import daemons
from slurm_colloc_lab.sandbox.installation import find_installation
from slurm_colloc_lab.sandbox.sandbox_record import SandboxRecord
from slurm_colloc_lab.sandbox.sandbox_spec import Layout


@dataclass(frozen=True)
class DaemonStatus:
    """One daemon: its name as in its log file, its pid or None where it does not run."""

    name: str
    pid: int | None
    port: int | None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.pid is not None


@dataclass(frozen=True)
class NodeStatus:
    """One node as sinfo shows it; the state is `unreachable` where the controller is silent."""

    name: str
    state: str
    cpus: int
    host_memory_mb: int
    gpus: int
    reason: str = ""


@dataclass(frozen=True)
class SandboxStatus:
    """The state of a sandbox at one moment.

    Args:
        directory: Where it lives.
        owner: Whose it is; empty for the caller's.
        wanted: Whether it was brought up and not taken down since.
        slurm_version: Slurm's own words.
        daemons: All that belong to it.
        nodes: Its nodes.
        cgroup_version: 1, 2, or 0 where Slurm uses none.
        cgroup_reason: Why.
        gpu_reason: Where the GPUs come from.
        simulation_reason: What is simulated of them, or why nothing is.
    """

    directory: Path
    owner: str
    wanted: bool
    slurm_version: str
    daemons: tuple[DaemonStatus, ...]
    nodes: tuple[NodeStatus, ...]
    cgroup_version: int
    cgroup_reason: str
    gpu_reason: str
    simulation_reason: str

    @property
    def running(self) -> bool:
        """Whether every daemon is there."""
        return all(daemon.alive for daemon in self.daemons)


def parse_nodes(text: str) -> tuple[NodeStatus, ...]:
    """Read `sinfo -h -N -o '%N|%T|%c|%m|%G|%E'`."""
    nodes = []
    for line in text.splitlines():
        columns = line.strip().split("|", maxsplit=5)
        if len(columns) != 6:
            continue
        name, state, cpus, host_memory_mb, gres, reason = columns
        nodes.append(
            NodeStatus(
                name=name,
                state=state,
                cpus=int(cpus),
                host_memory_mb=int(host_memory_mb),
                gpus=count_gpus(gres),
                reason="" if reason == "none" else reason,
            )
        )
    return tuple(nodes)


def count_gpus(gres: str) -> int:
    """GPUs in a GRES text such as `gpu:a100:2(S:0-1)`; other GRES do not count."""
    total = 0
    for part in gres.replace("(", " (").split(","):
        words = part.split()[0].split(":") if part.split() else []
        if words and words[0] == "gpu" and words[-1].isdigit():
            total += int(words[-1])
    return total


_COMMAND_S = 15.0


def run_command(layout: Layout, argv: Sequence[str], timeout_s: float = _COMMAND_S) -> str:
    """Run a Slurm command against this cluster; its standard output.

    Raises:
        SlurmError: It failed or gave no answer in time.
    """
    program = str(find_command(argv[0]))
    environment = daemons.build_daemon_environment(os.environ, layout)
    try:
        ended = run_program([program, *argv[1:]], environment, timeout_s=timeout_s)
    except OSError as error:
        raise SlurmError(f"{argv[0]} of the sandbox failed: {error}", argv=argv) from error
    if ended.returncode is None:
        raise SlurmError(
            f"{argv[0]} of the sandbox gave no answer in {timeout_s:.0f} seconds",
            hint=f"see {layout.log}",
            argv=argv,
        )
    if ended.returncode != 0:
        reason = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SlurmError(
            f"{argv[0]} of the sandbox failed ({reason})",
            hint=f"see {layout.log}",
            argv=argv,
            returncode=ended.returncode,
            stderr=ended.stderr,
        )
    return ended.stdout


def find_command(name: str) -> Path:
    """Path of a user command, also where PATH does not name its directory."""
    found = shutil.which(name)
    return Path(found) if found else Path(find_installation(os.environ).command(name))


def ask_nodes(layout: Layout, record: SandboxRecord, *, answering: bool) -> tuple[NodeStatus, ...]:
    """The nodes as sinfo shows them; `unreachable` where the controller does not answer."""
    silent = tuple(NodeStatus(name, "unreachable", 0, 0, 0) for name in record.node_names)
    if not answering:
        return silent
    try:
        text = run_command(
            layout, ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N|%T|%c|%m|%G|%E"], timeout_s=5.0
        )
    except SlurmError:
        return silent
    return parse_nodes(text) or silent
