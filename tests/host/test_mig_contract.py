"""The double in memory and the simulated NVML answer alike, call by call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.host.mig.cut_gpu import read_one, restore
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.plan_cut import MigClaim, MigGpu, MigProblem, PlannedInstance
from slurm_colloc.model.mig_profiles import Placement

from .hook_node import NODE, HookNode
from .mig_double import MigDouble
from .mig_node import switch

pytestmark = pytest.mark.root
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "create_compute", "destroy_compute", "destroy"]),
        st.integers(0, 60),
        st.integers(0, 60),
        st.integers(1, 7),
    ),
    min_size=4,
    max_size=14,
)


@pytest.fixture
def session(bed: HookNode) -> Iterator[MigSession]:
    """NVML's calls for the first of two H200 with MIG on."""
    switch(bed, on=True)
    lock = bed.home / "lock"
    lock.touch()
    gpu = bed.node.read_gpus()[0]
    with MigSession(
        str(lock),
        {gpu.uuid: gpu.minor},
        driver=str(bed.simulation),
        node=NODE,
        ends_at=time.monotonic() + 600,
    ) as found:
        yield found
    switch(bed, on=False)


def describe(gpu: MigGpu) -> list[tuple[int, Placement, list[int]]]:
    """What stands, without ids and UUIDs, which are each driver's own."""
    return sorted(
        (one.profile_id, one.placement, sorted(part.slices for part in one.compute))
        for one in gpu.instances or ()
    )


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_both_answer_every_call_alike(
    session: MigSession, steps: list[tuple[str, int, int, int]]
) -> None:
    (real,) = session.read()
    _clear(session, real)
    double = MigDouble({real.uuid: _empty(real)})
    for step in steps:
        said = [_apply(port, real.uuid, step) for port in (session, double)]
        assert said[0] == said[1], step
        states = [describe(read_one(port, real.uuid)) for port in (session, double)]
        assert states[0] == states[1], step


def _apply(port: MigSession | MigDouble, gpu: str, step: tuple[str, int, int, int]) -> int:
    """Do one step; 0, or NVML's error."""
    name, first, second, slices = step
    state = read_one(port, gpu)
    standing = sorted(state.instances or (), key=lambda one: one.placement)
    chosen = standing[first % len(standing)] if standing else None
    instance = chosen.id if chosen else 77
    try:
        if name == "create":
            profile = state.profiles[first % len(state.profiles)]
            places = [*profile.placements, Placement(1, profile.memory_slices)]
            port.create(gpu, profile.profile_id, places[second % len(places)])
        elif name == "create_compute":
            whole = state.find_profile(chosen.profile_id) if chosen else None
            most = whole.compute_slices if whole else 1
            # Some sizes there are none of, such as five slices.
            sizes = [one for one in (1, 2, 3, 4, 7) if one <= most]
            port.create_compute(gpu, instance, sizes[slices % len(sizes)])
        elif name == "destroy_compute":
            parts = sorted(one.id for one in chosen.compute) if chosen else []
            port.destroy_compute(gpu, instance, parts[second % len(parts)] if parts else 77)
        else:
            port.destroy(gpu, instance)
    except MigProblem as problem:
        return problem.code
    return 0


def _clear(port: MigSession, gpu: MigGpu) -> None:
    planned = tuple(
        PlannedInstance(one.profile_id, one.placement, ()) for one in gpu.instances or ()
    )
    claim = MigClaim(gpu.uuid, 0, False, planned)
    assert restore(port, claim, ends_at=time.monotonic() + 60).unsafe == []


def _empty(gpu: MigGpu) -> MigGpu:
    return replace(gpu, instances=(), processes=())


def test_a_mode_takes_only_where_nothing_stands_and_instances_need_it(
    session: MigSession,
) -> None:
    (real,) = session.read()
    double = MigDouble({real.uuid: _empty(real)})
    for port in (session, double):
        profile = real.find_profile(9)
        assert profile is not None
        number = port.create(real.uuid, 9, profile.placements[1])
        port.set_mode(real.uuid, False)
        assert read_one(port, real.uuid).is_on is True
        port.destroy(real.uuid, number)
        port.set_mode(real.uuid, False)
        now = read_one(port, real.uuid)
        assert (now.is_on, now.is_pending_on, now.instances) == (False, False, ())
        with pytest.raises(MigProblem) as problem:
            port.create(real.uuid, 9, profile.placements[0])
        assert problem.value.code == 3
        port.set_mode(real.uuid, True)


@pytest.mark.long
def test_a_call_that_hangs_is_given_up_and_the_next_session_waits_for_its_lock(
    bed: HookNode, session: MigSession
) -> None:
    (gpu,) = session.read()
    bed.fail_nvml("hang=nvmlDeviceGetMigMode")
    with pytest.raises(MigProblem, match=r"NVML gave no answer to read within 6\.0 s"):
        session.read()
    # The next process may wait longer for its first answer, and has the same cause to tell.
    with pytest.raises(MigProblem, match=r"NVML gave no answer to read within 12\.0 s"):
        session.read()
    bed.fail_nvml()
    assert session.read() == (gpu,)
    session.close()
    with MigSession(
        str(bed.home / "lock"),
        {gpu.uuid: 0},
        driver=str(bed.simulation),
        node=NODE,
        ends_at=time.monotonic() + 60,
    ) as again:
        assert again.read() == (gpu,)


def test_a_second_session_for_a_gpu_waits_until_the_first_has_ended(
    bed: HookNode, session: MigSession
) -> None:
    (gpu,) = session.read()
    lock = Path(bed.home / "lock")
    with (
        MigSession(
            str(lock),
            {gpu.uuid: gpu.minor_number or 0},
            driver=str(bed.simulation),
            node=NODE,
            ends_at=time.monotonic() + 1.0,
        ) as second,
        pytest.raises(MigProblem, match="no answer to read"),
    ):
        second.read()
