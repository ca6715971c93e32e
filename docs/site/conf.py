"""The site of these documents, for Sphinx: `make docs` (docs/decisions/0054-docs-site.md).

Its sources are the pages as they lie in the repository, so their links need no change. What a
page alone does not say is added when it is read: who reads which page, from docs/README.md, and
all commands, from the program.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from slurm_colloc import __version__

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

project = "slurm_colloc"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = [
    "*.md", "docs/**.md", "hooks/*.md", "site-config/*.md", "packaging/*.md", "tests/report/*.md",
]  # fmt: skip
# Folders without a page are not searched.
exclude_patterns = [
    ".*", "benchmarks", "build", "dist", "hydra_plugins", "lab", "slurm_colloc", "templates",
]  # fmt: skip

# Anchors as those who show the repository make them. What is no CommonMark is left as text.
myst_heading_anchors = 4
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target", "myst_role"]
# Two dashes stay two: options begin with them.
smartquotes = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"slurm_colloc {__version__}"
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
html_use_index = False

LIST_OF_PAGES = "docs/README"
COMMANDS = "docs/commands"
PARTS = {"docs/decisions/README": "0*", "docs/report": "/tests/report/situations"}
"""Pages that another page leads to, in its folder or from the top on."""

_READER = re.compile(r"^\*\*(.+)\*\*$")
_ENTRY = re.compile(r"^- \[(.+?)\]\((.+?)\.md\)")


def list_readers(text: str) -> dict[str, dict[str, str]]:
    """The pages of docs/README.md by reader: the names of pages by what they are called there."""
    readers: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if reader := _READER.match(line):
            readers[reader[1]] = {}
        elif entry := _ENTRY.match(line):
            page = posixpath.normpath(posixpath.join(posixpath.dirname(LIST_OF_PAGES), entry[2]))
            list(readers.values())[-1][entry[1]] = page
    return readers


def render_toctree(entries: list[str], *options: str) -> str:
    """Entries of the navigation, in Markdown."""
    return "\n".join(["", "", "```{toctree}", ":hidden:", *options, "", *entries, "```", ""])


def complete_page(_app: Any, page: str, content: list[str]) -> None:
    """Add to a page what it does not say itself."""
    if page == root_doc:
        text = (ROOT / f"{LIST_OF_PAGES}.md").read_text(encoding="utf-8")
        content[0] += render_toctree(["Start <self>", f"All pages </{LIST_OF_PAGES}>"])
        for reader, pages in list_readers(text).items():
            entries = [f"{title} </{name}>" for title, name in pages.items() if name != root_doc]
            content[0] += render_toctree(entries, f":caption: {reader}")
    elif page == COMMANDS:
        from command_reference import render_commands

        content[0] += render_commands()
    elif page in PARTS:
        content[0] += render_toctree([PARTS[page]], ":glob:")


def add_index(app: Any, problem: Exception | None) -> None:
    """Let a server find the start page."""
    if problem is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", complete_page)
    app.connect("build-finished", add_index)
