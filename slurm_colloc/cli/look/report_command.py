"""`csub report`: what members used, how fast they were, and what sharing gained or cost."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_colloc.cli.arguments import Json, Name, States, User, Where, tell_problems
from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.member import LAST
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.ownership import with_own_rights
from slurm_colloc.settings import Settings, load_settings
from slurm_colloc.store.all_packs import open_own_state

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import (
        MemberView,
        PackView,
    )
    from slurm_colloc.report.summary.summary_shape import Summary


def report(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="4711 for a submission, 4711/3 or 4711/2-5,8 for members, last for the newest "
            "submission, all for every member that is kept, also those that have ended. A name "
            "that ends in .html is the file that --html writes.",
            metavar="[ID]... [FILE.html]",
            show_default=False,
        ),
    ] = None,
    state: States = "",
    name: Name = "",
    where: Where = None,
    *,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="AGE",
            help="Sums over packs that ended within this time, such as 7d.",
        ),
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="WHAT", help="Sums by script (the default), user, gpu or mode."
        ),
    ] = "",
    user: User = "",
    as_json: Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print one line for each member, as CSV.")
    ] = False,
    parquet: Annotated[
        Path | None,
        typer.Option(
            "--parquet",
            metavar="FILE",
            help="Write a row for each member, as Parquet.",
            show_default=False,
        ),
    ] = None,
    as_html: Annotated[
        bool,
        typer.Option(
            "--html", help="Write a web page with a time line, as FILE.html or csub-report-ID.html."
        ),
    ] = False,
    opened: Annotated[
        bool, typer.Option("--open", help="Open that page in a browser; implies --html.")
    ] = False,
    best: Annotated[
        str,
        typer.Option(
            "--best",
            metavar="METRIC",
            help="Order members by a result of theirs, the best first: loss, min:loss, max:score.",
        ),
    ] = "",
    detail: Annotated[
        bool, typer.Option("--detail", help="Show all figures: STP, ANTT, energy, use of the GPU.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--write", hidden=True, metavar="PACK", show_default=False)
    ] = None,
    write_mail: Annotated[
        Path | None, typer.Option("--write-mail", hidden=True, metavar="PACK", show_default=False)
    ] = None,
) -> None:
    """Show what members used, how fast they were, and what sharing gained; last by default."""
    if write is not None:
        raise typer.Exit(write_report(write))
    if write_mail is not None:
        raise typer.Exit(write_mail_text(write_mail))
    as_html = as_html or opened
    kinds = {
        "--json": as_json, "--csv": as_csv, "--parquet": parquet is not None, "--html": as_html,
    }  # fmt: skip
    if len(asked := [name for name, is_asked in kinds.items() if is_asked]) > 1:
        raise UsageProblem(f"{' and '.join(asked)} exclude each other")
    ids, file = _split_targets(targets or (), as_html=as_html)
    if since or by:
        if ids or state or name or where or best or parquet is not None or detail:
            raise UsageProblem(
                "--since and --by are about all packs",
                hint="they can be used only with --user, --json, --csv and --html",
            )
        from slurm_colloc.cli.look.sums_command import SumsPage, show_sums

        page = SumsPage(file, opened) if as_html else None
        show_sums(since, by, user, as_json=as_json, as_csv=as_csv, page=page)
        return
    choice = Choice.parse(ids, state, name, where, ended=True)
    if not choice.selections:
        choice = Choice.parse((LAST,), ended=True)
    session = Session.open(user=user)
    from slurm_colloc.report.summary.stored_summary import find_summary

    found, views = [], []
    for view, members in session.survey(choice, follow_all=False):
        with session.reading(view):
            found.append((find_summary(session.state, view), _choose_numbers(view, members)))
            views.append(view)
    if as_html:
        from slurm_colloc.cli.look.report_page import build_source, write_page

        sources = [
            build_source(session.state, view, *one) for view, one in zip(views, found, strict=True)
        ]
        write_page(sources, file, session.state.owner_name, best, opens=opened)
        tell_problems(session)
        return
    if as_json:
        say(json.dumps(_tell_all(found)))
    elif as_csv:
        from slurm_colloc.report.data.csv_table import render_csv

        say(render_csv(found, best))
    elif parquet is not None:
        from slurm_colloc.report.data.parquet_file import write_parquet

        with with_own_rights():
            count = write_parquet(parquet, found)
        say(f"{_count(count)} written to {escape_controls(str(parquet))}")
    else:
        from slurm_colloc.report.report_view import render_reports
        from slurm_colloc.report.terminal_tables import choose_width, is_styled

        width, styled = choose_width(), is_styled(sys.stdout)
        text = render_reports(found, width, detail=detail, styled=styled, best=best)
        say(text, styled=styled)
    tell_problems(session)


def _split_targets(words: Sequence[str], *, as_html: bool) -> tuple[list[str], str | None]:
    """Ids, and the file of the page: no id ends in .html."""
    files = [word for word in words if word.lower().endswith((".html", ".htm"))]
    if files and not as_html:
        raise UsageProblem(
            f"{files[0]!r} is the name of a page", hint="csub report --html writes one"
        )
    if len(files) > 1:
        raise UsageProblem(
            f"one page is written, not {len(files)}: {', '.join(map(repr, files))}",
            hint="give one name that ends in .html",
        )
    ids = [word for word in words if word not in files]
    return ids, files[0] if files else None


def _choose_numbers(view: PackView, members: list[MemberView]) -> frozenset[int] | None:
    """The members to show; None for all of a pack."""
    if len(members) == len(view.members):
        return None
    return frozenset(member.place for member in members)


def _tell_all(found: Sequence[tuple[Summary, frozenset[int] | None]]) -> list[Summary]:
    """The summaries for programs, each with the first sentence on its submission."""
    from slurm_colloc.report.headline import tell_headline
    from slurm_colloc.report.report_view import choose_ids, group_submissions

    headlines = {
        id(summary): tell_headline([other for other, _ in own], choose_ids(own))
        for own in group_submissions(found)
        for summary, _ in own
    }
    return [
        {"headline": headlines[id(summary)], **_narrow(summary, numbers)}
        for summary, numbers in found
    ]


def _narrow(summary: dict[str, Any], numbers: frozenset[int] | None) -> dict[str, Any]:
    members = [m for m in summary["members"] if numbers is None or m["member"] in numbers]
    return {**summary, "members": members}


def _count(members: int) -> str:
    return "1 member" if members == 1 else f"{members} members"


def write_report(pack: Path) -> int:
    """Do what is left once a pack has ended; called on the node.

    Returns:
        0; 1 or another exit status where something was not written, with a line that says why.
    """
    from slurm_colloc.cli.finish_pack import finish_pack
    from slurm_colloc.report.lines.submission_mail import write_submission_mail

    settings = Settings()
    # Wrong settings are told by every command that reads; here they cost no summary.
    with contextlib.suppress(CollocError):
        settings = load_settings()
    try:
        # A directory that was given as `.` has its state directory above it all the same.
        path = pack.absolute()
        state = open_own_state(path.parent.parent)
        problems = finish_pack(state, path.name, settings)
        write_submission_mail(state, path.name)
    except CollocError as problem:
        note(f"error: the summary of {pack} was not written: {problem}")
        return problem.exit_code
    for text in problems:
        note(f"error: {text}")
    return 1 if problems else 0


def write_mail_text(pack: Path) -> int:
    """Write the text of a mail about a whole array, of a pack that gets no summary.

    Returns:
        0; another exit status where it was not written, with a line that says why.
    """
    from slurm_colloc.report.lines.submission_mail import write_submission_mail

    path = pack.absolute()
    try:
        write_submission_mail(open_own_state(path.parent.parent), path.name)
    except CollocError as problem:
        note(f"error: the mail about {pack} has no table: {problem}")
        return problem.exit_code
    return 0
