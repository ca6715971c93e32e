"""How a job would stand in a pack that is there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.model.measured_curve import CurvePoint, DegreeState
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.plan import PackRequest, Policy, SharingMode
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmJob
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import begin_attempt
from slurm_colloc.store.pack_directory import Setup, read_pack, write_setup
from slurm_colloc.store.runner_requests import DegreeRecord, write_degree
from slurm_colloc.submission.join.join_pack import Chosen, Joiner, Prospect
from slurm_colloc.submission.plan.target_nodes import Destinations

from ..packs import build_member, build_pack, write_packs
from .test_collect import collect, write

POLICY = Policy(degree=4, mode=SharingMode.MPS)
RUNNING = SlurmJob("4711", SlurmJobState.RUNNING, "1:00", "UNLIMITED", "n1", "", "")


def prepare(root: Path) -> tuple[Path, Prospect]:
    """A pack that was planned for MPS with four places and has two members; and its next one."""
    script = write(root).read_bytes()
    state = State(root / "state", "here")
    members = [build_member(number, script) for number in (1, 2)]
    pack = build_pack(
        "20260101-000000-a",
        members=members,
        mode=SharingMode.MPS,
        # Enough CPUs for a third member.
        request=PackRequest(1, None, 8, None, None),
        policy=POLICY,
    )
    path = write_packs(state, pack)
    settings = Settings(state_dir=str(state.root))
    (candidate,) = collect(root, "--gres=gpu:1", "--time=10", "a.sh").candidates
    joiner = Joiner(candidate, POLICY, Destinations(settings, None), settings)
    return path, Prospect(state, joiner, pack.record.pack_id, RUNNING)


def find_mode(path: Path, prospect: Prospect) -> SharingMode:
    record = read_pack(path)
    assert record is not None
    return prospect._find_mode(record, POLICY)


def test_the_mode_of_a_running_pack_is_the_one_that_its_newest_attempt_prepared(
    tmp_path: Path,
) -> None:
    path, prospect = prepare(tmp_path)
    begin_attempt(path, 1)
    assert find_mode(path, prospect) is SharingMode.MPS, "nothing prepared yet, so as planned"
    write_setup(path, Setup(1, "auto", "timeslice", "the node has no MPS", "n1"))
    assert find_mode(path, prospect) is SharingMode.TIMESLICE
    begin_attempt(path, 2)
    assert find_mode(path, prospect) is SharingMode.MPS, "what the first attempt had is over"
    write_setup(path, Setup(2, "auto", "timeslice", "the node has no MPS", "n2"))
    assert find_mode(path, prospect) is SharingMode.TIMESLICE


def test_a_running_pack_has_as_much_room_as_was_measured(tmp_path: Path) -> None:
    pack, prospect = prepare(tmp_path)
    begin_attempt(pack, 1)
    settled = DegreeRecord(1, DegreeState.SETTLED, degree=2, places=4, curve=(CurvePoint(2, 1.5),))
    for has_room in (
        dataclasses.replace(settled, degree=3),
        dataclasses.replace(settled, degree=2, places=2),
        dataclasses.replace(settled, degree=3, room=1),
        dataclasses.replace(settled, state=DegreeState.MEASURING, room=0),
        dataclasses.replace(settled, state=DegreeState.OFF),
        dataclasses.replace(settled, attempt=2),
    ):
        write_degree(pack, has_room)
        assert isinstance(prospect.choose(), Chosen), has_room
    write_degree(pack, settled)
    assert prospect.choose() == (
        "2 run at once: 2 together make 1.5 times the progress of one alone"
    )
    write_degree(pack, dataclasses.replace(settled, degree=4, room=0, curve=()))
    assert prospect.choose() == "no more than 4 run at once"
