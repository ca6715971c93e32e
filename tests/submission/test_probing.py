"""What csub asks for where a job may be probed, and the call of `csub probe`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.usage_profile import HeldUp, Observation
from slurm_colloc.planning.join_fit import merge_policies
from slurm_colloc.report.profile_view import render_profile
from slurm_colloc.settings import Settings
from slurm_colloc.store.profile_updates import add_held_up, add_observations
from slurm_colloc.store.profiles import (
    compute_family,
    compute_kind,
    compute_signature,
    list_profiles,
)
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.plan.call_policy import choose_policy
from slurm_colloc.submission.plan.plan_call import as_probe, compute_measure_s

from .test_collect import collect, write

OPTIONS = ("--gres=gpu:1", "--time=1:00:00")


def margin(call: Call, root: Path, **settings: Any) -> int:
    """What a pack of the call asks for on top, in seconds."""
    chosen = Settings(state_dir=str(root / "state"), start_margin_s=60, **settings)
    policy = choose_policy(call, chosen)
    return policy.start_margin_s + policy.measure_s


def learn(root: Path, call: Call, *, rate: float | None = 10.0) -> None:
    """Write down how fast a call's first job is alone on an H200."""
    candidate = call.candidates[0]
    observation = Observation(
        signature=compute_signature(candidate.script, candidate.job),
        family=compute_family(candidate.script, candidate.job),
        kind=compute_kind(candidate.script, candidate.job),
        name=candidate.job.name,
        gpu_model="NVIDIA H200",
        gpu_uuid="GPU-1",
        source="20120101-000000-a.0/1.1.1",
        at=1.0,
        window_s=30.0,
        steps_per_s=rate,
    )
    assert add_observations(root / "state", [observation]) == []


def test_a_pack_asks_for_time_to_measure_as_long_as_its_job_is_unknown(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "--array=1-3", "a.sh", "--lr", "0.1")
    assert margin(call, tmp_path) == 120
    assert margin(call, tmp_path, pause=False) == 60
    assert margin(call, tmp_path, instrument=False) == 60
    # Another number among the arguments: one family.
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "--lr", "0.2"))
    assert margin(call, tmp_path) == 60
    # Here the number matters.
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "--lr", "0.15"), rate=20.0)
    assert margin(call, tmp_path) == 120
    other = collect(tmp_path, *OPTIONS, "--array=1-3", "a.sh", "--deep", "0.1")
    assert margin(other, tmp_path) == 120


@pytest.mark.parametrize(
    "options",
    [
        (*OPTIONS, "--no-pause"),
        ("--time=1:00:00",),
        ("--gres=gpu:2", "--nodes=2", "--time=1:00:00"),
        (*OPTIONS, "--share=exclusive"),
    ],
)
def test_who_is_not_measured_asks_for_no_time(tmp_path: Path, options: tuple[str, ...]) -> None:
    write(tmp_path)
    assert margin(collect(tmp_path, *options, "--array=1-3", "a.sh"), tmp_path) == 60


def test_who_reported_no_step_alone_is_not_asked_again(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "--array=1-3", "a.sh")
    learn(tmp_path, call, rate=None)
    assert margin(call, tmp_path) == 60


def test_a_job_by_itself_asks_for_a_window_only_where_it_joins(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh")
    settings = Settings(state_dir=str(tmp_path / "state"))
    alone = choose_policy(call, settings)
    assert (alone.measure_s, compute_measure_s(call.candidates, settings)) == (0, 60)
    joiner = dataclasses.replace(alone, measure_s=200)
    assert merge_policies(alone, joiner).measure_s == 200


@pytest.mark.parametrize(("given", "asked"), [("1-0", "0:11:00"), ("5", "0:05:00")])
def test_probe_asks_for_little_time(tmp_path: Path, given: str, asked: str) -> None:
    write(tmp_path, directives=f"#SBATCH --time={given} --time-min=3 --qos=high")
    settings = Settings(state_dir=str(tmp_path / "state"))
    call = collect(tmp_path, "--gres=gpu:1", "--degree=4", "--share=mps", "a.sh")
    call = as_probe(call, settings)
    (candidate,) = call.candidates
    shape = dict(candidate.job.shape)
    assert shape["time"] == asked
    assert "time-min" not in shape
    assert dict(candidate.job.group)["qos"] == "high"
    assert candidate.job.only_probe
    policy = choose_policy(call, settings)
    assert (policy.degree, policy.share) == (1, "exclusive")
    # It is the same job to a search for its usage profile.
    later = collect(tmp_path, "--gres=gpu:1", "a.sh").candidates[0]
    assert compute_signature(candidate.script, candidate.job) == compute_signature(
        later.script, later.job
    )


def test_probe_without_a_time_limit_asks_for_eleven_minutes(tmp_path: Path) -> None:
    write(tmp_path, directives="#SBATCH --array=1-9")
    call = collect(tmp_path, "--gres=gpu:1", "--array=3", "a.sh")
    (candidate,) = as_probe(call, Settings()).candidates
    assert dict(candidate.job.shape)["time"] == "0:11:00"
    assert candidate.job.array_task is not None


@pytest.mark.parametrize(
    ("options", "settings", "told"),
    [
        ((), {}, "a.sh asks for no GPU"),
        (("--gres=gpu:2",), {}, "a.sh asks for 2 GPUs"),
        (("--gres=gpu:1", "--array=1-2"), {}, "csub probe takes one job"),
        (("--gres=gpu:1", "--mem=500M"), {}, "--mem is 500 MB"),
        (("--gres=gpu:1", "--no-instrument"), {}, "nothing counts its steps"),
        (("--gres=gpu:1",), {"instrument": False}, "nothing counts its steps"),
        (("--gres=gpu:1",), {"monitor": False}, "monitor = false"),
    ],
)
def test_probe_needs_one_job_on_one_gpu_that_can_be_measured(
    tmp_path: Path, options: tuple[str, ...], settings: dict[str, Any], told: str
) -> None:
    write(tmp_path)
    with pytest.raises(UsageProblem, match=told):
        as_probe(collect(tmp_path, *options, "a.sh"), Settings(**settings))


@pytest.mark.parametrize(
    ("measured", "asked"),
    [
        ([], ["1"]),
        (["1"], []),
        (["1"], ["1", "--fast"]),
        (["--width=1024"], ["--width=8192"]),
        (["--seed=0"], ["--seed=1"]),
        (["resnet18"], ["resnet152", "--lr", "0.1"]),
    ],
)
def test_the_same_script_with_any_other_arguments_is_a_relative(
    tmp_path: Path, measured: list[str], asked: list[str]
) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "--array=1-3", "a.sh", *asked)
    assert margin(call, tmp_path) == 120
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", *measured))
    assert margin(call, tmp_path) == 60


def test_stalls_are_told_instead_of_a_usage_profile(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, "--gres=gpu:1", "--stalls", "a.sh")
    (candidate,) = as_probe(call, Settings()).candidates
    assert candidate.job.only_probe
    assert candidate.job.tells_stalls
    # Exchange between several GPUs is told, and no usage profile made.
    (several,) = as_probe(
        collect(tmp_path, "--gres=gpu:2", "--stalls", "a.sh"), Settings()
    ).candidates
    assert (several.job.gpus, several.job.tells_stalls) == (2, True)
    with pytest.raises(UsageProblem, match="asks for no GPU"):
        as_probe(collect(tmp_path, "--stalls", "a.sh"), Settings())
    with pytest.raises(UsageProblem, match="--stalls needs what counts steps"):
        as_probe(
            collect(
                tmp_path, "--gres=gpu:1", "--stalls", "--no-instrument", "--progress-regex=(.)",
                "a.sh",
            ),
            Settings(),
        )  # fmt: skip


def test_what_holds_a_job_up_is_kept_with_a_usage_profile_that_is_there(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh")
    candidate = call.candidates[0]
    signature = compute_signature(candidate.script, candidate.job)
    told = HeldUp(signature, "NVIDIA H200", 0.1, 0.4, None)
    root = tmp_path / "state"
    assert add_held_up(root, [told]) == []
    assert list_profiles(root)[0] == []
    learn(tmp_path, call)
    assert add_held_up(root, [told]) == []
    (record,) = list_profiles(root)[0]
    assert (record.copies_share, record.decoding_share, record.disk_share) == (0.1, 0.4, None)
    assert record.samples == 1
    assert "decoding 40 %" in render_profile(record, 80)
