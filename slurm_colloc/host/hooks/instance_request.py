"""A request to a job's agent: one line of JSON over a socket, of a user who is believed nothing.

Who: root's agent. Reading it is pure.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.model.printable import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REQUEST_MAX_BYTES = 4096
REQUEST_S = 2.0
"""How long a request may take to arrive: others wait meanwhile."""

_DRAIN_S = 0.2
_DRAINS_MAX = 16
_MOST_WORDS = 7


@dataclass(frozen=True)
class InstanceRequest:
    """What a job's runner asks for.

    Args:
        gpu: The UUID of a GPU.
        is_change: Something is to be changed.
        destroy: UUIDs of instances that are to go.
        create: Words of instances that are to come.
    """

    gpu: str
    is_change: bool = False
    destroy: tuple[str, ...] = ()
    create: tuple[str, ...] = ()


def parse_request(data: bytes) -> InstanceRequest:
    """Read one request; pure.

    Raises:
        NodeError: It is none.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise NodeError("the request is not JSON") from error
    if not isinstance(value, Mapping):
        raise NodeError("the request is not a JSON object")
    kind = value.get("request")
    if kind not in ("status", "change"):
        raise NodeError("the request is neither status nor change")
    unknown = set(value) - {"request", "gpu", "destroy", "create"}
    if unknown:
        raise NodeError(f"the request has the unknown key {cut(ascii(min(unknown)))}")
    gpu = value.get("gpu")
    if not isinstance(gpu, str):
        raise NodeError("the request names no gpu")
    return InstanceRequest(
        gpu, kind == "change", _read_words(value, "destroy"), _read_words(value, "create")
    )


def _read_words(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    words = value.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise NodeError(f"the request's {key} is not a list of texts")
    if len(words) > _MOST_WORDS:
        raise NodeError(f"the request's {key} has more than {_MOST_WORDS} entries")
    return tuple(words)


def receive(connection: socket.socket) -> bytes:
    """One line within the limits of length and time.

    Raises:
        NodeError: It is too long, or breaks off.
        OSError: It did not come in time.
    """
    data = b""
    ends_at = time.monotonic() + REQUEST_S
    while b"\n" not in data:
        if len(data) > REQUEST_MAX_BYTES:
            raise NodeError(f"the request is longer than {REQUEST_MAX_BYTES} bytes")
        connection.settimeout(max(0.001, ends_at - time.monotonic()))
        chunk = connection.recv(REQUEST_MAX_BYTES + 1)
        if not chunk:
            raise NodeError("the request breaks off")
        data += chunk
    line = data.partition(b"\n")[0]
    if len(line) > REQUEST_MAX_BYTES:
        raise NodeError(f"the request is longer than {REQUEST_MAX_BYTES} bytes")
    return line


def drain(connection: socket.socket) -> None:
    """Take what was sent beyond the request: unread, it would cost the client the answer."""
    connection.shutdown(socket.SHUT_WR)
    ends_at = time.monotonic() + _DRAIN_S
    for _ in range(_DRAINS_MAX):
        connection.settimeout(max(0.001, ends_at - time.monotonic()))
        if not connection.recv(REQUEST_MAX_BYTES):
            break
