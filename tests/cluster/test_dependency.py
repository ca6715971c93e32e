"""--dependency on members: afterok:4711/3."""

from __future__ import annotations

import json

import pytest

from ..bed import CsubUser
from ..commands.dependent_packs import PACK, start_pack, wait_for_slurm

pytestmark = pytest.mark.slurm


@pytest.mark.smoke
def test_a_job_starts_as_soon_as_its_member_has_ended_and_before_the_pack(user: CsubUser) -> None:
    job_id = start_pack(user, "go.sh 1", "go.sh 2", "go.sh 3")
    late = user.submit(*PACK, f"--dependency=afterok:{job_id}/2", "next.sh", "ok")
    wait_for_slurm(user, late, f"PENDING Dependency afterany:{job_id}(unfulfilled)")
    (row,) = json.loads(user.csub("show", "--json", late).stdout)
    assert row["reason"] == f"Dependency on afterok:{job_id}/2"
    user.run(["touch", "go.2"])
    user.wait_for_states(late, "COMPLETED")
    assert user.members(job_id)[1]["state"] == "RUNNING"
    assert user.output("ran.next.ok")
    user.run(["touch", "go.1", "go.3"])
    user.finish(job_id)


@pytest.mark.smoke
def test_a_condition_that_fails_ends_the_job_with_the_reason(user: CsubUser) -> None:
    job_id = start_pack(user, "go.sh 1 3", "go.sh 2")
    bad = user.submit(*PACK, f"--dependency=afterok:{job_id}/1", "next.sh", "bad")
    good = user.submit(*PACK, f"--dependency=afternotok:{job_id}/1", "next.sh", "good")
    pack = user.submit(
        "pack", *PACK, f"--dependency=afterok:{job_id}/1", "next.sh bad", "next.sh bad"
    )
    user.run(["touch", "go.1"])
    user.wait_for_states(good, "COMPLETED")
    user.run(["touch", "go.2"])
    for doomed in (bad, pack):
        for row in user.wait_for_states(doomed, "CANCELLED").values():
            assert row["reason"] == f"Dependency on {job_id}/1 (afterok) was not satisfied"
            assert row["starts"] == 0
    assert not (user.home / "ran.next.bad").exists()
