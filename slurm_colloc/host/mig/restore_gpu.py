"""Putting a GPU back as it was before a job: from its claim alone, as often as wanted.

Each step looks at what there is, so it does not matter at which call a prolog, an agent or an
earlier epilog was killed or failed. What is not the job's is never touched.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mig.cut_gpu import read_claimed, turn_on
from slurm_colloc.host.mig.gpu_holders import describe_holders
from slurm_colloc.host.mig.mig_claim import MigClaim
from slurm_colloc.host.mig.mig_state import (
    IN_USE,
    NO_ANSWER,
    GpuInstance,
    MigGpu,
    MigProblem,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.mig.mig_state import MigPort

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0
_ROUNDS_MAX = 40
_SECOND_THOUGHTS = 2
"""How often something is tried again that failed for another reason than being in use."""


@dataclass
class MigRestored:
    """How putting a GPU back went.

    Args:
        unsafe: Why the GPU is not as it was before the job; empty where it is.
        notes: What else is worth telling.
        destroyed: How many GPU instances were destroyed.
        switched_off: MIG was turned off again.
        standing: The job's instances that stood when the GPU was last read, less those destroyed
            since, in words by their ids; None before it was read.
    """

    unsafe: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    destroyed: int = 0
    switched_off: bool = False
    standing: dict[int, str] | None = None


def restore(
    port: MigPort,
    claim: MigClaim,
    *,
    ends_at: float,
    slow_until: float = 0.0,
    wait: Callable[[float], None] = time.sleep,
) -> MigRestored:
    """Destroy what a job has of a GPU and set its mode back.

    Args:
        port: NVML.
        claim: What the checkpoint says.
        ends_at: Until when to try again what is in use, on the monotonic clock.
        slow_until: Until when to go on where NVML gave no answer in time, likewise: it may be slow
            and no more. No earlier than `ends_at`.
        wait: Waits so many seconds.
    """
    report = MigRestored()
    problem = ""
    is_held = False
    pause_s, other_faults = _FIRST_WAIT_S, 0
    for _ in range(_ROUNDS_MAX):
        until = ends_at
        try:
            problem, is_held = _restore_once(port, claim, report)
            if not problem:
                return report
        except MigProblem as error:
            # In the middle of something: the next round sees how far it came.
            left = _describe_left(claim, report)
            problem = f"{claim.gpu} could not be put back: {error.message}{left}"
            is_held = False
            other_faults += error.code != IN_USE
            if error.code == NO_ANSWER:
                until = max(ends_at, slow_until)
        if other_faults > _SECOND_THOUGHTS or time.monotonic() + pause_s > until:
            break
        wait(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_WAIT_S)
    report.unsafe.append(_tell_holders(port, claim, problem) if is_held else problem)
    return report


def _restore_once(port: MigPort, claim: MigClaim, report: MigRestored) -> tuple[str, bool]:
    """One round; why it is not done yet (empty: it is), and whether something holds the GPU."""
    gpu = read_claimed(port, claim)
    own = [instance for instance in gpu.instances or () if claim.owns(instance)]
    report.standing = {one.id: one.describe(gpu.profiles) for one in own}
    for instance in own:
        if _destroy(port, claim.gpu, instance):
            return f"{instance.describe(gpu.profiles)} of {claim.gpu} is in use", True
        del report.standing[instance.id]
        report.destroyed += 1
    if own:
        gpu = read_claimed(port, claim)
    mine = [one for one in gpu.instances or () if claim.owns(one)]
    if mine:
        return f"{claim.gpu} still has {mine[0].describe(gpu.profiles)}", False
    foreign = [one for one in gpu.instances or () if any(own.is_like(one) for own in claim.planned)]
    if foreign:
        raise MigProblem(
            f"{foreign[0].describe(gpu.profiles)} stands where the job's was, and is not the "
            f"job's: it was left so"
        )
    return _set_mode_back(port, claim, gpu, report)


def _describe_left(claim: MigClaim, report: MigRestored) -> str:
    """Which of the job's instances may still be there, as the end of a sentence; pure."""
    told = [f"an instance at {one.placement.start}" for one in claim.planned]
    if report.standing is not None:
        told = list(report.standing.values())
    return f"; {', '.join(told)} may still be there" if told else ""


def _set_mode_back(
    port: MigPort, claim: MigClaim, gpu: MigGpu, report: MigRestored
) -> tuple[str, bool]:
    strange = [one.describe(gpu.profiles) for one in gpu.instances or ()]
    if strange:
        note = f"{claim.gpu} has {', '.join(strange)}, which is not the job's: it was left so"
        if note not in report.notes:
            report.notes.append(note)
    if not claim.switches:
        if not gpu.is_on:
            note = _turn_on_again(port, claim)
            if note not in report.notes:
                report.notes.append(note)
        return "", False
    if not gpu.is_on and not gpu.is_pending_on:
        return "", False
    if strange:
        return f"MIG stays on on {claim.gpu}, because it has {strange[0]}", False
    port.set_mode(claim.gpu, False)
    after = read_claimed(port, claim)
    if after.is_on or after.is_pending_on:
        return f"MIG could not be turned off on {claim.gpu}", True
    report.switched_off = True
    return "", False


def _turn_on_again(port: MigPort, claim: MigClaim) -> str:
    """MIG went off while the job had the GPU: a driver that is loaded again turns it off.

    That it stays off is told and no more: a job finds the whole GPU then.

    Raises:
        MigProblem: NVML gave no answer, so the mode is not known.
    """
    if not claim.may_return:
        return f"MIG is off on {claim.gpu}, and was not turned off for the job: it was left so"
    try:
        turn_on(port, claim.gpu)
    except NodeError as error:
        if isinstance(error, MigProblem) and error.code == NO_ANSWER:
            raise
        return f"MIG was on on {claim.gpu} before the job, and is off: {error.message}"
    return f"MIG was turned on again on {claim.gpu}, as before the job"


def _destroy(port: MigPort, gpu: str, instance: GpuInstance) -> bool:
    """Destroy an instance; True where something uses it, and a part of it may be gone."""
    try:
        for compute in instance.compute:
            port.destroy_compute(gpu, instance.id, compute.id)
        port.destroy(gpu, instance.id)
    except MigProblem as problem:
        if problem.code != IN_USE:
            raise
        return True
    return False


def _tell_holders(port: MigPort, claim: MigClaim, problem: str) -> str:
    """Who holds the GPU: looked for once, because that reads the whole process table."""
    gpu = None
    with contextlib.suppress(MigProblem):
        gpu = read_claimed(port, claim)
    return f"{problem}: {describe_holders(gpu) or 'no process is to be seen on it'}"
