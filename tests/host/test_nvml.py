"""NVML that answers, is absent, hangs or lies; and which of its GPUs are the job's."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.nvml.nvml_query import (
    Gpu,
    GpuProcess,
    NvmlAnswer,
    NvmlQuestion,
    choose_job_gpus,
    find_doubt,
    parse_answer,
    probe_gpus,
    start_question,
)
from slurm_colloc.host.system.node_processes import list_processes, read_environment

UUIDS = tuple(f"GPU-{digit * 8}-1111-2222-3333-444444444444" for digit in "abcd")

# Stands in for nvidia-ml-py, whose names it has; what is not in FACTS is not supported.
BINDINGS = """
import json, os, time
FACTS = json.load(open(os.path.join(os.path.dirname(__file__), "facts.json")))
class NVMLError(Exception): pass
class Record:
    def __init__(self, **fields): self.__dict__.update(fields)
def nvmlInit():
    if FACTS.get("hangs"): time.sleep(600)
    if FACTS.get("absent"): raise NVMLError("NVML Shared Library Not Found")
def nvmlSystemGetDriverVersion(): return b"580.159.04"
def nvmlSystemGetCudaDriverVersion(): return 13010
def nvmlDeviceGetCount(): return len(FACTS["gpus"])
def nvmlDeviceGetHandleByIndex(index):
    if "lost" in FACTS["gpus"][index]: raise NVMLError("GPU is lost")
    return FACTS["gpus"][index]
def read(handle, name):
    if name not in handle: raise NVMLError("Not Supported")
    return handle[name]
def nvmlDeviceGetHandleByUUID(uuid): return next(g for g in FACTS["gpus"] if g["uuid"] == uuid)
def nvmlDeviceSetComputeMode(handle, mode): handle["mode"] = mode
def nvmlDeviceGetUUID(handle): return read(handle, "uuid")
def nvmlDeviceGetName(handle): return read(handle, "name")
def nvmlDeviceGetMinorNumber(handle): return read(handle, "minor")
def nvmlDeviceGetPciInfo(handle): return Record(busId=read(handle, "bus"))
def nvmlDeviceGetMemoryInfo(handle):
    total, used = read(handle, "memory")
    return Record(total=total << 20, used=used << 20)
def nvmlDeviceGetComputeMode(handle): return read(handle, "mode")
def nvmlDeviceGetCudaComputeCapability(handle): return tuple(read(handle, "capability"))
def nvmlDeviceGetMigMode(handle): return read(handle, "mig")
def processes(rows):
    return [Record(pid=p, usedGpuMemory=None if m is None else m << 20) for p, m in rows]
def nvmlDeviceGetComputeRunningProcesses(handle): return processes(read(handle, "processes"))
def nvmlDeviceGetMPSComputeRunningProcesses(handle): return processes(read(handle, "mps"))
"""

WHOLE = {
    "uuid": UUIDS[0],
    "name": "NVIDIA H200",
    "minor": 3,
    "bus": "00000000:00:06.0",
    "memory": [143771, 700],
    "mode": 0,
    "capability": [9, 0],
    "mig": [0, 0],
    "processes": [[10, 66], [11, 570], [12, None]],
    "mps": [[11, 570]],
}


def write_bindings(directory: Path, facts: object) -> tuple[str, ...]:
    (directory / "pynvml.py").write_text(BINDINGS)
    (directory / "facts.json").write_text(json.dumps(facts))
    return (str(directory),)


def test_no_bytecode_of_the_bindings_is_written(tmp_path: Path) -> None:
    assert probe_gpus(60, module_path=write_bindings(tmp_path, {"gpus": []})).problem == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["facts.json", "pynvml.py"]


def test_all_of_a_gpu_is_read(tmp_path: Path) -> None:
    found = probe_gpus(60, module_path=write_bindings(tmp_path, {"gpus": [WHOLE]}))
    assert (found.problem, found.doubts) == ("", ())
    assert (found.driver_version, found.cuda_version) == ("580.159.04", "13.1")
    assert found.gpus == (
        Gpu(
            nvml_index=0,
            uuid=UUIDS[0],
            name="NVIDIA H200",
            minor_number=3,
            pci_bus_id="00000000:00:06.0",
            gpu_memory_total_mb=143771,
            gpu_memory_used_mb=700,
            compute_mode="DEFAULT",
            compute_capability=(9, 0),
            mig_enabled=False,
            processes=(
                GpuProcess(10, 66, "C"),
                GpuProcess(11, 570, "M+C"),
                GpuProcess(12, None, "C"),
            ),
            mps_processes=(GpuProcess(11, 570, "M+C"),),
        ),
    )
    assert found.find(UUIDS[0]) is found.gpus[0]
    assert found.find(UUIDS[1]) is None


def test_what_cannot_be_read_is_none_and_never_zero(tmp_path: Path) -> None:
    facts = {"gpus": [{"uuid": UUIDS[0]}, {"lost": True}]}
    found = probe_gpus(60, module_path=write_bindings(tmp_path, facts))
    assert found.problem == ""
    doubt = "GPU 1 (nvml_index) has no readable UUID"
    assert found.gpus == (Gpu(0, uuid=UUIDS[0]), Gpu(1, doubt=doubt))
    assert found.doubts == (doubt,)


def test_a_node_without_the_driver_says_so(tmp_path: Path) -> None:
    found = probe_gpus(60, module_path=write_bindings(tmp_path, {"absent": True}))
    assert found == NvmlAnswer(problem="NVML cannot be used: NVML Shared Library Not Found")


def test_an_interpreter_without_the_bindings_says_so(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('none')\n")
    found = probe_gpus(60, module_path=(str(tmp_path),))
    assert found.problem == f"nvidia-ml-py is not installed for {sys.executable}"
    assert found.lacks_bindings


def test_a_missing_interpreter_says_so() -> None:
    found = probe_gpus(60, python="/nowhere/python3")
    assert found.problem == "/nowhere/python3 cannot be started: No such file or directory"


def test_bindings_that_break_say_so(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise RuntimeError('broken bindings')\n")
    found = probe_gpus(60, module_path=(str(tmp_path),))
    assert found.problem == "the process that asks NVML failed: RuntimeError: broken bindings"


def test_an_nvml_that_hangs_costs_no_more_than_its_limit(tmp_path: Path) -> None:
    started = time.monotonic()
    mark = {"MARK": str(tmp_path)}
    path = write_bindings(tmp_path, {"hangs": True})
    found = probe_gpus(0.5, module_path=path, environ=mark)
    assert time.monotonic() - started < 60
    assert found.problem == "NVML gave no answer within 0.5 s"
    marks = [read_environment(process.id.pid).get("MARK") for process in list_processes()]
    assert str(tmp_path) not in marks


def test_a_question_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    path = write_bindings(tmp_path, {"hangs": True})
    question = NvmlQuestion(module_path=path, environ={"MARK": str(tmp_path)})
    question.close()
    question.close()
    marks = [read_environment(process.id.pid).get("MARK") for process in list_processes()]
    assert str(tmp_path) not in marks


@pytest.mark.parametrize("wanted", [{"uuids": (UUIDS[0],)}, {"minors": (3,)}])
def test_of_gpus_that_are_not_asked_about_only_uuid_and_minor_number_are_read(
    tmp_path: Path, wanted: dict[str, Any]
) -> None:
    other = {**WHOLE, "uuid": UUIDS[1], "minor": 33}
    path = write_bindings(tmp_path, {"gpus": [WHOLE, other]})
    found = NvmlQuestion(module_path=path, **wanted).ask(60)
    assert found.gpus[0].compute_mode == "DEFAULT"
    assert found.gpus[1] == Gpu(1, uuid=UUIDS[1], minor_number=33)


def test_a_compute_mode_is_set_before_the_answer(tmp_path: Path) -> None:
    path = write_bindings(tmp_path, {"gpus": [WHOLE]})
    question = NvmlQuestion(module_path=path, compute_modes={UUIDS[0]: "EXCLUSIVE_PROCESS"})
    assert question.ask(60).gpus[0].compute_mode == "EXCLUSIVE_PROCESS"


@pytest.mark.parametrize("driver", ["", "/another"])
def test_a_hook_asks_in_a_clean_environment(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    started: list[Mapping[str, str]] = []

    def refuse(_argv: list[str], environ: Mapping[str, str], **_: int) -> None:
        started.append(environ)
        raise OSError(errno.EAGAIN, "no process is left")

    monkeypatch.setenv("LD_PRELOAD", "/tmp/mine.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/tmp/mine")
    monkeypatch.setenv("SLURM_COLLOC_DRIVER", "/tmp/mine")
    monkeypatch.setattr("slurm_colloc.host.nvml.nvml_query.start_program", refuse)
    found = start_question(driver, "node").ask(60)
    assert found.problem == f"{sys.executable} cannot be started: no process is left"
    assert started[0].get("LD_LIBRARY_PATH") == (f"{driver}/lib" if driver else None)
    assert set(started[0]) - {"LD_LIBRARY_PATH"} == {"PATH", "LANG", "SLURMD_NODENAME"}


GOOD = Gpu(0, uuid=UUIDS[0], gpu_memory_total_mb=100, gpu_memory_used_mb=100)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"uuid": "GPU-0"}, "which is none"),
        ({"uuid": ""}, "which is none"),
        ({"uuid": UUIDS[1]}, "the same UUID as another"),
        ({"gpu_memory_total_mb": 0}, "gpu_memory of 0 MiB"),
        ({"gpu_memory_used_mb": 101}, "uses 101 MiB of a gpu_memory of 100 MiB"),
    ],
)
def test_an_nvml_that_lies_is_told(changes: dict[str, object], doubt: str) -> None:
    other = Gpu(1, uuid=UUIDS[1])
    assert find_doubt(GOOD, [GOOD, other]) == ""
    changed = replace(GOOD, **changes)  # type: ignore[arg-type]
    assert doubt in find_doubt(changed, [changed, other])


def test_an_answer_of_another_shape_is_no_answer() -> None:
    with pytest.raises((KeyError, TypeError)):
        parse_answer({"gpus": []})
    with pytest.raises((KeyError, TypeError)):
        parse_answer({"problem": "", "gpus": [{"nvml_index": 0, "colour": "red"}]})


def answer(count: int, minors: tuple[int, ...] = (0, 1, 2, 3), name: str = "H200") -> NvmlAnswer:
    return NvmlAnswer(
        gpus=tuple(
            Gpu(index, uuid=UUIDS[index], name=name, minor_number=minors[index])
            for index in range(count)
        )
    )


def lose_gpu(found: NvmlAnswer, index: int) -> NvmlAnswer:
    """One GPU is off the bus: NVML counts it and says nothing of it."""
    gpus = list(found.gpus)
    gpus[index] = Gpu(index, doubt=f"GPU {index} (nvml_index) has no readable UUID")
    return replace(found, gpus=tuple(gpus))


def doubt_gpu(found: NvmlAnswer, index: int) -> NvmlAnswer:
    gpus = list(found.gpus)
    gpus[index] = replace(gpus[index], doubt="it uses too much")
    return replace(found, gpus=tuple(gpus))


@pytest.mark.parametrize(
    ("found", "environ", "uuids"),
    [
        # Slurm or the user names UUIDs.
        (answer(4), {"CUDA_VISIBLE_DEVICES": UUIDS[2]}, (UUIDS[2],)),
        (answer(4), {"CUDA_VISIBLE_DEVICES": "GPU-cccccccc"}, (UUIDS[2],)),
        (NvmlAnswer(problem="absent"), {"CUDA_VISIBLE_DEVICES": UUIDS[2]}, (UUIDS[2],)),
        # A cgroup hides the others; Slurm's index is the node's, CUDA's the job's.
        (answer(1), {"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}, (UUIDS[0],)),
        (answer(2), {"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}, UUIDS[:2]),
        # Nothing is hidden: by minor number, which is not NVML's order.
        (answer(4, (3, 2, 1, 0)), {"SLURM_JOB_GPUS": "0"}, (UUIDS[3],)),
        (answer(4), {"SLURM_JOB_GPUS": "1,2", "SLURM_STEP_GPUS": "2"}, (UUIDS[2],)),
        # What is wrong with another job's GPU says nothing of this one's.
        (lose_gpu(answer(4), 0), {"SLURM_JOB_GPUS": "2"}, (UUIDS[2],)),
        (doubt_gpu(answer(4), 0), {"SLURM_JOB_GPUS": "2"}, (UUIDS[2],)),
        # Without Slurm.
        (answer(1), {}, (UUIDS[0],)),
        (answer(4), {"CUDA_VISIBLE_DEVICES": "2"}, (UUIDS[2],)),
    ],
)
def test_the_gpus_of_a_job_are_found(
    found: NvmlAnswer, environ: dict[str, str], uuids: tuple[str, ...]
) -> None:
    chosen = choose_job_gpus(found, environ)
    assert chosen.uuids == uuids
    assert chosen.reason


@pytest.mark.parametrize(
    ("found", "environ", "reason"),
    [
        (NvmlAnswer(problem="NVML cannot be used"), {"SLURM_JOB_GPUS": "0"}, "cannot be used"),
        (doubt_gpu(answer(2), 0), {"SLURM_JOB_GPUS": "0"}, "uses too much"),
        # The job's only GPU is lost: the other is no GPU of its.
        (lose_gpu(answer(2), 0), {"SLURM_JOB_GPUS": "0"}, "not all of SLURM_JOB_GPUS=0"),
        (lose_gpu(answer(2), 0), {}, "neither Slurm nor"),
        (answer(4, (4, 5, 6, 7)), {"SLURM_JOB_GPUS": "0"}, "not all of SLURM_JOB_GPUS=0"),
        (answer(1), {"SLURM_JOB_GPUS": "0,1"}, "NVML shows 1 GPUs, the job has 2"),
        (answer(2), {}, "neither Slurm nor"),
        (answer(1), {"CUDA_VISIBLE_DEVICES": ""}, "neither Slurm nor"),
        (answer(2), {"CUDA_VISIBLE_DEVICES": "GPU-"}, "not a GPU's UUID"),
        (answer(2), {"CUDA_VISIBLE_DEVICES": "7"}, "does not say which GPU"),
        (
            NvmlAnswer(gpus=(Gpu(0, uuid=UUIDS[0], name="A"), Gpu(1, uuid=UUIDS[1], name="B"))),
            {"CUDA_VISIBLE_DEVICES": "1"},
            "does not say which GPU",
        ),
    ],
)
def test_where_it_is_not_known_which_gpus_are_the_jobs_the_reason_is_told(
    found: NvmlAnswer, environ: dict[str, str], reason: str
) -> None:
    chosen = choose_job_gpus(found, environ)
    assert chosen.uuids == ()
    assert reason in chosen.reason
