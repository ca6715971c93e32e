"""Members and packs as they are shown: values only.

Also: members that went from one pack to another while both were looked at; a member that was
submitted again: in its new pack, or in one that has taken it over there; what members have written:
their output files, which lie wherever their users said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_colloc.errors import StateError
from slurm_colloc.model.job import AUTO, Parameters
from slurm_colloc.model.late_definitions import dataclass, field, replace
from slurm_colloc.model.member import (
    FINAL_STATES,
    MemberId,
    MemberState,
    SlurmJobState,
    choose_plain_cause,
    is_guest,
)
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.ownership import find_protected_owner
from slurm_colloc.slurm.slurm_commands import SlurmJob
from slurm_colloc.store.all_packs import MemberFiles
from slurm_colloc.store.atomic_files import parse_record
from slurm_colloc.store.foreign_files import UnexpectedFile, open_file
from slurm_colloc.store.member_states import MemberPause, StateRecord, read_pauses
from slurm_colloc.store.pack_directory import MemberSpec, PackRecord, read_slurm_job_id
from slurm_colloc.store.written_ends import RunnerKill

if TYPE_CHECKING:
    from slurm_colloc.store.all_packs import StateReader


@dataclass(frozen=True)
class MemberView:
    """One member.

    Attributes:
        member: Its name.
        state: What it is (see effective_state).
        record: What its runner wrote last; None before its first start.
        reason: Why it is in this state, in words.
        name: Its job name.
        wall_limit_s: Its wall limit as planned; None for none of its own.
        is_held: It is held by itself: its runner does not start it.
        moved_to: The pack in which it was submitted again; None if it was not.
        files: Its directory.
        is_parked: It runs, but its processes are paused until a place is free for it.
    """

    member: MemberId
    state: MemberState
    record: StateRecord | None
    reason: str
    name: str
    wall_limit_s: int | None
    is_held: bool
    moved_to: str | None
    files: MemberFiles
    _value: Mapping[str, Any] = field(repr=False)
    is_parked: bool = False
    dependency: str = ""

    @property
    def place(self) -> int:
        """Its number in its pack's directory: its own, unless it is of another submission."""
        return self.files.number

    @cached_property
    def spec(self) -> MemberSpec:
        """What it runs; made of spec.json where it is asked for, thousands are not.

        Raises:
            StateError: Its spec.json is damaged.
        """
        return parse_record(MemberSpec, self._value, f"{self.files.path}/spec.json")

    @cached_property
    def parameters(self) -> Parameters:
        """What tells it from the others of its sweep or table; none where it has none."""
        # Thousands are shown that have none.
        return self.spec.job.parameters if self._value["job"].get("parameters") else ()

    @property
    def findings(self) -> tuple[str, ...]:
        """What in its script collides, as it was said when it was submitted."""
        return self.spec.job.findings if self._value["job"].get("findings") else ()

    @property
    def row(self) -> str:
        """The row of a table that it is; empty for none."""
        row = self._value["job"].get("row")
        return row if isinstance(row, str) else ""

    @property
    def names_alone(self) -> bool:
        """It is a job by itself, and no task; see `MemberSpec`."""
        return self._value.get("names_alone") is True

    @property
    def own_id(self) -> str:
        """The number that csub has given it; empty for none."""
        number = self._value["job"].get("own_id")
        return number if isinstance(number, str) else ""

    @property
    def retry_of(self) -> str:
        """The member that it tries again; empty for none."""
        name = self._value["job"].get("retry_of")
        return name if isinstance(name, str) else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its script's arguments; none where they cannot be read."""
        found = self._value["job"].get("arguments")
        return tuple(map(str, found)) if isinstance(found, list | tuple) else ()

    @property
    def script_name(self) -> str:
        """Its script's path as the user wrote it; empty where it cannot be read."""
        return str(self._value["job"].get("script_name", ""))

    @property
    def is_final(self) -> bool:
        """It will not run again."""
        if self.state in FINAL_STATES:
            return True
        return self.record is not None and self.record.is_final and self.state is self.record.state


def name_pack(number: Sequence[int] | None, job: str) -> str:
    """What a pack is called: the number of its element in Slurm says nothing to its user.

    Args:
        number: Which pack of its call it is, and of how many; None where it is the only one.
        job: What Slurm calls it.
    """
    return f"Pack {job}" if number is None else f"Pack {number[0]} of {number[1]}"


@dataclass(frozen=True)
class PackView:
    """One pack.

    Attributes:
        record: What was planned.
        job_id: What Slurm calls it, `4711` or `4711_2`; empty while that is not known.
        slurm: Slurm's row; None where Slurm has forgotten it or does not answer.
        slurm_state: State of its Slurm job; None where Slurm could not be asked.
        attempt: Its newest attempt, 0 before its first start.
        is_elsewhere: Its Slurm job is not known to be one of this cluster.
        members: Its members by number.
        kill: The killed runner for which Slurm has put it back into its queue; None where it is
            not there for one.
    """

    record: PackRecord
    job_id: str
    slurm: SlurmJob | None
    slurm_state: SlurmJobState | None
    attempt: int
    is_elsewhere: bool
    members: tuple[MemberView, ...]
    kill: RunnerKill | None = None

    def mode_of(self, member: MemberView) -> str:
        """How a member shares the GPU; before its first start, how it will."""
        if member.record is not None and member.record.gpu is not None:
            return member.record.gpu.shown_mode
        if self.record.mode is not SharingMode.MPS or self.record.share != AUTO:
            return self.record.mode.value
        # A member that started without a GPU that could be named had no MPS.
        has_started = member.record is not None and member.record.starts > 0
        return SharingMode.TIMESLICE.value if has_started else AUTO

    @staticmethod
    def cause_of(member: MemberView) -> str:
        """The class of a member's end; empty where it has not ended."""
        record = member.record
        if record is not None and record.cause and member.state is record.state:
            return record.cause
        code = record.exit_code if record else None
        started = record is not None and record.starts > 0
        cause = choose_plain_cause(member.state, code, started=started)
        return cause.value if cause else ""

    @cached_property
    def _pauses(self) -> list[MemberPause]:
        """When members were paused; read where it is asked for."""
        return read_pauses(Path(self.members[0].files.path).parents[1])

    def count_paused_s(self, member: MemberView, begin: float, end: float) -> float:
        """For how much of a time of its present start its runner has paused a member.

        Args:
            member: The member.
            begin: From when, in seconds since the epoch.
            end: Until when; what has not ended lasts until then.
        """
        record = member.record
        if record is None:
            return 0.0
        spans = [
            (max(pause.begin, begin), end if pause.end is None else min(pause.end, end))
            for pause in self._pauses
            if (pause.member, pause.start) == (member.place, record.starts)
        ]
        return sum(max(0.0, high - low) for low, high in spans)

    @property
    def where_to_ask(self) -> str:
        """Where Slurm knows the job of a pack that is elsewhere."""
        cluster = self.record.cluster
        return f"the cluster {cluster}" if cluster else f"the cluster of {self.record.submit_host}"

    @property
    def shown_id(self) -> str:
        """The id that its members are named after: that of the whole submission."""
        return self.record.shown_id or self.own_id

    @property
    def pack_name(self) -> str:
        """`Pack 1 of 3`, or `Pack 4711` where it is the only one of its call."""
        return name_pack(self.record.number_of, self.job_id or "(not known to Slurm yet)")

    @property
    def is_numbered_pack(self) -> bool:
        """It is an element of an array whose index is that of no task and no member."""
        return self.record.is_array and self.record.request is not None

    @property
    def own_id(self) -> str:
        """The id of its Slurm job without an element; empty while that is not known."""
        return self.job_id.partition("_")[0]


# ---- Members that went from one pack to another while both were looked at; pure ------------------
#
# Packs are looked at one after the other. So a member may be seen in both, or in none.


def find_stale(views: Sequence[PackView]) -> list[int]:
    """Positions of the packs to look at again, because a member of theirs is seen in none.

    Args:
        views: The packs in the order in which they were looked at.
    """
    seen = {key for own in _list_keys(views) for key in own}
    names = _name_submissions(views)
    missed = {
        name
        for name, view in zip(names, views, strict=True)
        if any((name, number) not in seen for number in view.record.members)
    }
    # A pack alone cannot have given one away, unless to one that has members of others.
    mixed = {
        p for p, view in enumerate(views) if any(is_guest(member.place) for member in view.members)
    }
    missed = {name for name in missed if names.count(name) > 1 or mixed}
    return [
        place for place, name in enumerate(names) if missed and (name in missed or place in mixed)
    ]


def show_once(views: Sequence[PackView]) -> list[PackView]:
    """The packs, each member only in the one where it was seen last.

    Args:
        views: The packs in the order in which they were looked at.
    """
    keys = _list_keys(views)
    last = {key: place for place, own in enumerate(keys) for key in own}
    shown = []
    for place, (view, own) in enumerate(zip(views, keys, strict=True)):
        kept = tuple(m for m, key in zip(view.members, own, strict=True) if last[key] == place)
        shown.append(view if len(kept) == len(view.members) else replace(view, members=kept))
    return shown


def _list_keys(views: Sequence[PackView]) -> list[list[tuple[str, int]]]:
    """What is the same for each member wherever it is: its call and its number there."""
    names = _name_submissions(views)
    # By the ids after which members are named.
    calls = {view.shown_id: name for name, view in zip(names, views, strict=True)}
    return [
        [
            (calls.get(m.member.job, m.member.job) if is_guest(m.place) else name, m.member.number)
            for m in view.members
        ]
        for name, view in zip(names, views, strict=True)
    ]


def _name_submissions(views: Sequence[PackView]) -> list[str]:
    """What is the same for the packs of one call: the name of its first Slurm job."""
    first = {
        name: view.record.submission
        for view in views
        if not view.record.shown_id
        for name, _ in view.record.parts
    }
    return [first.get(view.record.submission, view.record.submission) for view in views]


# ----
# A member that was submitted again: in its new pack, or in one that has taken it over there.


def list_packs_to_follow(state: StateReader, pack_id: str) -> list[str]:
    """The pack in which members were submitted again, and others in which they may be by now.

    Raises:
        StateError: Its job id cannot be read.
    """
    job_id = read_slurm_job_id(state.pack_path(pack_id)) or ""
    return [pack_id, *state.list_takers(job_id.partition("_")[0])]


def find_again(member: MemberView, views: Iterable[PackView]) -> tuple[PackView, MemberView] | None:
    """A member as it was submitted again; None where that is in none of these packs.

    It has its number still. So may a member of another submission that is in its new pack.

    Args:
        member: It, in its first pack.
        views: The packs of `list_packs_to_follow`, and any others.
    """
    packs = {view.record.pack_id: view for view in views}
    new = packs.get(member.moved_to or "")
    if new is None:
        return None
    name = MemberId(new.shown_id, member.member.number)
    found = ((view, one) for view in packs.values() for one in view.members if one.member == name)
    return next(found, None)


# ---- What members have written: their output files, which lie wherever their users said ----------
#
# Of another user's member only a file that belongs to that user is read: its path is what the user
# wrote down, and may lead to a file that the reader alone can read.

CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 4096
_LINE_MOST = 200
_OF_SLURM = ("slurmstepd: ", "srun: ")


def find_output_owner(member: MemberView) -> int | None:
    """Whose a member's files have to be; None where the state is the caller's own."""
    return find_protected_owner(member.files.path)


def read_from(path: str, offset: int, owner: int | None = None) -> Iterator[bytes]:
    """The bytes of an output file from an offset on.

    Args:
        path: The file.
        offset: Where to begin.
        owner: See `find_output_owner`.

    Yields:
        Its parts; nothing if it is not there yet, or is a pipe or device of the caller's.

    Raises:
        StateError: It cannot be read, or it is of another user's member and not that user's file.
    """
    descriptor = open_output(path, owner)
    if descriptor is None:
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123
        file.seek(offset)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def open_output(path: str, owner: int | None) -> int | None:
    """Open an output file; see `read_from`."""
    try:
        return open_file(path, owner=owner, follows=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        # To write into a pipe or to a terminal is the user's good right.
        if owner is None and isinstance(error, UnexpectedFile):
            return None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StateError(f"cannot read the output {path}: {reason}") from error


def read_last_line(paths: Iterable[str | None], owner: int | None = None) -> str:
    """The last line with something in it, made harmless for a terminal.

    Args:
        paths: Where it may stand, the likeliest first: standard error, then standard output.
        owner: See `find_output_owner`.

    Returns:
        Empty where there is none, or nothing can be read. What Slurm's own programs add at the end
        counts only where there is nothing else.
    """
    spare = ""
    for path in paths:
        lines = [line.strip() for line in _read_tail(path, owner).splitlines() if line.strip()]
        own = [line for line in lines if not line.startswith(_OF_SLURM)]
        if own:
            return cut(escape_controls(own[-1]), _LINE_MOST)
        spare = spare or (lines[-1] if lines else "")
    return cut(escape_controls(spare), _LINE_MOST)


def _read_tail(path: str | None, owner: int | None) -> str:
    if not path:
        return ""
    try:
        descriptor = open_output(path, owner)
    except StateError:
        return ""
    if descriptor is None:
        return ""
    try:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return tail.decode("utf-8", "replace")
