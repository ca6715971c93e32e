"""The site of the documents: all commands, links that lead somewhere, and nothing from outside.

`make docs` names the site that it has built, and runs these for each commit; else one is built
here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import typer

from slurm_colloc.cli.admin_command import build_parser
from slurm_colloc.cli.subcommands import build_app
from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS

if any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")):
    pytest.skip("Sphinx is not installed (make docs installs it)", allow_module_level=True)

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
LOADED = {"img": "src", "link": "href", "script": "src", "source": "src", "iframe": "src"}
"""What a browser asks for without a click."""


def build_site(source: Path, into: Path, builder: str = "html") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder]
    argv += ["-c", str(source / "docs/site"), "-d", str(into / "read"), str(source)]
    return subprocess.run(
        [*argv, str(into / "site")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


class Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := named.get(name))}
        if tag == "a" and named.get("href"):
            self.links.append(named["href"] or "")
        if tag in LOADED and (address := named.get(LOADED[tag])):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = os.environ.get("CSUB_BUILT_SITE")
    if built:
        return (ROOT / built).resolve()
    top = tmp_path_factory.mktemp("docs")
    done = build_site(ROOT, top)
    assert (done.returncode, done.stderr) == (0, "")
    return top / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {
        path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
    }


def list_commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from list_commands(inner, (*words, name))


def test_every_page_of_the_repository_is_on_the_site(pages: dict[str, Page]) -> None:
    written = {
        path.relative_to(ROOT).with_suffix(".html").as_posix()
        for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    }
    assert written - pages.keys() == set()
    assert pages["index.html"].anchors == pages["README.html"].anchors


def test_every_link_leads_to_a_file_and_an_anchor(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for name, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(urljoin(f"file:///{name}", link))
            if parts.scheme != "file":
                continue
            target = unquote(parts.path).lstrip("/") or name
            anchors = pages[target].anchors if target in pages else set()
            is_there = (site / target).is_file()
            if not is_there or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Page]) -> None:
    foreign = re.compile(r"(?:[a-z]+:)?//")
    assert [one for page in pages.values() for one in page.loaded if foreign.match(one)] == []
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert re.findall(r"url\(\s*['\"]?(?:https?:)?//|@import", text) == [], style


def test_the_navigation_has_the_readers_of_the_list_of_pages(site: Path) -> None:
    text = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    readers = re.findall(r"^\*\*(.+)\*\*$", text, re.MULTILINE)
    start = (site / "README.html").read_text(encoding="utf-8")
    assert re.findall(r'class="caption"[^>]*><span class="caption-text">([^<]+)', start) == readers


def test_the_reference_names_every_command_and_option(site: Path, pages: dict[str, Page]) -> None:
    group = typer.main.get_command(build_app())
    commands = {"-".join(words) for words in list_commands(group, ("csub",))} - {"csub"}
    admin: Any = next(action for action in build_parser()._actions if action.choices)
    commands |= {f"csub-admin-{name}" for name in admin.choices}
    assert len(commands) > 40
    assert commands - pages["docs/commands.html"].anchors == set()
    text = re.sub(r"<[^>]+>", "", (site / "docs/commands.html").read_text(encoding="utf-8"))
    options = {f"--{option.name}" for option in (*OWN_OPTIONS, *SBATCH_OPTIONS)}
    assert options - set(re.findall(r"--[a-z][a-z-]*", text)) == set()
    # Not even in a sentence are the two dashes of an option set as one.
    assert "\N{EN DASH}" not in text


BROKEN = {
    "[a file](docs/none.md)": "cross-reference target not found: 'docs/none.md'",
    "[an anchor](docs/commands.md#none)": "local id not found in doc 'docs/commands': 'none'",
    "[an anchor of this page](#here)": "cross-reference target not found: 'here'",
    "![a picture](docs/none.png)": "image file not readable: docs/none.png",
}


def test_a_broken_link_and_a_page_that_no_reader_finds_break_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "docs/site", source / "docs/site")
    right = "[commands](docs/commands.md#all)"
    (source / "README.md").write_text("\n\n".join(["# Start", right, *BROKEN]) + "\n")
    (source / "docs/README.md").write_text("# Pages\n\n**All**\n- [Commands](commands.md)\n")
    (source / "docs/commands.md").write_text("# Commands\n\n## All\n")
    (source / "docs/lost.md").write_text("# Lost\n")
    done = build_site(source, tmp_path, "dummy")
    assert done.returncode != 0
    wanted = [*BROKEN.values(), "docs/lost.md: WARNING: document isn't included in any toctree"]
    assert [words for words in wanted if words not in done.stderr] == []
    assert done.stderr.count("WARNING") == len(wanted)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if os.environ.get("CSUB_TEST_WITHOUT_BROWSER") == "1":
        pytest.skip("CSUB_TEST_WITHOUT_BROWSER=1 asks for it")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (Debian: package chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield chromium
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize("size", SIZES)
def test_pages_fit_a_screen_and_load_their_own_files_alone(
    browser: Any, site: Path, size: str
) -> None:
    page = browser.new_page(viewport=SIZES[size])
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(asked.url))
    for name in ("index", "docs/commands", "docs/json", "docs/decisions/README"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"], name
    assert [one for one in wrong if not one.startswith((site.as_uri(), "data:"))] == []
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("size", SIZES)
def test_a_search_finds_a_page_without_a_server(browser: Any, site: Path, size: str) -> None:
    page = browser.new_page(viewport=SIZES[size])
    page.goto((site / "index.html").as_uri())
    if size == "phone":
        page.locator("label[for=__navigation]:visible").click()
    page.locator("input.sidebar-search").fill("prometheus textfile collector")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    found = page.locator("#search-results li a").all_inner_texts()
    assert "Commands" in found
    page.close()
