"""The texts of this project name only what exists, and nothing that belongs elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_BY_TOOLS = {"__pycache__", "build", "dist", "htmlcov"}
HIDDEN_BUT_OURS = {".ci", ".gitignore"}
# Written in two parts, so that this file does not hold it itself.
UNFINISHED = re.compile("TO" + "DO|FIX" + "ME")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)>\s]+)>?[^)]*\)")
FENCE = re.compile(r"^(```|~~~)[^\n]*\n(.*?)^\1", re.MULTILINE | re.DOTALL)
TOP_LEVEL = ("slurm_colloc", "lab", "templates", "hooks", "site-config", "tests", "docs", r"\.ci")
REPOSITORY_PATH = re.compile(rf"(?<![\w./~-])(?:{'|'.join(TOP_LEVEL)})/[\w./-]*[\w/]")


def is_ours(name: str) -> bool:
    """Say whether a file or folder is the project's own, by its name."""
    return name in HIDDEN_BUT_OURS or not (name.startswith(".") or name in LEFT_BY_TOOLS)


def project_files() -> Iterator[Path]:
    """Yield every file of the project, without what tools leave behind."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if is_ours(name)]
        yield from (Path(folder) / name for name in files if is_ours(name))


def read_text(path: Path) -> str | None:
    """Read a file, or return None where it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def find_paths_in_fences(markdown: str) -> list[str]:
    """Find what looks like a path of this repository in the code fences of a text."""
    return [path for _, code in FENCE.findall(markdown) for path in REPOSITORY_PATH.findall(code)]


MARKDOWN = sorted(
    path.relative_to(ROOT).as_posix() for path in project_files() if path.suffix == ".md"
)


@pytest.mark.parametrize("name", MARKDOWN)
def test_every_relative_link_leads_to_a_file(name: str) -> None:
    text = FENCE.sub("", (ROOT / name).read_text(encoding="utf-8"))
    targets = [
        target.split("#")[0]
        for target in LINK.findall(text)
        if not re.match(r"[a-z][a-z0-9+.-]*:|#", target)
    ]
    missing = [target for target in targets if not ((ROOT / name).parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("name", MARKDOWN)
def test_every_repository_path_in_a_code_fence_exists(name: str) -> None:
    paths = find_paths_in_fences((ROOT / name).read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_paths_in_code_fences_are_recognised() -> None:
    code = "sh .ci/setup; cat docs/a.md, site-config/b. /x/docs/no ~/hooks/no"
    text = f"see tests/none\n\n```sh\n{code}\n```\n"
    assert find_paths_in_fences(text) == [".ci/setup", "docs/a.md", "site-config/b"]


def test_no_text_speaks_of_unfinished_work() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate((read_text(path) or "").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert found == []
    assert UNFINISHED.search("# TO" + "DO: later")


def test_every_decision_record_is_numbered_once_and_listed() -> None:
    records = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    numbers = [int(name.split("-")[0]) for name in records]
    # A record of what no longer exists goes, and its number is not given again.
    assert numbers == sorted(set(numbers))
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    assert [name for name in records if f"({name})" not in index] == []
