"""Getting a CUDA context: which GPU a process means, and whether it may use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_colloc.simgpu.nvml.gpu_records import COMPUTE_MODES, SimulatedGpu, SimulatedProcess
from slurm_colloc.simgpu.nvml.gpu_state import Node
from slurm_colloc.simgpu.training.cuda_errors import (
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


def choose_devices(value: str | None, uuids: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; pure.

    As the CUDA programming guide says: indexes or UUIDs, which may be shortened; what follows an
    entry that names no GPU is not visible either, and a GPU named twice makes all invisible.

    Args:
        value: The variable, None where it is not set.
        uuids: The GPUs that the process could see without it, by cuda_index.
    """
    if value is None:
        return tuple(uuids)
    chosen: list[str] = []
    for word in value.split(","):
        text = word.strip()
        if text.isdigit():
            found = [uuids[int(text)]] if int(text) < len(uuids) else []
        else:
            found = [uuid for uuid in uuids if text and uuid.lower().startswith(text.lower())]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen) if len(set(chosen)) == len(chosen) else ()


@dataclass
class Context:
    """A process's context on one GPU, as long as it lives.

    Args:
        node: The node.
        gpu: The GPU.
        process: How the process last described itself.
        limit_mb: Its pinned limit under MPS, None without.
    """

    node: Node
    gpu: SimulatedGpu
    process: SimulatedProcess
    limit_mb: int | None

    def allocate(self, wanted_mb: int, block_mb: int) -> None:
        """Take gpu_memory block by block.

        Raises:
            OutOfGpuMemory: A block could not be had; the ones before stay taken.
        """
        with self.node.locked():
            free_mb = self.find_free()
            while wanted_mb > 0:
                block_mb = min(block_mb, wanted_mb)
                held_mb = self.process.gpu_memory_mb
                if block_mb > free_mb:
                    self.node.write_process(self.process)
                    raise OutOfGpuMemory(self._describe_shortage(block_mb, free_mb))
                self.process = replace(self.process, gpu_memory_mb=held_mb + block_mb)
                free_mb -= block_mb
                wanted_mb -= block_mb
            self.node.write_process(self.process)

    def update(self, **changes: Any) -> None:
        """Describe the process anew."""
        self.process = replace(self.process, updated_s=time.monotonic(), **changes)
        self.node.write_process(self.process)

    def _describe_shortage(self, block_mb: int, free_mb: int) -> Shortage:
        others = self.read_neighbours()
        return Shortage(
            block_mb=block_mb,
            total_mb=self.gpu.gpu_memory_mb - self.gpu.reserved_gpu_memory_mb,
            free_mb=free_mb,
            held_mb=self.process.gpu_memory_mb,
            context_mb=compute_context_mb(self.process.thread_percentage),
            others=tuple((process.pid, process.gpu_memory_mb) for process in others),
        )

    def read_neighbours(self) -> tuple[SimulatedProcess, ...]:
        """The other processes on the same GPU."""
        return tuple(
            process
            for process in self.node.read_processes()
            if self.gpu.uuid in process.gpus and process.pid != self.process.pid
        )

    def find_free(self) -> int:
        """The gpu_memory in MiB that the process could still take."""
        used_mb = sum(process.gpu_memory_mb for process in self.read_neighbours())
        room_mb = self.gpu.gpu_memory_mb - self.gpu.reserved_gpu_memory_mb - used_mb
        if self.limit_mb is not None:
            room_mb = min(room_mb, self.limit_mb)
        return max(0, room_mb - self.process.gpu_memory_mb)

    def close(self) -> None:
        """Give everything back."""
        self.node.remove_process(self.process.pid)


def open_context(
    node: Node, process: SimulatedProcess, uuids: Sequence[str], limit_mb: int | None
) -> Context:
    """Get a context on the first GPU that the process sees.

    Args:
        node: The node.
        process: The process, yet without GPU and gpu_memory; `mps_server` says whether it is a
            client of MPS.
        uuids: The GPUs that it sees, by cuda_index.
        limit_mb: Its pinned gpu_memory limit on the first one.

    Raises:
        CudaError: It sees no GPU, the GPU's compute mode keeps it out, or its context does not
            fit.
    """
    node.reap()
    with node.locked():
        gpus = {gpu.uuid: gpu for gpu in node.read_visible_gpus()}
        if not uuids or uuids[0] not in gpus:
            raise CudaError(NO_DEVICE)
        gpu = gpus[uuids[0]]
        context = Context(node, gpu, replace(process, gpus=(gpu.uuid,)), limit_mb)
        if not _admits(gpu, process, context.read_neighbours()):
            raise CudaError(DEVICES_UNAVAILABLE)
        context_mb = compute_context_mb(process.thread_percentage)
        if context.find_free() < context_mb:
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
