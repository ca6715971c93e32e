"""How many members run at once, as a runner finds it out: by pausing, and by a clock of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slurm_colloc.model.measured_curve import DegreeState, KnownCurve, KnownPoint, RateSource
from slurm_colloc.model.member import WaitKind
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.arrange import count_room
from slurm_colloc.planning.hard_limits import add_gpu_memory_margin
from slurm_colloc.planning.known_degree import KnownDegree
from slurm_colloc.runtime.member_progress import GpuMemoryUse, StepCount
from slurm_colloc.runtime.programs.pause_lease import LEASE_S, RENEW_S
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc.store.member_states import read_pauses

from ..suites import leave_to_parts
from .degree_stage import RATE, Stage, share, steady


def find_kind(stage: Stage, number: int) -> WaitKind | None:
    waits = stage.members.by_number[number].record.waits
    return None if waits is None else waits.kind


def test_known_members_start_together_and_all_go_on_that_pay(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    assert stage.start_all() == [1, 2, 3, 4]
    stage.pass_time(30)
    record = stage.record
    assert record is not None
    assert (record.state, record.degree, record.parked) == (DegreeState.SETTLED, 4, ())
    assert [point.degree for point in record.curve] == [1, 2, 4]
    assert record.curve[-1].stp == pytest.approx(4.0, rel=0.1)
    (alone,) = record.rates_alone
    assert (alone.source, alone.member) == (RateSource.PAUSING, 1)
    assert alone.steps_per_s == pytest.approx(RATE, rel=0.1)
    assert all(member.paused_at is None for member in stage.members.running())


@pytest.mark.parametrize("line_steps", [1, 10, 40])
def test_what_is_printed_is_measured_in_windows_as_long_as_its_lines_come(
    tmp_path: Path, process: StartedProcess, line_steps: int
) -> None:
    stage = Stage(tmp_path, process)
    stage.line_steps = line_steps
    stage.start_all()
    stage.pass_time(300, share(3.0))
    record = stage.record
    assert record is not None
    assert record.state is DegreeState.SETTLED
    assert record.curve[-1].stp == pytest.approx(3.0, rel=0.1)
    (alone,) = record.rates_alone
    assert (alone.source, alone.member) == (RateSource.PAUSING, 1)
    assert alone.steps_per_s == pytest.approx(RATE, rel=0.1)
    # That a look holds one line more or less is no change of the rate.
    assert len(stage.list_events("measures")) == 1


def test_lines_that_come_too_seldom_are_not_waited_for_and_it_is_said(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.line_steps = 250
    stage.start_all()
    stage.pass_time(120)
    record = stage.record
    assert record is not None
    assert record.state is DegreeState.OFF
    assert record.reason == (
        "nothing is measured: they print their steps every 25 s, and that can be measured up to "
        "every 6 s"
    )
    assert stage.paused_s == {}


def test_steps_that_come_too_seldom_do_not_leave_it_open_for_ever(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(400, lambda *_: 1 / 80)
    record = stage.record
    assert record is not None
    assert record.state is DegreeState.OFF
    assert record.reason == "nothing is measured: their steps come too seldom"


def test_measuring_is_short_and_its_cost_is_told(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(60)
    record = stage.record
    assert record is not None
    assert max(stage.paused_s.values()) < 12
    assert 0 < record.cost_s < 10
    pauses = [pause for pause in read_pauses(stage.pack) if pause.reason == "measured"]
    assert len(pauses) > 4
    assert all(pause.end is not None for pause in pauses)


def test_who_is_too_many_is_parked_and_goes_on_when_another_ends(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(40, share(2.0))
    record = stage.record
    assert record is not None
    assert record.degree in (2, 3)
    parked = stage.list_parked()
    assert parked == [3, 4][record.degree - 2 :]
    assert record.parked == tuple(parked)
    assert "no more than" in record.reason
    before = dict(stage.steps)
    stage.pass_time(10, share(2.0))
    assert [stage.steps[n] - before[n] for n in parked] == [0] * len(parked)
    stage.end(1)
    stage.pass_time(2, share(2.0))
    assert stage.list_parked() == parked[1:]


def test_one_that_is_to_stay_fast_is_parked_last(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    member = stage.members.by_number[4]
    job = dataclasses.replace(member.spec.job, stays_fast=True)
    member.spec = dataclasses.replace(member.spec, job=job)
    stage.start_all()
    stage.pass_time(40, share(2.0))
    record = stage.record
    assert record is not None
    # Otherwise the last one would be parked first.
    assert stage.list_parked() == [2, 3][record.degree - 2 :]


def test_unknown_ones_start_with_generous_parts_and_the_others_once_they_have_settled(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=12, places=12, known_mb=None, usable_mb=40_000)
    assert stage.memory.find_likely_degree(stage.members.by_number[1]) == 1
    assert stage.start_all() == [1, 2, 3, 4, 5, 6]
    stage.memory_mb = dict.fromkeys(range(1, 13), 3000.0)
    stage.pass_time(3)
    # They make steps, and could still take more.
    assert stage.start_all() == []
    assert find_kind(stage, 7) is WaitKind.MEMORY
    stage.pass_time(5)
    # 3,000 MB and what one like it may need on top: 4,624 MB each.
    assert stage.start_all() == [7, 8]
    given = stage.members.by_number[7].gpu
    assert given is not None
    assert given.gpu_memory_limit_mb == 4624
    # What the first were started with stays.
    first = stage.members.by_number[1].gpu
    assert first is not None
    assert first.gpu_memory_limit_mb == 10_000


def test_a_peak_of_the_first_seconds_is_no_peak_and_the_allocator_is_a_part_of_a_process() -> None:
    use = GpuMemoryUse()
    count = StepCount(100.0, 8, 90.0, 99.0, 1, None, gpu_reserved_peak=88 << 20)
    use.note_count(1, 1, count)
    use.note_nvml(1, 1, 600.0, 1.0)
    assert use.find_peak_mb(1) is None
    assert use.find_settled_mb(1, 1) is None
    use.note_count(1, 1, dataclasses.replace(count, at=104.0, steps=400))
    use.note_nvml(1, 1, 1006.0, 9.0)
    assert use.find_peak_mb(1) == use.find_settled_mb(1, 1) == add_gpu_memory_margin(1006)
    # Where NVML does not tell, context and workspaces come on top.
    use.note_count(2, 1, dataclasses.replace(count, at=104.0, steps=400))
    assert use.find_peak_mb(2) == add_gpu_memory_margin(88 + 768)


def test_what_one_is_like_that_was_not_here_yet_is_read_when_it_has_come(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, known_mb=None, enforces=False)
    script = stage.pack / "members" / "0004" / "script"
    elsewhere = script.rename(tmp_path / "script")
    assert stage.start_all() == [1]
    stage.memory_mb = {1: 3000.0}
    stage.pass_time(8)
    assert stage.memory.find_need_mb(stage.members.by_number[4]) is None
    elsewhere.rename(script)
    assert stage.memory.find_need_mb(stage.members.by_number[4]) == 4624


def test_what_a_member_has_shown_still_tells_of_its_family_once_another_pack_has_it(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, known_mb=None, enforces=False)
    assert stage.start_all() == [1]
    stage.memory_mb = {1: 3000.0}
    stage.pass_time(8)
    waiting = stage.members.by_number[4]
    before = stage.progress.find_rate_alone(waiting)
    assert before is not None
    assert stage.memory.find_need_mb(waiting) == 4624
    # Its GPU was lost, and it starts again in another GPU set.
    stage.end(1)
    stage.members.forget(1)
    assert stage.progress.find_rate_alone(waiting) == before
    assert stage.memory.find_need_mb(waiting) == 4624
    assert stage.start_all()
    stage.pass_time(3)
    assert stage.record is None or stage.record.state is not DegreeState.OFF


def test_what_is_never_told_is_not_waited_for_for_ever(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, known_mb=None, enforces=False)
    assert stage.start_all() == [1]
    stage.loading = {1, 2, 3, 4}
    stage.pass_time(50, refills=True)
    assert len(stage.members.running()) == 1
    stage.pass_time(250, refills=True)
    assert len(stage.members.running()) == 4


def test_members_are_measured_again_when_others_come(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=4, places=4)
    stage.members.waiting.remove(4)
    stage.start_all()
    stage.pass_time(400)
    assert [event["reason"] for event in stage.list_events("measures")] == ["it has settled"]
    stage.members.waiting.append(4)
    stage.start_all()
    stage.pass_time(600)
    assert [event["reason"] for event in stage.list_events("measures")][:2] == [
        "it has settled",
        "more members have come",
    ]


def test_one_like_another_that_takes_its_place_changes_nothing(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=8)
    stage.start_all()
    stage.pass_time(60)
    for number in (1, 2, 3, 4):
        stage.end(number)
        stage.start_all()
        stage.pass_time(20)
    assert len(stage.list_events("measures")) == 1


def test_a_rate_that_changes_for_good_is_one_new_measurement(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(250)
    assert len(stage.list_events("measures")) == 1
    stage.pass_time(300, lambda number, _: RATE / 2 if number == 2 else RATE)
    reasons = [event["reason"] for event in stage.list_events("measures")]
    assert reasons.count("member 2 has changed") == 1


def test_a_pause_of_its_own_is_no_change(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(100)
    for _ in range(5):
        stage.pass_time(15, lambda number, _: 0.0 if number == 2 else RATE)
        stage.pass_time(30)
    assert len(stage.list_events("measures")) == 1


@pytest.mark.parametrize("minutes", leave_to_parts([10, 60], but=[10]))
def test_measuring_costs_one_per_cent_at_most(
    tmp_path: Path, process: StartedProcess, minutes: int
) -> None:
    stage = Stage(tmp_path, process, members=12, places=12)
    stage.start_all()
    stage.pass_time(60 * minutes)
    record = stage.record
    assert record is not None
    assert record.cost_s <= 0.011 * 60 * minutes


def test_members_that_share_a_loader_are_not_paused(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    counters = tmp_path / "counters"
    stage.pauser.find_progress = lambda member: f"{counters}/{member.number:04}.1"
    loader = counters / ".loaders" / "0123456789abcdef"
    loader.mkdir(parents=True)
    # A member that has ended leaves its file.
    for name in ("0001.1", "0002.1", "0009.1"):
        (loader / f"m.{name}.4711.a1b2c3d4").touch()
    (counters / ".loaders" / "seen.0003.1").touch()
    assert stage.start_all() == [1, 2, 3, 4]
    stage.pass_time(60)
    told = {event["member"]: event["reason"] for event in stage.list_events("not_paused")}
    assert told == {1: "it shares its loader", 2: "it shares its loader"}
    assert not {pause.member for pause in read_pauses(stage.pack)} & {1, 2}


def test_a_loader_of_one_member_is_shared_with_none(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    counters = tmp_path / "counters"
    stage.pauser.find_progress = lambda member: f"{counters}/{member.number:04}.1"
    for number in (1, 2):
        loader = counters / ".loaders" / f"012345678{number}"
        loader.mkdir(parents=True)
        # Two loaders of one program, and a start of before.
        for name in (f"000{number}.1.4711.a", f"000{number}.1.4711.b", "0003.0.4710.c"):
            (loader / f"m.{name}").touch()
    stage.start_all()
    stage.pass_time(60)
    assert not stage.list_events("not_paused")
    assert stage.list_events("measures")


def test_where_nothing_may_be_measured_all_run(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, obstacle="the setting pause is off")
    assert stage.start_all() == [1, 2, 3, 4]
    stage.pass_time(10)
    record = stage.record
    assert record is not None
    assert record.state is DegreeState.OFF
    assert record.reason == "nothing is measured: the setting pause is off"
    assert stage.paused_s == {}


def test_ranks_of_one_training_are_never_parked(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.ranks = 2
    stage.start_all()
    stage.pass_time(60, share(2.0))
    assert stage.list_parked() == []
    assert max(stage.paused_s.values()) < 15


def test_a_member_that_ends_in_a_window_ends_the_measurement(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    while not stage.measured_degree.is_measuring:
        stage.pass_time(0.05)
    stage.end(2)
    stage.pass_time(0.1)
    assert all(member.paused_at is None for member in stage.members.running())
    stage.pass_time(60)
    record = stage.record
    assert record is not None
    assert record.state is DegreeState.SETTLED


def test_windows_before_a_member_ended_are_enough_once_all_were_seen(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=8, places=8)
    stage.start_all()
    while not stage.measured_degree.is_measuring:
        stage.pass_time(0.05)
    # One alone, eight and four: 1.3 s each.
    stage.pass_time(4.2, share(6))
    stage.end(8)
    stage.pass_time(0.1)
    record = stage.record
    assert record is not None
    assert record.state is DegreeState.SETTLED
    assert [point.degree for point in record.curve] == [1, 4, 8]
    assert all(member.paused_at is None for member in stage.members.running())
    assert record.cost_s > 0


def test_a_measurement_in_which_all_members_end_is_no_error(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=2, places=2)
    stage.start_all()
    while not stage.measured_degree.is_measuring:
        stage.pass_time(0.05)
    # One alone and two: 1.3 s each.
    stage.pass_time(3.0, share(2))
    stage.end(1)
    stage.end(2)
    stage.pass_time(0.1)
    assert stage.record is not None
    assert [point.degree for point in stage.record.curve] == [1, 2]


def test_windows_say_nothing_once_another_member_has_come(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=9, places=9)
    stage.members.waiting.remove(9)
    stage.start_all()
    while not stage.measured_degree.is_measuring:
        stage.pass_time(0.05)
    stage.pass_time(4.2, share(6))
    stage.end(8)
    stage.members.waiting.append(9)
    stage.members.by_number[9].process = stage.process
    stage.pass_time(0.1)
    record = stage.record
    assert record is None or record.state is DegreeState.MEASURING
    assert all(member.paused_at is None for member in stage.members.running())


def test_all_go_on_where_slurm_may_end_the_pack(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(40, share(1.0))
    assert stage.list_parked()
    stage.measured_degree.stop()
    assert [member.paused_at for member in stage.members.running()] == [None] * 4
    assert stage.list_parked() == []


def test_who_would_have_too_little_time_goes_on(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, time_limit_s=300)
    for member in stage.members.by_number.values():
        member.deadline = stage.now + 90
    stage.start_all()
    stage.pass_time(40, share(1.0))
    assert stage.list_parked() == [2, 3, 4]
    stage.pass_time(200, share(1.0))
    assert stage.list_parked() == []
    assert {event["member"] for event in stage.list_events("not_parked")} == {2, 3, 4}


def test_a_paused_member_that_goes_on_by_itself_is_stopped_again_or_let_go(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(40, share(1.0))
    two = stage.members.by_number[2]
    assert two.is_parked
    # A signal goes to it.
    stage.pauser.resume([two])
    stage.pass_time(1, share(1.0))
    assert not two.is_parked


def test_what_went_on_while_its_runner_hung_is_no_pause_and_it_is_stopped_again(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(40, share(1.0))
    two = stage.members.by_number[2]
    assert two.is_parked
    assert two.paused_at is not None
    paused_at, paused_s, hung_at = two.paused_at, two.paused_s, stage.now
    two.deadline = hung_at + 1000.0
    stage.now += LEASE_S + 60.0
    stage.pass_time(1, share(1.0))
    assert two.is_parked
    assert two.paused_at > hung_at + LEASE_S
    told = {event["member"] for event in stage.list_events("paused_again")}
    assert told == set(stage.list_parked())
    # Until its wrapper let it go it was paused, and afterwards the time was its own.
    gained_s = two.paused_s - paused_s
    assert hung_at + LEASE_S - RENEW_S - 2 <= paused_at + gained_s <= hung_at + LEASE_S
    assert two.deadline == hung_at + 1000.0 + gained_s
    pauses = [pause for pause in read_pauses(stage.pack) if pause.member == 2]
    assert [pause.reason for pause in pauses[-2:]] == ["parked", "parked"]
    assert [pause.end is None for pause in pauses[-2:]] == [False, True]


def test_room_for_others_is_what_memory_and_places_leave(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=2, places=12, known_mb=10_000)
    assert count_room(stage.look.look()) == 0
    stage.start_all()
    assert count_room(stage.look.look()) == 6
    stage.pass_time(60, steady)
    # Measured with two: twice as many are tried next.
    assert count_room(stage.look.look()) == 2
    crowded = Stage(tmp_path / "b", process, members=4, places=12, known_mb=1000)
    crowded.start_all()
    crowded.pass_time(60, share(1.0))
    assert count_room(crowded.look.look()) == 0


def test_the_rate_of_the_first_before_others_started_stands_for_its_family(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=3, known_mb=None, usable_mb=40_000)
    stage.memory_mb = dict.fromkeys(range(1, 4), 3000.0)
    stage.start()
    stage.pass_time(6)
    assert stage.start_all() == [2, 3]
    # It ends before the others have settled: those have a part of the threads each.
    stage.pass_time(0.3)
    stage.end(1)
    stage.pass_time(30)
    record = stage.record
    assert record is not None
    (alone,) = record.rates_alone
    assert (alone.member, alone.source) == (1, RateSource.FIRST)
    assert alone.steps_per_s == pytest.approx(RATE, rel=0.1)
    assert record.curve[-1].stp == pytest.approx(2.0, rel=0.1)


def test_the_first_is_alone_while_the_others_only_load(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=3, places=3)
    assert stage.start_all() == [1, 2, 3]
    stage.loading = {2, 3}
    stage.pass_time(8)
    stage.loading = set()
    # Then it is slower; but the rate of when it worked alone stays.
    stage.pass_time(0.5, share(1))
    stage.end(1)
    stage.pass_time(30)
    record = stage.record
    assert record is not None
    (alone,) = record.rates_alone
    assert (alone.member, alone.source) == (1, RateSource.FIRST)
    assert alone.steps_per_s == pytest.approx(RATE, rel=0.1)
    assert 1.0 < alone.window_s < 7.9


def test_who_takes_gpu_memory_is_company(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, members=2, places=2)
    stage.memory_mb = {1: 3000.0, 2: 3000.0}
    assert stage.start_all() == [1, 2]
    stage.loading = {2}
    stage.pass_time(8)
    stage.loading = set()
    stage.end(1)
    stage.pass_time(3)
    assert stage.progress.rates_alone == {}


def test_a_phase_in_which_all_are_slower_parks_none(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(300)
    # All double their batches: half as many steps, alone as in company.
    stage.pass_time(400, lambda *_: RATE / 2)
    assert len(stage.list_events("measures")) >= 2
    assert stage.list_parked() == []


def test_room_is_never_beyond_what_was_measured(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process, members=8, places=12)
    stage.start_all()
    stage.pass_time(60, share(4.0))
    degree = stage.record.degree if stage.record else 0
    assert degree in (4, 5, 6)
    for number in range(1, 9 - degree):
        stage.end(number)
    stage.pass_time(2, share(4.0))
    assert len(stage.members.running()) == degree
    assert count_room(stage.look.look()) == 0
    stage.end(8)
    stage.pass_time(0.2, share(4.0))
    assert count_room(stage.look.look()) == 1


def test_what_is_never_measured_takes_over_as_many_as_were_planned(
    tmp_path: Path, process: StartedProcess
) -> None:
    words = "the setting pause is off"
    stage = Stage(tmp_path, process, members=2, places=12, obstacle=words, planned_degree=4)
    stage.start_all()
    stage.pass_time(5)
    assert count_room(stage.look.look()) == 2
    silent = Stage(tmp_path / "b", process, members=2, places=12, planned_degree=2)
    silent.start_all()
    silent.pass_time(100, lambda *_: 0.0)
    record = silent.record
    assert record is not None
    assert record.reason == "nothing is measured: none of them has made a step that counts"
    assert count_room(silent.look.look()) == 0


def test_degree_one_of_others_says_nothing_of_another_kind(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=5)
    for number in (1, 2):
        member = stage.members.by_number[number]
        job = dataclasses.replace(member.spec.job, arguments=("--model", "heavy"))
        member.spec = dataclasses.replace(member.spec, job=job)
    for number in (3, 4, 5):
        stage.members.waiting.remove(number)
    stage.start_all()
    stage.pass_time(60, share(1.0))
    assert stage.record is not None
    assert stage.record.degree == 1
    stage.end(1)
    stage.pass_time(2, share(1.0))
    stage.end(2)
    stage.members.waiting.extend((3, 4, 5))
    assert stage.start_all() == [3, 4, 5]


def test_who_is_being_ended_is_not_paused_any_more(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    while not stage.measured_degree.is_measuring:
        stage.pass_time(0.05)
    four = stage.members.by_number[4]
    four.end_by = stage.now + 30
    stage.pauser.resume([four])
    stage.pass_time(20)
    assert [member.paused_at for member in stage.members.running()] == [None] * 4
    stage.end(4)
    stage.pass_time(30)
    assert stage.record is not None
    assert stage.record.state is DegreeState.SETTLED


def test_a_long_pause_makes_no_window_longer(tmp_path: Path, process: StartedProcess) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    stage.pass_time(700, share(1.0))
    paused = [p for p in read_pauses(stage.pack) if p.reason == "measured" and p.end is not None]
    longest = max((p.end or 0.0) - p.begin for p in paused)
    # By the real clock, which stands nearly still: what counts are the stage's own seconds.
    assert longest < 5
    assert max(stage.paused_s.values()) > 500
    measures = stage.list_events("measures")
    assert len(measures) == 2


def test_an_error_in_a_measurement_leaves_none_stopped(
    tmp_path: Path, process: StartedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, process)
    stage.start_all()
    while not stage.measured_degree.is_measuring:
        stage.pass_time(0.05)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    with monkeypatch.context() as changed:
        changed.setattr("slurm_colloc.model.measurement._DegreeSearch._note", fail)
        changed.setattr("slurm_colloc.model.measurement._DegreeSearch._note_alone", fail)
        with pytest.raises(ZeroDivisionError):
            stage.pass_time(5)
    assert [member.paused_at for member in stage.members.running()] == [None] * 4
    stage.pass_time(40)
    assert stage.record is not None
    assert stage.record.state is DegreeState.SETTLED


PROGRESS = {1: 1.0, 6: 5.35, 9: 6.09, 10: 6.19, 11: 6.24, 12: 6.24}
"""The sum of progress of small trainings by their number, as an H100 has shown it."""


def small_on_h100(_: int, running: int) -> float:
    """Of each, between these numbers in a straight line."""
    below = max(degree for degree in PROGRESS if degree <= running)
    above = min(degree for degree in PROGRESS if degree >= running)
    part = (running - below) / max(1, above - below)
    stp = PROGRESS[below] + part * (PROGRESS[above] - PROGRESS[below])
    return RATE * stp / running


@pytest.mark.parametrize(
    ("elsewhere", "expected"),
    [
        # Ten make as much progress as eleven; but two would have the GPU for themselves.
        (1, (12, 0)),
        # Enough are left over to fill it again.
        (17, (10, 1)),
    ],
)
def test_all_run_where_few_would_be_left_over(
    tmp_path: Path,
    process: StartedProcess,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: int,
    expected: tuple[int, int],
) -> None:
    stage = Stage(tmp_path, process, members=11, places=12)
    monkeypatch.setattr(stage.progress, "find_bound", lambda _: 3.0)
    stage.elsewhere = elsewhere
    stage.start_all()
    stage.pass_time(90, small_on_h100)
    record = stage.record
    assert record is not None
    assert (record.degree, len(stage.list_parked())) == expected
    assert ("with 10 at once the last would end later" in record.reason) is (expected[1] == 0)


def test_for_whom_there_is_no_memory_does_not_count_as_one_of_more_at_once(
    tmp_path: Path, process: StartedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, process, members=12, places=12, usable_mb=10_500)
    monkeypatch.setattr(stage.progress, "find_bound", lambda _: 3.0)
    assert len(stage.start_all()) == 10
    stage.pass_time(90, small_on_h100)
    record = stage.record
    assert record is not None
    assert record.state is DegreeState.SETTLED
    assert "would end later" not in record.reason
    assert find_kind(stage, 11) is WaitKind.MEMORY


def pin(stage: Stage, number: int) -> None:
    """A member may not be paused."""
    member = stage.members.by_number[number]
    job = dataclasses.replace(member.spec.job, pause=False)
    member.spec = dataclasses.replace(member.spec, job=job)


def test_where_one_comes_that_may_not_be_paused_the_rates_measured_before_count(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=4)
    pin(stage, 4)
    stage.members.waiting.remove(4)
    stage.start_all()
    stage.pass_time(40, share(3))
    assert stage.record is not None
    assert (stage.record.state, stage.list_parked()) == (DegreeState.SETTLED, [])
    stage.members.waiting.append(4)
    assert stage.start_all() == [4]
    stage.pass_time(1000, share(2))
    assert len(stage.list_events("measures")) > 1
    assert stage.record.state is DegreeState.SETTLED
    assert stage.list_parked() == [2, 3]


def test_with_one_that_may_not_be_paused_and_no_known_rates_nothing_is_tried(
    tmp_path: Path, process: StartedProcess
) -> None:
    # What is planned with is a figure of another day.
    stage = Stage(tmp_path, process, members=4, solo=RATE)
    pin(stage, 2)
    stage.start_all()
    stage.pass_time(40, share(2))
    assert stage.record is not None
    assert stage.record.state is DegreeState.OFF
    assert stage.record.reason == (
        "nothing is measured: no rate alone is known, and member 2 may not be paused"
    )
    assert not stage.paused_s


def test_who_fits_once_the_first_seconds_are_over_is_measured_with_the_others(
    tmp_path: Path, process: StartedProcess
) -> None:
    stage = Stage(tmp_path, process, members=3, places=3, known_mb=9000, usable_mb=20_000)
    assert stage.start_all() == [1, 2]
    # cuDNN tries its algorithms: there is no room for a third one yet.
    stage.memory_mb = {1: 6000.0, 2: 6000.0}
    stage.pass_time(3, refills=True)
    stage.memory_mb = {1: 1000.0, 2: 1000.0, 3: 1000.0}
    stage.pass_time(40, refills=True)
    assert [event["members"] for event in stage.list_events("measures")] == [3]


def test_what_earlier_packs_measured_is_not_measured_again(
    tmp_path: Path, process: StartedProcess
) -> None:
    points = (KnownPoint(3, 2.4, 1.2, 1.5, 1), KnownPoint(6, 2.5, 2.4, 1.5, 1))
    curve = KnownCurve(("f",), "NVIDIA H100", SharingMode.MPS, points)
    known = KnownDegree(3, points[0], points[1], is_open=False, curve=curve)
    stage = Stage(tmp_path, process, members=6, places=6, known=known)
    assert stage.start_all() == [1, 2, 3]
    waits = stage.members.by_number[4].record.waits
    assert waits is not None
    assert waits.told.startswith(
        "no more than 3 run at once: 3 at once made 2.4 times the progress of one alone on 1970-"
    )
    stage.pass_time(60, refills=True)
    record = stage.record
    assert record is not None
    assert (record.state, record.degree, stage.paused_s) == (DegreeState.SETTLED, 3, {})
    assert len(stage.members.running()) == 3
    # Another rate than then is looked into.
    stage.pass_time(120, lambda *_: RATE / 3, refills=True)
    assert stage.list_events("measures")
