"""The page of a submission, or of a time, as one HTML file: no other file, no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc import __version__
from slurm_colloc.report.member_remarks import BAD_STATES
from slurm_colloc.report.page.page_shape import PageSource
from slurm_colloc.report.page.page_values import build_page
from slurm_colloc.report.page.week_values import WeekPage
from slurm_colloc.report.words.report_words import WORDS

if TYPE_CHECKING:
    from markupsafe import Markup

_ABBREVIATIONS = {"ANTT", "CPUS", "DRAM", "GPU", "GPU_MEM", "MIG", "MPS", "SM", "STP"}
_FOLDER = Path(__file__).resolve().parent


def render_page(sources: Sequence[PageSource], user: str = "", best: str = "") -> str:
    """The page.

    Scripts that are not csub's own do not run: the page names them by their hash. All values are
    escaped by the template.

    Args:
        sources: The packs of one submission, at least one.
        user: Whose it is; empty where that is not known.
        best: By which result members are ordered, see report.best_members.

    Raises:
        StateError: The samples cannot be read at all.
        UsageProblem: No member has that result.
    """
    page = build_page(sources, user, best)
    return _render(
        "page.html.j2", page=page, words=WORDS, bad_states=BAD_STATES, drawing=page.drawing
    )


def render_week(page: WeekPage) -> str:
    """The page of a time; as safe as that of a submission."""
    return _render("week.html.j2", page=page)


def _render(template: str, **values: Any) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Numbers in little room; what could end the script is escaped all the same.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.policies["json.dumps_function"] = json.dumps
    environment.filters["whole_options"] = _keep_options_whole
    uplot_js, js = _read("uplot/uPlot.iife.min.js"), _read("page.js")
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (uplot_js, js))
    return environment.get_template(template).render(
        **values,
        shown_word=_show_word,
        version=__version__,
        # Files of this package, and no text of a user's in them.
        uplot_css=Markup(_read("uplot/uPlot.min.css")),
        css=Markup(_read("page.css")),
        uplot_js=Markup(uplot_js),
        js=Markup(js),
        script_hashes=Markup(hashes),
    )


def _keep_options_whole(text: str) -> Markup:
    """A text in which no line breaks within `--mem=2G`; what is in it is escaped."""
    from markupsafe import Markup, escape

    option = Markup('<span class="option">{}</span>')
    return Markup(" ").join(
        option.format(word) if "--" in word else escape(word) for word in text.split(" ")
    )


def _show_word(name: str) -> str:
    """A word of the tables as running text has it; abbreviations stay as they are."""
    parts = name.split(" ")
    kept = [part if part in _ABBREVIATIONS else part.lower() for part in parts]
    text = " ".join(kept)
    return text if "_" in text else text[:1].upper() + text[1:]


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
