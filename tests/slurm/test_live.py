"""Both ways to Slurm, on a Slurm that runs: the one in PATH, and pyslurm where it matches that."""

from __future__ import annotations

import dataclasses
import os
import signal

import pytest

from slurm_colloc.errors import SlurmNoAnswer, SlurmRefused, SlurmUnreachable
from slurm_colloc.host.system.node_processes import list_running_processes
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc_lab.sandbox import daemons

from ..wait_until import wait_until
from . import contract, scenario
from .conftest import Live

pytestmark = pytest.mark.slurm

UNKNOWN_JOB = "999999"


def wait_for_reason(access: SlurmAccess, live: Live) -> None:
    """After each change, and after a start, Slurm needs a moment to say why a job waits."""
    wait_until(
        lambda: access.list_jobs()[live.jobs["pending"]].reason in ("Resources", "Priority"),
        "Slurm says why the pending job waits",
    )


def find_state(access: SlurmAccess, job_id: str) -> str:
    job = access.list_jobs().get(job_id)
    return "" if job is None else job.state


@pytest.mark.smoke
def test_jobs_of_every_kind_are_listed(access: SlurmAccess, live: Live) -> None:
    wait_for_reason(access, live)
    contract.check_jobs(access.list_jobs(), live.jobs)


@pytest.mark.smoke
def test_the_same_jobs_are_listed_as_by_squeue(access: SlurmAccess) -> None:
    def timeless(slurm: SlurmAccess) -> dict[str, object]:
        return {
            name: dataclasses.replace(job, time_used="", time_left="", reason="")
            for name, job in slurm.list_jobs().items()
        }

    assert timeless(access) == timeless(SlurmAccess())


@pytest.mark.smoke
def test_tasks_of_an_array_that_started_are_listed_each_by_its_number(access: SlurmAccess) -> None:
    job = scenario.submit("--array=0-1", "--time=1", "--mem=100M", script="true")
    wait_until(
        lambda: all(find_state(access, f"{job}_{task}") == "COMPLETED" for task in (0, 1)),
        "both tasks are shown as completed",
    )
    assert job not in access.list_jobs()


@pytest.mark.smoke
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_an_array_cancelled_task_by_task_is_listed_as_by_squeue(
    access: SlurmAccess, order: tuple[int, int]
) -> None:
    job = scenario.submit("--array=0-1", "--hold", "--time=1")
    for task in order:
        access.cancel(f"{job}_{task}")

    def find_states(slurm: SlurmAccess) -> dict[str, str]:
        listed = slurm.list_jobs()
        return {name: listed[name].state for name in listed if name.partition("_")[0] == job}

    assert find_states(access) == find_states(SlurmAccess())
    assert set(find_states(access).values()) == {"CANCELLED"}


@pytest.mark.smoke
def test_nodes_are_listed(access: SlurmAccess, live: Live) -> None:
    contract.check_nodes(access.list_nodes(), None)
    contract.check_nodes(access.list_nodes(live.sandbox.node_names[0]), None)


@pytest.mark.smoke
def test_jobs_and_steps_are_read(access: SlurmAccess, live: Live) -> None:
    running = live.jobs["running"]
    fields = access.read_job(running)
    assert fields is not None
    assert (fields["JobState"], fields["NumCPUs"]) == ("RUNNING", "2")
    assert (f"{running}.0", scenario.STEP_NAME) in access.list_steps(running)
    assert access.read_job(UNKNOWN_JOB) is None
    assert access.read_config()["ClusterName"] == "sandbox"
    assert access.read_accounting([running]) == {}


@pytest.mark.smoke
def test_a_pending_job_is_changed_held_released_and_cancelled(access: SlurmAccess) -> None:
    job = scenario.submit("--begin=now+1hour", "--time=10", "--ntasks=1", "--cpus-per-task=1")
    access.update_job(
        job, {"NumCPUs": "3", "CPUsPerTask": "3", "TimeLimit": "30", "JobName": "x+3"}
    )
    fields = access.read_job(job)
    assert fields is not None
    assert (fields["NumCPUs"], fields["JobName"], fields["TimeLimit"]) == ("3", "x+3", "00:30:00")
    access.hold(job)
    # Root holds as an administrator.
    assert access.list_jobs()[job].reason.startswith("JobHeld")
    access.release(job)
    assert not access.list_jobs()[job].reason.startswith("JobHeld")
    access.cancel(job)
    assert access.list_jobs()[job].state == "CANCELLED"


@pytest.mark.smoke
def test_a_job_that_grew_runs_with_all_its_cpus(access: SlurmAccess) -> None:
    job = scenario.submit(
        "--begin=now+1hour", "--time=1", "--ntasks=1", "--cpus-per-task=1", "--mem=100M",
        script='[ "$SLURM_CPUS_ON_NODE" = 3 ] && [ "$SLURM_CPUS_PER_TASK" = 3 ]',
    )  # fmt: skip
    access.update_job(job, {"NumCPUs": "3", "CPUsPerTask": "3", "StartTime": "now"})
    wait_until(
        lambda: access.list_jobs()[job].state not in ("PENDING", "RUNNING", "COMPLETING"),
        "the job that grew has ended",
    )
    assert access.list_jobs()[job].state == "COMPLETED"


@pytest.mark.smoke
def test_cancelling_sends_term_before_kill(access: SlurmAccess, live: Live) -> None:
    told = live.sandbox.directory.parent / f"told{type(access).__name__}"
    job = scenario.submit(
        "--time=5", "--mem=100M",
        script=f"trap 'echo TERM >{told}; exit' TERM; echo ready >{told}; sleep 300 & wait",
    )  # fmt: skip
    wait_until(lambda: told.is_file() and "ready" in told.read_text(), "the script runs")
    # scancel signals the steps; the batch script itself is told before the allocation ends.
    access.cancel(job)
    wait_until(lambda: "TERM" in told.read_text(), "the script was told")


@pytest.mark.smoke
def test_a_refusal_has_slurms_words(access: SlurmAccess, live: Live) -> None:
    with pytest.raises(SlurmRefused, match="no longer pending"):
        access.update_job(live.jobs["running"], {"NumCPUs": "4"})
    with pytest.raises(SlurmRefused, match="Invalid job id"):
        access.update_job(UNKNOWN_JOB, {"TimeLimit": "5"})


@pytest.mark.smoke
def test_a_controller_that_is_away_or_silent_is_told_apart(
    access: SlurmAccess, live: Live, capfd: pytest.CaptureFixture[str]
) -> None:
    controller = daemons.find_slurmctld(live.sandbox.layout, list_running_processes())[0].pid
    os.kill(controller, signal.SIGSTOP)
    try:
        with pytest.raises(SlurmNoAnswer):
            access.list_jobs()
    finally:
        os.kill(controller, signal.SIGCONT)
    live.sandbox.stop_controller()
    try:
        with pytest.raises(SlurmUnreachable) as problem:
            access.list_jobs()
        assert not isinstance(problem.value, SlurmNoAnswer)
        assert "nothing was changed" in str(problem.value)
    finally:
        live.sandbox.start_controller()
    # Nothing of the library's own goes to the user's terminal.
    assert capfd.readouterr().err == ""
    wait_for_reason(access, live)
    contract.check_jobs(access.list_jobs(), live.jobs)
