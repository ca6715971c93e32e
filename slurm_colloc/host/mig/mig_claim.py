"""What is changed of a GPU's MIG for a job, as it stands in the checkpoint; values, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.model.mig.mig_profiles import Placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurm_colloc.host.mig.mig_state import GpuInstance


@dataclass(frozen=True)
class PlannedInstance:
    """A GPU instance that a job is to have, as it stands in the checkpoint.

    Args:
        profile_id: Its profile.
        placement: Where.
        compute: Slices of its compute instances.
    """

    profile_id: int
    placement: Placement
    compute: tuple[int, ...]

    def is_for(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands is this one: ids are the driver's to give."""
        return (self.profile_id, self.placement) == (instance.profile_id, instance.placement)


@dataclass(frozen=True)
class MigClaim:
    """What is changed on a GPU for a job; before that it had no instance at all.

    Args:
        gpu: Its UUID.
        minor_number: N of /dev/nvidiaN.
        switches: MIG was off, and is turned on for the job.
        planned: The instances that are the job's, made already or not.
    """

    gpu: str
    minor_number: int
    switches: bool
    planned: tuple[PlannedInstance, ...]

    def owns(self, instance: GpuInstance) -> bool:
        """Whether an instance that stands is the job's."""
        return any(one.is_for(instance) for one in self.planned)


def describe_claim(claim: MigClaim) -> dict[str, Any]:
    """A claim as it stands in the checkpoint."""
    return {
        "gpu": claim.gpu,
        "minor_number": claim.minor_number,
        "switches": claim.switches,
        "planned": [
            [one.profile_id, one.placement.start, one.placement.size, list(one.compute)]
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
        tuple(
            PlannedInstance(
                int(profile_id), Placement(int(start), int(size)), tuple(map(int, compute))
            )
            for profile_id, start, size, compute in value["planned"]
        ),
    )
