"""srun inside a member: what it becomes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_colloc.runtime.programs import member_step
from slurm_colloc.runtime.programs.member_commands import OwnMember
from slurm_colloc.runtime.programs.member_step import rewrite_srun

INSIDE = {
    "PATH": "/bin",
    "SLURM_JOB_ID": "4713",
    "SLURM_JOBID": "4713",
    "SLURM_OVERLAP": "1",
    "SLURM_CPU_BIND": "mask_cpu:0x5",
}
KNOWN = {
    "job_id": "4713",
    "member": "4711/3",
    "task_id": "4711_3",
    "cpus": "0,2",
    "host_memory_mb": "500",
}
MEMBER = OwnMember("/state/packs/p/members/0003", KNOWN)
RECIPE = ["--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=mask_cpu:0x5", "--mem=500"]


def rewrite(*arguments: str, **changes: str) -> tuple[list[str], dict[str, str]]:
    rewritten, environment = rewrite_srun(arguments, {**INSIDE, **changes}, MEMBER)
    assert rewritten is not None
    return rewritten, environment


@pytest.mark.parametrize(
    "arguments",
    [
        ["python", "x.py"],
        ["--exact", "python", "x.py"],
        ["--gpus=1", "--gpu-bind=none", "python", "x.py"],
        ["--gres=gpu:1", "--exclusive", "python", "x.py"],
        ["-G", "1", "--mem-per-cpu=9G", "python", "x.py"],
        ["--gpus-per-task=1", "--threads-per-core=1", "--hint=nomultithread", "python", "x.py"],
    ],
)
def test_a_step_starts_beside_the_neighbours_on_the_members_cpus(arguments: list[str]) -> None:
    rewritten, environment = rewrite(*arguments)
    # Nothing is put before the command: it sees all that it needs.
    assert rewritten == [*RECIPE, "--job-name=4711/3:python", "python", "x.py"]
    assert "SLURM_OVERLAP" not in environment
    assert "SLURM_CPU_BIND" not in environment


def test_what_the_user_asks_for_wins_where_it_harms_nobody() -> None:
    rewritten, _ = rewrite(
        "-n", "2", "-N1", "--cpu-bind=none", "--label", "--output=a b", "-J", "eval", "x", "-n", "9"
    )
    assert "--ntasks=1" not in rewritten
    assert rewritten.count("--cpu-bind=none") == 1
    assert not any(word.startswith("--cpu-bind=mask") for word in rewritten)
    assert {"--ntasks=2", "--nodes=1", "--label", "--output=a b"} <= set(rewritten)
    assert "--job-name=4711/3:eval" in rewritten
    assert rewritten[-3:] == ["x", "-n", "9"]


def test_the_cpus_asked_for_are_seen_inside_the_step_only() -> None:
    rewritten, environment = rewrite("-c", "2", "x")
    assert "SLURM_CPUS_PER_TASK=2" in rewritten
    assert not any("cpus-per-task" in word for word in rewritten)
    assert "SLURM_CPUS_PER_TASK" not in environment


def test_a_member_that_is_not_bound_binds_no_step() -> None:
    unbound = OwnMember(MEMBER.folder, KNOWN | {"cpus": ""})
    rewritten, _ = rewrite_srun(["x"], INSIDE, unbound)
    assert rewritten is not None
    assert "--cpu-bind=none" in rewritten


@pytest.mark.parametrize(
    "arguments",
    [["--jobid=99", "x"], ["-p", "gpu", "x"], ["-A", "lab", "x"], ["--qos=high", "x"]],
)
def test_an_srun_for_another_job_stays_as_it_is(arguments: list[str]) -> None:
    assert rewrite_srun(arguments, INSIDE, MEMBER)[0] is None


def test_an_srun_into_the_own_job_is_the_members() -> None:
    assert rewrite("--jobid=4713", "x")[0][:5] == RECIPE


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOSPC])
def test_a_step_starts_although_it_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def fail(path: Path, mode: int = 0o666) -> None:  # noqa: ARG001
        raise OSError(number, os.strerror(number), str(path))

    member = OwnMember(str(tmp_path), KNOWN | {"prefix": str(tmp_path / "run.1.1")})
    started = []
    monkeypatch.setattr(member_step, "become", lambda *asked: started.append(asked))
    monkeypatch.setattr(member_step, "_PATIENCE_S", 0.0)
    with monkeypatch.context() as failing:
        failing.setattr(Path, "touch", fail)
        member_step.start_step(member, "/usr/bin/srun", ["srun", "python"], INSIDE)
    assert len(started) == 1
    assert capsys.readouterr().err == (
        f"csub: warning: srun: cannot write {tmp_path}/run.1.1.steps: {os.strerror(number)}; "
        "signals for the member's steps do not reach this one\n"
    )


def test_a_step_is_noted_once_the_file_system_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    touch, failures = Path.touch, [errno.ESTALE, errno.EIO]

    def fail(path: Path, mode: int = 0o666) -> None:
        if failures:
            raise OSError(failures.pop(), "")
        touch(path, mode)

    monkeypatch.setattr(Path, "touch", fail)
    member_step.note_steps(OwnMember(str(tmp_path), KNOWN | {"prefix": str(tmp_path / "run.1.1")}))
    assert (tmp_path / "run.1.1.steps").exists()
    assert capsys.readouterr().err == ""
