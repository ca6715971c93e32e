"""setup.json: how the node was prepared, and how a member was put on the GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import MemberState
from slurm_colloc.store.member_states import (
    GpuUse,
    Retries,
    StateRecord,
    read_state,
    write_state,
)
from slurm_colloc.store.pack_directory import Setup, read_setup, write_setup

SETUP = Setup(
    attempt=2,
    asked="auto",
    mode="mps",
    reason="the node has MPS, and its GPU takes it",
    node="n1",
    by="runner",
    gpus=("GPU-5a41ce45-e82a-a159-ec6f-fe593e0e1c21",),
    gpu_memory_mb=143771,
    gpu_name="NVIDIA H200",
    client_cap=48,
    control_ms=19.5,
    active_ms=280.0,
    stop_ms=105.0,
    restarts=1,
    notes=("not used: /tmp: no room",),
)
UNKNOWN = Setup(1, "mps!", "", "NVML gave no answer within 20 s", "n1")


@pytest.mark.parametrize("setup", [SETUP, UNKNOWN])
def test_what_was_written_is_read_back(tmp_path: Path, setup: Setup) -> None:
    assert read_setup(tmp_path) is None
    write_setup(tmp_path, setup)
    assert read_setup(tmp_path) == setup
    assert (tmp_path / "setup.json").stat().st_mode & 0o777 == 0o600
    write_setup(tmp_path, dataclasses.replace(setup, attempt=3))
    assert read_setup(tmp_path) == dataclasses.replace(setup, attempt=3)


def test_what_is_not_known_is_null_and_never_0(tmp_path: Path) -> None:
    write_setup(tmp_path, UNKNOWN)
    value = json.loads((tmp_path / "setup.json").read_text())
    for name in ("gpu_memory_mb", "gpu_name", "client_cap", "control_ms", "active_ms", "stop_ms"):
        assert value[name] is None


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": 1}', '{"schema": 1, "gpus": 7, "notes": []}']
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "setup.json").write_text(text)
    with pytest.raises(StateError, match=r"setup\.json"):
        read_setup(tmp_path)


def test_a_field_of_a_newer_version_does_no_harm(tmp_path: Path) -> None:
    write_setup(tmp_path, SETUP)
    path = tmp_path / "setup.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mig_layout": "3g+2g"}))
    assert read_setup(tmp_path) == SETUP


@given(
    use=st.none()
    | st.builds(
        GpuUse,
        st.sampled_from(["mps", "timeslice", "exclusive"]),
        st.none() | st.integers(1, 100),
        st.none() | st.integers(600, 10**6),
        st.none() | st.booleans(),
        st.lists(st.text(max_size=5), max_size=2).map(tuple),
    ),
    retries=st.builds(
        Retries,
        faults=st.integers(0, 2),
        out_of_gpu_memory=st.integers(0, 9),
        apart=st.booleans(),
        alone=st.booleans(),
        gpu_memory_mb=st.integers(0, 10**6),
        suspected=st.booleans(),
        failures=st.integers(0, 9),
    ),
    evidence=st.lists(st.text(max_size=20), max_size=3).map(tuple),
)
def test_what_a_member_was_given_and_what_its_restarts_have_taught_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    use: GpuUse | None,
    retries: Retries,
    evidence: tuple[str, ...],
) -> None:
    pack = tmp_path_factory.mktemp("pack")
    (pack / "members" / "0001").mkdir(parents=True)
    record = StateRecord(
        MemberState.PENDING, 1, gpu=use, retries=retries, evidence=evidence, cause="MPS daemon gone"
    )
    write_state(pack, 1, record)
    assert read_state(pack, 1, 1) == record


def test_a_state_of_before_there_was_mps_is_read(tmp_path: Path) -> None:
    (tmp_path / "members" / "0001").mkdir(parents=True)
    record = StateRecord(MemberState.RUNNING, 1, starts=1)
    write_state(tmp_path, 1, record)
    path = tmp_path / "members" / "0001" / "state.1.json"
    value = json.loads(path.read_text())
    for name in ("gpu", "cause", "evidence", "retries"):
        del value[name]
    path.write_text(json.dumps(value))
    assert read_state(tmp_path, 1, 1) == record
