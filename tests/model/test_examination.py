"""What a node writes is read as it was, by other versions too."""

from __future__ import annotations

import dataclasses
import json

import pytest

from slurm_colloc.model.examination import (
    Examination,
    GpuLook,
    HooksLook,
    MpsTrial,
    NvmlLook,
    StepTrial,
    TmpdirLook,
)
from slurm_colloc.model.records import build_record

FULL = Examination(
    "n1",
    "0.1.0",
    "3.11.2",
    ("0", "1"),
    StepTrial("no", None),
    TmpdirLook("/tmp", "", 5),
    NvmlLook("", "580", None, 2, (GpuLook("GPU-1"), GpuLook(None, processes=3)), ("doubt",)),
    MpsTrial("", "/usr/bin/x", "prolog", 1.5, None, ("left",), ("note",)),
    HooksLook(is_installed=True, is_prepared=True, problem="p"),
)


@pytest.mark.parametrize("seen", [FULL, Examination("n", "v", "p")])
def test_it_is_read_as_it_was_written(seen: Examination) -> None:
    value = json.loads(json.dumps({"schema": 1, **dataclasses.asdict(seen)}))
    assert build_record(Examination, value) == seen


def test_fields_of_a_newer_version_are_left_out() -> None:
    value = json.loads(json.dumps({**dataclasses.asdict(FULL), "moon": 1}))
    value["mps"]["sun"] = 2
    value["nvml"]["gpus"][0]["star"] = 3
    assert build_record(Examination, value) == FULL


@pytest.mark.parametrize("value", [{}, {"node": "n"}, {"nvml": {}}])
def test_something_else_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="missing"):
        build_record(Examination, value)
