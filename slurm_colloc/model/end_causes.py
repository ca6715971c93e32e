"""Why a member ended, finer than Slurm's states."""

from __future__ import annotations

import enum

from slurm_colloc.model.member import ExitCode, MemberState

RESUBMISSIONS = 3
"""How often a member that never started is submitted again."""


class EndCause(enum.StrEnum):
    """The class of an end; `csub explain` says what each means."""

    SUCCESS = "success"
    EXIT_CODE = "exit code"
    SIGNAL = "signal"
    TIME_LIMIT = "time limit"
    CUDA_OUT_OF_MEMORY = "CUDA out of memory"
    HOST_OUT_OF_MEMORY = "host out of memory"
    CUDA_FAULT = "CUDA fault"
    MPS_CULPRIT = "MPS fault: culprit"
    MPS_VICTIM = "MPS fault: victim"
    MPS_SUSPECT = "MPS fault: culprit or victim"
    MPS_GONE = "MPS daemon gone"
    MPS_FULL = "too many MPS clients"
    NOT_STARTED = "not started"
    GPU_LOST = "GPU lost"
    NODE_FAILURE = "node failure"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"


_BY_STATE = {
    MemberState.COMPLETED: EndCause.SUCCESS,
    MemberState.TIMEOUT: EndCause.TIME_LIMIT,
    MemberState.OUT_OF_MEMORY: EndCause.HOST_OUT_OF_MEMORY,
    MemberState.CANCELLED: EndCause.CANCELLED,
    MemberState.PREEMPTED: EndCause.PREEMPTED,
    MemberState.NODE_FAIL: EndCause.NODE_FAILURE,
    MemberState.LOST: EndCause.LOST,
}


def choose_plain_cause(
    state: MemberState, code: ExitCode | None, *, started: bool = True
) -> EndCause | None:
    """The class that a state and an exit code alone tell; None where the member has not ended.

    Args:
        state: The state that readers show.
        code: How the script ended, None where that was not seen.
        started: It had come up.
    """
    if state is MemberState.FAILED:
        if not started:
            return EndCause.NOT_STARTED
        return EndCause.SIGNAL if code is not None and code.signal else EndCause.EXIT_CODE
    return _BY_STATE.get(state)
