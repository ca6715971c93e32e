"""More members than MIG instances: some wait, or several share one by MPS."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.choose_layout import predict_neighbours, share_seats
from slurm_colloc.planning.hard_limits import Subject
from slurm_colloc.planning.job_needs import build_load
from slurm_colloc.planning.planned_gpu import choose_planned_gpu
from slurm_colloc.planning.seats import read_seats

from .known_jobs import CALIBRATION, LARGE, ROOMY, SMALL, build_call, build_job
from .test_mig_layouts import make

H200 = choose_planned_gpu(143_771, ("NVIDIA H200",))
LAYOUTS = st.sampled_from(["3g+3g", "4g+2g", "3g+2g+1g+1g", "3c.7g+4c.7g", "1g+1g"])


def build_subject(need_mb: int | None, run_s: float = 600.0) -> Subject:
    return Subject(0, 1, None, need_mb, run_s, None, 1.5)


@given(LAYOUTS, st.lists(st.none() | st.integers(100, 70_000), min_size=1, max_size=12))
def test_no_instance_is_fuller_than_its_memory(layout: str, needs: list[int | None]) -> None:
    seats = read_seats(layout, H200)
    seating = share_seats([build_subject(need) for need in needs], seats)
    if seating is None:
        return
    for number, seat in enumerate(seats):
        mine = [need or 0 for need, at in zip(needs, seating.places, strict=True) if at == number]
        assert sum(mine) <= (seat.room_mb or 0)
        if len(needs) <= len(seats):
            assert len(mine) <= 1


def test_equal_members_spread_by_what_instances_have() -> None:
    seats = read_seats("4g+2g", H200)
    seating = share_seats([build_subject(None)] * 6, seats)
    assert seating is not None
    assert [seating.places.count(number) for number in (0, 1)] == [4, 2]


def test_neighbours_on_an_instance_slow_each_other_down_as_a_smaller_gpu_would() -> None:
    (whole,) = read_seats("7g", H200)
    seat = read_seats("3g+3g", H200)[0]
    jobs, known = build_call(*[("large", LARGE)] * 3)
    made, _ = make(jobs, known, "mig=7g", degree=3, mps_inside=True, slowdown_bound=9.0)
    (pack,) = made.packs
    assert pack.predicted_slowdown is not None
    subject = dataclasses.replace(
        build_subject(11_000), load=build_load(known[0], CALIBRATION), max_slowdown=9.0
    )
    alone, on_whole, on_part = (
        predict_neighbours([subject] * count, one, CALIBRATION)
        for count, one in ((1, seat), (3, whole), (3, seat))
    )
    assert alone == (1.0,)
    assert on_whole is not None
    assert on_part is not None
    assert 1.0 < on_whole[0] < on_part[0]
    # On one instance of the whole GPU it is what MPS comes to, and what they copy on top.
    assert on_whole[0] <= pack.predicted_slowdown[0] < 1.2 * on_whole[0]
    assert predict_neighbours([subject] * 3, seat, None) is None


def build_loaded(sm: float, dram: float) -> Subject:
    load = Load(engine=max(sm, dram), sm=sm, dram=dram)
    return dataclasses.replace(build_subject(9000), load=load, max_slowdown=9.0)


def test_an_instance_with_more_dram_for_its_sms_is_less_of_a_wall_for_dram() -> None:
    # 1g.35gb has the memory of 2g.35gb and half of its SMs.
    wide, even = read_seats("1g.35gb+2g", H200)
    assert (wide.dram_share, even.dram_share) == (0.25, 0.25)
    assert wide.sm_share < even.sm_share
    sms = [
        predict_neighbours([build_loaded(0.2, 0.02)] * 3, one, CALIBRATION) for one in (wide, even)
    ]
    assert sms[0] is not None
    assert sms[1] is not None
    # Three that need SMs are in each other's way where there are fewer of them.
    assert sms[0][0] > 1.05 * sms[1][0]


def test_one_that_waits_is_slowed_down_as_those_whose_place_it_takes() -> None:
    jobs, known = build_call(*[("small", SMALL)] * 6)
    made, text = make(jobs, known, "mig=3g+3g", degree=4, mps_inside=True, slowdown_bound=4.0)
    (pack,) = made.packs
    assert pack.predicted_slowdown is not None
    assert (pack.degree, len(set(pack.predicted_slowdown))) == (4, 1)
    told = " ".join(text.split())
    assert "2 on 3g (1.03 times slower than alone there), 2 on 3g (1.03 times slower" in told


def test_who_shares_an_instance_stands_in_the_plan() -> None:
    jobs = [build_job(n, gpu_memory_mb=9000) for n in range(1, 7)]
    made, text = make(jobs, {}, "mig=4g+2g", degree=6, mps_inside=True)
    (pack,) = made.packs
    assert pack.degree == 6
    assert [(one.word, one.places) for one in pack.layout] == [("4g", 4), ("2g", 2)]
    assert "members share instances by MPS" in " ".join(text.split())
    assert "4 on 4g, 2 on 2g" in " ".join(text.split())
    assert "/1 /3 +2" in text
    assert "/2 /5 " in text
    # Of unknown load: as if the four took turns on an instance that is 2.03 times slower.
    assert {m.wall_limit_s for m in pack.members if m.instance == "4g"} == {int(1200 * 8.2)}
    # Where the site does not let them, one has each, and the others wait.
    made, text = make(jobs, {}, "mig=4g+2g", degree=6)
    (pack,) = made.packs
    assert (pack.degree, len(pack.members)) == (2, 6)
    assert "4 members wait until an instance" in " ".join(text.split())


@settings(deadline=None)
@given(
    LAYOUTS,
    st.lists(st.integers(100, 70_000), min_size=2, max_size=10),
    st.none() | st.integers(2, 6),
    st.integers(1, 10),
    st.booleans(),
)
def test_whatever_waits_those_that_begin_have_seats_at_once(
    layout: str, needs: list[int], pack_size: int | None, degree: int, inside: bool
) -> None:
    gpu = read_seats(layout, H200)
    largest = max(seat.room_mb or 0 for seat in gpu)
    jobs = [build_job(n, gpu_memory_mb=min(mb, largest)) for n, mb in enumerate(needs, 1)]
    made, _ = make(jobs, {}, f"mig={layout}", pack_size=pack_size, degree=degree, mps_inside=inside)
    for pack in made.packs:
        if pack.mode is not SharingMode.MIG:
            continue
        begin = [build_subject(m.gpu_memory_limit_mb) for m in pack.members[: pack.degree]]
        assert share_seats(begin, gpu) is not None
        assert pack.degree <= (degree if inside else min(degree, len(gpu)))
        assert len(pack.members) <= (pack_size or len(needs))


def test_three_that_need_the_one_large_instance_take_turns() -> None:
    needs = (60_000, 60_000, 60_000, 9000)
    jobs = [build_job(n, gpu_memory_mb=mb) for n, mb in enumerate(needs, 1)]
    made, _ = make(jobs, {}, "mig=4g+2g")
    (pack,) = made.packs
    assert pack.degree == 2
    assert [member.job_index for member in pack.members] == [0, 3, 1, 2]
    assert [member.instance for member in pack.members] == ["4g", "2g", "4g", "4g"]
    # In turn on the one instance, however long the small one leaves the other free.
    walls = [member.wall_limit_s or 0 for member in pack.members]
    assert pack.request is not None
    assert (pack.request.time_limit_s or 0) >= walls[0] + walls[2] + walls[3]


def test_members_that_would_wait_past_max_time_are_another_pack() -> None:
    small = dataclasses.replace(SMALL, run_s=None)
    jobs, known = build_call(*[("small", small)] * 8)
    short = dataclasses.replace(ROOMY, time_limit_max_s=4500)
    made, _ = make(jobs, known, "mig=3g+3g", capacity=short)
    assert len(made.packs) > 1
    assert all(len(pack.members) > 2 for pack in made.packs[:-1])
