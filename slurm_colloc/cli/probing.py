"""The end of `csub probe`: what it has shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.model.member import Selection
from slurm_colloc.model.probing import BY_ITSELF
from slurm_colloc.submission.collect import Call
from slurm_colloc.submission.submit import Submitted

SUMMARY_WAIT_S = 40.0
"""The runner writes what was measured once the member has ended."""


def finish_probe(call: Call, session: Session, submitted: Sequence[Submitted]) -> int:
    """Say what comes next; with `--wait`, wait for it and show the usage profile.

    Returns:
        The exit status: 0; 1 where the job was waited for and has left no usage profile.
    """
    job = call.candidates[0].job
    if not call.options.flag("wait"):
        if not call.options.flag("parsable") and not call.options.flag("json"):
            note(
                f"it ends by itself once its rate is steady, after {BY_ITSELF.window_s:g} s at "
                f"most; then: csub profile show {job.name}"
            )
        return 0
    from slurm_colloc.cli.waiting import wait_for
    from slurm_colloc.store.faults import compute_signature

    chosen = [Selection(entry.job_id, None) for entry in submitted]
    wait_for(session, chosen)
    pack = session.state.packs / submitted[0].records[0].pack_id
    deadline = time.monotonic() + SUMMARY_WAIT_S
    while not (pack / "report" / "summary.json").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    signature = compute_signature(call.candidates[0].script, job)
    return _show(session, submitted[0].job_id, signature, pack.name)


def _show(session: Session, job_id: str, signature: str, pack_id: str) -> int:
    from slurm_colloc.report.profile_view import render_profile
    from slurm_colloc.report.terminal import choose_width
    from slurm_colloc.store.profiles import list_profiles

    for record in list_profiles(session.state.root)[0]:
        if record.signature == signature and any(s.startswith(pack_id) for s in record.seen):
            say(render_profile(record, choose_width()))
            return 0
    sys.stdout.flush()
    note(f"it has left no usage profile; csub report {job_id} says why")
    return 1
