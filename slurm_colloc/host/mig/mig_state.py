"""What NVML says of a GPU's MIG, and what a job is to have of it; values, pure.

What cannot be read is None, never 0 or empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.model.mig.mig_profiles import (
    InstanceProfile,
    PlacedInstance,
    Placement,
    parse_profile,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class MigPort(Protocol):
        """NVML's calls for MIG, as far as hooks use them; each raises MigProblem."""

        def read(self) -> tuple[MigGpu, ...]:
            """Read the GPUs that this is about."""
            ...

        def set_mode(self, gpu: str, on: bool) -> None:
            """Turn MIG on or off; whether it took has to be read."""
            ...

        def create(self, gpu: str, profile_id: int, placement: Placement) -> int:
            """Make a GPU instance; its id."""
            ...

        def create_compute(self, gpu: str, instance: int, slices: int) -> None:
            """Make a compute instance in it."""
            ...

        def destroy_compute(self, gpu: str, instance: int, compute: int) -> None:
            """Destroy a compute instance."""
            ...

        def destroy(self, gpu: str, instance: int) -> None:
            """Destroy a GPU instance without any compute instance."""
            ...

        def renew(self, seconds: float) -> None:
            """Have so much time from now on, whatever has hung before."""
            ...


NO_ANSWER = -1
GPU_IS_LOST, IN_USE, INSUFFICIENT_RESOURCES = 15, 19, 23
"""NVML's error numbers (nvml.h, nvmlReturn_t); NO_ANSWER is ours, for a call that hangs."""


_HOPPER = (9, 0)
"""From here on a mode is changed without a reset, and lost with the driver (NVIDIA's MIG guide,
r580)."""


class MigProblem(NodeError):
    """A call of NVML's has failed.

    Args:
        message: In words.
        code: NVML's number.
    """

    def __init__(self, message: str, code: int = NO_ANSWER) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ComputeInstance:
    """What a process computes on.

    Args:
        id: NVML's number within its GPU instance.
        slices: Its compute slices.
        sms: Its streaming multiprocessors; None where not told.
        uuid: What CUDA_VISIBLE_DEVICES takes, MIG-...; None where not told.
    """

    id: int
    slices: int
    sms: int | None
    uuid: str | None


@dataclass(frozen=True)
class GpuInstance:
    """A part of a GPU's memory with what computes on it.

    Args:
        id: NVML's number.
        profile_id: Its profile.
        placement: Its memory slices.
        compute: Its compute instances, by id.
    """

    id: int
    profile_id: int
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()

    def describe(self, profiles: Sequence[InstanceProfile]) -> str:
        """It in words, such as `instance 1 (3g.40gb at 4)`."""
        name = next((p.name for p in profiles if p.profile_id == self.profile_id), "unknown")
        return f"instance {self.id} ({name} at {self.placement.start})"


@dataclass(frozen=True)
class InstanceProcess:
    """A process on a GPU.

    Args:
        pid: Its pid, as NVML gives it.
        gpu_instance: Where; None outside any.
        compute_instance: Likewise.
    """

    pid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True)
class MigGpu:
    """A GPU and what it is divided into.

    Args:
        uuid: Its UUID.
        name: Its model.
        pci_device_id: Its PCI device and vendor, such as 0x233010DE.
        minor_number: N of /dev/nvidiaN.
        compute_capability: Such as (9, 0).
        is_on: Its MIG mode; None where it has none.
        is_pending_on: The mode after the next reset.
        is_virtual: It is a vGPU, or divided into some.
        profiles: What it can be divided into.
        instances: What it is divided into; None where that cannot be read, empty with MIG off.
        processes: Who computes on it.
        problem: Why something is not known; empty where all is.
    """

    uuid: str
    name: str | None = None
    pci_device_id: int | None = None
    minor_number: int | None = None
    compute_capability: tuple[int, int] | None = None
    is_on: bool | None = None
    is_pending_on: bool | None = None
    is_virtual: bool = False
    profiles: tuple[InstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] | None = None
    processes: tuple[InstanceProcess, ...] | None = None
    problem: str = ""

    @property
    def switches_freely(self) -> bool:
        """Its mode is changed without a reset, and is off after a reboot."""
        return (self.compute_capability or (0, 0)) >= _HOPPER

    def find_profile(self, profile_id: int) -> InstanceProfile | None:
        """The profile of an id."""
        return next((one for one in self.profiles if one.profile_id == profile_id), None)

    def name_whole(self) -> str:
        """The word of the one instance that has all of it; empty where it has no profiles."""
        by_size = sorted(self.profiles, key=lambda one: (-one.compute_slices, -one.memory_mb))
        return by_size[0].name if by_size else ""

    def place_instances(self, instances: Sequence[GpuInstance]) -> tuple[PlacedInstance, ...]:
        """Instances of it with their profiles; one of an unknown profile is left out."""
        return tuple(
            PlacedInstance(profile, one.placement)
            for one in instances
            if (profile := self.find_profile(one.profile_id)) is not None
        )


def parse_mig_gpu(value: Mapping[str, Any]) -> MigGpu:
    """Read what the child printed of a GPU.

    Raises:
        KeyError: It is something else.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    fields = dict(value)
    capability = fields["compute_capability"]
    fields["compute_capability"] = None if capability is None else tuple(capability)
    fields["profiles"] = tuple(map(parse_profile, fields["profiles"]))
    if fields["instances"] is not None:
        fields["instances"] = tuple(map(_parse_instance, fields["instances"]))
    if fields["processes"] is not None:
        fields["processes"] = tuple(InstanceProcess(*one) for one in fields["processes"])
    return MigGpu(**fields)


def _parse_instance(value: Mapping[str, Any]) -> GpuInstance:
    return GpuInstance(
        int(value["id"]),
        int(value["profile_id"]),
        Placement(*value["placement"]),
        tuple(ComputeInstance(*one) for one in value["compute"]),
    )
