"""`csub history`: what has ended."""

from __future__ import annotations

import json
import time

from slurm_colloc.cli.session import Session
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import ALL
from slurm_colloc.model.quantities import parse_age_s
from slurm_colloc.model.selection import Choice
from slurm_colloc.report import history as rows
from slurm_colloc.report.queue import Found, render_table

DEFAULT_AGE = "7d"


def parse_age(option: str, text: str) -> int:
    """Read the age of an option.

    Raises:
        UsageProblem: It is none.
    """
    try:
        return parse_age_s(text)
    except ValueError as error:
        raise UsageProblem(f"{option}: {error}") from error


def show_history(session: Session, choice: Choice, since: str, *, as_json: bool) -> str:
    """The members that have ended within a time, as a table or as JSON.

    Without `since` it is a week, and all of what was named by its id.

    Raises:
        UsageProblem: `since` is no age.
        NotFound: There is no such pack or member.
    """
    now = time.time()
    named = any(selection.job != ALL for selection in choice.selections)
    oldest = 0.0 if named and not since else now - parse_age("--since", since or DEFAULT_AGE)
    found: Found
    if named:
        found = session.survey(choice, follow_all=False)
    else:
        views = session.survey_changed_since(oldest)
        found = [
            (view, [m for m in view.members if choice.matches(m.state, m.name)]) for view in views
        ]
    ended = rows.collect_ended(session.state, found, oldest)
    if as_json:
        return json.dumps(rows.build_json(ended, now))
    return render_table(rows.HEADER, rows.build_rows(ended, now))
