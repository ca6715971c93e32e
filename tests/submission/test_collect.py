from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.submission.jobs.call_jobs import (
    JOBS_MOST,
    Call,
    collect_call,
    find_script,
    read_script,
)

ENVIRON = {"HOME": "/home/ada", "PATH": "/usr/bin:/bin", "BYTES": "\udcff"}


def write(root: Path, name: str = "a.sh", directives: str = "", body: str = "true") -> Path:
    path = root / name
    path.write_text(f"#!/bin/bash\n{directives}\n{body}\n")
    return path


def collect(root: Path, *argv: str, pack: bool = False, **environ: str) -> Call:
    return collect_call(argv, {**ENVIRON, **environ}, str(root), pack=pack)


def jobs(call: Call) -> list[Job]:
    return [candidate.job for candidate in call.candidates]


def problem(root: Path, *argv: str, pack: bool = False, **environ: str) -> str:
    with pytest.raises(UsageProblem) as found:
        collect(root, *argv, pack=pack, **environ)
    assert found.value.exit_code == 2
    return str(found.value)


def test_a_script_its_arguments_and_its_environment(tmp_path: Path) -> None:
    write(tmp_path, directives="#SBATCH --gres=gpu:a100:1 -c 4\n#SBATCH --time=1:00:00 --mem=2G")
    call = collect(tmp_path, "a.sh", "--lr", "0.1", "a b")
    (job,) = jobs(call)
    assert job.arguments == ("--lr", "0.1", "a b")
    assert (job.number, job.name, job.script_name) == (1, "a.sh", "a.sh")
    assert (job.cpus, job.gpus, job.gpu_type) == (4, 1, "a100")
    assert (job.host_memory_mb, job.time_limit_s) == (2048, 3600)
    assert job.directory == str(tmp_path)
    assert not job.came_together
    assert call.candidates[0].environment == ENVIRON
    assert call.candidates[0].script == (tmp_path / "a.sh").read_bytes()


def test_the_command_line_wins_over_variables_and_these_over_directives(tmp_path: Path) -> None:
    write(tmp_path, directives="#SBATCH -J script -t 1 -p script")
    (job,) = jobs(
        collect(tmp_path, "-J", "line", "a.sh", SBATCH_JOB_NAME="variable", SBATCH_TIMELIMIT="2")
    )
    assert (job.name, job.time_limit_s) == ("line", 120)
    assert dict(job.group)["partition"] == "script"


def test_the_tasks_of_an_array_keep_their_numbers(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, "--array=2-8:3%2", "--gres=gpu:1", "a.sh")
    assert [job.number for job in jobs(call)] == [2, 5, 8]
    tasks = [job.array_task for job in jobs(call)]
    assert [(t.task_id, t.count, t.minimum, t.maximum) for t in tasks if t] == [
        (2, 3, 2, 8), (5, 3, 2, 8), (8, 3, 2, 8)
    ]  # fmt: skip
    assert call.array is not None
    assert call.array.limit == 2
    assert all(job.came_together for job in jobs(call))
    # One script and one environment for all.
    assert len({id(candidate.environment) for candidate in call.candidates}) == 1


def test_each_word_of_a_pack_is_a_script_with_its_arguments(tmp_path: Path) -> None:
    write(tmp_path, "a.sh")
    write(tmp_path, "b c.sh")
    call = collect(tmp_path, "a.sh", "b c.sh", "a.sh --lr 'x y'", pack=True)
    assert [(j.number, j.name, j.arguments) for j in jobs(call)] == [
        (1, "a.sh", ()), (2, "b c.sh", ()), (3, "a.sh", ("--lr", "x y"))
    ]  # fmt: skip
    assert all(job.came_together for job in jobs(call))


def test_wrapped_commands_keep_every_byte(tmp_path: Path) -> None:
    call = collect(tmp_path, "--wrap=echo \udcff 'a b'")
    assert call.candidates[0].script.endswith(b"\n\necho \xff 'a b'\n\n")
    assert call.candidates[0].script.startswith(b"#!/bin/sh\n")
    assert jobs(call)[0].name == "wrap"


def test_the_smallest_degree_of_all_scripts_holds_and_each_has_its_own_bound(
    tmp_path: Path,
) -> None:
    write(tmp_path, "a.sh", "#CSUB --degree=3 --max-slowdown=2 --pack-size=9")
    write(tmp_path, "b.sh", "#CSUB --degree=5 --max-slowdown=1.25")
    write(tmp_path, "c.sh")
    call = collect(tmp_path, "a.sh", "b.sh", "c.sh", pack=True)
    assert (call.degree, call.pack_size) == (3, 9)
    assert [job.max_slowdown for job in jobs(call)] == [2, 1.25, None]
    call = collect(tmp_path, "--max-slowdown=3", "a.sh", "b.sh", "c.sh", pack=True)
    assert [job.max_slowdown for job in jobs(call)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--gres=gpu:1", ""),
        ("--gpus=1 --nodes=1 --ntasks=1 --ntasks-per-node=1", ""),
        ("--gres=gpu:1 --nodes=2", "it asks for --nodes=2"),
        ("--gres=gpu:1 --ntasks=4", "it asks for --ntasks=4"),
        ("--gres=gpu:1,shard:2", "it also asks for other GRES: shard:2"),
        ("--gres=gpu:1 --mem=0", "--mem=0 asks for all host memory of a node"),
        (
            "--gres=gpu:1 --exclusive",
            (
                "--exclusive: it asks for a node of its own (with --gpus-per-pack jobs of one "
                "call share it)"
            ),
        ),
        ("--gpus-per-node=2 --gpus-per-task=2", ""),
        ("--gpus=4 --gpus-per-task=2", "4 GPUs with --gpus-per-task=2 are several tasks"),
        ("--gpus=2 --ntasks-per-gpu=1", "2 GPUs with --ntasks-per-gpu are several tasks"),
        ("--gpus=1 --ntasks-per-gpu=1", ""),
        (
            "--gres=gpu:2 --gpu-bind=closest",
            "--gpu-bind: it pins tasks to CPUs, GPUs or memory of a whole allocation",
        ),
    ],
)
def test_why_a_job_cannot_share(tmp_path: Path, options: str, reason: str) -> None:
    write(tmp_path, directives=f"#SBATCH {options}")
    assert jobs(collect(tmp_path, "a.sh"))[0].alone_because == reason


def test_a_node_that_jobs_share_is_asked_for_once(tmp_path: Path) -> None:
    write(tmp_path)
    options = ("--gres=gpu:1", "--exclusive", "--gpus-per-pack=node")
    (job,) = jobs(collect(tmp_path, *options, "a.sh"))
    assert job.group == (("exclusive", ""),)
    assert job.shape == (("gres", "gpu:1"),)
    assert not job.alone_because
    # A node that only one user has is another thing.
    (other,) = jobs(collect(tmp_path, "--exclusive=user", "--gpus-per-pack=node", "a.sh"))
    assert other.alone_because.startswith("--exclusive: it asks for a node of its own")
    assert dict(other.shape)["exclusive"] == "user"


def test_host_memory_by_gpu_is_that_of_all_gpus(tmp_path: Path) -> None:
    write(tmp_path)
    (job,) = jobs(collect(tmp_path, "--gres=gpu:2", "--mem-per-gpu=1G", "a.sh"))
    assert (job.gpus, job.host_memory_mb) == (2, 2048)


@pytest.mark.parametrize("option", ["--degree=2", "--gpu-mem=10G", "--pack-size=4"])
def test_options_by_which_a_single_script_may_share(tmp_path: Path, option: str) -> None:
    write(tmp_path)
    assert jobs(collect(tmp_path, option, "a.sh"))[0].came_together


def test_what_must_be_equal_in_a_pack_is_the_group(tmp_path: Path) -> None:
    write(tmp_path)
    (job,) = jobs(collect(tmp_path, "-p", "gpu", "-A", "lab", "-c2", "--gres=gpu:1", "a.sh"))
    assert job.group == (("account", "lab"), ("partition", "gpu"))
    assert set(job.shape) == {("cpus-per-task", "2"), ("gres", "gpu:1")}


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["none.sh"],
         "cannot read the script none.sh: No such file or directory: is it in this directory?"),
        (["."], "cannot read the script .: Is a directory"),
        (["empty.sh"], "empty.sh: the batch script is empty"),
        (["text.sh"], "text.sh: this does not look like a batch script"),
        (["dos.sh"], "dos.sh:1: the batch script has DOS line breaks"),
        (["nul.sh"], "nul.sh:2: the batch script holds a NUL character"),
        (["huge.sh"], "huge.sh is larger than 4 MB: submit a small script"),
        (["--no-such", "a.sh"], "--no-such is not an sbatch or csub option"),
        (["--array=", "a.sh"], "the command line: --array=: array '' names no task"),
        (["--array=5-1", "a.sh"], "the command line: --array=5-1: array '5-1': the range 5-1 runs"),
        (["--time=soon", "a.sh"], "the command line: --time=soon: "),
        (["--mem=lots", "a.sh"], "the command line: --mem=lots: "),
        (["--gpu-mem=-1", "a.sh"], "the command line: --gpu-mem=-1: "),
        (["--gres=gpu:x:y", "a.sh"], "the command line: --gres=gpu:x:y: "),
        (["-c0", "a.sh"], "--cpus-per-task=0: a number of at least 1 is needed"),
        (["--cpus-per-gpu=many", "a.sh"], "--cpus-per-gpu=many: a number of at least 1 is needed"),
        (["--degree=0", "a.sh"], "--degree=0: a number of at least 1 is needed"),
        (["--pack-size=²", "a.sh"], "--pack-size=²: a number of at least 1 is needed"),
        (["--max-slowdown=0.5", "a.sh"], "--max-slowdown=0.5: a number from 1 to 100 is needed"),
        (["--max-slowdown=nan", "a.sh"], "--max-slowdown=nan: a number from 1 to 100 is needed"),
        (["--max-slowdown=x", "a.sh"], "--max-slowdown=x: a number from 1 to 100 is needed"),
        (["--signal=NOISE", "a.sh"], "--signal=NOISE: there is no signal 'NOISE'"),
        (["--open-mode=both", "a.sh"], "--open-mode=both is neither append nor truncate"),
        (["--export-file=/none", "a.sh"], "--export-file=/none: No such file or directory"),
        (["--uid=1", "a.sh"], "csub does not support --uid: a pack belongs to the user and group"),
        (["-M", "other", "a.sh"], "csub does not support --clusters: csub follows the jobs of one"),
        (["--wrap=true", "a.sh"], "--wrap and the script 'a.sh' exclude each other"),
        (["--mem=1G", "--mem-per-cpu=1G", "a.sh"], "exclude each other: give one of them"),
        (["bad.sh"], "bad.sh:3: --time=soon: "),
        (["unknown.sh"], "unknown.sh:2: --wat is not an sbatch option"),
        (["quote.sh"], "quote.sh:2: the quote ' is never closed"),
        (["stray.sh"], "stray.sh:2: 'gpu' is not an option, and #SBATCH lines hold only options"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_sentence_with_its_place(
    tmp_path: Path, argv: list[str], sentence: str
) -> None:
    write(tmp_path)
    (tmp_path / "empty.sh").touch()
    (tmp_path / "text.sh").write_text("echo\n")
    (tmp_path / "dos.sh").write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    (tmp_path / "nul.sh").write_bytes(b"#!/bin/sh\necho \0\n")
    (tmp_path / "huge.sh").write_bytes(b"#!/bin/sh\n" + b"#" * (4 * 1024 * 1024))
    write(tmp_path, "bad.sh", "#SBATCH -J x\n#SBATCH --time=soon")
    write(tmp_path, "unknown.sh", "#SBATCH --wat")
    write(tmp_path, "quote.sh", "#SBATCH -J 'x")
    write(tmp_path, "stray.sh", "#SBATCH -p gpu gpu")
    text = problem(tmp_path, *argv)
    assert sentence in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "csub pack: no script was given: csub pack a.sh b.sh c.sh"),
        (["--wrap=true"], "csub pack takes scripts, not --wrap"),
        (["--array=1-3", "a.sh"], "csub pack takes no --array"),
        (["a.sh", "array.sh"], "array.sh:2: --array cannot be packed by csub pack: csub array.sh"),
        (["a.sh", "'x"], 'csub pack: "\'x": No closing quotation'),
        (["a.sh", ""], "csub pack: an empty word is not a script"),
        (["a.sh", "none.sh"], "cannot read the script none.sh"),
    ],
)
def test_bad_input_of_a_pack(tmp_path: Path, argv: list[str], sentence: str) -> None:
    write(tmp_path)
    write(tmp_path, "array.sh", "#SBATCH --array=1-3")
    assert sentence in problem(tmp_path, *argv, pack=True)


def test_a_script_without_a_slash_is_found_in_path_as_sbatch_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    write(folder, "train.sh", body="echo there")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin")
    assert b"there" in collect(tmp_path, "train.sh").candidates[0].script
    write(tmp_path, "train.sh", body="echo here")
    assert b"here" in collect(tmp_path, "train.sh").candidates[0].script


def test_a_folder_in_path_that_may_not_be_entered_hides_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as root's own after `su`; sbatch goes on, too."""
    closed, there = tmp_path / "closed", tmp_path / "there"
    there.mkdir()
    (there / "train.sh").write_text("#!/bin/sh\n")
    stat = os.stat

    def refuse(path: object, *words: object, **named: object) -> os.stat_result:
        if str(path).startswith(str(closed)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setenv("PATH", f"{closed}:{there}")
    assert find_script("train.sh", str(tmp_path)) == there / "train.sh"
    assert find_script("none.sh", str(tmp_path)) == tmp_path / "none.sh"


@pytest.mark.parametrize("name", ["a" * 300, "a" * 5000])
def test_a_name_that_no_file_can_have_is_no_script(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageProblem, match=r"cannot read the script a+: File name too long"):
        read_script(name, (), str(tmp_path))


def test_a_variable_without_a_name_is_given_to_no_job(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "variables"
    path.write_bytes(b"=x\0A=1\0B\0=\0")
    (candidate,) = collect(tmp_path, f"--export-file={path}", "a.sh").candidates
    assert candidate.environment["A"] == "1"
    assert "" not in candidate.environment


def test_an_array_of_more_tasks_than_one_call_takes_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path)
    assert problem(tmp_path, "--array=0-3999999", "--gres=gpu:1", "a.sh") == (
        "the command line: --array has 4000000 tasks: one call takes 50000: give the others in "
        "further calls"
    )
    call = collect(tmp_path, "--array=3950001-4000000", "--gres=gpu:1", "a.sh")
    assert len(call.candidates) == JOBS_MOST
