"""One number, one meaning: what Slurm and csub understand by an id, with sbatch as the control."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

OPTIONS = ("--gres=gpu:1", "--time=5", "--share=timeslice")
GO = (
    'echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID" >ran.$1.$SLURM_ARRAY_TASK_ID; '
    'while [ ! -e go.$1 ]; do sleep 0.1; done; [ "$SLURM_ARRAY_TASK_ID" != 2 ]'
)


def start_array(user: CsubUser, name: str = "a") -> str:
    """An array of six in two packs, which end once `go.NAME` is there; the third task fails."""
    user.script("go.sh", GO)
    job_id = user.submit(*OPTIONS, "--degree=3", "--array=0-5", "go.sh", name)
    user.wait_for_states(job_id, "RUNNING")
    return job_id


def list_slurm(user: CsubUser, *options: str, shown: str = "%i") -> list[str]:
    """A field of all jobs of the user that have not ended."""
    return user.run(["squeue", "-h", "-r", "-o", shown, *options]).stdout.split("\n")[:-1]


@pytest.mark.smoke
def test_a_tasks_number_is_that_of_no_pack_to_slurm(user: CsubUser) -> None:
    job_id = start_array(user)
    for number in range(6):
        assert list_slurm(user, "-j", f"{job_id}_{number}") == []
        user.run(["scancel", f"{job_id}_{number}"], check=False)
        held = user.run(["scontrol", "hold", f"{job_id}_{number}"], check=False)
        assert "Invalid job id specified" in held.stderr
    alone = user.submit("--gres=gpu:1", "go.sh", "a")
    user.run(["scancel", f"{alone}_1"], check=False)
    user.run(["touch", "go.a"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == [
        "COMPLETED", "COMPLETED", "FAILED", "COMPLETED", "COMPLETED", "COMPLETED"
    ]  # fmt: skip
    assert user.finish(alone)[1]["state"] == "COMPLETED"


@pytest.mark.smoke
def test_csub_reads_a_task_as_slurm_writes_it(user: CsubUser) -> None:
    job_id = start_array(user)
    user.csub("cancel", f"{job_id}_1")
    user.csub("cancel", f"{job_id}_[3-4]")
    user.wait_for_states(job_id, {1: "CANCELLED", 3: "CANCELLED", 4: "CANCELLED"})
    (row,) = json.loads(user.csub("queue", "--json", f"{job_id}_0").stdout)
    assert (row["member"], row["state"]) == (f"{job_id}/0", "RUNNING")
    # What squeue shows for a pack means the pack.
    element = row["slurm_job_id"]
    shown = json.loads(user.csub("show", "--json", element).stdout)
    assert [entry["member"] for entry in shown] == [f"{job_id}/{n}" for n in (0, 1, 2)]
    assert user.csub("why", f"{job_id}_5").stdout.startswith(f"{job_id}/5")
    wrong = user.csub("cancel", f"{job_id}_9", check=False)
    assert (wrong.returncode, "has no member 9" in wrong.stderr) == (7, True)
    user.run(["touch", "go.a"])
    assert user.csub("wait", f"{job_id}_[0,5]").returncode == 0


def start_unlike(user: CsubUser, name: str) -> str:
    """A call that becomes two Slurm jobs: two that share, and one that pins two GPUs."""
    user.script("share.sh", f"while [ ! -e go.{name} ]; do sleep 0.1; done; exit ${{1:-0}}")
    user.script(
        "wide.sh",
        f"while [ ! -e go.{name} ]; do sleep 0.1; done",
        directives="#SBATCH --gpus=2 --gpu-bind=closest",
    )
    answer = user.csub("pack", "--time=5", "--gres=gpu:1", "share.sh", "wide.sh", "share.sh 3")
    (line,) = answer.stdout.splitlines()
    assert line.rpartition(" ")[0] == "Submitted batch job"
    return line.split()[-1]


@pytest.mark.smoke
def test_a_call_is_one_submission_whatever_it_became(user: CsubUser) -> None:
    job_id = start_unlike(user, "x")
    rows = user.wait_for_states(job_id, "RUNNING")
    assert {n: row["member"] for n, row in rows.items()} == {n: f"{job_id}/{n}" for n in (1, 2, 3)}
    (other,) = {row["slurm_job_id"] for row in rows.values()} - {job_id}
    assert set(list_slurm(user)) == {job_id, other}
    assert f"Part of:  {job_id}" in user.csub("show", other).stdout
    assert user.csub("queue").stdout.split()[1] == "SLURM"
    assert [r["member"] for r in json.loads(user.csub("show", "--json", "last").stdout)] == [
        f"{job_id}/{n}" for n in (1, 3, 2)
    ]
    user.script("late.sh", "touch late")
    late = user.submit("--gres=gpu:1", f"--dependency=afterany:{job_id}", "late.sh")
    shown = f"afterany:{job_id}(unfulfilled),afterany:{other}(unfulfilled)"
    assert list_slurm(user, "-j", late, shown="%E") == [shown]
    user.run(["touch", "go.x"])
    assert user.csub("wait", job_id, check=False).returncode == 3
    user.wait_for_states(late, "COMPLETED")
    assert {n: row["state"] for n, row in user.members(job_id).items()} == {
        1: "COMPLETED", 2: "COMPLETED", 3: "FAILED"
    }  # fmt: skip
    refused = user.csub(f"--dependency=afternotok:{job_id}", "late.sh", check=False)
    assert (refused.returncode, "became 2 Slurm jobs" in refused.stderr) == (2, True)


def test_cancelling_a_submission_ends_all_slurm_jobs_of_it(user: CsubUser) -> None:
    job_id = start_unlike(user, "y")
    user.wait_for_states(job_id, "RUNNING")
    user.csub("cancel", job_id)
    user.wait_for_states(job_id, "CANCELLED")
    wait_until(lambda: list_slurm(user) == [], "Slurm has ended both")


def test_what_cannot_be_submitted_whole_is_not_submitted(user: CsubUser) -> None:
    user.script("share.sh", "sleep 60")
    user.script("wide.sh", "sleep 60", directives="#SBATCH --gpus=2 --qos=nosuch")
    user.script("late.sh", "sleep 60", directives="#SBATCH --gpus=2 --constraint=nosuch")
    for last in ("late.sh", "wide.sh"):
        refused = user.csub("pack", "--gres=gpu:1", "share.sh", "share.sh", last, check=False)
        if refused.returncode == 0:
            # Without accounts Slurm takes any quality of service.
            user.csub("cancel", refused.stdout.split()[-1])
            continue
        assert refused.stdout == ""
        assert "which had already been submitted, was cancelled" in refused.stderr
        wait_until(lambda: list_slurm(user) == [], "nothing is left of it")


@pytest.mark.smoke
def test_aftercorr_pairs_tasks(user: CsubUser) -> None:
    first = start_array(user)
    user.script("next.sh", "touch next.$SLURM_ARRAY_TASK_ID; ls ran.a.*")
    second = user.submit(*OPTIONS, "--degree=3", "--array=0-5", f"-daftercorr:{first}", "next.sh")
    rows = user.members(second)
    assert {row["reason"] for row in rows.values()} == {
        f"Dependency on afterok:{first}/{number}" for number in range(6)
    }
    assert not list(user.home.glob("next.[0-9]"))
    user.run(["touch", "go.a"])
    states = {n: row["state"] for n, row in user.finish(second).items()}
    assert states == {n: "CANCELLED" if n == 2 else "COMPLETED" for n in range(6)}
    assert not (user.home / "next.2").exists()
    # The failed one is known by now, and sbatch too would keep that task alone.
    third = user.submit(*OPTIONS, "--array=1-3", f"-daftercorr:{first}", "next.sh")
    assert {n: row["state"] for n, row in user.finish(third).items()} == {
        1: "COMPLETED", 2: "CANCELLED", 3: "COMPLETED"
    }  # fmt: skip
    for array, words in (("2", f"{first}/2 is FAILED"), ("5-7", "task 6 has no counterpart")):
        refused = user.csub(
            *OPTIONS, f"--array={array}", f"-daftercorr:{first}", "next.sh", check=False
        )
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr


def test_aftercorr_on_an_array_of_sbatch_is_left_to_slurm(user: CsubUser) -> None:
    user.script("plain.sh", "exit $SLURM_ARRAY_TASK_ID")
    plain = user.run(["sbatch", "--parsable", "--array=0-1", "plain.sh"]).stdout.strip()
    user.script("next.sh", "touch next.$SLURM_ARRAY_TASK_ID")
    job_id = user.submit(*OPTIONS, "--array=0-1", f"--dependency=aftercorr:{plain}", "next.sh")
    user.wait_for_states(job_id, {0: "COMPLETED"})
    wait_until(
        lambda: "DependencyNeverSatisfied" in user.members(job_id)[1]["reason"],
        "Slurm keeps the other",
    )
    assert list_slurm(user, "-j", f"{job_id}_1", shown="%i") == [f"{job_id}_1"]
    assert not (user.home / "next.1").exists()
    user.csub("cancel", job_id)


@pytest.mark.parametrize(
    "submit",
    [
        lambda user, *words: user.run(["sbatch", "--parsable", *words]).stdout.strip(),
        lambda user, *words: user.submit(*OPTIONS, "--array=1-3", *words),
    ],
    ids=["sbatch", "csub"],
)
@pytest.mark.smoke
def test_a_name_is_the_users(user: CsubUser, submit: Callable[..., str]) -> None:
    user.script("chain.sh", "date +%s%N >>$1; while [ ! -e go.$1 ]; do sleep 0.1; done")
    words = ("--job-name=my link", "--dependency=singleton", "chain.sh")
    first = submit(user, *words, "one")
    wait_until((user.home / "one").exists, "the first link has started")
    second = submit(user, *words, "two")
    found = list_slurm(user, "--name=my link", shown="%F %T")
    assert {line.split()[0] for line in found} == {first, second}
    assert f"{second} RUNNING" not in found
    assert not (user.home / "two").exists()
    user.run(["touch", "go.one"])
    wait_until((user.home / "two").exists, "the second link has started")
    user.run(["scancel", "--name=my link"])
    wait_until(lambda: list_slurm(user) == [], "both have ended")


def run_on_terminal(user: CsubUser, *argv: str) -> str:
    """What csub writes to a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        ["csub", *argv], env=user.environment, cwd=user.home, stdin=slave, stdout=slave,
        stderr=subprocess.DEVNULL, **user.identity,
    )  # fmt: skip
    os.close(slave)
    text = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(master)
    assert process.wait(timeout=60) == 0
    return text.decode()


@pytest.mark.smoke
def test_a_program_reads_what_sbatch_prints(user: CsubUser) -> None:
    user.script("ok.sh", "exit 0")
    for words in (("ok.sh",), ("--gres=gpu:1", "--array=1-6", "ok.sh")):
        by_sbatch, by_csub = (user.run([name, *words]) for name in ("sbatch", "csub"))
        told = [ended.stdout.split() for ended in (by_sbatch, by_csub)]
        assert [line[:-1] for line in told] == [["Submitted", "batch", "job"]] * 2
        assert all(line[-1].isdigit() for line in told)
        assert by_csub.stderr.startswith(f"csub: member{'s' if len(words) > 1 else ''} ")
    seen = run_on_terminal(user, "--join=never", "--gres=gpu:1", "ok.sh")
    job_id = seen.split()[3]
    assert seen.startswith(f"Submitted batch job {job_id} (member {job_id}/1 in 1 pack")
