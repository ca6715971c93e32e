"""What a member's end means where a GPU is shared: whose fault it was, and which run again; pure.

A fault of one MPS client ends all clients of the GPU, and neither the server's log nor the
kernel's Xid line says whose it was: on an H200 with driver 580 both named an innocent client in
every run (docs/mps.md). So all that were hit run again apart from MPS, where a fault stays with
its process. The one that has it again is the culprit.
"""

from __future__ import annotations

import dataclasses

from slurm_colloc.model.end_causes import EndCause, choose_plain_cause
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.outcome.output_evidence import OutputFinding, Sign
from slurm_colloc.runtime.outcome.verdict import Verdict
from slurm_colloc.store.pack.member_states import Retries

FAULT_RESTARTS_MAX = 2
"""How often a member runs again after faults that may have been another's."""


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """What was the case on the GPU while a member ran.

    Attributes:
        suspects: Members that an MPS fault hit while this one was a client; empty for no fault.
        fault: What the MPS server said of it; empty where it said nothing.
        mps_lost: Why the MPS server went while this one was a client; empty where it did not.
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
    findings: tuple[OutputFinding, ...] = ()
    may_restart: bool = True
    retries: Retries = dataclasses.field(default_factory=Retries)
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


@dataclasses.dataclass(frozen=True)
class Blame:
    """How a member's end is to be taken.

    Attributes:
        verdict: The verdict; PENDING where it runs again.
        cause: Its class; None where it has not ended.
        evidence: What that rests on, a line each.
        retries: What was learnt, for its next start.
        is_culprit: Its fault is proven to be its own.
    """

    verdict: Verdict
    cause: EndCause | None
    evidence: tuple[str, ...]
    retries: Retries
    is_culprit: bool = False


def judge_blame(verdict: Verdict, around: Circumstances) -> Blame:
    """Judge an end of a member that shares a GPU.

    Args:
        verdict: How it ended by itself, with a state.
        around: What was the case.
    """
    evidence = tuple(f"its output: {finding.line}" for finding in around.findings)
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
    return _restart_or_fail(verdict, around, EndCause.MPS_GONE, evidence, around.mps_lost)


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
    retries = dataclasses.replace(
        retries,
        out_of_gpu_memory=retries.out_of_gpu_memory + 1,
        gpu_memory_mb=(around.usable_mb or 0) if is_all else wanted_mb,
        alone=retries.alone or around.usable_mb is None,
    )
    how = "alone" if is_all else "without a limit"
    again = dataclasses.replace(
        verdict, state=MemberState.PENDING, reason=f"{reason}; it runs again {how}"
    )
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
    retries = dataclasses.replace(
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
            retries = dataclasses.replace(retries, alone=True)
    text = f"{reason}; it runs again{how}"
    again = dataclasses.replace(verdict, state=MemberState.PENDING, reason=text)
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
    return Blame(
        dataclasses.replace(verdict, reason=told), cause, evidence, around.retries, is_culprit
    )
