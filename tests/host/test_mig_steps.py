"""Dividing a GPU and putting it back: any state, any layout, a fault or a kill at any call."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mig.cut_gpu import cut, describe_holders, restore
from slurm_colloc.host.mig.plan_cut import (
    GPU_IS_LOST,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NO_ANSWER,
    CutFailed,
    GpuInstance,
    MigGpu,
    MigProblem,
    describe_claim,
    parse_claim,
    plan_cut,
)
from slurm_colloc.model.mig_layout import render_layout
from slurm_colloc.model.mig_profiles import MIG_TABLES, Placement

from ..model.mig_layouts import enumerate_layouts
from .mig_double import Killed, MigDouble, build_gpu

FAR = 1e12
MODELS = st.sampled_from(sorted(MIG_TABLES))
LAYOUTS = {
    model: [
        "+".join(one.profile.name for one in layout)
        for layout in enumerate_layouts(MIG_TABLES[model])
        if len(layout) <= 7
    ]
    for model in MIG_TABLES
}
CODES = st.sampled_from([2, 4, 6, GPU_IS_LOST, IN_USE, INSUFFICIENT_RESOURCES, 999, -1])


def no_wait(_seconds: float) -> None:
    pass


@st.composite
def places(draw: st.DrawFn) -> tuple[MigDouble, str, str]:
    """GPUs, the one that is divided, and a layout that fits it."""
    model = draw(MODELS)
    is_on = draw(st.booleans()) if not model.startswith("A") else True
    double = MigDouble({g.uuid: g for g in (build_gpu(0, model=model, is_on=is_on), build_gpu(1))})
    layout = draw(st.sampled_from(LAYOUTS[model]))
    return double, next(iter(double.gpus)), layout


@settings(max_examples=300, deadline=None)
@given(places(), st.data())
def test_whatever_fails_or_is_killed_the_gpu_is_as_before_or_unsafe_with_the_reason(
    place: tuple[MigDouble, str, str], data: st.DataObject
) -> None:
    double, uuid, layout = place
    before = dict(double.gpus)
    claim = plan_cut(double.gpus[uuid], layout, may_switch=True)
    _break_at_some_call(double, data)
    try:
        cut(double, claim, no_wait)
    except CutFailed as failed:
        # What is kept of it covers all that may have been made.
        claim = failed.claim
    except Killed:
        pass
    # The epilog, which may be killed or fail as well, and the recovery after that.
    for _ in range(data.draw(st.integers(0, 2))):
        _break_at_some_call(double, data)
        with contextlib.suppress(Killed):
            restore(double, claim, ends_at=FAR, wait=no_wait)
    _mend(double)
    stays_busy = _occupy_something(double, uuid, data)
    report = restore(double, parse_claim(describe_claim(claim)), ends_at=FAR, wait=no_wait)
    others = {gpu: state for gpu, state in double.gpus.items() if gpu != uuid}
    assert others == {gpu: state for gpu, state in before.items() if gpu != uuid}
    if report.unsafe:
        assert stays_busy
        assert uuid in report.unsafe[0]
        assert "process 4000" in report.unsafe[0]
        assert "instance" in report.unsafe[0]
    else:
        assert double.gpus[uuid] == before[uuid]


def _break_at_some_call(double: MigDouble, data: st.DataObject) -> None:
    """From now on one call fails, or is the last one, before or after it has taken effect."""
    _mend(double)
    number, is_after = data.draw(st.integers(0, 25)), data.draw(st.booleans())
    fault = data.draw(st.none() | CODES)
    left = [number]

    def strike(name: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            # Of an instance that was made the child never says that there was no room.
            is_lost = is_after and name == "create" and fault == INSUFFICIENT_RESOURCES
            code = NO_ANSWER if is_lost else fault
            raise Killed if code is None else MigProblem("told to fail", code)

    if is_after:
        double.after = strike
    else:
        double.before = strike


def _mend(double: MigDouble) -> None:
    double.before = double.after = lambda _name: None


def _occupy_something(double: MigDouble, uuid: str, data: st.DataObject) -> bool:
    standing = [
        (uuid, one.id, compute.id)
        for one in double.gpus[uuid].instances or ()
        for compute in one.compute
    ]
    number = data.draw(st.integers(-1, len(standing) - 1))
    if number >= 0:
        double.busy.add(standing[number])
    return number >= 0


@given(places())
def test_a_layout_is_made_whole_each_instance_with_a_uuid_of_its_own(
    place: tuple[MigDouble, str, str],
) -> None:
    double, uuid, layout = place
    gpu = double.gpus[uuid]
    made = cut(double, plan_cut(gpu, layout, may_switch=True), no_wait)
    names = [
        profile.name
        for one in made.instances or ()
        if (profile := gpu.find_profile(one.profile_id)) is not None
    ]
    assert sorted(names) == sorted(layout.replace("+me", "@").split("+")) or sorted(
        names
    ) == sorted(word.replace("@", "+me") for word in layout.replace("+me", "@").split("+"))
    uuids = [compute.uuid for one in made.instances or () for compute in one.compute]
    assert len(set(uuids)) == len(names)


def test_compute_instances_share_a_gpu_instance() -> None:
    double = MigDouble({"GPU": replace(build_gpu(), uuid="GPU")})
    claim = plan_cut(double.gpus["GPU"], "3c.7g+4c.7g", may_switch=False)
    made = cut(double, claim, no_wait)
    assert made.instances is not None
    (instance,) = made.instances
    # Four slices have one place, three have two.
    assert [one.slices for one in instance.compute] == [4, 3]
    assert restore(double, claim, ends_at=FAR, wait=no_wait).unsafe == []
    assert double.gpus["GPU"].instances == ()


def test_an_instance_that_is_there_although_its_call_failed_is_taken() -> None:
    gpu = build_gpu()
    double = MigDouble({gpu.uuid: gpu})
    claim = plan_cut(gpu, "3g+2g", may_switch=False)
    failed: list[str] = []

    def lose_the_first_answer(name: str) -> None:
        if name == "create" and not failed:
            failed.append(name)
            raise MigProblem("In use by another client", IN_USE)

    double.after = lose_the_first_answer
    made = cut(double, claim, no_wait)
    assert failed
    assert len(made.instances or ()) == 2


def test_an_instance_that_is_still_in_use_is_waited_for() -> None:
    gpu = build_gpu()
    double = MigDouble({gpu.uuid: gpu})
    claim = plan_cut(gpu, "3g+2g", may_switch=False)
    made = cut(double, claim, no_wait)
    first = (made.instances or ())[0]
    double.busy = {(gpu.uuid, first.id, 0)}
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            double.busy.clear()

    assert restore(double, claim, ends_at=FAR, wait=wait).unsafe == []
    assert waits == sorted(waits)
    assert double.gpus[gpu.uuid] == gpu


def test_who_holds_an_instance_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = build_gpu()
    double = MigDouble({gpu.uuid: gpu})
    claim = plan_cut(gpu, "3g", may_switch=False)
    made = cut(double, claim, no_wait)
    double.busy = {(gpu.uuid, (made.instances or ())[0].id, 0)}
    looks = []

    def look(gpu: MigGpu | None) -> str:
        looks.append(gpu)
        return describe_holders(gpu)

    monkeypatch.setattr("slurm_colloc.host.mig.cut_gpu.describe_holders", look)
    report = restore(double, claim, ends_at=FAR, wait=no_wait)
    assert "is in use: process 4000" in report.unsafe[0]
    assert len(looks) == 1


@pytest.mark.parametrize(("model", "is_told"), [("H100-80", True), ("A100-80", False)])
def test_a_mode_that_a_reboot_has_turned_off_is_told_as_such(model: str, *, is_told: bool) -> None:
    with pytest.raises(NodeError, match="takes only GPUs where it is on") as refused:
        plan_cut(build_gpu(model=model, is_on=False), "3g", may_switch=False)
    assert ("from Hopper on a reboot turns it off" in str(refused.value)) == is_told


@pytest.mark.parametrize("place", [0, 1])
def test_what_another_makes_in_a_planned_place_during_the_cut_is_left(place: int) -> None:
    gpu = build_gpu()
    double = MigDouble({gpu.uuid: gpu})
    claim = plan_cut(gpu, "3g+3g", may_switch=False)
    planned = claim.planned[place]
    calls: list[str] = []

    def come_first(name: str) -> None:
        calls.append(name)
        if name == "create" and calls.count("create") == place + 1:
            double.before = lambda _name: None
            number = double.create(gpu.uuid, planned.profile_id, planned.placement)
            double.create_compute(gpu.uuid, number, 3)

    double.before = come_first
    with pytest.raises(CutFailed, match="has no room") as failed:
        cut(double, claim, no_wait)
    kept = failed.value.claim
    assert kept.planned == claim.planned[:place]
    report = restore(double, kept, ends_at=FAR, wait=no_wait)
    assert report.unsafe == []
    (left,) = double.gpus[gpu.uuid].instances or ()
    assert left.placement == planned.placement
    assert any("is not the job's: it was left so" in note for note in report.notes)


def test_another_instance_in_the_place_of_the_jobs_is_left() -> None:
    gpu = build_gpu()
    double = MigDouble({gpu.uuid: gpu})
    claim = plan_cut(gpu, "3g", may_switch=False)
    claim = claim.identify(cut(double, claim, no_wait))
    (instance,) = double.gpus[gpu.uuid].instances or ()
    double.destroy_compute(gpu.uuid, instance.id, 0)
    double.create_compute(gpu.uuid, instance.id, 3)
    stands = double.gpus[gpu.uuid]
    report = restore(double, claim, ends_at=FAR, wait=no_wait)
    assert "stands where the job's was, and is not the job's" in report.unsafe[0]
    assert double.gpus[gpu.uuid] == stands
    # One whose compute instances have gone is known by its id: an epilog was killed over it.
    double.destroy_compute(gpu.uuid, instance.id, 0)
    assert restore(double, claim, ends_at=FAR, wait=no_wait).unsafe == []
    assert double.gpus[gpu.uuid] == gpu


def test_what_is_not_the_jobs_is_never_touched() -> None:
    gpu = build_gpu(is_on=False)
    double = MigDouble({gpu.uuid: gpu})
    claim = plan_cut(gpu, "3g", may_switch=True)
    cut(double, claim, no_wait)
    strange = GpuInstance(13, 19, Placement(0, 1))
    state = double.gpus[gpu.uuid]
    double.gpus[gpu.uuid] = replace(state, instances=(*(state.instances or ()), strange))
    report = restore(double, claim, ends_at=FAR, wait=no_wait)
    assert double.gpus[gpu.uuid].instances == (strange,)
    assert "instance 13 (1g.10gb at 0), which is not the job's" in report.notes[0]
    # MIG was turned on for the job, and cannot be turned off with it.
    assert report.unsafe == [
        f"MIG stays on on {gpu.uuid}, because it has instance 13 (1g.10gb at 0)"
    ]


GPU = build_gpu()


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (replace(GPU, is_on=None, is_pending_on=None, profiles=()), "cannot be divided by MIG"),
        (replace(GPU, is_virtual=True), "is a virtual GPU"),
        (replace(GPU, is_pending_on=False), "waits for a reset"),
        (replace(GPU, instances=None, problem="Unknown Error"), "MIG: Unknown Error"),
        (replace(GPU, processes=None), "no reason given"),
        (build_gpu(model="A100-80", is_on=False), "before Hopper it takes a reset"),
        (
            replace(GPU, instances=(GpuInstance(3, 9, Placement(4, 4)),)),
            "is divided already, and not for this job: instance 3 (3g.40gb at 4)",
        ),
    ],
)
def test_a_gpu_that_is_not_to_be_had_is_refused_with_the_reason(gpu: MigGpu, reason: str) -> None:
    with pytest.raises(NodeError) as refused:
        plan_cut(gpu, "3g+2g", may_switch=True)
    assert reason in refused.value.message


@pytest.mark.parametrize(
    ("layout", "allowed", "reason"),
    [
        ("4g+4g", (), "the MIG layout 4g+4g does not fit"),
        ("9g", (), "the word '9g', which is none"),
        ("3g.39gb", (), "this GPU has no MIG profile 3g.39gb"),
        ("+".join(["1g"] * 300), (), "has 300 words"),
        ("3g+1g", ("3g.40gb",), "does not allow the MIG profile 1g.10gb"),
    ],
)
def test_a_layout_that_is_not_to_be_had_is_refused_with_the_reason(
    layout: str, allowed: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(NodeError) as refused:
        plan_cut(GPU, layout, may_switch=True, allowed=allowed)
    assert reason in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_mode_that_does_not_take_is_said() -> None:
    gpu = build_gpu(is_on=False)
    double = MigDouble({gpu.uuid: gpu}, busy={(gpu.uuid, 0, 0)})
    claim = plan_cut(gpu, "7g", may_switch=True)
    with pytest.raises(NodeError, match=r"could not be turned on on GPU-.*: process 4000"):
        cut(double, claim, no_wait)
    assert "MIG is off on" in _refuse(gpu)


def _refuse(gpu: MigGpu) -> str:
    with pytest.raises(NodeError) as refused:
        plan_cut(gpu, "7g", may_switch=False)
    return refused.value.message


def test_an_instance_that_another_has_made_in_the_meantime_is_not_taken() -> None:
    gpu = build_gpu()
    double = MigDouble({gpu.uuid: gpu})
    claim = plan_cut(gpu, "3g", may_switch=False)
    (planned,) = claim.planned
    double.create(gpu.uuid, planned.profile_id, planned.placement)
    with pytest.raises(NodeError, match="has no room"):
        cut(double, claim, no_wait)
    ((instance),) = double.gpus[gpu.uuid].instances or ()
    assert instance.compute == ()


def test_layouts_of_the_table_are_words() -> None:
    from slurm_colloc.model.mig_layout import parse_layout

    for layouts in LAYOUTS.values():
        for layout in layouts:
            assert render_layout(parse_layout(layout)) == layout
