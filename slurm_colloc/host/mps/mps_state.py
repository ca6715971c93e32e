"""What a pack's daemon leaves in its directory, so that others can end it when its keeper cannot.

The file lies in the private directory itself, which only its maker can write: for root that is
root, so nothing in it comes from the user.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_colloc.errors import StateError
from slurm_colloc.host.mps.mps_control import MpsPrograms
from slurm_colloc.host.system.node_processes import ProcessId, read_boot_id, read_pid_namespace
from slurm_colloc.host.system.own_directory import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATE = "state.json"
SCHEMA = 1
_LIMIT_BYTES = 65536


@dataclass(frozen=True)
class DaemonState:
    """One daemon, for the process that has to end it.

    Args:
        label: Whose it is, for people.
        gpus: UUIDs.
        programs: Where NVIDIA's programs are.
        added: What was added to the daemon's environment.
        keeper: Who looks after it.
        daemon: The daemon; None before it has started.
        servers: Servers that were seen.
        owner: As whom root started it; None where it is the maker's own.
        boot: The boot in which the pids mean something.
        pid_namespace: The pid namespace in which they do.
        made_at: When (seconds since 1970).
    """

    label: str
    gpus: tuple[str, ...]
    programs: MpsPrograms
    added: Mapping[str, str]
    keeper: ProcessId
    daemon: ProcessId | None = None
    servers: tuple[ProcessId, ...] = ()
    owner: Owner | None = None
    boot: str = field(default_factory=read_boot_id)
    pid_namespace: int = field(default_factory=read_pid_namespace)
    made_at: float = field(default_factory=time.time)


def write_state(descriptor: int, state: DaemonState) -> None:
    """Write the state into an open directory, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    value = {
        "schema": SCHEMA,
        "label": state.label,
        "gpus": state.gpus,
        "control": state.programs.control,
        "server": state.programs.server,
        "added": dict(state.added),
        "keeper": _pack(state.keeper),
        "daemon": None if state.daemon is None else _pack(state.daemon),
        "servers": [_pack(server) for server in state.servers],
        "owner": None
        if state.owner is None
        else [state.owner.uid, state.owner.gid, *state.owner.groups],
        "boot": state.boot,
        "pid_namespace": state.pid_namespace,
        "made_at": state.made_at,
    }
    temporary = f"{STATE}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(temporary, flags, 0o600, dir_fd=descriptor)
    with open(opened, "w", encoding="ascii") as file:
        json.dump(value, file)
    os.replace(temporary, STATE, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def read_state(descriptor: int) -> DaemonState | None:
    """Read the state from an open directory; None where there is none yet.

    Raises:
        StateError: It is damaged, or of a newer version.
    """
    try:
        opened = os.open(STATE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{STATE} of an MPS daemon cannot be read: {error.strerror}") from error
    with open(opened, "rb") as file:
        data = file.read(_LIMIT_BYTES)
    try:
        value = json.loads(data.decode("ascii"))
        if value["schema"] > SCHEMA:
            raise StateError(f"{STATE} of an MPS daemon was written by a newer version")
        return _parse(value)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StateError(f"{STATE} of an MPS daemon is damaged ({error})") from error


def _pack(process: ProcessId) -> list[int]:
    return [process.pid, process.start_ticks]


def _parse(value: Mapping[str, Any]) -> DaemonState:
    daemon, owner = value["daemon"], value["owner"]
    return DaemonState(
        label=str(value["label"]),
        gpus=tuple(str(gpu) for gpu in value["gpus"]),
        programs=MpsPrograms(str(value["control"]), str(value["server"])),
        added={str(name): str(text) for name, text in value["added"].items()},
        keeper=ProcessId(*map(int, value["keeper"])),
        daemon=None if daemon is None else ProcessId(*map(int, daemon)),
        servers=tuple(ProcessId(*map(int, server)) for server in value["servers"]),
        owner=None if owner is None else Owner(owner[0], owner[1], tuple(owner[2:])),
        boot=str(value["boot"]),
        pid_namespace=int(value["pid_namespace"]),
        made_at=float(value["made_at"]),
    )
