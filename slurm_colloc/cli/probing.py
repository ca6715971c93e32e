"""The end of `csub probe`: what it has shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.model.member import Selection
from slurm_colloc.model.probing import choose_patience
from slurm_colloc.submission.collect import Call
from slurm_colloc.submission.submit import Submitted

if TYPE_CHECKING:
    from slurm_colloc.model.profile import ProfileRecord

PROFILE_WAIT_S = 45.0
"""The runner writes what was measured once the member has ended, the usage profile last."""


def finish_probe(call: Call, session: Session, submitted: Sequence[Submitted]) -> int:
    """Say what comes next; with `--wait`, wait for it and show the usage profile.

    Returns:
        The exit status: 0; 1 where the job was waited for and has left no usage profile.
    """
    job = call.candidates[0].job
    is_for_people = not any(call.options.flag(name) for name in ("json", "parsable", "quiet"))
    if not call.options.flag("wait"):
        if is_for_people:
            longest_s = choose_patience(job).window_s
            note(
                f"it ends by itself once its rate is known, after {longest_s:g} s at most; "
                f"then: csub profile show {job.name}"
            )
        return 0
    from slurm_colloc.cli.waiting import wait_for
    from slurm_colloc.store.faults import compute_signature

    job_id, pack_id = submitted[0].job_id, submitted[0].records[0].pack_id
    chosen = [Selection(job_id, None)]
    wait_for(session, chosen)
    signature = compute_signature(call.candidates[0].script, job)
    has_run = any(m.record and m.record.starts for _, ms in session.survey(chosen) for m in ms)
    deadline = time.monotonic() + (PROFILE_WAIT_S if has_run else 0.0)
    while (found := _find(session.state.root, signature, pack_id)) is None:
        if time.monotonic() >= deadline:
            sys.stdout.flush()
            note(f"it has left no usage profile; csub report {job_id} says why")
            return 1
        time.sleep(0.2)
    if is_for_people:
        from slurm_colloc.report.profile_view import render_profile
        from slurm_colloc.report.terminal import choose_width

        say(render_profile(found, choose_width()))
    return 0


def _find(root: Path, signature: str, pack_id: str) -> ProfileRecord | None:
    """The usage profile that a pack has made or added to; None while there is none."""
    from slurm_colloc.store.profiles import list_profiles

    for record in list_profiles(root)[0]:
        runs = (run.partition("/")[0] for run in record.seen)
        if record.signature == signature and pack_id in runs:
            return record
    return None
