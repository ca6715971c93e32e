"""`csub probe`: a job runs alone until its rate is known, and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_colloc.model.degree.probe_window import ProbeProgress, choose_patience, judge_window
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.runtime.watch.latest_json import read_latest


class ProbeWindow:
    """Ends a member that is only to be probed, once its rate alone is known.

    Args:
        pack: The pack's directory.
        journal: The pack's log.
        why_unwatched: Why nothing is measured in this pack; empty where it is.
        end: Ends the member.
    """

    def __init__(
        self,
        *,
        pack: Path,
        journal: Journal,
        why_unwatched: Callable[[], str],
        end: Callable[[Member], None],
    ) -> None:
        self._pack = pack
        self._journal = journal
        self._why_unwatched = why_unwatched
        self._end = end
        self._probed: Member | None = None
        self._begun_at = 0.0

    def open_for(self, member: Member) -> None:
        """Open a window for a member that starts now, if it is only to be probed."""
        if member.spec.job.only_probe:
            self._probed, self._begun_at = member, time.monotonic()
            self._journal.write("probe", member=member.number)

    def work(self) -> None:
        """See whether the window is over."""
        member = self._probed
        if member is None:
            return
        try:
            reason = self._judge(member)
        except Exception as error:  # noqa: BLE001 - figures of other hands never end a pack
            reason = f"what it shows cannot be judged: {error!r}"
        if not reason:
            return
        elapsed_s = round(time.monotonic() - self._begun_at, 1)
        self._journal.write("probed", member=member.number, seconds=elapsed_s, reason=reason)
        self._probed = None
        if member.process is not None:
            self._end(member)

    def _judge(self, member: Member) -> str:
        if member.process is None:
            return "it has ended"
        job = member.spec.job
        unwatched = self._why_unwatched()
        if unwatched:
            return f"nothing is measured: {unwatched}"
        latest = self._read_latest(member)
        progress = ProbeProgress(
            elapsed_s=time.monotonic() - self._begun_at,
            steps=latest.get("steps"),
            steady=bool(latest.get("steady")),
            settled_s=latest.get("settled_s") or 0.0,
            steps_per_s=latest.get("steps_per_s"),
            mean_steps_per_s=latest.get("mean_steps_per_s"),
            mean_error=latest.get("mean_error"),
        )
        return judge_window(progress, choose_patience(job))

    def _read_latest(self, member: Member) -> dict[str, Any]:
        """The monitor's newest figures of the member's present start; empty without."""
        latest = read_latest(self._pack)
        found = latest["members"].get(str(member.number), {}) if latest is not None else {}
        return dict(found) if found.get("start") == member.record.starts else {}
