"""`csub logs`: the output of members, as it stands or as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.cli.selection import Choice
from slurm_colloc.cli.session import Session, freeze, note, say
from slurm_colloc.errors import NotFound
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.show_view import find_log_paths, read_from

POLL_S = 0.3
STATE_POLL_S = 2.0


def print_logs(session: Session, choice: Choice, *, follow: bool, error: bool) -> int:
    """Print the output of members, one after the other; with `follow` until they have ended.

    A member that is submitted again in another pack is followed there.

    Raises:
        NotFound: There is no such member, or a single one has no output yet.
    """
    found = session.survey(choice)
    chosen = [(view, member) for view, members in found for member in members]
    offsets: dict[str, int] = {}
    shown = ""
    asked_at = time.monotonic()
    while True:
        for view, member in chosen:
            name = str(member.member)
            path = _path(view, member, error=error)
            offsets.setdefault(name, 0)
            for chunk in read_from(path, offsets[name]):
                if len(chosen) > 1 and shown != name:
                    say(f"{chr(10) if shown else ''}==> {name} {escape_controls(path)} <==")
                    sys.stdout.flush()
                    shown = name
                sys.stdout.buffer.write(chunk)
                offsets[name] += len(chunk)
        sys.stdout.flush()
        if not follow:
            _tell_missing(chosen, offsets, error=error)
            return 0
        if all(member.is_final for _, member in chosen):
            return 0
        time.sleep(POLL_S)
        if time.monotonic() - asked_at >= STATE_POLL_S:
            asked_at = time.monotonic()
            found = session.survey(freeze(found))
            chosen = [(view, member) for view, members in found for member in members]


def _path(view: PackView, member: MemberView, *, error: bool) -> str:
    out, err = find_log_paths(view, member)
    return err if error and err is not None else out


def _tell_missing(
    chosen: Sequence[tuple[PackView, MemberView]], offsets: dict[str, int], *, error: bool
) -> None:
    for view, member in chosen:
        has_run = member.record is not None and member.record.started_at is not None
        path = _path(view, member, error=error)
        if offsets[str(member.member)] or (has_run and Path(path).exists()):
            continue
        text = f"{member.member} is {member.state.value}: no output in {path}"
        if member.is_final:
            why = f" ({member.reason})" if member.reason else ""
            text, hint = f"{text}{why}", f"csub why {member.member} says more"
        else:
            text, hint = f"{text} yet", "csub logs -f waits for it"
        if len(chosen) == 1:
            raise NotFound(text, hint=hint)
        note(text)
