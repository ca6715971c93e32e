"""What a runner reads of other packs of its user, to see who waits in them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.degree.measured_curve import DegreeState
from slurm_colloc.model.plan import Goal, Policy, Rule, SharingMode
from slurm_colloc.planning.join.same_kind import (
    Asked,
    compare_policies,
    compute_reason_to_stay,
    find_difference,
)
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.pack import inbox
from slurm_colloc.store.pack.degree_record import read_degree
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_states import read_attempt, read_state
from slurm_colloc.store.pack.pack_directory import read_ended, read_slurm_job_id
from slurm_colloc.store.pack.pack_records import PackRecord


@dataclasses.dataclass(frozen=True)
class SisterPack:
    """Another pack that asked Slurm for the same.

    Attributes:
        path: Its directory.
        record: Its pack.json.
        attempt: Its newest attempt; 0 where it has not begun.
        job_id: What Slurm calls it; None while that is not known.
        may_have_room: It has begun, and is being measured or has measured room for more.
        gives: It runs as many as is best by what was measured, and has no free place.
        guests_of: The id of its submission where that is another one; empty for a sister.
    """

    path: Path
    record: PackRecord
    attempt: int
    job_id: str | None
    may_have_room: bool = False
    gives: bool = False
    guests_of: str = ""

    @property
    def name(self) -> str:
        """The pack's id."""
        return self.path.name


def may_take_over(record: PackRecord) -> bool:
    """Whether a pack may run more than it was planned with.

    Who asked for a number of members a pack, or for speed of each, is given just that.
    """
    policy = record.policy
    return (
        policy is not None
        and policy.goal is Goal.THROUGHPUT
        and policy.rule is Rule.CSUB
        and policy.pack_size is None
        and record.mode is not SharingMode.EXCLUSIVE
    )


def are_alike(own: PackRecord, other: PackRecord) -> bool:
    """Whether two packs asked Slurm for the same kind of thing, and share in the same way."""
    return (
        other.request is not None
        and not other.carried
        and not other.local
        and own.group == other.group
        and own.gpu_type == other.gpu_type
        and own.cluster == other.cluster
        and own.policy == other.policy
        and own.share == other.share
    )


def explain_difference(own: PackRecord, other: PackRecord) -> str:
    """Say why members of one submission and those of another do not move; empty where they may."""
    if other.carried or other.local:
        return "it runs alone"
    if SharingMode.MIG in (own.mode, other.mode):
        return "MIG instances are made for the members of one submission"
    if own.cluster != other.cluster:
        return f"its cluster is {other.cluster}, not {own.cluster}"
    return (
        compute_reason_to_stay(other.policy, other.group)
        or (other.closed if other.request is None else "")
        or find_difference(Asked(own.group, own.gpu_type), Asked(other.group, other.gpu_type))
        or ("" if own.share == other.share else f"its --share is {other.share}, not {own.share}")
        or _compare_policies(own.policy, other.policy)
    )


def _compare_policies(own: Policy | None, other: Policy | None) -> str:
    return "" if own is None or other is None else compare_policies(own, other)


def read_sister(
    state: State, path: Path, own: PackRecord, guests_of: str = ""
) -> SisterPack | None:
    """Read another pack; None where nothing can come from it, or it cannot be read.

    Args:
        state: The state directory.
        path: The pack.
        own: The pack that asks.
        guests_of: The id of its submission where that is another one, and its members may come
            (`explain_difference`); empty for a sister.
    """
    try:
        if not is_there(state.open / path.name) or read_ended(path) is not None:
            return None
        record = state.read_pack(path.name)
        if record is None or not (guests_of or are_alike(own, record)):
            return None
        attempt = read_attempt(path)
        sister = SisterPack(path, record, attempt, read_slurm_job_id(path), guests_of=guests_of)
        if not attempt:
            return sister
        degree = read_degree(path, attempt)
    except StateError:
        # Its own runner, or the next call of csub, tells of it.
        return None
    if degree is None or degree.state is DegreeState.MEASURING:
        return dataclasses.replace(sister, may_have_room=degree is not None)
    return dataclasses.replace(
        sister,
        may_have_room=bool(degree.room),
        gives=degree.state is DegreeState.SETTLED and count_begun(sister) >= degree.degree,
    )


def find_others(state: State, pack: Path, record: PackRecord) -> Iterator[tuple[Path, str]]:
    """Open packs of other submissions whose members may start in a pack, each with its id.

    Args:
        state: The state directory.
        pack: The pack.
        record: Its pack.json.
    """
    if compute_reason_to_stay(record.policy, record.group):
        return
    apart = {pack.name, *state.list_sisters(record)}
    for name in state.list_open():
        path = state.pack_path(name)
        with contextlib.suppress(StateError, OSError):
            other = None if name in apart else state.read_pack(name)
            if other is None or explain_difference(record, other):
                continue
            if job_id := read_slurm_job_id(path):
                yield path, other.shown_id or job_id.partition("_")[0]


def count_begun(sister: SisterPack) -> int:
    """Members of a pack that have begun and not ended, paused ones included."""
    count = 0
    for number in inbox.list_taken(str(sister.path)):
        if is_there(sister.path / "members" / format_number(number) / "begun"):
            record = read_state(sister.path, number, sister.attempt)
            count += record is None or not record.is_final
    return count


def list_waiting_here(sister: SisterPack, attempt: int) -> list[int]:
    """The members that wait in a pack where they were planned, and have not begun.

    Those that its runner has taken have states there, under its attempts' numbers. A pack with
    fewer attempts would take one of them for its own.

    Args:
        sister: The pack.
        attempt: The attempt of the pack that asks.
    """
    pack = str(sister.path)
    numbers = inbox.list_waiting(pack) or []
    if 0 < sister.attempt <= attempt:
        numbers += [
            number
            for number in sister.record.members
            if is_there(f"{pack}/members/{format_number(number)}/taken")
        ]
    own = set(sister.record.members)
    return [number for number in numbers if number in own]


def count_waiting_in_sisters(state: State, record: PackRecord, attempt: int) -> int:
    """How many members wait in other packs of a submission that may start in this one.

    Args:
        state: The state directory.
        record: The pack that asks.
        attempt: The attempt's number there.
    """
    if not may_take_over(record):
        return 0
    names = [name for name in state.list_sisters(record) if name != record.pack_id]
    sisters = (read_sister(state, state.pack_path(name), record) for name in names)
    return sum(len(list_waiting_here(sister, attempt)) for sister in sisters if sister is not None)
