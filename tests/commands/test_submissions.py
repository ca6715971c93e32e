"""One call, one submission: what csub asks of Slurm, and what it says, on a fake Slurm."""

from __future__ import annotations

import json

import pytest

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import list_jobs

SHARE = ("--gres=gpu:1", "--time=5", "--share=timeslice")


@pytest.mark.parametrize("how", ["submit", "--dry-run"])
def test_an_index_that_slurm_refuses_is_refused_in_its_words(user: CsubUser, how: str) -> None:
    user.script("cpu.sh", "exit 0")
    words = [] if how == "submit" else [how]
    refused = user.csub(*words, "--array=3,1001", "cpu.sh", check=False)
    assert refused.returncode == 4
    assert "Batch job submission failed: Invalid job array specification" in refused.stderr
    assert list_jobs(user) == []
    user.csub("--dry-run", "--array=3,1000", "cpu.sh")


def test_tasks_that_share_may_have_any_number(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    job_id = user.submit(*SHARE, "--array=995-1010", "--degree=4", "train.sh")
    tasks = sorted(job["task"] for job in slurm.look().values())
    assert tasks == [991, 992, 993, 994]
    slurm.go_on()
    assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}


def test_without_room_in_an_array_packs_are_several_jobs_of_one_submission(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    user.script("train.sh", "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID")
    taken = "0-7,500-1000"
    slurm.pause()
    job_id = user.submit(*SHARE, f"--array={taken}%6", "--degree=4", "--pack-size=300", "train.sh")
    jobs = list(slurm.look().values())
    assert len(jobs) == 2
    assert not {job["task"] for job in jobs} & {*range(8), *range(500, 1001)}
    user.csub("cancel", job_id)
    assert {job["state"] for job in slurm.look().values()} == {"CANCELLED"}


@pytest.mark.parametrize("name", ["my sweep", "sweep+3", "1", "-"])
def test_every_slurm_job_of_a_submission_has_the_users_name_and_no_other(
    user: CsubUser, slurm: FakeSlurm, name: str
) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    named = f"--job-name={name}"
    user.submit(*SHARE, named, "--array=0-7,500-1000", "--degree=4", "--pack-size=300", "train.sh")
    user.submit(named, "train.sh")
    jobs = list(slurm.look().values())
    assert len(jobs) == 3
    assert {job["name"] for job in jobs} == {name}
    user.csub("cancel", "--yes", "all")


def test_a_job_alone_and_the_packs_are_one_submission(user: CsubUser) -> None:
    user.script("train.sh", "exit 0")
    user.script("pack.sh", "exit 0")
    first = user.csub("pack", *SHARE, "train.sh", "pack.sh", "train.sh")
    assert len(first.stdout.splitlines()) == 1
    answer = json.loads(user.csub("pack", "--json", *SHARE, "train.sh", "pack.sh").stdout)
    (submitted,) = answer["submitted"]
    assert [pack["members"] for pack in submitted["packs"]] == [
        [f"{submitted['job_id']}/1", f"{submitted['job_id']}/2"]
    ]
    user.script("cpu.sh", "exit 3")
    mixed = user.csub("pack", "--parsable", "--time=5", "train.sh", "cpu.sh")
    (job_id,) = mixed.stdout.splitlines()
    slurm_jobs = {row["slurm_job_id"] for row in user.finish(job_id).values()}
    assert len(slurm_jobs) == 2
    assert job_id in slurm_jobs
    assert user.csub("wait", "last", check=False).returncode == 3
    # The other's own id means that part alone.
    (other,) = slurm_jobs - {job_id}
    (row,) = json.loads(user.csub("show", "--json", other).stdout)
    assert row["member"] == f"{job_id}/2"


def test_a_submission_of_several_jobs_that_is_refused_half_way_is_taken_back(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    user.script("train.sh", "sleep 60")
    user.script("wide.sh", "exit 0", directives="#SBATCH --partition=nosuch")
    refused = user.csub("pack", *SHARE, "train.sh", "train.sh", "wide.sh", check=False)
    assert refused.returncode == 4
    assert "of this call, which had already been submitted, was cancelled" in refused.stderr
    assert {job["ending"] or job["state"] for job in slurm.look().values()} == {"CANCELLED"}


def test_tasks_that_wait_for_tasks_still_share(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("prep.sh", "while [ ! -e go ]; do sleep 0.1; done; [ $SLURM_ARRAY_TASK_ID != 1 ]")
    user.script("next.sh", "touch next.$SLURM_ARRAY_TASK_ID")
    first = user.submit(*SHARE, "--array=0-3", "--degree=2", "prep.sh")
    user.submit(*SHARE, "--array=0-3", "--degree=2", f"-daftercorr:{first}", "next.sh")
    waiting = [job["dependency"] for job in slurm.look().values() if job["dependency"]]
    assert waiting == [[["afterany", f"{first}_999"]], [["afterany", f"{first}_1000"]]]
    refused = user.csub(*SHARE, f"-daftercorr:{first}_0", "next.sh", check=False)
    assert (refused.returncode, "cannot be used with a single task" in refused.stderr) == (2, True)
    # How they run is told in tests/cluster: what the end of a job starts does not outlive it here.
    user.csub("cancel", "all")


def test_a_priority_of_csubs_own_is_no_option_of_slurms(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("fast.sh", "exit 0", directives="#SBATCH --priority=fast")
    user.script("other.sh", "exit 0")
    refused = user.csub("--priority=fsat", "--time=5", "other.sh", check=False)
    assert refused.stderr == (
        "csub: error: the command line: --priority=fsat is neither a number, nor TOP, nor fast\n"
    )
    slurm.pause()
    packed = json.loads(user.csub("pack", "--json", *SHARE, "fast.sh", "other.sh").stdout)
    # Its neighbour has no priority, and shares all the same.
    assert len(packed["submitted"][0]["packs"]) == 1
    # The fake refuses what it does not know, as --priority.
    user.submit("--priority=fast", "--time=5", "fast.sh")
    slurm.go_on()
