"""What is changed of a GPU's MIG for a job, as it stands in the checkpoint; values, pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.model.mig.mig_profiles import Placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurm_colloc.host.mig.mig_state import GpuInstance, MigGpu


@dataclass(frozen=True)
class PlannedInstance:
    """A GPU instance that a job is to have, as it stands in the checkpoint.

    Args:
        profile_id: Its profile.
        placement: Where.
        compute: Slices of its compute instances.
        instance: NVML's number, once it was made; None before.
        uuids: Those of its compute instances, once they were made.
    """

    profile_id: int
    placement: Placement
    compute: tuple[int, ...]
    instance: int | None = None
    uuids: tuple[str, ...] = ()

    def is_like(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands has this one's profile and place."""
        return (self.profile_id, self.placement) == (instance.profile_id, instance.placement)

    def is_for(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands is this one.

        Before it was made its place says so: ids are the driver's to give. After that its id and
        UUIDs do, because an administrator may have made another in its place. One whose compute
        instances have gone already has its id alone.
        """
        if not self.is_like(instance):
            return False
        if self.instance is None:
            return True
        found = {one.uuid for one in instance.compute if one.uuid is not None}
        return self.instance == instance.id and found <= set(self.uuids)

    def identify(self, gpu: MigGpu) -> PlannedInstance:
        """This one with id and UUIDs, where it stands whole."""
        for one in gpu.instances or ():
            if self.is_for(one):
                uuids = tuple(part.uuid for part in one.compute if part.uuid is not None)
                return dataclasses.replace(self, instance=one.id, uuids=uuids)
        return self

    def forget(self) -> PlannedInstance:
        """This one as before it was made."""
        return dataclasses.replace(self, instance=None, uuids=())


@dataclass(frozen=True)
class MigClaim:
    """What is changed on a GPU for a job; before that it had no instance at all.

    Args:
        gpu: Its UUID.
        minor_number: N of /dev/nvidiaN.
        switches: MIG was off, and is turned on for the job.
        planned: The instances that are the job's, made already or not.
        is_lost_at_boot: MIG was on, and goes off where the driver is loaded again, as at a reboot.
        may_return: The site lets it be turned on again then.
        kept_in: Where that is written down (kept_modes); empty for nowhere.
    """

    gpu: str
    minor_number: int
    switches: bool
    planned: tuple[PlannedInstance, ...]
    is_lost_at_boot: bool = False
    may_return: bool = False
    kept_in: str = ""

    def owns(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands is the job's."""
        return any(one.is_for(instance) for one in self.planned)

    def identify(self, gpu: MigGpu) -> MigClaim:
        """This claim with ids and UUIDs of what was made."""
        planned = tuple(one.identify(gpu) for one in self.planned)
        return dataclasses.replace(self, planned=planned)


class CutFailed(NodeError):
    """A claim was not made whole.

    Args:
        message: Why, in one sentence.
        claim: What of it was made, or may have been: what else stands in a place of its is not the
            job's.
    """

    def __init__(self, message: str, claim: MigClaim) -> None:
        super().__init__(message)
        self.claim = claim


def describe_claim(claim: MigClaim) -> dict[str, Any]:
    """A claim as it stands in the checkpoint."""
    return {
        "gpu": claim.gpu,
        "minor_number": claim.minor_number,
        "switches": claim.switches,
        "may_return": claim.may_return,
        "kept_in": claim.kept_in,
        "planned": [
            {
                "profile_id": one.profile_id,
                "placement": [one.placement.start, one.placement.size],
                "compute": list(one.compute),
                "instance": one.instance,
                "uuids": list(one.uuids),
            }
            for one in claim.planned
        ],
    }


def parse_claim(value: Mapping[str, Any]) -> MigClaim:
    """Read one from a checkpoint.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: Likewise.
    """
    return MigClaim(
        str(value["gpu"]),
        int(value["minor_number"]),
        bool(value["switches"]),
        tuple(map(_parse_planned, value["planned"])),
        may_return=bool(value["may_return"]),
        kept_in=str(value["kept_in"]),
    )


def _parse_planned(value: Mapping[str, Any]) -> PlannedInstance:
    start, size = value["placement"]
    return PlannedInstance(
        int(value["profile_id"]),
        Placement(int(start), int(size)),
        tuple(map(int, value["compute"])),
        None if value["instance"] is None else int(value["instance"]),
        tuple(map(str, value["uuids"])),
    )
