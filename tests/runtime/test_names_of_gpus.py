"""How CUDA_VISIBLE_DEVICES names the GPUs of a member under MPS."""

from __future__ import annotations

import pytest

from slurm_colloc.host.mps.mps_control import MpsPrograms
from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer
from slurm_colloc.runtime.discover_gpus import judge_finding
from slurm_colloc.runtime.place_member import name_by_index
from slurm_colloc.store.member_states import GpuUse
from slurm_colloc.store.pack_directory import Setup

A, B = (f"GPU-{letter * 8}-e82a-a159-ec6f-fe593e0e1c21" for letter in "ab")


def name(uuids: tuple[str, ...], of: tuple[str, ...], names: str, *, alone: bool) -> str:
    """What takes the place of UUIDs; empty where they stay."""
    use, setup = GpuUse("mps", uuids=uuids), Setup(1, "auto", "mps", "", "n1", gpus=of)
    return name_by_index(use, setup, names, alone).get("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    ("uuids", "of", "names", "alone", "shown"),
    [
        ((A,), (A,), "auto", True, "0"),
        ((B, A), (A, B), "auto", True, "0,1"),
        # Other GPUs of the node are seen: an index there is another one's.
        ((A,), (A,), "auto", False, ""),
        # Among the pack's own it would be 1, and alone 0.
        ((B,), (A, B), "auto", True, ""),
        ((A,), (A,), "uuid", True, ""),
        ((A,), (A,), "index", False, "0"),
        ((B,), (A, B), "index", False, "1"),
    ],
)
def test_an_index_stands_where_it_can_be_no_other_gpu_s(
    uuids: tuple[str, ...], of: tuple[str, ...], names: str, alone: bool, shown: str
) -> None:
    assert name(uuids, of, names, alone=alone) == shown


@pytest.mark.parametrize(("there", "alone"), [((A,), True), ((A, B), False)])
def test_it_is_nvml_that_tells_which_gpus_a_job_sees(there: tuple[str, ...], alone: bool) -> None:
    gpus = tuple(Gpu(index, uuid=uuid, minor_number=index) for index, uuid in enumerate(there))
    found = judge_finding(
        MpsPrograms("/bin/control", "/bin/server"),
        NvmlAnswer(gpus=gpus),
        {"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"},
    )
    assert found.uuids == (A,)
    assert found.sees_no_others is alone
