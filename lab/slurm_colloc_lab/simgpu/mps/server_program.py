"""The simulated `nvidia-cuda-mps-server`: its start, its part of the GPUs and its end.

The control daemon starts it (mps_servers.py; NVIDIA's own 550 daemon can as well), tells it its
limits and hands it clients (mps_serving.py). Wording of the log: 580.159.04 on an H200.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import CollocError
from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.daemon_logs import OTHER, SERVER, RecordWriter
from slurm_colloc_lab.simgpu.mps.driver_versions import MpsProfile, read_profile
from slurm_colloc_lab.simgpu.mps.server_clients import ServerLimits, SimulatedServer
from slurm_colloc_lab.simgpu.nvml.gpu_records import COMPUTE_MODES, SimulatedProcess
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node, open_node, read_starttime
from slurm_colloc_lab.simgpu.training.cuda_devices import (
    CudaDevice,
    choose_cuda_devices,
    list_cuda_devices,
)

SERVER_MB = 66
"""What the server itself holds on each GPU (580 on an H200)."""

# 280 ms from start_server to ACTIVE and 65 to 105 ms for `quit` on an H200; the start of Python
# is in both.
_INITIALIZING_S = 0.15
_EXITING_S = 0.04


def main(argv: Sequence[str]) -> int:
    """Be a server for the daemon that the environment names; its exit status."""
    if argv and argv[0] in ("-h", "--help"):
        sys.stdout.write("MPS Server for Linux/Unix.\n")
        return 0
    environment = dict(os.environ)
    profile = read_profile(environment)
    if profile is None:
        return 1
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("nvidia-cuda-mps-server")
    # `-f` and `quit -t` send SIGINT, and the server ends with 0.
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    pipe_directory = environment.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    log = RecordWriter(pipe_directory)
    socket_path = f"{pipe_directory}/control"
    for text in (
        "Startup",
        f"Connecting to control daemon on socket: {socket_path}",
        "Initializing server process",
    ):
        log.write(OTHER, text)
    try:
        node = open_node(environment)
        gpus = _get_contexts(node, environment)
    except CollocError:
        return 1
    if not gpus:
        return 1
    try:
        time.sleep(_INITIALIZING_S)
        control = _become_ready(socket_path, profile, gpus, log)
        limits = _receive_limits(control)
        log.write(SERVER, f"Active Threads Percentage set to {limits.percentage:.1f}")
        log.write(SERVER, f"Server Priority set to {limits.priority}")
        log.write(SERVER, "Server has started")
        SimulatedServer(control, profile, gpus, limits, environment=environment, log=log).run()
        time.sleep(_EXITING_S)
    except (OSError, wire_format.Closed):
        return 1
    finally:
        with contextlib.suppress(CollocError):
            node.remove_process(os.getpid())
    return 0


def _get_contexts(node: Node, environment: Mapping[str, str]) -> list[CudaDevice]:
    """Take a context on every device seen; none where the compute mode of one forbids it."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    devices = list(choose_cuda_devices(visible, list_cuda_devices(node)))
    pid = os.getpid()
    node.reap()
    with node.locked():
        processes = node.read_processes()
        for device in devices:
            mode = device.gpu.compute_mode
            used = mode == COMPUTE_MODES["exclusive_process"] and any(map(device.runs, processes))
            if used or mode == COMPUTE_MODES["prohibited"]:
                return []
        if devices:
            node.write_process(
                SimulatedProcess(
                    pid=pid,
                    starttime=read_starttime(pid) or 0,
                    uid=os.geteuid(),
                    gpus=tuple(device.gpu.uuid for device in devices),
                    instance=devices[0].instance,
                    gpu_memory_mb=SERVER_MB,
                    started_s=time.time(),
                )
            )
    return devices


def _become_ready(
    path: str, profile: MpsProfile, gpus: Sequence[CudaDevice], log: RecordWriter
) -> socket.socket:
    for ordinal, gpu in enumerate(gpus):
        log.write(SERVER, f"Creating server context on device {ordinal} ({gpu.name})")
    name = f"mps.shm.{os.geteuid()}.{os.getpid()}"
    log.write(SERVER, f"Created anonymous shared memory region {name}")
    version = profile.binary_version
    log.write(SERVER, f"CUDA MPS Server for Linux/Unix. Binary version: {version}")
    log.write(SERVER, f"Display Driver version: {profile.driver}")
    control = wire_format.connect(path, wire_format.SERVER)
    wire_format.send(control, bytes(wire_format.READY_BYTES))
    return control


def _receive_limits(control: socket.socket) -> ServerLimits:
    limits = ServerLimits(percentage=wire_format.receive_value(control, "d"))
    count = int(wire_format.receive_value(control, "q"))
    limits.bytes_by_ordinal = [
        int(wire_format.receive_value(control, "q")) for _ in range(min(count, wire_format.DEVICES))
    ]
    limits.priority = wire_format.receive_number(control)
    return limits


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
