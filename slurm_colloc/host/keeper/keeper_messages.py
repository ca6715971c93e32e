"""What a keeper and its runner say to each other: JSON, one message a line; values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Union

from slurm_colloc.errors import StateError
from slurm_colloc.host.mps.mps_control import ListedClient
from slurm_colloc.host.mps.mps_logs import (
    ClientJoined,
    ClientLeft,
    DaemonTrouble,
    Fault,
    ServerStatus,
)
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport, Sweeping

__all__ = [
    "ClientJoined", "ClientLeft", "ControlProved", "DaemonDied", "DaemonTrouble", "Event",
    "Failed", "Fault", "KeeperDied", "Ready", "ServerClients", "ServerStatus", "Status", "Stopped",
    "Sweeping", "decode", "encode",
]  # fmt: skip


@dataclass(frozen=True)
class ControlProved:
    """The daemon answers; no server is known to work yet.

    Args:
        directory: Its private directory.
        pipe_directory: CUDA_MPS_PIPE_DIRECTORY.
        daemon_pid: The daemon.
        control_ms: From the daemon's start to the proof.
        refused_bases: Where the directory could not be made, with reasons.
    """

    directory: str
    pipe_directory: str
    daemon_pid: int
    control_ms: float
    refused_bases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ready:
    """Members can be started with this pipe directory.

    Args:
        directory: The daemon's private directory.
        pipe_directory: CUDA_MPS_PIPE_DIRECTORY.
        daemon_pid: The daemon.
        server_pid: Its server; None where none was waited for.
        version: The CUDA version of the daemon, such as 13.0; None where it does not say.
        control_ms: From the daemon's start to the proved control socket.
        active_ms: From the request for a server until it was ACTIVE; None likewise.
        refused_bases: Where the directory could not be made, with reasons.
    """

    directory: str
    pipe_directory: str
    daemon_pid: int
    server_pid: int | None
    version: str | None
    control_ms: float
    active_ms: float | None
    refused_bases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failed:
    """There is no daemon, and nothing is left of the attempt; the keeper ends."""

    reason: str


@dataclass(frozen=True)
class DaemonDied:
    """The daemon has ended by itself, and on current drivers its server and clients with it.

    Args:
        exit_status: Negative for a signal; None where it was no child of the keeper's.
    """

    exit_status: int | None


@dataclass(frozen=True)
class ServerClients:
    """A server and its clients; `status` is None where the daemon does not say."""

    pid: int
    uid: int | None
    status: str | None
    clients: tuple[ListedClient, ...] = ()


@dataclass(frozen=True)
class Status:
    """The answer to `ask_status`.

    Every fault that stood in the logs when it was asked for has come before it.

    Args:
        servers: All servers.
        problem: Why they are not all there; empty where they are.
    """

    servers: tuple[ServerClients, ...]
    problem: str = ""


@dataclass(frozen=True)
class Stopped:
    """The daemon is ended; the keeper ends."""

    report: StopReport


@dataclass(frozen=True)
class KeeperDied:
    """The keeper itself has ended without a word: the daemon has to be ended with `recover`."""

    exit_status: int | None


# A run-time `|` between classes needs Python 3.10.
Event = Union[  # noqa: UP007
    ControlProved,
    Ready,
    Failed,
    Fault,
    ServerStatus,
    ClientJoined,
    ClientLeft,
    DaemonTrouble,
    DaemonDied,
    Status,
    Stopped,
    Sweeping,
    KeeperDied,
]

_KINDS = {
    kind.__name__: kind
    for kind in (
        *(Event.__args__),  # type: ignore[attr-defined]
        ListedClient,
        MpsOptions,
        ServerClients,
        StopReport,
    )
}


def encode(value: Any) -> bytes:
    """Write a message as one line."""
    return json.dumps(_pack(value), separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | str) -> Any:
    """Read a message back.

    Raises:
        StateError: It is none.
    """
    try:
        return _unpack(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"a keeper's message cannot be read: {error}") from error


def _pack(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        values = {f.name: _pack(getattr(value, f.name)) for f in fields(value)}
        return {"kind": type(value).__name__, **values}
    if isinstance(value, Mapping):
        return {"kind": "", **{str(name): _pack(item) for name, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_pack(item) for item in value]
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(item) for item in value)
    if isinstance(value, dict):
        values = {name: _unpack(item) for name, item in value.items() if name != "kind"}
        kind = value["kind"]
        return _KINDS[kind](**values) if kind else values
    return value
