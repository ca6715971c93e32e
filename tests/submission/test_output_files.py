"""No member's output is a directory, and none is a neighbour's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.settings import Settings
from slurm_colloc.submission.jobs.call_jobs import Call, collect_call
from slurm_colloc.submission.jobs.job_options import list_output_files
from slurm_colloc.submission.plan.call_policy import choose_policy
from slurm_colloc.submission.plan.plan_call import plan_call

GPU = "--gres=gpu:1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A submission directory with scripts that name their output in different ways."""
    for name, output in (("one", "x1%a"), ("any", "x%a"), ("named", "%x-%a.out"), ("none", "")):
        directive = f"#SBATCH --output={output}\n" if output else ""
        (tmp_path / f"{name}.sh").write_text(f"#!/bin/sh\n{directive}")
    (tmp_path / "logs").mkdir()
    return tmp_path


def collect(folder: Path, *words: str, pack: bool = True) -> Call:
    return collect_call([GPU, *words], {}, str(folder), pack=pack)


def plan(call: Call) -> None:
    plan_call(call, choose_policy(call, Settings()), Settings(), None)


def test_patterns_that_meet_in_one_file_are_refused(folder: Path) -> None:
    call = collect(folder, "one.sh", *["any.sh"] * 10)
    with pytest.raises(UsageProblem) as caught:
        plan(call)
    assert caught.value.message == (
        f"member 1 (one.sh) and member 11 (any.sh) would both write {folder}/x11"
    )
    plan(collect(folder, "one.sh", *["any.sh"] * 9))


def test_the_error_file_of_one_task_may_be_the_output_of_another(folder: Path) -> None:
    words = ("-o", "x%a", "-e", "x1%a", "none.sh")
    with pytest.raises(UsageProblem, match=r"member 1 \(none.sh\) and member 11 \(none.sh\)"):
        plan(collect(folder, "--array=1,11", *words, pack=False))
    plan(collect(folder, "--array=1,12", *words, pack=False))
    # One file for both of its own is what many want.
    plan(collect(folder, "--array=1,11", "-o", "x%a", "-e", "x%a", "none.sh", pack=False))


def test_other_spellings_of_one_path_are_seen(folder: Path) -> None:
    (folder / "dot.sh").write_text(f"#!/bin/sh\n#SBATCH -o {folder}/logs/../x%a\n")
    with pytest.raises(UsageProblem, match="would both write"):
        plan(collect(folder, "one.sh", *["dot.sh"] * 10))


def test_devices_and_names_of_csub_never_meet(folder: Path) -> None:
    plan(collect(folder, "-o", "/dev/null", *["none.sh"] * 12))
    plan(collect(folder, "-o", "run.log", *["none.sh"] * 12))
    plan(collect(folder, *["none.sh"] * 12))
    plan(collect(folder, "named.sh", "one.sh"))


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("option", ["output", "error"])
@pytest.mark.parametrize("value", ["logs", "logs/", "./logs"])
def test_a_directory_is_refused_where_it_is_given(
    folder: Path, pack: bool, option: str, value: str
) -> None:
    with pytest.raises(UsageProblem) as caught:
        collect(folder, f"--{option}={value}", "none.sh", pack=pack)
    assert caught.value.message.endswith(f"--{option}={value} is a directory, and a file is needed")
    assert caught.value.hint == f"--{option}={value.rstrip('/')}/%x-%a.out names one in it"


def test_a_directory_is_looked_for_below_chdir_and_behind_the_pattern(folder: Path) -> None:
    (folder / "below" / "none.sh").mkdir(parents=True)
    (folder / "dir.sh").write_text("#!/bin/sh\n#SBATCH -o %x\n#SBATCH -J none.sh\n")
    collect(folder, "dir.sh", pack=False)
    with pytest.raises(UsageProblem, match=r"dir\.sh:2: --output=%x is a directory"):
        collect(folder, "--chdir=below", "dir.sh", pack=False)
    collect(folder, "-o", "logs/%x.out", "none.sh", pack=False)


def test_a_lone_job_writes_where_sbatch_would(folder: Path) -> None:
    (candidate,) = collect(folder, "-o", "run.log", "none.sh", pack=False).candidates
    assert list_output_files(candidate.job, alone=True) == {f"{folder}/run.log"}
    assert list_output_files(candidate.job, alone=False) == {f"{folder}/run_1.log"}
    (candidate,) = collect(folder, "none.sh", pack=False).candidates
    assert list_output_files(candidate.job, alone=True, job_id="7") == {f"{folder}/slurm-7.out"}
