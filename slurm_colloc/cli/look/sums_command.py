"""`csub report --since 7d --by script`: sums over all packs that have ended within a time."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

from slurm_colloc.cli.look.queue_and_history import DEFAULT_AGE, parse_age
from slurm_colloc.cli.session import Session, say
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.page.week_values import WeekPage, build_week
from slurm_colloc.report.sums.find_entries import FoundEntries, find_entries
from slurm_colloc.report.sums.pack_entry import PackEntry
from slurm_colloc.report.sums.sum_packs import Grouping, sum_packs


@dataclass(frozen=True)
class SumsPage:
    """That a page is wanted.

    Attributes:
        file: Its name; None for csub-report-since-7d.html in the working directory.
        opens: It is opened in a browser.
    """

    file: str | None
    opens: bool


def show_sums(
    since: str,
    by: str,
    user: str,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    page: SumsPage | None = None,
) -> None:
    """Print the sums, or write their page.

    Args:
        since: An age; empty for a week.
        by: What a row is of; empty for scripts.
        user: Whose packs, several with commas between them; empty for one's own.
        as_json: As one JSON value.
        as_csv: As CSV.
        page: As a web page; None for none.

    Raises:
        StateError: A state directory cannot be read.
        UsageProblem: One of the words cannot be read.
    """
    try:
        grouping = Grouping(by or Grouping.SCRIPT)
    except ValueError:
        raise UsageProblem(
            f"--by: there are no sums by {by!r}", hint=f"valid ones are {', '.join(Grouping)}"
        ) from None
    age = since or DEFAULT_AGE
    now = time.time()
    moment = now - parse_age("--since", age)
    entries: list[tuple[str, PackEntry]] = []
    notes: list[str] = []
    names: list[str] = []
    users = [name.strip() for name in user.split(",") if name.strip()] or [""]
    for name in users:
        state = Session.open(user=name).state
        names.append(state.owner_name)
        found = find_entries(state, moment)
        entries += [(state.owner_name, entry) for entry in found.entries]
        notes += _tell_left_out(found, state.owner_name if len(users) > 1 else "")
    if page is not None:
        _write_page(page, build_week(entries, grouping, (age, moment, now), names, notes))
        return
    rows, total = sum_packs(entries, grouping)
    if as_json:
        from slurm_colloc.report.sums.sums_view import build_sums_json

        say(json.dumps(build_sums_json(rows, total, grouping, notes)))
    elif as_csv:
        from slurm_colloc.report.sums.sums_view import render_sums_csv

        say(render_sums_csv(rows))
    else:
        from slurm_colloc.report.sums.sums_view import render_sums
        from slurm_colloc.report.terminal_tables import choose_width, is_styled

        if not rows:
            notes.insert(0, f"no pack has ended within {age}")
        styled = is_styled(sys.stdout)
        say(render_sums(rows, total, grouping, notes, choose_width(), styled=styled), styled=styled)


def _write_page(page: SumsPage, week: WeekPage) -> None:
    # jinja2 is loaded where a page is really made.
    from slurm_colloc.cli.look.report_page import open_page, save_page
    from slurm_colloc.report.page.render_page import render_week

    name = page.file or f"csub-report-since-{week.title.strip()}.html"
    path = save_page(render_week(week), name)
    say(f"{week.sentence}\n{escape_controls(str(path))}")
    if page.opens:
        open_page(path)


def _tell_left_out(found: FoundEntries, owner: str) -> list[str]:
    of = f" of {owner}" if owner else ""
    notes = []
    if found.running:
        are = "is" if found.running == 1 else "are"
        notes.append(f"{_count(found.running)}{of} {are} not over: not in the sums")
    if found.without:
        have = "has" if found.without == 1 else "have"
        notes.append(
            f"{_count(found.without)}{of} {have} ended without a summary, as when "
            "nothing was watched: not in the sums"
        )
    return notes


def _count(packs: int) -> str:
    return "1 pack" if packs == 1 else f"{packs} packs"
