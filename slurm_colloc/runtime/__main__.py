"""The batch script's only command: run a pack. Who: the user; where: the pack's first node.

python -IB -m slurm_colloc.runtime PACK_DIRECTORY [--local L3]

All that a runner needs is loaded behind the fork, so that the guard above it stays small.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial

from slurm_colloc.runtime.pack.guard import stand_guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(argv: Sequence[str]) -> int:
    """Run the pack; the exit status is its worst member's."""
    pack = argv[0]
    local = argv[2] if len(argv) > 2 and argv[1] == "--local" else ""
    announce = None if local else put_under_guard(pack)
    from slurm_colloc.runtime.attempt import run_attempt

    return run_attempt(pack, local, announce)


def put_under_guard(pack: str) -> Callable[[str], None] | None:
    """Put a guard above this process, except for a job alone, which is its batch script itself.

    Returns:
        How to tell it of a directory; None where there is no guard.
    """
    plan: dict[str, Any] = {}
    # What is wrong with a pack is told where all of it is read.
    with (
        contextlib.suppress(OSError, TypeError, ValueError),
        open(f"{pack}/pack.json", "rb") as file,
    ):
        plan = dict(json.load(file))
    if plan.get("request") is None:
        return None
    # Where a pack travels nothing outlives an attempt: what had ended would run again.
    requeue = None if plan.get("carried") else partial(requeue_pack, pack)
    with contextlib.suppress(OSError):
        return stand_guard(requeue, partial(resume_paused, pack)).announce
    return None


def requeue_pack(pack: str, number: int) -> bool:
    """Have a pack started again whose runner was killed; called in the guard."""
    from slurm_colloc.runtime.pack.requeue_after_kill import requeue_pack as ask_slurm

    return ask_slurm(pack, number)


def resume_paused(pack: str) -> None:
    """Let members go on that a killed runner had paused; called in the guard."""
    from slurm_colloc.runtime.pausing.step_processes import continue_stopped

    continue_stopped(pack)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
