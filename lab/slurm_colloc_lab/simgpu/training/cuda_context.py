"""Getting a CUDA context: which GPU a process means, and whether it may use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_colloc_lab.simgpu.nvml.gpu_records import COMPUTE_MODES, SimulatedGpu, SimulatedProcess
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node
from slurm_colloc_lab.simgpu.training.cuda_devices import CudaDevice, list_cuda_devices, put_on
from slurm_colloc_lab.simgpu.training.cuda_errors import (
    DEVICES_UNAVAILABLE,
    NO_DEVICE,
    OUT_OF_MEMORY,
    CudaError,
)

# Measured on an H200: a context takes 512 MiB of gpu_memory, and 372 MiB less with a thread limit
# of 25 %; both count towards a pinned limit.
_CONTEXT_BASE_MB = 16.0
_CONTEXT_MB_PER_PERCENT = 4.96


@dataclass(frozen=True)
class Shortage:
    """How it stood when gpu_memory ran out.

    Args:
        block_mb: What was asked for.
        total_mb: What the GPU has for programs.
        free_mb: What was left.
        held_mb: What the process had, its context included.
        context_mb: Its context.
        others: Pid and MiB of the other processes.
    """

    block_mb: int
    total_mb: int
    free_mb: int
    held_mb: int
    context_mb: int
    others: tuple[tuple[int, int], ...]


class OutOfGpuMemory(Exception):
    """A block could not be had."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(f"{shortage.block_mb} MiB")
        self.shortage = shortage


def compute_context_mb(thread_percentage: float) -> int:
    """The gpu_memory that a context takes, in MiB."""
    return round(_CONTEXT_BASE_MB + _CONTEXT_MB_PER_PERCENT * thread_percentage)


@dataclass
class Context:
    """A process's context on one device, or on several, as long as it lives.

    Args:
        node: The node.
        devices: The GPUs or the MIG device, by cuda_index.
        process: How the process last described itself: it holds as much on each device.
        limits_mb: Its pinned limit on each under MPS, None without.
    """

    node: Node
    devices: tuple[CudaDevice, ...]
    process: SimulatedProcess
    limits_mb: tuple[int | None, ...]

    def allocate(self, wanted_mb: int, block_mb: int) -> None:
        """Take gpu_memory block by block, of each device as much.

        Raises:
            OutOfGpuMemory: A block could not be had; the ones before stay taken.
        """
        with self.node.locked():
            device, free_mb = self.find_fullest()
            while wanted_mb > 0:
                block_mb = min(block_mb, wanted_mb)
                held_mb = self.process.gpu_memory_mb
                if block_mb > free_mb:
                    self.node.write_process(self.process)
                    raise OutOfGpuMemory(self._describe_shortage(device, block_mb, free_mb))
                self.process = replace(self.process, gpu_memory_mb=held_mb + block_mb)
                free_mb -= block_mb
                wanted_mb -= block_mb
            self.node.write_process(self.process)

    def update(self, **changes: Any) -> None:
        """Describe the process anew."""
        self.process = replace(self.process, updated_s=time.monotonic(), **changes)
        self.node.write_process(self.process)

    def _describe_shortage(self, device: CudaDevice, block_mb: int, free_mb: int) -> Shortage:
        others = self._read_memory_neighbours(device)
        return Shortage(
            block_mb=block_mb,
            total_mb=device.gpu_memory_mb,
            free_mb=free_mb,
            held_mb=self.process.gpu_memory_mb,
            context_mb=compute_context_mb(self.process.thread_percentage),
            others=tuple((process.pid, process.gpu_memory_mb) for process in others),
        )

    def read_neighbours(self, device: CudaDevice) -> tuple[SimulatedProcess, ...]:
        """The other processes on one of its GPUs, whichever part of it they have."""
        return tuple(
            process
            for process in self.node.read_processes()
            if device.gpu.uuid in process.gpus and process.pid != self.process.pid
        )

    def find_fullest(self) -> tuple[CudaDevice, int]:
        """The device on which the process could take least, and how much that is in MiB."""
        rooms = [
            (self._find_free(device, limit_mb), number)
            for number, (device, limit_mb) in enumerate(
                zip(self.devices, self.limits_mb, strict=True)
            )
        ]
        free_mb, number = min(rooms)
        return self.devices[number], free_mb

    def _find_free(self, device: CudaDevice, limit_mb: int | None) -> int:
        used_mb = sum(process.gpu_memory_mb for process in self._read_memory_neighbours(device))
        room_mb = device.gpu_memory_mb - used_mb
        if limit_mb is not None:
            room_mb = min(room_mb, limit_mb)
        return max(0, room_mb - self.process.gpu_memory_mb)

    def _read_memory_neighbours(self, device: CudaDevice) -> list[SimulatedProcess]:
        return [one for one in self.read_neighbours(device) if device.shares_memory(one)]

    def close(self) -> None:
        """Give everything back."""
        self.node.remove_process(self.process.pid)


def open_context(
    node: Node,
    process: SimulatedProcess,
    uuids: Sequence[str],
    limits_mb: Sequence[int | None],
    count: int = 1,
) -> Context:
    """Get a context on the first devices that the process sees.

    Args:
        node: The node.
        process: The process, yet without GPU and gpu_memory; `mps_server` says whether it is a
            client of MPS.
        uuids: The devices that it sees, by cuda_index.
        limits_mb: Its pinned gpu_memory limit on each.
        count: On how many.

    Raises:
        CudaError: It sees too few GPUs, a GPU's compute mode keeps it out, or its context does not
            fit.
    """
    node.reap()
    with node.locked():
        known = {device.uuid: device for device in list_cuda_devices(node)}
        fallen = node.read_fallen()
        chosen = [known[uuid] for uuid in uuids[:count] if uuid in known and uuid not in fallen]
        if len(chosen) < count:
            raise CudaError(NO_DEVICE)
        for device in chosen:
            process = put_on(device, process)
        context = Context(node, tuple(chosen), process, tuple(limits_mb[:count]))
        for device in chosen:
            others = [one for one in context.read_neighbours(device) if device.runs(one)]
            if not _admits(device.gpu, process, others):
                raise CudaError(DEVICES_UNAVAILABLE)
        context_mb = compute_context_mb(process.thread_percentage)
        if context.find_fullest()[1] < context_mb:
            raise CudaError(OUT_OF_MEMORY)
        context.process = replace(context.process, gpu_memory_mb=context_mb)
        node.write_process(context.process)
    return context


def _admits(
    gpu: SimulatedGpu, process: SimulatedProcess, others: Sequence[SimulatedProcess]
) -> bool:
    """Whether the compute mode lets the process in; nvidia-smi(1), Compute Mode."""
    if gpu.compute_mode == COMPUTE_MODES["prohibited"]:
        return False
    if gpu.compute_mode != COMPUTE_MODES["exclusive_process"]:
        return True
    if process.mps_server is None:
        return not others
    # The server is the one process; its clients use its place.
    return all(process.mps_server in (other.pid, other.mps_server) for other in others)
