"""A pack that Slurm starts again although its end was written down: `scontrol requeue`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from slurm_colloc.model.member import FINAL_STATES, MemberState, SlurmJobState, effective_state
from slurm_colloc.store.directory import forget_ended, list_members, read_ended, read_moved
from slurm_colloc.store.files import write_atomic
from slurm_colloc.store.holds import is_held
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.packs import State
from slurm_colloc.store.states import (
    StateRecord,
    begin_attempt,
    read_attempt,
    read_state,
    write_state,
)


def reopen(pack: Path, state: State) -> bool:
    """Take back Slurm's last word on a pack; called under its lock, before the attempt begins.

    A member that csub has settled (its environment is gone) stays what it was shown as and does
    not start again. The others are as open as before the end.

    Args:
        pack: The pack's directory.
        state: The state directory that it lies in.

    Returns:
        True where there was a last word.
    """
    ended = read_ended(pack)
    if ended is None:
        return False
    attempt = read_attempt(pack) or begin_attempt(pack, 1)
    is_open = False
    for number in list_members(pack):
        folder = pack / "members" / format_number(number)
        record = read_state(pack, number, attempt)
        if record is None:
            record = StateRecord(MemberState.PENDING, attempt)
        moved = read_moved(pack, number) is not None
        if record.state in FINAL_STATES or moved:
            continue
        if os.path.exists(folder / "env"):
            is_open = True
        else:
            _settle(pack, number, record, attempt, ended)
    if is_open:
        write_atomic(state.open / pack.name, b"")
    # Last: until then every reader sees the end as it was.
    forget_ended(pack)
    return True


def _settle(
    pack: Path, number: int, record: StateRecord, attempt: int, ended: SlurmJobState
) -> None:
    """Write down what the end of its pack made of a member."""
    cancelled = os.path.lexists(pack / "members" / format_number(number) / "cancelled")
    shown = effective_state(record.state, ended, cancelled=cancelled, held=is_held(pack, number))
    if shown in FINAL_STATES:
        reason = f"its pack had ended ({ended.value}) before it was requeued"
        write_state(
            pack, number, dataclasses.replace(record, state=shown, attempt=attempt, reason=reason)
        )
