"""The documents stay short, each says who reads it, and the first one names every command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from slurm_colloc.cli.subcommands import build_app

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
README_MOST = 1_500
DOCUMENTS_MOST = 42_000
"""All of docs/ together."""

DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
_RECORD = re.compile(r"[0-9]{4}-.*\.md")
PAGES = [README, *(path for path in DOCUMENTS if not _RECORD.fullmatch(path.name))]
"""Those that have readers of their own: a decision record is for who works on the program."""


def count_words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def test_the_readme_is_read_in_some_minutes() -> None:
    assert count_words(README) <= README_MOST


def test_all_documents_together_are_short() -> None:
    words = {path.relative_to(ROOT).as_posix(): count_words(path) for path in DOCUMENTS}
    assert sum(words.values()) <= DOCUMENTS_MOST, words


@pytest.mark.parametrize("name", [path.relative_to(ROOT).as_posix() for path in PAGES])
def test_a_page_says_at_once_who_reads_it(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line]
    assert lines[0].startswith("# ")
    assert any(line.startswith("For ") for line in lines[1:4])


def test_the_readme_has_a_line_for_each_command() -> None:
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    named = {word for row in rows for word in re.findall(r"`csub ([a-z]+)", row.split(" | ")[0])}
    group: Any = typer.main.get_command(build_app())
    commands = {name for name, command in group.commands.items() if not command.hidden}
    assert commands - named == set()
