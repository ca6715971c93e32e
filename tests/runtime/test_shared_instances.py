"""Several members on one MIG instance: who gets which, what MPS inside does, what a fault hits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from slurm_colloc.host.keeper.keeper_messages import Fault
from slurm_colloc.model.member import WaitKind, WaitReason
from slurm_colloc.runtime.instance_daemons import InstanceDaemons
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.mps_clients import InstanceClients, MpsClients
from slurm_colloc.runtime.pack_instances import MigSeats, PackInstances, match_places

from .mig_bench import build_gpu, name_instance
from .stepped_runner import SteppedRunner


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[SteppedRunner]:
    bed = SteppedRunner(tmp_path, members=6, places=6)
    yield bed
    bed.close()


def want(bed: SteppedRunner, words: dict[int, tuple[str, int | None]]) -> dict[int, Member]:
    """Members that wait, each with its planned instance and what it needs of one."""
    found = {}
    for member in bed.adopt(*words):
        word, need_mb = words[member.number]
        plan = dataclasses.replace(member.spec.plan, instance=word, gpu_memory_limit_mb=need_mb)
        member.spec = dataclasses.replace(member.spec, plan=plan)
        found[member.number] = member
    return found


def test_members_fill_the_instances_that_they_were_planned_for_the_emptiest_first(
    bed: SteppedRunner,
) -> None:
    gpu = build_gpu("3g.40gb", "3g.40gb")
    places = match_places(gpu, ("3g", "3g"), (2, 2))
    assert places == {name_instance(1): 2, name_instance(2): 2}
    seats = MigSeats(gpu, places)
    members = want(bed, dict.fromkeys(range(1, 6), ("3g", 9000)))
    taken = [seats.take(members[n]) for n in range(1, 6)]
    counts = [seats.list_members(name_instance(n)) for n in (1, 2)]
    assert taken[4] is None
    assert sorted(map(len, counts)) == [2, 2]
    assert counts[0] != [1, 2], "the second goes where none is yet"
    assert seats.describe(members[5]) == WaitReason(WaitKind.INSTANCE, told="9000 MB")
    seats.keep([2, 3, 4])
    assert seats.take(members[5]) is not None


def test_members_share_an_instance_as_far_as_its_memory_goes(bed: SteppedRunner) -> None:
    gpu = build_gpu("3g.40gb")
    seats = MigSeats(gpu, match_places(gpu, ("3g",), (3,)))
    members = want(bed, {1: ("3g", 30_000), 2: ("3g", 9000), 3: ("3g", 8000), 4: ("3g", None)})
    assert seats.take(members[1]) is not None
    assert seats.find(members[2]) is None, "30000 and 9000 MB are more than 95 % of 40448 MB"
    assert seats.take(members[3]) is not None
    assert seats.find(members[4]) is None, "of unknown need: a third of it"


def test_one_that_must_run_apart_has_an_instance_to_itself(bed: SteppedRunner) -> None:
    gpu = build_gpu("3g.40gb")
    seats = MigSeats(gpu, match_places(gpu, ("3g",), (3,)))
    members = want(bed, {1: ("3g", 9000), 2: ("3g", 9000)})
    retries = dataclasses.replace(members[2].record.retries, apart=True)
    members[2].record = dataclasses.replace(members[2].record, retries=retries)
    assert seats.take(members[1]) is not None
    assert seats.find(members[2]) is None
    seats.keep([])
    assert seats.take(members[2]) is not None
    assert seats.find(members[1]) is None


def test_without_a_daemon_an_instance_takes_one_member_at_a_time(bed: SteppedRunner) -> None:
    gpu = build_gpu("3g.40gb", "3g.40gb")
    places = match_places(gpu, ("3g", "3g"), (2, 2))
    instances = PackInstances(gpu, places)
    daemons = InstanceDaemons(
        pack=dataclasses.replace(
            bed.context, allocation=dataclasses.replace(bed.allocation, environment={"PATH": ""})
        ),
        clients=bed.parts.gpu_mode.clients,
        patience=bed.parts.gpu_mode.patience,
        seats=instances.seats,
    )
    members = want(bed, dict.fromkeys((1, 2, 3), ("3g", 9000)))
    instances.use_mps(daemons)
    ready = [instances.is_ready]
    first, second = (daemons.get(name_instance(n)) for n in (1, 2))
    assert first is not None
    assert second is not None
    first.note_given_up("there is no server program")
    second.note_control("/run/user/1/mps/p", 1.0, 0, ())
    second.note_ready(2.0)
    ready.append(instances.is_ready)
    assert ready == [False, True]
    notes = instances.follow_daemons()
    assert any("one member at a time there: there is no server program" in note for note in notes)
    assert instances.follow_daemons() == []
    assert (
        instances.seats.count_places(name_instance(1)),
        instances.seats.count_places(name_instance(2)),
    ) == (
        1,
        2,
    )
    uses = [instances.place(members[n]) for n in (1, 2, 3)]
    by_uuid: dict[str, list[str]] = {}
    for use, environment in uses:
        assert use is not None
        assert environment["CUDA_VISIBLE_DEVICES"] == use.uuids[0]
        pipe = environment.get("CUDA_MPS_PIPE_DIRECTORY", "")
        assert bool(pipe) == (use.inside == "mps")
        by_uuid.setdefault(use.uuids[0], []).append(pipe)
        if pipe:
            assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{use.uuids[0]}=9000M"
            assert use.thread_percentage == 100
    assert by_uuid == {name_instance(1): [""], name_instance(2): ["/run/user/1/mps/p"] * 2}
    daemons.close()


def test_a_fault_and_the_end_of_a_server_hit_the_members_of_that_instance_alone(
    bed: SteppedRunner,
) -> None:
    clients = MpsClients(bed.pack, bed.journal)
    here, there = (InstanceClients(clients, partial(list, of)) for of in ([1, 2], [3]))
    for member in bed.adopt(1, 2, 3):
        member.wrapper_pid = 2**22 + member.number
        clients.watch(member)
    here.note_fault(Fault(7, (2**22 + 9,), None, "MMU fault"))
    assert [bool(clients.get(n).suspects) for n in (1, 2, 3)] == [True, True, False]  # type: ignore[union-attr]
    there.lose("the MPS daemon has died")
    assert [clients.get(n).lost for n in (1, 2, 3)] == ["", "", "the MPS daemon has died"]  # type: ignore[union-attr]
    assert there.list_hit() == []
