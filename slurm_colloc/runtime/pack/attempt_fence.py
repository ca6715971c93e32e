"""An attempt of a pack ends as soon as a newer one has started elsewhere."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.runtime.guarded_steps import DeliberateEnd
from slurm_colloc.runtime.launch.member_processes import kill
from slurm_colloc.runtime.queue.members import PackMembers
from slurm_colloc.store.pack.member_states import read_attempt


class Fenced(DeliberateEnd):
    """A newer attempt of this pack has started elsewhere."""

    exit_code = 1


class AttemptFence:
    """Between an attempt and the ones after it.

    Args:
        pack: The pack's directory.
        attempt: The attempt's number.
        members: Its members.
    """

    def __init__(self, pack: Path, attempt: int, members: PackMembers) -> None:
        self._pack = pack
        self._attempt = attempt
        self._members = members

    def check(self) -> None:
        """End the members at once where a newer attempt has started.

        Raises:
            Fenced: It has.
        """
        newest = read_attempt(self._pack)
        if newest > self._attempt:
            for member in self._members.running():
                kill(member)
            raise Fenced(f"attempt {newest} of this pack has started; attempt {self._attempt} ends")
