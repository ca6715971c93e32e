"""What tests rely on of cancelling, signals, requeueing and steps: fake and real."""

from __future__ import annotations

import re
import signal

import pytest

from slurm_colloc.errors import SlurmRefused

from ..wait_until import wait_until
from .conftest import FOREVER, GO, STEP, UNKNOWN_JOB, SlurmUser

# Cancelling and signals ---------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once(bed: SlurmUser) -> None:
    job_id = bed.submit("--hold")
    bed.client.cancel(job_id)
    assert bed.find_state(job_id) == "CANCELLED"
    assert bed.field(job_id, "JobState") == "CANCELLED"


def test_cancelling_sends_term_to_the_batch_script_and_kills_it_later(bed: SlurmUser) -> None:
    job_id = bed.submit(script=f"trap 'echo term' TERM; echo up; {FOREVER}")
    wait_until(lambda: "up" in bed.read(f"out.{job_id}"), "it is up")
    bed.client.cancel(job_id)
    assert bed.find_state(job_id) in ("COMPLETING", "CANCELLED")
    bed.wait_for(job_id, "CANCELLED")
    said = bed.read(f"out.{job_id}")
    assert said.count("term") == 1
    assert re.search(rf"error: \*\*\* JOB {job_id} ON \S+ CANCELLED AT \S+", said)


def test_the_batch_script_alone_is_woken(bed: SlurmUser) -> None:
    job_id = bed.submit(script=f"trap 'echo woken' URG; echo up; {FOREVER}")
    wait_until(lambda: "up" in bed.read(f"out.{job_id}"), "it is up")
    bed.client.wake_batch_script(job_id)
    wait_until(lambda: "woken" in bed.read(f"out.{job_id}"), "it is woken")
    assert bed.find_state(job_id) == "RUNNING"


def test_an_unknown_job_is_said_to_be_unknown(bed: SlurmUser) -> None:
    assert bed.client.read_job(UNKNOWN_JOB) is None
    for act in (bed.client.hold, bed.client.requeue, bed.client.requeue_running):
        with pytest.raises(SlurmRefused, match="Invalid job id"):
            act(UNKNOWN_JOB)
    with pytest.raises(SlurmRefused, match="Invalid job id"):
        bed.client.update_job(UNKNOWN_JOB, {"JobName": "x"})
    asked = bed.run("squeue", "-h", "-j", UNKNOWN_JOB, check=False)
    assert "Invalid job id specified" in asked.stderr
    assert asked.returncode == 1


def test_cancelling_what_has_ended_is_no_error(bed: SlurmUser) -> None:
    job_id = bed.submit()
    bed.wait_for(job_id, "COMPLETED")
    bed.client.cancel(job_id)
    assert bed.find_state(job_id) == "COMPLETED"


# Requeueing ---------------------------------------------------------------------------------------


def test_a_requeued_job_starts_again(bed: SlurmUser) -> None:
    job_id = bed.submit(
        "--requeue", "--open-mode=append",
        script=f"echo start $SLURM_RESTART_COUNT; [ $SLURM_RESTART_COUNT ] && exit 0; {FOREVER}",
    )  # fmt: skip
    wait_until(lambda: "start" in bed.read(f"out.{job_id}"), "it has started")
    assert (bed.field(job_id, "Requeue"), bed.field(job_id, "Restarts")) == ("1", "0")
    bed.client.requeue_running(job_id)
    assert bed.field(job_id, "Restarts") == "1"
    bed.wait_for(job_id, "COMPLETED")
    lines = bed.read(f"out.{job_id}").splitlines()
    assert [line.strip() for line in lines if line.startswith("start")] == ["start", "start 1"]


def test_a_job_that_must_not_be_requeued_is_not(bed: SlurmUser) -> None:
    job_id = bed.submit("--no-requeue", script=FOREVER)
    bed.wait_for(job_id, "RUNNING")
    assert bed.field(job_id, "Requeue") == "0"
    with pytest.raises(SlurmRefused, match="Requested operation is presently disabled"):
        bed.client.requeue(job_id)
    assert bed.field(job_id, "Restarts") == "0"


# Steps --------------------------------------------------------------------------------------------


def test_steps_run_side_by_side_and_end_as_their_tasks(bed: SlurmUser) -> None:
    job_id = bed.submit(
        script=f"""
        {STEP} --job-name='m/1' sh -c 'echo step $SLURM_STEP_ID; {GO}' &
        {STEP} --job-name='m/2' sh -c '{GO}; exit 5' &
        wait %1; echo first $?
        wait %2; echo second $?
        {STEP} sh -c 'kill -9 $$'; echo third $?
        """
    )  # fmt: skip
    wait_until(lambda: len(bed.list_steps(job_id)) == 2, "both steps run")
    assert (f"{job_id}.batch", "batch") in bed.client.list_steps(job_id)
    steps = bed.list_steps(job_id)
    assert sorted(steps.values()) == ["m/1", "m/2"]
    assert sorted(steps) == [f"{job_id}.0", f"{job_id}.1"]
    (bed.folder / "go").touch()
    bed.wait_for(job_id, "COMPLETED")
    said = bed.read(f"out.{job_id}")
    for words in ("first 0\n", "second 5\n", "third 137\n", "Exited with exit code 5"):
        assert words in said
    assert re.search(r"^step [01]$", said, re.MULTILINE)


def test_a_step_is_signalled_and_another_is_ended(bed: SlurmUser) -> None:
    job_id = bed.submit(
        script=f"""
        {STEP} --job-name=a sh -c 'trap "echo usr1 >>got" USR1; echo >up; {FOREVER}' 2>a.log &
        {STEP} --job-name=b sh -c '{FOREVER}' 2>b.log &
        {FOREVER}
        """
    )
    wait_until(lambda: len(bed.list_steps(job_id)) == 2, "both steps run")
    by_name = {name: step for step, name in bed.list_steps(job_id).items()}
    wait_until(lambda: bed.read("up"), "the trap is set")
    bed.client.signal_steps([by_name["a"]], signal.SIGUSR1)
    wait_until(lambda: bed.read("got"), "the step is signalled")
    bed.client.end_steps([by_name["b"]])
    wait_until(lambda: len(bed.list_steps(job_id)) == 1, "the other has ended")
    wait_until(lambda: "CANCELLED AT" in bed.read("b.log"), "srun says so")
    assert re.search(rf"STEP {by_name['b']} ON \S+ CANCELLED AT", bed.read("b.log"))
    assert bed.read("a.log") == ""
    assert bed.find_state(job_id) == "RUNNING"


def test_a_cancelled_job_sends_term_to_the_tasks_of_its_steps(bed: SlurmUser) -> None:
    job_id = bed.submit(
        script=f"""
        {STEP} sh -c 'trap "echo term >>got; exit 0" TERM; echo up; {FOREVER}' 2>srun.log &
        wait
        """
    )
    wait_until(lambda: "up" in bed.read(f"out.{job_id}"), "it is up")
    bed.client.cancel(job_id)
    bed.wait_for(job_id, "CANCELLED")
    assert bed.read("got") == "term\n"


def test_a_step_whose_program_is_missing_is_said_so(bed: SlurmUser) -> None:
    job_id = bed.submit(script=f"{STEP} ./nosuch; echo status $?")
    bed.wait_for(job_id, "COMPLETED")
    said = bed.read(f"out.{job_id}")
    assert "No such file or directory" in said
    assert "status 2\n" in said


def test_a_step_from_outside_enters_a_running_job_alone(bed: SlurmUser) -> None:
    job_id = bed.submit(script=f"echo up; {FOREVER}")
    wait_until(lambda: "up" in bed.read(f"out.{job_id}"), "it is up")
    argv = ["srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1"]
    inside = bed.run(*argv, "sh", "-c", "echo $SLURM_JOB_ID")
    assert inside.stdout == f"{job_id}\n"
    bed.client.cancel(job_id)
    bed.wait_for(job_id, "CANCELLED")
    late = bed.run(*argv, "true", check=False)
    assert late.returncode == 1
    assert any(words in late.stderr for words in ("completing or completed", "has expired"))
    unknown = bed.run("srun", f"--jobid={UNKNOWN_JOB}", "--overlap", "true", check=False)
    assert unknown.returncode == 1
    assert "Invalid job id specified" in unknown.stderr
