"""A simulated CUDA process as a client of MPS."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from slurm_colloc.errors import CollocError
from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.client_limits import parse_limits_mb, parse_percentage, tighten
from slurm_colloc_lab.simgpu.nvml.gpu_state import open_node
from slurm_colloc_lab.simgpu.training.cuda_devices import choose_devices, list_cuda_devices
from slurm_colloc_lab.simgpu.training.cuda_errors import (
    ASSERT,
    ILLEGAL_ADDRESS,
    MPS_CONNECTION_FAILED,
    MPS_RPC_FAILURE,
    CudaError,
)

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"

# The faults that a GPU cannot keep to one client. A device-side assert stays with its process, as
# do SIGKILL and running out of gpu_memory (580 on an H200).
_FATAL = ("illegal-address",)
_ERRORS = {"illegal-address": ILLEGAL_ADDRESS, "device-assert": ASSERT}


class ServerAttachment:
    """A client's connection to its server.

    Args:
        connection: The socket.
        server_pid: The server.
        thread_percentage: The share of the multiprocessors that it may use.
        gpus: The GPUs that it sees, by cuda_index.
        limits_mb: Pinned limits by UUID.
    """

    def __init__(
        self,
        connection: socket.socket,
        server_pid: int,
        thread_percentage: float,
        gpus: tuple[str, ...],
        limits_mb: Mapping[str, int],
    ) -> None:
        self._connection = connection
        self._limits_mb = dict(limits_mb)
        self._error: CudaError | None = None
        self.server_pid = server_pid
        self.thread_percentage = thread_percentage
        self.gpus = gpus
        connection.setblocking(False)

    def gpu_memory_limit_mb(self, uuid: str) -> int | None:
        """The pinned limit on a GPU in MiB, its context included; None where there is none."""
        return self._limits_mb.get(uuid)

    def fault(self, kind: str) -> CudaError:
        """Let this client fail as `illegal-address` or `device-assert` does.

        Returns:
            The error that the client's next call meets. It meets every client of the linked GPUs
            where the fault is fatal for the GPU.
        """
        if kind in _FATAL:
            with contextlib.suppress(wire_format.Closed):
                wire_format.send_object(self._connection, {"fault": kind})
        self._error = self._error or CudaError(_ERRORS.get(kind, ILLEGAL_ADDRESS))
        return self._error

    def poll(self) -> CudaError | None:
        """Look whether something has befallen this client; the first error stays.

        Returns:
            700 after a neighbour's fatal fault, 806 where the server has gone, 810 after
            `terminate_client`; None while all is well.
        """
        if self._error is None:
            try:
                message = wire_format.receive(self._connection)
            except BlockingIOError:
                return None
            except wire_format.Closed:
                self._error = CudaError(MPS_RPC_FAILURE)
            else:
                wire_format.drop(message.descriptors)
                code = wire_format.parse_object(message.data).get("error")
                self._error = CudaError(code) if isinstance(code, int) else None
        return self._error

    def close(self) -> None:
        """Leave the server."""
        self._connection.close()


def attach(environ: Mapping[str, str], pid: int, *, contexts: int = 1) -> ServerAttachment | None:
    """Become a client of the MPS daemon that an environment names, as CUDA does at its start.

    Waits while the server is starting or serves another user.

    Args:
        environ: The process's environment; CUDA_MPS_PIPE_DIRECTORY names the daemon.
        pid: This process.
        contexts: On how many of the GPUs that it sees it makes a context.

    Returns:
        None where no daemon can be reached: then the process runs without MPS, and without its
        limits, silently (DEFAULT compute mode; 580 on an H200).

    Raises:
        CudaError: 805 where the daemon has no server to give, 806 where the server ended
            meanwhile, 807 in FAULT, 808 beyond the cap.
    """
    directory = environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
    if not directory:
        # CUDA looks there too. Where there is a driver, a daemon there is a real one: it is not
        # to be bothered with a simulated client.
        if os.path.lexists("/dev/nvidiactl"):
            return None
        directory = DEFAULT_PIPE_DIRECTORY
    try:
        control = wire_format.connect(f"{directory}/control", wire_format.CLIENT)
    except (OSError, wire_format.Closed):
        return None
    with control:
        try:
            connection = wire_format.receive_descriptor(control)
            wire_format.send_number(control, 0)
        except wire_format.Closed:
            raise CudaError(MPS_CONNECTION_FAILED) from None
    try:
        return _introduce(connection, environ, pid, contexts)
    except wire_format.Closed:
        connection.close()
        raise CudaError(MPS_RPC_FAILURE) from None
    except BaseException:
        connection.close()
        raise


def _introduce(
    connection: socket.socket, environ: Mapping[str, str], pid: int, contexts: int
) -> ServerAttachment:
    """Hear what the server has, and say what this client uses of it."""
    offer = _receive(connection)
    offered = [str(uuid) for uuid in _read_list(offer, "gpus")]
    seen, sizes_mb = _read_gpus(environ)
    gpus = choose_devices(
        environ.get("CUDA_VISIBLE_DEVICES"), [uuid for uuid in offered if uuid in seen]
    )
    own = parse_percentage(environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
    percentage = min(_read_float(offer, "percentage"), 100.0 if own is None else own)
    limits_mb = tighten(
        {
            uuid: int(limit_mb)
            for uuid, limit_mb in zip(offered, _read_list(offer, "limits_mb"), strict=False)
            if isinstance(limit_mb, int) and limit_mb > 0
        },
        parse_limits_mb(environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), gpus, sizes_mb),
    )
    wire_format.send_object(connection, {"pid": pid, "use": list(gpus[:contexts])})
    _receive(connection)
    server_pid = int(_read_float(offer, "server"))
    return ServerAttachment(connection, server_pid, percentage, gpus, limits_mb)


def _receive(connection: socket.socket) -> dict[str, object]:
    message = wire_format.receive(connection)
    wire_format.drop(message.descriptors)
    answer = wire_format.parse_object(message.data)
    code = answer.get("error")
    if isinstance(code, int):
        raise CudaError(code)
    return answer


def _read_gpus(environ: Mapping[str, str]) -> tuple[set[str], dict[str, int]]:
    """The devices that this process may open, and their sizes."""
    try:
        devices = list_cuda_devices(open_node(environ))
    except CollocError:
        return set(), {}
    return {device.uuid for device in devices}, {device.uuid: device.total_mb for device in devices}


def _read_list(answer: Mapping[str, object], key: str) -> list[object]:
    value = answer.get(key)
    return value if isinstance(value, list) else []


def _read_float(answer: Mapping[str, object], key: str) -> float:
    value = answer.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0
