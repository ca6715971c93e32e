"""The clients of the simulated MPS server, and what a fault of one does to the others.

Wording of the log and order of events: 580.159.04 on an H200.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.client_limits import parse_limits_mb
from slurm_colloc_lab.simgpu.mps.daemon_logs import SERVER, RecordWriter
from slurm_colloc_lab.simgpu.mps.driver_versions import MpsProfile
from slurm_colloc_lab.simgpu.mps.server_faults import compute_linked, render_fault
from slurm_colloc_lab.simgpu.training.cuda_devices import CudaDevice
from slurm_colloc_lab.simgpu.training.cuda_errors import (
    ILLEGAL_ADDRESS,
    MPS_CLIENT_TERMINATED,
    MPS_MAX_CLIENTS_REACHED,
    MPS_SERVER_NOT_READY,
)

CONTEXTS = 2
"""Each process has two contexts; the second is the one that uses the GPU."""

_MIB = 1 << 20


@dataclass(eq=False)
class ServerClient:
    """A process that is connected, or about to be.

    Args:
        connection: Its socket.
        pid: Its pid; None as long as it has not said what it uses.
        number: What `ps` shows as ID.
        gpus: The GPUs that it has contexts on.
        sticky: A fatal fault has ended it; it is only still there.
    """

    connection: socket.socket
    pid: int | None = None
    number: int = 0
    gpus: tuple[str, ...] = ()
    sticky: bool = False


@dataclass
class ServerLimits:
    """What the control daemon has set.

    Args:
        percentage: Share of the multiprocessors.
        bytes_by_ordinal: Pinned limits; 0 is none.
        priority: 0 or 1.
    """

    percentage: float = 100.0
    bytes_by_ordinal: list[int] = field(default_factory=lambda: [0] * wire_format.DEVICES)
    priority: int = 0


class SimulatedServer:
    """A server at work.

    Args:
        control: Its connection to the daemon.
        profile: The driver.
        gpus: The devices that it sees, by cuda_index: GPUs, or one MIG device.
        limits: What the daemon has set.
        environment: Its environment, which is the daemon's.
        log: Where it writes.
    """

    def __init__(
        self,
        control: socket.socket,
        profile: MpsProfile,
        gpus: Sequence[CudaDevice],
        limits: ServerLimits,
        *,
        environment: Mapping[str, str],
        log: RecordWriter,
    ) -> None:
        self._control: socket.socket | None = control
        self._profile = profile
        self._gpus = tuple(gpus)
        self._limits = limits
        self._log = log
        self._clients: list[ServerClient] = []
        self._in_fault = False
        self._without_context: set[str] = set()
        self._exiting = False
        sizes_mb = {gpu.uuid: gpu.total_mb for gpu in gpus}
        given = environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        self._own_limits_mb = parse_limits_mb(
            given if profile.takes_limits_from_environment else None, list(sizes_mb), sizes_mb
        )

    @property
    def clients(self) -> list[ServerClient]:
        """Those that have connected, the first one first."""
        return [client for client in self._clients if client.pid is not None]

    def run(self) -> None:
        """Serve until the daemon says that it is enough, or has gone."""
        while True:
            poll = select.poll()
            sources: dict[int, ServerClient | None] = {
                client.connection.fileno(): client for client in self._clients
            }
            if self._control is not None:
                sources[self._control.fileno()] = None
            for descriptor in sources:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                client = sources[descriptor]
                if client is None:
                    self._hear_control()
                    if self._exiting:
                        return
                elif client in self._clients:
                    self._hear_client(client)

    # -- the daemon's questions --------------------------------------------------------------------

    def _hear_control(self) -> None:
        assert self._control is not None
        try:
            self._answer(self._control, wire_format.receive_number(self._control))
        except wire_format.Closed:
            self._control.close()
            self._control = None
            # The clients meet 806 then. Under 550 the server goes on without a daemon.
            self._exiting = self._profile.server_ends_with_daemon

    def _answer(self, control: socket.socket, question: int) -> None:
        limits = self._limits
        if question == wire_format.TAKE_CLIENT:
            self._take_client(wire_format.receive_descriptor(control))
        elif question == wire_format.SHUT_DOWN:
            self._shut_down(control)
        elif question == wire_format.LIST_CLIENTS:
            pids = [client.pid for client in self.clients if client.pid is not None]
            for number in (len(pids), *pids):
                wire_format.send_number(control, number)
        elif question == wire_format.LIST_DEVICES:
            # `get_device_client_list` showed nothing on an H200 with clients.
            wire_format.send_number(control, 0)
        elif question == wire_format.TERMINATE:
            pid = wire_format.receive_number(control)
            wire_format.send_number(control, self._terminate(pid))
        elif question == wire_format.SNAPSHOT:
            self._show(control)
        elif question == wire_format.GET_STATUS:
            wire_format.send_number(control, 0 if self._in_fault else 1)
        elif question == wire_format.GET_PERCENTAGE:
            wire_format.send_value(control, "d", limits.percentage)
        elif question == wire_format.SET_PERCENTAGE:
            limits.percentage = wire_format.receive_value(control, "d")
        else:
            self._answer_about_devices(control, question)

    def _answer_about_devices(self, control: socket.socket, question: int) -> None:
        limits = self._limits
        if question == wire_format.GET_LIMIT:
            ordinal = wire_format.receive_number(control)
            wire_format.send_value(control, "q", limits.bytes_by_ordinal[ordinal])
        elif question == wire_format.SET_LIMIT:
            ordinal = wire_format.receive_number(control)
            limits.bytes_by_ordinal[ordinal] = int(wire_format.receive_value(control, "q"))
        elif question == wire_format.SET_PRIORITY:
            limits.priority = wire_format.receive_number(control)

    def _shut_down(self, control: socket.socket) -> None:
        self._log.write(SERVER, "Server has been notified to shutdown")
        active = CONTEXTS * len(self.clients)
        if active:
            text = f"Server was unable to shutdown due to {active} active clients"
            self._log.write(SERVER, text)
        wire_format.send_number(control, active)
        if not active:
            self._log.write(SERVER, "Waiting for current clients to finish")
            self._log.write(SERVER, "Exiting")
            self._exiting = True

    def _terminate(self, pid: int) -> int:
        client = next((client for client in self.clients if client.pid == pid), None)
        if client is None:
            return 1
        self._say(f"MPS server requesting client {{PID: {pid}, Context ID: 1}} to exit")
        self._fail(client, MPS_CLIENT_TERMINATED)
        self._say("Client termination succeeded.")
        return 0

    def _show(self, control: socket.socket) -> None:
        rows = [(client, uuid) for client in self.clients for uuid in client.gpus]
        wire_format.send_number(control, len(rows))
        ordinals = {gpu.uuid: number for number, gpu in enumerate(self._gpus)}
        for client, uuid in rows:
            raw = bytes.fromhex(uuid[4:].replace("-", ""))
            row = struct.pack(
                wire_format.SNAPSHOT_ROW,
                *(client.pid, 0, ordinals[uuid], raw, client.number, self._limits.priority),
            )
            wire_format.send(control, row)
        wire_format.receive_number(control)

    # -- clients -----------------------------------------------------------------------------------

    def _take_client(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        client = ServerClient(connection)
        limits_mb = [
            (given // _MIB if given else self._own_limits_mb.get(gpu.uuid, 0))
            for gpu, given in zip(self._gpus, self._limits.bytes_by_ordinal, strict=False)
        ]
        offer: dict[str, object] = {
            "server": os.getpid(),
            "gpus": [gpu.uuid for gpu in self._gpus],
            "percentage": self._limits.percentage,
            "limits_mb": limits_mb,
        }
        if self._in_fault:
            offer = {"error": MPS_SERVER_NOT_READY}
        try:
            wire_format.send_object(connection, offer)
        except wire_format.Closed:
            connection.close()
            return
        if self._in_fault:
            connection.close()
        else:
            self._clients.append(client)

    def _hear_client(self, client: ServerClient) -> None:
        try:
            message = wire_format.receive(client.connection)
        except BlockingIOError:
            return
        except wire_format.Closed:
            self._drop(client)
            return
        wire_format.drop(message.descriptors)
        words = wire_format.parse_object(message.data)
        if client.pid is None:
            # The kernel's word for the pid, not the client's: it also holds across namespaces.
            self._connect(client, message.pid or 0, words.get("use"))
        elif words.get("fault") == "illegal-address" and not client.sticky:
            self._meet_fault(client)

    def _connect(self, client: ServerClient, pid: int, use: object) -> None:
        known = {gpu.uuid: gpu for gpu in self._gpus}
        gpus = tuple(u for u in use if u in known) if isinstance(use, list) else ()
        crowd = max((sum(uuid in other.gpus for other in self.clients) for uuid in gpus), default=0)
        if crowd >= self._profile.clients_per_device or self._in_fault:
            code = MPS_SERVER_NOT_READY if self._in_fault else MPS_MAX_CLIENTS_REACHED
            with contextlib.suppress(wire_format.Closed):
                wire_format.send_object(client.connection, {"error": code})
            self._clients.remove(client)
            client.connection.close()
            return
        taken = {other.number for other in self.clients}
        client.number = next(number for number in range(1, len(taken) + 2) if number not in taken)
        client.pid = pid
        client.gpus = gpus
        for context in range(CONTEXTS):
            name = f"{{PID: {pid}, Context ID: {context}}}"
            self._say(f"Received new client request for {name}")
            self._say(f"Client {name} connected")
            self._say(f"Creating worker thread for client {name}")
        for uuid in gpus:
            if uuid in self._without_context:
                self._without_context.discard(uuid)
                self._say_context("Creating", known[uuid])
            self._say(f"Device {known[uuid].name} (uuid {uuid}) is associated")
        self._say(f"Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE")
        with contextlib.suppress(wire_format.Closed):
            wire_format.send_object(client.connection, {"connected": True})

    def _drop(self, client: ServerClient) -> None:
        self._clients.remove(client)
        client.connection.close()
        if client.pid is None:
            return
        lost = "Server failed to recevie command with status 806, assuming client"
        name = f"{{PID: {client.pid}, Context ID: 1}}"
        self._say(f"{lost} {name} exit")
        count = len(self.clients)
        self._say(f"Client {name} exiting. Number of active client contexts is {count}.")
        if self._in_fault and not any(other.sticky for other in self.clients):
            self._in_fault = False
            for gpu in self._gpus:
                if gpu.uuid in self._without_context:
                    self._say_context("Destroy", gpu)
        self._say(f"{lost} {{PID: {client.pid}, Context ID: 0}} exit")
        self._say(f"Client process {client.pid} disconnected")

    # -- faults ------------------------------------------------------------------------------------

    def _meet_fault(self, culprit: ServerClient) -> None:
        """End every client of the linked GPUs; until all have left, none is let in."""
        linked = compute_linked(culprit.gpus, [client.gpus for client in self.clients])
        ended = [client for client in self.clients if set(client.gpus) & linked] or [culprit]
        self._in_fault = True
        self._without_context |= linked
        # As on the H200, where it named an innocent client in three of three runs.
        ended.sort(key=lambda client: client is culprit)
        uses = [(client.pid or 0, client.gpus) for client in ended]
        for line in render_fault(uses, linked, [gpu.uuid for gpu in self._gpus]):
            self._say(line)
        for client in ended:
            client.sticky = True
            if client is not culprit:
                self._fail(client, ILLEGAL_ADDRESS)

    def _fail(self, client: ServerClient, code: int) -> None:
        with contextlib.suppress(wire_format.Closed):
            wire_format.send_object(client.connection, {"error": code})

    def _say(self, text: str) -> None:
        self._log.write(SERVER, text)

    def _say_context(self, verb: str, gpu: CudaDevice) -> None:
        ordinal = self._gpus.index(gpu)
        self._say(f"{verb} server context on device {ordinal} ({gpu.name})")
