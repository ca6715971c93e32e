"""What a runner does next: each reason to wait, each order, and what holds for any pack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.measured_curve import KnownCurve, KnownPoint
from slurm_colloc.model.member import Stage, WaitKind, WaitReason
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.why_not_now import say_why
from slurm_colloc.planning.arrange import (
    CONSTRAINTS,
    ON_THE_GPU,
    PASSES_MOST,
    Arrangement,
    DegreeFacts,
    EndTurn,
    Enter,
    MemberFacts,
    MemoryFacts,
    Order,
    Preload,
    Return,
    Start,
    TurnFacts,
    View,
    arrange,
    arrange_turns,
    count_memory_room,
    count_room,
    find_next,
    find_wait,
    list_kinds,
    wants_others,
)
from slurm_colloc.planning.known_degree import KnownDegree

ONE = MemberFacts(1, "4711/1", Stage.RUNNING, kind="a", reserved_mb=10, need_mb=10)
TWO = replace(ONE, number=2, name="4711/2")
NEW = MemberFacts(3, "4711/3", kind="a", need_mb=10)
NEXT = replace(NEW, number=4, name="4711/4")
FREE = View(places=4, present=(ONE,), waiting=(NEW,), memory=MemoryFacts(80))
FULL = replace(FREE, places=2, present=(ONE, TWO))
DECIDED = DegreeFacts(1, "why", is_decided=True, kinds=frozenset("a"))
CURVE = KnownCurve(("a",), "H200", SharingMode.MPS, (KnownPoint(2, 1.1, 2.0),))
KNOWN = KnownDegree(1, None, CURVE.points[0], is_open=False, curve=CURVE)
LATE = WaitReason(WaitKind.TIME, left_s=59, limit_s=60)
IS_LATE = (
    "the pack has only 0:59 left, and it may take 1:00: it is submitted again once the pack has "
    "ended"
)
NO_MEMORY = (
    "the GPU has no memory left for it: 75 of 80 MB are reserved for 1, and it may take 10 MB"
)
LARGE_ONE = replace(ONE, reserved_mb=75)
LARGE = WaitReason(WaitKind.PLACE, "4711/3", count=8)
NO_SEAT = WaitReason(WaitKind.INSTANCE, told="3g")
PREPARING = WaitReason(WaitKind.PREPARING)


def in_pack(view: View, **facts: Any) -> tuple[View, MemberFacts]:
    """A view in which the first that waits has these facts, and that one."""
    member = replace(NEW, **facts)
    return replace(view, waiting=(member, *view.waiting[1:])), member


REASONS: dict[str, tuple[View, dict[str, Any], WaitReason | None, str]] = {
    "nothing": (FREE, {}, None, ""),
    "held": (FREE, {"is_held": True}, WaitReason(WaitKind.HELD), "held by csub hold"),
    "dependency": (
        FREE, {"dependency": "afterok:12/3"}, WaitReason(WaitKind.DEPENDENCY, "afterok:12/3"),
        "waits for afterok:12/3 (Dependency)",
    ),
    "held for a dependency": (
        FREE, {"dependency": "afterok:12/3", "is_held": True},
        WaitReason(WaitKind.DEPENDENCY, "afterok:12/3", "held"),
        "held, waits for afterok:12/3 (Dependency)",
    ),
    "moved": (
        FREE, {"is_moved": True}, WaitReason(WaitKind.MOVED),
        "it was submitted again in another pack",
    ),
    # What is its own comes before what all wait for.
    "time": (
        replace(FULL, degree=DECIDED), {"too_late": LATE}, LATE,
        f"waits: {IS_LATE}",
    ),
    "no instance is enough": (
        FREE, {"misfit": "too large"}, WaitReason(WaitKind.INSTANCE, told="too large"),
        "waits: its GPU has no free MIG instance with too large",
    ),
    "places": (
        FULL, {}, WaitReason(WaitKind.PLACES, names=("4711/1", "4711/2"), count=2),
        "starts when one of 4711/1, 4711/2 ends (Degree 2)",
    ),
    "places with limits": (
        replace(FULL, present=(replace(ONE, left_s=90), replace(TWO, left_s=-5))), {},
        WaitReason(WaitKind.PLACES, names=("4711/1", "4711/2"), count=2, left_s=0),
        "starts when one of 4711/1, 4711/2 ends (at most 0:00 left) (Degree 2)",
    ),
    "a neighbour is to be alone": (
        replace(FREE, present=(replace(ONE, alone=True),)), {},
        WaitReason(WaitKind.PLACES, names=("4711/1",), count=4),
        "starts when 4711/1 ends (Degree 4)",
    ),
    "one at a time": (
        replace(FREE, takes_one=True), {},
        WaitReason(WaitKind.PLACES, names=("4711/1",)),
        "starts when 4711/1 ends (its GPU takes one member at a time)",
    ),
    "one at a time, and none runs": (replace(FREE, takes_one=True, present=()), {}, None, ""),
    "again": (
        FULL, {"has_run": True}, WaitReason(WaitKind.AGAIN),
        "it starts as soon as its pack has a place for it",
    ),
    "alone": (
        FREE, {"alone": True, "has_run": True}, WaitReason(WaitKind.ALONE),
        "it starts as soon as it has the GPU to itself",
    ),
    "alone, and none runs": (replace(FREE, present=()), {"alone": True}, None, ""),
    "pack": (
        replace(FREE, pack_waits=PREPARING), {}, PREPARING, "waits: its GPU is being prepared",
    ),
    "CPUs": (
        replace(FREE, degree=DECIDED), {"no_place": LARGE}, LARGE,
        "waits: 4711/3 is next, and waits for a place with 8 CPUs",
    ),
    "instance": (
        replace(FREE, has_instances=True, degree=DECIDED), {"instance": NO_SEAT}, NO_SEAT,
        "waits: its GPU has no free MIG instance with 3g",
    ),
    "measuring": (
        replace(FREE, degree=replace(DECIDED, is_measuring=True)), {},
        WaitReason(WaitKind.MEASURING, count=1), "waits: the pack is being measured with 1 member",
    ),
    "degree": (
        replace(FREE, degree=DECIDED), {}, WaitReason(WaitKind.DEGREE, told="why"), "waits: why",
    ),
    "degree without a reason": (
        replace(FREE, degree=replace(DECIDED, reason="")), {},
        WaitReason(WaitKind.DEGREE, told="no more than 1 runs at once"),
        "waits: no more than 1 runs at once",
    ),
    "of another kind": (replace(FREE, degree=DECIDED), {"kind": "b"}, None, ""),
    "one alone is never measured": (
        replace(FREE, degree=replace(DECIDED, is_old=True)), {}, None, "",
    ),
    "others have the last moment": (replace(FREE, degree=DECIDED), {"must_go_on": True}, None, ""),
    "one is parked": (
        replace(FREE, present=(replace(ONE, stage=Stage.PARKED),), degree=DegreeFacts(2, "why")),
        {"kind": "b"}, WaitReason(WaitKind.DEGREE, told="why"), "waits: why",
    ),
    "known": (
        replace(FREE, degree=DegreeFacts()), {"known": KNOWN},
        WaitReason(WaitKind.DEGREE, told=f"no more than 1 runs at once: {KNOWN.describe()}"),
        f"waits: no more than 1 runs at once: {KNOWN.describe()}",
    ),
    "measured since": (
        replace(FREE, degree=replace(DECIDED, degree=4)), {"known": KNOWN}, None, "",
    ),
    "they take turns": (
        replace(FREE, degree=replace(DECIDED, bounds=False)), {}, None, "",
    ),
    "door": (
        replace(FREE, present=(ONE, replace(TWO, stage=Stage.LOADING, need_mb=90))), {},
        WaitReason(WaitKind.DOOR, "4711/2"), "waits: one at the door goes first: 4711/2",
    ),
    "memory": (
        replace(FREE, present=(LARGE_ONE,)), {},
        WaitReason(WaitKind.MEMORY, count=1, taken_mb=75, usable_mb=80, need_mb=10),
        f"waits: {NO_MEMORY}",
    ),
    "memory that is away": (
        replace(FREE, present=(replace(ONE, reserved_mb=75, stage=Stage.AWAY),)), {}, None, "",
    ),
    "memory that cannot be told": (
        replace(FREE, present=(LARGE_ONE,), memory=MemoryFacts(80, counts=False)), {}, None, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
def test_each_reason_to_wait(case: str) -> None:
    view, facts, reason, said = REASONS[case]
    view, member = in_pack(view, **facts)
    found = find_wait(view, member)
    assert found == reason
    assert ("" if found is None else say_why(found)) == said
    order = arrange(view).order
    if reason is None:
        assert order == Start(3)
    else:
        assert not isinstance(order, Start)


def test_each_kind_of_reason_but_slurms_is_in_the_table() -> None:
    kinds = {reason.kind for _, _, reason, _ in REASONS.values() if reason is not None}
    # Slurm's are given as they are, as that a GPU is being prepared.
    assert kinds == set(WaitKind) - {WaitKind.SIGNALLED, WaitKind.ENDING}


def test_members_that_start_before_it_are_named() -> None:
    reason = WaitReason(WaitKind.PLACES, names=("4711/1",), count=1)
    told = "starts when 4711/1 ends, after 4711/2, 4711/3 (Degree 1)"
    assert say_why(reason, ("4711/2", "4711/3")) == told


# ---- Orders --------------------------------------------------------------------------------------


def test_one_that_is_held_lets_the_next_one_pass() -> None:
    view, _ = in_pack(replace(FREE, waiting=(NEW, NEXT)), is_held=True)
    assert arrange(view) == Arrangement(Start(4), front=4)


def test_who_finds_no_memory_is_passed_so_often_and_no_more() -> None:
    view, _ = in_pack(replace(FREE, waiting=(NEW, NEXT)), need_mb=79)
    assert wants_others(view)
    chosen = arrange(view)
    assert chosen.order == Start(4, passes=3)
    assert chosen.told is not None
    assert chosen.told.kind is WaitKind.MEMORY
    view = replace(view, passed={3: PASSES_MOST})
    assert arrange(view).order is None


def test_who_waits_for_the_degree_is_passed_by_none() -> None:
    view = replace(FREE, waiting=(NEW, replace(NEXT, kind="b")), degree=DECIDED)
    assert not wants_others(view)
    assert arrange(view).order is None


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_small_one_passes_one_whose_instance_another_has(*, is_taken: bool) -> None:
    waiting = (replace(NEW, instance=NO_SEAT, waits_for_taken=is_taken), NEXT)
    view = replace(FREE, waiting=waiting, has_instances=True)
    order = arrange(view).order
    assert order == (Start(4, passes=3) if is_taken else None)


def test_the_first_at_the_door_goes_on_before_any_other() -> None:
    first = replace(TWO, number=5, stage=Stage.LOADING, queue=0)
    ending = replace(first, number=6, is_ending=True)
    view = replace(FREE, present=(ONE, replace(TWO, stage=Stage.LOADING, queue=1), first, ending))
    assert arrange(view) == Arrangement(Enter(5))
    # Who is at the door takes nothing of the GPU yet.
    view = replace(view, places=5, present=(replace(ONE, reserved_mb=75), first))
    chosen = arrange(view)
    assert chosen.order is None
    assert chosen.at_door is not None
    assert chosen.at_door.kind is WaitKind.MEMORY


@pytest.mark.parametrize(
    ("change", "is_loaded"),
    [
        ({}, True),
        ({"may_load": False}, False),
        ({"degree": replace(DECIDED, is_measuring=True)}, False),
        ({"present": (ONE, replace(TWO, stage=Stage.PARKED))}, False),
        ({"memory": MemoryFacts(80, ("a", "b"))}, False),
        ({"has_instances": True, "instance": NO_SEAT}, False),
        ({"pack_waits": PREPARING}, False),
    ],
)
def test_the_next_loads_where_only_the_gpu_has_no_room(
    change: dict[str, Any], *, is_loaded: bool
) -> None:
    facts = {"may_load": True, **{n: v for n, v in change.items() if n in ("may_load", "instance")}}
    view = replace(FREE, **{"degree": DECIDED, **{n: change[n] for n in change.keys() - facts}})
    assert arrange(in_pack(view, **facts)[0]).order == (Preload(3) if is_loaded else None)


def test_who_is_next_for_a_turn_starts_or_lacks_only_room_on_the_gpu() -> None:
    assert find_next(FREE) == NEW
    assert find_next(replace(FREE, degree=DECIDED)) == NEW
    assert find_next(FULL) is None
    assert find_next(in_pack(FREE, no_place=LARGE)[0]) is None
    assert find_next(replace(FREE, waiting=())) is None


# ---- Turns ---------------------------------------------------------------------------------------

AWAY = replace(TWO, stage=Stage.AWAY, reserved_mb=70)
OVER = replace(ONE, reserved_mb=70, turn=TurnFacts(0.0, 10.0, may_end=True))
TURNS = replace(FREE, present=(OVER, AWAY), waiting=(), degree=DegreeFacts(bounds=False))


@pytest.mark.parametrize(
    ("view", "now", "order"),
    [
        (TURNS, 9.0, None),
        (TURNS, 10.0, EndTurn(1)),
        (replace(TURNS, present=(replace(OVER, turn=TurnFacts(0.0, 10.0)), AWAY)), 99.0, None),
        (replace(TURNS, present=(replace(OVER, reserved_mb=5), AWAY)), 0.0, Return(2)),
        (replace(TURNS, present=(OVER,)), 99.0, None),
        # Each starts once before any goes on.
        (replace(TURNS, waiting=(replace(NEW, need_mb=70),)), 10.0, EndTurn(1)),
        (replace(TURNS, waiting=(replace(NEW, need_mb=5),)), 99.0, None),
        # What could not be brought back has room made for it at once.
        (
            replace(TURNS, present=(OVER, replace(TWO, turn=TurnFacts(is_stuck=True)))),
            1.0,
            EndTurn(1),
        ),
    ],
)
def test_whose_turn_ends_and_who_goes_on(view: View, now: float, order: Order | None) -> None:
    assert arrange_turns(view, now) == order


def test_of_several_the_one_ends_whose_turn_began_first() -> None:
    later = replace(OVER, number=5, turn=TurnFacts(5.0, 10.0, may_end=True))
    view = replace(TURNS, places=9, present=(later, OVER, AWAY))
    assert arrange_turns(view, 99.0) == EndTurn(1)


# ---- Room ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "room"),
    [
        (FREE, 3),
        (FULL, 0),
        (replace(FREE, present=()), 0),
        (replace(FREE, degree=replace(DECIDED, degree=2)), 1),
        (replace(FREE, degree=replace(DECIDED, degree=4)), 1),
        (replace(FREE, degree=DegreeFacts(planned=2)), 1),
        (replace(FREE, degree=DegreeFacts(known=replace(KNOWN, degree=3))), 2),
        (replace(FREE, degree=DegreeFacts(known=replace(KNOWN, is_open=True))), 3),
        (replace(FREE, degree=DegreeFacts(is_measuring=True)), 0),
        (replace(FREE, present=(replace(ONE, stage=Stage.AWAY),)), 0),
        (replace(FREE, present=(ONE, replace(TWO, stage=Stage.LOADING))), 1),
        (replace(FREE, memory=MemoryFacts(30)), 2),
    ],
)
def test_how_many_more_have_room(view: View, room: int) -> None:
    assert count_room(view) == room


# ---- Any pack ------------------------------------------------------------------------------------

GPUS = ("GPU-a", "GPU-b")
MB = st.integers(0, 60)


@st.composite
def members(draw: st.DrawFn, number: int, *, runs: bool) -> MemberFacts:
    stages = [Stage.RUNNING, Stage.LOADING, Stage.PARKED, Stage.AWAY, Stage.ENDING]
    gpus = draw(st.integers(1, 2))
    flag = st.booleans().filter(lambda _: True)
    rare = st.sampled_from([False] * 5 + [True])
    return MemberFacts(
        number=number,
        name=f"4711/{number}",
        stage=draw(st.sampled_from(stages)) if runs else Stage.WAITING,
        is_ending=draw(rare),
        queue=draw(st.integers(0, 3)),
        kind=draw(st.sampled_from(["", "a", "b"])),
        gpus=gpus,
        is_held=draw(rare) and not runs,
        dependency=draw(st.sampled_from(["", "", "", "afterok:1/1"])) if not runs else "",
        is_moved=draw(rare) and not runs,
        too_late=draw(st.sampled_from([None, None, None, LATE])) if not runs else None,
        alone=draw(rare),
        has_run=draw(flag),
        no_place=draw(st.sampled_from([None, None, LARGE])) if not runs else None,
        need_mb=draw(st.none() | MB),
        reserved_mb=draw(MB) if runs else 0,
        on_gpus=GPUS[:gpus] if runs else (),
        known=draw(st.sampled_from([None, KNOWN])),
        must_go_on=draw(rare),
        may_load=draw(flag),
    )


@st.composite
def views(draw: st.DrawFn) -> View:
    count, waiting = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    present = tuple(draw(members(number, runs=True)) for number in range(1, count + 1))
    numbers = range(count + 1, count + waiting + 1)
    degree = DegreeFacts(
        degree=draw(st.integers(1, 4)),
        is_decided=draw(st.booleans()),
        is_measuring=draw(st.booleans()),
        kinds=draw(st.sampled_from([frozenset(), frozenset("a"), frozenset("ab")])),
        is_old=draw(st.booleans()),
        planned=draw(st.none() | st.integers(1, 4)),
        bounds=draw(st.booleans()),
    )
    memory = MemoryFacts(100, draw(st.sampled_from([GPUS, GPUS[:1]])), draw(st.booleans()))
    return View(
        places=count + draw(st.integers(0, 3)),
        takes_one=draw(st.booleans()) and draw(st.booleans()),
        pack_waits=draw(st.sampled_from([None, None, None, PREPARING])),
        present=present,
        waiting=tuple(draw(members(number, runs=False)) for number in numbers),
        passed={number: draw(st.integers(0, PASSES_MOST)) for number in numbers},
        degree=degree,
        memory=draw(st.sampled_from([None, memory])),
    )


@given(views())
def test_a_view_has_one_arrangement_and_an_order_is_for_one_that_may(view: View) -> None:
    chosen = arrange(view)
    assert arrange(view) == chosen
    by_number = {member.number: member for member in (*view.present, *view.waiting)}
    match chosen.order:
        case None:
            # Nothing that could be done is left undone.
            starts = [m for m in view.waiting if find_wait(view, m) is None]
            kinds = (WaitKind.PLACE, WaitKind.MEMORY)
            is_kept = chosen.reason is not None and (
                chosen.reason.kind not in kinds or view.passed[chosen.front or 0] >= PASSES_MOST
            )
            assert not starts or is_kept
            assert not any(find_wait(view, m, ON_THE_GPU) is None for m in view.loading[:1])
        case Enter(number):
            assert by_number[number] is view.loading[0]
        case Preload(number):
            member = by_number[number]
            assert member in view.waiting
            assert member.may_load
            assert not view.degree.is_measuring
            assert not view.has_parked
            assert len(view.present) < view.places
        case Start(number, passes):
            assert by_number[number] in view.waiting
            assert find_wait(view, by_number[number]) is None
            assert passes is None or passes == chosen.front != number


@given(views())
def test_no_order_fills_the_gpu_beyond_its_memory(view: View) -> None:
    chosen, free = arrange(view), view.compute_free()
    if chosen.order is None or free is None or isinstance(chosen.order, Preload):
        return
    if not view.running:
        # The only one may try all that there is.
        return
    every = (*view.present, *view.waiting)
    member = next(m for m in every if m.number == chosen.order.number)
    part_mb = free.choose_part_mb(member.need_mb, member.gpus)
    assert part_mb is not None
    assert part_mb <= free.find_free_mb(member.gpus)


@given(views())
def test_who_waits_longest_is_not_passed_by_for_ever(view: View) -> None:
    passed, front = dict(view.passed), None
    for _ in range(2 * PASSES_MOST):
        chosen = arrange(replace(view, passed=passed))
        if not isinstance(chosen.order, Start) or chosen.order.passes is None:
            return
        front = chosen.order.passes
        passed[front] = passed.get(front, 0) + 1
    raise AssertionError(f"{front} was passed {passed}")


@given(views())
def test_room_is_never_more_than_places_and_memory_have(view: View) -> None:
    room = count_room(view)
    assert 0 <= room <= max(0, view.places - len(view.present))
    assert room <= count_memory_room(view, view.places)
    if room and view.degree.is_decided and view.degree.bounds:
        assert len(view.running) + room <= view.degree.degree


@given(views(), st.integers(0, len(CONSTRAINTS)))
def test_what_forbids_with_fewer_constraints_forbids_with_all(view: View, count: int) -> None:
    for member in view.waiting:
        some = find_wait(view, member, CONSTRAINTS[:count])
        assert some is None or find_wait(view, member) == some
    assert list_kinds(view.waiting) == {m.kind or f"#{m.number}" for m in view.waiting}
