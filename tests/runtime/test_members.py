from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job import Job
from slurm_colloc.model.member import MemberState, Stage
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.runtime.members import Member, PackMembers, PackPlace
from slurm_colloc.runtime.step_command import WRAPPER, build_srun_argv, build_wrapper_argv
from slurm_colloc.store.member_states import StateRecord
from slurm_colloc.store.pack_directory import MemberSpec

SPEC = MemberSpec(Job(1, "job", "job.sh", (), "/tmp"), MemberPlan(0, 1, None, None), 0o022)


def build_places(*wanted: int) -> PackMembers:
    return PackMembers(
        [
            PackPlace(index, want, tuple(range(10 * index, 10 * index + want)))
            for index, want in enumerate(wanted)
        ]
    )


@pytest.mark.parametrize(
    ("wanted", "taken", "need", "expected"),
    [
        ((4, 2, 1), (), 1, 2),
        ((4, 2, 1), (), 2, 1),
        ((4, 2, 1), (), 3, 0),
        ((4, 2, 2), (1,), 2, 2),
        ((4, 2, 1), (2,), 1, 1),
        # Two together are large enough.
        ((4, 2, 1), (0,), 3, [1, 2]),
        ((4, 2, 1, 1), (), 7, [0, 1, 2]),
        # They are, once they are free.
        ((4, 2, 1), (0,), 4, []),
        # No place was made for so much: the largest must do.
        ((4, 2, 1), (), 9, 0),
        ((4, 2, 1), (0,), 9, 1),
        ((4, 2), (0, 1), 1, []),
        ((), (), 1, []),
    ],
)
def test_the_smallest_free_place_that_is_large_enough_or_several(
    wanted: tuple[int, ...], taken: tuple[int, ...], need: int, expected: int | list[int]
) -> None:
    members = build_places(*wanted)
    for index in taken:
        members.places[index].occupant = 100 + index
    found = [place.index for place in members.find_places(need)]
    assert found == (expected if isinstance(expected, list) else [expected])


@given(
    wanted=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    needs=st.lists(st.integers(1, 6), max_size=12),
)
def test_places_never_have_two_occupants_and_nobody_starves(
    wanted: list[int], needs: list[int]
) -> None:
    members = build_places(*wanted)
    waiting = list(enumerate(needs))
    running: list[int] = []
    for _ in range(2 * len(needs) + 1):
        if waiting and (places := members.find_places(waiting[0][1])):
            assert all(place.occupant is None for place in places)
            number, need = waiting.pop(0)
            whole = members.occupy(number, places)
            assert len(whole.cpus) >= (need if need <= sum(wanted) else 1)
            assert len(set(whole.cpus)) == len(whole.cpus)
            running.append(number)
            assert members.place_of(number) in places
        elif running:
            members.vacate(running.pop(0))
    assert not waiting


def test_a_member_gets_as_many_cpus_of_a_larger_place_as_it_wants() -> None:
    place = PackPlace(0, 3, (4, 5, 6, 7))
    assert place.choose_cpus(2) == (4, 5)
    assert place.choose_cpus(3) == place.choose_cpus(9) == (4, 5, 6, 7)
    assert PackPlace(0, 3, ()).choose_cpus(2) == ()


def test_only_steps_of_the_transition_table_are_taken() -> None:
    member = Member(1, SPEC, StateRecord(MemberState.RUNNING, 1))
    member.check_transition(MemberState.COMPLETED)
    member.check_transition(MemberState.PENDING)
    member.check_transition(MemberState.RUNNING)
    ended = dataclasses.replace(member, record=StateRecord(MemberState.COMPLETED, 1))
    with pytest.raises(ValueError, match="member 1: COMPLETED -> RUNNING"):
        ended.check_transition(MemberState.RUNNING)


def test_the_recipe_of_a_step() -> None:
    command = build_wrapper_argv("/usr/bin/python3", "/state/my packs/run.1.1.launch")
    assert command == [
        "/usr/bin/python3", "-IB", "-S", WRAPPER, "/state/my packs/run.1.1.launch"
    ]  # fmt: skip
    assert build_srun_argv("4711/3", 2048, command) == [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=2048", "--job-name=4711/3",
        "--cpu-bind=none", "--export=ALL", "--input=none", "--kill-on-bad-exit=0", *command,
    ]  # fmt: skip
    assert not any(word.startswith("--mem") for word in build_srun_argv("4711/3", None, command))


def test_a_pause_counts_for_nothing_that_is_due_and_ends_with_the_start() -> None:
    member = Member(
        1, SPEC, StateRecord(MemberState.RUNNING, 1), prefix="/p/run.1.1", deadline=100.0,
        signal_at=90.0, paused_at=10.0, kept_at=Stage.PARKED, reserved_mb=7,
    )  # fmt: skip
    # It had gone on by itself at 15, and was paused again at 18.
    member.resume(15.0, paused_again_at=18.0)
    assert (member.paused_at, member.paused_s, member.deadline) == (18.0, 5.0, 105.0)
    member.resume(20.0)
    assert (member.paused_at, member.paused_s) == (None, 7.0)
    assert (member.deadline, member.signal_at) == (107.0, 97.0)
    member.forget_start()
    assert member == Member(1, SPEC, StateRecord(MemberState.RUNNING, 1), prefix="/p/run.1.1")
