"""The contention model: what holds for any members, and copies over PCIe."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.usage_profile import Load
from slurm_colloc.planning.contention import predict_slowdowns

from .coefficients import CALIBRATION
from .subjects import loads

MODES = sorted(CALIBRATION.modes)
FEED = Load(engine=0.3, sm=0.25, dram=0.15, pcie=0.7)
"""It copies for most of its time and computes for the rest."""
unseen_loads = loads().map(lambda load: dataclasses.replace(load, sensitivity=0.0, pressure=0.0))
HOST_BOUND = Load(engine=0.2, sm=0.02, dram=0.0, pcie=0.002)


def predict(mode: str, members: Sequence[Load], limit: float = 1.0) -> list[float]:
    limits = [limit] * len(members)
    return [float(d) for d in predict_slowdowns(members, limits, CALIBRATION.modes[mode])]


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(unseen_loads, min_size=1, max_size=6), st.sampled_from([1.0, 0.5, 0.2]))
def test_nobody_gets_faster_and_the_order_does_not_matter(
    mode: str, members: list[Load], limit: float
) -> None:
    found = predict(mode, members, limit)
    assert all(slowdown >= 1.0 - 1e-9 for slowdown in found)
    assert predict(mode, members[::-1], limit)[::-1] == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copies", [2, 3, 4, 8])
def test_copies_get_no_more_of_pcie_than_there_is(mode: str, copies: int) -> None:
    slowdowns = predict(mode, [FEED] * copies)
    assert sum(FEED.pcie / slowdown for slowdown in slowdowns) <= 1.05
    assert slowdowns[0] > predict(mode, [dataclasses.replace(FEED, pcie=0.0)] * copies)[0]


@pytest.mark.parametrize("mode", MODES)
def test_copies_are_nothing_to_who_makes_none(mode: str) -> None:
    still = dataclasses.replace(FEED, pcie=0.0)
    assert predict(mode, [HOST_BOUND, FEED])[0] <= predict(mode, [HOST_BOUND, still])[0]
    alone = predict("mps", [still, HOST_BOUND])[0]
    assert predict("mps", [FEED, HOST_BOUND])[0] == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(st.lists(unseen_loads, min_size=3, max_size=3), min_size=1, max_size=4))
def test_arrays_of_packs_are_predicted_as_each_alone(mode: str, packs: list[list[Load]]) -> None:
    # As the search builds them: what nobody has is a number.
    names = {field.name for field in dataclasses.fields(Load)} - {"sensitivity", "pressure"}
    columns: list[Any] = [
        SimpleNamespace(
            sensitivity=0.0,
            pressure=0.0,
            **{name: np.array([getattr(pack[place], name) for pack in packs]) for name in names},
        )
        for place in range(3)
    ]
    found = predict_slowdowns(
        columns,
        [np.ones(len(packs))] * 3,
        CALIBRATION.modes[mode],
        weights=[np.ones(len(packs))] * 3,
        maximum=np.maximum,
        larger=np.maximum,
    )
    for number, pack in enumerate(packs):
        assert [float(each[number]) for each in found] == pytest.approx(predict(mode, pack))
