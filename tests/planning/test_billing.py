"""What Slurm charges for a request: the examples of slurm.conf(5), and what cannot be read."""

from __future__ import annotations

import pytest

from slurm_colloc.model.plan import PackRequest
from slurm_colloc.planning.billing import compute_billing, read_billing_rule

ACCOUNTED = {"AccountingStorageType": "accounting_storage/slurmdbd"}
WEIGHTS = "CPU=1.0,Mem=0.25G,GRES/gpu=2.0"


def ask(cpus: int = 1, memory_mb: int | None = 8192, gpu_type: str | None = None) -> PackRequest:
    """A request for one GPU."""
    return PackRequest(1, gpu_type, cpus, memory_mb, None)


def charge(weights: str, request: PackRequest, flags: str = "") -> float:
    """What it costs."""
    config = {**ACCOUNTED, "PriorityFlags": flags}
    return compute_billing(read_billing_rule({"TRESBillingWeights": weights}, config), request)


@pytest.mark.parametrize(
    ("weights", "flags", "charged"),
    [
        (WEIGHTS, "", 1.0 + 2.0 + 2.0),
        (WEIGHTS, "ACCRUE_ALWAYS,MAX_TRES", 2.0),
        (WEIGHTS, "MAX_TRES_GRES", 2.0 + 2.0),
        ("mem=.25", "", 2048.0),
        ("Mem=.25M", "", 2048.0),
        ("mem=0.25g".replace("g", "T"), "", 0.25 / 128),
        ("cpu=1e1,mem=-0.5G", "", 6.0),
        ("CPU=1K", "", 1 / 1024),
        ("GRES/gpu:h100=3,GRES/gpu:a100=1", "", 3.0),
        ("License/ansys=5,Node=7", "", 0.0),
    ],
)
def test_weights_are_read_as_slurm_does(weights: str, flags: str, charged: float) -> None:
    assert charge(weights, ask(gpu_type="h100"), flags) == pytest.approx(charged)


def test_a_gpu_that_comes_with_its_share_costs_no_more_where_the_largest_counts() -> None:
    alone, whole = ask(4, 16 << 10), ask(16, 64 << 10)
    assert charge("CPU=1,Mem=0.25G,GRES/gpu=16", alone, "MAX_TRES") == 16
    assert charge("CPU=1,Mem=0.25G,GRES/gpu=16", whole, "MAX_TRES") == 16
    assert charge("CPU=1,Mem=0.25G,GRES/gpu=16", whole) > charge(
        "CPU=1,Mem=0.25G,GRES/gpu=16", alone
    )


def test_without_weights_cpus_are_charged_where_jobs_are_accounted_for() -> None:
    assert compute_billing(read_billing_rule({}, ACCOUNTED), ask(cpus=3)) == 3
    for storage in ("accounting_storage/none", "(null)"):
        rule = read_billing_rule({}, {"AccountingStorageType": storage})
        assert compute_billing(rule, ask(cpus=3)) == 0


def test_host_memory_that_a_job_does_not_state_counts_nothing() -> None:
    assert charge("Mem=1G", ask(memory_mb=None)) == 0


@pytest.mark.parametrize("weights", ["CPU", "CPU=", "CPU=much", "CPU=1X", "CPU=nan", "CPU=1,=,"])
def test_weights_that_cannot_be_read_are_named(weights: str) -> None:
    with pytest.raises(ValueError, match="TRESBillingWeights has"):
        read_billing_rule({"TRESBillingWeights": weights}, ACCOUNTED)


def test_a_configuration_that_tells_nothing_is_not_taken_for_one_that_charges_nothing() -> None:
    with pytest.raises(ValueError, match="AccountingStorageType"):
        read_billing_rule({}, {})
