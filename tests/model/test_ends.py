"""Why a member ended, from its state and exit code alone."""

from __future__ import annotations

import pytest

from slurm_colloc.model.member import (
    FINAL_STATES,
    EndCause,
    ExitCode,
    MemberState,
    choose_plain_cause,
)


@pytest.mark.parametrize(
    ("state", "code", "started", "cause"),
    [
        (MemberState.COMPLETED, ExitCode(), True, EndCause.SUCCESS),
        (MemberState.FAILED, ExitCode(3), True, EndCause.EXIT_CODE),
        (MemberState.FAILED, ExitCode(0, 11), True, EndCause.SIGNAL),
        (MemberState.FAILED, None, False, EndCause.NOT_STARTED),
        (MemberState.FAILED, None, True, EndCause.EXIT_CODE),
        (MemberState.TIMEOUT, ExitCode(0, 15), True, EndCause.TIME_LIMIT),
        (MemberState.OUT_OF_MEMORY, ExitCode(0, 9), True, EndCause.HOST_OUT_OF_MEMORY),
        (MemberState.CANCELLED, ExitCode(0, 15), False, EndCause.CANCELLED),
        (MemberState.PREEMPTED, None, True, EndCause.PREEMPTED),
        (MemberState.NODE_FAIL, None, True, EndCause.NODE_FAILURE),
        (MemberState.LOST, None, True, EndCause.LOST),
        (MemberState.PENDING, None, False, None),
        (MemberState.RUNNING, None, True, None),
        # It goes on elsewhere.
        (MemberState.REQUEUED, None, False, None),
    ],
)
def test_the_class_that_state_and_exit_code_tell(
    state: MemberState, code: ExitCode | None, started: bool, cause: EndCause | None
) -> None:
    assert choose_plain_cause(state, code, started=started) is cause


@pytest.mark.parametrize("state", MemberState)
def test_every_end_has_a_class(state: MemberState) -> None:
    cause = choose_plain_cause(state, ExitCode(1))
    assert (cause is not None) is (state in FINAL_STATES - {MemberState.REQUEUED})


def test_no_two_classes_differ_by_letters_only() -> None:
    names = [cause.value.lower() for cause in EndCause]
    assert len(set(names)) == len(names)
    assert all(name == name.strip() != "" for name in names)
