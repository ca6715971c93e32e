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
    Where,
    choose,
    tell_problems,
    tell_unreadable,
)
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import ALL
from slurm_colloc.model.sbatch.quantities import parse_age_s
from slurm_colloc.report import ended_members as rows
from slurm_colloc.report.queue_rows import Found, render_table


def queue(
    targets: Targets = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Members that have ended, too.")
    ] = False,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show the members that wait or run."""
    from slurm_colloc.report import queue_rows as rows

    session = Session.open(user=user)
    choice = Choice.parse(targets or (), state, name, where, ended=everything)
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
        say(rows.render_table(*rows.build_table(found, now)))
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
    where: Where = None,
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show the members that have ended, newest first; Slurm is not needed for it."""
    choice = Choice.parse(targets or (), state, name, where, ended=True)
    session = Session.open(user=user)
    say(show_history(session, choice, since, as_json=as_json))
    tell_problems(session)


def show(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show everything about a submission or a member."""
    from slurm_colloc.report.queue_rows import build_json
    from slurm_colloc.report.show_view import render_member, render_pack

    session = Session.open(user=user)
    choice = choose(targets, state, name, where)
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
    where: Where = None,
    *,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Say in one line for each member what it waits for, with whom it shares, or how it ended."""
    from slurm_colloc.cli.look import why_and_explain

    session = Session.open(user=user)
    choice = Choice.parse(targets or ("all",), state, name, where)
    say(why_and_explain.tell_why(session, choice, as_json=as_json))
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
    from slurm_colloc.cli.look import why_and_explain

    session = Session.open(user=user)
    text, problems = why_and_explain.explain(session, targets)
    say(text)
    for problem in problems:
        note(f"error: {problem}")
    if problems:
        raise typer.Exit(problems[0].exit_code)
    tell_problems(session)


def logs(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the members have ended.")
    ] = False,
    error: Annotated[bool, typer.Option("--error", help="The file of --error instead.")] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", help="Only the last N lines of each.", min=0),
    ] = None,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Each line behind its member's name.")
    ] = False,
    user: User = "",
) -> None:
    """Print the output of members."""
    choice = choose(targets, state, name, where)
    session = Session.open(user=user, asks_often=follow)
    from slurm_colloc.cli.look.print_logs import LogRequest, print_logs

    request = LogRequest(follow=follow, error=error, tail=tail, prefix=prefix)
    raise typer.Exit(print_logs(session, choice, request))


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
            (view, [m for m in view.members if choice.matches(m.state, m.name, m.parameters)])
            for view in views
        ]
    ended = rows.collect_ended(session.state, found, oldest)
    if as_json:
        return json.dumps(rows.build_json(ended, now))
    return render_table(*rows.build_table(ended, now))
