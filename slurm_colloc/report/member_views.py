"""Members and packs as they are shown: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from slurm_colloc.model.end_causes import choose_plain_cause
from slurm_colloc.model.member import (
    FINAL_STATES,
    MemberId,
    MemberState,
    SlurmJobState,
)
from slurm_colloc.model.parameters import Parameters
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import AUTO
from slurm_colloc.slurm.output_formats import SlurmJob
from slurm_colloc.store.pack.member_pauses import MemberPause, read_pauses
from slurm_colloc.store.pack.member_states import StateRecord
from slurm_colloc.store.pack.pack_records import MemberSpec, PackRecord
from slurm_colloc.store.pack.runner_kills import RunnerKill
from slurm_colloc.store.pack_reading import (
    MemberFiles,
)
from slurm_colloc.store.record_files import parse_record


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
    def row(self) -> str:
        """The row of a table that it is; empty for none."""
        row = self._value["job"].get("row")
        return row if isinstance(row, str) else ""

    @property
    def names_alone(self) -> bool:
        """It is a job by itself, and no task; see `MemberSpec`."""
        return self._value.get("names_alone") is True

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


def name_pack(number: tuple[int, int] | None, job: str) -> str:
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
            return member.record.gpu.mode
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
