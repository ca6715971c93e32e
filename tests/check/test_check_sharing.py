"""What csub check says of a request: what fits with the job, and what keeps it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.check.check_script import SharingFit, compute_sharing, find_request_findings
from slurm_colloc.check.collisions import ScriptFinding, merge_findings
from slurm_colloc.cli.check_command import build_json, render
from slurm_colloc.model.plan import Capacity, Policy
from slurm_colloc.submission.jobs.call_jobs import collect_call

# A quarter of a node with 128 CPUs, 512 GB and four GPUs of 80 GB.
CAPACITY = Capacity(
    cpus_per_gpu=32,
    host_memory_mb_per_gpu=128_000,
    gpu_memory_mb=80_000,
    time_limit_max_s=86_400,
    time_limit_default_s=3600,
)


def look(
    directory: Path, *options: str, directives: str = "", capacity: Capacity = CAPACITY
) -> tuple[SharingFit, list[ScriptFinding]]:
    (directory / "t.sh").write_text(f"#!/bin/bash\n{directives}\ntrue\n")
    call = collect_call([*options, "t.sh"], {}, str(directory), pack=False)
    job = call.candidates[0].job
    sharing = compute_sharing(job, capacity, Policy(degree=call.degree or 4))
    return sharing, find_request_findings(job, call.options, sharing, capacity)


def only(findings: list[ScriptFinding], kind: str) -> ScriptFinding:
    [found] = [finding for finding in findings if finding.kind == kind]
    return found


def test_how_many_fit_is_the_smallest_over_all_resources(tmp_path: Path) -> None:
    sharing, _ = look(
        tmp_path, "--gres=gpu:1", "-c8", "--mem=32000M", "--gpu-mem=30000M", "--time=60"
    )
    assert [(row.name, row.asked, row.available, row.fits) for row in sharing.rows] == [
        ("CPUs", 8, 32, 4),
        ("host memory", 32_000, 128_000, 4),
        ("GPU memory", 30_000, 76_000, 2),
    ]
    assert sharing.members == 2
    assert look(tmp_path, "--gres=gpu:1", "-c1", "--degree=6")[0].members == 6


def test_a_request_of_the_whole_share_says_what_would_fit_instead(tmp_path: Path) -> None:
    _, findings = look(
        tmp_path, "--gres=gpu:1", directives="#SBATCH --time=60\n#SBATCH --cpus-per-task=32"
    )
    found = only(findings, "whole-share")
    assert (found.place, found.what) == ("t.sh:3", "--cpus-per-task=32")
    assert found.advice == "3 more would fit with --cpus-per-task=8"
    assert found.level.value == "problem"


@pytest.mark.parametrize(
    ("cpus", "kind", "advice"),
    [
        (40, "whole-share", "3 more would fit with --cpus-per-task=8"),
        (17, "whole-share", "3 more would fit with --cpus-per-task=8"),
        (16, "large-share", "2 more would fit with --cpus-per-task=8"),
        (10, "large-share", "1 more would fit with --cpus-per-task=8"),
        (8, "", ""),
    ],
)
def test_advice_on_cpus_is_true(tmp_path: Path, cpus: int, kind: str, advice: str) -> None:
    sharing, findings = look(tmp_path, "--gres=gpu:1", f"-c{cpus}")
    chosen = [(f.kind, f.advice) for f in findings if f.kind.endswith("-share")]
    assert chosen == ([(kind, advice)] if kind else [])
    better, _ = look(tmp_path, "--gres=gpu:1", "-c8")
    if advice:
        assert better.members == max(1, sharing.members) + int(advice.split(maxsplit=1)[0])


def test_host_memory_is_looked_at_like_cpus(tmp_path: Path) -> None:
    _, findings = look(tmp_path, "--gres=gpu:1", "--mem=100G")
    found = only(findings, "whole-share")
    assert (found.file, found.line, found.what) == ("the command line", 0, "--mem=100G")
    assert found.advice == "3 more would fit with --mem=32000M"


def test_a_job_of_two_gpus_shares_them_with_another_where_that_is_measured(tmp_path: Path) -> None:
    (tmp_path / "t.sh").write_text("#!/bin/sh\n")
    options = ("--gres=gpu:2", "-c16", "--gpu-mem=30000M", "t.sh")
    job = collect_call(options, {}, str(tmp_path), pack=False).candidates[0].job
    sharing = compute_sharing(job, CAPACITY, Policy(measures=True))
    assert (sharing.alone_because, sharing.degree, sharing.members) == ("", 2, 2)
    # Of CPUs two GPUs bring twice as many, of GPU memory each has its own.
    assert [(row.available, row.fits) for row in sharing.rows] == [
        (64, 4), (256_000, None), (76_000, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "what", "because"),
    [
        (("--gres=gpu:1", "--exclusive"), "--exclusive", "a node of its own"),
        (("--gres=gpu:1", "--mem=0"), "--mem=0", "all host memory of a node"),
        (("--gres=gpu:2",), "--gres=gpu:2", "2 GPUs"),
        (("--gres=gpu:1", "--ntasks=4"), "--ntasks=4", "--ntasks=4"),
        (("--gres=gpu:1", "--nodes=2"), "--nodes=2", "--nodes=2"),
        ((), "no GPU", "no GPU"),
    ],
)
def test_what_keeps_a_job_alone_is_named(
    tmp_path: Path, options: tuple[str, ...], what: str, because: str
) -> None:
    sharing, findings = look(tmp_path, *options)
    found = only(findings, "runs-alone")
    assert found.what == what
    assert because in found.why
    assert sharing.members == 1
    assert findings == [found]


def test_the_line_of_what_keeps_a_job_alone_is_told(tmp_path: Path) -> None:
    _, findings = look(tmp_path, directives="#SBATCH --gres=gpu:1\n#SBATCH --exclusive")
    assert only(findings, "runs-alone").place == "t.sh:3"


def test_what_was_not_said_is_a_note(tmp_path: Path) -> None:
    _, findings = look(tmp_path, "--gres=gpu:1")
    assert [(f.kind, f.level.value) for f in findings] == [
        ("no-time", "note"),
        ("no-gpu-mem", "note"),
    ]
    _, findings = look(tmp_path, "--gres=gpu:1", "--time=5", "--gpu-mem=1G")
    assert findings == []


def test_without_figures_nothing_is_claimed(tmp_path: Path) -> None:
    sharing, findings = look(tmp_path, "--gres=gpu:1", "-c64", "--time=5", capacity=Capacity())
    assert [row.fits for row in sharing.rows] == [None, None, None]
    assert [finding.kind for finding in findings] == ["no-gpu-mem"]
    text = render("t.sh", findings, sharing, ["t.sh"], "Slurm does not answer")
    assert "nothing found that would collide" in text
    assert "How many would share a GPU is not known: Slurm does not answer" in text
    value = build_json("t.sh", findings, sharing, ["t.sh"], "Slurm does not answer")
    assert value["sharing"]["members"] is None


def test_the_same_thing_on_several_lines_is_told_once() -> None:
    def at(line: int, what: str = "x", kind: str = "k") -> ScriptFinding:
        return ScriptFinding(kind, "t.sh", line, what, "why")

    [one, two] = merge_findings([at(9), at(2), at(9), at(5, "y")])
    assert (one.place, one.also, one.what) == ("t.sh:2", (9,), "x")
    assert (two.place, two.also) == ("t.sh:5", ())


def test_the_answer_for_people_is_short_and_aligned(tmp_path: Path) -> None:
    sharing, findings = look(
        tmp_path, "--gres=gpu:1", "--time=60", directives="#SBATCH --cpus-per-task=32"
    )
    assert render("t.sh", findings, sharing, ["t.sh", "t.py"], "").split("\n") == [
        "t.sh with t.py: 1 thing stands in the way of sharing a GPU",
        "",
        "  t.sh:2  --cpus-per-task=32",
        "          the GPU's share is 32 CPUs, so no other job fits",
        "          -> 3 more would fit with --cpus-per-task=8",
        "",
        "Good to know",
        "  no --gpu-mem  whether the members' GPU memory fits together is not checked",
        "                -> say it, as in --gpu-mem=10G",
        "",
        "On one GPU: 1 job like this at a time",
        "  CPUs         32 of 32  1 fits",
        "  host memory  an equal share of 128000 MB",
        "  GPU memory   not stated, 76000 MB are usable",
    ]
