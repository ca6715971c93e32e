"""The question before jobs of several submissions are ended at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from slurm_colloc.cli.session import say
from slurm_colloc.model.quantities import format_elapsed
from slurm_colloc.report.queue import compute_elapsed_s, render_table
from slurm_colloc.report.survey import MemberView, PackView

Found = Sequence[tuple[PackView, Sequence[MemberView]]]


def must_ask(found: Found) -> bool:
    """A pack holds jobs of several submissions, and more than one of them would end."""
    return any(len(list_submissions(view, members)) > 1 for view, members in found)


def list_submissions(view: PackView, members: Sequence[MemberView]) -> set[str]:
    """The submissions that the members are of: a joiner came by one of its own."""
    return {member.spec.joined or view.record.submission for member in members}


def is_terminal() -> bool:
    """Somebody is there who can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def ask(found: Found) -> bool:
    """Show what would end, and ask; True for yes."""
    rows, submissions = [], set()
    now = time.time()
    for view, members in found:
        submissions |= list_submissions(view, members)
        rows += [
            (
                str(member.member),
                member.name,
                member.state.value,
                format_elapsed(compute_elapsed_s(member, now) or 0),
                " ".join([member.spec.job.script_name, *member.spec.job.arguments]),
            )
            for member in members
        ]
    say(render_table(("MEMBER", "NAME", "STATE", "TIME", "SCRIPT"), rows))
    sys.stdout.write(f"End these {len(rows)} jobs of {len(submissions)} submissions? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
