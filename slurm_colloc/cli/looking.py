"""csub's subcommands that look: queue, history, show, why, explain, logs; the work is elsewhere."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from slurm_colloc.cli.arguments import (
    Json,
    Name,
    States,
    Targets,
    User,
    choose,
    tell_problems,
    tell_unreadable,
)
from slurm_colloc.cli.session import Session, say
from slurm_colloc.model.selection import Choice


def queue(
    targets: Targets = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Members that have ended, too.")
    ] = False,
    state: States = "",
    name: Name = "",
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show the members that wait or run."""
    from slurm_colloc.report import queue as rows

    session = Session.open(user=user)
    choice = Choice.parse(targets or (), state, name, ended=everything)
    found: rows.Found
    if choice.selections:
        found = [
            (view, [m for m in members if choice.wants_ended or not m.is_final])
            for view, members in session.survey(choice, follow_all=False)
        ]
    else:
        views = session.survey_all() if everything else session.survey_open()
        found = rows.pick(views, finished=everything)
    now = time.time()
    if as_json:
        say(json.dumps(rows.build_json(found, now)))
    else:
        say(rows.render_table(rows.HEADER, rows.build_rows(found, now)))
    tell_problems(session)


def history(
    targets: Targets = None,
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="AGE", help="Ended within this time: 12h, 7d (the default), 4w."
        ),
    ] = "",
    state: States = "",
    name: Name = "",
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show the members that have ended, newest first; Slurm is not needed for it."""
    from slurm_colloc.cli.history import show_history

    choice = Choice.parse(targets or (), state, name, ended=True)
    session = Session.open(user=user)
    say(show_history(session, choice, since, as_json=as_json))
    tell_problems(session)


def show(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show everything about a submission or a member."""
    from slurm_colloc.report.queue import build_json
    from slurm_colloc.report.show import render_member, render_pack

    session = Session.open(user=user)
    choice = choose(targets, state, name)
    now = time.time()
    found = session.survey(choice, follow_all=False)
    if as_json:
        say(json.dumps(build_json(found, now)))
        tell_unreadable(session)
        return
    for view, members in found:
        with session.reading(view):
            if len(members) < len(view.members) or choice.names_members:
                for member in members:
                    say(render_member(view, member, session.state, now))
            else:
                say(render_pack(view, session.state, now))
    tell_unreadable(session)


def why(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Say in one line for each member what it waits for, with whom it shares, or how it ended."""
    from slurm_colloc.cli import asking

    session = Session.open(user=user)
    choice = Choice.parse(targets or ("all",), state, name)
    say(asking.tell_why(session, choice, as_json=as_json))
    tell_problems(session)


def explain(
    targets: Annotated[
        list[str],
        typer.Argument(help="Members, or a state or reason such as PENDING, Priority.",
                       metavar="ID|WORD..."),
    ],
    user: User = "",
) -> None:  # fmt: skip
    """Explain a member's state, or a word: what it means, what comes next, what you can do."""
    from slurm_colloc.cli import asking

    session = Session.open(user=user)
    say(asking.explain(session, targets))
    tell_problems(session)


def logs(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the members have ended.")
    ] = False,
    error: Annotated[bool, typer.Option("--error", help="The file of --error instead.")] = False,
    *,
    user: User = "",
) -> None:
    """Print the output of members."""
    from slurm_colloc.cli.following import print_logs

    choice = choose(targets, state, name)
    session = Session.open(user=user, asks_often=follow)
    raise typer.Exit(print_logs(session, choice, follow=follow, error=error))
