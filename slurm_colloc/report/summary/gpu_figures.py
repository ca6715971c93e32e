"""Each GPU of a pack in summary.json: what it is, what it did, who was on it; docs/report.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_colloc.metrics.attribution import attribute_whole
from slurm_colloc.metrics.series import describe_values
from slurm_colloc.report.summary.pack_run import PackRun
from slurm_colloc.report.summary.pack_samples import GpuSamples
from slurm_colloc.store.pack.sample_files import GPU_METRICS

_COUNTERS = ("energy_j", "throttle_power_s", "throttle_thermal_s", "throttle_brake_s")
_BUSY = ("sm_active", "utilization")
"""What tells how busy a GPU was, the best first."""


def build_gpus(run: PackRun) -> list[dict[str, Any]]:
    """The pack's GPUs, in the order in which its members see them."""
    return [_build_gpu(run, uuid) for uuid in run.gpu_uuids]


def _build_gpu(run: PackRun, uuid: str) -> dict[str, Any]:
    samples = run.join_gpus((uuid,))
    models = (run.monitor or {}).get("gpu_models") or {}
    model = models.get(uuid) or {}
    details = run.gpu_details if uuid == run.gpu_uuid else (None, None)
    return {
        "index": model.get("index"),
        "uuid": uuid,
        "model": model.get("name") or details[0],
        "memory_mb": model.get("memory_mb") or details[1],
        "members": [
            one.number for one in run.members if one.stays and uuid in run.find_gpus_of(one)
        ],
        "use": build_gpu_use(run, samples),
        "throttled_s": build_throttled([samples]),
        "energy_j": _measure_energy(run, samples),
    }


def build_gpu_use(run: PackRun, samples: GpuSamples) -> dict[str, Any]:
    """What was measured of some GPUs as of one, from the first start of a member to the last end.

    Args:
        run: The pack.
        samples: Of its GPUs, or of one of them.
    """
    word = attribute_whole([member for member in run.members if member.stays]).value
    found: dict[str, Any] = {}
    for metric in GPU_METRICS:
        track = samples.get(metric)
        if metric in _COUNTERS or track is None or run.window is None:
            continue
        spread = describe_values(track.select([run.window]))
        found[metric] = None if spread is None else {
            "mean": spread.mean,
            "p50": spread.p50,
            "p95": spread.p95,
            "max": spread.max,
            "attribution": word,
        }  # fmt: skip
    return found


def build_throttled(gpus: Sequence[GpuSamples]) -> dict[str, float | None]:
    """For how long the clocks were held down, by reason; of several GPUs the one held longest."""
    found: dict[str, float | None] = {}
    for metric in _COUNTERS[1:]:
        rises = [rise for samples in gpus if (rise := _count_rise(samples, metric)) is not None]
        name = metric.removeprefix("throttle_").removesuffix("_s")
        found[name] = max(rises, default=None)
    return found


def _count_rise(samples: GpuSamples, metric: str) -> float | None:
    track = samples.get(metric)
    values = [value for value in (track.values if track else ()) if value is not None]
    rise = values[-1] - values[0] if values else None
    return None if rise is None or rise < 0 else rise


def _measure_energy(run: PackRun, samples: GpuSamples) -> float | None:
    track = samples.get("energy_j")
    if track is None or run.window is None or not track.at:
        return None
    begin, end = max(run.window[0], track.at[0]), min(run.window[1], track.at[-1])
    return track.compute_increase((begin, end)) if end > begin else None


def build_imbalance(run: PackRun) -> dict[str, Any] | None:
    """How unevenly the GPUs were used; None for one GPU, and where that is unknown of one."""
    if len(run.gpu_uuids) < 2 or run.window is None:
        return None
    for metric in _BUSY:
        means = {}
        for uuid in run.gpu_uuids:
            track = run.join_gpus((uuid,)).get(metric)
            spread = None if track is None else describe_values(track.select([run.window]))
            if spread is not None:
                means[uuid] = spread.mean
        if len(means) == len(run.gpu_uuids):
            least, most = (choose(means, key=means.__getitem__) for choose in (min, max))
            return {
                "metric": metric,
                "least": {"uuid": least, "mean": means[least]},
                "most": {"uuid": most, "mean": means[most]},
            }
    return None
