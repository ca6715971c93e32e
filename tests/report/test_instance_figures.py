"""What a member made of its MIG instance: exact, and not what it would be alone on the GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from slurm_colloc.metrics.presence import Attribution
from slurm_colloc.report.member_figures import attribute_instance_sm, build_instance
from slurm_colloc.report.pack_run import MemberRun, PackRun
from slurm_colloc.report.pack_samples import GpuSamples
from slurm_colloc.report.solo_rates import was_limited
from slurm_colloc.store.member_states import GpuUse

UUID = "MIG-00000000-0000-0000-0000-000000000001"
ON_INSTANCE = GpuUse(
    "mig", None, 9984, uuids=(UUID,), instance="1g.10gb", instance_sms=16, gpu_sms=132
)


def build_run(use: GpuUse, sm: list[float | None]) -> tuple[PackRun, MemberRun]:
    """A member that was there for as many seconds as there are readings of its instance."""
    count = len(sm)
    table = pa.table(
        {
            "at": [float(second) for second in range(count)],
            "sm_active": pa.array(sm, pa.float64()),
            "dram_active": pa.array([0.25] * count, pa.float64()),
            "gpu_memory_mb": pa.array([600.0, *[1500.0] * (count - 1)], pa.float64()),
        }
    )
    stay = SimpleNamespace(begin=0.0, end=float(count - 1))
    plan = SimpleNamespace(instance="1g")
    view = SimpleNamespace(record=SimpleNamespace(gpu=use), spec=SimpleNamespace(plan=plan))
    member = SimpleNamespace(view=view, present=[stay], starts=[None])
    run = SimpleNamespace(samples=SimpleNamespace(gpus={UUID: GpuSamples(table)}))
    return cast(PackRun, cast(Any, run)), cast(MemberRun, cast(Any, member))


def test_its_part_of_the_gpu_is_that_of_its_instance() -> None:
    run, member = build_run(ON_INSTANCE, [0.5] * 20)
    part = attribute_instance_sm(run, member)
    assert part is not None
    assert part.value == pytest.approx(0.5 * 16 / 132)
    assert part.attribution is Attribution.EXACT
    found = build_instance(run, member)
    assert found is not None
    assert (found["profile"], found["gpu_memory_peak_mb"]) == ("1g.10gb", 1500.0)
    assert found["dram_active"] == pytest.approx(0.25)


def test_what_gpm_does_not_tell_is_unknown() -> None:
    run, member = build_run(ON_INSTANCE, [None] * 20)
    assert attribute_instance_sm(run, member) is None
    found = build_instance(run, member)
    assert found is not None
    assert found["sm_active"] is None


def test_alone_on_an_instance_is_not_alone_on_the_gpu() -> None:
    _, member = build_run(ON_INSTANCE, [0.5] * 3)
    assert was_limited(member)
    run, whole = build_run(GpuUse("exclusive", uuids=("GPU-1",)), [0.5] * 3)
    assert not was_limited(whole)
    assert build_instance(run, whole) is None
