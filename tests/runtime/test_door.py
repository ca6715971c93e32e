"""Members that wait for room on the GPU start up to the door, and are let on in their turn.

What a member's program does there stands in tests/instrument/test_door.py; here a test leaves what
that leaves.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.instrument.layout import DOOR, GPU_USED
from slurm_colloc.model.job import Job, SignalRequest
from slurm_colloc.model.member import MemberState, WaitKind
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.settings import Settings
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.member_states import AT_DOOR, read_pauses
from slurm_colloc.store.pack_directory import Setup

from .stepped_runner import NOBODY, PlainProcess, SteppedRunner
from .test_fill_places import follow_starts

SETTINGS = Settings(monitor=True, instrument=True, pause=True, launcher="process")
NEED_MB = 6000
USABLE_MB = 10_000


class DoorPack:
    """A pack of a GPU that has room for one member at a time, whatever places there are.

    Args:
        bed: The parts of its runner.
        monkeypatch: Lets starts be plain processes.
    """

    def __init__(self, bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bed = bed
        self.started = follow_starts(bed, monkeypatch)
        numbers = [entry.spec.job.number for entry in bed.entries]
        for member in bed.adopt(*numbers):
            plan = dataclasses.replace(member.spec.plan, gpu_memory_limit_mb=NEED_MB)
            member.spec = dataclasses.replace(member.spec, plan=plan)

    def work(self) -> None:
        """A turn of the runner, as far as members start in it."""
        self.bed.parts.ends.collect()
        self.bed.parts.measured_degree.work(self.bed.parts.look)
        self.bed.parts.place_filler.work()

    def bring_up(self, number: int) -> Member:
        """A member's wrapper comes up."""
        member = self.bed.members.by_number[number]
        member.prefix = self.name_start(member)
        Path(self.directory(number, member.record.starts + 1)).mkdir(exist_ok=True)
        at = time.time()
        self.bed.write(member, "started", pid=NOBODY, wrapper_pid=None, step=str(number), at=at)
        self.bed.parts.starts.collect()
        return member

    def name_start(self, member: Member) -> str:
        """How the files of a member's next start are called."""
        return str(self.bed.folder(member.number) / f"run.1.{member.record.starts + 1}")

    def directory(self, number: int, start: int = 1) -> Path:
        """Where a start of a member counts."""
        member = self.bed.members.by_number[number]
        path = Path(self.bed.parts.monitor.find_progress(member))
        return path.with_name(f"{number:04}.{start}")

    def come(self, number: int) -> None:
        """A member's program comes to its first use of a GPU."""
        (self.directory(number) / GPU_USED).touch()

    def is_closed(self, number: int) -> bool:
        """Whether a program would wait at the door of a member."""
        try:
            descriptor = os.open(self.directory(number) / DOOR, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def end(self, number: int) -> None:
        """A member ends, also one whose wrapper has not come up."""
        member = self.get(number)
        member.prefix = member.prefix or self.name_start(member)
        self.bed.end_member(member)

    def get(self, number: int) -> Member:
        """A member, as its runner keeps it now."""
        return self.bed.members.by_number[number]

    @property
    def running(self) -> list[int]:
        """Who may use the GPU."""
        return [member.number for member in self.bed.members.running()]

    @property
    def at_door(self) -> list[int]:
        """Whose door is closed."""
        return [number for number in self.bed.members.by_number if self.is_closed(number)]


@pytest.fixture
def build(
    build_bed: Callable[..., SteppedRunner], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., DoorPack]]:
    """Makes packs whose first member runs and has come by where the others would wait."""
    beds: list[SteppedRunner] = []
    setup = Setup(1, "timeslice", "timeslice", "", "n", gpus=("GPU-1",), gpu_memory_mb=USABLE_MB)
    monkeypatch.setattr(GpuMode, "setup", property(lambda _: setup))

    def make(*, comes: bool = True, **changes: object) -> DoorPack:
        bed = build_bed(**{"members": 3, "places": 3, "settings": SETTINGS, **changes})
        beds.append(bed)
        door_bed = DoorPack(bed, monkeypatch)
        door_bed.work()
        assert door_bed.running == [1]
        door_bed.bring_up(1)
        if comes:
            door_bed.come(1)
        door_bed.work()
        return door_bed

    yield make
    for bed in beds:
        bed.parts.monitor.stop()


def test_who_waits_for_room_starts_up_to_the_door_and_goes_on_in_its_turn(
    build: Callable[..., DoorPack],
) -> None:
    pack = build()
    assert [number for number, _ in pack.started] == [1, 2, 3]
    assert (pack.running, pack.at_door) == ([1], [2, 3])
    for number in (2, 3):
        member = pack.bring_up(number)
        assert member.deadline is not None
        pack.work()
        assert pack.bed.read(number).reason.startswith("it loads its program; then it waits at ")
        pack.come(number)
    pack.work()
    assert [pack.bed.members.by_number[n].deadline for n in (2, 3)] == [None, None]
    record = pack.bed.read(2)
    assert (record.state, record.at_door) == (MemberState.RUNNING, True)
    assert record.reason == (
        "at the door: its program is loaded, and it waits: the GPU has no memory left for it: "
        "6000 of 9500 MB are reserved for 1, and it may take 6000 MB"
    )
    pack.end(1)
    pack.work()
    assert (pack.running, pack.at_door) == ([2], [3])
    member, record = pack.bed.members.by_number[2], pack.bed.read(2)
    assert (record.state, record.at_door, record.reason) == (MemberState.RUNNING, False, "")
    assert member.deadline is not None
    # Its whole time is before it.
    wall_limit_s = member.spec.plan.wall_limit_s
    assert wall_limit_s is not None
    assert member.deadline - time.monotonic() > wall_limit_s - 30
    second, third = read_pauses(pack.bed.pack)
    assert (second.member, second.reason, second.end is None) == (2, AT_DOOR, False)
    assert (third.member, third.reason, third.end) == (3, AT_DOOR, None)
    pack.end(2)
    pack.work()
    assert (pack.running, pack.at_door) == ([3], [])
    assert [event["member"] for event in pack.bed.events("door")] == [2, 3]


def test_a_kind_that_was_not_seen_to_come_by_waits_as_before(
    build: Callable[..., DoorPack],
) -> None:
    pack = build(comes=False)
    assert [number for number, _ in pack.started] == [1]
    waits = pack.bed.read(2).waits
    assert waits is not None
    assert waits.kind is WaitKind.MEMORY


@pytest.mark.parametrize(
    "settings",
    [dataclasses.replace(SETTINGS, door=False), dataclasses.replace(SETTINGS, instrument=False)],
    ids=["door", "instrument"],
)
def test_it_can_be_turned_off(build: Callable[..., DoorPack], settings: Settings) -> None:
    pack = build(settings=settings)
    assert [number for number, _ in pack.started] == [1]


def test_a_member_that_counts_no_steps_would_not_wait(build: Callable[..., DoorPack]) -> None:
    def change(job: Job) -> Job:
        return dataclasses.replace(job, instrument=job.number != 2)

    pack = build(change=change)
    assert [number for number, _ in pack.started] == [1]


def test_who_has_no_place_does_not_start(build: Callable[..., DoorPack]) -> None:
    pack = build(places=2)
    assert [number for number, _ in pack.started] == [1, 2]
    assert (pack.running, pack.at_door) == ([1], [2])


def test_who_is_at_the_door_goes_before_those_that_have_not_started(
    build: Callable[..., DoorPack],
) -> None:
    pack = build(members=4, places=3)
    small = pack.bed.members.by_number[4]
    plan = dataclasses.replace(small.spec.plan, gpu_memory_limit_mb=100)
    small.spec = dataclasses.replace(small.spec, plan=plan)
    pack.end(3)
    pack.work()
    # It would fit beside the first, and loads until it is its turn.
    assert (pack.running, pack.at_door) == ([1], [2, 4])


def test_what_uses_the_gpu_without_waiting_counts_as_running(
    build: Callable[..., DoorPack],
) -> None:
    pack = build(places=2, members=4)
    pack.bring_up(2)
    rows = {"2": {"start": 1, "gpu_memory_mb": 900.0}}
    value = {"at": time.time() + 1, "gpus": {}, "problems": {}, "members": rows}
    write_json(f"{pack.bed.pack}/latest.json", value)
    pack.bed.parts.measured_degree.progress.work()
    pack.work()
    assert (pack.running, pack.at_door) == ([1, 2], [])
    # And no other of its kind is trusted to wait.
    pack.end(2)
    pack.work()
    assert [number for number, _ in pack.started] == [1, 2]


def test_a_cancel_frees_its_place(build: Callable[..., DoorPack]) -> None:
    pack = build(places=2)
    member = pack.bring_up(2)
    pack.come(2)
    pack.work()
    pack.bed.parts.control.cancel(member, "cancelled")
    pack.work()
    # It has its time to end, and uses no GPU meanwhile.
    assert (pack.running, pack.at_door) == ([1], [2])
    pack.end(2)
    pack.work()
    assert pack.bed.read(2).state is MemberState.CANCELLED
    assert pack.at_door == [3]
    assert all(pause.end is not None for pause in read_pauses(pack.bed.pack) if pause.member == 2)


def test_who_never_comes_to_the_door_has_its_limit(build: Callable[..., DoorPack]) -> None:
    pack = build()
    member = pack.bring_up(2)
    member.deadline = time.monotonic() - 1
    pack.bed.parts.control.enforce_limits()
    assert member.asked is not None


def test_its_program_is_told_when_its_time_begins(build: Callable[..., DoorPack]) -> None:
    signal = SignalRequest(12, 10, False)
    pack = build(change=lambda job: dataclasses.replace(job, signal=signal))
    pack.bring_up(2)
    pack.come(2)
    inside = pack.bed.folder(2) / "inside"
    inside.write_bytes(b"name=x\0started_at=5\0cpus=\0")
    pack.work()
    assert pack.get(2).signal_at is None
    pack.end(1)
    began = int(time.time())
    pack.work()
    member = pack.get(2)
    assert member.deadline is not None
    assert member.signal_at == member.deadline - 10
    values = dict(text.split("=") for text in inside.read_text().split("\0") if text)
    assert (values["name"], values["cpus"]) == ("x", "")
    assert int(values["started_at"]) >= began


def test_who_has_too_little_time_left_is_handed_back_as_it_came(
    build: Callable[..., DoorPack],
) -> None:
    def change(job: Job) -> Job:
        return dataclasses.replace(job, time_limit_s=600)

    pack = build(places=2, change=change, time_limit_s=1000)
    pack.bring_up(2)
    pack.come(2)
    pack.work()
    assert pack.get(2).asked is None
    time_left = pack.bed.parts.look.time_left
    time_left._begun_at -= 500
    pack.work()
    assert pack.get(2).asked is StopReason.REQUEUE
    pack.end(2)
    pack.work()
    record = pack.bed.read(2)
    assert (record.state, record.starts) == (MemberState.PENDING, 0)
    assert record.waits is not None
    assert record.waits.kind is WaitKind.TIME
    assert not list(pack.bed.folder(2).glob("run.*"))
    assert not pack.directory(2).exists()


def test_a_mode_that_is_refused_keeps_none_at_the_door(
    build: Callable[..., DoorPack],
) -> None:
    pack = build()
    assert pack.at_door == [2, 3]
    pack.bed.parts.gpu_mode.refuse("MPS cannot be had")
    pack.work()
    assert (pack.running, pack.at_door) == ([1, 2, 3], [])
    assert all(isinstance(m.process, PlainProcess) for m in pack.bed.members.running())
