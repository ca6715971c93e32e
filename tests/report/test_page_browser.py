"""The page in a headless Chromium: what people do with it, and no error, request or barrier."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.report.page.render_page import build_week, render_page, render_week
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.store.member_states import MEASURED

from ..suites import leave_to_parts
from .generated import T0, Truth, build_summary, make_pack, write_stops
from .generated_days import write_days
from .situations import SITUATIONS, is_there, make_summary
from .test_instances_on_page import make_walled
from .test_page_facts import make_week

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if os.environ.get("CSUB_TEST_WITHOUT_BROWSER") == "1":
    pytest.skip("CSUB_TEST_WITHOUT_BROWSER=1 asks for it", allow_module_level=True)
if CHROMIUM is None:
    pytest.skip("there is no Chromium (Debian: package chromium)", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

pytestmark = pytest.mark.browser

WIDE = {"width": 1100, "height": 900}
PHONE = {"width": 360, "height": 740}
DARK_LINE = (0x3A, 0x42, 0x4C)
"""The lines of the grid in dark, as page.css has them."""
SEVERE = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        # Root's Chromium has no sandbox of its own; the page is ours.
        chromium = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield chromium
        chromium.close()


class Opened:
    """A page that is open, and what went wrong with it."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.wrong: list[str] = []
        options.setdefault("viewport", WIDE)
        self.page = browser.new_page(**options)
        self.page.on("console", lambda said: self.wrong.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda shown: self.wrong.append(f"dialog: {shown.message}"))
        self.page.on("request", lambda asked: self._note_request(asked.url, file))
        self.page.goto(file.as_uri())

    def _note_request(self, url: str, file: Path) -> None:
        if url != file.as_uri() and not url.startswith("data:"):
            self.wrong.append(f"request: {url}")

    def count_drawn(self, colour: tuple[int, int, int] | None = None) -> int:
        """Points of all canvases that are drawn, of one colour where that is given."""
        found: int = self.page.evaluate(
            """(colour) => [...document.querySelectorAll("canvas")].reduce((sum, canvas) => {
                const { width, height } = canvas;
                const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
                let drawn = 0;
                for (let i = 0; i < data.length; i += 4) {
                    const same = !colour || colour.every((c, k) => c === data[i + k]);
                    if (data[i + 3] && same) drawn += 1;
                }
                return sum + drawn;
            }, 0)""",
            None if colour is None else list(colour),
        )
        return found

    def find_barriers(self) -> list[str]:
        """What axe-core takes for serious or worse."""
        results = axe.Axe().run(self.page)
        return [
            f"{found['id']}: {[node['html'][:120] for node in found['nodes'][:3]]}"
            for found in results.response["violations"]
            if found["impact"] in SEVERE
        ]

    def close(self) -> None:
        self.page.close()
        assert self.wrong == []


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of three: one that comes later, pauses, a failure, hostile names."""
    folder = tmp_path_factory.mktemp("page")
    truths = [
        Truth(1, 0, 120, lambda at: 20 if at < 60 else 12, stops=[(70.0, 71.0), (80.0, 90.0)]),
        Truth(2, 60, 120, lambda _: 9),
        Truth(3, 60, 110, lambda _: 9),
    ]
    names = ["resnet", "</script><img src=http://x.invalid/ onerror=alert(1)>", "vit"]
    pack = make_pack(folder, truths, names=names, failed=[3], predicted={1: 1.4, 2: 1.5, 3: 1.5})
    write_stops(pack, truths, MEASURED)
    file = folder / "page.html"
    file.write_text(render_page([PageSource(build_summary(pack, folder), pack)]))
    return file


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Opened]:
    found = Opened(browser, page_file)
    yield found
    found.close()


def read_shown(opened: Opened) -> tuple[float, float]:
    low, _, high = opened.page.locator(".charts").get_attribute("data-shown").partition("-")
    return float(low), float(high)


def test_what_is_wrong_with_a_page_is_seen(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    file.write_text(
        '<html><body><img src="http://x.invalid/a.png"><p style="color:#ccc">pale</p>'
        "<script>console.log('said'); throw new Error('broken')</script></body></html>"
    )
    opened = Opened(browser, file)
    for kind in ("console: said", "error: broken", "request: http://x.invalid/a.png"):
        assert any(kind in wrong for wrong in opened.wrong), opened.wrong
    assert {"color-contrast", "image-alt"} <= {
        barrier.partition(":")[0] for barrier in opened.find_barriers()
    }
    opened.page.close()


def test_everything_is_drawn(opened: Opened) -> None:
    titles = opened.page.locator(".figure h3").all_inner_texts()
    assert titles == ["Members on the GPU", "Rate", "GPU activity", "GPU memory", "Power"]
    assert opened.page.locator("canvas").count() == 5
    assert opened.count_drawn() > 10_000
    names = opened.page.locator(".chart").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert "4711/2 from 1:00 to 2:00" in names[0]
    assert all(names)


def test_each_mig_instance_is_drawn(browser: Any, tmp_path: Path) -> None:
    pack = make_walled(tmp_path)
    file = tmp_path / "mig.html"
    file.write_text(render_page([PageSource(build_summary(pack, tmp_path), pack)]))
    opened = Opened(browser, file)
    titles = opened.page.locator(".figure h3").all_inner_texts()
    assert [title for title in titles if "instance" in title] == [
        "SM activity by instance",
        "GPU memory by instance",
    ]
    names = opened.page.locator(".chart").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert any("4g.40gb of 39.5 GB: /1: mean 80 %" in name for name in names)
    assert opened.wrong == []
    assert opened.find_barriers() == []
    opened.page.close()


def test_pointing_at_a_moment_tells_who_was_there_and_how_fast(opened: Opened) -> None:
    chart = opened.page.locator(".chart .u-over").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.page.mouse.move(box["x"] + 0.70 * box["width"], box["y"] + 10)
    told = opened.page.locator(".figure p").all_inner_texts()
    assert "4711/1 (paused to measure others)" in told[0]
    assert "4711/2" in told[0]
    assert told[1].startswith("1:2")
    assert "4711/2 9" in told[1]
    assert "SM 50 %" in told[2]
    opened.page.mouse.move(5, 5)
    assert "Each bar is a member" in opened.page.locator(".figure p").first.inner_text()


def test_dragging_the_buttons_and_the_keys_zoom_all_charts_of_a_pack(opened: Opened) -> None:
    assert read_shown(opened) == (0.0, 120.0)
    chart = opened.page.locator(".chart .u-over").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 10)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 10, steps=5)
    opened.page.mouse.up()
    low, high = read_shown(opened)
    assert low == pytest.approx(30, abs=3)
    assert high == pytest.approx(90, abs=3)
    opened.page.get_by_role("button", name="All", exact=True).click()
    assert read_shown(opened) == (0.0, 120.0)
    opened.page.get_by_role("button", name="Zoom in").click()
    assert read_shown(opened) == (30.0, 90.0)
    opened.page.locator(".chart").nth(2).focus()
    for key, shown in (
        ("ArrowRight", (60.0, 120.0)), ("ArrowRight", (60.0, 120.0)), ("ArrowLeft", (30.0, 90.0)),
        ("+", (45.0, 75.0)), ("Home", (0.0, 120.0)), ("-", (0.0, 120.0)),
    ):  # fmt: skip
        opened.page.keyboard.press(key)
        assert read_shown(opened) == shown, key
    chart.dblclick()
    assert "Shown: 0:00 to 2:00 of 2:00" in opened.page.locator(".shown").inner_text()


def test_the_filter_leaves_the_members_that_match(opened: Opened) -> None:
    before = opened.count_drawn()
    opened.page.get_by_label("Show only").fill("FAILED")
    rows = opened.page.locator("#table tbody tr:visible")
    assert rows.count() == 1
    assert "4711/3" in rows.first.inner_text()
    assert opened.page.locator("#filtered").inner_text() == "1 of 3"
    assert opened.page.locator(".legend").first.inner_text() == "4711/3"
    assert opened.count_drawn() < before
    opened.page.get_by_label("Show only").fill("no such member")
    assert rows.count() == 0
    opened.page.get_by_label("Show only").fill("")
    assert rows.count() == 3
    assert opened.count_drawn() == before


def test_a_hint_leads_to_its_word(opened: Opened) -> None:
    link = opened.page.locator("#table a", has_text="Slowdown")
    assert "times slower than alone" in link.get_attribute("title")
    assert not opened.page.locator("#word-SLOWDOWN").is_visible()
    link.focus()
    opened.page.keyboard.press("Enter")
    opened.page.locator("#word-SLOWDOWN").wait_for(state="visible")


@pytest.mark.parametrize(
    ("size", "scheme"),
    leave_to_parts(
        itertools.product((WIDE, PHONE), ("light", "dark")),
        but=((WIDE, "light"), (PHONE, "dark")),
    ),
)
def test_light_and_dark_wide_and_narrow_no_one_is_shut_out(
    browser: Any, page_file: Path, scheme: str, size: dict[str, int]
) -> None:
    opened = Opened(browser, page_file, color_scheme=scheme, viewport=size)
    for details in opened.page.locator("details").all():
        details.evaluate("one => { one.open = true; }")
    assert opened.find_barriers() == []
    width = opened.page.evaluate("document.documentElement.scrollWidth")
    assert width <= size["width"], "only the table scrolls to the side"
    assert opened.count_drawn() > 5_000
    opened.close()


def test_the_other_theme_is_a_button_away(opened: Opened) -> None:
    def read_back() -> str:
        back: str = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return back

    assert read_back() == "rgb(255, 255, 255)"
    opened.page.get_by_role("button", name="Show dark").click()
    assert read_back() != "rgb(255, 255, 255)"
    assert opened.find_barriers() == []
    opened.page.get_by_role("button", name="Show light").click()
    assert read_back() == "rgb(255, 255, 255)"


def test_it_prints_in_black_on_white_without_its_buttons(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, color_scheme="dark")
    assert opened.count_drawn(DARK_LINE) > 100
    # As a browser does it: the pictures are drawn before the paper's colours hold.
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.count_drawn(DARK_LINE) == 0
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert opened.page.locator("button:visible").count() == 0
    assert opened.page.pdf(format="A4").startswith(b"%PDF")
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.close()


@pytest.mark.parametrize(
    "name",
    leave_to_parts(
        [name for name, situation in SITUATIONS.items() if is_there(situation)],
        but=("one", "two", "one failed", "measured not", "gaps", "array"),
    ),
)
def test_each_situation_opens_without_an_error_or_a_barrier(
    browser: Any, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(render_page(SITUATIONS[name].make(tmp_path)))
    opened = Opened(browser, file)
    assert opened.page.locator(".headline").inner_text()
    assert opened.find_barriers() == []
    opened.close()


def test_a_day_of_many_packs_is_drawn(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(render_page(write_days(tmp_path, packs=3, hours=6, members=3)))
    opened = Opened(browser, file)
    assert opened.page.locator("canvas").count() == 0, "packs are folded"
    for place, pack in enumerate(opened.page.locator("details.pack").all(), 1):
        pack.locator("summary").first.click()
        opened.page.locator("canvas").nth(5 * place - 1).wait_for(state="attached")
    assert opened.page.locator("canvas").count() == 15
    opened.page.get_by_role("button", name="Zoom in").nth(1).click()
    shown = opened.page.locator(".charts").evaluate_all("all => all.map(b => b.dataset.shown)")
    assert shown == ["0.0-21600.0", "5400.0-16200.0", "0.0-21600.0"], "each pack by itself"
    opened.close()


# -- what is seen first ----------------------------------------------------------------------------

MODERN_PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}


def find_on_first_screen(opened: Opened) -> str:
    """All text that is in sight before anything is scrolled, to the right or down."""
    found: str = opened.page.evaluate(
        """() => {
            const words = [];
            const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (walk.nextNode()) {
                const text = walk.currentNode;
                const range = document.createRange();
                range.selectNodeContents(text);
                const boxes = [...range.getClientRects()];
                const seen = (box) => {
                    const within = box.bottom <= innerHeight && box.right <= innerWidth;
                    if (!box.width || !within) return false;
                    const above = document.elementFromPoint(
                        box.left + box.width / 2, box.top + box.height / 2);
                    return above && (above.contains(text) || text.parentElement.contains(above));
                };
                if (boxes.length && boxes.every(seen)) words.push(text.textContent.trim());
            }
            return words.join(" | ");
        }"""
    )
    return found


def make_sweep(folder: Path) -> str:
    """The page of a sweep of three, one of which failed."""
    (source,) = SITUATIONS["one failed"].make(folder)
    for place, member in enumerate(source.summary["members"]):
        entry: Any = {"last": 0.5 - 0.1 * place, "least": 0.1, "greatest": 1.0, "source": "printed"}
        member["metrics"] = {"loss": entry, "<b>\x1b": entry}
    lines = {4: "ValueError: lr is too high"}
    return render_page([PageSource(source.summary, source.path, None, lines)], "ada")


@pytest.mark.parametrize("size", [DESKTOP, MODERN_PHONE])
def test_who_how_long_how_fast_and_whether_it_paid_is_on_the_first_screen(
    browser: Any, size: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(make_sweep(tmp_path))
    opened = Opened(browser, file, viewport=size)
    seen = find_on_first_screen(opened)
    for words in (
        "ada, NVIDIA H200", "Ran for | 24 s", "Speed | 16.7 steps/s", "Slowdown | 1.20",
        "Did sharing pay? | 3.3 times", "54/4", "exit code 3 after 5.0 s",
        "ValueError: lr is too high", "--lr 0.4", "FAILED (exit code 3)",
    ):  # fmt: skip
        assert words in seen, words
    # The best of all is the first of the table.
    first = opened.page.locator("#table tbody tr").first
    assert first.get_attribute("data-id") == "54/4"
    assert "(smallest loss first)" in opened.page.locator("#members").inner_text()
    opened.close()


@pytest.mark.parametrize("size", [DESKTOP, {"width": 800, "height": 900}, MODERN_PHONE])
def test_no_figure_of_a_member_is_out_of_sight_without_a_hint(
    browser: Any, size: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(make_sweep(tmp_path))
    opened = Opened(browser, file, viewport=size)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    row = opened.page.locator("#table tbody tr").first
    hint = opened.page.locator("#table").locator("xpath=../preceding-sibling::p[1]")
    for cell in row.locator("td, th").all():
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= size["width"] or hint.is_visible()
    slowdown = row.locator("[data-label=slowdown]")
    assert slowdown.inner_text().endswith("1.20")
    assert slowdown.bounding_box()["x"] < size["width"] - 40
    if size["width"] < 1000:
        assert not hint.is_visible()
        assert "data wait" in row.evaluate(
            "one => getComputedStyle(one.lastElementChild, '::before').content"
        )
    assert opened.find_barriers() == []
    opened.close()


def make_fifty(folder: Path) -> list[PageSource]:
    """Packs on eight GPUs of two nodes, one after the other on each."""
    sources = []
    for place in range(50):
        summary = make_summary(8, 1.2, first=8 * place, job=f"54_{900 + place}", length_s=600.0)
        uuid, later = f"GPU-{place % 8:08d}-1", 700.0 * (place // 8)
        summary["node"] = f"node{place % 8 // 4 + 1}"
        summary["gpu"]["uuid"] = uuid
        gpu = {"uuid": uuid, "index": place % 4, "model": "NVIDIA H200", "memory_mb": 1.0,
               "energy_j": None, "members": [], "use": {}, "throttled_s": {},
               "slow": None}  # fmt: skip
        summary["gpus"] = [gpu]
        summary["window"] = {"from": T0 + later, "to": T0 + later + 600}
        for member in summary["members"]:
            member |= {"started_at": T0 + later, "ended_at": T0 + later + 600}
        if place == 20:
            summary["members"][3] |= {"state": "FAILED", "exit_code": 1}
        sources.append(PageSource(summary, folder / str(place)))
    return sources


@pytest.mark.long
@pytest.mark.parametrize("size", [DESKTOP, MODERN_PHONE])
def test_fifty_packs_are_one_time_line_and_folded_below_it(
    browser: Any, size: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    text = render_page(make_fifty(tmp_path))
    assert len(text.encode()) < 1_000_000
    file.write_text(text)
    opened = Opened(browser, file, viewport=size)
    names = opened.page.locator(".gpu").all_inner_texts()
    assert names == [f"node{n} GPU {i}" for n in (1, 2) for i in range(4)]
    stays = opened.page.locator(".stay")
    assert stays.count() == 50
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    line = opened.page.locator(".lines-of-gpus").bounding_box()
    assert line["height"] < size["height"], "all GPUs are seen at once"
    assert opened.page.locator(".stay i").count() == 1
    failed = opened.page.locator(".stay", has=opened.page.locator("i"))
    told = "Pack 21: 8 members, 1 did not end well, from 23 min 20 s on for 10 min 00 s"
    assert failed.get_attribute("title") == told
    assert opened.page.locator("details.pack[open]").count() == 0
    failed.click()
    opened.page.locator("#pack-21[open]").wait_for()
    assert opened.page.locator("#pack-21 .moments").is_visible()
    # A second click on it opens it again.
    opened.page.locator("#pack-21 > summary").click()
    assert opened.page.locator("details.pack[open]").count() == 0
    failed.click()
    opened.page.locator("#pack-21[open]").wait_for()
    assert opened.find_barriers() == []
    opened.close()


@pytest.mark.parametrize(
    ("size", "scheme"),
    leave_to_parts(
        itertools.product((DESKTOP, MODERN_PHONE), ("light", "dark")),
        but=((DESKTOP, "dark"), (MODERN_PHONE, "light")),
    ),
)
def test_the_page_of_a_week_is_whole_on_each_screen(
    browser: Any, size: dict[str, int], scheme: str, tmp_path: Path
) -> None:
    file = tmp_path / "week.html"
    file.write_text(render_week(build_week(*make_week())))
    opened = Opened(browser, file, viewport=size, color_scheme=scheme)
    seen = find_on_first_screen(opened)
    for words in ("ada, ben", "GPU hours | 26", "GPU hours saved | 20", "of 2 of 3 packs",
                  "mean of 3 of 5 jobs"):  # fmt: skip
        assert words in seen, (words, seen)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert opened.find_barriers() == []
    opened.close()
