"""Ids of members and tasks, in csub's words and in Slurm's."""

from __future__ import annotations

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_ids import name_members, parse_job_id
from slurm_colloc.model.member import MemberId, Selection


@pytest.mark.parametrize(
    ("text", "job", "ranges"),
    [
        ("4711", "4711", None),
        ("4711/3", "4711", ((3, 3),)),
        ("4711_3", "4711", ((3, 3),)),
        ("4711_0", "4711", ((0, 0),)),
        ("4711_[1-3,5]", "4711", ((1, 3), (5, 5))),
        ("4711_[1-3,5%2]", "4711", ((1, 3), (5, 5))),
        ("4711_[0-8:4]", "4711", ((0, 0), (4, 4), (8, 8))),
        ("4711_*", "4711", None),
        ("last_2", "last", ((2, 2),)),
        ("L3_1", "L3", ((1, 1),)),
    ],
)
def test_an_id_names_a_job_and_numbers_in_it(
    text: str, job: str, ranges: tuple[tuple[int, int], ...] | None
) -> None:
    assert parse_job_id(text) == (job, ranges)
    assert Selection.parse(text) == Selection(job, ranges)


@pytest.mark.parametrize(
    "text", ["", "train.sh", "4711:3", "4711_", "4711_a", "4711+0", "4711.0", "_3", "4711_[a]"]
)
def test_what_is_no_id_is_none(text: str) -> None:
    assert parse_job_id(text) is None


@pytest.mark.parametrize("text", ["4711/5-3", "4711_[5-3]", "4711_[%2]"])
def test_an_id_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="4711"):
        Selection.parse(text)


def test_a_task_is_the_member_of_that_number() -> None:
    assert MemberId.parse("4711_3") == MemberId.parse("4711/3") == MemberId("4711", 3)


def test_members_are_named_as_ids_that_csub_reads() -> None:
    assert name_members(["54/1", "54/3", "54/2", "54/7"]) == "54/1-3,7"
    assert name_members(["54/1", "L2/4", "54/2"]) == "54/1-2, L2/4"
    assert name_members(["54/x", "54"]) == "54/x, 54", "no id, but no error"
    assert name_members([]) == ""
