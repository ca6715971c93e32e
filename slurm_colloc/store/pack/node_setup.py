"""setup.json: how the node was really prepared for a pack, and why so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.record_files import read_record


@dataclasses.dataclass(frozen=True)
class SetupInstance:
    """A MIG instance that a member can have.

    Attributes:
        uuid: What CUDA calls it.
        profile: NVML's name of its profile.
        gpu_instance: NVML's id of its GPU instance.
        memory_mb: Its memory (MiB).
        sms: Its streaming multiprocessors.
        places: How many members have it at once; several share it by MPS.
    """

    uuid: str
    profile: str
    gpu_instance: int
    memory_mb: int
    sms: int
    places: int = 1


@dataclasses.dataclass(frozen=True)
class Setup:
    """What an attempt of a pack found and prepared on its node.

    Attributes:
        attempt: The attempt that wrote it.
        asked: What `--share` asked for.
        mode: The sharing mode that really holds; empty where none could be had.
        reason: Why this mode: what allowed it, or what stood in the way of the one asked for.
        node: The node.
        by: What prepared it: `runner`, or `prolog` for the node's own; empty where nothing was to
            be prepared.
        gpus: The GPUs by UUID; empty where they could not be read.
        gpu_memory_mb: Memory of one GPU; None where it could not be read.
        gpu_name: The GPU's model; None where it could not be read.
        client_cap: How many MPS clients the GPU takes; None where unknown.
        control_ms: From the daemon's start to its proved control socket, in ms.
        active_ms: From the daemon's start to a server that takes clients, in ms.
        stop_ms: How long the daemon took to stop, in ms; None while it runs.
        restarts: How often the daemon had to be started again.
        notes: What else is worth knowing, a sentence each.
        instances: The MIG instances on the GPU, as they are now; none in other modes.
        can_change: They are changed for members that wait for a larger one.
    """

    attempt: int
    asked: str
    mode: str
    reason: str
    node: str
    by: str = ""
    gpus: tuple[str, ...] = ()
    gpu_memory_mb: int | None = None
    gpu_name: str | None = None
    client_cap: int | None = None
    control_ms: float | None = None
    active_ms: float | None = None
    stop_ms: float | None = None
    restarts: int = 0
    notes: tuple[str, ...] = ()
    instances: tuple[SetupInstance, ...] = ()
    can_change: bool = False


def write_setup(pack: Path, setup: Setup) -> None:
    """Write a pack's setup.json; the runner of the newest attempt alone does."""
    write_json(f"{pack}/setup.json", dataclasses.asdict(setup))


def read_setup(pack: Path) -> Setup | None:
    """Read a pack's setup.json, None where no runner has written one.

    Raises:
        StateError: It is damaged.
    """
    return read_record(f"{pack}/setup.json", Setup)
