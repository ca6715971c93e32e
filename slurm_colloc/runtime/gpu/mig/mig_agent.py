"""Asking the node's agent for other MIG instances while the job runs.

Who: the job's user; where: with the runner. The agent is root's; it decides by itself whether what
is asked for may be done (host.mig).
"""

from __future__ import annotations

import json
import os
import socket
import struct
from dataclasses import dataclass

from slurm_colloc.host.keeper.prepared_mig import MigInstance, parse_instances
from slurm_colloc.host.system.trusted_paths import read_trusted_uids
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.runtime.gpu.discover_gpus import BackgroundCall

CHANGE_S = 60.0
"""To destroy an instance takes a second; an NVML that hangs is given up for the pack."""

_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True)
class MigChange:
    """Instances that are to go, and what is to be made in their place.

    Attributes:
        gpu: The GPU by UUID.
        destroy: Compute instances by UUID.
        create: Profiles by NVML's name.
    """

    gpu: str
    destroy: tuple[str, ...]
    create: tuple[str, ...]


@dataclass(frozen=True)
class ChangeAnswer:
    """What the agent has done.

    Attributes:
        reason: Why nothing was changed; empty where it was.
        instances: What stands now; None where it could not be told.
    """

    reason: str
    instances: tuple[MigInstance, ...] | None = None


def ask_for_change(path: str, change: MigChange, timeout_s: float = CHANGE_S) -> ChangeAnswer:
    """Ask the agent, and wait for its answer.

    Args:
        path: Its socket.
        change: What is asked for.
        timeout_s: How long it may take.
    """
    request = {
        "request": "change",
        "gpu": change.gpu,
        "destroy": list(change.destroy),
        "create": list(change.create),
    }
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            _check_peer(connection)
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_read_line(connection))
    except OSError as error:
        return ChangeAnswer(f"the node's MIG agent does not answer ({error.strerror or error})")
    except ValueError as error:
        return ChangeAnswer(f"the node's MIG agent gives an answer that cannot be read ({error})")
    return read_answer(answer)


def read_answer(answer: object) -> ChangeAnswer:
    """The agent's answer; what cannot be read of it counts as refused."""
    if not isinstance(answer, dict):
        return ChangeAnswer("the node's MIG agent gives an answer that cannot be read")
    try:
        instances = parse_instances(answer["instances"])
    except (KeyError, TypeError, ValueError, IndexError):
        instances = None
    if answer.get("ok") is True and instances is not None:
        return ChangeAnswer("", instances)
    told = escape_controls(cut(str(answer.get("reason") or "the node's MIG agent refuses"), 300))
    return ChangeAnswer(told, instances)


def begin_change(path: str, change: MigChange) -> BackgroundCall[ChangeAnswer]:
    """Begin `ask_for_change`."""
    return BackgroundCall(
        lambda: ask_for_change(path, change), lambda problem: ChangeAnswer(str(problem))
    )


def _check_peer(connection: socket.socket) -> None:
    """That it is root who listens.

    Raises:
        OSError: It is somebody else.
    """
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if uid not in read_trusted_uids() and uid != os.geteuid():
        raise PermissionError(1, f"user {uid} listens there")


def _read_line(connection: socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and len(data) < _ANSWER_BYTES:
        part = connection.recv(_ANSWER_BYTES)
        if not part:
            break
        data += part
    return data.partition(b"\n")[0]
