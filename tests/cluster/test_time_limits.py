"""Packs of one array have time limits of their own in a real Slurm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.model.usage_profile import Observation, ProfileRecord
from slurm_colloc.store.profiles import (
    build_profile_mapping,
    compute_family,
    compute_signature,
)

from ..bed import CsubUser

pytestmark = pytest.mark.slurm

SHORT = "#SBATCH --time=10"
LONG = "#SBATCH --time=60"


def list_limits(user: CsubUser, job_id: str) -> dict[int, str]:
    """Slurm's time limit of each pack, in their order."""
    argv = ["squeue", "--noheader", "--array", f"--jobs={job_id}", "--format=%i %l"]
    lines = user.run(argv).stdout.split("\n")
    rows = [line.split() for line in lines if line.strip()]
    limits = {int(element.partition("_")[2]): limit for element, limit in rows}
    return dict(enumerate(limits[element] for element in sorted(limits)))


def read_packs(user: CsubUser) -> dict[int, dict[str, Any]]:
    """pack.json of each pack, in their order."""
    paths = (user.state / "packs").glob("*/pack.json")
    records = [json.loads(path.read_text()) for path in paths]
    return dict(enumerate(sorted(records, key=lambda record: record["index"])))


def submit(user: CsubUser, work: str, *options: str, scripts: str = "LLSSSSLL") -> str:
    user.script("short.sh", work, directives=SHORT)
    user.script("long.sh", work, directives=LONG)
    names = [{"L": "long.sh", "S": "short.sh"}[kind] for kind in scripts]
    return user.submit("pack", "--gres=gpu:1", "--degree=2", "--no-pause", *options, *names)


@pytest.mark.smoke
def test_each_waiting_pack_asks_for_its_own_time(user: CsubUser) -> None:
    job_id = submit(user, "true", "--hold")
    assert job_id.isdigit(), "one answer for all"
    limits = list_limits(user, job_id)
    # 10 and 60 minutes stretched by 1.5, and a minute to start and end.
    assert limits == {0: "1:31:00", 1: "16:00", 2: "16:00", 3: "1:31:00"}
    packs = read_packs(user)
    asked = {index: pack["request"]["time_limit_s"] for index, pack in packs.items()}
    assert asked == {0: 5460, 1: 960, 2: 960, 3: 5460}
    assert not any("did not lower" in text for pack in packs.values() for text in pack["reasons"])
    user.run(["scontrol", "release", job_id])
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}


def test_a_pack_that_runs_already_is_lowered_and_its_members_have_their_time(
    user: CsubUser,
) -> None:
    job_id = submit(user, "sleep 5", scripts="LLSS")
    user.wait_for_states(job_id, "RUNNING")
    assert list_limits(user, job_id) == {0: "1:31:00", 1: "16:00"}
    assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}


def test_a_slurm_that_lowers_nothing_still_runs_the_packs(user: CsubUser) -> None:
    broken = user.home / "broken"
    broken.mkdir()
    (broken / "scontrol").write_text("#!/bin/sh\necho 'slurm_update error: no' >&2\nexit 1\n")
    (broken / "scontrol").chmod(0o755)
    user.extra["PATH"] = f"{broken}:{user.environment['PATH']}"
    job_id = submit(user, "true", "--hold", scripts="LLSS")
    user.extra.clear()
    assert list_limits(user, job_id) == {0: "1:31:00", 1: "1:31:00"}
    packs = read_packs(user)
    assert [packs[index]["request"]["time_limit_s"] for index in (0, 1)] == [5460, 5460]
    (reason,) = [text for text in packs[1]["reasons"] if "did not lower" in text]
    assert reason.startswith("Slurm did not lower its time limit to 0:16:00: ")
    assert "did not lower" in user.csub("show", job_id).stdout
    user.run(["scontrol", "release", job_id])
    assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}


def test_an_array_without_a_limit_asks_for_none_as_with_sbatch(user: CsubUser) -> None:
    user.script("train.sh", "true")
    words = ("--gres=gpu:1", "--array=1-3", "--hold", "--time=0")
    by_sbatch = user.run(["sbatch", "--parsable", *words, "train.sh"]).stdout.strip()
    job_id = user.submit("--degree=2", *words, "train.sh")
    assert set(list_limits(user, job_id).values()) == set(list_limits(user, by_sbatch).values())
    assert "no time limit" in user.csub("show", job_id).stdout
    for each in (by_sbatch, job_id):
        user.run(["scancel", each])


@pytest.mark.smoke
def test_an_array_of_which_one_task_is_left_alone_is_one_slurm_job(user: CsubUser) -> None:
    content = user.script("train.sh", "sleep 1", directives=LONG).read_bytes()
    job = Job(1, "train.sh", "train.sh", (), "/")
    seen = Observation(
        compute_signature(content, job), compute_family(content, job), "train.sh", "NVIDIA H200",
        "GPU-1", "train.sh/1", 1e9, 60.0, gpu_memory_peak_mb=9000, sm_active=0.1,
        dram_active=0.05, steps_per_s=10.0,
    )  # fmt: skip
    record = json.dumps([build_profile_mapping(ProfileRecord.start(seen))])
    user.run(["sh", "-c", f"echo '{record}' >profiles.json"])
    user.csub("profile", "import", "profiles.json")
    words = ("--gres=gpu:1", "--array=1-5", "--degree=2", "train.sh")
    planned = json.loads(user.csub("plan", "--json", *words).stdout)
    assert sorted(len(pack["members"]) for pack in planned["packs"]) == [1, 2, 2]
    assert all(pack["known"] for pack in planned["packs"])
    job_id = user.submit(*words)
    assert job_id.isdigit(), "one answer for all"
    assert len(read_packs(user)) == 3
    rows = user.finish(job_id)
    assert {number: row["state"] for number, row in rows.items()} == dict.fromkeys(
        range(1, 6), "COMPLETED"
    )
