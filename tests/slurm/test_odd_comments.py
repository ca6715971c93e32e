"""Comments as users write them, in what squeue prints."""

from __future__ import annotations

import pytest

from slurm_colloc.slurm.slurm_commands import find_job_of, parse_queue

ROW = "{}|{}|RUNNING|1:00|9:00|2026-11-21T10:01:07|n1|None|{}\n"
MARK = "[csub-pack=20261121-100107-ab12cd34]"
SUBMISSION = MARK[11:-1]


@pytest.mark.parametrize(
    "own",
    [
        "a\u2028b", "a\u2029b", "a\x85b", "a\x0bb", "a\x0cb", "a\x1cb", "a\rb", "a\nb", "a|b|c",
        "a\n\nb\n",
    ],
)  # fmt: skip
def test_a_comment_is_whole_and_its_job_is_found_by_its_mark(own: str) -> None:
    rows = ROW.format("7", "7", "before") + ROW.format("8", "8", f"{own} {MARK}")
    jobs = {job.job_id: job for job in parse_queue(rows + ROW.format("9_[1-3%2]", "9", "after"))}
    assert [job.comment for job in jobs.values()] == ["before", f"{own} {MARK}", "after"]
    assert find_job_of(jobs, "8", SUBMISSION) is jobs["8"]
    assert find_job_of(jobs, "8", "another") is None


def test_a_line_that_belongs_to_no_job_is_passed_over() -> None:
    assert parse_queue("") == []
    assert parse_queue("slurm_load_jobs error: something\n") == []
