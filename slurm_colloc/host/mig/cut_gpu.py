"""Dividing a GPU for a job: what was judged and placed (host.mig.plan_cut) is made.

Also: doing something to each of a job's GPUs at the same time: a driver takes a second for some
calls; who keeps a GPU from being changed: by NVML's list, and by who has its device files open;
putting a GPU back as it was before a job: from its claim alone, as often as wanted.

The caller has written the claim into the checkpoint before `cut` is called, so that
`restore_gpu` can take back whatever was done when this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.plan_cut import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NO_ANSWER,
    CutFailed,
    GpuInstance,
    MigClaim,
    MigGpu,
    MigProblem,
    PlannedInstance,
)
from slurm_colloc.host.system.node_processes import read_process
from slurm_colloc.model.printable import escape_controls

# ----
# Doing something to each of a job's GPUs at the same time: a driver takes a second for some
# calls.
#
# Each GPU has a session of its own. All are started before the first thread. One that begins anew
# starts its child from its thread, without a function of ours between fork and exec; it dies with
# that thread.

_Result = TypeVar("_Result")


@contextmanager
def open_sessions(
    lock: str, minors: Mapping[str, int], *, driver: str, node: str, ends_at: float
) -> Iterator[dict[str, MigSession]]:
    """A session for each GPU, by UUID; arguments as MigSession's.

    Raises:
        MigProblem: One cannot be started.
    """
    with contextlib.ExitStack() as stack:
        yield {
            uuid: stack.enter_context(
                MigSession(lock, {uuid: minor}, driver=driver, node=node, ends_at=ends_at)
            )
            for uuid, minor in minors.items()
        }


def run_for_each(
    sessions: Mapping[str, MigSession], act: Callable[[str, MigSession], _Result]
) -> dict[str, _Result]:
    """Do something to each GPU and wait for all.

    Args:
        sessions: By UUID.
        act: Called with a UUID and its session; for several GPUs in a thread of its own.

    Raises:
        Exception: What the first of them has raised, once all have ended.
    """
    if len(sessions) == 1:
        return {uuid: act(uuid, session) for uuid, session in sessions.items()}
    results: dict[str, _Result] = {}
    failures: dict[str, BaseException] = {}

    def run(uuid: str, session: MigSession) -> None:
        try:
            results[uuid] = act(uuid, session)
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            failures[uuid] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in sessions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for uuid in sessions:
        if uuid in failures:
            raise failures[uuid]
    return {uuid: results[uuid] for uuid in sessions}


# ---- Who keeps a GPU from being changed: by NVML's list, and by who has its device files open ----
#
# DCGM, nvidia-persistenced and a slurmstepd that accounts for energy compute nothing, and hold a
# GPU all the same. They are named and left alone.

_MOST_NAMED = 4
_CAPS = "/dev/nvidia-caps/nvidia-cap"
_CAP_MINORS = "/proc/driver/nvidia-caps/mig-minors"


def describe_holders(gpu: MigGpu | None) -> str:
    """Name processes that use a GPU or have it open, such as `process 812 (nv-hostengine)`.

    Args:
        gpu: The GPU; None where it cannot be read.

    Returns:
        Up to four of them; empty where none is found.
    """
    if gpu is None:
        return ""
    pids = list(gpu.processes or ())
    files = {f"/dev/nvidia{gpu.minor_number}", *_list_capability_files(gpu.minor_number)}
    pids += [pid for pid in list_openers(files) if pid not in pids]
    told = []
    for pid in pids[:_MOST_NAMED]:
        process = read_process(pid)
        name = "gone" if process is None else escape_controls(process.name)
        told.append(f"process {pid} ({name})")
    if len(pids) > _MOST_NAMED:
        told.append(f"{len(pids) - _MOST_NAMED} more")
    return ", ".join(told)


def _list_capability_files(minor_number: int | None) -> tuple[str, ...]:
    with contextlib.suppress(OSError), open(_CAP_MINORS, encoding="ascii") as file:
        return find_capability_files(file.read(), minor_number)
    return ()


def find_capability_files(text: str, minor_number: int | None) -> tuple[str, ...]:
    """The files that give access to a GPU's instances; pure.

    Args:
        text: The driver's table, lines such as `gpu0/gi1/ci0/access 4`.
        minor_number: N of /dev/nvidiaN.
    """
    rows = (line.split() for line in text.splitlines())
    return tuple(
        f"{_CAPS}{row[1]}"
        for row in rows
        if len(row) == 2 and row[0].startswith(f"gpu{minor_number}/")
    )


def list_openers(files: Collection[str]) -> list[int]:
    """Processes that have one of these files open, without this one.

    Args:
        files: Such as /dev/nvidia0.
    """
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        # A process may end, or be another's in a namespace.
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{name}/fd/{number}")
                    if target in files:
                        found.append(int(name))
                        break
    return sorted(found)


# ---- Dividing a GPU for a job: what was judged and placed (host.mig.plan_cut) is made ------------

_Made = TypeVar("_Made")

_RETRY_S = 0.2
_RETRIES = 6


def cut(port: MigSession, claim: MigClaim, wait: Callable[[float], None] = time.sleep) -> MigGpu:
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
        rest = replace(claim, planned=tuple(begun))
        raise CutFailed(error.message, rest) from error
    return after


def turn_on(port: MigSession, uuid: str) -> None:
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
    port: MigSession,
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


def read_one(port: MigSession, uuid: str) -> MigGpu:
    """Read one GPU.

    Raises:
        MigProblem: It cannot be read.
    """
    for gpu in port.read():
        if gpu.uuid == uuid:
            return gpu
    raise MigProblem(f"NVML does not show {uuid} any more")


def read_claimed(port: MigSession, claim: MigClaim) -> MigGpu:
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
    port: MigSession, claim: MigClaim, call: Callable[[], _Made], wait: Callable[[float], None]
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


# ---- Putting a GPU back as it was before a job: from its claim alone, as often as wanted ---------
#
# Each step looks at what there is, so it does not matter at which call a prolog or an earlier
# epilog was killed or failed. What is not the job's is never touched.

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
    port: MigSession,
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
    report.unsafe.append(_tell_why_held(port, claim, problem) if is_held else problem)
    return report


def _restore_once(port: MigSession, claim: MigClaim, report: MigRestored) -> tuple[str, bool]:
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
    port: MigSession, claim: MigClaim, gpu: MigGpu, report: MigRestored
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


def _turn_on_again(port: MigSession, claim: MigClaim) -> str:
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


def _destroy(port: MigSession, gpu: str, instance: GpuInstance) -> bool:
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


def _tell_why_held(port: MigSession, claim: MigClaim, problem: str) -> str:
    """Who holds the GPU: looked for once, because that reads the whole process table."""
    gpu = None
    with contextlib.suppress(MigProblem):
        gpu = read_claimed(port, claim)
    return f"{problem}: {describe_holders(gpu) or 'no process is to be seen on it'}"
