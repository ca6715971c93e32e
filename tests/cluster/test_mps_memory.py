"""GPU memory under MPS: each has its limit, and none that fits the GPU fails by it."""

from __future__ import annotations

import pytest

from ..bed import CsubUser
from .mps import OPTIONS, Untouched, explained, journal, submit_pack

pytestmark = pytest.mark.slurm

UNTIL_END = 'until [ -e "$1" ]; do sleep 0.1; done'
TRAIN = f"simgpu run --seconds 300 & pid=$!; {UNTIL_END}; kill $pid"
WANT = 'exec simgpu run --seconds 0.3 --gpu-memory "$1"'


def test_a_member_beyond_its_limit_starts_again_at_once_without_one_beside_its_neighbours(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    user.script("want.sh", WANT)
    job_id = submit_pack(
        user, "--gpu-mem=10G", "train.sh end", "want.sh 15G", "train.sh end", "train.sh end"
    )
    with explained(user, job_id):
        rows = user.wait_for_states(
            job_id, {1: "RUNNING", 2: "COMPLETED", 3: "RUNNING", 4: "RUNNING"}
        )
        assert (rows[2]["starts"], rows[2]["gpu_memory_limit_mb"]) == (2, None)
        assert rows[2]["mode"] == "mps"
        assert [rows[n]["starts"] for n in (1, 3, 4)] == [1, 1, 1]
        (again,) = journal(user, job_id, "requeue")
        assert again["reason"] == (
            "its --gpu-mem (10240 MB) was too small for it; it runs again without a limit"
        )
        assert rows[2]["evidence"][0].startswith(
            "its output: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        )
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    untouched.check()


def test_what_fits_the_gpu_never_fails_by_a_limit_and_what_does_not_fails_with_all_of_it(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("want.sh", WANT)
    # Unknown ones get a quarter of what is free, of a GPU of 140 GiB.
    job_id = submit_pack(user, "want.sh 100G", "want.sh 1G", "want.sh 200G", "want.sh 1G")
    with explained(user, job_id):
        rows = user.finish(job_id)
        states = {n: row["state"] for n, row in rows.items()}
        assert states == {1: "COMPLETED", 2: "COMPLETED", 3: "FAILED", 4: "COMPLETED"}
        assert [rows[n]["starts"] for n in (2, 4)] == [1, 1]
        assert rows[1]["gpu_memory_limit_mb"] is None
        assert rows[3]["cause"] == "CUDA out of memory"
        assert rows[3]["reason"] == "exit code 1: the GPU's memory was not enough for it"
        reasons = [e["reason"] for e in journal(user, job_id, "requeue") if e["member"] == 3]
        assert "csub's limit on its GPU memory" in reasons[0]
        assert reasons[-1].endswith("; it runs again alone")
        assert "exit code 1: the GPU's memory was not" in user.csub("why", f"{job_id}/3").stdout
    untouched.check()


def test_what_may_not_be_requeued_has_no_limit_but_its_users(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("want.sh", WANT)
    user.script("said.sh", WANT, directives="#CSUB --gpu-mem=2G")
    job_id = submit_pack(user, "said.sh 3G", "want.sh 50G", options=("--no-requeue", *OPTIONS[1:]))
    with explained(user, job_id):
        rows = user.finish(job_id)
        assert (rows[1]["state"], rows[1]["starts"]) == ("FAILED", 1)
        assert rows[1]["cause"] == "CUDA out of memory"
        assert rows[1]["reason"] == (
            "exit code 1: its --gpu-mem (2048 MB) was too small for it, and it may not be requeued"
        )
        assert (rows[2]["state"], rows[2]["starts"]) == ("COMPLETED", 1)
        assert rows[2]["gpu_memory_limit_mb"] is None


def test_a_job_alone_that_is_out_of_gpu_memory_says_so(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("want.sh", WANT)
    job_id = user.submit(*OPTIONS, "want.sh", "200G")
    with explained(user, job_id):
        [row] = user.finish(job_id).values()
        assert (row["state"], row["starts"], row["mode"]) == ("FAILED", 1, "exclusive")
        assert row["cause"] == "CUDA out of memory"
        assert row["reason"] == "exit code 1: the GPU's memory was not enough for it"
