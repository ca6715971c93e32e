"""What the tiny job tells is judged by what it means for packs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slurm_colloc.diagnosis.login_findings import (
    NO_PYTHON,
    NO_STATE,
    NO_WRITING,
    DoctorQuestion,
    Finding,
    JobOutcome,
    Level,
    green,
    is_hopeless,
    red,
)
from slurm_colloc.diagnosis.node_findings import CHECKS, find_obstacle, judge_no_job, judge_outcome
from slurm_colloc.errors import CollocError
from slurm_colloc.model.examination import (
    Examination,
    GpuLook,
    HooksLook,
    MpsTrial,
    NvmlLook,
    StepTrial,
    TmpdirLook,
)

GPU = GpuLook("GPU-1", "NVIDIA H200", 143771, "DEFAULT", mig_enabled=False, processes=0)
SEEN = Examination(
    node="n1",
    version="0.1.0",
    python="3.11.2",
    slurm_gpus=("0",),
    steps=StepTrial(elapsed_ms=51.0),
    tmpdir=TmpdirLook("/tmp", "", 50_000),
    no_places="",
    nvml=NvmlLook("", "580.159.04", "13.0", 1, (GPU,)),
    mps=MpsTrial(control="/usr/bin/nvidia-cuda-mps-control", control_ms=20.0, active_ms=300.0),
    hooks=HooksLook(),
)
ASKED = DoctorQuestion("0.1.0", "/opt/bin/python", "/home/x/state")
DONE = JobOutcome(
    "4711", state="COMPLETED", node="n1", exit_code=0, wrote=True, python="Python 3.11.2", seen=SEEN
)


def judge(outcome: JobOutcome, asked: DoctorQuestion = ASKED) -> dict[str, Finding]:
    found = judge_outcome(outcome, asked)
    assert [finding.check for finding in found] == list(CHECKS)
    for finding in found:
        assert bool(finding.lost) >= (finding.level is Level.YELLOW)
        assert bool(finding.advice) >= (finding.level is Level.RED)
    return {finding.check: finding for finding in found}


def without(**changes: Any) -> JobOutcome:
    return dataclasses.replace(DONE, seen=None, **changes)


def seeing(**changes: Any) -> JobOutcome:
    return dataclasses.replace(DONE, seen=dataclasses.replace(SEEN, **changes))


def test_a_good_node_is_green_but_for_hooks_that_it_has_not() -> None:
    found = judge(DONE)
    hooks = found.pop("hooks")
    assert {finding.level for finding in found.values()} == {Level.GREEN}
    assert (hooks.level, hooks.what) == (Level.YELLOW, "none on n1")


def test_without_a_job_nothing_is_known() -> None:
    found = judge_no_job("--no-job was given")
    assert [finding.check for finding in found] == list(CHECKS)
    assert {(finding.level, finding.what) for finding in found} == {
        (Level.UNKNOWN, "--no-job was given")
    }


@pytest.mark.parametrize("check", ["settings", "slurm", "controller", "state", "nodes"])
def test_no_job_is_tried_where_it_cannot_run(check: str) -> None:
    assert find_obstacle([green("csub", ""), red(check, "", "")])
    assert find_obstacle([green(check, ""), red("gres", "", "")]) == ""


def test_a_job_that_is_refused_is_red_in_slurms_words() -> None:
    found = judge(JobOutcome(trouble=CollocError("sbatch: Invalid account")))
    assert found["job"].what == "sbatch: Invalid account"
    assert "--account" in found["job"].advice
    others = {finding.level for name, finding in found.items() if name != "job"}
    assert others == {Level.UNKNOWN}


@pytest.mark.parametrize(
    ("reason", "level", "words"),
    [
        ("Priority", Level.YELLOW, "jobs with a higher priority come first (Priority)"),
        ("Resources", Level.YELLOW, "what it asks for is not free (Resources)"),
        ("None", Level.YELLOW, "Slurm's reason is not known"),
        ("QOSMaxGRESPerUser", Level.YELLOW, "a limit of its QoS is reached"),
        ("ReqNodeNotAvail,_UnavailableNodes:n1", Level.RED, "down, drained or reserved"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs", Level.RED, "drained"),
        ("InvalidAccount", Level.RED, "its account is not valid"),
        ("PartitionTimeLimit", Level.RED, "more time than its partition allows"),
        ("launch_failed_requeued_held", Level.RED, "Slurm could not start it on its node"),
    ],
)
def test_a_job_that_waits_is_judged_by_its_reason(reason: str, level: Level, words: str) -> None:
    outcome = JobOutcome("4711", state="PENDING", reason=reason, took_s=120.4, gave_up=True)
    job = judge(outcome)["job"]
    assert job.level is level
    assert is_hopeless(reason) is (level is Level.RED)
    assert job.what.startswith("job 4711 did not start within 120 s, and was cancelled: ")
    assert words in job.what
    if level is Level.YELLOW:
        assert "--timeout=240" in job.advice


def test_a_job_that_does_not_end_is_red() -> None:
    outcome = JobOutcome("4711", state="RUNNING", node="n1", took_s=9.0, gave_up=True)
    job = judge(outcome)["job"]
    assert (job.level, job.what) == (Level.RED, "job 4711 is RUNNING after 9 s, and was cancelled")
    assert "look at n1" in job.advice


@pytest.mark.parametrize(
    ("state", "code", "reason", "what"),
    [
        ("NODE_FAIL", 0, "None", "job 4711 ended NODE_FAIL on n1 before its checks"),
        ("FAILED", 1, "NonZeroExitCode",
         "job 4711 ended FAILED with exit status 1 on n1 (NonZeroExitCode) before its checks"),
        ("TIMEOUT", 0, "TimeLimit",
         "job 4711 ended TIMEOUT on n1 (TimeLimit) before its checks"),
        ("", None, "",
         "job 4711 ended in a way that Slurm no longer knows on n1 before its checks"),
    ],
)  # fmt: skip
def test_a_job_that_ended_before_it_could_look(
    state: str, code: int | None, reason: str, what: str
) -> None:
    outcome = without(state=state, exit_code=code, reason=reason, python="", wrote=False)
    found = judge(outcome)
    assert (found["job"].level, found["job"].what) == (Level.RED, what)
    assert found["steps"].what == "no answer came back from n1"


def test_a_state_directory_that_the_node_does_not_see_or_may_not_write() -> None:
    gone = judge(without(state="FAILED", exit_code=NO_STATE, wrote=False, python=""))
    assert gone["shared-state"].what == "/home/x/state is not on n1"
    assert "set state_dir" in gone["shared-state"].advice
    assert gone["job"].level is Level.GREEN
    closed = judge(without(state="FAILED", exit_code=NO_WRITING, wrote=False, python=""))
    assert closed["shared-state"].what == "/home/x/state cannot be written from n1"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"exit_code": NO_PYTHON, "python": ""}, "there is no Python at /opt/bin/python on n1"),
        ({"python": "Python 3.9.2", "errors": "SyntaxError"},
         "/opt/bin/python on n1 is Python 3.9.2"),
        ({"errors": "No module named 'slurm_colloc'"},
         "/opt/bin/python on n1 has no slurm_colloc (No module named 'slurm_colloc')"),
        ({"errors": "OSError: no"}, "/opt/bin/python on n1 cannot look: OSError: no"),
    ],
)  # fmt: skip
def test_a_python_that_cannot_look(changes: dict[str, Any], what: str) -> None:
    found = judge(without(**{"state": "FAILED", "exit_code": 1, **changes}))
    assert (found["python"].level, found["python"].what) == (Level.RED, what)
    assert found["job"].level is Level.GREEN
    assert found["shared-state"].level is Level.GREEN


def test_another_version_on_the_node() -> None:
    python = judge(seeing(version="0.2.0"))["python"]
    assert python.level is Level.YELLOW
    assert python.what.endswith("with slurm_colloc 0.2.0 on n1, and 0.1.0 here")


@pytest.mark.parametrize(
    ("launcher", "level"),
    [("auto", Level.YELLOW), ("srun", Level.RED), ("process", Level.GREEN)],
)
def test_steps_that_do_not_start(launcher: str, level: Level) -> None:
    asked = dataclasses.replace(ASKED, launcher=launcher)
    steps = judge(seeing(steps=StepTrial("Job credential expired")), asked)["steps"]
    assert steps.level is level
    assert ("Job credential expired" in steps.what) is (launcher != "process")


def test_room_for_temporary_files() -> None:
    missing = judge(seeing(tmpdir=TmpdirLook("/x", "No such file or directory")))["tmpdir"]
    assert (missing.level, "/x: No such file" in missing.what) == (Level.RED, True)
    little = judge(seeing(tmpdir=TmpdirLook("/tmp", "", 10)))["tmpdir"]
    assert (little.level, little.what) == (Level.YELLOW, "/tmp has 10 MiB free")
    refused = judge(seeing(no_places="user namespaces are not allowed"))["private-tmp"]
    assert refused.level is Level.YELLOW
    assert refused.what == "members get no /tmp of their own: user namespaces are not allowed"
    unknown = judge(seeing(tmpdir=TmpdirLook("/tmp")))["tmpdir"]
    assert (unknown.level, unknown.what) == (Level.GREEN, "/tmp has an unknown amount free")
    assert unknown.values["free_mb"] is None


def test_what_a_node_did_not_say_is_unknown() -> None:
    nothing = Examination("n1", "0.1.0", "3.11.2")
    found = judge(dataclasses.replace(DONE, seen=nothing))
    for check in ("steps", "tmpdir", "private-tmp", "nvml", "mps", "hooks"):
        assert found[check].level is Level.UNKNOWN


def test_without_a_gpu_nothing_is_said_of_it() -> None:
    found = judge(DONE, dataclasses.replace(ASKED, gpus=0))
    for check in ("nvml", "mps", "hooks"):
        assert found[check].what == "the job asked for no GPU"
