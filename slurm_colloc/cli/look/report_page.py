"""`csub report --html`: writes the page of a submission, says what it says first, and opens it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from slurm_colloc.cli.session import note, say
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.ownership import with_own_rights
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.report_view import choose_ids, group_submissions, name_submission
from slurm_colloc.report.summary.summary_shape import Summary
from slurm_colloc.store.atomic_files import write_atomic

Source = tuple[Path, Summary, Collection[int] | None]
"""A pack's directory, its summary, and the numbers of the members to show; None for all."""


def write_page(sources: Sequence[Source], file: str | None, *, opens: bool) -> None:
    """Write the page of one submission, and say its first sentence and where it lies.

    Args:
        sources: The packs.
        file: Its name; None for csub-report-ID.html in the working directory.
        opens: Open it in a browser.

    Raises:
        StateError: It cannot be written, or the samples cannot be read.
        UsageProblem: They are of no submission, or of several.
    """
    groups = group_submissions([(summary, numbers) for _, summary, numbers in sources])
    if not groups:
        raise UsageProblem("there is nothing to report", hint="csub history shows what has ended")
    if len(groups) > 1:
        raise UsageProblem(
            f"a page shows one submission, but {len(groups)} were named",
            hint="csub report ID --html, once for each",
        )
    (group,) = groups
    # numpy and jinja2 are loaded where a page is really made.
    from slurm_colloc.report.page.page_shape import PageSource
    from slurm_colloc.report.page.render_page import render_page

    summaries = [summary for summary, _ in group]
    text = render_page([PageSource(summary, path, numbers) for path, summary, numbers in sources])
    job = name_submission(*group[0])
    path = Path(file or f"csub-report-{job.replace('/', '_')}.html").absolute()
    # Like any new file of the user's, it can be read by those whom their umask allows.
    with with_own_rights():
        write_atomic(path, text.encode(errors="backslashreplace"), 0o666, outlives_crash=False)
    say(f"{tell_headline(summaries, choose_ids(group))}\n{escape_controls(str(path))}")
    if opens:
        _open(path)


def _open(path: Path) -> None:
    import webbrowser

    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not has_screen or not webbrowser.open(path.as_uri()):
        note(f"no browser can be opened here; copy the page to where one is: scp HOST:{path} .")
