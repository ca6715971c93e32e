"""MIG instances that root has made for this job, as its setup.json tells of them.

Who: the job's user; where: with the runner. That only root can have written the file has been seen
to by prepared_daemon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.host.nvml.nvml_answer import UUID
from slurm_colloc.model.mig.mig_profiles import (
    InstanceProfile,
    PlacedInstance,
    Placement,
    parse_profile,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PROFILE = re.compile(r"[0-9a-z.+-]{2,40}", re.ASCII)


@dataclass(frozen=True)
class MigInstance:
    """A compute instance that a member can have.

    Attributes:
        uuid: What CUDA calls it, `MIG-...`.
        profile: NVML's name of its profile, `3g.40gb`; `3c.7g.80gb` where it has a part of one.
        gpu_instance: The id of that.
        compute_instance: Its own id in there.
        placement: The memory slices of its GPU instance.
        sms: Its streaming multiprocessors.
        memory_mb: Its memory (MiB); common to all that share the GPU instance.
    """

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    placement: Placement
    sms: int
    memory_mb: int

    @property
    def gpu_profile(self) -> str:
        """The profile of its GPU instance, of which it may have a part only."""
        return re.sub(r"^[1-7]c\.", "", self.profile)

    @property
    def slices(self) -> int:
        """What it computes with."""
        return count_slices(self.profile)


def count_slices(name: str) -> int:
    """Compute slices of what a profile or a layout's word names: 3 of `3g.40gb` and `3c.7g`."""
    match = re.match(r"(?:([1-7])c\.)?([1-7])g", name)
    return 0 if match is None else int(match[1] or match[2])


@dataclass(frozen=True)
class PreparedGpu:
    """A GPU that is cut into instances.

    Attributes:
        uuid: The GPU's.
        name: Its model.
        instances: What stands on it for this job.
        profiles: What can be made there, by NVML.
    """

    uuid: str
    name: str
    instances: tuple[MigInstance, ...]
    profiles: tuple[InstanceProfile, ...] = ()

    def list_placed(self, gpu_instances: set[int]) -> tuple[PlacedInstance, ...]:
        """Some of its GPU instances, and where they lie."""
        by_name = {profile.name: profile for profile in self.profiles}
        found = {
            one.gpu_instance: PlacedInstance(by_name[one.gpu_profile], one.placement)
            for one in self.instances
            if one.gpu_instance in gpu_instances and one.gpu_profile in by_name
        }
        return tuple(found.values())


@dataclass(frozen=True)
class PreparedMig:
    """What root has made.

    Attributes:
        gpus: The GPUs.
        socket: Where instances can be changed while the job runs; empty where they cannot.
        mps_inside: The site allows an MPS daemon in an instance.
    """

    gpus: tuple[PreparedGpu, ...]
    socket: str = ""
    mps_inside: bool = False


def parse_mig(value: Mapping[str, Any]) -> PreparedMig:
    """Read the part `mig` of a setup.json.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: Likewise.
    """
    gpus = tuple(
        PreparedGpu(
            _match(UUID, gpu["uuid"]),
            str(gpu["name"]),
            parse_instances(gpu["instances"]),
            tuple(parse_profile(profile) for profile in gpu["profiles"]),
        )
        for gpu in value["gpus"]
    )
    return PreparedMig(gpus, str(value["socket"]), bool(value["mps_inside"]))


def parse_instances(value: Any) -> tuple[MigInstance, ...]:
    """Read instances, from a setup.json or an answer of the node's agent.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: Likewise.
    """
    return tuple(
        MigInstance(
            _match(UUID, one["uuid"]),
            _match(_PROFILE, one["profile"]),
            int(one["gpu_instance"]),
            int(one["compute_instance"]),
            Placement(int(one["placement"][0]), int(one["placement"][1])),
            int(one["sms"]),
            int(one["memory_mb"]),
        )
        for one in value
    )


def _match(pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"{str(text)[:40]!a} is none")
    return text
