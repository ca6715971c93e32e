"""Members on MIG instances: who gets which, who waits, and who fits none."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.keeper.prepared_daemon import count_slices
from slurm_colloc.model.member import EndCause, MemberState, WaitKind, WaitReason
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.arrange import arrange
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.node_daemon import RUN_VARIABLE, find_instances
from slurm_colloc.runtime.pack_instances import PackInstances
from slurm_colloc.runtime.programs.member_commands import OwnMember
from slurm_colloc.runtime.programs.member_step import rewrite_srun
from slurm_colloc.store.pack_directory import PackRecord

from .mig_bench import build_gpu, build_setup, name_instance
from .stepped_runner import SteppedRunner

NEEDS = {1: ("3g", 30_000), 2: ("2g", 15_000), 3: ("1g", 9000), 4: ("1g", 9000), 5: ("3g", 38_000)}


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[SteppedRunner]:
    bed = SteppedRunner(tmp_path, members=5, places=4)
    yield bed
    bed.close()


def cut(bed: SteppedRunner, *names: str) -> None:
    """Give the pack a GPU with these instances."""
    mode = bed.parts.gpu_mode
    mode.instances = PackInstances(build_gpu(*names))
    mode._settled.mode = SharingMode.MIG


def build_mode(bed: SteppedRunner, record: PackRecord, allocation: Allocation) -> GpuMode:
    context = dataclasses.replace(bed.context, record=record, allocation=allocation)
    return GpuMode(pack=context, lone=False)


def want(bed: SteppedRunner, *numbers: int) -> list[Member]:
    """Members that wait, each with what it needs of an instance."""
    members = bed.adopt(*numbers)
    for member in members:
        word, need = NEEDS[member.number]
        plan = dataclasses.replace(member.spec.plan, instance=word, gpu_memory_limit_mb=need)
        member.spec = dataclasses.replace(member.spec, plan=plan)
    return members


def take_step(bed: SteppedRunner) -> int | None:
    """Do what a look has found to be due; who starts."""
    parts = bed.parts
    assert parts.gpu_mode.instances is not None
    parts.gpu_mode.instances.seats.keep({p.occupant for p in bed.members.places if p.occupant})
    view = parts.look.look()
    chosen = arrange(view)
    parts.start_queue.follow(view, chosen, parts.look.dependencies)
    return None if chosen.order is None else chosen.order.number


def start_all(bed: SteppedRunner) -> dict[int, str]:
    """Start all that may, without a process: which instance each has got."""
    found = {}
    while (number := take_step(bed)) is not None:
        member = bed.members.by_number[number]
        places = bed.members.find_places(member.spec.plan.cpus)
        assert places
        bed.members.occupy(member.number, places)
        bed.members.waiting.remove(member.number)
        member.gpu, environment = bed.parts.gpu_mode.place(member)
        assert member.gpu is not None
        assert environment == {"CUDA_VISIBLE_DEVICES": member.gpu.uuids[0]}
        found[member.number] = member.gpu.instance
    return found


def finish(bed: SteppedRunner, number: int) -> None:
    bed.members.vacate(number)


def test_each_member_has_an_instance_of_its_own(bed: SteppedRunner) -> None:
    cut(bed, "3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")
    want(bed, 4, 3, 2, 1)
    assert start_all(bed) == {1: "3g.40gb", 2: "2g.20gb", 3: "1g.10gb", 4: "1g.10gb"}
    uuids = {member.gpu.uuids for member in bed.members.by_number.values() if member.gpu}
    assert len(uuids) == 4


def test_small_ones_pass_one_whose_instance_is_taken(bed: SteppedRunner) -> None:
    cut(bed, "3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")
    (first,) = want(bed, 1)
    assert start_all(bed) == {1: "3g.40gb"}
    want(bed, 5, 3)
    assert start_all(bed) == {3: "1g.10gb"}
    waits = WaitReason(WaitKind.INSTANCE, told="38000 MB")
    assert bed.members.by_number[5].record.waits == waits
    finish(bed, first.number)
    assert start_all(bed) == {5: "3g.40gb"}


def test_one_that_fits_no_instance_ends_with_the_reason_and_the_others_run(
    bed: SteppedRunner,
) -> None:
    cut(bed, "1g.10gb", "1g.10gb")
    large, *_ = want(bed, 5, 3, 4)
    told = (
        "it needs 38000 MB of GPU memory, and the largest MIG instance of its pack, 1g.10gb, has "
        "9984 MB: submit it again with a larger instance in --share, or with another --share"
    )
    for _ in range(2):
        views = bed.parts.look.look().waiting
        assert {facts.number: facts.misfit for facts in views if facts.misfit} == {5: told}
    assert not large.is_final, "a look changes nothing"
    assert start_all(bed) == {3: "1g.10gb", 4: "1g.10gb"}
    assert (large.record.state, large.record.reason) == (MemberState.FAILED, told)
    assert large.record.cause == EndCause.NOT_STARTED.value
    assert not bed.members.waiting


def test_what_another_driver_has_rounded_by_a_little_is_tried(bed: SteppedRunner) -> None:
    cut(bed, "1g.10gb", "1g.10gb")
    (large,) = want(bed, 5)
    plan = dataclasses.replace(large.spec.plan, gpu_memory_limit_mb=9900, instance="1g")
    large.spec = dataclasses.replace(large.spec, plan=plan)
    assert start_all(bed) == {5: "1g.10gb"}


def test_nothing_is_measured_where_members_have_walls(bed: SteppedRunner) -> None:
    cut(bed, "3g.40gb", "2g.20gb")
    assert bed.parts.gpu_mode.why_unmeasured == "each member has a MIG instance of its own"


def test_what_root_has_cut_is_read_and_what_it_has_not_is_said() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can write what is believed")
    with tempfile.TemporaryDirectory(dir="/run") as run:
        environment = {"SLURM_JOB_ID": "7", RUN_VARIABLE: run}
        assert "prepared nothing" in find_instances(environment).reason
        folder = Path(run) / "7"
        folder.mkdir()
        Path(run).chmod(0o755)
        setup = build_setup("7", ["3g.40gb", "1g.10gb"])
        (folder / "setup.json").write_text(json.dumps(setup))
        finding = find_instances(environment)
        assert finding.gpu is not None
        assert [one.uuid for one in finding.gpu.instances] == [name_instance(1), name_instance(2)]
        assert finding.reason == ""
        for change, told in (
            ({"mode": "", "reason": "MIG is off"}, "no MIG instances: MIG is off"),
            ({"mig": {"gpus": 3}}, "is damaged"),
            ({"mig": {**setup["mig"], "gpus": []}}, "cut 0 GPUs"),
        ):
            (folder / "setup.json").write_text(json.dumps({**setup, **change}))
            found = find_instances(environment)
            assert found.gpu is None
            assert told in found.reason


def test_an_srun_inside_a_member_stays_on_its_instance() -> None:
    member = OwnMember(
        "/p/members/0003",
        {"job_id": "1795491552", "real_id": "4711", "member": "4711/3", "prefix": "/p/run"},
    )
    for device, named in ((name_instance(1), True), ("0", False)):
        environment = {"CUDA_VISIBLE_DEVICES": device, "SLURM_JOB_ID": "1795491552"}
        arguments, _ = rewrite_srun(["python", "x"], environment, member)
        assert arguments is not None
        assert (f"CUDA_VISIBLE_DEVICES={device}" in arguments) == named


@pytest.mark.parametrize(
    ("share", "mode", "refusal"),
    [
        ("auto", SharingMode.TIMESLICE, False),
        ("mig!", None, True),
    ],
)
def test_a_pack_that_gets_no_instances_says_so_and_does_what_was_asked(
    bed: SteppedRunner, share: str, mode: SharingMode | None, *, refusal: bool
) -> None:
    record = dataclasses.replace(bed.record, share=share, mode=SharingMode.MIG, layout=("3g", "3g"))
    allocation = dataclasses.replace(bed.allocation, gpus=("0",))
    found = build_mode(bed, record, allocation)
    found.open()
    assert found.is_settled
    assert found.mode is mode
    assert bool(found.refusal) == refusal
    told = found.refusal or found.setup.reason
    assert "only a node's prolog can make MIG instances" in told
    # What MPS does not hold together runs one at a time.
    assert found.takes_one_member == (share == "auto")


def test_one_instance_in_place_of_the_layout_is_shared_by_time_slices(bed: SteppedRunner) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can write what is believed")
    record = dataclasses.replace(bed.record, share="mig", mode=SharingMode.MIG, layout=("3g", "3g"))
    with tempfile.TemporaryDirectory(dir="/run") as run:
        Path(run).chmod(0o755)
        (Path(run) / "7").mkdir()
        setup = build_setup("7", ["7g.80gb"])
        setup["reason"] = "MIG is on, and one instance has the whole GPU; no layout 3g+3g: in use"
        setup["mig"]["layout"] = ""
        (Path(run) / "7" / "setup.json").write_text(json.dumps(setup))
        environment = {**bed.allocation.environment, "SLURM_JOB_ID": "7", RUN_VARIABLE: run}
        allocation = dataclasses.replace(bed.allocation, gpus=("0",), environment=environment)
        for share, mode in (("mig", SharingMode.TIMESLICE), ("mig!", None)):
            asked = dataclasses.replace(record, share=share)
            found = build_mode(bed, asked, allocation)
            found.open()
            assert found.mode is mode
            assert "no layout 3g+3g: in use" in (found.refusal or found.setup.reason)
            if mode is not None:
                (member,) = want(bed, 1)
                use, given = found.place(member)
                assert use is not None
                assert given == {"CUDA_VISIBLE_DEVICES": name_instance(1)}
                assert use.mode == "timeslice"


def test_compute_instances_count_by_what_they_compute_with() -> None:
    names = {"3g.40gb": 3, "3c.7g": 3, "1c.3g.40gb": 1, "1g.10gb+me": 1, "": 0}
    assert {name: count_slices(name) for name in names} == names
