"""What is left of a pack's time, and for which members that is too little.

A member that would be ended half-way by the end of its pack is not started. It stays as it came,
so that the next call of csub submits it again, in a pack with time enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.model.degree.degree_reasons import TOO_LITTLE_TIME, is_time_reason
from slurm_colloc.model.end_causes import RESUBMISSIONS
from slurm_colloc.model.sbatch.quantities import format_elapsed
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.store.pack.member_holds import is_held
from slurm_colloc.store.pack.pack_records import PackRecord

END_MARGIN_S = 20.0
"""What is left of a pack's time limit for its end."""


class TimeLeft:
    """The time of one attempt of a pack.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        members: Its members.
        site_requeues: Slurm's JobRequeue.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        pack: Path,
        record: PackRecord,
        members: PackMembers,
        *,
        site_requeues: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pack = pack
        self._members = members
        self._site_requeues = site_requeues
        self._clock = clock
        self._limit_s = None if record.request is None else record.request.time_limit_s
        self._begun_at = clock()
        # Elsewhere they would not be submitted again.
        is_swept = not record.carried and not record.local
        self._may_hand_back = is_swept and record.resubmissions < RESUBMISSIONS

    @property
    def left_s(self) -> float | None:
        """Seconds until Slurm ends the pack; None without a limit that is known."""
        if self._limit_s is None:
            return None
        return self._limit_s - (self._clock() - self._begun_at)

    def is_too_short_for(self, member: Member) -> bool:
        """Whether a member that has not begun its work is better off in another pack."""
        job, left_s = member.spec.job, self.left_s
        if not self._may_hand_back or left_s is None or job.time_limit_s is None:
            return False
        loads_only = member.is_at_door and member.pid is not None
        if left_s >= job.time_limit_s or member.record.starts > int(loads_only):
            return False
        if left_s <= 0:
            # The pack runs on beyond its limit, so that was raised.
            return False
        may_restart = self._site_requeues if job.requeue is None else job.requeue
        # Another pack has no more time than this one had: a job that needs all may start here.
        assert self._limit_s is not None
        is_better = job.time_limit_s + END_MARGIN_S <= self._limit_s and self._has_begun()
        return may_restart and is_better and not is_held(self._pack, member.number)

    def describe(self, member: Member) -> str:
        """Why a waiting member is not to be started here any more; empty where it may be."""
        if not self.is_too_short_for(member):
            return ""
        if is_time_reason(member.record.reason):
            # As it was written down.
            return member.record.reason
        left_s, limit_s = self.left_s, member.spec.job.time_limit_s
        assert left_s is not None
        assert limit_s is not None
        return (
            f"{TOO_LITTLE_TIME}{format_elapsed(int(left_s))} left, and it may take "
            f"{format_elapsed(limit_s)}: it is submitted again once the pack has ended"
        )

    def _has_begun(self) -> bool:
        """A member has been started: no pack hands back all that it was given."""
        members = self._members.by_number.values()
        return any(member.process is not None or member.record.starts for member in members)
