"""The pictures of docs/report.md: `python -m tests.report.pictures`, with a Chromium at hand.

They are of packs that were recorded on an H200 (tests/recordings).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from slurm_colloc.report.page.render_page import render_page

from .situations import ROOT, SITUATIONS

PICTURES = ROOT / "docs" / "pictures"
SHOTS = (
    ("report-page.png", "seven", "light", {"width": 1280, "height": 860}, ""),
    ("report-dark.png", "seven", "dark", {"width": 900, "height": 620}, ".pack"),
    ("report-phone.png", "seven", "light", {"width": 390, "height": 844}, ""),
)
"""The file, the situation, the scheme, the size, and to what the page is scrolled."""


def main() -> None:
    from playwright.sync_api import sync_playwright

    os.environ["TZ"] = "UTC"
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, situation, scheme, size, part in SHOTS:
            file = Path(folder) / "page.html"
            file.write_text(render_page(SITUATIONS[situation].make(Path(folder)), "ada"))
            options: dict[str, Any] = {"viewport": size, "color_scheme": scheme}
            page = browser.new_page(**options)
            page.goto(file.as_uri())
            if part:
                page.locator(part).first.evaluate("one => one.scrollIntoView()")
            page.screenshot(path=PICTURES / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
