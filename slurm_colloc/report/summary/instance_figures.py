"""What a member used of its MIG instance: measured on that alone, so exact, unless others share it.

What is told of an instance that members share is of all of them, and none's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_colloc.metrics.attribution import AttributedPart, Attribution
from slurm_colloc.metrics.series import Window
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun
from slurm_colloc.report.summary.pack_samples import NO_GPU
from slurm_colloc.store.pack.member_states import GpuUse


def find_instance(member: MemberRun) -> GpuUse | None:
    """The instance of a member's last start; None where it had none."""
    record = member.view.record
    use = record.gpu if record is not None else None
    return use if use is not None and use.instance and use.uuids else None


def compute_instance_mean(run: PackRun, member: MemberRun, metric: str) -> float | None:
    """The mean of a metric of its instance while it was there; None where it was not measured."""
    use = find_instance(member)
    track = None if use is None else run.samples.gpus.get(use.uuids[0], NO_GPU).get(metric)
    stays = [(stay.begin, stay.end) for stay in member.present]
    return None if track is None else track.compute_mean(stays)


def attribute_instance_sm(run: PackRun, member: MemberRun) -> AttributedPart | None:
    """A member's part of the whole GPU's SMs, by what its instance did; None where unknown."""
    stays = [(stay.begin, stay.end) for stay in member.present]
    part = compute_instance_sm(run, member, stays)
    return None if part is None else AttributedPart(part, Attribution.EXACT)


def compute_instance_sm(run: PackRun, member: MemberRun, windows: Sequence[Window]) -> float | None:
    """The part of the whole GPU's SMs that a member's own instance kept busy, 0 to 1.

    None where it has none of its own, or that was not measured.
    """
    use = find_instance(member)
    if use is None or use.inside or not use.instance_sms or not use.gpu_sms:
        return None
    track = run.samples.gpus.get(use.uuids[0], NO_GPU).get("sm_active")
    mean = None if track is None else track.compute_mean(windows)
    return None if mean is None else mean * use.instance_sms / use.gpu_sms


def build_instance(run: PackRun, member: MemberRun) -> dict[str, Any] | None:
    """A member's instance as it stands in summary.json; None where it had none."""
    use = find_instance(member)
    if use is None:
        return None
    track = run.samples.gpus.get(use.uuids[0], NO_GPU).get("gpu_memory_mb")
    known = [value for value in (track.values if track else ()) if value is not None]
    return {
        "planned": member.view.spec.plan.instance or None,
        "profile": use.instance,
        "uuid": use.uuids[0],
        "memory_mb": use.gpu_memory_limit_mb,
        "sms": use.instance_sms,
        "gpu_memory_peak_mb": max(known, default=None),
        "sm_active": compute_instance_mean(run, member, "sm_active"),
        "dram_active": compute_instance_mean(run, member, "dram_active"),
        "shared_by": use.inside or None,
        "attribution": None if use.inside else Attribution.EXACT.value,
    }


def build_layout(run: PackRun) -> dict[str, Any] | None:
    """The planned MIG layout and what came, as it stands in summary.json; None without one."""
    planned = run.view.record.layout
    came = () if run.setup is None else run.setup.instances
    if not planned and not came:
        return None
    return {
        "planned": list(planned),
        "came": [
            {
                "profile": one.profile,
                "uuid": one.uuid,
                "memory_mb": one.memory_mb,
                "sms": one.sms,
                "places": one.places,
            }
            for one in came
        ],
    }
