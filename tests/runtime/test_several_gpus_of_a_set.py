"""Members of one and of two GPUs in a set of two: which GPUs each gets, and how much of each."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.member import MemberState, Stage, WaitKind, WaitReason
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.arrange import (
    ON_THE_GPU,
    MemberFacts,
    MemoryFacts,
    View,
    count_memory_room,
    find_wait,
)
from slurm_colloc.runtime.members import Member, PackMembers, PackPlace
from slurm_colloc.runtime.place_member import (
    GpuShare,
    count_on_one_gpu,
    place_on_shared_gpu,
    place_without_mps,
)
from slurm_colloc.runtime.room import GpuMemoryRoom
from slurm_colloc.store.member_states import GpuUse, StateRecord
from slurm_colloc.store.pack_directory import Setup

from ..packs import build_member, build_pack
from .pack_contexts import build_context
from .stepped_runner import PlainProcess

LEFT, RIGHT = (f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in (0, 1))
SETUP = Setup(1, "auto", "mps", "", "n", gpus=(LEFT, RIGHT), gpu_memory_mb=80_000)


class Takes:
    """What members take of each of their GPUs, as a monitor would see it."""

    def __init__(self) -> None:
        self.mb: dict[int, int] = {}

    def find_gpu_settled_mb(self, member: Member) -> int | None:
        return self.mb.get(member.number)

    def takes_at_once(self, _: Member) -> bool:
        return False

    def find_gpu_need_mb(self, member: Member) -> int | None:
        return self.mb.get(member.number)


class Set:
    """A set of two GPUs with 80 GB each."""

    def __init__(self, gpus: tuple[str, ...] = (LEFT, RIGHT)) -> None:
        self.gpus = gpus
        self.takes = Takes()
        self.members = PackMembers([PackPlace(n, 1, ()) for n in range(16)])
        self.room = GpuMemoryRoom(
            pack=build_context(Path("/nowhere/packs/s.0"), members=self.members),
            progress=self.takes,  # type: ignore[arg-type]
            gpu_mode=cast("Any", self),
            watch=cast("Any", self),
            states=cast("Any", None),
        )

    # As a GPU, and as what watches its members.
    usable_mb, enforces, obstacle = 80_000, True, ""

    @property
    def setup(self) -> Set:
        return self

    def look(self) -> View:
        """The set as it is now."""
        running = [
            replace(
                self.gather(member), stage=Stage.RUNNING,
                reserved_mb=self.room.find_reserved_mb(member),
                on_gpus=() if member.gpu is None else member.gpu.uuids,
            )
            for member in self.members.running()
        ]  # fmt: skip
        memory = MemoryFacts(self.usable_mb, self.gpus or ("",), self.enforces)
        return View(places=16, present=tuple(running), memory=memory)

    def gather(self, member: Member) -> MemberFacts:
        need_mb = self.room.find_need_mb(member)
        return MemberFacts(member.number, gpus=member.spec.plan.gpus, need_mb=need_mb)

    def describe(self, member: Member) -> WaitReason | None:
        """Why there is no GPU memory for a member that waits."""
        return find_wait(self.look(), self.gather(member), ON_THE_GPU)

    def reserve(self, member: Member) -> tuple[int | None, tuple[str, ...]]:
        return self.room.reserve(member, self.look().compute_free())

    def add(self, number: int, gpus: int = 1, mb: int | None = None) -> Member:
        """A member that waits, with what it takes of each of its GPUs."""
        spec = build_member(number, plan={"gpus": gpus}).spec
        member = Member(number, spec, StateRecord(MemberState.PENDING, 1))
        self.members.by_number[number] = member
        if mb is not None:
            self.takes.mb[number] = mb
        return member

    def start(self, member: Member) -> tuple[str, ...]:
        """Let it run on the GPUs that it gets."""
        _, gpus = self.reserve(member)
        member.gpu = GpuUse("mps", uuids=gpus)
        member.process = PlainProcess()
        return gpus


@pytest.fixture
def pair() -> Set:
    return Set()


def lack_memory(taken_mb: int, need_mb: int) -> WaitReason:
    return WaitReason(
        WaitKind.MEMORY, count=1, taken_mb=taken_mb, usable_mb=80_000, need_mb=need_mb
    )


def test_each_gets_as_many_as_it_uses_where_most_room_is(pair: Set) -> None:
    assert pair.start(pair.add(1, mb=30_000)) == (LEFT,)
    assert pair.start(pair.add(2, mb=10_000)) == (RIGHT,)
    # Both have one; this one has less taken.
    assert pair.start(pair.add(3, mb=10_000)) == (RIGHT,)
    assert pair.start(pair.add(4, gpus=2, mb=20_000)) == (LEFT, RIGHT)
    assert pair.start(pair.add(5, mb=1_000)) == (RIGHT,)


def test_a_member_fits_where_each_of_its_gpus_has_room(pair: Set) -> None:
    pair.start(pair.add(1, mb=70_000))
    single, wide = pair.add(2, mb=30_000), pair.add(3, gpus=2, mb=30_000)
    assert pair.describe(single) is None
    assert pair.describe(wide) == lack_memory(70_000, 30_000)
    assert pair.start(single) == (RIGHT,)
    assert pair.describe(pair.add(4, mb=60_000)) == lack_memory(30_000, 60_000)


def test_room_is_counted_for_each_gpu(pair: Set) -> None:
    pair.start(pair.add(1, mb=30_000))
    # One more on the left, and two on the right.
    assert count_memory_room(pair.look(), 16) == 3


def test_who_is_not_known_gets_a_part_of_what_is_left_of_its_gpu(pair: Set) -> None:
    pair.start(pair.add(1, mb=50_000))
    pair.start(pair.add(2, mb=20_000))
    assert pair.reserve(pair.add(3)) == (15_000, (RIGHT,))
    assert pair.reserve(pair.add(4, gpus=2)) == (10_000, (LEFT, RIGHT))


def test_where_no_gpu_has_a_name_all_is_one() -> None:
    one = Set(gpus=())
    assert one.start(one.add(1, mb=50_000)) == ()
    assert one.describe(one.add(2, mb=40_000)) == lack_memory(50_000, 40_000)


def test_who_needs_more_than_a_gpu_has_is_known(pair: Set) -> None:
    assert pair.room.is_too_large(pair.add(1, mb=81_000))
    assert not pair.room.is_too_large(pair.add(2, mb=80_000))
    assert not pair.room.is_too_large(pair.add(3))


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 40_000)), min_size=1, max_size=16))
def test_no_gpu_is_filled_beyond_its_memory(members: list[tuple[int, int]]) -> None:
    both = Set()
    for number, (gpus, mb) in enumerate(members, 1):
        member = both.add(number, gpus, mb)
        if not both.describe(member):
            both.start(member)
    for gpu in both.gpus:
        on_it = [m for m in both.members.running() if m.gpu is not None and gpu in m.gpu.uuids]
        assert sum(both.takes.mb[m.number] for m in on_it) <= 80_000


# -- its environment --------------------------------------------------------------------------


def place(pair: Set, member: Member, **share: Any) -> dict[str, str]:
    record = build_pack("s", degree=4, mode=SharingMode.MPS).record
    given_share = GpuShare(gpus=pair.reserve(member)[1], **share)
    return place_on_shared_gpu(member, given_share, record, SETUP, "/pipe")[1]


def test_a_limit_holds_for_each_gpu_that_a_member_has(pair: Set) -> None:
    both = place(pair, pair.add(1, gpus=2), gpu_memory_mb=10_000, widest=2)
    assert both["CUDA_VISIBLE_DEVICES"] == f"{LEFT},{RIGHT}"
    assert both["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{LEFT}=10000M,{RIGHT}=10000M"
    one = place(pair, pair.add(2), gpu_memory_mb=10_000, widest=2)
    assert one["CUDA_VISIBLE_DEVICES"] == LEFT
    assert one["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{LEFT}=10000M"


@pytest.mark.parametrize(
    ("members", "gpus", "of_gpus", "meet"),
    [(4, 1, 1, 4), (4, 1, 2, 2), (5, 1, 2, 3), (4, 2, 2, 4), (4, 2, 1, 4), (3, 1, 4, 1)],
)
def test_how_many_meet_on_one_gpu(members: int, gpus: int, of_gpus: int, meet: int) -> None:
    assert count_on_one_gpu(members, gpus, of_gpus) == meet


def test_without_mps_a_member_sees_its_gpus_alone_where_they_have_uuids() -> None:
    use, environment = place_without_mps(SharingMode.TIMESLICE, GpuShare(gpus=(RIGHT,)), SETUP)
    assert environment == {"CUDA_VISIBLE_DEVICES": RIGHT}
    assert use is not None
    assert use.uuids == (RIGHT,)
    # All of them are in its environment already.
    assert place_without_mps(None, GpuShare(gpus=(LEFT, RIGHT)), SETUP)[1] == {}
    # Slurm's numbers are not CUDA's.
    numbered = dataclasses.replace(SETUP, gpus=("2", "3"))
    assert place_without_mps(None, GpuShare(gpus=("3",)), numbered)[1] == {}
