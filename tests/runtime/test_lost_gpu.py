"""A GPU that NVML does not show any more, and what follows for a member that failed on it."""

from __future__ import annotations

from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer
from slurm_colloc.model.member import EndCause, ExitCode, MemberState
from slurm_colloc.runtime.blame import FAULT_RESTARTS_MAX, Circumstances, judge_blame
from slurm_colloc.runtime.lost_gpu import ASK_AGAIN_S, LostGpu, find_lost
from slurm_colloc.runtime.verdict import Verdict
from slurm_colloc.store.member_states import Retries

THERE, GONE = (f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in (0, 1))
ANSWER = NvmlAnswer(gpus=(Gpu(0, THERE), Gpu(1)))
SILENT = NvmlAnswer(problem="NVML gave no answer within 15 s")


def test_only_what_nvml_shows_no_more_is_lost() -> None:
    assert find_lost(ANSWER, [THERE]) == ""
    assert find_lost(ANSWER, [THERE, GONE]) == f"{GONE} is lost"
    # Silence says nothing, and a GPU that has no UUID here was never found by one.
    assert find_lost(SILENT, [THERE, GONE]) == ""
    assert find_lost(ANSWER, ["3"]) == ""


def test_it_is_asked_once_for_members_that_fail_together_and_again_where_it_was_silent() -> None:
    answers = [SILENT, NvmlAnswer(gpus=(Gpu(0, THERE), Gpu(1, GONE))), ANSWER]
    now = 0.0
    lost = LostGpu(lambda _: answers.pop(0), lambda: now)
    assert lost.look([GONE]) == ""
    assert lost.look([GONE]) == ""
    assert len(answers) == 1
    assert lost.look([GONE]) == ""
    assert len(answers) == 1
    now += ASK_AGAIN_S
    assert lost.look([GONE]) == lost.problem == f"{GONE} is lost"
    # It does not come back while the pack runs.
    now += ASK_AGAIN_S
    assert lost.look([GONE]) == f"{GONE} is lost"


FAILED = Verdict(MemberState.FAILED, ExitCode(1, 0), "exit code 1")


def test_who_ran_on_it_runs_again_as_often_as_after_other_faults() -> None:
    around = Circumstances(gpu_lost=f"{GONE} is lost", mps_lost="the MPS server has ended")
    blame = judge_blame(FAILED, around)
    assert blame.verdict.state is MemberState.PENDING
    assert blame.verdict.reason == f"{GONE} is lost; it runs again"
    assert (blame.cause, blame.retries.faults) == (EndCause.GPU_LOST, 1)
    # Under MPS as before: it was no fault of a neighbour's.
    assert not blame.retries.apart
    often = Circumstances(gpu_lost="x", retries=Retries(faults=FAULT_RESTARTS_MAX))
    assert judge_blame(FAILED, often).verdict.state is MemberState.FAILED


def test_who_may_not_be_requeued_fails() -> None:
    blame = judge_blame(FAILED, Circumstances(gpu_lost=f"{GONE} is lost", may_restart=False))
    assert blame.verdict.state is MemberState.FAILED
    assert blame.cause is EndCause.GPU_LOST
    assert "it may not be requeued" in blame.verdict.reason
