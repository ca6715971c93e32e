from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slurm_colloc
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import (
    FINAL_STATES,
    TRANSITIONS,
    ExitCode,
    MemberId,
    MemberState,
    Selection,
    SlurmJobState,
    effective_state,
)

M, S = MemberState, SlurmJobState

ALIVE = (S.RUNNING, S.SUSPENDED, S.COMPLETING)
ENDED_WITH_THE_JOB: dict[SlurmJobState | None, MemberState] = {
    S.CANCELLED: M.CANCELLED,
    S.TIMEOUT: M.TIMEOUT,
    S.OUT_OF_MEMORY: M.OUT_OF_MEMORY,
    S.PREEMPTED: M.PREEMPTED,
    S.NODE_FAIL: M.NODE_FAIL,
    S.COMPLETED: M.LOST,
    S.FAILED: M.LOST,
    S.ABSENT: M.LOST,
}


def test_every_state_of_slurm_is_in_exactly_one_row_of_these_tables() -> None:
    assert {*ALIVE, *ENDED_WITH_THE_JOB, S.PENDING} == set(SlurmJobState)
    assert len(ALIVE) + len(ENDED_WITH_THE_JOB) + 1 == len(SlurmJobState)


@pytest.mark.parametrize(
    ("slurm", "cancelled"), list(itertools.product([None, *SlurmJobState], [False, True]))
)
@pytest.mark.parametrize("recorded", sorted(FINAL_STATES))
def test_a_final_record_is_the_last_word(
    recorded: MemberState, slurm: SlurmJobState | None, cancelled: bool
) -> None:
    assert effective_state(recorded, slurm, cancelled=cancelled) is recorded


@pytest.mark.parametrize("slurm", [None, *SlurmJobState])
@pytest.mark.parametrize("recorded", [M.PENDING, M.RUNNING])
def test_the_state_of_a_member_that_has_not_ended(
    recorded: MemberState, slurm: SlurmJobState | None
) -> None:
    if slurm is None or slurm in ALIVE:
        expected = recorded
    elif slurm is S.PENDING:
        expected = M.PENDING
    else:
        expected = ENDED_WITH_THE_JOB[slurm]
    assert effective_state(recorded, slurm) is expected
    assert effective_state(recorded, slurm, cancelled=True) is M.CANCELLED


def test_nobody_else_says_lost() -> None:
    package = Path(slurm_colloc.__file__).parent
    saying = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"(return|state=|write).*(?<!GPU_)LOST", path.read_text())
    }
    assert saying == {"model/member.py"}
    assert not any(MemberState.LOST in targets for targets in TRANSITIONS.values())


def test_the_transition_table_covers_every_state_and_ends_in_the_final_ones() -> None:
    assert set(TRANSITIONS) == set(MemberState)
    assert {state for state, targets in TRANSITIONS.items() if not targets} == FINAL_STATES
    assert set(MemberState) - FINAL_STATES == {M.PENDING, M.RUNNING}


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        (M.PENDING, M.RUNNING, True),
        (M.PENDING, M.CANCELLED, True),
        (M.PENDING, M.FAILED, True),
        (M.PENDING, M.COMPLETED, False),
        (M.PENDING, M.LOST, False),
        (M.RUNNING, M.PENDING, True),
        (M.RUNNING, M.COMPLETED, True),
        (M.RUNNING, M.OUT_OF_MEMORY, True),
        (M.RUNNING, M.LOST, False),
        (M.COMPLETED, M.RUNNING, False),
        (M.CANCELLED, M.PENDING, False),
    ],
)
def test_transitions(before: MemberState, after: MemberState, allowed: bool) -> None:
    assert (after in TRANSITIONS[before]) is allowed


# squeue(1), JOB STATE CODES, 22.05 to 26.05; sacct(1) writes "CANCELLED by UID".
@pytest.mark.parametrize(
    ("text", "state"),
    [
        *((state.value, state) for state in SlurmJobState),
        ("", S.ABSENT),
        ("  ", S.ABSENT),
        ("CONFIGURING", S.PENDING),
        ("REQUEUED", S.PENDING),
        ("REQUEUE_HOLD", S.PENDING),
        ("REQUEUE_FED", S.PENDING),
        ("SPECIAL_EXIT", S.PENDING),
        ("RESV_DEL_HOLD", S.PENDING),
        ("RESIZING", S.RUNNING),
        ("SIGNALING", S.RUNNING),
        ("STAGE_OUT", S.COMPLETING),
        ("STOPPED", S.SUSPENDED),
        ("DEADLINE", S.TIMEOUT),
        ("REVOKED", S.CANCELLED),
        ("BOOT_FAIL", S.NODE_FAIL),
        ("LAUNCH_FAILED", S.FAILED),
        ("CANCELLED by 1000", S.CANCELLED),
        ("CANCELLED+", S.CANCELLED),
        ("COMPLETED\n", S.COMPLETED),
        ("SOMETHING_OF_A_LATER_RELEASE", S.FAILED),
    ],
)
def test_slurms_state_words(text: str, state: SlurmJobState) -> None:
    assert SlurmJobState.parse(text) is state


@given(code=st.integers(0, 255), number=st.integers(0, 64))
def test_exit_codes_survive_their_text(code: int, number: int) -> None:
    assert ExitCode.parse(str(ExitCode(code, number))) == ExitCode(code, number)


@pytest.mark.parametrize(
    ("command", "code", "shell"),
    [("exit 0", (0, 0), 0), ("exit 3", (3, 0), 3), ("kill -9 $$", (0, 9), 137)],
)
def test_an_exit_code_is_what_wait_says(command: str, code: tuple[int, int], shell: int) -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", command], {})
    found = ExitCode.from_wait_status(os.waitpid(pid, 0)[1])
    assert (found.code, found.signal, found.shell_status) == (*code, shell)


def test_a_core_dump_is_no_other_signal() -> None:
    assert ExitCode.from_wait_status(signal.SIGSEGV | 0x80) == ExitCode(0, signal.SIGSEGV)


@pytest.mark.parametrize("text", ["", "a:0", "1:b", ":"])
def test_no_exit_code(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        ExitCode.parse(text)


@given(job=st.integers(1, 2**32), number=st.integers(0, 4_000_000), local=st.booleans())
def test_names_survive_their_text(job: int, number: int, local: bool) -> None:
    member = MemberId(f"{'L' if local else ''}{job}", number)
    assert MemberId.parse(str(member)) == member
    assert Selection.parse(str(member)) == Selection.of(member.job, [number])
    assert str(Selection.parse(str(member))) == str(member)
    assert Selection.parse(member.job) == Selection(member.job)
    assert str(Selection.parse(member.job)) == member.job


@pytest.mark.parametrize("text", ["", "4711:3", "4711/", "/3", "4711/3/1", "x", "4711_", "4711 "])
def test_what_is_no_name_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageProblem, match="write 4711 for all members of a submission"):
        Selection.parse(text)
    with pytest.raises(UsageProblem, match="a member is written 4711/3"):
        MemberId.parse(text)
