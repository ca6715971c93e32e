"""What the node says of GPU, MPS and hooks is judged by what it means for packs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slurm_colloc.diagnosis.login_findings import Level
from slurm_colloc.diagnosis.node_findings import judge_hooks, judge_mps, judge_nvml
from slurm_colloc.model.examination import Examination, GpuLook, HooksLook, MpsTrial, NvmlLook

GPU = GpuLook("GPU-1", "NVIDIA H200", 143771, "DEFAULT", mig_enabled=False, processes=0)
NVML = NvmlLook("", "580.159.04", "13.0", 1, (GPU,))
MPS = MpsTrial(control="/usr/bin/nvidia-cuda-mps-control", control_ms=20.4, active_ms=300.0)
SEEN = Examination("n1", "0.1.0", "3.11.2", ("0",), nvml=NVML, mps=MPS, hooks=HooksLook())


def gpu(**changes: Any) -> Examination:
    return dataclasses.replace(
        SEEN, nvml=dataclasses.replace(NVML, gpus=(dataclasses.replace(GPU, **changes),))
    )


def nvml(**changes: Any) -> Examination:
    return dataclasses.replace(SEEN, nvml=dataclasses.replace(NVML, **changes))


def mps(**changes: Any) -> Examination:
    return dataclasses.replace(SEEN, mps=dataclasses.replace(MPS, **changes))


def test_a_good_gpu_is_described() -> None:
    found = judge_nvml(SEEN, "python")
    assert (found.level, found.what) == (
        Level.GREEN,
        "NVIDIA H200, 143771 MiB, compute mode DEFAULT, MIG off; driver 580.159.04",
    )
    assert found.values["gpus"] == [dataclasses.asdict(GPU)]


def test_what_nvml_does_not_say_is_unknown_and_costs_nothing() -> None:
    silent = gpu(name=None, gpu_memory_total_mb=None, compute_mode=None, mig_enabled=None,
                 processes=None)  # fmt: skip
    found = judge_nvml(silent, "python")
    assert found.level is Level.GREEN
    assert found.what.startswith(
        "a GPU that does not say its name, unknown MiB, compute mode unknown, MIG unknown"
    )


@pytest.mark.parametrize(
    ("seen", "level", "words"),
    [
        (gpu(compute_mode="PROHIBITED"), Level.RED, "nvidia-smi -c 0"),
        (gpu(compute_mode="EXCLUSIVE_PROCESS"), Level.GREEN, "EXCLUSIVE_PROCESS"),
        (gpu(mig_enabled=True), Level.YELLOW, "cut into MIG devices"),
        (gpu(processes=1), Level.YELLOW, "1 process of others on the GPU"),
        (gpu(processes=3), Level.YELLOW, "3 processes of others on the GPU"),
        (nvml(shown=4), Level.YELLOW, "the job has 1 and sees 4"),
        (nvml(shown=None), Level.GREEN, "NVIDIA H200"),
        (nvml(doubts=("two GPUs with one UUID",)), Level.YELLOW, "two GPUs with one UUID"),
    ],
)
def test_what_stands_in_the_way_on_the_gpu(seen: Examination, level: Level, words: str) -> None:
    found = judge_nvml(seen, "python")
    assert found.level is level
    assert words in f"{found.what} {found.advice}"
    assert bool(found.lost) is (level is Level.YELLOW)


def test_one_process_at_a_time_is_a_loss_only_without_mps() -> None:
    exclusive = gpu(compute_mode="EXCLUSIVE_PROCESS")
    broken = dataclasses.replace(exclusive, mps=MpsTrial("it does not start"))
    found = judge_nvml(broken, "python")
    assert found.level is Level.YELLOW
    assert "only one member of a pack runs at a time" in found.lost


def test_the_server_of_the_nodes_own_daemon_is_no_stranger() -> None:
    prepared = dataclasses.replace(gpu(processes=1), mps=dataclasses.replace(MPS, by="prolog"))
    assert judge_nvml(prepared, "python").level is Level.GREEN


@pytest.mark.parametrize(
    ("seen", "advice"),
    [
        (nvml(problem="no bindings", lacks_bindings=True, shown=None, gpus=()),
         "install nvidia-ml-py for /opt/python"),
        (nvml(problem="NVML cannot be used: Driver Not Loaded", shown=None, gpus=()),
         "ask the administrators to look at the NVIDIA driver of n1"),
        (nvml(problem="neither Slurm nor CUDA_VISIBLE_DEVICES says", shown=0, gpus=()),
         "ask the administrators to name the GPUs' device files in gres.conf"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_not_known(seen: Examination, advice: str) -> None:
    found = judge_nvml(seen, "/opt/python")
    assert (found.level, found.advice) == (Level.YELLOW, advice)
    assert found.lost == "packs do not know which GPU is theirs, so MPS is not used"


def test_mps_that_works_says_how_quickly() -> None:
    found = judge_mps(SEEN, "auto")
    assert (found.level, found.what) == (
        Level.GREEN,
        "a daemon of your own works: control socket after 20 ms, server after 300 ms",
    )
    prepared = judge_mps(mps(by="prolog", control_ms=None, active_ms=None), "auto")
    assert prepared.what == "the node's own daemon (prolog) works"


@pytest.mark.parametrize(("share", "level"), [("auto", Level.YELLOW), ("mps!", Level.RED)])
def test_mps_that_is_missing_or_broken(share: str, level: Level) -> None:
    missing = judge_mps(mps(problem="it is not installed", control=""), share)
    assert missing.level is level
    assert missing.what == "n1 has no MPS: it is not installed"
    assert ("mps!" in missing.advice) is (share == "mps!")
    broken = judge_mps(mps(problem="the MPS server ended"), share)
    assert broken.what == "MPS does not work on n1: the MPS server ended"


def test_what_the_daemon_leaves_is_told() -> None:
    found = judge_mps(mps(left=("process 7 cannot be killed",)), "auto")
    assert found.level is Level.YELLOW
    assert found.what.endswith("; its end left process 7 cannot be killed")


@pytest.mark.parametrize(
    ("hooks", "by", "level", "words"),
    [
        (HooksLook(), "runner", Level.YELLOW, "none on n1"),
        (HooksLook(is_installed=True), "runner", Level.YELLOW, "its prolog did nothing"),
        (HooksLook(is_prepared=True), "prolog", Level.GREEN, "has prepared MPS"),
        (HooksLook(is_prepared=True), "runner", Level.YELLOW, "is not used: it was silent"),
        (HooksLook(problem="the node has prepared no MPS: no"), "runner", Level.YELLOW,
         "the node has prepared no MPS: no"),
    ],
)  # fmt: skip
def test_what_the_hooks_did(hooks: HooksLook, by: str, level: Level, words: str) -> None:
    notes = () if by == "prolog" else ("it was silent",)
    found = judge_hooks(dataclasses.replace(mps(by=by, notes=notes), hooks=hooks))
    assert found.level is level
    assert words in found.what
    assert bool(found.lost) is (level is Level.YELLOW)


@pytest.mark.parametrize(
    ("mig", "words"),
    [
        ("where-on", "--share=mig gives each member an instance of its own"),
        ("switch", "--share=mig gives each member an instance of its own"),
        ("off", "that of n1 says that jobs may not divide GPUs"),
        ("", "that of n1 is not there, or cannot be read"),
    ],
)
def test_on_a_node_with_mig_it_is_said_whether_packs_may_use_it(mig: str, words: str) -> None:
    seen = dataclasses.replace(gpu(mig_enabled=True), hooks=HooksLook(is_installed=True, mig=mig))
    found = judge_nvml(seen, "python")
    assert found.level is Level.YELLOW
    assert words in found.advice


def test_gpus_of_one_kind_are_counted_and_unlike_ones_named() -> None:
    first = dataclasses.replace(GPU, uuid="GPU-11111111-2222", index=0)
    second = dataclasses.replace(GPU, uuid="GPU-22222222-2222", index=1)
    alike = judge_nvml(nvml(shown=2, gpus=(first, second)), "python")
    assert alike.what.startswith("2 GPUs, each NVIDIA H200, 143771 MiB, compute mode DEFAULT")
    cut = dataclasses.replace(second, mig_enabled=True)
    found = judge_nvml(nvml(shown=2, gpus=(first, cut)), "python")
    assert found.level is Level.YELLOW
    assert "GPU 0 (GPU-11111111): NVIDIA H200" in found.what
    assert "GPU 1 (GPU-22222222) is cut into MIG devices" in found.what
    assert "members of a pack over all of them run on the others alone" in found.lost
