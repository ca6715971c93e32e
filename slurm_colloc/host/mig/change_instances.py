"""Exchanging some of a job's instances for others while the rest of them run on.

Also: a divided GPU as a job is told of it, in setup.json and by the agent.

Before the first call the checkpoint has what stands and what is to come, so that all of it is
undone whenever this process is killed. What fails is taken back: the instances that stood before
are made again, with other UUIDs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.errors import CollocError, NodeError
from slurm_colloc.host.mig.cut_gpu import check_made, make_instance, read_claimed, restore
from slurm_colloc.host.mig.plan_cut import (
    GpuInstance,
    MigClaim,
    MigGpu,
    PlannedInstance,
    plan_instances,
)
from slurm_colloc.model.mig_profiles import InstanceProfile, describe_profile
from slurm_colloc.model.printable import cut, escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurm_colloc.host.mig.plan_cut import MigPort


_BUSY_S = 5.0
"""How long an instance may stay in use whose processes have just ended."""

_TAKE_BACK_S = 25.0
"""How long taking back may take, however long the change itself has."""


@dataclass(frozen=True)
class ChangeOutcome:
    """What a change has come to.

    Args:
        claim: What is the job's now, as in the checkpoint.
        gpu: The GPU as it is now; None where it cannot be read.
        problem: Why it is not as asked for; empty where it is.
    """

    claim: MigClaim
    gpu: MigGpu | None
    problem: str = ""


def change_instances(
    port: MigPort,
    claim: MigClaim,
    *,
    destroy: Sequence[str],
    create: Sequence[str],
    save: Callable[[MigClaim], None],
    allowed: Sequence[str] = (),
    wait: Callable[[float], None] = time.sleep,
) -> ChangeOutcome:
    """Destroy some instances of a job and make others in their place.

    Args:
        port: NVML.
        claim: What is the job's.
        destroy: UUIDs of compute instances that are to go.
        create: Words of GPU instances that are to come.
        save: Writes a claim into the checkpoint.
        allowed: Names of profiles that the site allows; empty for all.
        wait: Waits so many seconds.

    Raises:
        NodeError: It is refused; nothing was changed.
    """
    before = read_claimed(port, claim)
    claim = _drop_gone(claim, before)
    going = choose_going(before, claim, destroy)
    staying = [one for one in before.instances or () if one not in going]
    coming = (
        plan_instances(before, "+".join(create), allowed=allowed, standing=staying)
        if create
        else ()
    )
    old = tuple(one for one in claim.planned if any(one.is_for(gone) for gone in going))
    kept = tuple(one for one in claim.planned if one not in old)
    wanted = replace(claim, planned=(*kept, *coming))
    save(replace(claim, planned=_join(kept, old, coming)))
    problem = _exchange(port, claim, old, coming, wait)
    if not problem:
        try:
            after = read_claimed(port, wanted)
            check_made(after, wanted)
            wanted = wanted.identify(after)
            save(wanted)
            return ChangeOutcome(wanted, after)
        except CollocError as error:
            problem = str(error)
    again = (*kept, *(one.forget() for one in old))
    return _take_back(
        port,
        replace(claim, planned=again),
        coming,
        problem=problem,
        wait=wait,
        save=save,
    )


def _drop_gone(claim: MigClaim, gpu: MigGpu) -> MigClaim:
    """A claim without what an earlier change could neither make nor take back; pure."""
    standing = gpu.instances or ()
    planned = tuple(one for one in claim.planned if any(map(one.is_for, standing)))
    return replace(claim, planned=planned)


def choose_going(gpu: MigGpu, claim: MigClaim, destroy: Sequence[str]) -> tuple[GpuInstance, ...]:
    """Find the GPU instances that are to go, or say why they stay; pure.

    Raises:
        NodeError: One is not the job's, is in use, or shares its GPU instance with one that stays.
    """
    if gpu.instances is None or gpu.processes is None:
        raise NodeError(f"NVML does not say what stands on {gpu.uuid}")
    going = []
    named = set(destroy)
    known = set()
    for instance in gpu.instances:
        uuids = {one.uuid for one in instance.compute if one.uuid is not None}
        if not instance.compute and claim.owns(instance):
            # Half made by a change that could not be taken back: it has no UUID to be named by.
            going.append(instance)
        if not uuids & named:
            continue
        if not claim.owns(instance):
            raise NodeError(f"{min(uuids & named)} is not this job's")
        if not uuids <= named:
            raise NodeError(
                f"{min(uuids & named)} shares a GPU instance with {min(uuids - named)}, which "
                f"is not to go"
            )
        for process in gpu.processes:
            if process.gpu_instance == instance.id:
                raise NodeError(f"process {process.pid} is on {min(uuids)}")
        known |= uuids
        going.append(instance)
    if named - known:
        shown = escape_controls(cut(min(named - known)))
        raise NodeError(f"{shown} is not an instance of this job's on {gpu.uuid}")
    return tuple(going)


def _join(*groups: Sequence[PlannedInstance]) -> tuple[PlannedInstance, ...]:
    return tuple(dict.fromkeys(one for group in groups for one in group))


def _exchange(
    port: MigPort,
    claim: MigClaim,
    old: Sequence[PlannedInstance],
    new: Sequence[PlannedInstance],
    wait: Callable[[float], None],
) -> str:
    """Destroy and make; why it broke off, empty where it did not."""
    gone = _remove(port, claim, old, wait)
    if gone:
        return gone
    try:
        for planned in new:
            make_instance(port, claim, planned, wait)
    except NodeError as error:
        return error.message
    return ""


def _remove(
    port: MigPort,
    claim: MigClaim,
    planned: Sequence[PlannedInstance],
    wait: Callable[[float], None],
) -> str:
    """Destroy instances and leave the mode alone; why one stays, empty where none does."""
    if not planned:
        return ""
    part = replace(claim, planned=tuple(planned), switches=False)
    report = restore(port, part, ends_at=time.monotonic() + _BUSY_S, wait=wait)
    return "; ".join(report.unsafe)


def _take_back(
    port: MigPort,
    claim: MigClaim,
    new: Sequence[PlannedInstance],
    *,
    problem: str,
    wait: Callable[[float], None],
    save: Callable[[MigClaim], None],
) -> ChangeOutcome:
    """Make what stood before; the checkpoint keeps both until that is done."""
    both = replace(claim, planned=_join(claim.planned, new))
    added = [one for one in new if one not in claim.planned]
    try:
        # A call that hung has cost the session's time, and its process.
        port.renew(_TAKE_BACK_S)
        # What is made again has another id.
        save(both)
        left = _remove(port, claim, added, wait)
        if left:
            return ChangeOutcome(both, _read_quietly(port, claim), f"{problem}; {left}")
        standing = read_claimed(port, claim).instances or ()
        for planned in claim.planned:
            found = next((one for one in standing if planned.is_for(one)), None)
            slices = sorted(one.slices for one in found.compute) if found else None
            if slices == sorted(planned.compute):
                continue
            if found is not None and (halved := _remove(port, claim, [planned], wait)):
                return ChangeOutcome(both, _read_quietly(port, claim), f"{problem}; {halved}")
            make_instance(port, claim, planned, wait)
        after = read_claimed(port, claim)
        check_made(after, claim)
        claim = claim.identify(after)
        save(claim)
    except CollocError as error:
        told = f"{problem}; what stood before could not be made again: {error.message}"
        return ChangeOutcome(both, _read_quietly(port, claim), told)
    return ChangeOutcome(claim, after, problem)


def _read_quietly(port: MigPort, claim: MigClaim) -> MigGpu | None:
    with contextlib.suppress(CollocError):
        return read_claimed(port, claim)
    return None


# ---- A divided GPU as a job is told of it, in setup.json and by the agent; pure ------------------


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
