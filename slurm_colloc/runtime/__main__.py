"""The batch script's only command: run a pack. Who: the user; where: the job's node.

python -IB -m slurm_colloc.runtime PACK_DIRECTORY [--local L3]

All that a runner needs is loaded behind the fork, so that the guard above it stays small.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence

from slurm_colloc.process_name import name_process
from slurm_colloc.runtime.guard import GuardPipe, stand_guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(argv: Sequence[str]) -> int:
    """Run the pack; the exit status is its worst member's."""
    name_process("csub-guard")
    pack = argv[0]
    local = argv[2] if len(argv) > 2 and argv[1] == "--local" else ""
    if not local and read_plan(pack).get("chain"):
        from slurm_colloc.runtime.chain_links import await_turn

        if not await_turn(pack):
            return 0
    guard = None if local else put_under_guard(pack, read_plan(pack))
    if guard is not None and has_several_sets(read_plan(pack)):
        name_process("csub-starter")
        from slurm_colloc.runtime.start_runners import become_runner

        pack = become_runner(pack, guard)
    name_process("csub-runner")
    from slurm_colloc.runtime.attempt import run_attempt

    return run_attempt(pack, local, None if guard is None else guard.announce)


def read_plan(pack: str) -> dict[str, Any]:
    """What its pack.json says; empty where it cannot be read, which is told where all is read."""
    with (
        contextlib.suppress(OSError, TypeError, ValueError),
        open(f"{pack}/pack.json", "rb") as file,
    ):
        return dict(json.load(file))
    return {}


def has_several_sets(plan: dict[str, Any]) -> bool:
    """Whether its Slurm job has several GPU sets, each with a runner of its own."""
    return isinstance(plan.get("gpu_sets"), list) and len(plan["gpu_sets"]) > 1


def put_under_guard(pack: str, plan: dict[str, Any]) -> GuardPipe | None:
    """Put a guard above this process, except for a job alone, which is its batch script itself.

    Args:
        pack: The pack's directory.
        plan: Its pack.json.

    Returns:
        The line to it; None where there is no guard.
    """
    if plan.get("request") is None:
        return None
    has_starter = has_several_sets(plan)
    try:
        return stand_guard(pack, requeue_pack, resume_paused, has_starter=has_starter)
    except OSError:
        if has_starter:
            # This process can be one runner, and not all.
            raise
        return None


def requeue_pack(pack: str, number: int, killed_at: float) -> bool | None:
    """Have a job started again one of whose runners was killed; called in the guard."""
    from slurm_colloc.runtime.requeue_after_kill import requeue_pack as ask_slurm

    return ask_slurm(pack, number, killed_at)


def resume_paused(pack: str) -> None:
    """Let members go on that a killed runner had paused; called in the guard."""
    from slurm_colloc.runtime.pause_members import continue_stopped

    continue_stopped(pack)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
