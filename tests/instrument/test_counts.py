"""What is counted is exactly what each program says itself."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from .counted_programs import PROGRAMS, Ended, run

pytestmark = [
    pytest.mark.long,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing"),
]

CASES = [
    node.name
    for node in ast.parse((PROGRAMS / "cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.decorator_list
]


@dataclass(frozen=True)
class Told:
    """What the programs said, and what was counted."""

    lines: dict[str, list[dict[str, Any]]]
    ended: Ended


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """All cases, run one after the other by one process that has imported torch once."""
    ended = run([sys.executable, PROGRAMS / "cases.py", *CASES], tmp_path_factory.mktemp("counts"))
    assert ended.code == 0, ended.stderr
    lines: dict[str, list[dict[str, Any]]] = {}
    for line in ended.stdout.splitlines():
        said = json.loads(line)
        lines.setdefault(said["case"], []).append(said)
    return Told(lines, ended)


@pytest.mark.parametrize("case", [*CASES, "child by fork", "child by spawn"])
def test_the_count_is_what_the_program_says(told: Told, case: str) -> None:
    assert told.lines[case]
    for said in told.lines[case]:
        counted = told.ended.steps_of(said["pid"])
        assert counted == (said["steps"], said["skipped"], said["samples"])


def test_nothing_is_written_to_the_programs_output(told: Told) -> None:
    assert "slurm_colloc" not in told.ended.stderr
    assert set(told.lines) == {*CASES, "child by fork", "child by spawn"}
