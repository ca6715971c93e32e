"""A GPU with MIG instances as a setup.json tells of it."""

from __future__ import annotations

from typing import Any

from slurm_colloc.host.keeper.prepared_daemon import PreparedGpu, parse_mig
from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import MIG_TABLES, PlacedInstance, describe_profile

GPU = "GPU-11111111-2222-3333-4444-555555555555"
PROFILES = {profile.name: profile for profile in MIG_TABLES["H100-80"]}


def name_instance(number: int) -> str:
    return f"MIG-00000000-0000-0000-0000-{number:012d}"


def build_instances(names: list[str]) -> list[dict[str, Any]]:
    placed = place([PROFILES[name] for name in names])
    assert placed is not None
    return [describe(one, number) for number, one in enumerate(placed, 1)]


def describe(one: PlacedInstance, number: int) -> dict[str, Any]:
    return {
        "uuid": name_instance(number),
        "profile": one.profile.name,
        "gpu_instance": number,
        "compute_instance": 0,
        "placement": [one.placement.start, one.placement.size],
        "sms": one.profile.sms,
        "memory_mb": one.profile.memory_mb,
    }


def build_setup(job_id: str, names: list[str]) -> dict[str, Any]:
    """The setup.json of a prolog that has cut a GPU."""
    return {
        "schema": 1,
        "job_id": job_id,
        "mode": "mig",
        "reason": "asked for",
        "by": "prolog",
        "gpus": [GPU],
        "daemons": [],
        "compute_mode": None,
        "notes": [],
        "mig": {
            "gpus": [
                {
                    "uuid": GPU,
                    "name": "NVIDIA H100 80GB HBM3",
                    "instances": build_instances(names),
                    "profiles": [describe_profile(one) for one in PROFILES.values()],
                }
            ],
            "mps_inside": False,
            "layout": "+".join(names),
        },
    }


def build_gpu(*names: str) -> PreparedGpu:
    return parse_mig(build_setup("7", list(names))["mig"]).gpus[0]
