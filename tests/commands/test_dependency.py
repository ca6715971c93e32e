"""How --dependency on members is judged, and what csub says of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from ..bed import CsubUser
from ..cluster.mps import read_parent
from ..fake_slurm.cluster import FakeSlurm
from ..wait_until import wait_until
from .dependent_packs import GO, PACK, read_slurm, start_pack, wait_for_slurm


def test_after_and_afterany_and_lists_mixed_with_plain_jobs(user: CsubUser) -> None:
    job_id = start_pack(user, "go.sh 1 3", "go.sh 2")
    user.script("plain.sh", "while [ ! -e go.plain ]; do sleep 0.1; done")
    plain = user.run(["sbatch", "--parsable", "-o", "/dev/null", "plain.sh"]).stdout.strip()
    began = user.submit(*PACK, f"--dependency=after:{job_id}/1", "next.sh", "began")
    user.wait_for_states(began, "COMPLETED")
    both = user.submit(
        *PACK, "-d", f"afterany:{job_id}/1:{job_id}/2,afterok:{plain}", "next.sh", "both"
    )
    either = user.submit(
        *PACK, "-d", f"afterok:{job_id}/1?afternotok:{job_id}/2?afterok:{plain}", "next.sh", "any"
    )
    user.run(["touch", "go.1"])
    # Neither the failed member nor the end of its pack is what `either` waits for.
    user.wait_for_states(job_id, {1: "FAILED"})
    user.run(["touch", "go.2"])
    user.finish(job_id)
    for waiting, name in ((both, "both"), (either, "any")):
        # The plain job is all that is left of it.
        wait_for_slurm(user, waiting, f"PENDING Dependency afterok:{plain}(unfulfilled)")
        assert not (user.home / f"ran.next.{name}").exists()
    user.run(["touch", "go.plain"])
    user.wait_for_states(both, "COMPLETED")
    user.wait_for_states(either, "COMPLETED")


def test_last_is_the_newest_submission_as_everywhere(user: CsubUser) -> None:
    job_id = start_pack(user, "go.sh 1")
    waiting = user.submit(*PACK, "-d", "afterok:last", "next.sh", "whole")
    # Others may join the pack, and are not waited for: Slurm waits for it, csub for its members.
    wait_for_slurm(user, waiting, f"PENDING Dependency afterany:{job_id}(unfulfilled)")
    member = user.submit(*PACK, "-d", "afterany:last/1", "next.sh", "member")
    assert f"afterany:{waiting}/1" in user.csub("why", f"{member}/1").stdout
    user.csub("cancel", "--yes", member)
    user.run(["touch", "go.1"])
    user.wait_for_states(waiting, "COMPLETED")


def test_an_interrupted_wait_says_that_the_jobs_go_on_and_an_end_is_told_as_it_was(
    user: CsubUser,
) -> None:
    user.script("go.sh", GO)
    with user.start(["csub", "--wait", *PACK, "--hold", "go.sh", "1"]) as waiting:
        wait_until(lambda: len(list_jobs(user)) == 1, "it is submitted")
        (job_id,) = list_jobs(user)
        wait_until(lambda: f"{job_id}/1" in user.csub("queue").stdout, "csub knows it")
        time.sleep(1.0)
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=60)
    assert "no longer waiting; the jobs go on: csub queue shows them, csub cancel ends them" in said
    assert waiting.returncode in (130, -signal.SIGINT)
    assert f"{job_id}/1" in user.csub("queue").stdout
    user.csub("cancel", "--yes", job_id)
    (row,) = (text for text in user.csub("history").stdout.splitlines() if f"{job_id}/1" in text)
    assert "CANCELLED" in row
    assert " by " not in row


def list_jobs(user: CsubUser) -> set[str]:
    """Ids of all jobs that Slurm remembers."""
    return set(user.run(["squeue", "-h", "--states=all", "-o", "%i"]).stdout.split())


def test_what_is_decided_at_submission(user: CsubUser) -> None:
    job_id = start_pack(user, "go.sh 1 3", "go.sh 2")
    user.run(["touch", "go.1"])
    user.wait_for_states(job_id, {1: "FAILED"})
    at_once = user.submit(*PACK, f"--dependency=afternotok:{job_id}/1", "next.sh", "at.once")
    user.wait_for_states(at_once, "COMPLETED")
    before = list_jobs(user)
    for value, code, words in (
        (f"afterok:{job_id}/1", 2, f"can never be satisfied: {job_id}/1 is FAILED"),
        (f"afterok:{job_id}/9", 7, f"job {job_id} has no member 9"),
        ("afterok:999999/1", 7, "csub has no job 999999"),
        (f"aftercorr:{job_id}/2", 2, "cannot be used with a member"),
        (f"after:{job_id}/2+10", 2, "a delay"),
        (f"afterok:{job_id}/2,afterok:1?afterok:2", 2, "not by both"),
        ("afterok:L1/1", 2, "runs without Slurm"),
    ):
        refused = user.csub(*PACK, f"--dependency={value}", "next.sh", check=False)
        assert refused.returncode == code, (value, refused)
        assert words in refused.stderr
    # Slurm forgets jobs that ended a while ago.
    assert list_jobs(user) <= before
    dry = user.csub(*PACK, "--dry-run", f"--dependency=afterok:{job_id}/2", "next.sh")
    assert "Slurm:" in dry.stdout
    user.run(["touch", "go.2"])


def test_a_directive_and_an_array_may_wait_for_a_member(user: CsubUser) -> None:
    job_id = start_pack(user, "go.sh 1", "go.sh 2")
    user.script(
        "tasks.sh",
        "echo $$ > ran.next.$SLURM_ARRAY_TASK_ID",
        directives=f"#SBATCH --dependency=afterok:{job_id}/1",
    )
    tasks = user.submit(*PACK, "--array=0-3", "--degree=2", "tasks.sh")
    assert f"afterany:{job_id}(unfulfilled)" in read_slurm(user, tasks)
    user.run(["touch", "go.1"])
    user.wait_for_states(tasks, "COMPLETED")
    assert user.members(job_id)[2]["state"] == "RUNNING"
    user.run(["touch", "go.2"])
    user.finish(job_id)


def test_without_the_note_to_the_pack_the_job_starts_when_the_pack_is_over(user: CsubUser) -> None:
    """csub may be killed between sbatch and the note; that costs the early start alone."""
    job_id = start_pack(user, "go.sh 1", "go.sh 2")
    late = user.submit(*PACK, f"--dependency=afterok:{job_id}/1", "next.sh", "late")
    for path in user.state.glob("packs/*/dependents/*"):
        path.unlink()
    user.run(["touch", "go.1"])
    user.wait_for_states(job_id, {1: "COMPLETED"})
    assert read_slurm(user, late).startswith("PENDING Dependency")
    user.run(["touch", "go.2"])
    user.wait_for_states(late, "COMPLETED")


def test_a_member_that_nobody_saw_end_satisfies_only_afternotok_and_afterany(
    user: CsubUser,
) -> None:
    job_id = start_pack(user, "--no-requeue", "go.sh 1", "go.sh 2")
    jobs = {
        kind: user.submit(*PACK, f"--dependency={kind}:{job_id}/1", "next.sh", kind)
        for kind in ("afterok", "afternotok", "afterany")
    }
    (place,) = user.state.glob("packs/*/runner.json")
    runner = json.loads(Path(place).read_text())["pid"]
    # Without its guard: that one would see how they end.
    for process in (read_parent(runner), runner):
        os.kill(process, signal.SIGKILL)
    user.wait_for_states(jobs["afterany"], "COMPLETED")
    user.wait_for_states(jobs["afternotok"], "COMPLETED")
    rows = user.wait_for_states(jobs["afterok"], "CANCELLED")
    assert rows[1]["reason"] == f"Dependency on {job_id}/1 (afterok) was not satisfied"


def test_a_job_whose_member_was_left_held_waits_instead_of_running(user: CsubUser) -> None:
    user.script("go.sh", GO)
    user.script("next.sh", "echo $$ > ran.next.$1")
    job_id = user.submit("pack", *PACK, "--degree=1", "--pack-size=2", "go.sh 1", "go.sh 2")
    user.wait_for_states(job_id, {1: "RUNNING"})
    user.csub("hold", f"{job_id}/2")
    late = user.submit(*PACK, f"--dependency=afterok:{job_id}/2", "next.sh", "late")
    user.run(["touch", "go.1", "go.2"])
    wait_until(lambda: read_slurm(user, late).startswith("COMPLETED"), "its Slurm job is over")
    (row,) = json.loads(user.csub("show", "--json", late).stdout)
    assert (row["state"], row["reason"]) == ("PENDING", f"Dependency afterok:{job_id}/2")
    assert f"held, waits for afterok:{job_id}/2 (Dependency); csub release {late}/1" in (
        user.csub("why", late).stdout
    )
    refused = user.csub(*PACK, "-d", f"afterok:{job_id}/2", "next.sh", check=False)
    assert refused.returncode == 2
    assert "is to be released first" in refused.stderr
    new_id = user.csub("release", f"{job_id}/2").stderr.rsplit(None, 1)[1]
    user.wait_for_states(f"{new_id}/2", "COMPLETED")
    new_late = user.csub("release", late).stderr.rsplit(None, 1)[1]
    user.wait_for_states(new_late, "COMPLETED")
    assert user.output("ran.next.late")


def test_a_plain_id_means_all_members_of_its_submission(user: CsubUser) -> None:
    job_id = start_pack(user, "go.sh 1", "go.sh 2")
    late = user.submit(*PACK, f"--dependency=afterok:{job_id}", "next.sh", "late")
    wait_for_slurm(user, late, f"PENDING Dependency afterany:{job_id}(unfulfilled)")
    user.run(["touch", "go.1"])
    user.wait_for_states(job_id, {1: "COMPLETED"})
    assert {row["state"] for row in user.members(late).values()} == {"PENDING"}
    user.run(["touch", "go.2"])
    user.wait_for_states(late, "COMPLETED")


def test_a_job_is_let_go_once_the_controller_is_back(user: CsubUser, slurm: FakeSlurm) -> None:
    job_id = start_pack(user, "go.sh 1", "go.sh 2")
    late = user.submit(*PACK, f"--dependency=afterok:{job_id}/1", "next.sh", "late")
    slurm.stop_controller()
    user.run(["touch", "go.1"])
    (first,) = user.state.glob("packs/*/members/0001/state.1.json")
    wait_until(lambda: "COMPLETED" in first.read_text(), "the first has ended")
    slurm.start_controller()
    user.wait_for_states(late, "COMPLETED")
    assert user.members(job_id)[2]["state"] == "RUNNING"
    user.run(["touch", "go.2"])
    user.finish(job_id)
