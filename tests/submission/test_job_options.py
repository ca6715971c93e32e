"""What the options of one job ask for: whatever was typed is told harmlessly."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.submission.jobs.call_jobs import Candidate, collect_call
from slurm_colloc.submission.jobs.job_options import parse_count

ODD = "\x1b[2J\x07\n\u202eevil\x9b1m"
SHOWN = "\\x1b[2J\\x07\\n\\u202eevil\\x9b1m"


def collect(folder: Path, *words: str) -> Candidate:
    (folder / "a.sh").write_text("#!/bin/sh\n")
    call = collect_call([*words, "a.sh"], {}, str(folder), pack=False)
    return call.candidates[0]


@pytest.mark.parametrize(
    "name",
    ["max-slowdown", "gpu-mem", "mem", "gpus", "cpus-per-task", "mail-type", "open-mode"],
)
def test_a_wrong_value_is_told_without_its_control_characters(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageProblem) as problem:
        collect(tmp_path, f"--{name}={ODD}")
    told = str(problem.value)
    assert f"--{name}={SHOWN}" in told
    assert told.isprintable()


@pytest.mark.parametrize("name", ["cpus-per-task", "gpu-mem", "mem", "max-slowdown", "open-mode"])
def test_a_value_that_is_very_long_is_cut(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageProblem) as problem:
        collect(tmp_path, f"--{name}={'9' * 5000}")
    told = str(problem.value)
    assert f"--{name}={'9' * 57}..." in told
    assert len(told) < 400
    assert "set_int_max_str_digits" not in told


@pytest.mark.parametrize("text", ["", "0", "000", "-1", "1.5", "\u0663", "9" * 19, "9" * 5000])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a number of at (least 1|most 18 digits) is needed"):
        parse_count(text)


def test_why_a_job_runs_alone_is_told_without_control_characters(tmp_path: Path) -> None:
    found = collect(tmp_path, f"--nodes={ODD}", "--gres=gpu:1")
    assert found.job.alone_because == f"it asks for --nodes={SHOWN}"
    found = collect(tmp_path, f"--gres=gpu:1,{ODD}")
    assert found.job.alone_because == f"it also asks for other GRES: {SHOWN}"
    assert collect(tmp_path, "--nodes=2").job.alone_because == "it asks for --nodes=2"


@pytest.mark.parametrize("text", ["0", "00", "0K", "0k", "0M", "0MB", "0G", "0T", "+0", "000T"])
def test_all_host_memory_of_a_node_in_any_spelling_is_asked_for_alone(
    tmp_path: Path, text: str
) -> None:
    candidate = collect(tmp_path, "--gres=gpu:1", f"--mem={text}")
    assert candidate.job.alone_because == "--mem=0 asks for all host memory of a node"
    assert candidate.job.host_memory_mb is None


@pytest.mark.parametrize("text", ["1K", "1", "01M", "10G"])
def test_a_little_host_memory_is_not_all_of_it(tmp_path: Path, text: str) -> None:
    candidate = collect(tmp_path, "--gres=gpu:1", f"--mem={text}")
    assert candidate.job.alone_because == ""
