"""One finds one's way in the package: modules of a readable size, names that mean one thing."""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "slurm_colloc", ROOT / "lab" / "slurm_colloc_lab")
LINES_MOST = 800
_BLANK = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


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


def count_code_lines(text: str) -> int:
    """Lines with code on them: neither blank nor of comments nor of docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # A text that stands by itself tells about what is above it.
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(lines)


def test_code_lines_are_counted() -> None:
    assert count_code_lines('"""A page.\n\nMore.\n"""\n\nx = 1  # why\n"""Of x."""\n# why\n') == 1
    assert count_code_lines("def f():\n    'what'\n    return (\n        1\n    )\n") == 4


def test_no_package_is_larger_than_its_budget() -> None:
    """A budget in pyproject.toml is raised only where another is lowered (CONTRIBUTING.md)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    budgets = project["tool"]["slurm_colloc"]["code-lines"]
    found: Counter[str] = Counter()
    for path in (ROOT / "slurm_colloc").rglob("*.py"):
        package = path.relative_to(ROOT / "slurm_colloc").parts[0]
        name = "top" if package.endswith(".py") else package
        found[name] += count_code_lines(path.read_text())
    assert budgets.keys() == found.keys()
    assert {name: lines for name, lines in found.items() if lines > budgets[name]} == {}
