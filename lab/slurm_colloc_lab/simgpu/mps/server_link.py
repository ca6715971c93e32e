"""The daemon's connection to a ready server: each question and its answer.

A server that has gone meanwhile answers nothing: no clients, no limit, 0.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass

from slurm_colloc_lab.simgpu.mps import wire_format


@dataclass(frozen=True)
class ClientRow:
    """A client as `ps` shows it.

    Args:
        pid: Its pid.
        ordinal: The GPU.
        uuid: The GPU's UUID, 16 bytes.
        number: Its ID.
        priority: 0 or 1.
    """

    pid: int
    ordinal: int
    uuid: bytes
    number: int
    priority: int


class ServerLink:
    """A connection to a server.

    Args:
        connection: The socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def close(self) -> None:
        """Let the server go."""
        self._connection.close()

    def ask_to_end(self) -> int:
        """Tell it to end; how many workers keep it from that."""
        return self._ask_number(wire_format.SHUT_DOWN)

    def is_active(self) -> bool:
        """Whether it is ACTIVE; else it is in FAULT."""
        return self._ask_number(wire_format.GET_STATUS) != 0

    def list_clients(self) -> list[int]:
        """Pids of its clients."""
        try:
            wire_format.send_number(self._connection, wire_format.LIST_CLIENTS)
            count = wire_format.receive_number(self._connection)
            return [wire_format.receive_number(self._connection) for _ in range(count)]
        except wire_format.Closed:
            return []

    def count_devices(self) -> int:
        """How many GPUs `get_device_client_list` has something about."""
        return self._ask_number(wire_format.LIST_DEVICES)

    def take_snapshot(self) -> list[ClientRow]:
        """Its clients, one row for each GPU that they use."""
        rows: list[ClientRow] = []
        with contextlib.suppress(wire_format.Closed, struct.error):
            wire_format.send_number(self._connection, wire_format.SNAPSHOT)
            for _ in range(wire_format.receive_number(self._connection)):
                message = wire_format.receive(self._connection)
                wire_format.drop(message.descriptors)
                pid, _, ordinal, uuid, number, priority = struct.unpack(
                    wire_format.SNAPSHOT_ROW, message.data
                )
                rows.append(ClientRow(pid, ordinal, uuid, number, priority))
            wire_format.send_number(self._connection, 0)
        return rows

    def terminate(self, pid: int) -> int:
        """End a client; 0 where it was one."""
        return self._ask_number(wire_format.TERMINATE, ("i", pid), default=1)

    def read_percentage(self) -> float:
        """The share of the multiprocessors that new clients get."""
        return self._ask("d", wire_format.GET_PERCENTAGE)

    def write_percentage(self, value: float) -> None:
        """Set it."""
        self._tell(wire_format.SET_PERCENTAGE, ("d", value))

    def read_limit_bytes(self, ordinal: int) -> int:
        """A GPU's pinned limit for new clients; 0 is none."""
        return int(self._ask("q", wire_format.GET_LIMIT, ("i", ordinal)))

    def write_limit_bytes(self, ordinal: int, limit_bytes: int) -> None:
        """Set it."""
        self._tell(wire_format.SET_LIMIT, ("i", ordinal), ("q", limit_bytes))

    def write_priority(self, priority: int) -> None:
        """Set the priority of new clients."""
        self._tell(wire_format.SET_PRIORITY, ("i", priority))

    def take_client(self, descriptor: int) -> None:
        """Hand it a client's socket.

        Raises:
            mps_wire.Closed: It has gone.
        """
        wire_format.send_number(self._connection, wire_format.TAKE_CLIENT)
        wire_format.send_descriptor(self._connection, descriptor)

    def _tell(self, question: int, *values: tuple[str, float]) -> None:
        with contextlib.suppress(wire_format.Closed):
            self._send(question, values)

    def _ask(self, form: str, question: int, *values: tuple[str, float]) -> float:
        try:
            self._send(question, values)
            return wire_format.receive_value(self._connection, form)
        except wire_format.Closed:
            return 0

    def _ask_number(self, question: int, *values: tuple[str, float], default: int = 0) -> int:
        try:
            self._send(question, values)
            return wire_format.receive_number(self._connection)
        except wire_format.Closed:
            return default

    def _send(self, question: int, values: tuple[tuple[str, float], ...]) -> None:
        wire_format.send_number(self._connection, question)
        for form, value in values:
            wire_format.send_value(self._connection, form, value)
