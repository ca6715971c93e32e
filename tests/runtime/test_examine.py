"""What the node's part of `csub doctor` makes of what it sees."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.host.nvml.nvml_query import Gpu, GpuProcess, NvmlAnswer
from slurm_colloc.model.examination import NvmlLook
from slurm_colloc.runtime.programs.examine_node import judge_nvml, look_at_tmpdir, try_step

UUIDS = tuple(f"GPU-0000000{n}-1111-2222-3333-444444444444" for n in range(2))


def write_srun(tmp_path: Path, text: str) -> dict[str, str]:
    program = tmp_path / "srun"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "4"}


def test_a_step_counts_only_once_it_has_answered(tmp_path: Path) -> None:
    # The last words are the command of the step; nothing of the pack's own request is passed on.
    runs = (
        '[ -z "$SLURM_CPUS_PER_TASK" ] || exit 9\nwhile [ "$1" != /bin/sh ]; do shift; done\n"$@"'
    )
    trial = try_step(write_srun(tmp_path, runs))
    assert trial.problem == ""
    assert trial.elapsed_ms is not None
    assert trial.elapsed_ms > 0
    silent = try_step(write_srun(tmp_path, "exit 0"))
    assert (silent.problem, silent.elapsed_ms) == ("srun ended with 0", None)


def test_why_a_step_does_not_start_is_told_in_sruns_words(tmp_path: Path) -> None:
    words = "echo 'srun: error: Unable to create step' >&2; echo 'srun: error: Invalid' >&2; exit 1"
    assert try_step(write_srun(tmp_path, words)).problem == "Unable to create step; Invalid"
    missing = try_step({"PATH": str(tmp_path / "nothing")})
    assert missing.problem == "srun cannot be started: No such file or directory"


def test_a_directory_for_temporary_files_is_written_to(tmp_path: Path) -> None:
    good = look_at_tmpdir(str(tmp_path))
    assert (good.path, good.problem) == (str(tmp_path), "")
    assert good.free_mb is not None
    assert list(tmp_path.iterdir()) == []
    bad = look_at_tmpdir(str(tmp_path / "x"))
    assert (bad.problem, bad.free_mb) == ("No such file or directory", None)


def test_only_the_jobs_own_gpus_are_described() -> None:
    strangers = (GpuProcess(7), GpuProcess(8))
    gpus = (
        Gpu(0, UUIDS[0], "A", minor_number=0, processes=()),
        Gpu(1, UUIDS[1], "B", minor_number=1, processes=strangers),
    )
    look = judge_nvml(NvmlAnswer(driver_version="580", gpus=gpus), {"SLURM_JOB_GPUS": "1"})
    assert (look.problem, look.shown, look.driver_version) == ("", 2, "580")
    assert [(gpu.name, gpu.processes, gpu.compute_mode) for gpu in look.gpus] == [("B", 2, None)]


def test_without_an_answer_or_without_a_gpu_of_the_jobs_nothing_is_made_up() -> None:
    assert judge_nvml(NvmlAnswer(problem="it hangs"), {}) == NvmlLook("it hangs")
    missing = NvmlAnswer("none", lacks_bindings=True)
    assert judge_nvml(missing, {}) == NvmlLook("none", lacks_bindings=True)
    gpus = tuple(Gpu(n, uuid) for n, uuid in enumerate(UUIDS))
    look = judge_nvml(NvmlAnswer(gpus=gpus), {})
    assert look.problem.startswith("neither Slurm nor CUDA_VISIBLE_DEVICES says")
    assert (look.shown, look.gpus) == (2, ())
