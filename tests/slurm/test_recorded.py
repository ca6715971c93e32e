"""What four releases of Slurm answered is understood alike, over commands and over pyslurm."""

from __future__ import annotations

import pytest

from slurm_colloc.errors import SlurmNoAnswer, SlurmRefused, SlurmUnreachable
from slurm_colloc.slurm.run_command import build_slurm_error
from slurm_colloc.slurm.slurm_commands import SlurmAccess

from . import contract, scenario
from .conftest import Recording

UNKNOWN_JOB = "999999"


def test_jobs_of_every_kind_are_listed(recording: Recording) -> None:
    contract.check_jobs(recording.play("list_jobs").list_jobs(), recording.jobs)


def test_nodes_are_listed(recording: Recording) -> None:
    contract.check_nodes(recording.play("list_nodes").list_nodes(), "a100")
    contract.check_nodes(recording.play("list_nodes_of_a_list").list_nodes("node1"), "a100")


def test_a_job_is_read_field_by_field(recording: Recording) -> None:
    fields = recording.play("read_job").read_job(recording.jobs["running"])
    assert fields is not None
    wanted = {"JobId": recording.jobs["running"], "JobState": "RUNNING", "JobName": "runs",
              "NumCPUs": "2", "CPUs/Task": "2", "NumTasks": "1", "MinMemoryNode": "500M",
              "TimeLimit": "00:10:00", "Restarts": "0", "Requeue": "1"}  # fmt: skip
    assert {name: fields.get(name) for name in wanted} == wanted
    assert recording.play("read_unknown_job").read_job(UNKNOWN_JOB) is None


def test_steps_are_listed_with_names_that_hold_the_separator(recording: Recording) -> None:
    job = recording.jobs["running"]
    steps = recording.play("list_steps").list_steps(job)
    assert (f"{job}.0", scenario.STEP_NAME) in steps
    assert recording.play("list_steps_of_unknown_job").list_steps(UNKNOWN_JOB) == []


def test_the_configuration_is_read(recording: Recording) -> None:
    config = recording.play("read_config").read_config()
    assert config["KillWait"] == "5 sec"
    assert config["ClusterName"] == "sandbox"


def test_nothing_is_known_where_nothing_is_accounted(recording: Recording) -> None:
    done = recording.jobs["completed"]
    assert recording.play("read_accounting").read_accounting([done]) == {}
    assert recording.slurm.read_accounting([]) == {}


def test_what_is_done_leaves_no_words(recording: Recording) -> None:
    held = recording.jobs["held"]
    recording.play("update").update_job(held, {"Comment": "new", "TimeLimit": "15"})
    recording.play("release").release(held)
    recording.play("hold").hold(held)
    recording.play("cancel").cancel(held)


def test_a_refusal_has_slurms_words(recording: Recording) -> None:
    jobs = recording.jobs
    with pytest.raises(SlurmRefused, match="Job is no longer pending execution"):
        recording.play("update_refused").update_job(jobs["running"], {"NumCPUs": "4"})
    with pytest.raises(SlurmRefused, match="Requested partition configuration not available now"):
        recording.play("update_too_large").update_job(jobs["pending"], {"NumCPUs": "4000"})
    with pytest.raises(SlurmRefused, match="Invalid job id specified"):
        recording.play("update_unknown_job").update_job(UNKNOWN_JOB, {"TimeLimit": "5"})
    with pytest.raises(SlurmRefused, match="Job has already finished"):
        recording.play("hold_ended_job").hold(jobs["completed"])
    with pytest.raises(SlurmRefused, match="Invalid job id specified"):
        recording.play("requeue_unknown_job").requeue(UNKNOWN_JOB)


def test_a_dead_controller_is_unreachable(recording: Recording) -> None:
    with pytest.raises(SlurmUnreachable, match=r"[Uu]nable to contact slurm controller"):
        recording.play("list_nodes_dead_controller").list_nodes()
    with pytest.raises(SlurmUnreachable, match=r"[Uu]nable to contact slurm controller"):
        recording.play("read_job_dead_controller").read_job(recording.jobs["running"])
    with pytest.raises(SlurmUnreachable):
        recording.play("cancel_dead_controller").cancel(recording.jobs["pending"])
    # Some releases cannot tell a controller that is away from one that has not answered.
    with pytest.raises(SlurmUnreachable):
        recording.play("update_dead_controller").update_job(
            recording.jobs["pending"], {"TimeLimit": "5"}
        )


def test_an_update_without_an_answer_may_have_been_done(recording: Recording) -> None:
    with pytest.raises(SlurmNoAnswer):
        recording.play("update_timeout").update_job(recording.jobs["pending"], {"TimeLimit": "5"})


def test_squeue_tells_what_keeps_it_from_answering(recording: Recording) -> None:
    # pyslurm does not run squeue; test_live.py stops its controller instead.
    commands = SlurmAccess()
    recording.play("list_jobs_dead_controller")
    with pytest.raises(SlurmUnreachable, match="Unable to contact slurm controller") as problem:
        commands.list_jobs()
    assert not isinstance(problem.value, SlurmNoAnswer)
    recording.play("list_jobs_timeout")
    with pytest.raises(SlurmNoAnswer, match="timed out"):
        commands.list_jobs()
    recording.play("list_jobs_without_configuration")
    with pytest.raises(SlurmUnreachable, match="no configuration here"):
        commands.list_jobs()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Unable to contact slurm controller (connect failure)", SlurmUnreachable),
        ("Socket timed out on send/recv operation", SlurmNoAnswer),
        ("Zero Bytes were transmitted or received", SlurmNoAnswer),
        ("Invalid job id specified", SlurmRefused),
    ],
)
def test_libslurms_words_make_the_same_errors_as_a_commands(
    words: str, kind: type[Exception]
) -> None:
    assert type(build_slurm_error(["pyslurm"], 1, words)) is kind
