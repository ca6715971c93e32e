"""Dividing a GPU for a job: all is judged and placed before the first call changes anything.

The caller has written the claim into the checkpoint before `cut` is called, so that
`restore_gpu` can take back whatever was done when this process is killed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.host.mig.gpu_holders import describe_holders
from slurm_colloc.host.mig.mig_state import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    GpuInstance,
    MigClaim,
    MigGpu,
    MigProblem,
    PlannedInstance,
)
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.mig.mig_state import MigPort

_Made = TypeVar("_Made")

_HOPPER = (9, 0)
"""From here on a mode is changed without a reset (NVIDIA's MIG guide, r580)."""

_RETRY_S = 0.2
_RETRIES = 6

# -- judging, pure ---------------------------------------------------------------------------------


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
    return MigClaim(gpu.uuid, gpu.minor_number or 0, not gpu.is_on, planned)


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
        return "the site's policy takes only GPUs where it is on"
    if (gpu.compute_capability or (0, 0)) < _HOPPER:
        return "before Hopper it takes a reset to turn it on"
    return ""


def _find_use(gpu: MigGpu) -> str:
    if gpu.instances:
        told = gpu.instances[0].describe(gpu.profiles)
        return f"{gpu.uuid} is divided already, and not for this job: {told}"
    if gpu.processes:
        return f"process {gpu.processes[0].pid} is on {gpu.uuid}"
    return ""


def name_whole(gpu: MigGpu) -> str:
    """The word of the one instance that has all of a GPU; empty where it has no profiles; pure."""
    whole = max(gpu.profiles, key=lambda one: (one.compute_slices, one.memory_mb), default=None)
    return whole.name if whole else ""


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
                tuple(word.compute_slices for word in group),
            )
        )
    return planned


# -- changing --------------------------------------------------------------------------------------


def cut(port: MigPort, claim: MigClaim, wait: Callable[[float], None] = time.sleep) -> MigGpu:
    """Make what a claim says; the GPU as it is then, read anew.

    Args:
        port: NVML.
        claim: What is in the checkpoint already.
        wait: Waits so many seconds.

    Raises:
        NodeError: It could not be made; what was made of it stands.
    """
    if claim.switches:
        port.set_mode(claim.gpu, True)
        now = read_one(port, claim.gpu)
        if not now.is_on or not now.is_pending_on:
            raise NodeError(f"MIG could not be turned on on {claim.gpu}{_tell_holders(now)}")
    for planned in claim.planned:
        make_instance(port, claim, planned, wait)
    after = read_one(port, claim.gpu)
    check_made(after, claim)
    return after


def make_instance(
    port: MigPort,
    claim: MigClaim,
    planned: PlannedInstance,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Make one GPU instance with its compute instances.

    Raises:
        NodeError: It could not be made.
    """

    def create() -> int:
        try:
            return port.create(claim.gpu, planned.profile_id, planned.placement)
        except MigProblem as problem:
            if problem.code != INSUFFICIENT_RESOURCES:
                raise
            # That is also said of one that stands there already, by an answer that was lost.
            now = read_one(port, claim.gpu)
            for instance in now.instances or ():
                if planned.is_for(instance) and not instance.compute:
                    return instance.id
            told = ", ".join(one.describe(now.profiles) for one in now.instances or ())
            raise NodeError(
                f"{claim.gpu} has no room at {planned.placement.start} for an instance of profile "
                f"{planned.profile_id} although it should: it has {told or 'no instances'}"
            ) from problem

    instance = _retry(port, claim, create, wait)
    for slices in planned.compute:
        _retry(port, claim, partial(port.create_compute, claim.gpu, instance, slices), wait)


def check_made(gpu: MigGpu, claim: MigClaim) -> None:
    """See that a GPU has exactly what a claim says, each with a UUID; pure.

    Raises:
        NodeError: It has not.
    """
    standing = list(gpu.instances or ())
    for planned in claim.planned:
        found = next((one for one in standing if planned.is_for(one)), None)
        if found is None:
            raise NodeError(f"{gpu.uuid} does not show an instance that was just made")
        standing.remove(found)
        slices = sorted(one.slices for one in found.compute)
        if slices != sorted(planned.compute) or any(one.uuid is None for one in found.compute):
            told = found.describe(gpu.profiles)
            raise NodeError(f"{gpu.uuid} does not show the compute instances of {told}")
    if standing:
        told = standing[0].describe(gpu.profiles)
        raise NodeError(f"{gpu.uuid} has {told} besides, which is not this job's")


def read_one(port: MigPort, uuid: str) -> MigGpu:
    """Read one GPU.

    Raises:
        MigProblem: It cannot be read.
    """
    for gpu in port.read():
        if gpu.uuid == uuid:
            return gpu
    raise MigProblem(f"NVML does not show {uuid} any more")


def _retry(
    port: MigPort, claim: MigClaim, call: Callable[[], _Made], wait: Callable[[float], None]
) -> _Made:
    """Make a call again while something else holds the GPU; then say what does."""
    for number in range(_RETRIES):
        try:
            return call()
        except MigProblem as problem:
            if problem.code != IN_USE:
                raise
            if number == _RETRIES - 1:
                gpu = None
                with contextlib.suppress(MigProblem):
                    gpu = read_one(port, claim.gpu)
                raise NodeError(f"{claim.gpu} is in use{_tell_holders(gpu)}") from problem
        wait(_RETRY_S * (number + 1))
    raise AssertionError("unreachable")


def _tell_holders(gpu: MigGpu | None) -> str:
    holders = describe_holders(gpu)
    return f": {holders}" if holders else ""
