"""`csub compare 54 89`: the same jobs before and after, or alone and shared."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from slurm_colloc.cli.arguments import Json, User, tell_unreadable
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, say


def compare(
    first: Annotated[str, typer.Argument(help="4711, 4711/3, last.", metavar="ID")],
    second: Annotated[str, typer.Argument(help="What it is compared with.", metavar="ID")],
    user: User = "",
    *,
    as_json: Json = False,
) -> None:
    """Compare two submissions: the same script before and after, or alone and shared."""
    from slurm_colloc.report.summary.stored_summary import find_summary
    from slurm_colloc.report.sums.compare_submissions import Side, build_side, pair_jobs
    from slurm_colloc.report.sums.compare_view import build_comparison_json, render_comparison
    from slurm_colloc.report.terminal_tables import choose_width, is_styled

    session = Session.open(user=user)

    def read(target: str) -> Side:
        found = []
        choice = Choice.parse((target,), ended=True)
        for view, members in session.survey(choice, follow_all=False):
            is_whole = len(members) == len(view.members)
            numbers = None if is_whole else frozenset(m.place for m in members)
            with session.reading(view):
                found.append((find_summary(session.state, view), numbers))
        return build_side(target, found)

    sides = read(first), read(second)
    pairs, *left = pair_jobs(*sides)
    if as_json:
        say(json.dumps(build_comparison_json(*sides, pairs, (left[0], left[1]))))
    else:
        styled = is_styled(sys.stdout)
        text = render_comparison(*sides, pairs, (left[0], left[1]), choose_width(), styled=styled)
        say(text, styled=styled)
    tell_unreadable(session)
