"""What the end of a member that shares a GPU means: every row of the table of causes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.member import EndCause, ExitCode, MemberState
from slurm_colloc.runtime.blame import (
    FAULT_RESTARTS_MAX,
    Blame,
    Circumstances,
    OutputFinding,
    Sign,
    judge_blame,
)
from slurm_colloc.runtime.verdict import Verdict
from slurm_colloc.store.member_states import Retries

FAILED = Verdict(MemberState.FAILED, ExitCode(1), "exit code 1")
KILLED = Verdict(MemberState.FAILED, ExitCode(0, 9), "ended by signal 9")
SERVER = "Client {PID: 7, Context: 1} encountered a fatal GPU error."


def signs(*found: Sign) -> tuple[OutputFinding, ...]:
    return tuple(OutputFinding(sign, sign.value) for sign in found)


def is_again(blame: Blame) -> bool:
    return blame.verdict.state is MemberState.PENDING


@pytest.mark.parametrize(
    ("verdict", "cause"),
    [
        # After a TERM it is its pack that may be ending.
        (Verdict(MemberState.COMPLETED, ExitCode(), foreign=True), EndCause.SUCCESS),
        (Verdict(MemberState.TIMEOUT, ExitCode(0, 15)), EndCause.TIME_LIMIT),
        (Verdict(MemberState.CANCELLED, ExitCode(0, 15)), EndCause.CANCELLED),
        (Verdict(MemberState.OUT_OF_MEMORY, ExitCode(0, 9)), EndCause.HOST_OUT_OF_MEMORY),
        (Verdict(MemberState.PENDING, ExitCode(0, 15), "requeued"), None),
    ],
)
def test_an_end_that_is_no_failure_stays_what_it_is_whatever_went_on_around(
    verdict: Verdict, cause: EndCause | None
) -> None:
    around = Circumstances(suspects=(1, 2), fault=SERVER, findings=signs(*Sign), mps_lost="gone")
    assert judge_blame(verdict, around) == Blame(verdict, cause, (), Retries())


# Without anybody else involved: findings, verdict, cause, words of the reason.
PLAIN: list[tuple[tuple[Sign, ...], Verdict, EndCause, str]] = [
    ((), FAILED, EndCause.EXIT_CODE, "exit code 1"),
    ((), KILLED, EndCause.SIGNAL, "ended by signal 9"),
    (
        (),
        Verdict(MemberState.FAILED, None, "it could not be started", never_started=True),
        EndCause.NOT_STARTED,
        "it could not be started",
    ),
    ((Sign.ASSERT,), FAILED, EndCause.CUDA_FAULT, "exit code 1"),
    ((Sign.FAULT,), FAILED, EndCause.CUDA_FAULT, "exit code 1"),
    (
        (Sign.OUT_OF_GPU_MEMORY,),
        FAILED,
        EndCause.CUDA_OUT_OF_MEMORY,
        "exit code 1: the GPU's memory was not enough for it",
    ),
    # A dead context gives all kinds of errors afterwards.
    ((Sign.OUT_OF_GPU_MEMORY, Sign.FAULT), FAILED, EndCause.CUDA_FAULT, "exit code 1"),
]


@pytest.mark.parametrize(("found", "verdict", "cause", "reason"), PLAIN)
def test_a_failure_that_is_nobody_else_s_matter(
    found: tuple[Sign, ...], verdict: Verdict, cause: EndCause, reason: str
) -> None:
    blame = judge_blame(verdict, Circumstances(findings=signs(*found)))
    assert blame.verdict.state is MemberState.FAILED
    assert blame.verdict.reason == reason
    assert (blame.cause, blame.is_culprit) == (cause, False)
    assert blame.retries == Retries()
    assert blame.evidence == tuple(f"its output: {sign.value}" for sign in found)


SMALL = Circumstances(findings=signs(Sign.OUT_OF_GPU_MEMORY), shared=True, usable_mb=76_000)
HIT = Circumstances(suspects=(1, 2, 3), fault=SERVER, findings=signs(Sign.FAULT))

# What was the case, then cause, how it goes on, and what was learnt. None: it ends.
SHARED: list[tuple[Circumstances, EndCause, str, Retries | None]] = [
    (
        HIT,
        EndCause.MPS_SUSPECT,
        (
            "a fault on the GPU hit members 1, 2, 3, and MPS does not say whose it was; "
            "it runs again apart from MPS"
        ),
        Retries(faults=1, apart=True, suspected=True),
    ),
    # Except for the MPS server no process has the GPU: apart is alone.
    (
        dataclasses.replace(HIT, needs_mps=True),
        EndCause.MPS_SUSPECT,
        (
            "a fault on the GPU hit members 1, 2, 3, and MPS does not say whose it was; "
            "it runs again alone"
        ),
        Retries(faults=1, apart=True, suspected=True, alone=True),
    ),
    (
        dataclasses.replace(HIT, may_restart=False),
        EndCause.MPS_SUSPECT,
        (
            "exit code 1: a fault on the GPU hit members 1, 2, 3, and MPS does not say whose it "
            "was; it may not be requeued"
        ),
        None,
    ),
    (
        dataclasses.replace(HIT, retries=Retries(faults=2)),
        EndCause.MPS_SUSPECT,
        (
            "exit code 1: a fault on the GPU hit members 1, 2, 3, and MPS does not say whose it "
            "was; it was restarted 2 times before"
        ),
        None,
    ),
    # Nobody heard the server: that proves nothing.
    (
        Circumstances(suspects=(2,), findings=signs(Sign.FAULT)),
        EndCause.MPS_SUSPECT,
        "a fault on the GPU, about which the MPS server says nothing; it runs again apart from MPS",
        Retries(faults=1, apart=True, suspected=True),
    ),
    (
        Circumstances(mps_lost="the MPS daemon has died", findings=signs(Sign.MPS_GONE)),
        EndCause.MPS_GONE,
        "the MPS daemon has died; it runs again",
        Retries(faults=1),
    ),
    # The contexts died with the server: a fault of before is no matter any more.
    (
        dataclasses.replace(HIT, mps_lost="the MPS server has ended"),
        EndCause.MPS_GONE,
        "the MPS server has ended; it runs again",
        Retries(faults=1),
    ),
    (
        Circumstances(mps_lost="the MPS daemon has died", retries=Retries(faults=2)),
        EndCause.MPS_GONE,
        "exit code 1: the MPS daemon has died; it was restarted 2 times before",
        None,
    ),
    # The second time it is no accident: apart from MPS no daemon can be ended below it.
    (
        Circumstances(mps_lost="the MPS daemon has died", retries=Retries(faults=1)),
        EndCause.MPS_GONE,
        "the MPS daemon has died; it runs again apart from MPS",
        Retries(faults=2, apart=True),
    ),
    (
        Circumstances(findings=signs(Sign.MPS_REFUSED)),
        EndCause.MPS_VICTIM,
        "the MPS server took no new client, as happens after another client's fault; it runs again",
        Retries(faults=1),
    ),
    (
        Circumstances(findings=signs(Sign.MPS_FULL)),
        EndCause.MPS_FULL,
        "the MPS server had as many clients as it accepts; it runs again apart from MPS",
        Retries(faults=1, apart=True),
    ),
    (
        dataclasses.replace(SMALL, limit_mb=600, gpu_memory_mb=600),
        EndCause.CUDA_OUT_OF_MEMORY,
        (
            "csub's limit on its GPU memory (600 MB) was too small for it; it runs again without a "
            "limit"
        ),
        Retries(gpu_memory_mb=1200, out_of_gpu_memory=1),
    ),
    (
        dataclasses.replace(SMALL, limit_mb=600, gpu_memory_mb=600, stated_mb=600),
        EndCause.CUDA_OUT_OF_MEMORY,
        "its --gpu-mem (600 MB) was too small for it; it runs again without a limit",
        Retries(gpu_memory_mb=1200, out_of_gpu_memory=1),
    ),
    # Without one it had what its neighbours left.
    (
        dataclasses.replace(
            SMALL, gpu_memory_mb=5000, retries=Retries(gpu_memory_mb=1200, out_of_gpu_memory=1)
        ),
        EndCause.CUDA_OUT_OF_MEMORY,
        "its neighbours left it too little of the GPU's memory; it runs again without a limit",
        Retries(gpu_memory_mb=10_000, out_of_gpu_memory=2),
    ),
    (
        dataclasses.replace(SMALL, gpu_memory_mb=50_000),
        EndCause.CUDA_OUT_OF_MEMORY,
        "its neighbours left it too little of the GPU's memory; it runs again alone",
        Retries(gpu_memory_mb=76_000, out_of_gpu_memory=1),
    ),
    (
        dataclasses.replace(SMALL, retries=Retries(gpu_memory_mb=76_000)),
        EndCause.CUDA_OUT_OF_MEMORY,
        "exit code 1: the GPU's memory was not enough for it",
        None,
    ),
    # That the site requeues no jobs is no reason to fail by a limit of ours; its user's word is.
    (
        dataclasses.replace(SMALL, limit_mb=600, gpu_memory_mb=600, may_restart=False),
        EndCause.CUDA_OUT_OF_MEMORY,
        (
            "csub's limit on its GPU memory (600 MB) was too small for it; it runs again without a "
            "limit"
        ),
        Retries(gpu_memory_mb=1200, out_of_gpu_memory=1),
    ),
    (
        dataclasses.replace(SMALL, limit_mb=600, may_restart=False, is_forbidden=True),
        EndCause.CUDA_OUT_OF_MEMORY,
        (
            "exit code 1: csub's limit on its GPU memory (600 MB) was too small for it, and it may "
            "not be requeued"
        ),
        None,
    ),
]


@pytest.mark.parametrize(("around", "cause", "reason", "learnt"), SHARED)
def test_a_failure_in_which_others_may_have_a_part(
    around: Circumstances, cause: EndCause, reason: str, learnt: Retries | None
) -> None:
    blame = judge_blame(FAILED, around)
    assert blame.verdict.reason == reason
    assert (blame.cause, blame.is_culprit) == (cause, False)
    assert is_again(blame) is (learnt is not None)
    assert blame.retries == (around.retries if learnt is None else learnt)
    # What the output says is always kept, behind what the server says.
    lines = tuple(f"its output: {finding.line}" for finding in around.findings)
    assert blame.evidence[len(blame.evidence) - len(lines) :] == lines


DONE = Verdict(MemberState.COMPLETED, ExitCode())
LOST = Circumstances(mps_lost="the MPS daemon has died")


@pytest.mark.parametrize(
    ("around", "cause", "restart", "reason"),
    [
        (LOST, EndCause.MPS_GONE, "; it runs again", "the MPS daemon has died"),
        (
            HIT,
            EndCause.MPS_SUSPECT,
            "; it runs again apart from MPS",
            "a fault on the GPU hit members 1, 2, 3, and MPS does not say whose it was",
        ),
    ],
)
def test_an_exit_code_of_0_does_not_hide_what_has_hit_a_member(
    around: Circumstances, cause: EndCause, restart: str, reason: str
) -> None:
    blame = judge_blame(DONE, around)
    assert (blame.verdict.reason, blame.cause) == (reason + restart, cause)
    assert is_again(blame)
    assert blame.retries.faults == 1
    blame = judge_blame(DONE, dataclasses.replace(around, may_restart=False))
    assert blame.verdict == dataclasses.replace(
        DONE,
        state=MemberState.FAILED,
        reason=f"its exit code 0 does not count: {reason}; it may not be requeued",
    )
    assert (blame.cause, blame.retries) == (cause, Retries())


def test_a_fault_of_its_own_that_its_script_hides_is_as_sbatch_has_it() -> None:
    around = Circumstances(suspects=(1,), fault=SERVER, findings=signs(Sign.FAULT))
    assert judge_blame(DONE, around) == Blame(DONE, EndCause.SUCCESS, (), Retries())


@pytest.mark.parametrize("verdict", [DONE, FAILED])
def test_one_with_a_daemon_in_the_place_of_its_neighbours_runs_alone_from_then_on(
    verdict: Verdict,
) -> None:
    blame = judge_blame(verdict, Circumstances(own_daemon="it started one (process 7)"))
    assert blame.verdict == verdict
    assert (blame.ended_daemon, blame.is_culprit) == (True, False)
    assert blame.evidence == ("it started one (process 7)",)
    assert blame.retries == Retries(apart=True, alone=True)


# The two proofs.
CULPRITS = [
    (
        Circumstances(suspects=(2,), fault=SERVER, findings=signs(Sign.FAULT)),
        "exit code 1: its fault on the GPU, as the only client of the MPS server",
        f"MPS server: {SERVER}",
    ),
    (
        Circumstances(
            findings=signs(Sign.FAULT), retries=Retries(faults=1, apart=True, suspected=True)
        ),
        "exit code 1: its fault on the GPU came again when it ran apart from its neighbours",
        "its output: fatal fault on the GPU",
    ),
]


@pytest.mark.parametrize("may_restart", [True, False])
@pytest.mark.parametrize(("around", "reason", "evidence"), CULPRITS)
def test_a_culprit_is_proven_and_does_not_run_again(
    around: Circumstances, reason: str, evidence: str, may_restart: bool
) -> None:
    blame = judge_blame(FAILED, dataclasses.replace(around, may_restart=may_restart))
    assert blame.is_culprit
    assert blame.cause is EndCause.MPS_CULPRIT
    assert blame.verdict == dataclasses.replace(FAILED, reason=reason)
    assert blame.evidence[0] == evidence


@pytest.mark.parametrize(
    "around",
    [
        # Apart for another reason: nobody has suspected it before.
        Circumstances(findings=signs(Sign.FAULT), retries=Retries(faults=1, apart=True)),
        # An assert stays with its process: it may have been a victim all the same.
        Circumstances(findings=signs(Sign.ASSERT), retries=Retries(faults=1, suspected=True)),
        Circumstances(findings=signs(), retries=Retries(faults=1, apart=True, suspected=True)),
    ],
)
def test_without_proof_nobody_is_the_culprit(around: Circumstances) -> None:
    assert not judge_blame(FAILED, around).is_culprit


CIRCUMSTANCES = st.builds(
    Circumstances,
    suspects=st.sampled_from([(), (1,), (1, 2)]),
    fault=st.sampled_from(["", SERVER]),
    mps_lost=st.sampled_from(["", "the MPS daemon has died"]),
    findings=st.lists(st.sampled_from(Sign), max_size=3, unique=True).map(lambda s: signs(*s)),
    may_restart=st.booleans(),
    is_forbidden=st.booleans(),
    gpu_memory_mb=st.integers(0, 90_000),
    limit_mb=st.none() | st.integers(256, 90_000),
    usable_mb=st.none() | st.integers(1000, 80_000),
    shared=st.booleans(),
    needs_mps=st.booleans(),
)


@given(around=CIRCUMSTANCES, verdict=st.sampled_from([FAILED, DONE]))
def test_no_member_runs_again_for_ever_or_where_it_must_not(
    around: Circumstances, verdict: Verdict
) -> None:
    """However often it fails in the same way, and whatever it has learnt from it."""
    restarts = 0
    while True:
        blame = judge_blame(verdict, around)
        learnt = blame.retries
        assert learnt.faults <= FAULT_RESTARTS_MAX
        assert learnt.gpu_memory_mb <= (around.usable_mb or 0)
        if not is_again(blame):
            break
        assert around.may_restart or blame.cause is EndCause.CUDA_OUT_OF_MEMORY
        assert not (around.is_forbidden and blame.cause is EndCause.CUDA_OUT_OF_MEMORY)
        restarts += 1
        assert restarts <= FAULT_RESTARTS_MAX + 18
        around = dataclasses.replace(around, retries=learnt)
    is_done = verdict is DONE and not (around.mps_lost or len(around.suspects) > 1)
    assert blame.verdict.state is (MemberState.COMPLETED if is_done else MemberState.FAILED)
    assert blame.cause is not None
