"""`csub report`: what members used, how fast they were, and what sharing gained or cost.

Also: `csub report --html`: writes the page of a submission, says what it says first, and opens it;
`csub report --since 7d --by script`: sums over all packs that have ended within a time; `csub
compare 54 89`: the same jobs before and after, or alone and shared; `csub track`: members into
MLflow or W&B.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.cli.queue_and_history import DEFAULT_AGE, parse_age
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.member import LAST
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.ownership import with_own_rights
from slurm_colloc.report.headline import BAD_STATES, tell_headline
from slurm_colloc.report.member_views import PackView, read_last_line
from slurm_colloc.report.report_view import (
    choose_ids,
    group_submissions,
    name_submission,
    render_reports,
)
from slurm_colloc.report.summary_file import Summary, choose_members, find_summary
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session, note, say, tell_problems, tell_unreadable
from slurm_colloc.settings import Settings, load_settings
from slurm_colloc.store.all_packs import StateReader, open_own_state
from slurm_colloc.store.atomic_files import write_atomic

if TYPE_CHECKING:
    from slurm_colloc.cli.arguments import Annotated, Json, Name, States, User, Where, typer
    from slurm_colloc.report.pack_entry import PackEntry
    from slurm_colloc.report.page.timelines import PageSource
    from slurm_colloc.report.sums_view import FoundEntries


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
        sys.exit(write_report(write))
    if write_mail is not None:
        sys.exit(write_mail_text(write_mail))
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

        show_sums(
            since, by, user,
            as_json=as_json, as_csv=as_csv, as_html=as_html, file=file, opens=opened,
        )  # fmt: skip
        return
    choice = Choice.parse(ids, state, name, where, ended=True)
    if not choice.selections:
        choice = Choice.parse((LAST,), ended=True)
    session = Session.open(user=user)
    read = list(_read_summaries(session, choice))
    found = [(summary, numbers) for _, summary, numbers in read]
    if as_html:
        sources = [build_source(session.state, *one) for one in read]
        write_page(sources, file, session.state.owner_name, best, opens=opened)
        tell_problems(session)
        return
    if as_json:
        say(json.dumps(_tell_all(found)))
    elif as_csv:
        from slurm_colloc.report.data_tables import render_csv

        say(render_csv(found, best))
    elif parquet is not None:
        from slurm_colloc.report.data_tables import write_parquet

        with with_own_rights():
            count = write_parquet(parquet, found)
        say(f"{format_count(count, 'member')} written to {escape_controls(str(parquet))}")
    else:
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


def _read_summaries(
    session: Session, choice: Choice
) -> Iterator[tuple[PackView, Summary, frozenset[int] | None]]:
    """Packs with their summaries, and the numbers of the members to show; None for all."""
    for view, members in session.survey(choice, follow_all=False):
        with session.reading(view):
            is_whole = len(members) == len(view.members)
            numbers = None if is_whole else frozenset(member.place for member in members)
            yield view, find_summary(session.state, view), numbers


def _tell_all(found: Sequence[tuple[Summary, frozenset[int] | None]]) -> list[Summary]:
    """The summaries for programs, each with the first sentence on its submission."""
    headlines = {
        id(summary): tell_headline([other for other, _ in own], choose_ids(own))
        for own in group_submissions(found)
        for summary, _ in own
    }
    return [
        {
            "headline": headlines[id(summary)],
            **summary,
            "members": choose_members(summary, numbers),
        }
        for summary, numbers in found
    ]


def write_report(pack: Path) -> int:
    """Do what is left once a pack has ended; called on the node.

    Returns:
        0; 1 or another exit status where something was not written, with a line that says why.
    """
    from slurm_colloc.report.submission_mail import write_submission_mail
    from slurm_colloc.session.await_summaries import finish_pack

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
    from slurm_colloc.report.submission_mail import write_submission_mail

    path = pack.absolute()
    try:
        write_submission_mail(open_own_state(path.parent.parent), path.name)
    except CollocError as problem:
        note(f"error: the mail about {pack} has no table: {problem}")
        return problem.exit_code
    return 0


# ----
# `csub report --html`: writes the page of a submission, says what it says first, and opens it.

_LAST_LINES_MOST = 400


def build_source(
    state: StateReader, view: PackView, summary: Summary, numbers: Collection[int] | None
) -> PageSource:
    """A pack for the page, with the last lines of members that did not end well.

    Args:
        state: Where it is kept.
        view: The pack.
        summary: Its summary.
        numbers: The numbers of the members to show; None for all.
    """
    last_lines = {}
    from slurm_colloc.report.page.timelines import PageSource
    from slurm_colloc.report.show_view import find_log_paths

    ended = [m for m in view.members if m.record is not None and m.state.value in BAD_STATES]
    for member in ended[:_LAST_LINES_MOST]:
        # What is damaged of one is told where it is looked at.
        with contextlib.suppress(CollocError):
            output, error = find_log_paths(view, member)
            last_lines[member.place] = read_last_line((error, output))
    return PageSource(summary, state.pack_path(view.record.pack_id), numbers, last_lines)


def write_page(
    sources: Sequence[PageSource], file: str | None, user: str, best: str, *, opens: bool
) -> None:
    """Write the page of one submission, and say its first sentence and where it lies.

    Args:
        sources: The packs.
        file: Its name; None for csub-report-ID.html in the working directory.
        user: Whose packs they are.
        best: By which result members are ordered.
        opens: Open it in a browser.

    Raises:
        StateError: It cannot be written, or the samples cannot be read.
        UsageProblem: They are of no submission, or of several; or no member has that result.
    """
    groups = group_submissions([(source.summary, source.chosen) for source in sources])
    if not groups:
        raise UsageProblem("there is nothing to report", hint="csub history shows what has ended")
    if len(groups) > 1:
        raise UsageProblem(
            f"a page shows one submission, but {len(groups)} were named",
            hint="csub report ID --html, once for each",
        )
    (group,) = groups
    # numpy and jinja2 are loaded where a page is really made.
    from slurm_colloc.report.page.render_page import render_page

    summaries = [summary for summary, _ in group]
    text = render_page(sources, user, best)
    job = name_submission(*group[0])
    file = file or f"csub-report-{job.replace('/', '_')}.html"
    save_page(text, file, tell_headline(summaries, choose_ids(group)), opens=opens)


def save_page(text: str, file: str, sentence: str, *, opens: bool) -> None:
    """Write a page, and say its first sentence and where it lies.

    Raises:
        StateError: It cannot be written.
    """
    path = Path(file).absolute()
    # Like any new file of the user's, it can be read by those whom their umask allows.
    with with_own_rights():
        write_atomic(path, text.encode(errors="backslashreplace"), 0o666, outlives_crash=False)
    say(f"{sentence}\n{escape_controls(str(path))}")
    if opens:
        _open_page(path)


def _open_page(path: Path) -> None:
    """Open a page in a browser, or say where it is."""
    import webbrowser

    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not has_screen or not webbrowser.open(path.as_uri()):
        note(f"no browser can be opened here; copy the page to where one is: scp HOST:{path} .")


# ---- `csub report --since 7d --by script`: sums over all packs that have ended within a time -----


def show_sums(
    since: str,
    by: str,
    user: str,
    *,
    as_json: bool,
    as_csv: bool,
    as_html: bool,
    file: str | None,
    opens: bool,
) -> None:
    """Print the sums, or write their page.

    Args:
        since: An age; empty for a week.
        by: What a row is of; empty for scripts.
        user: Whose packs, several with commas between them; empty for one's own.
        as_json: As one JSON value.
        as_csv: As CSV.
        as_html: As a web page.
        file: Its name; None for csub-report-since-7d.html in the working directory.
        opens: It is opened in a browser.

    Raises:
        StateError: A state directory cannot be read.
        UsageProblem: One of the words cannot be read.
    """
    from slurm_colloc.report import sums_view

    try:
        grouping = sums_view.Grouping(by or sums_view.Grouping.SCRIPT)
    except ValueError:
        raise UsageProblem(
            f"--by: there are no sums by {by!r}",
            hint=f"valid ones are {', '.join(sums_view.Grouping)}",
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
        found = sums_view.find_entries(state, moment)
        entries += [(state.owner_name, entry) for entry in found.entries]
        notes += _tell_left_out(found, state.owner_name if len(users) > 1 else "")
    if as_html:
        # jinja2 is loaded where a page is really made.
        from slurm_colloc.report.page.render_page import build_week, render_week

        week = build_week(entries, grouping, (age, moment, now), names, notes)
        file = file or f"csub-report-since-{week['title'].strip()}.html"
        save_page(render_week(week), file, week["sentence"], opens=opens)
        return
    rows, total = sums_view.sum_packs(entries, grouping)
    if as_json:
        say(json.dumps(sums_view.build_sums_json(rows, total, grouping, notes)))
    elif as_csv:
        say(sums_view.render_sums_csv(rows))
    else:
        from slurm_colloc.report.terminal_tables import choose_width, is_styled

        if not rows:
            notes.insert(0, f"no pack has ended within {age}")
        styled = is_styled(sys.stdout)
        text = sums_view.render_sums(rows, total, grouping, notes, choose_width(), styled=styled)
        say(text, styled=styled)


def _tell_left_out(found: FoundEntries, owner: str) -> list[str]:
    of = f" of {owner}" if owner else ""
    notes = []
    if found.running:
        are = "is" if found.running == 1 else "are"
        notes.append(f"{format_count(found.running, 'pack')}{of} {are} not over: not in the sums")
    if found.without:
        have = "has" if found.without == 1 else "have"
        notes.append(
            f"{format_count(found.without, 'pack')}{of} {have} ended without a summary, as when "
            "nothing was watched: not in the sums"
        )
    return notes


# ---- `csub compare 54 89`: the same jobs before and after, or alone and shared -------------------


def compare(
    first: Annotated[str, typer.Argument(help="4711, 4711/3, last.", metavar="ID")],
    second: Annotated[str, typer.Argument(help="What it is compared with.", metavar="ID")],
    user: User = "",
    *,
    as_json: Json = False,
) -> None:
    """Compare two submissions: the same script before and after, or alone and shared."""
    from slurm_colloc.report.compare import (
        Side,
        build_comparison_json,
        build_side,
        pair_jobs,
        render_comparison,
    )
    from slurm_colloc.report.terminal_tables import choose_width, is_styled

    session = Session.open(user=user)

    def read(target: str) -> Side:
        choice = Choice.parse((target,), ended=True)
        found = [(summary, numbers) for _, summary, numbers in _read_summaries(session, choice)]
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


# ---- `csub track`: members into MLflow or W&B ----------------------------------------------------

_PROJECT = "csub"


def track(
    targets: Annotated[
        list[str] | None,
        typer.Argument(help="4711, 4711/2-5, last (the default).", metavar="[ID]...",
                       show_default=False),
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="TRACKER", help="mlflow or wandb.")] = "",
    uri: Annotated[
        str,
        typer.Option("--uri", metavar="URI", help="For MLflow; by default MLFLOW_TRACKING_URI."),
    ] = "",
    project: Annotated[
        str,
        typer.Option("--project", metavar="NAME",
                     help="Experiment or project for members without a run of their own."),
    ] = _PROJECT,
    offline: Annotated[
        bool, typer.Option("--offline", help="W&B: write files for `wandb sync`.")
    ] = False,
) -> None:  # fmt: skip
    """Give members' figures to MLflow or W&B: into the runs that they have opened, or new ones."""
    if not to:
        raise UsageProblem("no tracker was named", hint="csub track ID --to mlflow, or --to wandb")
    if to not in ("mlflow", "wandb"):
        raise UsageProblem(f"--to: {to!r} is not a tracker", hint="valid ones are mlflow and wandb")
    if (uri and to != "mlflow") or (offline and to != "wandb"):
        raise UsageProblem("--uri is MLflow's, and --offline is W&B's")
    from slurm_colloc.report.tracker_runs import (
        MemberRefused,
        MlflowTracker,
        Tracker,
        WandbTracker,
        track_pack,
    )

    tracker: Tracker
    if to == "mlflow":
        tracker = MlflowTracker(uri, project)
    else:
        tracker = WandbTracker(project, "offline" if offline else "", os.getcwd())  # noqa: PTH109
    session = Session.open()
    choice = Choice.parse(targets or (LAST,), ended=True)
    failed: CollocError | None = None
    for view, summary, numbers in _read_summaries(session, choice):
        path = session.state.pack_path(view.record.pack_id)
        with session.reading(view):
            try:
                for name, done in track_pack(tracker, to, path, summary, numbers):
                    if isinstance(done, MemberRefused):
                        note(f"error: {done}")
                        failed = done
                    else:
                        say(f"{name} {done}")
            except CollocError as problem:
                # A server that refuses one may take the next pack's.
                note(f"error: {problem}")
                failed = problem
    tell_unreadable(session)
    if failed is not None:
        sys.exit(failed.exit_code)
