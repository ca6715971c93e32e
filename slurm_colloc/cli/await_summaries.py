"""Summaries that packs had no time for: made by the next call that plans, or that has waited.

At its end a pack holds its GPU for its summary only for a moment (runtime.pack.last_work).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from slurm_colloc.cli.session import note
from slurm_colloc.errors import CollocError
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.learned.due_summaries import forget_due, is_due, list_due

PATIENCE_S = 10.0
"""How long a call that has waited for members waits for what is learned from them."""

PLAN_PATIENCE_S = 3.0
"""How long one that plans waits for packs that are just ending."""

_PAUSE_S = 0.2


def await_summaries(
    state: State, settings: Settings, pack_ids: Collection[str], look: Callable[[], object]
) -> None:
    """Wait for the summaries of packs whose members have all ended, or make them.

    Args:
        state: The state directory.
        settings: The settings.
        pack_ids: The packs.
        look: Asks Slurm whether packs are over.
    """
    deadline = time.monotonic() + PATIENCE_S
    while due := [pack_id for pack_id in pack_ids if is_due(state.root, pack_id)]:
        make_summaries(state, settings, due)
        if not any(is_due(state.root, pack_id) for pack_id in due):
            return
        if time.monotonic() > deadline:
            note("their summary is not written yet; the next call that plans makes it")
            return
        time.sleep(_PAUSE_S)
        look()


def prepare_summaries(state: State, settings: Settings) -> None:
    """Have what is learned from packs that have ended at hand for a plan.

    Args:
        state: The state directory.
        settings: The settings.
    """
    due = list_due(state.root)
    deadline = time.monotonic() + PLAN_PATIENCE_S
    ending = [pack_id for pack_id, is_ending in due.items() if is_ending]
    while time.monotonic() < deadline and any(
        is_due(state.root, pack_id) and _is_open(state, pack_id) for pack_id in ending
    ):
        time.sleep(_PAUSE_S)
    make_summaries(state, settings, due)


def make_summaries(state: State, settings: Settings, pack_ids: Collection[str]) -> None:
    """Make those that are due and at which no runner is any more.

    Args:
        state: The state directory.
        settings: The settings.
        pack_ids: The packs.
    """
    over = [pack_id for pack_id in pack_ids if not _is_open(state, pack_id)]
    if not over:
        return
    from slurm_colloc.cli.finish_pack import finish_pack

    with hold_lock(state.root / "summaries.lock", PATIENCE_S):
        for pack_id in over:
            # Another call may have made it meanwhile.
            if not is_due(state.root, pack_id):
                continue
            if os.path.isdir(state.pack_path(pack_id)):  # noqa: PTH112
                try:
                    finish_pack(state, pack_id, settings)
                except CollocError as problem:
                    note(f"nothing is learned from pack {pack_id}: {problem}")
            forget_due(state.root, pack_id)


def _is_open(state: State, pack_id: str) -> bool:
    return os.path.lexists(state.open / pack_id)
