"""What is known of the jobs of a call: own runs, family, a named job, the user's words."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.measured_curve import KnownCurve, KnownPoint
from slurm_colloc.model.plan import KnownBy, SharingMode, UsageProfile
from slurm_colloc.model.usage_profile import Completion, MeasuredBy, Observation
from slurm_colloc.settings import Settings
from slurm_colloc.store import profiles
from slurm_colloc.store.curves import add_curves
from slurm_colloc.store.profile_updates import (
    add_completions,
    add_observations,
    forget_profiles,
)
from slurm_colloc.store.profiles import (
    ProfileNames,
    compute_family,
    compute_kind,
    compute_signature,
    list_profiles,
    profile_path,
)
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.plan.known_jobs import Knowledge, gather_knowledge

from .test_collect import collect, write

OPTIONS = ("--gres=gpu:1", "--time=1:00:00")
H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-40GB"


def learn(root: Path, call: Call, *, gpu: str = H200, at: float | None = None, **seen: Any) -> None:
    """Write down what the first job of a call used alone."""
    candidate = call.candidates[0]
    observation = Observation(
        signature=compute_signature(candidate.script, candidate.job),
        family=compute_family(candidate.script, candidate.job),
        kind=compute_kind(candidate.script, candidate.job),
        name=candidate.job.name,
        gpu_model=gpu,
        gpu_uuid="GPU-1",
        source=f"20260101-000000-a.{time.monotonic_ns()}/1.1.1",
        at=time.time() if at is None else at,
        window_s=30.0,
        **{"steps_per_s": 10.0, "sm_active": 0.3, "gpu_memory_peak_mb": 4000.0, **seen},
    )
    assert add_observations(root / "state", [observation]) == []


def ask(root: Path, call: Call) -> Knowledge:
    settings = Settings(state_dir=str(root / "state"), calibration_dir=str(root / "site"))
    return gather_knowledge(call.candidates, settings)


def test_own_runs_come_before_the_family_and_that_before_a_named_job(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "other.sh", "echo other")
    call = collect(tmp_path, *OPTIONS, "--profile-like=big", "a.sh", "0.1")
    learn(tmp_path, collect(tmp_path, *OPTIONS, "--job-name=big", "other.sh"), sm_active=0.9)
    like = ask(tmp_path, call).profiles[0]
    assert (like.known_by, like.sm_activity) == (KnownBy.LIKE, 0.9)
    assert (like.steps_per_s, like.run_s) == (None, None), "its steps are its own"
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "0.2"), sm_active=0.4)
    found = ask(tmp_path, call).profiles[0]
    assert (found.known_by, found.sm_activity) == (KnownBy.FAMILY, 0.4)
    learn(tmp_path, call, sm_active=0.5)
    found = ask(tmp_path, call).profiles[0]
    assert (found.known_by, found.sm_activity, found.gpu_model) == (KnownBy.EXACT, 0.5, H200)
    assert found.gpu_memory_peak_mb == 4000


def test_nothing_is_known_where_nothing_was_measured(tmp_path: Path) -> None:
    write(tmp_path)
    found = ask(tmp_path, collect(tmp_path, *OPTIONS, "a.sh"))
    assert (found.profiles, found.reasons, found.problems) == ({}, (), ())
    found = ask(tmp_path, collect(tmp_path, *OPTIONS, "--gpu-mem=3G", "a.sh"))
    assert found.profiles[0].known_by is KnownBy.STATED
    assert found.profiles[0].sm_activity is None


def test_relatives_that_disagree_tell_no_more_than_their_memory(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh", "3")
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "1"), steps_per_s=10.0, sm_active=0.2)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "2"), steps_per_s=10.5, sm_active=0.4,
          gpu_memory_peak_mb=6000.0)  # fmt: skip
    found = ask(tmp_path, call).profiles[0]
    assert found.sm_activity == pytest.approx(0.3)
    assert found.steps_per_s == pytest.approx(10.25)
    assert found.gpu_memory_peak_mb == 6000
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "4"), steps_per_s=20.0)
    unknown = ask(tmp_path, call)
    (kept,) = unknown.profiles.values()
    assert kept == UsageProfile(
        gpu_memory_peak_mb=6000, known_by=KnownBy.UNKNOWN, gpu_model="NVIDIA H200"
    )
    assert "differ by more than 10 %" in unknown.reasons[0]
    assert "only their largest GPU memory" in unknown.reasons[0]


def test_the_memory_counts_where_a_gpu_tells_no_activity(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh")
    learn(tmp_path, call, gpu=A100, sm_active=None, gpu_memory_peak_mb=30_000.0,
          gpu_memory_total_mb=40_960.0)  # fmt: skip
    found = ask(tmp_path, call)
    assert found.gpu_memory_mb == 40_960
    assert found.profiles[0].gpu_memory_peak_mb == 30_000
    assert not any("no calibration" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("name", "hint"), [("trian", "did you mean 'train'?"), ("q", "profile list")]
)
def test_a_named_job_that_is_not_there_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    write(tmp_path)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "--job-name=train", "a.sh"))
    with pytest.raises(UsageProblem, match="--profile-like") as problem:
        ask(tmp_path, collect(tmp_path, *OPTIONS, f"--profile-like={name}", "a.sh", "b"))
    assert hint in str(problem.value)


def test_a_named_job_may_be_given_by_its_signature(tmp_path: Path) -> None:
    write(tmp_path)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh"))
    digits = list_profiles(tmp_path / "state")[0][0].signature[:6]
    like = collect(tmp_path, *OPTIONS, f"--profile-like={digits}", "a.sh", "x")
    assert ask(tmp_path, like).profiles[0].known_by is KnownBy.LIKE


def test_only_the_asked_gpu_model_counts(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, "--gres=gpu:h200:1", "a.sh")
    learn(tmp_path, call, gpu=A100, sm_active=0.8)
    found = ask(tmp_path, call)
    profile = found.profiles[0]
    assert (profile.known_by, profile.sm_activity) == (KnownBy.UNKNOWN, None)
    assert profile.gpu_memory_peak_mb == 4000, "the room comes with the limit"
    assert "measured on NVIDIA A100-SXM4-40GB only" in found.reasons[0]
    learn(tmp_path, call, gpu=H200, sm_active=0.3)
    assert ask(tmp_path, call).profiles[0].sm_activity == 0.3
    older = collect(tmp_path, "--gres=gpu:a100:1", "a.sh")
    assert ask(tmp_path, older).profiles[0].sm_activity == 0.8


def test_without_a_type_the_gpu_model_that_was_used_last_counts(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "--array=1-3", "a.sh")
    learn(tmp_path, call, gpu=H200, sm_active=0.3, at=time.time() - 60)
    assert ask(tmp_path, call).reasons == (), "there is one GPU model only"
    learn(tmp_path, call, gpu=A100, sm_active=0.8)
    found = ask(tmp_path, call)
    assert found.profiles[0].sm_activity == 0.8
    assert "no GPU type is asked for" in found.reasons[0]
    assert found.profiles[1].known_by is KnownBy.FAMILY


def test_an_old_profile_is_used_and_named(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh")
    learn(tmp_path, call, at=time.time() - 100 * 86400)
    found = ask(tmp_path, call)
    assert found.profiles[0].known_by is KnownBy.EXACT
    assert "its usage profile is 100 days old" in found.reasons[0]


def test_a_damaged_profile_is_named_and_the_family_counts(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh", "1")
    learn(tmp_path, call)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "2"))
    signature = compute_signature(call.candidates[0].script, call.candidates[0].job)
    path = profile_path(tmp_path / "state", signature, H200)
    path.write_text('{"schema": 1')
    found = ask(tmp_path, call)
    assert found.profiles[0].known_by is KnownBy.FAMILY
    assert found.problems[0].startswith(f"{path}: it is not JSON")
    path.write_text('{"schema": 9}')
    assert "schema" in ask(tmp_path, call).problems[0]


def test_who_asks_for_no_gpu_or_several_is_not_looked_up(tmp_path: Path) -> None:
    write(tmp_path)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh"))
    assert ask(tmp_path, collect(tmp_path, "--gres=gpu:2", "a.sh")).profiles == {}
    assert ask(tmp_path, collect(tmp_path, "a.sh")).profiles == {}


def test_the_steps_of_ended_runs_tell_how_long_one_takes(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh")
    candidate = call.candidates[0]
    done = Completion(compute_signature(candidate.script, candidate.job), H200, "p/1", 6000.0)
    assert add_completions(tmp_path / "state", [done]) == []
    assert list_profiles(tmp_path / "state")[0] == [], "steps alone make no profile"
    learn(tmp_path, call)
    assert ask(tmp_path, call).profiles[0].run_s is None
    for source in ("p/1", "p/1", "p/2"):
        add_completions(tmp_path / "state", [dataclasses.replace(done, source=source)])
    assert ask(tmp_path, call).profiles[0].run_s == pytest.approx(600)
    (record,), _ = list_profiles(tmp_path / "state")
    assert record.steps_total is not None
    assert record.steps_total.n == 2, "a run counts once"


def test_the_memory_of_the_gpu_is_what_the_monitor_saw(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh")
    learn(tmp_path, call, gpu_memory_total_mb=143771)
    assert ask(tmp_path, call).gpu_memory_mb == 143771


def test_only_the_files_of_the_family_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    write(tmp_path, "other.sh", "echo other")
    for word in "bcdefg":
        learn(tmp_path, collect(tmp_path, *OPTIONS, "other.sh", word))
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "1"))
    opened: list[str] = []
    read = profiles.read_profile_file

    def watch(path: Path) -> Any:
        opened.append(path.name)
        return read(path)

    monkeypatch.setattr(profiles, "read_profile_file", watch)
    call = collect(tmp_path, *OPTIONS, "a.sh", "2")
    assert ask(tmp_path, call).profiles[0].known_by is KnownBy.FAMILY
    assert len(opened) == 1
    # Where there is no index, it is made once.
    (tmp_path / "state" / "profiles" / "families").unlink()
    opened.clear()
    assert ask(tmp_path, call).profiles[0].known_by is KnownBy.FAMILY
    assert len(opened) == 8
    opened.clear()
    ask(tmp_path, call)
    assert len(opened) == 1


def test_an_index_that_was_cut_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    root = tmp_path / "state"
    calls = [collect(tmp_path, *OPTIONS, "a.sh", number) for number in "1234"]
    for call in calls[:3]:
        learn(tmp_path, call)
    index = root / "profiles" / "families"
    whole = index.read_bytes()
    family = compute_family(calls[0].candidates[0].script, calls[0].candidates[0].job)
    for cut in range(0, len(whole) + 1, 5):
        index.write_bytes(whole[:cut])
        # Somebody adds one behind a line that was cut.
        learn(tmp_path, calls[3])
        assert len(profiles.read_family(root, family)[0]) == 4
        assert len(profiles.read_family(root, family)[0]) == 4
        signature = compute_signature(calls[3].candidates[0].script, calls[3].candidates[0].job)
        forget_profiles(root, [r for r in list_profiles(root)[0] if r.signature == signature])
        assert len(profiles.read_family(root, family)[0]) == 3
    assert len(ProfileNames(root).names) == 3


def test_a_name_among_profiles_that_cannot_be_read_is_told_with_why(tmp_path: Path) -> None:
    write(tmp_path)
    folder = tmp_path / "state/profiles"
    folder.mkdir(parents=True)
    (folder / f"{'0' * 32}.nvidia-h200.json").write_text("{")
    with pytest.raises(UsageProblem, match=r"no usage profile can be read: .*nvidia-h200\.json"):
        ask(tmp_path, collect(tmp_path, *OPTIONS, "--profile-like=big", "a.sh", "b"))


@pytest.mark.parametrize(
    ("measured", "asked"),
    [((), ("1",)), (("1",), ()), (("1",), ("7", "--lr=0.1")), (("resnet18",), ("resnet152",))],
)
def test_the_same_script_with_any_arguments_is_a_relative(
    tmp_path: Path, measured: tuple[str, ...], asked: tuple[str, ...]
) -> None:
    write(tmp_path)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", *measured))
    found = ask(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", *asked)).profiles[0]
    assert (found.known_by, found.steps_per_s) == (KnownBy.FAMILY, 10.0)
    assert found.gpu_memory_peak_mb == 4000


def test_the_closest_relatives_come_before_those_with_other_words(tmp_path: Path) -> None:
    write(tmp_path)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "small", "1"), gpu_memory_peak_mb=2000.0)
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "large", "1"), steps_per_s=2.0,
          gpu_memory_peak_mb=9000.0)  # fmt: skip
    small = ask(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "small", "2")).profiles[0]
    assert (small.steps_per_s, small.gpu_memory_peak_mb) == (10.0, 2000)
    large = ask(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "large")).profiles[0]
    assert (large.steps_per_s, large.gpu_memory_peak_mb) == (2.0, 9000)
    # Of another the range is known: nothing of its rate, and the upper end of the memory.
    other = ask(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "huge"))
    assert other.profiles[0] == UsageProfile(gpu_memory_peak_mb=9000, gpu_model=H200)
    assert any("only their largest GPU memory" in reason for reason in other.reasons)


def test_relatives_that_a_noisy_host_sets_apart_may_still_have_one_curve(tmp_path: Path) -> None:
    write(tmp_path)
    for seed, rate in (("1", 9.0), ("2", 12.0)):
        learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", seed), steps_per_s=rate)
    call = collect(tmp_path, *OPTIONS, "a.sh", "3")
    candidate = call.candidates[0]
    family = compute_family(candidate.script, candidate.job)
    found = ask(tmp_path, call)
    assert found.profiles[0] == UsageProfile(gpu_memory_peak_mb=4000, gpu_model=H200, family=family)
    assert found.curves == ()
    curve = KnownCurve((family,), H200, SharingMode.MPS, (KnownPoint(12, 8.4),))
    other = dataclasses.replace(curve, gpu_model=A100)
    assert add_curves(tmp_path / "state", [curve, other]) == []
    assert ask(tmp_path, call).curves == (curve,)
    # Where the load of all is known it is predicted.
    learn(tmp_path, call, dram_active=0.1)
    assert ask(tmp_path, call).curves == ()


def test_of_who_ran_in_company_the_memory_counts_and_its_relatives_tell_the_rest(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    call = collect(tmp_path, *OPTIONS, "a.sh", "1")
    company: dict[str, Any] = {
        "measured_by": MeasuredBy.COMPANY,
        "steps_per_s": None,
        "sm_active": None,
    }
    learn(tmp_path, call, gpu_memory_peak_mb=6000.0, **company)
    found = ask(tmp_path, call).profiles[0]
    # What a pack has measured of its family counts, too.
    assert found.family
    assert dataclasses.replace(found, family="") == UsageProfile(
        gpu_memory_peak_mb=6000, gpu_model=H200
    )
    learn(tmp_path, collect(tmp_path, *OPTIONS, "a.sh", "2"), measured_by=MeasuredBy.PAUSING)
    found = ask(tmp_path, call).profiles[0]
    assert (found.known_by, found.steps_per_s) == (KnownBy.FAMILY, 10.0)
    assert found.gpu_memory_peak_mb == 6000
