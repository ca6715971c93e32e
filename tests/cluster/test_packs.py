"""One allocation really holds several members at once."""

from __future__ import annotations

import re

import pytest

from ..bed import CsubUser

pytestmark = pytest.mark.slurm


@pytest.mark.smoke
def test_a_pack_is_one_slurm_job_whose_members_run_at_the_same_time(user: CsubUser) -> None:
    for name in ("a.sh", "b.sh", "c.sh"):
        user.script(name, "date +%s.%N; sleep 2; date +%s.%N; exit 0")
    answer = user.csub(
        "pack", "--gres=gpu:1", "-c2", "--mem=200M", "--time=10", "a.sh", "b.sh", "c.sh"
    )
    match = re.fullmatch(r"Submitted batch job (\d+)\n", answer.stdout)
    assert match
    assert answer.stderr == (
        f"csub: members {match[1]}/1-{match[1]}/3 in 1 pack, mps or timeslice\n"
    )
    job_id = match[1]
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 3
    assert {row["slurm_job_id"] for row in rows.values()} == {job_id}
    spans = [
        tuple(float(line) for line in user.output(f"slurm-{job_id}_{number}.out").split())
        for number in rows
    ]
    assert max(start for start, _ in spans) < min(end for _, end in spans)
    jobs = user.run(["squeue", "--states=all", "-h", "-o", "%A", "-u", user.name]).stdout.split()
    assert jobs.count(job_id) == 1
