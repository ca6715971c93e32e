"""The door: members that wait for room on the GPU have started, and load their program meanwhile.

Such a member has a process and a place with its CPUs. It takes nothing of the GPU yet, so it does
not count among those that run. Before its first use of the GPU it waits (slurm_colloc.instrument),
until the runner opens the door. Only members of a kind that has been seen to come by there are
started like this: what uses the GPU without PyTorch would not wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.instrument.layout import DOOR, GPU_USED
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import MemberState, Stage, WaitReason
from slurm_colloc.model.why_not_now import describe_wait
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.member_progress import ProgressReader
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.room import TimeLeft, count_host_memory_left_mb
from slurm_colloc.runtime.start_member import MemberStarter
from slurm_colloc.runtime.stop_member import MemberControl
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.member_states import AT_DOOR, append_change


@dataclass
class _Door:
    """The door of one start of a member.

    Attributes:
        member: The member.
        directory: Where it counts its steps.
        descriptor: Holds the lock by which it is closed.
        has_come: It waits there.
        too_late: It is being ended, because too little of the pack's time is left for it.
    """

    member: Member
    directory: str
    descriptor: int
    has_come: bool = False
    too_late: bool = False


@dataclass(eq=False, kw_only=True)
class Doors:
    """Starts members ahead of their turn, and lets them on to the GPU in their turn.

    Attributes:
        pack: The attempt of the pack.
        monitor: Knows where a member counts its steps.
        progress: Knows what members are like, and sees what they take.
        gpu_mode: How they share the GPU.
        time_left: What is left of the pack's time.
        starter: Tells a member that its time begins; what is different in its environment.
        control: Ends a member that is to start again.
        states: Writes states.
    """

    pack: PackContext
    monitor: PackMonitor
    progress: ProgressReader
    gpu_mode: GpuMode
    time_left: TimeLeft
    starter: MemberStarter
    control: MemberControl
    states: StateWriter

    def __post_init__(self) -> None:
        self._is_on = self.pack.settings.door and self.pack.settings.instrument
        """The settings have members wait there, and let steps be counted by what waits there."""
        self._doors: dict[int, _Door] = {}
        self._kinds: dict[str, bool] = {}
        """Whether a kind stops at the door: one of it has come by there, and none went another
        way."""
        self._seen: set[tuple[int, int]] = set()

    # -- asking -------------------------------------------------------------------------------

    def may_load(self, member: Member) -> bool:
        """Whether a member can be started up to the door."""
        job = member.spec.job
        if not self._is_on or not job.instrument or job.turn_s:
            return False
        # A rate that is known was counted inside PyTorch.
        is_known = member.spec.plan.solo_steps_per_s is not None and job.progress_regex is None
        stops = self._kinds.get(self.progress.find_family(member), is_known)
        return stops and self._has_host_memory(member)

    def list_waiting(self) -> list[Member]:
        """Those whose door is closed and that are to go on, the next one first."""
        return [door.member for door in self._doors.values() if door.member.asked is None]

    def _has_host_memory(self, member: Member) -> bool:
        left_mb = count_host_memory_left_mb(self.pack.record, self.pack.members.with_process())
        wanted_mb = member.spec.plan.host_memory_mb
        return left_mb is None or (wanted_mb is not None and wanted_mb <= left_mb)

    # -- starting -----------------------------------------------------------------------------

    def close(self, member: Member) -> bool:
        """Close the door of a member that is about to start; False where that cannot be done."""
        self.drop(member)
        directory = self.monitor.find_progress(member, is_next=True)
        if not directory:
            return False
        descriptor = -1
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(f"{directory}/{DOOR}", flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.pack.journal.write("no_door", member=member.number, reason=str(error))
            if descriptor >= 0:
                os.close(descriptor)
            self._is_on = False
            return False
        self._doors[member.number] = _Door(member, directory, descriptor)
        member.keep_at(Stage.LOADING)
        return True

    def drop(self, member: Member) -> None:
        """A member was not started after all, or has ended."""
        door = self._doors.pop(member.number, None)
        if door is None:
            return
        member.let_go(Stage.LOADING)
        self._unlock(door, {})
        if door.has_come:
            self._write_wait(door, resumed=True)
        if door.too_late and member.record.state is MemberState.PENDING:
            # It has not begun: it is left as it came, for a pack with time enough.
            shutil.rmtree(door.directory, ignore_errors=True)
            for path in Path(member.prefix).parent.glob(f"{Path(member.prefix).name}.*"):
                path.unlink(missing_ok=True)
            self.states.write(
                member, MemberState.PENDING,
                starts=member.record.starts - 1, started_at=None, reason="",
            )  # fmt: skip

    # -- the runner's turn --------------------------------------------------------------------

    def work(self) -> None:
        """See who has come to the door, and who uses the GPU without."""
        self._note_kinds()
        for door in list(self._doors.values()):
            if door.member.process is None:
                self.drop(door.member)
            elif door.member.asked is None:
                self._look(door)

    def enter(self, member: Member) -> None:
        """Let a member on to the GPU."""
        self._open(self._doors[member.number], "has room")

    def open_all(self) -> None:
        """Nothing is waited for any more."""
        for door in list(self._doors.values()):
            self._open(door, "nothing is measured any more")

    def _note_kinds(self) -> None:
        """See which of those that run have come by the door."""
        for member in self.pack.members.running() if self._is_on else ():
            key = member.number, member.record.starts
            if key not in self._seen and os.path.exists(
                f"{self.monitor.find_progress(member)}/{GPU_USED}"
            ):
                self._seen.add(key)
                if kind := self.progress.find_family(member):
                    self._kinds.setdefault(kind, True)

    def _look(self, door: _Door) -> None:
        member = door.member
        if member.pid is None:
            return
        if not door.has_come and os.path.exists(f"{door.directory}/{GPU_USED}"):
            door.has_come = True
            # Its time stands still; one that never comes is ended by its limit.
            member.stop_time()
            self._write_wait(door, resumed=False)
            self.pack.journal.write("at_door", member=member.number)
        elif not door.has_come and self.progress.uses_gpu_memory(member):
            # Something else than PyTorch was there first: it counts with those that run.
            self._kinds[self.progress.find_family(member)] = False
            self._open(door, "uses the GPU already")
            return
        if self.time_left.is_too_short_for(member):
            door.too_late = True
            self.control.requeue(member)

    def tell(self, waits: WaitReason) -> None:
        """Write down why those at the door wait there."""
        reason = describe_wait(waits)
        for door in self._doors.values():
            member = door.member
            if door.has_come:
                text = f"at the door: its program is loaded, and it waits: {reason}"
            else:
                text = f"it loads its program; then it waits at the door: {reason}"
            is_up = member.record.state is MemberState.RUNNING and member.asked is None
            if is_up and member.record.reason != text:
                self.states.write(member, MemberState.RUNNING, reason=text)

    def _open(self, door: _Door, why: str) -> None:
        member, now = door.member, time.time()
        del self._doors[member.number]
        member.let_go(Stage.LOADING)
        changed: Mapping[str, str] = {}
        try:
            changed = self.starter.begin_time(member, now)
        except StateError as error:
            # It ends by its limit as it should, but squeue in its script shows another.
            self.pack.journal.write("time_not_told", member=member.number, reason=str(error))
        self._unlock(door, changed)
        if door.has_come:
            self._write_wait(door, resumed=True)
        if member.pid is not None:
            member.begin_time(time.monotonic())
            self.states.write(member, member.record.state, reason="", at_door=False)
            if member.gpu is not None and member.gpu.is_under_mps:
                self.gpu_mode.clients.watch(member)
        started_at = member.record.started_at
        waited_s = None if started_at is None else round(now - started_at, 1)
        self.pack.journal.write(
            "door", member=member.number, seconds=waited_s, loaded=door.has_come, reason=why
        )

    def _unlock(self, door: _Door, changed: Mapping[str, str]) -> None:
        content = b"".join(
            b"%s=%s\0" % (os.fsencode(name), os.fsencode(value)) for name, value in changed.items()
        )
        with contextlib.suppress(OSError):
            os.unlink(f"{door.directory}/{DOOR}")
        with contextlib.suppress(OSError):
            os.write(door.descriptor, content)
        # Explicitly: what is being started may have a copy of the descriptor for a moment.
        fcntl.flock(door.descriptor, fcntl.LOCK_UN)
        os.close(door.descriptor)

    def _write_wait(self, door: _Door, *, resumed: bool) -> None:
        start = [(door.member.number, door.member.record.starts)]
        try:
            append_change(
                self.pack.path, time.time(), reason=AT_DOOR,
                paused=[] if resumed else start, resumed=start if resumed else [],
            )  # fmt: skip
        except OSError as error:
            self.pack.journal.write("pause_not_written", reason=str(error))
