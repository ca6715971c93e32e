from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job_values import PatternValues, choose_output_paths, expand_pattern

VALUES = PatternValues("4711", "1795491552", True, 3, True, "train", "node1", "ada")


# sbatch(1), FILENAME PATTERN; the batch script is task 0 on node 0.
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("%%", "%"),
        ("%A", "4711"),
        ("%a", "3"),
        ("%J", "1795491552"),
        ("%j", "1795491552"),
        ("%N", "node1"),
        ("%n", "0"),
        ("%s", "batch"),
        ("%t", "0"),
        ("%u", "ada"),
        ("%x", "train"),
        ("job%4A.out", "job4711.out"),
        ("job%6A.out", "job004711.out"),
        ("job%j-%2t.out", "job1795491552-00.out"),
        ("%10a|%99a", "0000000003|0000000003"),
        ("%A_%a-%x.log", "4711_3-train.log"),
        ("%5x", "train"),
        ("100%", "100%"),
        ("%q", "%q"),
        # As many digits as no number may have; those of other scripts are none.
        (f"%{'9' * 5000}A", "0000004711"),
        (f"%{'0' * 5000}6A", "004711"),
        ("%\u0664j", "%\u0664j"),
        ("%%a", "%a"),
        ("\\%j", "%j"),
        ("a\\%A_%a", "a%A_%a"),
        ("", ""),
    ],
)
def test_patterns_as_sbatch_expands_them(pattern: str, expected: str) -> None:
    assert expand_pattern(pattern, VALUES) == expected


def test_the_array_index_modulo_ten() -> None:
    assert expand_pattern("%b", dataclasses.replace(VALUES, number=47)) == "7"


@pytest.mark.parametrize(
    ("output", "error", "expected"),
    [
        (None, None, ("slurm-4711_3.out", None)),
        ("run.log", None, ("run_3.log", None)),
        ("run", None, ("run_3", None)),
        (".hidden", None, (".hidden_3", None)),
        ("logs.d/run", None, ("logs.d/run_3", None)),
        ("slurm-%j.out", "slurm-%j.err", ("slurm-1795491552.out", "slurm-1795491552.err")),
        ("%x-%a.out", "%x-%a.err", ("train-3.out", "train-3.err")),
        (None, "run.err", ("slurm-4711_3.out", "run_3.err")),
        ("/dev/null", "/dev/stderr", ("/dev/null", "/dev/stderr")),
        ("/dev/shm/run.log", None, ("/dev/shm/run_3.log", None)),
        ("%%a.log", None, ("%a_3.log", None)),
        ("\\%a.log", None, ("%a_3.log", None)),
    ],
)
def test_a_members_files(
    output: str | None, error: str | None, expected: tuple[str, str | None]
) -> None:
    assert choose_output_paths(output, error, VALUES, alone=False) == expected


def test_a_lone_job_writes_where_sbatch_would() -> None:
    assert choose_output_paths(None, None, VALUES, alone=True) == ("slurm-1795491552.out", None)
    assert choose_output_paths("run.log", "e", VALUES, alone=True) == ("run.log", "e")


def test_a_number_of_its_own_tells_a_member_apart() -> None:
    own = dataclasses.replace(VALUES, own_id="1795491553", is_alone_in_it=True)
    assert expand_pattern("%A %j %J", own) == "4711 1795491553 1795491553"
    assert choose_output_paths("log.%j", "run.err", own, alone=False) == (
        "log.1795491553",
        "run_3.err",
    )


PIECES = st.sampled_from(
    [
        "%a",
        "%3a",
        "%A",
        "%j",
        "%x",
        "%b",
        "%N",
        "%u",
        "%%",
        "run",
        ".log",
        "/",
        "_",
        "1",
        "11",
        "\\",
    ]
)
PATTERNS = st.lists(PIECES, min_size=1, max_size=6).map("".join)
NUMBERS = st.integers(0, 1200)
TWO_NUMBERS = st.tuples(NUMBERS, NUMBERS).filter(lambda two: two[0] != two[1])
NAMES = st.sampled_from(["train", "train_1", "1", "a.b", "11"])


def choose(pattern: str | None, number: int, name: str, *, has_own_id: bool = True) -> str:
    own_id = str(1795491550 + number) if has_own_id else "4711"
    values = dataclasses.replace(
        VALUES, own_id=own_id, is_alone_in_it=has_own_id, number=number, name=name
    )
    return choose_output_paths(pattern, None, values, alone=False)[0]


@given(pattern=st.none() | PATTERNS, numbers=TWO_NUMBERS, name=NAMES, has_own_id=st.booleans())
def test_no_two_tasks_of_an_array_have_one_file(
    pattern: str | None, numbers: tuple[int, int], name: str, has_own_id: bool
) -> None:
    first, second = (choose(pattern, number, name, has_own_id=has_own_id) for number in numbers)
    assert first != second


def test_with_the_id_of_the_pack_the_number_tells_files_apart() -> None:
    assert choose("run-%j.log", 3, "train", has_own_id=False) == "run-4711_3.log"
    assert choose("run-%j.log", 3, "train") == "run-1795491553.log"


@given(
    patterns=st.tuples(PATTERNS, PATTERNS).filter(lambda two: not {"a", "j"} & {*"".join(two)}),
    numbers=TWO_NUMBERS,
    names=st.tuples(NAMES, NAMES),
)
def test_no_two_scripts_of_a_pack_have_one_file_whatever_they_call_it(
    patterns: tuple[str, str], numbers: tuple[int, int], names: tuple[str, str]
) -> None:
    assert choose(patterns[0], numbers[0], names[0]) != choose(patterns[1], numbers[1], names[1])
