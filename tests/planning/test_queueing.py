"""What the queue says of a plan."""

from __future__ import annotations

import pytest

from slurm_colloc.model.plan import (
    MemberPlan,
    PackPlan,
    PackRequest,
    PastJob,
    Plan,
    SharingMode,
    WaitTable,
    build_wait_table,
)
from slurm_colloc.planning.pack_pricing import choose_by_queue, foresee

WAITS = build_wait_table(
    [PastJob(1, 3600, 60.0)] * 20 + [PastJob(1, 86400, 7200.0)] * 20,
)


def plan(*packs: tuple[int, float | None, int]) -> Plan:
    """Packs as members, seconds until they end and time limit in seconds."""
    return Plan(
        tuple(
            PackPlan(
                members=tuple(MemberPlan(i, 1, None, limit_s) for i in range(members)),
                degree=members,
                mode=SharingMode.MPS,
                request=PackRequest(1, None, 1, None, limit_s) if members > 1 else None,
                group=(),
                predicted_slowdown=None,
                reasons=(),
                predicted_finish_s=finish_s,
            )
            for members, finish_s, limit_s in packs
        ),
        None,
        (),
    )


ONE = plan((8, 6000.0, 80_000))
TWO = plan((4, 3100.0, 3600), (4, 3100.0, 3600))


def test_a_shorter_limit_is_worth_a_little_gpu_time() -> None:
    chosen, reason = choose_by_queue((ONE, TWO), WAITS)
    assert chosen is TWO
    assert "2 packs instead of 1" in reason
    assert "53 min on average instead of 220 min (of which they wait 1 and 120 min)" in reason


def test_more_gpu_time_than_that_is_not_spent() -> None:
    dear = plan((4, 3400.0, 3600), (4, 3400.0, 3600))
    assert choose_by_queue((ONE, dear), WAITS) == (ONE, "")


def test_the_first_stays_where_the_queue_tells_nothing_or_no_better() -> None:
    assert choose_by_queue((ONE, TWO), WaitTable(0, {}, "none")) == (ONE, "")
    assert choose_by_queue((plan((8, None, 80_000)), TWO), WAITS)[1] == ""
    assert choose_by_queue((TWO, ONE), WAITS) == (TWO, "")
    assert choose_by_queue((ONE, plan((8, None, 3600))), WAITS) == (ONE, "")


def test_waits_count_for_every_job() -> None:
    found = foresee(plan((3, 1000.0, 3600), (1, 500.0, 86400)), WAITS)
    assert found is not None
    assert found.gpu_s == 1500
    assert found.mean_finish_s == pytest.approx((3 * 1060 + 7700) / 4)
