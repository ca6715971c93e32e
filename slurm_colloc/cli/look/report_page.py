"""`csub report --html`: writes the page of a submission, says what it says first, and opens it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from slurm_colloc.cli.session import note, say
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.ownership import with_own_rights
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.member_output import read_last_line
from slurm_colloc.report.member_remarks import BAD_STATES
from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.page.page_shape import PageSource
from slurm_colloc.report.report_view import choose_ids, group_submissions, name_submission
from slurm_colloc.report.show_view import find_log_paths
from slurm_colloc.report.summary.summary_shape import Summary
from slurm_colloc.store.atomic_files import write_atomic
from slurm_colloc.store.pack_reading import StateReader

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
    path = save_page(text, file or f"csub-report-{job.replace('/', '_')}.html")
    say(f"{tell_headline(summaries, choose_ids(group))}\n{escape_controls(str(path))}")
    if opens:
        open_page(path)


def save_page(text: str, file: str) -> Path:
    """Write a page; where it lies.

    Raises:
        StateError: It cannot be written.
    """
    path = Path(file).absolute()
    # Like any new file of the user's, it can be read by those whom their umask allows.
    with with_own_rights():
        write_atomic(path, text.encode(errors="backslashreplace"), 0o666, outlives_crash=False)
    return path


def open_page(path: Path) -> None:
    """Open a page in a browser, or say where it is."""
    import webbrowser

    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not has_screen or not webbrowser.open(path.as_uri()):
        note(f"no browser can be opened here; copy the page to where one is: scp HOST:{path} .")
