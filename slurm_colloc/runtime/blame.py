"""What a member's end means where a GPU is shared: whose fault it was, and which run again; pure.

Also: what a member's own output says about its end: the words of CUDA and of its frameworks; whose
fault an end was: gathers what the GPU, its MPS server and the output say of it.

A fault of one MPS client ends all clients of the GPU, and neither the server's log nor the
kernel's Xid line says whose it was: on an H200 with driver 580 both named an innocent client in
every run (docs/mps.md). So all that were hit run again apart from MPS, where a fault stays with
its process. The one that has it again is the culprit.

An exit code of 0 does not undo that: a script may hide the error of its program. So a member whose
process was a client when a fault hit it, or when something other than csub ended the server, is
judged as one that has failed.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import stat

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass, field, replace
from slurm_colloc.model.member import EndCause, MemberState, choose_plain_cause
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.runtime.allocation import requeues_jobs
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.member_progress import ProgressReader
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.mps_clients import MpsMember
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.verdict import StopReason, Verdict
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import Retries
from slurm_colloc.store.profiles import (
    FaultRecord,
    compute_signature,
    forget_culprit,
    note_culprit,
)

# ----
# What a member's own output says about its end: the words of CUDA and of its frameworks; pure.
#
# Only an ended member that failed is looked at, and only the end of what it wrote. The words are
# those of PyTorch 2.11 on an H200 with driver 580, of the CUDA runtime's and driver's error names
# (docs.nvidia.com, CUDA Runtime API, cudaError_t; CUDA Driver API, CUresult) and of XLA.


class Sign(enum.Enum):
    """What a line of output stands for."""

    OUT_OF_GPU_MEMORY = "out of GPU memory"
    FAULT = "fatal fault on the GPU"
    MPS_GONE = "the MPS server is gone"
    MPS_REFUSED = "the MPS server refuses clients"
    MPS_FULL = "the MPS server has as many clients as it takes"
    ASSERT = "device-side assert"
    NO_DEVICE = "the GPU does not answer"


MPS_SIGNS = frozenset({Sign.MPS_GONE, Sign.MPS_REFUSED, Sign.MPS_FULL})
"""Those that only clients of an MPS server meet."""


@dataclass(frozen=True)
class OutputFinding:
    """A line that says why a program ended."""

    sign: Sign
    line: str


_SIGNS: tuple[tuple[Sign, re.Pattern[str]], ...] = (
    (
        Sign.OUT_OF_GPU_MEMORY,
        re.compile(
            r"CUDA out of memory|OutOfMemoryError: |CUDA error: out of memory"
            r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
            r"|RESOURCE_EXHAUSTED: Out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        ),
    ),
    (
        Sign.FAULT,
        re.compile(
            r"an illegal memory access was encountered|cudaErrorIllegalAddress"
            r"|CUDA_ERROR_ILLEGAL_ADDRESS|an illegal instruction was encountered"
            r"|misaligned address|unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED"
            r"|cudaErrorLaunchFailure|hardware stack error|CUDA_ERROR_(HARDWARE|ILLEGAL|MISALIGNED)"
        ),
    ),
    (
        Sign.NO_DEVICE,
        re.compile(
            r"No CUDA GPUs are available|no CUDA-capable device is detected"
            r"|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE"
            r"|CUDA error: unknown error|cudaErrorUnknown|CUDA_ERROR_UNKNOWN"
            r"|CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable"
            r"|CUDA_ERROR_DEVICE_UNAVAILABLE|[Gg]PU is lost|fallen off the bus"
        ),
    ),
    (Sign.ASSERT, re.compile(r"device-side assert triggered|cudaErrorAssert|CUDA_ERROR_ASSERT")),
    (
        Sign.MPS_GONE,
        re.compile(
            r"remote procedural call between the MPS server and the MPS client failed"
            r"|cudaErrorMpsRpcFailure|CUDA_ERROR_MPS_RPC_FAILURE"
            r"|MPS client failed to connect to the MPS control daemon or the MPS server"
            r"|cudaErrorMpsConnectionFailed|CUDA_ERROR_MPS_CONNECTION_FAILED"
            r"|MPS client has been terminated by the server"
            r"|cudaErrorMpsClientTerminated|CUDA_ERROR_MPS_CLIENT_TERMINATED"
        ),
    ),
    (
        Sign.MPS_REFUSED,
        re.compile(
            r"MPS server is not ready to accept new MPS client|cudaErrorMpsServerNotReady"
            r"|CUDA_ERROR_MPS_SERVER_NOT_READY"
        ),
    ),
    (
        Sign.MPS_FULL,
        re.compile(
            r"hardware resources required to (create MPS client|support device connections)"
            r"|cudaErrorMpsMax(Clients|Connections)Reached"
            r"|CUDA_ERROR_MPS_MAX_(CLIENTS|CONNECTIONS)_REACHED"
        ),
    ),
)

_LONGEST_LINE = 300

_HINT = "Search for `cuda"
"""How PyTorch 2.11 begins the line below an error that names where to read of it."""

_LAST_LINES = 200
"""A program ends soon after it has said why; torchrun's summary has some fifty lines. What stands
further up it has outlived, such as the last try of a search for the largest batch."""


def find_signs(output: str) -> tuple[OutputFinding, ...]:
    """The last line of each sign, in the order in which the signs first came up.

    Args:
        output: The end of what a member wrote.
    """
    found: dict[Sign, str] = {}
    for line in output.splitlines()[-_LAST_LINES:]:
        if line.startswith(_HINT):
            continue
        for sign, pattern in _SIGNS:
            if pattern.search(line):
                found[sign] = line.strip()[:_LONGEST_LINE]
    return tuple(OutputFinding(sign, line) for sign, line in found.items())


# ----
# What a member's end means where a GPU is shared: whose fault it was, and which run again; pure.

FAULT_RESTARTS_MAX = 2
"""How often a member runs again after faults that may have been another's."""


@dataclass(frozen=True)
class Circumstances:
    """What was the case on the GPU while a member ran.

    Attributes:
        suspects: Members that an MPS fault hit while this one was a client; empty for no fault.
        fault: What the MPS server said of it; empty where it said nothing.
        mps_lost: Why the MPS server went while this one was a client; empty where it did not.
        own_daemon: An MPS daemon of its own that began after the pack's was ended; empty for none.
        findings: What its output says.
        may_restart: It may be requeued.
        retries: What restarts before this one have taught.
        shared: It had less than the whole GPU's memory to itself.
        gpu_memory_mb: What its process had of the GPU's memory when it was seen last, or was held
            to; 0 where that is not known.
        limit_mb: What it was held to; None for no limit.
        stated_mb: What its user said that it needs; None for nothing.
        usable_mb: What members may take of the GPU together; None where unknown.
        is_forbidden: Its user does not let it be started again.
        gpu_lost: Which GPUs of the pack are gone; empty for none, and where no other GPU set of its
            Slurm job is there.
        needs_mps: Only clients of the MPS server can use the GPU: apart from it means alone.
    """

    suspects: tuple[int, ...] = ()
    fault: str = ""
    mps_lost: str = ""
    own_daemon: str = ""
    findings: tuple[OutputFinding, ...] = ()
    may_restart: bool = True
    retries: Retries = field(default_factory=Retries)
    shared: bool = False
    gpu_memory_mb: int = 0
    limit_mb: int | None = None
    stated_mb: int | None = None
    usable_mb: int | None = None
    is_forbidden: bool = False
    needs_mps: bool = False
    gpu_lost: str = ""

    def find(self, *signs: Sign) -> OutputFinding | None:
        """The first of these signs in its output."""
        return next((finding for finding in self.findings if finding.sign in signs), None)


@dataclass(frozen=True)
class Blame:
    """How a member's end is to be taken.

    Attributes:
        verdict: The verdict; PENDING where it runs again.
        cause: Its class; None where it has not ended.
        evidence: What that rests on, a line each.
        retries: What was learnt, for its next start.
        is_culprit: Its fault is proven to be its own.
        ended_daemon: It has put an MPS daemon of its own in the place of the pack's.
        suspects: Members that a fault hit together with it; empty for no fault.
    """

    verdict: Verdict
    cause: EndCause | None
    evidence: tuple[str, ...]
    retries: Retries
    is_culprit: bool = False
    ended_daemon: bool = False
    suspects: tuple[int, ...] = ()


def judge_blame(verdict: Verdict, around: Circumstances) -> Blame:
    """Judge an end of a member that shares a GPU.

    Args:
        verdict: How it ended by itself, with a state.
        around: What was the case.
    """
    blame = _judge(verdict, around)
    if not around.own_daemon:
        return blame
    retries = replace(blame.retries, apart=True, alone=True)
    evidence = (*blame.evidence, around.own_daemon)
    return replace(blame, evidence=evidence, retries=retries, ended_daemon=True)


def _judge(verdict: Verdict, around: Circumstances) -> Blame:
    evidence = tuple(f"its output: {finding.line}" for finding in around.findings)
    # After a signal it is its pack that may be ending, and the daemon with it.
    is_own_end = verdict.state is MemberState.COMPLETED and not verdict.foreign
    if is_own_end and (around.mps_lost or len(around.suspects) > 1):
        reason = "its exit code 0 does not count"
        verdict = replace(verdict, state=MemberState.FAILED, reason=reason)
    if verdict.state is not MemberState.FAILED:
        assert verdict.state is not None
        cause = choose_plain_cause(verdict.state, verdict.exit_code)
        return Blame(verdict, cause, (), around.retries)
    if around.gpu_lost or around.mps_lost:
        return _judge_lost(verdict, around, evidence)
    if around.suspects:
        return _judge_fault(verdict, around, evidence)
    if around.find(Sign.MPS_REFUSED, Sign.MPS_FULL):
        return _judge_refused(verdict, around, evidence)
    if around.find(Sign.OUT_OF_GPU_MEMORY) and not around.find(Sign.FAULT):
        return _judge_out_of_memory(verdict, around, evidence)
    if around.find(Sign.FAULT, Sign.ASSERT):
        if around.retries.suspected and around.find(Sign.FAULT):
            reason = "its fault on the GPU came again when it ran apart from its neighbours"
            return _end(verdict, around, EndCause.MPS_CULPRIT, evidence, reason, is_culprit=True)
        return _end(verdict, around, EndCause.CUDA_FAULT, evidence, verdict.reason)
    cause = choose_plain_cause(
        MemberState.FAILED,
        verdict.exit_code,
        started=not (verdict.never_started or verdict.without_script),
    )
    return Blame(verdict, cause, evidence, around.retries)


def _judge_lost(verdict: Verdict, around: Circumstances, evidence: tuple[str, ...]) -> Blame:
    """What it ran on has gone, and it is not known to be its fault."""
    if around.gpu_lost:
        evidence = (f"NVML: {around.gpu_lost}", *evidence)
        return _restart_or_fail(verdict, around, EndCause.GPU_LOST, evidence, around.gpu_lost)
    evidence = (f"MPS: {around.mps_lost}", *evidence)
    # Where that happens again it is no accident, and apart from MPS it cannot.
    apart, cause = around.retries.faults > 0, EndCause.MPS_GONE
    return _restart_or_fail(verdict, around, cause, evidence, around.mps_lost, apart=apart)


def _judge_refused(verdict: Verdict, around: Circumstances, evidence: tuple[str, ...]) -> Blame:
    if around.find(Sign.MPS_FULL):
        reason = "the MPS server had as many clients as it accepts"
        return _restart_or_fail(verdict, around, EndCause.MPS_FULL, evidence, reason, apart=True)
    reason = "the MPS server took no new client, as happens after another client's fault"
    return _restart_or_fail(verdict, around, EndCause.MPS_VICTIM, evidence, reason)


def _judge_fault(verdict: Verdict, around: Circumstances, evidence: tuple[str, ...]) -> Blame:
    cause = EndCause.MPS_SUSPECT
    if not around.fault:
        reason = "a fault on the GPU, about which the MPS server says nothing"
        return _restart_or_fail(verdict, around, cause, evidence, reason, apart=True)
    evidence = (f"MPS server: {around.fault}", *evidence)
    if len(around.suspects) == 1:
        reason = "its fault on the GPU, as the only client of the MPS server"
        return _end(verdict, around, EndCause.MPS_CULPRIT, evidence, reason, is_culprit=True)
    names = ", ".join(map(str, around.suspects))
    reason = f"a fault on the GPU hit members {names}, and MPS does not say whose it was"
    return _restart_or_fail(verdict, around, cause, evidence, reason, apart=True)


def _judge_out_of_memory(
    verdict: Verdict, around: Circumstances, evidence: tuple[str, ...]
) -> Blame:
    """It runs again without a limit, with more reserved for it, until it had the whole GPU.

    That is no failure of its own: in an allocation of its own it would have had the memory.
    """
    cause, retries = EndCause.CUDA_OUT_OF_MEMORY, around.retries
    had_all = retries.alone or (
        around.usable_mb is not None and retries.gpu_memory_mb >= around.usable_mb
    )
    if not around.shared or had_all:
        return _end(verdict, around, cause, evidence, "the GPU's memory was not enough for it")
    reason = "its neighbours left it too little of the GPU's memory"
    if around.limit_mb is not None:
        whose = "its --gpu-mem" if around.stated_mb else "csub's limit on its GPU memory"
        reason = f"{whose} ({around.limit_mb} MB) was too small for it"
    if around.is_forbidden:
        return _end(verdict, around, cause, evidence, f"{reason}, and it may not be requeued")
    wanted_mb = 2 * max(around.gpu_memory_mb, retries.gpu_memory_mb)
    is_all = around.usable_mb is None or not wanted_mb or wanted_mb >= around.usable_mb
    retries = replace(
        retries,
        out_of_gpu_memory=retries.out_of_gpu_memory + 1,
        gpu_memory_mb=(around.usable_mb or 0) if is_all else wanted_mb,
        alone=retries.alone or around.usable_mb is None,
    )
    how = "alone" if is_all else "without a limit"
    again = replace(verdict, state=MemberState.PENDING, reason=f"{reason}; it runs again {how}")
    return Blame(again, cause, evidence, retries)


def _restart_or_fail(
    verdict: Verdict,
    around: Circumstances,
    cause: EndCause,
    evidence: tuple[str, ...],
    reason: str,
    *,
    apart: bool = False,
) -> Blame:
    if not around.may_restart:
        return _end(verdict, around, cause, evidence, f"{reason}; it may not be requeued")
    if around.retries.faults >= FAULT_RESTARTS_MAX:
        text = f"{reason}; it was restarted {around.retries.faults} times before"
        return _end(verdict, around, cause, evidence, text)
    retries = replace(
        around.retries,
        faults=around.retries.faults + 1,
        apart=around.retries.apart or apart,
        suspected=around.retries.suspected or cause is EndCause.MPS_SUSPECT,
    )
    how = ""
    if apart:
        how = " apart from MPS"
        if around.needs_mps:
            how = " alone"
            retries = replace(retries, alone=True)
    text = f"{reason}; it runs again{how}"
    again = replace(verdict, state=MemberState.PENDING, reason=text)
    return Blame(again, cause, evidence, retries)


def _end(
    verdict: Verdict,
    around: Circumstances,
    cause: EndCause,
    evidence: tuple[str, ...],
    reason: str,
    *,
    is_culprit: bool = False,
) -> Blame:
    told = f"{verdict.reason}: {reason}" if reason != verdict.reason and verdict.reason else reason
    return Blame(replace(verdict, reason=told), cause, evidence, around.retries, is_culprit)


# ---- Whose fault an end was: gathers what the GPU, its MPS server and the output say of it -------

LISTENS_MAX = 3
"""How often the daemon is asked how a client left, where its process has ended with exit code 0."""

OUTPUT_LIMIT = 256 * 1024
"""How much of the end of a member's output is looked at."""


@dataclass(eq=False, kw_only=True)
class BlameFinder:
    """Finds out whose fault an end was, and tells those whom that concerns.

    Attributes:
        pack: The attempt of the pack.
        states: Writes their states.
        gpu_mode: Knows which members shared the GPU how.
        progress: Sees what a member's process takes of the GPU's memory.
    """

    pack: PackContext
    states: StateWriter
    gpu_mode: GpuMode
    progress: ProgressReader

    def __post_init__(self) -> None:
        self._suspected_with: dict[int, set[int]] = {}
        self._lost_daemon: set[int] = set()

    def listen(self, member: Member, verdict: Verdict) -> None:
        """Hear all that MPS has to say of a member whose end was seen before that; then `find`."""
        seen = self.gpu_mode.clients.get(member.number)
        if _has_failed(verdict):
            if member.gpu is not None and member.gpu.is_under_mps:
                self.gpu_mode.catch_up()
        elif seen is not None and not (seen.is_outside or (seen.is_client and not seen.contexts)):
            # It was quick: whether it was a client stands in the daemon's log.
            self.gpu_mode.catch_up()
            # Its processes have ended, and its exit code says nothing: the log has to say how.
            for _ in range(LISTENS_MAX - 1):
                if seen.contexts:
                    self.gpu_mode.catch_up()

    def find(self, member: Member, verdict: Verdict) -> Blame:
        """Judge an end; called before the member's process is forgotten."""
        seen = self.gpu_mode.clients.get(member.number)
        around = Circumstances(retries=member.record.retries)
        if seen is not None:
            around = replace(around, own_daemon=seen.own_daemon)
        if _has_failed(verdict) or (seen is not None and (seen.lost or seen.broken or seen.is_hit)):
            around = self._look_around(member, around, has_failed=_has_failed(verdict))
        return replace(judge_blame(verdict, around), suspects=around.suspects)

    def publish(self, member: Member, blame: Blame) -> None:
        """Write down what an end means for others: members that it hit, and later packs."""
        clients = self.gpu_mode.clients
        seen = clients.get(member.number)
        if seen is not None and member.gpu is not None and (seen.is_client or seen.is_outside):
            member.note_mps_client(is_client=seen.is_client)
        clients.forget(member.number)
        self.gpu_mode.refuse_lost()
        if blame.suspects:
            self._suspected_with.setdefault(member.number, set()).update(blame.suspects)
        if blame.cause is EndCause.MPS_GONE:
            self._lost_daemon.add(member.number)
        if blame.is_culprit or blame.ended_daemon:
            self._note_culprit(member, blame)
        elif blame.verdict.state is MemberState.COMPLETED and _ran_alone(member):
            self._clear(member)

    def _look_around(
        self, member: Member, around: Circumstances, *, has_failed: bool
    ) -> Circumstances:
        findings = find_signs(read_end_of_output(member))
        use = member.gpu
        gpu_lost = ""
        if len(self.pack.record.gpu_sets) > 1 and (findings or member.asked is StopReason.FAULT):
            gpu_lost = self.gpu_mode.find_lost()
        seen = None
        if use is not None and use.is_under_mps:
            seen = self.gpu_mode.clients.get(member.number)
        if seen is None:
            # Another's MPS, if any.
            findings = tuple(found for found in findings if found.sign not in MPS_SIGNS)
        job, limit_mb = member.spec.job, None
        if use is not None and (use.is_under_mps or use.inside):
            limit_mb = use.gpu_memory_limit_mb
        around = replace(
            around,
            findings=findings,
            may_restart=requeues_jobs(self.pack.config) if job.requeue is None else job.requeue,
            is_forbidden=job.requeue is False,
            gpu_memory_mb=round(max(self.progress.find_gpu_process_mb(member) or 0, limit_mb or 0)),
            limit_mb=limit_mb,
            stated_mb=job.gpu_memory_mb,
            usable_mb=compute_usable_gpu_memory_mb(self.gpu_mode.setup.gpu_memory_mb),
            # All of its instance's memory is its own, unless others share that.
            shared=len(self.pack.members.places) > 1
            and (use is None or use.mode != SharingMode.MIG.value or bool(use.inside)),
            needs_mps=self.gpu_mode.needs_mps,
            gpu_lost=gpu_lost,
        )
        if seen is None:
            return around
        return add_seen(around, member.number, seen, has_failed=has_failed)

    def _note_culprit(self, member: Member, blame: Blame) -> None:
        """A culprit is proven: write it down for later packs, and for the members that it hit."""
        name = str(member.name(self.pack.shown_id))
        event = "mps_culprit" if blame.is_culprit else "mps_ended_by"
        self.pack.journal.write(event, member=member.number, evidence=blame.evidence)
        with contextlib.suppress(StateError, OSError):
            note_culprit(
                self.pack.path.parent.parent,
                self._compute_signature(member),
                FaultRecord(name, blame.evidence, ended_daemon=blame.ended_daemon),
            )
        told = f"the fault was that of member {name}"
        # An earlier attempt may have seen the fault; this one knows only which were hit.
        hit = self._suspected_with.get(member.number)
        if not blame.is_culprit:
            told = f"since then, member {name} has an MPS daemon of its own"
            hit = self._lost_daemon
        for other in self.pack.members.by_number.values():
            was_hit = other.record.retries.suspected if hit is None else other.number in hit
            if other.number == member.number or not was_hit:
                continue
            cause = other.record.cause
            self.states.write(
                other,
                other.record.state,
                evidence=tuple(dict.fromkeys((*other.record.evidence, told))),
                cause=EndCause.MPS_VICTIM.value if cause == EndCause.MPS_SUSPECT else cause,
            )

    def _clear(self, member: Member) -> None:
        with contextlib.suppress(OSError):
            if forget_culprit(self.pack.path.parent.parent, self._compute_signature(member)):
                self.pack.journal.write("mps_cleared", member=member.number)

    def _compute_signature(self, member: Member) -> str:
        script = self.pack.path / "members" / format_number(member.number) / "script"
        return compute_signature(script.read_bytes(), member.spec.job)


def _has_failed(verdict: Verdict) -> bool:
    """It ended by a failure of which what the GPU and its output say may tell the cause."""
    return verdict.state is MemberState.FAILED and not verdict.never_started


def _ran_alone(member: Member) -> bool:
    """It had the GPU to itself. By time slices alongside others is not alone."""
    return member.gpu is not None and member.gpu.mode == SharingMode.EXCLUSIVE.value


def add_seen(
    around: Circumstances, number: int, seen: MpsMember, *, has_failed: bool = True
) -> Circumstances:
    """What the MPS server has to do with the end of a member that ran under MPS.

    Args:
        around: What else was the case.
        number: The member.
        seen: The member as the server sees it.
        has_failed: Its exit code says so; of any other the server, too, has to say that.
    """
    tells = {found.sign for found in around.findings}
    if seen.broken:
        return replace(around, mps_lost=seen.broken)
    if Sign.MPS_GONE in tells and (has_failed or seen.lost):
        return replace(around, mps_lost=seen.lost or "the MPS server has ended")
    if not has_failed:
        return replace(around, suspects=seen.suspects, fault=seen.fault) if seen.is_hit else around
    if seen.lost and seen.is_client:
        return replace(around, mps_lost=seen.lost)
    # One that is not known to be a client may have been too quick to be seen as one.
    if seen.suspects and (seen.is_client or Sign.FAULT in tells):
        return replace(around, suspects=seen.suspects, fault=seen.fault)
    if seen.is_client and Sign.FAULT in tells:
        # No other is known to be hit, and that proves nothing without the server's word.
        return replace(around, suspects=(number,))
    return around


def read_end_of_output(member: Member) -> str:
    """The end of what a member has written since its last start; empty where it cannot be read."""
    texts = []
    for path, start in member.outputs:
        with contextlib.suppress(OSError):
            # A pipe or a device would be waited for, or read what is not there.
            if not stat.S_ISREG(os.stat(path).st_mode):
                continue
            with open(path, "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(min(start, end), end - OUTPUT_LIMIT))
                texts.append(file.read(OUTPUT_LIMIT).decode("utf-8", "replace"))
    return "\n".join(texts)
