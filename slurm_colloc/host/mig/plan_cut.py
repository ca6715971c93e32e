"""Whether a GPU may be divided for a job, and what goes where: before any call changes it; pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.host.mig.mig_claim import MigClaim, PlannedInstance
from slurm_colloc.host.mig.mig_state import GpuInstance, MigGpu
from slurm_colloc.model.mig.layout_words import (
    LayoutWord,
    group_words,
    parse_layout,
    render_layout,
    resolve,
)
from slurm_colloc.model.mig.mig_layout import place
from slurm_colloc.model.mig.mig_profiles import InstanceProfile, PlacedInstance
from slurm_colloc.model.printable import escape_controls


def plan_cut(
    gpu: MigGpu,
    layout: str,
    *,
    may_switch: bool,
    allowed: Sequence[str] = (),
) -> MigClaim:
    """Choose what a job gets of a GPU, or say why it gets nothing; pure.

    Args:
        gpu: What NVML says.
        layout: The words of the layout.
        may_switch: MIG may be turned on where it is off.
        allowed: Names of profiles that the site allows; empty for all.

    Raises:
        NodeError: The GPU is not to be had for it, in one sentence.
    """
    problem = find_refusal(gpu, may_switch=may_switch)
    if problem:
        raise NodeError(problem)
    planned = plan_instances(gpu, layout, allowed=allowed)
    is_lost_at_boot = bool(gpu.is_on) and gpu.switches_freely
    return MigClaim(
        gpu.uuid,
        gpu.minor_number or 0,
        switches=not gpu.is_on,
        planned=planned,
        is_lost_at_boot=is_lost_at_boot,
        may_return=is_lost_at_boot and may_switch,
    )


def find_refusal(gpu: MigGpu, *, may_switch: bool) -> str:
    """Why a GPU is not divided whatever the layout; empty where it may be; pure."""
    who = gpu.uuid
    if gpu.is_on is None or gpu.is_pending_on is None:
        return f"{who} cannot be divided by MIG"
    if gpu.is_virtual:
        return f"{who} is a virtual GPU, whose MIG is its host's"
    if gpu.is_on != gpu.is_pending_on:
        return f"a change of the MIG mode of {who} waits for a reset"
    if gpu.problem or gpu.processes is None or gpu.instances is None or gpu.minor_number is None:
        return f"NVML does not say all of {who}'s MIG: {gpu.problem or 'no reason given'}"
    if not gpu.is_on and (problem := _find_switch_refusal(gpu, may_switch)):
        return f"MIG is off on {who}, and {problem}"
    return _find_use(gpu)


def _find_switch_refusal(gpu: MigGpu, may_switch: bool) -> str:
    if not may_switch:
        lost = ", and from Hopper on a reboot turns it off" if gpu.switches_freely else ""
        return f"the site's policy takes only GPUs where it is on{lost}"
    if not gpu.switches_freely:
        return "before Hopper it takes a reset to turn it on"
    return ""


def _find_use(gpu: MigGpu) -> str:
    if gpu.instances:
        told = gpu.instances[0].describe(gpu.profiles)
        return f"{gpu.uuid} is divided already, and not for this job: {told}"
    if gpu.processes:
        return f"process {gpu.processes[0].pid} is on {gpu.uuid}"
    return ""


def plan_instances(
    gpu: MigGpu,
    layout: str,
    *,
    allowed: Sequence[str] = (),
    standing: Sequence[GpuInstance] = (),
) -> tuple[PlannedInstance, ...]:
    """Find a place for each instance of a layout, the biggest first; pure.

    Args:
        gpu: What NVML says.
        layout: The words.
        allowed: Names of profiles that the site allows; empty for all.
        standing: Instances that stay where they are.

    Raises:
        NodeError: There is no such layout here, or no room for it.
    """
    try:
        words = parse_layout(layout)
        profiles = resolve(words, gpu.profiles)
    except UsageProblem as problem:
        raise NodeError(str(problem)) from problem
    for profile in profiles:
        if allowed and profile.name not in allowed:
            name = escape_controls(profile.name)
            raise NodeError(f"the site's policy does not allow the MIG profile {name}")
    placed = place(profiles, gpu.place_instances(standing))
    if placed is None:
        around = " around what stands" if standing else ""
        raise NodeError(f"the MIG layout {render_layout(words)} does not fit{around} on {gpu.uuid}")
    return tuple(_match_groups(group_words(words), profiles, placed))


def _match_groups(
    groups: Sequence[Sequence[LayoutWord]],
    profiles: Sequence[InstanceProfile],
    placed: Sequence[PlacedInstance],
) -> list[PlannedInstance]:
    """The compute instances of each GPU instance: equal ones are interchangeable."""
    left = list(zip(profiles, groups, strict=True))
    planned = []
    for one in placed:
        number = next(n for n, (profile, _) in enumerate(left) if profile == one.profile)
        _, group = left.pop(number)
        planned.append(
            PlannedInstance(
                one.profile.profile_id,
                one.placement,
                # The biggest first, too: small ones would lie where a large one has to.
                tuple(sorted((word.compute_slices for word in group), reverse=True)),
            )
        )
    return planned
