"""What the simulated driver does not have: fields, odd numbers, older bindings."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from slurm_colloc.monitor.gpu_reading import (
    Capabilities,
    FieldReader,
    GpmReader,
    classify_error,
    convert,
)

INVALID, UNSUPPORTED, UNSIGNED, LONG_LONG = 2, 3, 1, 3


def make_binding(answers: dict[int, tuple[int, int, int]]) -> tuple[Any, list[list[Any]]]:
    """A binding that has fields, with the real structures; answers: return code, type, value."""
    asked: list[list[Any]] = []

    def get(_: Any, fields: list[Any]) -> Any:
        asked.append(list(fields))
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for place, one in enumerate(fields):
            number = one[0] if isinstance(one, tuple) else one
            code, kind, value = answers.get(number, (UNSUPPORTED, 0, 0))
            values[place].nvmlReturn, values[place].valueType = code, kind
            if kind == UNSIGNED:
                values[place].value.uiVal = value
            else:
                values[place].value.ullVal = value
        return values

    return SimpleNamespace(nvmlDeviceGetFieldValues=get), asked


def test_time_of_throttling_is_in_seconds_and_heat_is_summed() -> None:
    answers = {
        74: (0, LONG_LONG, 2_500_000_000),
        269: (0, LONG_LONG, 1_000_000_000),
        270: (0, LONG_LONG, 500_000_000),
    }
    binding, asked = make_binding(answers)
    reader = FieldReader(binding, None, with_traffic=False)
    assert reader.read() == {
        "throttle_power_s": (2.5, "field:74", 0),
        "throttle_thermal_s": (1.5, "field:269+field:270", 0),
        "throttle_brake_s": (None, "field:271", UNSUPPORTED),
    }
    reader.read()
    # What is not supported is not asked for again.
    assert [len(one) for one in asked] == [4, 3]


def test_traffic_is_what_counters_grew_by(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    answers = {197: (0, LONG_LONG, 5 << 20), 138: (0, UNSIGNED, 1024)}
    binding, asked = make_binding(answers)
    reader = FieldReader(binding, None, with_traffic=True)
    assert reader.read()["pcie_tx_mib_s"][0] is None
    assert (138, 0xFFFFFFFF) in asked[0]
    now[0] += 2
    answers.update({197: (0, LONG_LONG, 25 << 20), 138: (0, UNSIGNED, 1024 * 9)})
    found = reader.read()
    assert found["pcie_tx_mib_s"][0] == 10
    assert found["nvlink_tx_mib_s"][0] == 4
    # A counter that wrapped has no rate.
    now[0] += 2
    answers[197] = (0, LONG_LONG, 3)
    assert reader.read()["pcie_tx_mib_s"][0] is None


@pytest.mark.parametrize(
    ("value", "factor", "expected"),
    [
        (40.0, 0.01, 0.4),
        (100.4, 0.01, 1.0),
        (140.0, 0.01, None),
        (math.nan, 0.01, None),
        (-1.0, 1.0, None),
        (2000.0, 1.0, 2000.0),
    ],
)
def test_what_gpm_says_is_a_share_or_nothing(
    value: float, factor: float, expected: float | None
) -> None:
    assert convert(value, factor) == expected


def test_an_older_binding_knows_fewer_metrics() -> None:
    asked = []

    def get(request: Any) -> None:
        asked.append([request.metrics[i].metricId for i in range(request.numMetrics)])

    binding: Any = SimpleNamespace(
        NVML_GPM_METRIC_MAX=21,
        NVML_GPM_METRICS_GET_VERSION=1,
        NVMLError=pynvml.NVMLError,
        c_nvmlGpmMetricsGet_t=pynvml.c_nvmlGpmMetricsGet_t,
        nvmlGpmSampleAlloc=pynvml.c_nvmlGpmSample_t,
        nvmlGpmSampleGet=lambda *_: None,
        nvmlGpmMetricsGet=get,
        nvmlGpmSampleFree=lambda _: None,
    )
    reader = GpmReader(binding, None)
    assert reader.read() == {}
    # Too soon for a second sample.
    assert reader.read() == {}
    reader._taken_at = (reader._taken_at or 0.0) - 1.0
    assert "sm_active" in reader.read()
    assert asked == [[1, 2, 3, 5, 10, 20]]


def test_what_once_worked_stays_so() -> None:
    known = Capabilities()
    known.note("power_w", "nvmlDeviceGetPowerUsage", classify_error(4), "Insufficient Permissions")
    assert known.as_dict()["power_w"]["state"] == "no_permission"
    known.note("power_w", "nvmlDeviceGetPowerUsage", "ok")
    known.note("power_w", "nvmlDeviceGetPowerUsage", classify_error(999), "Unknown Error")
    expected = {"source": "nvmlDeviceGetPowerUsage", "state": "ok", "detail": ""}
    assert known.as_dict()["power_w"] == expected
    assert classify_error(3) == classify_error(13) == "unsupported"
