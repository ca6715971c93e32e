"""Whether a GPU of the pack is gone: asked of NVML once a member has failed at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slurm_colloc.host.nvml.nvml_query import NvmlAnswer, probe_gpus

ASK_AGAIN_S = 10.0
"""Members that fail in a row are no reason to ask for each."""

LONGEST_S = 15.0
"""How long NVML may take: a driver that has just lost a GPU is slow, and what is decided without
its answer is that the member itself has failed."""


def find_lost(answer: NvmlAnswer, uuids: Sequence[str]) -> str:
    """Say which of some GPUs NVML does not show any more; empty for none; pure.

    NVML without an answer says nothing against a GPU.

    Args:
        answer: What NVML says.
        uuids: The GPUs that were there.
    """
    if answer.problem:
        return ""
    lost = [uuid for uuid in uuids if uuid.startswith("GPU-") and answer.find(uuid) is None]
    return f"{' and '.join(lost)} {'is' if len(lost) == 1 else 'are'} lost" if lost else ""


class LostGpu:
    """Remembers what NVML has said.

    Args:
        probe: Asks NVML, which may take so many seconds.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        probe: Callable[[float], NvmlAnswer] = probe_gpus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._asked_at = float("-inf")
        self.problem = ""
        """Which are lost; empty while all are there."""

    def look(self, uuids: Sequence[str]) -> str:
        """Ask NVML, if that was not done just now; which GPUs are lost, empty for none.

        The caller waits for the answer: nothing may be decided about the member without it.

        Args:
            uuids: The pack's GPUs.
        """
        now = self._clock()
        if not self.problem and now >= self._asked_at + ASK_AGAIN_S:
            answer = self._probe(LONGEST_S)
            self.problem = find_lost(answer, uuids)
            # What was not answered is asked again for the next one.
            self._asked_at = now if not answer.problem else float("-inf")
        return self.problem
