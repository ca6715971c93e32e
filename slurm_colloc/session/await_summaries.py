"""Summaries that packs had no time for: made by the next call that plans, or that has waited.

Also: what is done once a pack has ended: its summary, what is learned, and what others are told.

At its end a pack holds its GPU for its summary only for a moment (runtime.end_pack).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from slurm_colloc.errors import CollocError
from slurm_colloc.session.session import note
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.indexes import forget_due, is_due, list_due

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


# ----
# What is done once a pack has ended: its summary, what is learned, and what others are told.


def finish_pack(state: State, pack_id: str, settings: Settings) -> list[str]:
    """Write a pack's summary, learn from it, and tell the site.

    Args:
        state: The caller's own state directory.
        pack_id: The pack.
        settings: The settings.

    Returns:
        What usage profiles could not take, a sentence each.

    Raises:
        NotFound: There is no such pack.
        StateError: Something cannot be read or written.
    """
    from slurm_colloc.learning.learn_from_pack import learn_from_pack

    problems = learn_from_pack(state.pack_path(pack_id), settings.calibration_path)
    if settings.fleet_spool:
        try:
            _tell_site(state, pack_id, Path(settings.fleet_spool))
        except CollocError as problem:
            # The user's own figures are there all the same.
            note(f"pack {pack_id} was not reported to the site: {problem}")
    return problems


def _tell_site(state: State, pack_id: str, spool: Path) -> None:
    from slurm_colloc.report.member_survey import survey_packs
    from slurm_colloc.report.pack_entry import report_to_site
    from slurm_colloc.report.summary_file import find_summary

    for view in survey_packs(state, [pack_id], None):
        summary = find_summary(state, view)
        if summary["final"]:
            report_to_site(spool, summary, view)
