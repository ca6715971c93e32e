"""Dividing a GPU for a job: what was judged and placed (host.mig.plan_cut) is made.

The caller has written the claim into the checkpoint before `cut` is called, so that
`restore_gpu` can take back whatever was done when this process is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mig.gpu_holders import describe_holders
from slurm_colloc.host.mig.mig_claim import CutFailed, MigClaim, PlannedInstance
from slurm_colloc.host.mig.mig_state import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    MigGpu,
    MigProblem,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.mig.mig_state import MigPort

_Made = TypeVar("_Made")

_RETRY_S = 0.2
_RETRIES = 6


def cut(port: MigPort, claim: MigClaim, wait: Callable[[float], None] = time.sleep) -> MigGpu:
    """Make what a claim says; the GPU as it is then, read anew.

    Args:
        port: NVML.
        claim: What is in the checkpoint already.
        wait: Waits so many seconds.

    Raises:
        CutFailed: It could not be made; what was made of it stands.
    """
    begun: list[PlannedInstance] = []
    try:
        if claim.switches:
            turn_on(port, claim.gpu)
        for planned in claim.planned:
            begun.append(planned)
            make_instance(port, claim, planned, wait)
        after = read_claimed(port, claim)
        check_made(after, claim)
    except NodeError as error:
        if isinstance(error, NotMade):
            begun.pop()
        rest = dataclasses.replace(claim, planned=tuple(begun))
        raise CutFailed(error.message, rest) from error
    return after


def turn_on(port: MigPort, uuid: str) -> None:
    """Turn MIG on, and see that it is.

    Raises:
        MigProblem: A call has failed.
        NodeError: It is not on.
    """
    port.set_mode(uuid, True)
    now = read_one(port, uuid)
    if not now.is_on or not now.is_pending_on:
        raise NodeError(f"MIG could not be turned on on {uuid}{_tell_holders(now)}")


class NotMade(NodeError):
    """NVML has no room for an instance, and never had: what stands there is another's."""


def make_instance(
    port: MigPort,
    claim: MigClaim,
    planned: PlannedInstance,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Make one GPU instance with its compute instances.

    Raises:
        NotMade: There is no room for it.
        NodeError: It could not be made whole.
    """
    tries = 0

    def create() -> int:
        nonlocal tries
        tries += 1
        try:
            return port.create(claim.gpu, planned.profile_id, planned.placement)
        except MigProblem as problem:
            if problem.code != INSUFFICIENT_RESOURCES:
                raise
            # That is also said of one that stands there already, by an answer that was lost.
            now = read_claimed(port, claim)
            for instance in now.instances or ():
                if tries > 1 and planned.is_for(instance) and not instance.compute:
                    return instance.id
            told = ", ".join(one.describe(now.profiles) for one in now.instances or ())
            # Only the first answer is sure: a later one may be of what an earlier try has made.
            raise (NotMade if tries == 1 else NodeError)(
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


def read_claimed(port: MigPort, claim: MigClaim) -> MigGpu:
    """Read the GPU of a claim whole: what is read in part proves nothing to be gone.

    Raises:
        MigProblem: It cannot be read, or not all that the claim is about.
    """
    gpu = read_one(port, claim.gpu)
    if gpu.is_on is None:
        raise MigProblem(gpu.problem or "its MIG mode cannot be read")
    if gpu.is_on:
        if gpu.problem or gpu.instances is None:
            raise MigProblem(gpu.problem or "its instances cannot be read")
        for planned in claim.planned:
            if gpu.find_profile(planned.profile_id) is None:
                raise MigProblem(f"NVML does not show its MIG profile {planned.profile_id}")
    return gpu


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
