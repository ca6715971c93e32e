"""The MIG instances of a simulated GPU, as NVML has written them down.

    made=NUMBER                                           counts every instance that was made
    gi=ID PROFILE START SIZE SERIAL                       a GPU instance
    ci=GI ID PROFILE START SIZE INDEX SERIAL MIG-UUID     a compute instance, and its MIG device

nvml_mig_state.c reads and writes the same file; each change is one rename, under the node's lock.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from slurm_colloc.model.mig_profiles import Placement
from slurm_colloc_lab.simgpu.gpu_models import HOPPER
from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedGpu
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node, read_small_file


@dataclass(frozen=True)
class SimulatedGpuInstance:
    """A GPU instance.

    Args:
        instance_id: Its id on the GPU.
        profile_id: NVML's id of its profile.
        placement: Its memory slices.
    """

    instance_id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True)
class SimulatedComputeInstance:
    """A compute instance: a MIG device.

    Args:
        gpu_instance: The id of its GPU instance.
        instance_id: Its id in that.
        placement: Its compute slices within the GPU instance.
        mig_index: Its number among the GPU's MIG devices.
        uuid: `MIG-` and a UUID.
    """

    gpu_instance: int
    instance_id: int
    placement: Placement
    mig_index: int
    uuid: str


@dataclass(frozen=True)
class SimulatedProfile:
    """What a process has of a GPU instance of this kind.

    Args:
        profile_id: NVML's id.
        name: NVML's name without `MIG `.
        compute_slices: Its compute slices.
        memory_slices: Its memory slices.
        sms: Its streaming multiprocessors.
        gpu_memory_mb: Its gpu_memory.
    """

    profile_id: int
    name: str
    compute_slices: int
    memory_slices: int
    sms: int
    gpu_memory_mb: int


def read_instances(
    node: Node, gpu: SimulatedGpu
) -> tuple[tuple[SimulatedGpuInstance, ...], tuple[SimulatedComputeInstance, ...]]:
    """A GPU's instances, GPU instances by id and compute instances by the number of the device."""
    text = read_small_file(node.directory / "instances" / str(gpu.nvml_index)) or ""
    whole, parts = [], []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        fields = value.split()
        if key == "gi":
            number, profile, start, size, _ = map(int, fields)
            whole.append(SimulatedGpuInstance(number, profile, Placement(start, size)))
        elif key == "ci":
            parent, number, _, start, size, index, _ = map(int, fields[:7])
            place = Placement(start, size)
            parts.append(SimulatedComputeInstance(parent, number, place, index, fields[7]))
    return (
        tuple(sorted(whole, key=lambda one: one.instance_id)),
        tuple(sorted(parts, key=lambda part: part.mig_index)),
    )


def read_profiles(node: Node, gpu: SimulatedGpu) -> dict[int, SimulatedProfile]:
    """A GPU's profiles by NVML's id."""
    text = read_small_file(node.directory / "profiles" / str(gpu.nvml_index)) or ""
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        fields = value.split()
        if key == "profile":
            found[int(fields[1])] = SimulatedProfile(
                profile_id=int(fields[1]),
                name=fields[13],
                compute_slices=int(fields[2]),
                memory_slices=int(fields[3]),
                sms=int(fields[5]),
                gpu_memory_mb=int(fields[11]),
            )
    return found


def switch_mig_mode(node: Node, gpu: SimulatedGpu, *, on: bool) -> None:
    """Switch MIG on or off as an administrator does who resets the GPU for it.

    Raises:
        StateError: Its file cannot be written.
    """
    mode = int(on)
    with node.locked():
        node.write_gpu(replace(gpu, mig_mode=mode, mig_pending=mode))
        if not on:
            _forget_instances(node, gpu)


def restart_gpu(node: Node, gpu: SimulatedGpu) -> None:
    """What a GPU is like after its node's reboot: no instances, compute mode default.

    MIG mode is kept before Hopper, with what was pending, and is lost from Hopper on.

    Raises:
        StateError: Its file cannot be written.
    """
    mode = 0 if gpu.architecture >= HOPPER else gpu.mig_pending
    with node.locked():
        node.write_gpu(replace(gpu, compute_mode=0, mig_mode=mode, mig_pending=mode))
        _forget_instances(node, gpu)


def _forget_instances(node: Node, gpu: SimulatedGpu) -> None:
    with contextlib.suppress(FileNotFoundError):
        (node.directory / "instances" / str(gpu.nvml_index)).unlink()
