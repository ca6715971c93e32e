"""What tests rely on of jobs that run, wait, depend and are tasks of an array: fake and real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_colloc.model.member import SlurmJobState

from ..wait_until import wait_until
from .conftest import FOREVER, SlurmUser

# Jobs from submission to end ----------------------------------------------------------------------


def test_a_job_runs_in_its_directory_with_its_environment_and_output(
    bed: SlurmUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "a b")
    job_id = bed.submit(
        "--gres=gpu:1", "--cpus-per-task=2", "--job-name=train", "--output=%x.%j",
        "--open-mode=append", f"--chdir={bed.folder}", "--export=ALL",
        script='echo "$PWD|$GIVEN|$SLURM_JOB_ID|$SLURM_JOB_NAME|$SLURM_CPUS_ON_NODE"; '
        'echo "$SLURM_JOB_GPUS|$SLURM_RESTART_COUNT|$SLURMD_NODENAME|$SLURM_CLUSTER_NAME" >&2',
    )  # fmt: skip
    bed.wait_for(job_id, "COMPLETED")
    first, second = bed.read(f"train.{job_id}").splitlines()
    assert first == f"{bed.folder}|a b|{job_id}|train|2"
    gpus, restarts, node, cluster = second.split("|")
    assert gpus.isdigit()
    assert (restarts, node) == ("", bed.client.list_jobs()[job_id].nodes)
    assert cluster == bed.client.read_config()["ClusterName"]


@pytest.mark.parametrize(
    ("script", "state", "code"),
    [("exit 0", "COMPLETED", "0:0"), ("exit 6", "FAILED", "6:0"), ("kill -9 $$", "FAILED", "0:9")],
)
def test_a_job_ends_as_its_batch_script_does(
    bed: SlurmUser, script: str, state: str, code: str
) -> None:
    job_id = bed.submit(script=script)
    bed.wait_for(job_id, state)
    fields = bed.client.read_job(job_id)
    assert fields is not None
    assert (fields["JobState"], fields["ExitCode"]) == (state, code)
    assert bed.client.read_end_time(job_id) is not None


def test_what_a_batch_script_leaves_behind_is_ended_with_it(bed: SlurmUser) -> None:
    job_id = bed.submit(script="sleep 300 & echo $! >pid")
    bed.wait_for(job_id, "COMPLETED")
    process = Path("/proc") / bed.read("pid").strip()
    wait_until(lambda: not process.exists(), "it has gone")


def test_a_job_reaches_its_time_limit(bed: SlurmUser) -> None:
    if bed.is_real:
        pytest.skip("the shortest limit of Slurm is a minute, and some seconds")
    job_id = bed.submit("--time=0:01", script=f"echo up; {FOREVER}")
    bed.wait_for(job_id, "TIMEOUT")
    assert "CANCELLED AT" in bed.read(f"out.{job_id}")
    assert "DUE TO TIME LIMIT" in bed.read(f"out.{job_id}")


# Why a job waits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--hold",), "JobHeldUser"), (("--begin=now+1hour",), "BeginTime")],
)
def test_a_job_waits_for_a_reason(bed: SlurmUser, options: Sequence[str], reason: str) -> None:
    job_id = bed.submit("--comment=a [csub 1]|b", *options)
    listed = bed.client.list_jobs()[job_id]
    assert listed.state is SlurmJobState.PENDING
    assert (listed.nodes, listed.comment) == ("", "a [csub 1]|b")
    assert (listed.time_used, listed.time_left) == ("0:00", "5:00")
    # Root holds as an administrator with `scontrol hold`, but not with --hold.
    wait_until(lambda: bed.client.list_jobs()[job_id].reason == reason, f"it waits for {reason}")
    shown = bed.run("squeue", "-h", "--states=all", "-o", "%T %r", "-j", job_id)
    assert shown.stdout == f"PENDING {reason}\n"
    assert (bed.field(job_id, "JobState"), bed.field(job_id, "Reason")) == ("PENDING", reason)


def test_a_job_waits_for_gpus_and_gets_them_when_another_ends(bed: SlurmUser) -> None:
    taken = [bed.submit("--gres=gpu:2", script=FOREVER) for _ in range(1 if bed.is_real else 2)]
    for job_id in taken:
        bed.wait_for(job_id, "RUNNING")
    waiting = bed.submit("--gres=gpu:1")
    wait_until(
        lambda: bed.client.list_jobs()[waiting].reason in ("Resources", "Priority"),
        "Slurm says why it waits",
    )
    bed.client.cancel(taken[0])
    bed.wait_for(waiting, "COMPLETED")


def test_a_job_is_held_and_released(bed: SlurmUser) -> None:
    job_id = bed.submit("--begin=now+1hour")
    bed.client.hold(job_id)
    assert bed.client.list_jobs()[job_id].reason.startswith("JobHeld")
    bed.client.release(job_id)
    assert not bed.client.list_jobs()[job_id].reason.startswith("JobHeld")
    bed.client.update_job(job_id, {"StartTime": "now"})
    bed.wait_for(job_id, "COMPLETED")


def test_a_waiting_job_is_changed(bed: SlurmUser) -> None:
    job_id = bed.submit("--hold", "--ntasks=1", "--cpus-per-task=1")
    bed.client.update_job(
        job_id,
        {"NumCPUs": "3", "CPUsPerTask": "3", "JobName": "x+3", "MinMemoryNode": "300",
         "TimeLimit": "0:30:00", "Comment": "changed"},
    )  # fmt: skip
    fields = bed.client.read_job(job_id)
    assert fields is not None
    wanted = {"NumCPUs": "3", "JobName": "x+3", "MinMemoryNode": "300M", "TimeLimit": "00:30:00"}
    assert {name: fields[name] for name in wanted} == wanted
    assert bed.client.list_jobs()[job_id].comment == "changed"


# Dependencies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "script", "runs"),
    [
        ("afterok", "exit 0", True),
        ("afterok", "exit 3", False),
        ("afternotok", "exit 3", True),
        ("afterany", "exit 3", True),
    ],
)
def test_a_job_waits_for_another(bed: SlurmUser, kind: str, script: str, runs: bool) -> None:
    first = bed.submit(script=f"while [ ! -e go ]; do sleep 0.05; done; {script}")
    late = bed.submit(f"--dependency={kind}:{first}")
    shown = bed.run("squeue", "-h", "--states=all", "-o", "%T %r %E", "-j", late).stdout
    assert shown == f"PENDING Dependency {kind}:{first}(unfulfilled)\n"
    assert bed.field(late, "Dependency") == f"{kind}:{first}(unfulfilled)"
    (bed.folder / "go").touch()
    if runs:
        bed.wait_for(late, "COMPLETED")
    else:
        wait_until(
            lambda: bed.client.list_jobs()[late].reason == "DependencyNeverSatisfied",
            "Slurm sees that it never starts",
        )
        assert bed.find_state(late) == "PENDING"


def test_a_dependency_is_taken_back(bed: SlurmUser) -> None:
    first = bed.submit("--hold")
    late = bed.submit(f"--dependency=afterok:{first}")
    bed.client.update_job(late, {"Dependency": ""})
    bed.wait_for(late, "COMPLETED")


# Arrays -------------------------------------------------------------------------------------------


def test_tasks_of_an_array_are_jobs_of_their_own(bed: SlurmUser) -> None:
    job_id = bed.submit(
        "--array=0-2", "--output=%A_%a.out",
        script="echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID",
    )  # fmt: skip
    for task, state in enumerate(("COMPLETED", "FAILED", "FAILED")):
        bed.wait_for(f"{job_id}_{task}", state)
        assert bed.read(f"{job_id}_{task}.out") == f"{job_id} {task}\n"
    assert bed.field(f"{job_id}_2", "JobState") == "FAILED"


def test_waiting_tasks_are_listed_held_and_cancelled_one_by_one(bed: SlurmUser) -> None:
    job_id = bed.submit("--array=0-3", "--begin=now+1hour")
    names = {f"{job_id}_{task}" for task in range(4)}
    assert names <= set(bed.client.list_jobs())
    bed.client.hold(f"{job_id}_1")
    reasons = bed.run("squeue", "-h", "-r", "-o", "%K %r", "-j", job_id).stdout.splitlines()
    assert [task[0] for task in reasons if "JobHeld" in task] == ["1"]
    bed.client.cancel(f"{job_id}_2", f"{job_id}_3")
    assert bed.find_state(f"{job_id}_0") == "PENDING"
    assert bed.find_state(f"{job_id}_3") in ("CANCELLED", "")
    bed.client.cancel(job_id)
    assert bed.find_state(f"{job_id}_0") in ("CANCELLED", "")


def test_an_array_runs_no_more_tasks_than_it_may(bed: SlurmUser) -> None:
    job_id = bed.submit("--array=0-2%1", script=FOREVER)
    bed.wait_for(f"{job_id}_0", "RUNNING")
    assert bed.find_state(f"{job_id}_1") == bed.find_state(f"{job_id}_2") == "PENDING"
