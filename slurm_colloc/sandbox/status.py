"""The state of a sandbox at one moment, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
