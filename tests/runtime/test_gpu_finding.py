"""Which GPUs a pack has, whether MPS can be used there, and who goes without."""

from __future__ import annotations

import dataclasses
import select
import threading
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mps.mps_control import MpsPrograms
from slurm_colloc.host.nvml.nvml_query import Gpu, GpuProcess, NvmlAnswer
from slurm_colloc.runtime.discover_gpus import (
    BackgroundCall,
    find_gpus,
    judge_finding,
    list_outside,
)

UUIDS = tuple(f"GPU-{n}a41ce45-e82a-a159-ec6f-fe593e0e1c21" for n in range(2))
PROGRAMS = MpsPrograms("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server")
GPUS = tuple(
    Gpu(
        number,
        uuid,
        "NVIDIA H200",
        minor_number=number,
        gpu_memory_total_mb=143771,
        compute_mode="DEFAULT",
        compute_capability=(9, 0),
        mig_enabled=False,
    )
    for number, uuid in enumerate(UUIDS)
)
ANSWER = NvmlAnswer(driver_version="580.159.04", cuda_version="13.0", gpus=GPUS)
ENVIRON = {"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}


def change(**changes: object) -> NvmlAnswer:
    """The answer with the pack's GPU changed."""
    second = dataclasses.replace(GPUS[1], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(ANSWER, gpus=(GPUS[0], second))


def test_the_pack_s_gpu_is_found_with_what_it_takes() -> None:
    finding = judge_finding(PROGRAMS, ANSWER, ENVIRON)
    assert (finding.uuids, finding.gpu, finding.problem) == ((UUIDS[1],), GPUS[1], "")
    assert (finding.client_cap, finding.notes) == (48, ())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            NvmlAnswer(problem="NVML gave no answer within 20 s"),
            "the pack's GPU is not known: NVML gave no answer within 20 s",
        ),
        (
            change(mig_enabled=True),
            f"{UUIDS[1]} has MIG on, where programs find nothing but instances",
        ),
        (change(compute_mode="PROHIBITED"), f"{UUIDS[1]} is in compute mode PROHIBITED"),
        (
            change(compute_capability=(3, 0)),
            f"{UUIDS[1]} has compute capability 3.0, MPS needs 3.5 or more",
        ),
        (change(minor_number=7), "the pack's GPU is not known: NVML shows 2 GPUs, the job has 1"),
        (
            change(doubt="GPU 1 (nvml_index) has a gpu_memory of 0 MiB"),
            "the pack's GPU is not known: NVML cannot be believed: GPU 1",
        ),
    ],
)
def test_why_mps_cannot_be_used(answer: NvmlAnswer, problem: str) -> None:
    finding = judge_finding(PROGRAMS, answer, ENVIRON)
    assert finding.problem.startswith(problem)


def test_an_old_gpu_takes_fewer_clients_and_that_is_told() -> None:
    finding = judge_finding(PROGRAMS, change(compute_capability=(6, 0)), ENVIRON)
    assert (finding.problem, finding.client_cap) == ("", 16)
    assert "is older than Volta" in finding.notes[0]


def test_without_the_programs_nvml_is_not_even_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> MpsPrograms:
        raise NodeError(f"there is no nvidia-cuda-mps-control in {path}")

    monkeypatch.setattr("slurm_colloc.runtime.discover_gpus.find_programs", refuse)
    monkeypatch.setattr("slurm_colloc.runtime.discover_gpus.probe_gpus", None)
    finding = find_gpus({"PATH": str(tmp_path)}, 1.0)
    assert finding.problem == f"there is no nvidia-cuda-mps-control in {tmp_path}"
    assert finding.uuids == ()


SERVER, CLIENT, OUTSIDER = (GpuProcess(n, 66, t) for n, t in ((9, "C"), (11, "M+C"), (21, "C")))


@pytest.mark.parametrize(
    ("processes", "mps_processes", "pids"),
    [
        ((SERVER, CLIENT, OUTSIDER), (CLIENT,), (9, 21)),
        ((CLIENT,), (CLIENT,), ()),
        # NVML does not say who is a client: then nobody goes without.
        ((SERVER, OUTSIDER), None, ()),
        (None, (), ()),
    ],
)
def test_who_uses_the_gpu_without_being_a_client(
    processes: tuple[GpuProcess, ...] | None,
    mps_processes: tuple[GpuProcess, ...] | None,
    pids: tuple[int, ...],
) -> None:
    answer = change(processes=processes, mps_processes=mps_processes)
    assert list_outside(answer, (UUIDS[1],)) == pids
    assert list_outside(answer, (UUIDS[0],)) == ()
    assert list_outside(NvmlAnswer(problem="no"), UUIDS) == ()


def test_an_errand_wakes_whoever_waits_for_it() -> None:
    go = threading.Event()
    call = BackgroundCall(lambda: "done" if go.wait(60) else "never", str)
    assert call.poll() is None
    assert select.select([call], [], [], 0)[0] == []
    go.set()
    assert select.select([call], [], [], 60)[0] == [call]
    assert call.poll() == "done"
    call.close()


@pytest.mark.parametrize("problem", [NodeError("it is broken"), PermissionError(13, "no")])
def test_an_errand_that_fails_gives_the_answer_for_that(problem: Exception) -> None:
    def fail() -> str:
        raise problem

    call = BackgroundCall(fail, lambda error: f"because {error}")
    assert select.select([call], [], [], 60)[0] == [call]
    assert call.poll() == f"because {problem}"
    call.close()


@pytest.mark.parametrize(
    "error", [RuntimeError("no such thing"), KeyError("uuid"), OSError(5, "Input/output error")]
)
def test_a_look_that_fails_in_any_way_is_an_answer(error: Exception) -> None:
    def fail() -> str:
        raise error

    call = BackgroundCall(fail, lambda problem: f"it failed: {problem!r}")
    assert select.select([call.fileno()], [], [], 60)[0]
    assert call.poll() == f"it failed: {error!r}"
    call.close()


def test_a_look_for_which_there_is_no_thread_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    call = BackgroundCall(lambda: "never", str)
    assert call.poll() == "can't start new thread"
    assert select.select([call.fileno()], [], [], 60)[0]
    call.close()
