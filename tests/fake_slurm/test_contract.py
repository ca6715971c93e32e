"""What tests rely on of Slurm, said once, and held against the fake and a Slurm that runs."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from slurm_colloc.errors import SlurmRefused, SlurmUnreachable
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.sandbox.cluster import Sandbox
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.slurm.history import read_history
from slurm_colloc.slurm.qos import read_qos

from ..cluster.conftest import running_sandbox, wait_until
from .cluster import FakeSlurm

UNKNOWN_JOB = "999999"
PATIENCE_S = 60.0


class Controlled(Protocol):
    """What the fake and the sandbox both let a test do."""

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]: ...

    def stop_controller(self) -> None: ...

    def start_controller(self) -> None: ...


@dataclasses.dataclass
class Bed:
    """One of the two, and a folder that its jobs can write to.

    Attributes:
        cluster: The fake or the sandbox.
        folder: The folder.
        client: csub's own way to it.
        is_real: It is a Slurm that runs.
    """

    cluster: Controlled
    folder: Path
    client: SlurmCommands
    is_real: bool

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call one of its programs."""
        ended = subprocess.run(
            argv, cwd=self.folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert not check or ended.returncode == 0, (argv, ended)
        return ended

    def submit(self, *options: str, script: str = "true") -> str:
        """Submit some lines of sh with csub's kind of call; the job id."""
        path = self.folder / f"{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        given = ["--time=5", "--mem=100M", "--output=out.%j", *options]
        return self.client.submit(
            str(path), given, environment=os.environ, directory=str(self.folder)
        )

    def read(self, name: str) -> str:
        """A file in the folder; empty while it is not there."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def find_state(self, job_id: str) -> str:
        """A job's state, as csub lists it."""
        job = self.client.list_jobs().get(job_id)
        return "" if job is None else job.state.value

    def wait_for(self, job_id: str, *states: str) -> None:
        """Wait until a job has one of these states."""
        wait_until(lambda: self.find_state(job_id) in states, f"job {job_id} is {states}")

    def list_steps(self, job_id: str) -> dict[str, str]:
        """The steps that srun has started, by their ids."""
        listed = self.client.list_steps(job_id)
        return {step: name for step, name in listed if step.rpartition(".")[2].isdigit()}

    def field(self, job_id: str, name: str) -> str:
        """A field of `scontrol show job`."""
        fields = self.client.read_job(job_id)
        assert fields is not None
        return fields[name]


@pytest.fixture(scope="module")
def real_cluster() -> Iterator[Sandbox]:
    """One node of a real Slurm, where a requeued job starts again soon."""
    conf = ("MessageTimeout=2",)
    with running_sandbox(nodes=1, cpus_per_node=16, kill_wait_s=2, extra_conf=conf) as sandbox:
        yield sandbox


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.slurm, pytest.mark.smoke])])
def bed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bed]:
    """The fake, and then the real one."""
    is_real = request.param == "real"
    fake = None
    if is_real:
        cluster: Controlled = request.getfixturevalue("real_cluster")
    else:
        (tmp_path / "slurm").mkdir()
        cluster = fake = FakeSlurm(tmp_path / "slurm")
    for name, value in cluster.env(os.environ).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "home"
    folder.mkdir()
    bed = Bed(cluster, folder, SlurmCommands(), is_real)
    yield bed
    for job_id, job in bed.client.list_jobs().items():
        if job.state in (SlurmJobState.PENDING, SlurmJobState.RUNNING):
            bed.client.cancel(job_id.partition("_")[0])
    if fake is not None:
        fake.close()


GO = "until [ -e go ]; do sleep 0.05; done"
FOREVER = "while :; do sleep 0.1; done"
STEP = "srun --overlap --nodes=1 --ntasks=1 --mem=50 --cpu-bind=none --export=ALL --input=none"


# Jobs from submission to end ---------------------------------------------------------------------


def test_a_job_runs_in_its_directory_with_its_environment_and_output(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
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
def test_a_job_ends_as_its_batch_script_does(bed: Bed, script: str, state: str, code: str) -> None:
    job_id = bed.submit(script=script)
    bed.wait_for(job_id, state)
    fields = bed.client.read_job(job_id)
    assert fields is not None
    assert (fields["JobState"], fields["ExitCode"]) == (state, code)
    assert bed.client.read_end_time(job_id) is not None


def test_what_a_batch_script_leaves_behind_is_ended_with_it(bed: Bed) -> None:
    job_id = bed.submit(script="sleep 300 & echo $! >pid")
    bed.wait_for(job_id, "COMPLETED")
    process = Path("/proc") / bed.read("pid").strip()
    wait_until(lambda: not process.exists(), "it has gone")


def test_a_job_reaches_its_time_limit(bed: Bed) -> None:
    if bed.is_real:
        pytest.skip("the shortest limit of Slurm is a minute, and some seconds")
    job_id = bed.submit("--time=0:01", script=f"echo up; {FOREVER}")
    bed.wait_for(job_id, "TIMEOUT")
    assert "CANCELLED AT" in bed.read(f"out.{job_id}")
    assert "DUE TO TIME LIMIT" in bed.read(f"out.{job_id}")


# Why a job waits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--hold",), "JobHeldUser"), (("--begin=now+1hour",), "BeginTime")],
)
def test_a_job_waits_for_a_reason(bed: Bed, options: Sequence[str], reason: str) -> None:
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


def test_a_job_waits_for_gpus_and_gets_them_when_another_ends(bed: Bed) -> None:
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


def test_a_job_is_held_and_released(bed: Bed) -> None:
    job_id = bed.submit("--begin=now+1hour")
    bed.client.hold(job_id)
    assert bed.client.list_jobs()[job_id].reason.startswith("JobHeld")
    bed.client.release(job_id)
    assert not bed.client.list_jobs()[job_id].reason.startswith("JobHeld")
    bed.client.update_job(job_id, {"StartTime": "now"})
    bed.wait_for(job_id, "COMPLETED")


def test_a_waiting_job_is_changed(bed: Bed) -> None:
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


# Dependencies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "script", "runs"),
    [
        ("afterok", "exit 0", True),
        ("afterok", "exit 3", False),
        ("afternotok", "exit 3", True),
        ("afterany", "exit 3", True),
    ],
)
def test_a_job_waits_for_another(bed: Bed, kind: str, script: str, runs: bool) -> None:
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


def test_a_dependency_is_taken_back(bed: Bed) -> None:
    first = bed.submit("--hold")
    late = bed.submit(f"--dependency=afterok:{first}")
    bed.client.update_job(late, {"Dependency": ""})
    bed.wait_for(late, "COMPLETED")


# Arrays ------------------------------------------------------------------------------------------


def test_tasks_of_an_array_are_jobs_of_their_own(bed: Bed) -> None:
    job_id = bed.submit(
        "--array=0-2", "--output=%A_%a.out",
        script="echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID",
    )  # fmt: skip
    for task, state in enumerate(("COMPLETED", "FAILED", "FAILED")):
        bed.wait_for(f"{job_id}_{task}", state)
        assert bed.read(f"{job_id}_{task}.out") == f"{job_id} {task}\n"
    assert bed.field(f"{job_id}_2", "JobState") == "FAILED"


def test_waiting_tasks_are_listed_held_and_cancelled_one_by_one(bed: Bed) -> None:
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


def test_an_array_runs_no_more_tasks_than_it_may(bed: Bed) -> None:
    job_id = bed.submit("--array=0-2%1", script=FOREVER)
    bed.wait_for(f"{job_id}_0", "RUNNING")
    assert bed.find_state(f"{job_id}_1") == bed.find_state(f"{job_id}_2") == "PENDING"


# Cancelling and signals --------------------------------------------------------------------------


def test_a_waiting_job_is_cancelled_at_once(bed: Bed) -> None:
    job_id = bed.submit("--hold")
    bed.client.cancel(job_id)
    assert bed.find_state(job_id) == "CANCELLED"
    assert bed.field(job_id, "JobState") == "CANCELLED"


def test_cancelling_sends_term_to_the_batch_script_and_kills_it_later(bed: Bed) -> None:
    job_id = bed.submit(script=f"trap 'echo term' TERM; echo up; {FOREVER}")
    wait_until(lambda: "up" in bed.read(f"out.{job_id}"), "it is up")
    bed.client.cancel(job_id)
    assert bed.find_state(job_id) in ("COMPLETING", "CANCELLED")
    bed.wait_for(job_id, "CANCELLED")
    said = bed.read(f"out.{job_id}")
    assert said.count("term") == 1
    assert re.search(rf"slurmstepd\S*: error: \*\*\* JOB {job_id} ON \S+ CANCELLED AT \S+", said)


def test_the_batch_script_alone_is_woken(bed: Bed) -> None:
    job_id = bed.submit(script=f"trap 'echo woken' URG; echo up; {FOREVER}")
    wait_until(lambda: "up" in bed.read(f"out.{job_id}"), "it is up")
    bed.client.wake_batch_script(job_id)
    wait_until(lambda: "woken" in bed.read(f"out.{job_id}"), "it is woken")
    assert bed.find_state(job_id) == "RUNNING"


def test_an_unknown_job_is_said_to_be_unknown(bed: Bed) -> None:
    assert bed.client.read_job(UNKNOWN_JOB) is None
    for act in (bed.client.hold, bed.client.requeue, bed.client.requeue_running):
        with pytest.raises(SlurmRefused, match="Invalid job id"):
            act(UNKNOWN_JOB)
    with pytest.raises(SlurmRefused, match="Invalid job id"):
        bed.client.update_job(UNKNOWN_JOB, {"JobName": "x"})
    asked = bed.run("squeue", "-h", "-j", UNKNOWN_JOB, check=False)
    assert "Invalid job id specified" in asked.stderr
    assert asked.returncode == 1


def test_cancelling_what_has_ended_is_no_error(bed: Bed) -> None:
    job_id = bed.submit()
    bed.wait_for(job_id, "COMPLETED")
    bed.client.cancel(job_id)
    assert bed.find_state(job_id) == "COMPLETED"


# Requeueing --------------------------------------------------------------------------------------


def test_a_requeued_job_starts_again(bed: Bed) -> None:
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


def test_a_job_that_must_not_be_requeued_is_not(bed: Bed) -> None:
    job_id = bed.submit("--no-requeue", script=FOREVER)
    bed.wait_for(job_id, "RUNNING")
    assert bed.field(job_id, "Requeue") == "0"
    with pytest.raises(SlurmRefused, match="Requested operation is presently disabled"):
        bed.client.requeue(job_id)
    assert bed.field(job_id, "Restarts") == "0"


# Steps -------------------------------------------------------------------------------------------


def test_steps_run_side_by_side_and_end_as_their_tasks(bed: Bed) -> None:
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


def test_a_step_is_signalled_and_another_is_ended(bed: Bed) -> None:
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


def test_a_cancelled_job_sends_term_to_the_tasks_of_its_steps(bed: Bed) -> None:
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


def test_a_step_whose_program_is_missing_is_said_so(bed: Bed) -> None:
    job_id = bed.submit(script=f"{STEP} ./nosuch; echo status $?")
    bed.wait_for(job_id, "COMPLETED")
    said = bed.read(f"out.{job_id}")
    assert "No such file or directory" in said
    assert "status 2\n" in said


def test_a_step_from_outside_enters_a_running_job_alone(bed: Bed) -> None:
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


# What is refused, and what is known besides ------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gres=gpu:9",), "Requested node configuration is not available"),
        (("--partition=nosuch",), "Invalid partition name specified"),
        (("--dependency=nosuch",), "Job dependency problem"),
    ],
)
def test_a_wrong_request_is_refused(bed: Bed, options: Sequence[str], words: str) -> None:
    with pytest.raises(SlurmRefused, match=words):
        bed.submit(*options)
    # Slurm may keep a record of a job that failed.
    states = {job.state for job in bed.client.list_jobs().values()}
    assert not states & {SlurmJobState.PENDING, SlurmJobState.RUNNING}


def test_a_request_is_only_tried(bed: Bed) -> None:
    script = bed.folder / "job.sh"
    script.write_text("#!/bin/sh\n")
    said = bed.client.check(
        str(script), ["--time=5"], environment=os.environ, directory=str(bed.folder)
    )
    assert re.match(
        r"Job \d+ to start at \S+ using 1 processors on nodes \S+ in partition gpu", said
    )


def test_nodes_are_listed(bed: Bed) -> None:
    shapes = {shape.partition: shape for shape in bed.client.list_nodes()}
    gpu = shapes["gpu"]
    assert (gpu.is_default, shapes["preempt"].is_default) == (True, False)
    assert (gpu.cpus, gpu.host_memory_mb, gpu.gpus) == (16, 16000, ((None, 2),))
    assert (gpu.time_limit_max_s, gpu.time_limit_default_s) == (7 * 86400, 3600)


def test_nothing_is_accounted(bed: Bed) -> None:
    assert bed.client.read_accounting(["1"]) == {}
    assert read_history(None) == ([], "Slurm keeps no accounts here")
    assert read_qos().unknown == ""


def test_the_configuration_is_shown(bed: Bed) -> None:
    config = bed.client.read_config()
    assert float(config["KillWait"].split()[0]) > 0
    assert config["JobRequeue"] == "1"
    assert config["ProctrackType"].startswith("proctrack/")


def test_without_the_controller_nothing_is_done(bed: Bed) -> None:
    job_id = bed.submit("--hold")
    asking: list[Callable[[], object]] = [
        bed.client.list_jobs,
        bed.client.list_nodes,
        lambda: bed.client.hold(job_id),
        lambda: bed.client.cancel(job_id),
        bed.submit,
    ]
    bed.cluster.stop_controller()
    try:
        for ask in asking:
            with pytest.raises(SlurmUnreachable):
                ask()
    finally:
        bed.cluster.start_controller()
    wait_until(lambda: bed.find_state(job_id) == "PENDING", "it answers again")
