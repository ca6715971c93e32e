"""The site's packs as Prometheus metrics; pure. site-config/grafana-dashboard.json shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from slurm_colloc.administration.fleet.fleet_sums import FleetRow, GpuPace
from slurm_colloc.administration.hook_metrics import MetricFamily

_PREFIX = "slurm_colloc_fleet"
_Read = Callable[[FleetRow], float | None]


def build_fleet_families(
    rows: Sequence[FleetRow], paces: Sequence[GpuPace], refused: Mapping[str, int], now: float
) -> list[MetricFamily]:
    """All metrics.

    Args:
        rows: Sums by account and partition, over all days that are kept.
        paces: GPUs.
        refused: Reports that were refused, by the reason.
        now: When they were collected, in seconds since the epoch.
    """
    families = []

    def add(name: str, description: str, kind: Literal["counter", "gauge"] = "counter") -> None:
        families.append(MetricFamily(f"{_PREFIX}_{name}", kind, description))

    sums: dict[str, tuple[str, _Read]] = {
        "packs_total": ("Packs that have ended.", lambda row: row.packs),
        "members_total": ("Members that have run.", lambda row: row.members),
        "failed_members_total": ("Members that have failed.", lambda row: row.failed),
        "gpu_seconds_total": ("GPU time that packs held.", lambda row: row.gpu_s),
        "gpu_seconds_wasted_total": ("GPU time of failed members.", lambda row: row.wasted_s),
        "energy_joules_total": ("Energy of the GPUs.", lambda row: row.energy_j),
    }
    for name, (description, read) in sums.items():
        add(name, description)
        _fill(families[-1], rows, read)
    # Sharing may cost time: these can fall.
    gauges: dict[str, tuple[str, _Read]] = {
        "gpu_seconds_saved": ("GPU time that sharing saved so far.", lambda row: row.saved_s),
        "energy_saved_kwh": ("Energy that sharing saved so far.", lambda row: row.saved_kwh),
        "mean_slowdown": ("Mean slowdown of members.", lambda row: row.slowdown),
        "mean_slowdown_members": (
            "Members whose slowdown is known, of which the mean is.",
            lambda row: row.slowdowns_of,
        ),
        "sm_active_ratio": ("Mean activity of SMs.", lambda row: row.sm_active),
    }
    for name, (description, read) in gauges.items():
        add(name, description, "gauge")
        _fill(families[-1], rows, read)
    add("gpu_normalised_rate", "Pace of a GPU against others of its model.", "gauge")
    for pace in paces:
        families[-1].add(pace.rate, gpu=pace.uuid, node=pace.node, model=pace.model)
    add("gpu_slow", "1 for a GPU that several users' jobs find slow.", "gauge")
    for pace in paces:
        families[-1].add(int(pace.is_slow), gpu=pace.uuid, node=pace.node, model=pace.model)
    add("refused_reports_total", "Reports that were refused.")
    for reason, count in sorted(refused.items()):
        families[-1].add(count, reason=reason)
    add("collected_timestamp_seconds", "When reports were collected last.", "gauge")
    families[-1].add(now)
    return [family for family in families if family.samples]


def _fill(family: MetricFamily, rows: Sequence[FleetRow], read: _Read) -> None:
    for row in rows:
        value = read(row)
        if value is not None:
            family.add(value, account=row.account, partition=row.partition)
