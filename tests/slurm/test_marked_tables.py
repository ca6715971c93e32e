"""Rows of squeue and sacct with marks in them: a name may hold anything."""

from __future__ import annotations

import pytest

from slurm_colloc.slurm.marked_tables import build_queue_question, parse_rows, split_rows

NAMES = ("a\nb", "\na", "a\n", "\n\n", "a\rb", "\u2028")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_with_line_breaks_is_one_cell_of_squeue(name: str) -> None:
    question = build_queue_question(["-o", "%i %j!"], {}, {"A": "jobid"})
    assert question is not None
    marked = (
        "JOBID\x1e\x1fJOBID \x1fNAME!\x1f",
        f"7\x1e\x1f7 \x1f{name}!\x1f",
        "8\x1e\x1f8 \x1fc!\x1f",
    )
    rows = split_rows("\n".join(marked), question.fields)
    assert rows is not None
    assert [list(row.cells) for row in rows[1:]] == [["7 ", f"{name}!"], ["8 ", "c!"]]
    assert [row.text() for row in rows] == ["JOBID NAME!", f"7 {name}!", "8 c!"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_with_line_breaks_is_one_cell_of_sacct(name: str) -> None:
    rows = (("Cluster", "JobIDRaw", "JobID", "State", "JobName"), ("c", "7", "7", "R", name),
            ("c", "8", "8", "R", "c"))  # fmt: skip
    found = parse_rows("".join("\x1f".join([*row, "\n"]) for row in rows))
    assert found is not None
    assert [row.cells for row in found[1]] == [("R", name), ("R", "c")]
    assert [row.job_id for row in found[1]] == ["7", "8"]


@pytest.mark.parametrize("row", ["7\x1e\x1fa\x1fb\x1f", "7\x1e\x1fa", "7\x1e\x1fa\n8\x1e\x1fb\x1f"])
def test_a_row_of_squeue_with_too_few_or_too_many_marks_is_left_to_it(row: str) -> None:
    question = build_queue_question(["-o", "%j"], {}, {"A": "jobid"})
    assert question is not None
    assert split_rows(row, question.fields) is None


@pytest.mark.parametrize("row", ["c|7|7|a|b|", "c|7|7|", "c|7|7|a", "c|7|7|a|b\nc|7|7|a|"])
def test_a_row_of_sacct_with_too_few_or_too_many_marks_is_left_to_it(row: str) -> None:
    text = f"Cluster|JobIDRaw|JobID|JobName|\n{row}\n"
    assert parse_rows(text.replace("|", "\x1f")) is None
