"""An attempt of a pack ends as soon as a newer one has started elsewhere, or it counts as gone."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from slurm_colloc.runtime.guarded_steps import DeliberateEnd
from slurm_colloc.runtime.launch.member_processes import kill
from slurm_colloc.runtime.queue.members import PackMembers
from slurm_colloc.store.pack.member_states import read_attempt
from slurm_colloc.store.pack.runner_kills import was_killed


class Fenced(DeliberateEnd):
    """A newer attempt of this pack has started elsewhere."""

    exit_code = 1


class AttemptFence:
    """Between an attempt and the ones after it.

    Args:
        pack: The pack's directory.
        attempt: The attempt's number.
        members: Its members.
        restarts: How often Slurm has restarted the job.
    """

    def __init__(self, pack: Path, attempt: int, members: PackMembers, restarts: int = 0) -> None:
        self._pack = pack
        self._restarts = restarts
        self._attempt = attempt
        self._members = members

    def check(self) -> None:
        """End the members at once where this attempt is not to go on.

        Raises:
            Fenced: A newer one has started, or its guard takes it for dead.
        """
        newest = read_attempt(self._pack)
        if newest > self._attempt:
            self._end(f"attempt {newest} of this pack has started; attempt {self._attempt} ends")
        if was_killed(self._pack, self._restarts):
            self._end(
                f"this node counts as one that has left the job; attempt {self._attempt} ends"
            )

    def _end(self, why: str) -> NoReturn:
        for member in self._members.with_process():
            kill(member)
        raise Fenced(why)
