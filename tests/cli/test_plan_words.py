"""What `csub plan` says of the user's own words: too small, too large, twice, or no number."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from slurm_colloc.cli.plan_command import parse_changes
from slurm_colloc.errors import UsageProblem
from slurm_colloc.store.calibrations import calibration_path, user_folder, write_calibration
from slurm_colloc.submission.jobs.job_options import parse_slowdown
from slurm_colloc.submission.plan.target_nodes import NODES_KEPT_S

from .test_plan import BIG, CALIBRATION, SMALL, LoginNode

LESS = (
    "small.sh: --gpu-mem=2048M counts, but its earlier runs took up to 6000 MB: "
    "it may run out of GPU memory"
)
TOO_LARGE = (
    "csub: error: small.sh: --gpu-mem=204800M is more than the GPU's 143771 MB: "
    "ask for another GPU type, or for less\n"
)


NO_GPU = (
    "csub: error: small.sh: --gpu-mem=512000M is more than any GPU has (at most 294912 MB): ask "
    "for less; --gpu-mem is for all of the job's processes on one GPU\n"
)


@pytest.fixture
def node(tmp_path: Path) -> LoginNode:
    return LoginNode(tmp_path)


@pytest.mark.parametrize("words", [("pack", SMALL, SMALL), (SMALL,), ("--array=1-3", SMALL)])
def test_gpu_memory_that_no_gpu_has_is_refused_although_nothing_is_known(
    node: LoginNode, words: tuple[str, ...]
) -> None:
    done = node.csub("plan", "--gpu-mem=500G", *words)
    assert (done.returncode, done.stderr) == (3, NO_GPU)
    config = node.home / ".config" / "slurm_colloc"
    config.mkdir(parents=True)
    (config / "settings.toml").write_text('[gpu_memory]\nany = "576G"\n')
    assert node.csub("plan", "--gpu-mem=500G", *words).returncode == 0


def test_gpu_memory_below_what_was_measured_counts_and_is_told(node: LoginNode) -> None:
    node.learn_small()
    found = node.plan("--gpu-mem=2G", "pack", SMALL, SMALL)
    assert found["reasons"] == [LESS]
    assert {m["gpu_memory_mb"] for pack in found["packs"] for m in pack["members"]} == {2048}
    assert node.plan("--gpu-mem=2G", SMALL)["reasons"] == [LESS]
    for enough in ("6000M", "7G"):
        assert node.plan(f"--gpu-mem={enough}", "pack", SMALL, SMALL)["reasons"] == []
    done = node.csub("plan", "--gpu-mem=2G", SMALL)
    assert done.stderr == f"csub: {LESS}\n"
    done = node.csub("plan", "--explain", "--gpu-mem=2G", SMALL, COLUMNS="200")
    assert done.stderr == ""
    assert f"Plan: {LESS}" in done.stdout
    done = node.csub("plan", "--what-if=gpu-mem=2G", "pack", SMALL, SMALL)
    assert done.stderr == f"csub: with gpu-mem=2G: {LESS}\n"


def test_gpu_memory_below_that_of_relatives_is_told(node: LoginNode) -> None:
    node.learn_small()
    words = ("--array=1-2", SMALL)
    told = LESS.replace("its earlier runs", "its relatives")
    assert node.plan("--gpu-mem=2G", *words)["reasons"] == [told]
    assert node.plan("--gpu-mem=7G", *words)["reasons"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu-mem=200G", "pack", SMALL, SMALL],
        ["--gpu-mem=200G", "--array=1-3", SMALL],
        ["--gpu-mem=200G", SMALL],
        ["--what-if=gpu-mem=200G", "--array=1-3", SMALL],
        ["--what-if=gpu-mem=200G", SMALL],
        ["--local", "--gpu-mem=200G", SMALL],
    ],
)
def test_more_gpu_memory_than_the_watched_gpu_has_is_refused(
    node: LoginNode, words: list[str]
) -> None:
    node.learn_small()
    done = node.csub("plan", *words)
    told = TOO_LARGE
    if words[0].startswith("--what-if"):
        # The user gave no --gpu-mem.
        told = told.replace("--gpu-mem=", "").replace("error: ", f"error: {words[0]}: ")
    assert (done.returncode, done.stderr) == (3, told)


def test_gpu_memory_of_a_gpu_that_nobody_watched_is_not_judged(node: LoginNode) -> None:
    assert node.plan("--gpu-mem=200G", SMALL)["packs"]
    node.learn_small()
    # Where GPUs are of several types another may have as much.
    node.forget_nodes()
    (node.home / "bin" / "sinfo").write_text(
        "#!/bin/sh\necho 'gpu*|64|512000|gpu:h200:4|1-00:00:00|n/a'\n"
        "echo 'gpu*|64|512000|gpu:b300:4|1-00:00:00|n/a'\n"
    )
    (node.home / "any.sh").write_text(
        (node.home / SMALL).read_text().replace("gpu:h200:1", "gpu:1")
    )
    node.learn("any.sh", sm_active=0.1, dram_active=0.03, gpu_memory_peak_mb=6000.0)
    assert node.plan("--gpu-mem=200G", "any.sh")["packs"]


NO_SLOWDOWNS = ["abc", "", "0.5", "101", "nan", "inf", "1_5", "1,5", "-2", "\u0661"]


@pytest.mark.parametrize("value", NO_SLOWDOWNS)
def test_a_slowdown_that_is_no_number_is_refused_in_a_sentence(value: str) -> None:
    with pytest.raises(ValueError, match="a number from 1 to 100 is needed, such as") as problem:
        parse_slowdown(value)
    assert "float" not in str(problem.value)


def test_slowdowns_are_read() -> None:
    assert [parse_slowdown(text) for text in ("1", "1.5", "2.", "100")] == [1, 1.5, 2, 100]


def test_a_wrong_slowdown_is_told_with_its_place(node: LoginNode) -> None:
    rest = "a number from 1 to 100 is needed, such as 1.5 for at most 1.5 times slower than alone\n"
    done = node.csub("plan", "--max-slowdown=abc", SMALL)
    assert done.returncode == 2
    assert done.stderr == f"csub: error: the command line: --max-slowdown=abc: {rest}"
    (node.home / BIG).write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n#CSUB --max-slowdown=abc\n")
    for words in (["plan", BIG], [BIG]):
        done = node.csub(*words)
        assert done.returncode == 2
        assert done.stderr == f"csub: error: {BIG}:3: --max-slowdown=abc: {rest}"
    done = node.csub("plan", "--what-if=max-slowdown=abc", SMALL)
    assert done.returncode == 2
    assert done.stderr == f"csub: error: --what-if: max-slowdown='abc': {rest}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("degree=4,degree=5", "degree is given twice, as '4' and '5'"),
        ("degree=4,mode=mps,degree=4", "degree is given twice"),
        ("mode=exclusive,degree=4", "degree='4' contradicts it"),
        ("", "it names no change"),
    ],
)
def test_changes_that_contradict_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageProblem) as problem:
        parse_changes(text)
    assert str(problem.value).startswith("--what-if: ")
    assert message in str(problem.value)


def test_changes_that_agree_are_read(node: LoginNode) -> None:
    changes = {"mode": "exclusive", "degree": "1"}
    assert parse_changes("mode=exclusive,degree=1") == changes
    done = node.csub("plan", "--what-if=", SMALL)
    assert done.returncode == 2
    assert "it names no change" in done.stderr


def test_the_calibration_of_each_group_is_named(node: LoginNode) -> None:
    assert node.plan("--array=1-2", SMALL)["calibrations"] == []
    assert node.plan("--gpu-mem=3G", "--array=1-2", SMALL)["calibrations"] == []
    other = dataclasses.replace(CALIBRATION, gpu_model="NVIDIA A30", residual=0.09)
    write_calibration(calibration_path(user_folder(node.state), "NVIDIA A30"), other)
    node.learn_small()
    node.forget_nodes()
    (node.home / "bin" / "sinfo").write_text(
        '#!/bin/sh\necho "gpu*|64|512000|gpu:h200:4,gpu:a30:4|1-00:00:00|n/a"\n'
    )
    (node.home / "a30.sh").write_text(
        (node.home / SMALL).read_text().replace("h200", "a30").replace("small", "a30")
    )
    node.learn("a30.sh", gpu_model="NVIDIA A30", sm_active=0.2, dram_active=0.1,
               gpu_memory_peak_mb=3000.0)  # fmt: skip
    # Another group of the same calibration.
    (node.home / "any.sh").write_text(
        (node.home / SMALL).read_text().replace("gpu:h200:1", "gpu:h200:1 --partition=other")
    )
    node.learn("any.sh", sm_active=0.2, dram_active=0.1, gpu_memory_peak_mb=3000.0)
    call = ("pack", SMALL, "a30.sh", SMALL, "a30.sh")
    found = node.plan(*call)
    assert [(c["gpu_model"], c["residual"]) for c in found["calibrations"]] == [
        ("NVIDIA H200", 0.05),
        ("NVIDIA A30", 0.09),
    ]
    assert "calibration" not in found
    assert len(node.plan("pack", SMALL, "any.sh")["calibrations"]) == 1


def test_energy_stands_in_the_comparison(node: LoginNode) -> None:
    calibration = dataclasses.replace(CALIBRATION, idle_power_w=75.0, power_limit_w=700.0)
    write_calibration(calibration_path(user_folder(node.state), "NVIDIA H200"), calibration)
    node.learn(SMALL, sm_active=0.1, dram_active=0.03, engine_active=0.25,
               gpu_memory_peak_mb=6000.0, energy_w=160.0, idle_power_w=75.0)  # fmt: skip
    found = node.plan("--what-if=mode=exclusive", "pack", *[SMALL] * 4)
    figures = found["what_if"]["figures"]
    assert None not in figures.values()
    assert figures["energy_wh"] == pytest.approx(4 * 160 * 540 / 3600)
    # At least what the work takes above what a GPU at work draws by itself.
    assert figures["energy_wh"] > found["figures"]["energy_wh"] > 4 * 39 * 540 / 3600
    done = node.csub("plan", "--what-if=mode=exclusive", "pack", *[SMALL] * 4, COLUMNS="80")
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("GPU energy (Wh)")]
    assert "unknown" not in row


def test_a_job_that_never_used_the_gpu_is_told_that_it_needs_none(node: LoginNode) -> None:
    node.learn_small(sm_active=0.0)
    told = (
        "small.sh: its earlier runs never used the GPU (SM activity 0 %): a job without --gres "
        "starts sooner"
    )
    assert node.plan(SMALL)["reasons"] == [told]
    # What is only known of relatives says nothing of this one.
    assert node.plan("--array=1-2", SMALL)["reasons"] == []
    node.learn_big()
    assert node.plan(BIG)["reasons"] == []


def test_nodes_are_asked_for_once_a_minute_and_anew_for_a_type_that_was_not_there(
    node: LoginNode,
) -> None:
    asked = node.home / "asked"
    answer = f"echo x >> {asked}; echo 'gpu*|64|512000|gpu:%s:4|1-00:00:00|n/a'\n"
    sinfo = node.home / "bin" / "sinfo"
    sinfo.write_text("#!/bin/sh\n" + answer % "h200")
    for _ in range(2):
        assert node.plan(SMALL)["packs"]
    assert asked.read_text() == "x\n"
    sinfo.write_text("#!/bin/sh\n" + answer % "b300")
    (node.home / "new.sh").write_text((node.home / SMALL).read_text().replace("h200", "b300"))
    assert node.plan("new.sh")["packs"]
    assert asked.read_text() == "x\nx\n"
    kept = node.state / "waits" / "nodes.json"
    value = json.loads(kept.read_text())
    kept.write_text(json.dumps({**value, "made_at": value["made_at"] - NODES_KEPT_S - 1}))
    assert node.plan("new.sh")["packs"]
    assert asked.read_text() == "x\nx\nx\n"
