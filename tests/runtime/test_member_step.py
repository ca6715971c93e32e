"""srun inside a member: what it becomes."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
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
    "real_id": "4713",
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


@pytest.mark.parametrize("arguments", [["--jobid=99", "x"], ["--test-only", "x"]])
def test_an_srun_for_another_job_stays_as_it_is(arguments: list[str]) -> None:
    assert rewrite_srun(arguments, INSIDE, MEMBER)[0] is None


def test_without_the_variable_srun_asks_for_a_job_of_its_own() -> None:
    assert rewrite_srun(["x"], {"SLURM_JOBID": "4713"}, MEMBER)[0] is None
    assert rewrite_srun(["--jobid=4713", "x"], {}, MEMBER)[0] is not None


# As in a job of its own, where srun starts a step whatever these say.
@pytest.mark.parametrize("option", ["-pgpu", "-Alab", "--qos=high", "--reservation=r"])
def test_a_partition_or_account_makes_no_other_job(option: str) -> None:
    assert rewrite(option, "x")[0][:5] == RECIPE


OWN = OwnMember(
    MEMBER.folder, KNOWN | {"job_id": "134217730", "real_id": "4711", "task_id": "4711_3"}
)
OWN_INSIDE = INSIDE | {"SLURM_JOB_ID": "134217730", "SLURM_JOBID": "134217730"}


@pytest.mark.parametrize("asked", [[], ["--jobid=134217730"], ["--jobid", "4711"]])
def test_slurm_gets_its_own_id_and_the_tasks_the_members(asked: list[str]) -> None:
    rewritten, environment = rewrite_srun([*asked, "x"], OWN_INSIDE, OWN)
    assert rewritten is not None
    assert ("--jobid=4711" in rewritten) == bool(asked)
    assert (environment["SLURM_JOB_ID"], environment["SLURM_JOBID"]) == ("4711", "4711")
    assert rewritten[-4:] == [
        "/usr/bin/env", "SLURM_JOBID=134217730", "SLURM_JOB_ID=134217730", "x"
    ]  # fmt: skip


@pytest.mark.parametrize("job", ["134217731", "4711_4", "4711/4"])
def test_no_step_starts_in_another_member(job: str) -> None:
    with pytest.raises(UsageProblem, match=f"csub shell {job} -- COMMAND"):
        rewrite_srun([f"--jobid={job}", "x"], OWN_INSIDE, OWN)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    # As srun of 22.05 names them in a job of this id; %s, %t and %n are for Slurm.
    [
        ("%j", "134217730"),
        ("%12j", "0134217730"),
        ("%J_%s", "134217730.%s_%s"),
        ("%12J", "0134217730.%s"),
        ("%%j", "%%j"),
        ("x\\%j", "x\\%j"),
        ("%A_%a", "4711_3"),
        ("%4a-%t", "0003-%t"),
    ],
)
def test_files_of_a_step_are_named_after_the_member(pattern: str, expected: str) -> None:
    for option in ("output", "error", "input"):
        rewritten, _ = rewrite_srun([f"--{option}={pattern}", "x"], OWN_INSIDE, OWN)
        assert rewritten is not None
        assert f"--{option}={expected}" in rewritten


@pytest.mark.parametrize("option", ["--multi-prog", "--bcast=/tmp/x"])
@pytest.mark.parametrize("how", ["", "option", "variable"])
def test_where_srun_reads_the_command_a_prolog_gives_the_tasks_their_id(
    tmp_path: Path, option: str, how: str
) -> None:
    theirs = tmp_path / "my prolog"
    theirs.write_text("#!/bin/sh\necho print saw $SLURM_JOB_ID\n")
    theirs.chmod(0o700)
    member = OwnMember(str(tmp_path), {**OWN.values, "prefix": str(tmp_path / "run.1.1")})
    asked = [f"--task-prolog={theirs}"] if how == "option" else []
    environment = OWN_INSIDE | ({"SLURM_TASK_PROLOG": str(theirs)} if how == "variable" else {})
    rewritten, environment = rewrite_srun([option, *asked, "x"], environment, member)
    assert rewritten is not None
    assert rewritten[-1] == "x"
    assert "/usr/bin/env" not in rewritten
    assert "SLURM_TASK_PROLOG" not in environment
    (prolog,) = [word for word in rewritten if word.startswith("--task-prolog=")]
    said = subprocess.run(
        [prolog.partition("=")[2]], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"export SLURM_JOB_ID=134217730", "export SLURM_JOBID=134217730"} <= set(said)
    assert ("print saw 134217730" in said) == bool(how)


def test_a_job_alone_under_another_id_starts_steps_as_slurm_does() -> None:
    alone = OwnMember(OWN.folder, {**OWN.values, "alone": "yes"})
    rewritten, environment = rewrite_srun(["--exact", "-c2", "x"], OWN_INSIDE, alone)
    assert rewritten == [
        "--exact", "--cpus-per-task=2",
        "/usr/bin/env", "SLURM_JOBID=134217730", "SLURM_JOB_ID=134217730", "x",
    ]  # fmt: skip
    assert environment == OWN_INSIDE | {"SLURM_JOB_ID": "4711", "SLURM_JOBID": "4711"}


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
