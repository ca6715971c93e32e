"""A divided GPU as a job is told of it, in setup.json and by the agent; pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.host.mig.mig_state import MigGpu, PlannedInstance
from slurm_colloc.model.mig.mig_profiles import InstanceProfile, describe_profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def describe_gpu(gpu: MigGpu, *, mode_switched: bool) -> dict[str, Any]:
    """A GPU with its instances and what else it can be divided into.

    Args:
        gpu: What NVML says.
        mode_switched: MIG was turned on for the job.
    """
    return {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "mode_switched": mode_switched,
        "instances": describe_instances(gpu),
        "profiles": [describe_profile(profile) for profile in gpu.profiles],
    }


def describe_instances(
    gpu: MigGpu, planned: Sequence[PlannedInstance] | None = None
) -> list[dict[str, Any]]:
    """Its compute instances: one is what a process computes on.

    Args:
        gpu: What NVML says.
        planned: Those that are meant; None for all.
    """
    meant = [
        instance
        for instance in gpu.instances or ()
        if planned is None or any(one.is_for(instance) for one in planned)
    ]
    return [
        {
            "uuid": compute.uuid,
            "profile": _name_profile(profile, compute.slices),
            "gpu_instance": instance.id,
            "compute_instance": compute.id,
            "placement": [instance.placement.start, instance.placement.size],
            "sms": compute.sms,
            "memory_mb": profile.memory_mb if profile else None,
        }
        for instance in meant
        for profile in [gpu.find_profile(instance.profile_id)]
        for compute in instance.compute
    ]


def _name_profile(profile: InstanceProfile | None, compute_slices: int) -> str | None:
    if profile is None:
        return None
    is_whole = compute_slices == profile.compute_slices
    return profile.name if is_whole else f"{compute_slices}c.{profile.name}"
