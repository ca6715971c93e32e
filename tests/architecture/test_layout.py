"""One finds one's way in the package: modules of a readable size, names that mean one thing."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "slurm_colloc", ROOT / "lab" / "slurm_colloc_lab")
LINES_MOST = 800


def list_modules() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in package.rglob("*.py")
        if not path.name.startswith("__")
    ]


def test_no_module_is_too_long_to_be_read_at_once() -> None:
    lines = {str(path): len(path.read_text().splitlines()) for path in list_modules()}
    assert lines
    assert {path: count for path, count in lines.items() if count > LINES_MOST} == {}


def test_no_two_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for path in list_modules()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    # `slurm_colloc.Job` is what those who use the Executor know.
    assert {name for name, count in names.items() if count > 1} <= {"Job"}
