"""csub's subcommands that look: queue, history, show, why, explain, logs; the work is elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import ALL, MemberState
from slurm_colloc.model.quantities import parse_age_s
from slurm_colloc.report import ended_members, queue_rows
from slurm_colloc.report.ended_members import Ended
from slurm_colloc.report.member_views import MemberView
from slurm_colloc.report.queue_rows import Found, LineFormat
from slurm_colloc.report.terminal_tables import count_states, group_rows, is_styled, render_lines
from slurm_colloc.session.selection import Choice, choose
from slurm_colloc.session.session import Session, note, say, tell_problems, tell_unreadable

if TYPE_CHECKING:
    from slurm_colloc.cli.arguments import (
        Annotated,
        Each,
        Format,
        Json,
        Name,
        NoHeader,
        States,
        Targets,
        User,
        Where,
        typer,
    )


def queue(
    targets: Targets = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also show members that have ended.")
    ] = False,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    each: Each = False,
    line_format: Format = "",
    no_header: NoHeader = False,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show the members that wait or run."""
    session = Session.open(user=user)
    choice = Choice.parse(targets or (), state, name, where, ended=everything)
    found: Found
    if choice.selections:
        found = [
            (view, [m for m in members if choice.wants_ended or not m.is_final])
            for view, members in session.survey(choice, follow_all=False)
        ]
    else:
        views = session.survey_all() if everything else session.survey_open()
        found = queue_rows.pick(views, finished=everything)
    joined = queue_rows.join_gpu_sets(found) if any(v.record.gpu_set for v, _ in found) else found
    now = time.time()
    listed = [(view, member) for view, members in joined for member in members]
    if as_json:
        say(json.dumps(queue_rows.build_json(joined, now)))
    elif line_format:
        say(LineFormat.parse(line_format).render(listed, now, header=not no_header))
    else:
        to_end = _estimate_ends(session, found, now)
        table = queue_rows.build_table(joined, now, to_end)
        _say_lines(*table, [member for _, member in listed], each=each, header=not no_header)
    tell_problems(session)


def _estimate_ends(session: Session, found: Found, now: float) -> dict[str, float]:
    """Seconds to the end of running members, by their ids; without those not known."""
    if not any(member.state is MemberState.RUNNING for _, members in found for member in members):
        return {}
    from slurm_colloc.report.speed_words import TimesToEnd

    times = TimesToEnd(session.state)
    return {
        str(member.member): seconds
        for view, members in found
        for number, seconds in times.estimate(view, members, now).items()
        for member in members
        if member.place == number
    }


def history(
    targets: Targets = None,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="AGE",
            help="Only members that ended within this time: 12h, 7d (the default), 4w.",
        ),
    ] = "",
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    each: Each = False,
    line_format: Format = "",
    no_header: NoHeader = False,
    user: User = "",
    as_json: Json = False,
) -> None:
    """Show the members that have ended, newest first; Slurm is not needed for it."""
    choice = Choice.parse(targets or (), state, name, where, ended=True)
    session = Session.open(user=user)
    now = time.time()
    ended = find_ended(session, choice, since, now)
    if as_json:
        say(json.dumps(ended_members.build_json(ended, now)))
    elif line_format:
        listed = [(entry.view, entry.member) for entry in ended]
        say(LineFormat.parse(line_format).render(listed, now, header=not no_header))
    else:
        members = [entry.member for entry in ended]
        _say_lines(*ended_members.build_table(ended, now), members, each=each, header=not no_header)
    tell_problems(session)


def _say_lines(
    titles: Sequence[str],
    lines: list[tuple[str, ...]],
    members: Sequence[MemberView],
    *,
    each: bool,
    header: bool,
) -> None:
    """Print a table: for people with colours, equal lines as one and totals, else plainly."""
    on_terminal = sys.stdout.isatty()
    if on_terminal and not each:
        lines = group_rows([member.member for member in members], lines)
    total = count_states([member.state for member in members]) if on_terminal else ""
    styled = is_styled(sys.stdout)
    text = render_lines(titles, lines, total, styled=styled)
    say(text if header else text.partition("\n")[2], styled=styled)


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
    from slurm_colloc.report.show_view import render_member, render_pack

    session = Session.open(user=user)
    choice = choose(targets, state, name, where)
    now = time.time()
    found = session.survey(choice, follow_all=False)
    if as_json:
        say(json.dumps(queue_rows.build_json(found, now)))
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
    """Say in one line for each member what it waits for, what it shares with, or how it ended."""
    from slurm_colloc.cli import why_and_explain

    session = Session.open(user=user)
    choice = Choice.parse(targets or ("all",), state, name, where)
    say(why_and_explain.tell_why(session, choice, as_json=as_json))
    tell_problems(session)


def explain(
    targets: Annotated[
        list[str],
        typer.Argument(help="Members, or words: a state or reason such as PENDING, Priority, or "
                       "a word of csub report such as STP, SLOWDOWN.", metavar="ID|WORD..."),
    ],
    user: User = "",
) -> None:  # fmt: skip
    """Explain a member's state, or a word: what it means, what comes next, what you can do."""
    from slurm_colloc.cli import why_and_explain

    session = Session.open(user=user)
    text, problems = why_and_explain.explain(session, targets)
    say(text)
    for problem in problems:
        note(f"error: {problem}")
    if problems:
        sys.exit(problems[0].exit_code)
    tell_problems(session)


def logs(
    targets: Targets = None,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the members have ended.")
    ] = False,
    error: Annotated[bool, typer.Option("--error", help="Print the --error file instead.")] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", help="Only the last N lines of each.", min=0),
    ] = None,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Begin each line with its member's name.")
    ] = False,
    user: User = "",
) -> None:
    """Print the output of members."""
    choice = choose(targets, state, name, where)
    session = Session.open(user=user, asks_often=follow)
    from slurm_colloc.cli.logs_and_shell import LogRequest, print_logs

    request = LogRequest(follow=follow, error=error, tail=tail, prefix=prefix)
    sys.exit(print_logs(session, choice, request))


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


def find_ended(session: Session, choice: Choice, since: str, now: float) -> list[Ended]:
    """The members that have ended within a time, newest first.

    Without `since` it is a week, and all of what was named by its id.

    Args:
        session: This call's.
        choice: What was named.
        since: An age.
        now: Seconds since the epoch.

    Raises:
        UsageProblem: `since` is not an age.
        NotFound: There is no such pack or member.
    """
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
    return ended_members.collect_ended(session.state, found, oldest)
