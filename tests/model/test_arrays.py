from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job_ids import ArraySpec, format_task_ids, parse_array


@pytest.mark.parametrize(
    ("text", "task_ids", "limit"),
    [
        ("3", (3,), None),
        ("0-3", (0, 1, 2, 3), None),
        ("0-7%2", tuple(range(8)), 2),
        ("1,3,5-9:2", (1, 3, 5, 7, 9), None),
        ("5,1,1-2", (1, 2, 5), None),
        ("0-15:4%3", (0, 4, 8, 12), 3),
        ("[1-4]%2", (1, 2, 3, 4), 2),
        ("[7]", (7,), None),
        ("1,,2,", (1, 2), None),
        ("0-3%0", (0, 1, 2, 3), None),
        ("4-4", (4,), None),
    ],
)
def test_an_array_is_read(text: str, task_ids: tuple[int, ...], limit: int | None) -> None:
    assert parse_array(text) == ArraySpec(task_ids, limit)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "names no task"),
        (",", "names no task"),
        ("[]", "names no task"),
        ("7-3", "the range 7-3 runs backwards"),
        ("a", "'a' is neither a number nor a range"),
        ("1-", "'1-' is neither a number nor a range"),
        ("-1", "'-1' is neither a number nor a range"),
        ("1-2-3", "is neither a number nor a range"),
        ("1:2", "is neither a number nor a range"),
        ("0-8:0", "the step 0 must be from 1"),
        ("0-3%", "after '%' stands one number, once"),
        ("0-3%x", "after '%' stands one number, once"),
        ("0%2,1%2", "after '%' stands one number, once"),
        ("0-99999999999", "task 99999999999 is above the largest allowed"),
    ],
)
def test_what_is_no_array_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^array ") as caught:
        parse_array(text)
    assert sentence in str(caught.value)


def test_the_largest_task_number_can_be_set() -> None:
    assert parse_array("0-1000", max_task_id=1000).task_ids[-1] == 1000
    with pytest.raises(ValueError, match="task 1001 is above the largest allowed, 1000"):
        parse_array("1001", max_task_id=1000)


@pytest.mark.parametrize(
    ("task_ids", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([1, 2], "1-2"),
        ([1, 3], "1,3"),
        ([5, 2, 0, 1, 7], "0-2,5,7"),
        ([1, 3, 5, 7, 9], "1-9:2"),
    ],
)
def test_task_numbers_are_written_in_short(task_ids: list[int], text: str) -> None:
    assert format_task_ids(task_ids) == text


@given(st.sets(st.integers(0, 200), min_size=1))
def test_written_task_numbers_read_the_same(task_ids: set[int]) -> None:
    assert parse_array(format_task_ids(task_ids)).task_ids == tuple(sorted(task_ids))


@given(st.text(alphabet="0123456789-,:%[] x", max_size=12))
def test_no_text_makes_the_parser_fail_otherwise(text: str) -> None:
    try:
        spec = parse_array(text, max_task_id=1000)
    except ValueError as error:
        message = str(error)
        assert message.startswith("array ")
    else:
        assert spec.task_ids == tuple(sorted(set(spec.task_ids)))
        assert 0 <= spec.task_ids[0] <= spec.task_ids[-1] <= 1000
