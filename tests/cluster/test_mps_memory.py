"""GPU memory under MPS: each has its limit, and who needs more waits for it."""

from __future__ import annotations

import pytest

from ..wait_until import wait_until
from .conftest import CsubUser
from .mps import OPTIONS, Untouched, explained, journal, submit_pack, wait_for_clients

pytestmark = pytest.mark.slurm

UNTIL_END = 'until [ -e "$1" ]; do sleep 0.1; done'
TRAIN = f"simgpu run --seconds 300 & pid=$!; {UNTIL_END}; kill $pid"
WANT = 'exec simgpu run --seconds 0.3 --gpu-memory "$1"'


def test_a_member_beyond_its_limit_waits_for_a_larger_share_while_its_neighbours_go_on(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    user.script("want.sh", WANT)
    job_id = submit_pack(
        user, "--gpu-mem=10G", "train.sh end1", "want.sh 15G", "train.sh end2", "train.sh end2"
    )
    with explained(user, job_id):
        wait_for_clients(user, job_id, 1, 3, 4)
        waiting = "its share of the GPU's memory was not enough; it runs again with 2 of 4 shares"
        rows = wait_until(
            lambda: (found := user.members(job_id))[2]["reason"] == waiting and found,
            "the member waits",
        )
        assert (rows[2]["state"], rows[2]["cause"]) == ("PENDING", "CUDA out of memory")
        assert rows[2]["evidence"][0].startswith(
            "its output: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        )
        told = user.csub("why", f"{job_id}/2").stdout
        assert told.startswith(f"{job_id}/2 PENDING: ")
        assert waiting in told
        assert told.endswith(": it starts as soon as 2 of 4 places are free\n")
        assert [rows[n]["starts"] for n in (1, 3, 4)] == [1, 1, 1]
        (user.home / "end1").touch()
        rows = user.wait_for_states(job_id, {2: "COMPLETED", 3: "RUNNING", 4: "RUNNING"})
        assert (rows[2]["starts"], rows[2]["gpu_memory_limit_mb"]) == (2, 20480)
        assert rows[2]["thread_percentage"] == 100
        assert rows[2]["mode"] == "mps"
        (user.home / "end2").touch()
        rows = user.finish(job_id)
        assert [rows[n]["starts"] for n in (1, 3, 4)] == [1, 1, 1]
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    untouched.check()


def test_in_the_end_it_runs_alone_and_fails_where_even_that_is_not_enough(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("want.sh", WANT)
    # The fair share of four is 35 GiB, the GPU has 140.
    job_id = submit_pack(user, "want.sh 100G", "want.sh 1G", "want.sh 200G", "want.sh 1G")
    with explained(user, job_id):
        rows = user.finish(job_id)
        assert {n: (row["state"], row["starts"]) for n, row in rows.items()} == {
            1: ("COMPLETED", 3),
            2: ("COMPLETED", 1),
            3: ("FAILED", 3),
            4: ("COMPLETED", 1),
        }
        assert rows[1]["gpu_memory_limit_mb"] is None
        assert rows[1]["thread_percentage"] == 100
        assert rows[3]["cause"] == "CUDA out of memory"
        assert rows[3]["reason"] == "exit code 1: the GPU's memory was not enough for it"
        reasons = [e["reason"] for e in journal(user, job_id, "requeue") if e["member"] == 3]
        assert reasons == [
            "its share of the GPU's memory was not enough; it runs again with 2 of 4 shares",
            "its share of the GPU's memory was not enough; it runs again alone",
        ]
        assert "exit code 1: the GPU's memory was not" in user.csub("why", f"{job_id}/3").stdout
    untouched.check()


def test_without_leave_to_requeue_it_fails_at_once(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("want.sh", WANT)
    job_id = submit_pack(
        user, "--gpu-mem=2G", "want.sh 3G", "want.sh 1G", options=("--no-requeue", *OPTIONS[1:])
    )
    with explained(user, job_id):
        rows = user.finish(job_id)
        assert (rows[1]["state"], rows[1]["starts"]) == ("FAILED", 1)
        assert rows[1]["cause"] == "CUDA out of memory"
        assert rows[1]["reason"] == (
            "exit code 1: its share of the GPU's memory was not enough, and it may not be requeued"
        )
        assert (rows[2]["state"], rows[2]["starts"]) == ("COMPLETED", 1)


def test_a_job_alone_that_is_out_of_gpu_memory_says_so(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("want.sh", WANT)
    job_id = user.submit(*OPTIONS, "want.sh", "200G")
    with explained(user, job_id):
        [row] = user.finish(job_id).values()
        assert (row["state"], row["starts"], row["mode"]) == ("FAILED", 1, "exclusive")
        assert row["cause"] == "CUDA out of memory"
        assert row["reason"] == "exit code 1: the GPU's memory was not enough for it"
