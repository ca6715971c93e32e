"""csub under the name scancel: tasks of packs end as members, all else is Slurm's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..suites import leave_to_parts
from ..wait_until import wait_until

CSUB = Path(sys.executable).parent / "csub"
WAITS = "while [ ! -e go ]; do sleep 0.1; done"


@pytest.fixture
def linked(user: CsubUser) -> CsubUser:
    """A user whose scancel is a link to csub."""
    folder = user.home / "mybin"
    folder.mkdir()
    (folder / "scancel").symlink_to(CSUB)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    user.script("go.sh", WAITS)
    return user


def test_tasks_of_a_pack_end_alone_and_silently(linked: CsubUser) -> None:
    job_id = linked.submit("--array=1-5", "--gres=gpu:1", "--degree=5", "go.sh")
    linked.wait_for_states(job_id, "RUNNING")
    ended = linked.run(["scancel", f"{job_id}_2", f"{job_id}_[4-5]"])
    assert (ended.stdout, ended.stderr) == ("", "")
    linked.run(["touch", "go"])
    states = {number: row["state"] for number, row in linked.finish(job_id).items()}
    assert states == {
        1: "COMPLETED", 2: "CANCELLED", 3: "COMPLETED", 4: "CANCELLED", 5: "CANCELLED",
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["append", pytest.param("truncate", marks=pytest.mark.long)])
@pytest.mark.parametrize("error", ["err", "out"])
def test_the_output_says_that_a_task_was_cancelled(linked: CsubUser, mode: str, error: str) -> None:
    linked.script("go.sh", f"echo begin\ntrap 'echo end; exit 1' TERM\n{WAITS}")
    files = ("--output=out.%a", f"--error={error}.%a", f"--open-mode={mode}")
    job_id = linked.submit("--array=1-2", "--gres=gpu:1", "--degree=2", *files, "go.sh")
    wait_until(lambda: linked.output("out.1") == "begin\n", "it has begun")
    linked.run(["scancel", f"{job_id}_1"])
    linked.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING"})
    said = r"slurmstepd-\S+: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT [\d:T-]{19} \*\*\*\n"
    # bash tells what became of its sleep.
    told = f"{said}(Terminated\n)?"
    assert re.fullmatch(f"begin\n{told if error == 'out' else ''}end\n", linked.output("out.1"))
    assert error == "out" or re.fullmatch(told, linked.output("err.1"))
    linked.run(["scancel", job_id])
    linked.finish(job_id)
    assert re.search(said, linked.output(f"{error}.2"))


def test_jobs_that_csub_does_not_know_are_slurms(linked: CsubUser) -> None:
    job_id = linked.submit("--array=1-2", "--gres=gpu:1", "--degree=2", "go.sh")
    words = ["--parsable", "--array=1-2", "--wrap", WAITS]
    other = linked.run(["sbatch", *words]).stdout.strip()
    linked.wait_for_states(job_id, "RUNNING")
    linked.run(["scancel", f"{other}_1,{job_id}_1"])
    ask = ["squeue", "-h", "-r", "-t", "all", "-j", other, "-o", "%i %T"]
    wait_until(lambda: f"{other}_1 CANCELLED" in linked.run(ask).stdout, "its task has ended")
    assert f"{other}_2 RUNNING" in linked.run(ask).stdout
    linked.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING"})
    # Whole jobs are Slurm's.
    linked.run(["scancel", job_id, other])
    states = [row["state"] for row in linked.finish(job_id).values()]
    assert states == ["CANCELLED", "CANCELLED"]


def test_a_submission_of_several_slurm_jobs_ends_whole(linked: CsubUser) -> None:
    linked.script("one.sh", WAITS, directives="#SBATCH --gres=gpu:1")
    linked.script("two.sh", WAITS, directives="#SBATCH --gres=gpu:1 --no-requeue")
    job_id = linked.submit("pack", "one.sh", "two.sh")
    linked.wait_for_states(job_id, "RUNNING")
    assert len(linked.run(["squeue", "-h", "-o", "%A"]).stdout.split()) == 2
    other = linked.run(["sbatch", "--parsable", "--wrap", WAITS]).stdout.strip()
    ended = linked.run(["scancel", job_id, other])
    assert (ended.stdout, ended.stderr) == ("", "")
    states = [row["state"] for row in linked.finish(job_id).values()]
    assert states == ["CANCELLED", "CANCELLED"]
    wait_until(lambda: not linked.run(["squeue", "-h", "-o", "%A"]).stdout, "all have ended")


def submit_waiting(user: CsubUser, *options: str) -> str:
    """Tasks 1 to 4 in one pack: two run, two wait."""
    job_id = user.submit(
        "--array=1-4", "--gres=gpu:1", "--degree=2", "--pack-size=4", *options, "go.sh"
    )
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING", 4: "PENDING"})
    return job_id


SIGNALS = {
    "one task, its script": (("--batch", "--signal=USR1", "JOB_2"), {2}),
    "one task, script and steps": (("-fs", "SIGUSR1", "JOB_2"), {2}),
    "all tasks": (("-b", "-s", "10", "JOB"), {1, 2}),
    "one name": (("-b", "-s", "USR1", "--name=sweep"), {1, 2}),
    "another name": (("-b", "-s", "USR1", "--name=other", "JOB"), set()),
    "those that wait": (("-b", "-s", "USR1", "--state=PENDING", "JOB"), set()),
    "steps that no script has started": (("-s", "USR1", "JOB"), set()),
}


@pytest.mark.parametrize(
    "how",
    leave_to_parts(
        SIGNALS,
        but=(
            "one task, its script",
            "one name",
            "those that wait",
            "steps that no script has started",
        ),
    ),
)
def test_a_signal_reaches_the_scripts_of_the_tasks(linked: CsubUser, how: str) -> None:
    words, reached = SIGNALS[how]
    linked.script("go.sh", f"trap 'touch got.$SLURM_ARRAY_TASK_ID' USR1; touch up.$1\n{WAITS}")
    job_id = submit_waiting(linked, "--job-name=sweep")
    asked = [word.replace("JOB", job_id) for word in words]
    ended = linked.run(["scancel", *asked])
    assert (ended.stdout, ended.stderr) == ("", "")
    linked.run(["touch", "go"])
    states = {row["state"] for row in linked.finish(job_id).values()}
    assert states == {"COMPLETED"}
    assert {path.name for path in linked.home.glob("got.*")} == {f"got.{n}" for n in reached}


CHOICES = {
    "those that wait": (("--state=PENDING", "--user=ME"), {3, 4}),
    "those that run": (("-t", "r", "--me"), {1, 2}),
    "one that runs": (("--state=RUNNING", "JOB_[2-3]"), {2}),
    "its name": (("--name=sweep", "JOB_2"), {2}),
    "another name": (("--name=other", "JOB_2"), set()),
    "all of a name": (("-n", "sweep"), {1, 2, 3, 4}),
    "verbosely": (("-v", "JOB_2"), {2}),
}


@pytest.mark.parametrize(
    "how",
    leave_to_parts(CHOICES, but=("those that wait", "one that runs", "all of a name", "verbosely")),
)
def test_tasks_are_chosen_by_their_states_and_names(linked: CsubUser, how: str) -> None:
    words, chosen = CHOICES[how]
    job_id = submit_waiting(linked, "--job-name=sweep")
    plain = linked.run(
        ["sbatch", "--parsable", "--job-name=other", "--hold", "--wrap", "true"]
    ).stdout.strip()
    ended = linked.run(
        ["scancel", *(word.replace("JOB", job_id).replace("ME", linked.name) for word in words)]
    )
    assert ended.stdout == ""
    assert ended.stderr == (f"scancel: Terminating job {job_id}_2\n" if "-v" in words else "")
    shown = linked.run(["squeue", "-h", "-t", "all", "-j", plain, "-o", "%T"]).stdout
    # Slurm chooses by the same words what is not csub's.
    assert shown == ("CANCELLED\n" if how == "those that wait" else "PENDING\n")
    linked.run(["touch", "go"])
    states = {number: row["state"] for number, row in linked.finish(job_id).items()}
    assert {number for number, state in states.items() if state == "CANCELLED"} == chosen
    assert set(states.values()) <= {"CANCELLED", "COMPLETED"}


def test_tasks_that_have_ended_are_ended_again_without_a_word(linked: CsubUser) -> None:
    job_id = linked.submit("--array=1-2", "--gres=gpu:1", "--degree=2", "go.sh")
    linked.wait_for_states(job_id, "RUNNING")
    linked.run(["scancel", f"{job_id}_1"])
    linked.wait_for_states(job_id, {1: "CANCELLED"})
    again = linked.run(["scancel", f"{job_id}_1"])
    assert (again.stdout, again.stderr) == ("", "")
    linked.run(["touch", "go"])
    assert linked.finish(job_id)[2]["state"] == "COMPLETED"


def test_where_the_state_cannot_be_read_slurm_is_asked(linked: CsubUser) -> None:
    job_id = linked.submit("--array=1-2", "--gres=gpu:1", "--degree=2", "--hold", "go.sh")
    for path in linked.state.glob("packs/*/pack.json"):
        path.write_text("{")
    ended = linked.run(["scancel", job_id])
    assert "Traceback" not in ended.stderr
    assert (
        linked.run(["squeue", "-h", "-j", job_id, "-t", "all", "-o", "%T"]).stdout == "CANCELLED\n"
    )


def test_where_the_state_cannot_be_read_slurms_own_ends_its_jobs(linked: CsubUser) -> None:
    job_id = linked.run(["sbatch", "--parsable", "--wrap", WAITS]).stdout.strip()
    settings = linked.home / "settings.toml"
    settings.write_text("degree = []\n")
    linked.extra["SLURM_COLLOC_SETTINGS"] = str(settings)
    ended = linked.run(["scancel", job_id])
    assert "settings.toml" in ended.stderr
    assert ended.stderr.endswith("; only Slurm is asked\n")
    wait_until(lambda: not linked.run(["squeue", "-h", "-o", "%A"]).stdout, "it has ended")


def test_where_no_scancel_is_slurms_that_is_said(linked: CsubUser) -> None:
    python = str(Path(sys.executable).parent)
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{python}"
    ended = linked.run([str(linked.home / "mybin" / "scancel"), "4711"], check=False)
    assert ended.returncode == 4
    assert "every scancel in PATH leads back to csub" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_end_of_slurms_own_by_a_signal_is_told_as_shells_tell_it(linked: CsubUser) -> None:
    folder = linked.home / "slurms"
    folder.mkdir()
    (folder / "scancel").write_text("#!/bin/sh\nkill -TERM $$\n")
    (folder / "scancel").chmod(0o755)
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{folder}:{linked.environment['PATH']}"
    assert linked.run(["scancel", "--name=a"], check=False).returncode == 128 + 15
