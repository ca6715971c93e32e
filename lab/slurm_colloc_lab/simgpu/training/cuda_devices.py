"""The devices that CUDA shows a process: whole GPUs, or the one MIG device that it may see."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedGpu, SimulatedProcess
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node
from slurm_colloc_lab.simgpu.nvml.mig_instances import (
    SimulatedComputeInstance,
    read_instances,
    read_profiles,
)


@dataclass(frozen=True)
class CudaDevice:
    """A device as CUDA shows it.

    Args:
        uuid: `GPU-` or `MIG-` and a UUID.
        gpu: The GPU that it is, or is a part of.
        total_mb: All of its gpu_memory.
        gpu_memory_mb: What programs have of that.
        instance: GPU instance/compute instance, as in a process's record; empty for a whole GPU.
        sm_part: Its part of the GPU's multiprocessors, 0 to 1.
        dram_part: Its part of the memory bandwidth.
    """

    uuid: str
    gpu: SimulatedGpu
    total_mb: int
    gpu_memory_mb: int
    instance: str = ""
    sm_part: float = 1.0
    dram_part: float = 1.0

    @property
    def name(self) -> str:
        """What the driver calls it."""
        return self.gpu.name

    @property
    def old_name(self) -> str:
        """As MIG devices were named before driver 470."""
        return f"MIG-{self.gpu.uuid}/{self.instance}" if self.instance else ""

    def shares_memory(self, process: SimulatedProcess) -> bool:
        """Whether a process takes its gpu_memory from the same pool."""
        own, other = self.instance.partition("/")[0], process.instance.partition("/")[0]
        return self.gpu.uuid in process.gpus and own == other

    def runs(self, process: SimulatedProcess) -> bool:
        """Whether a process computes on the same multiprocessors."""
        return self.gpu.uuid in process.gpus and self.instance == process.instance


def list_cuda_devices(node: Node) -> tuple[CudaDevice, ...]:
    """What this process could see: GPUs that it may open, and MIG devices where MIG is on."""
    devices: list[CudaDevice] = []
    for gpu in node.read_visible_gpus():
        if gpu.mig_mode:
            devices += _list_mig_devices(node, gpu)
        else:
            free_mb = gpu.gpu_memory_mb - gpu.reserved_gpu_memory_mb
            devices.append(CudaDevice(gpu.uuid, gpu, gpu.gpu_memory_mb, free_mb))
    return tuple(devices)


def choose_cuda_devices(value: str | None, devices: Sequence[CudaDevice]) -> tuple[CudaDevice, ...]:
    """The devices that CUDA_VISIBLE_DEVICES leaves; pure.

    CUDA shows a process one MIG device and no second (NVIDIA's MIG guide). A GPU that is
    partitioned stands for its first MIG device.
    """
    by_uuid = {device.uuid: device for device in devices}
    words = [] if value is None else [word.strip() for word in value.split(",")]
    for number, word in enumerate(words):
        for device in devices:
            if device.instance and word.lower() in (
                device.gpu.uuid.lower(),
                device.old_name.lower(),
            ):
                words[number] = device.uuid
                break
    chosen = choose_devices(None if value is None else ",".join(words), list(by_uuid))
    found = [by_uuid[uuid] for uuid in chosen]
    if found and found[0].instance:
        return (found[0],)
    return tuple(device for device in found if not device.instance)


def choose_devices(value: str | None, uuids: Sequence[str]) -> tuple[str, ...]:
    """The UUIDs that CUDA_VISIBLE_DEVICES leaves, in its order; pure.

    As the CUDA programming guide says: indexes or UUIDs, which may be shortened; what follows an
    entry that names no GPU is not visible either, and a GPU named twice makes all invisible.

    Args:
        value: The variable, None where it is not set.
        uuids: The devices that the process could see without it, by cuda_index.
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


def _list_mig_devices(node: Node, gpu: SimulatedGpu) -> list[CudaDevice]:
    whole, parts = read_instances(node, gpu)
    profiles = read_profiles(node, gpu)
    single_sms = min((profile.sms for profile in profiles.values()), default=0)
    memory_slices = max((profile.memory_slices for profile in profiles.values()), default=1)
    by_id = {one.instance_id: one for one in whole}
    devices = []
    for part in parts:
        one = by_id.get(part.gpu_instance)
        profile = profiles.get(one.profile_id) if one else None
        if profile is None:
            continue
        is_whole = part.placement.size == profile.compute_slices
        sms = profile.sms if is_whole else part.placement.size * single_sms
        devices.append(
            CudaDevice(
                part.uuid,
                gpu,
                profile.gpu_memory_mb,
                profile.gpu_memory_mb,
                _name_instance(part),
                sms / gpu.sm_count,
                profile.memory_slices / memory_slices,
            )
        )
    return devices


def _name_instance(part: SimulatedComputeInstance) -> str:
    return f"{part.gpu_instance}/{part.instance_id}"


def put_on(device: CudaDevice, process: SimulatedProcess) -> SimulatedProcess:
    """The process's record once it has a context on the device, too."""
    gpus = (*process.gpus, device.gpu.uuid)
    return dataclasses.replace(process, gpus=gpus, instance=device.instance)
