"""The text of the mail about a whole array: the first sentence, and a table of its members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import CollocError
from slurm_colloc.model.job_values import MailEvent
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_elapsed
from slurm_colloc.report.headline import list_last_tries, tell_headline
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.summary_file import Summary, find_summary
from slurm_colloc.report.terminal_tables import (
    count_states,
    format_figure,
    render_lines,
    tell_members_apart,
)
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.report_files import write_mail_text

HEADER = ("MEMBER", "STATE", "EXIT", "TIME", "STEPS/S", "SLOWDOWN", "ARGS")
ROWS_MOST = 500
"""A mail of more is read by no one."""
_ARGUMENTS_MOST = 80
_ENDS = (MailEvent.END, MailEvent.FAIL)


def write_submission_mail(state: StateReader, pack_id: str) -> None:
    """Write the text, where a member of a pack asks for one mail for its whole array.

    Args:
        state: The state directory.
        pack_id: The pack that has just got its summary.

    Raises:
        CollocError: Something cannot be read or written.
    """
    path = state.pack_path(pack_id)
    (view,) = survey_packs(state, [pack_id], None) or (None,)
    if view is None or not _wants_one_mail(view):
        return
    views = survey_packs(state, state.list_sisters(view.record), None, [])
    found = []
    for each in views or [view]:
        try:
            found.append(find_summary(state, each))
        except CollocError:
            # Another pack's damage is no reason to send no table at all.
            continue
    if found:
        write_mail_text(Path(path), render_mail(found, view.shown_id))


def _wants_one_mail(view: PackView) -> bool:
    return any(
        job.mail is not None
        and job.array_task is not None
        and not job.mail.each_task
        and any(job.mail.wants(event) for event in _ENDS)
        for job in (member.spec.job for member in view.members)
    )


def render_mail(summaries: Sequence[Summary], shown_id: str) -> str:
    """The first sentence, the table, and where there is more; no line steers a terminal.

    Args:
        summaries: Of all packs of the submission.
        shown_id: What it is called.
    """
    # A pack may have had members of other submissions, too.
    members = [
        member
        for summary in summaries
        for member in summary["members"]
        if member["id"].partition("/")[0] == shown_id
    ]
    members.sort(key=lambda member: member["member"])
    is_mixed = len(members) < sum(len(summary["members"]) for summary in summaries)
    chosen = [member["id"] for member in members] if is_mixed else None
    words = tell_members_apart(members)
    rows = [
        (
            member["id"],
            member["state"],
            "" if (code := member["exit_code"]) is None else f"{code}:{member['exit_signal'] or 0}",
            _format_time(member["started_at"], member["ended_at"]),
            format_figure(member["rate"]["steps_per_s"]),
            format_figure(member["slowdown"]),
            cut(escape_controls(text), _ARGUMENTS_MOST),
        )
        for member, text in zip(members, words, strict=True)
    ]
    last = list_last_tries(members)
    total = count_states([MemberState(m["state"]) for m in last if m["state"] in _STATES])
    table = render_lines(HEADER, rows[:ROWS_MOST], total)
    more = f"and {len(rows) - ROWS_MOST} more\n" if len(rows) > ROWS_MOST else ""
    headline = escape_controls(tell_headline(summaries, chosen))
    return f"{headline}\n\n{table}{more}\nMore: csub report {shown_id}\n"


_STATES = frozenset(MemberState)


def _format_time(started: float | None, ended: float | None) -> str:
    return "" if started is None or ended is None else format_elapsed(int(ended - started))
