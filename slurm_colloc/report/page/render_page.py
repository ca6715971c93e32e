"""The page of a submission, or of a time, as one HTML file: no other file, no network.

Also: all that the page of a time shows, as texts: sums over the packs of some users.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc import __version__
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.report.headline import BAD_STATES
from slurm_colloc.report.pack_entry import PackEntry
from slurm_colloc.report.page.page_values import build_page
from slurm_colloc.report.page.timelines import Fact, PageSource
from slurm_colloc.report.report_sentences import WORDS
from slurm_colloc.report.sums_view import Grouping, PackSums, sum_packs
from slurm_colloc.report.terminal_tables import UNKNOWN, format_figure, format_share

if TYPE_CHECKING:
    from markupsafe import Markup


# ---- All that the page of a time shows, as texts: sums over the packs of some users; pure --------

ROWS_MOST = 200
"""Of each table."""
DAYS_MOST = 400

_NAME_MOST = 80
_NAMES = {
    Grouping.SCRIPT: "script",
    Grouping.USER: "user",
    Grouping.GPU: "GPU",
    Grouping.MODE: "way of sharing",
}
Owned = tuple[str, PackEntry]
"""A user's name, and a pack of theirs."""


def build_week(
    entries: Sequence[Owned],
    first: Grouping,
    span: tuple[str, float, float],
    users: Sequence[str],
    notes: Sequence[str],
) -> dict[str, Any]:
    """The sums of a time, and by day, as the page's template takes them; texts are harmless.

    Args:
        entries: The packs that have ended in it.
        first: What the first table is by.
        span: The time as it was asked for, `7d`, and from when to when it is.
        users: Whose packs they are.
        notes: What is not in the sums.
    """
    age, begin, end = span
    _, total = sum_packs(entries, first)
    tables = [_build_table(entries, one) for one in (first, *(g for g in Grouping if g != first))]
    named = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
    return {
        "title": escape_controls(age),
        "who": escape_controls(named),
        "when": f"{_format_minute(begin)} to {_format_minute(end)}",
        "sentence": _tell(total, len(users), escape_controls(named)),
        "facts": _list_facts(total),
        "days": _list_days(entries),
        # One row says nothing that the sums have not said; the one that was asked for is there.
        "tables": [table for n, table in enumerate(tables) if n == 0 or len(table["rows"]) > 1],
        "notes": [escape_controls(note) for note in notes],
    }


def _format_minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _tell(total: PackSums, users: int, named: str) -> str:
    who = named if users == 1 else f"{users} users"
    if not total.packs:
        return f"No pack of {who} has ended in this time."
    jobs = "1 job" if total.members == 1 else f"{total.members:,} jobs"
    text = f"{jobs} of {who} took {format_figure(total.gpu_hours)} GPU hours"
    if not total.saved_of or total.saved_hours is None:
        return f"{text}; what sharing has saved is not known."
    if total.saved_of < total.packs:
        known = f"{total.saved_of:,} of {total.packs:,} packs"
        return f"{text}; sharing has saved {format_figure(total.saved_hours)} in {known}."
    alone = total.gpu_hours + total.saved_hours
    return f"{text}; one after the other it would have been {format_figure(alone)}."


def _list_facts(total: PackSums) -> list[Fact]:
    packs = "1 pack" if total.packs == 1 else f"{total.packs:,} packs"
    share = total.wasted_hours / total.gpu_hours if total.gpu_hours > 0 else None
    return [
        Fact("Jobs", f"{total.members:,}", packs),
        Fact("GPU hours", format_figure(total.gpu_hours), _tell_sm(total)),
        Fact(
            "GPU hours saved",
            _figure(total.saved_hours, total.saved_of),
            _of(total.saved_of, total.packs, "packs"),
        ),
        Fact(
            "Slowdown",
            _figure(total.slowdown, total.slowdowns_of),
            f"mean{_of(total.slowdowns_of, total.members, 'jobs', ' of ')}",
        ),
        Fact(
            "GPU hours wasted",
            format_figure(total.wasted_hours),
            f"{format_share(share)}, by jobs that failed" if share else "",
            is_bad=bool(share and share > _WASTED_MUCH),
        ),
        Fact(
            "Energy",
            f"{_figure(total.energy_kwh, total.energy_of)} kWh" if total.energy_of else UNKNOWN,
            _of(total.energy_of, total.packs, "packs"),
        ),
    ]


_WASTED_MUCH = 0.1


def _tell_sm(total: PackSums) -> str:
    if total.sm_active is None:
        return ""
    return f"{format_share(total.sm_active)} of the processors busy"


def _figure(value: float | None, known: int) -> str:
    return format_figure(value) if known and value is not None else UNKNOWN


def _of(known: int, count: int, what: str, before: str = "of ") -> str:
    """Of how many a figure is, where it is not of all."""
    return "" if known == count else f"{before}{known:,} of {count:,} {what}"


def _build_table(entries: Sequence[Owned], grouping: Grouping) -> dict[str, Any]:
    rows, _ = sum_packs(entries, grouping)
    heads = [
        _NAMES[grouping][:1].upper() + _NAMES[grouping][1:],
        "Jobs", "GPU hours", "Hours saved", "Slowdown", "Hours wasted", "SM active", "kWh",
    ]  # fmt: skip
    return {
        "name": f"By {_NAMES[grouping]}",
        "heads": heads,
        "rows": [_build_cells(sums) for sums in rows[:ROWS_MOST]],
        "left_out": max(0, len(rows) - ROWS_MOST),
    }


def _build_cells(sums: PackSums) -> tuple[str, ...]:
    def tell(value: float | None, known: int, count: int) -> str:
        text = _figure(value, known)
        return text if known in (0, count) else f"{text} ({known:,} of {count:,})"

    return (
        escape_controls(cut(sums.name, _NAME_MOST)),
        f"{sums.members:,}",
        format_figure(sums.gpu_hours),
        tell(sums.saved_hours, sums.saved_of, sums.packs),
        tell(sums.slowdown, sums.slowdowns_of, sums.members),
        format_figure(sums.wasted_hours),
        format_share(sums.sm_active),
        tell(sums.energy_kwh, sums.energy_of, sums.packs),
    )


def _list_days(entries: Sequence[Owned]) -> list[dict[str, Any]]:
    """By the day on which packs ended, the newest last; bars are per cent of the greatest day."""
    days: dict[str, list[Owned]] = {}
    for user, entry in sorted(entries, key=lambda one: one[1].ended_at):
        day = time.strftime("%a %Y-%m-%d", time.localtime(entry.ended_at))
        days.setdefault(day, []).append((user, entry))
    sums = {day: sum_packs(own, Grouping.USER)[1] for day, own in [*days.items()][-DAYS_MOST:]}
    most = max((one.gpu_hours for one in sums.values()), default=0.0) or 1.0
    return [
        {
            "day": day,
            "hours": format_figure(one.gpu_hours),
            "used": round(100 * (one.gpu_hours - one.wasted_hours) / most, 2),
            "wasted": round(100 * one.wasted_hours / most, 2),
            "text": f"{one.members:,} job{'' if one.members == 1 else 's'}; "
            f"{_figure(one.saved_hours, one.saved_of)} GPU hours saved"
            f"{_of(one.saved_of, one.packs, 'packs', ' in ')}, "
            f"{format_figure(one.wasted_hours)} wasted",
        }
        for day, one in sums.items()
    ]


# ---- The page of a submission, or of a time, as one HTML file: no other file, no network ---------

_ABBREVIATIONS = {"ANTT", "CPUS", "DRAM", "GPU", "GPU_MEM", "MIG", "MPS", "SM", "STP"}
_FOLDER = Path(__file__).resolve().parent


def render_page(sources: Sequence[PageSource], user: str = "", best: str = "") -> str:
    """The page.

    Scripts that are not csub's own do not run: the page names them by their hash. All values are
    escaped by the template.

    Args:
        sources: The packs of one submission, at least one.
        user: Whose it is; empty where that is not known.
        best: By which result members are ordered, see report.report_view.

    Raises:
        StateError: The samples cannot be read at all.
        UsageProblem: No member has that result.
    """
    page = build_page(sources, user, best)
    return _render(
        "page.html.j2", page=page, words=WORDS, bad_states=BAD_STATES, drawing=page["drawing"]
    )


def render_week(page: Mapping[str, Any]) -> str:
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
