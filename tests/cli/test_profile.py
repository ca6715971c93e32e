"""`csub profile`, and the files it handles."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import PeakSource
from slurm_colloc.model.usage_profile import (
    MeasuredBy,
    Observation,
    ProfileRecord,
    RunningStatistics,
    ShrunkenMean,
)
from slurm_colloc.report.profile_view import render_profile
from slurm_colloc.store.profile_updates import add_observations, import_profiles
from slurm_colloc.store.profiles import (
    build_profile_mapping,
    compute_family,
    compute_kind,
    compute_signature,
    list_profiles,
    parse_profile,
    profile_path,
    read_profile_file,
    slug_gpu_model,
)

from ..calls import UserWithoutSlurm

OBSERVATION = Observation(
    signature="0123456789abcdef" * 2, family="f" * 32, name="train\x1b[31m",
    gpu_model="NVIDIA H200", gpu_uuid="GPU-1", source="p/1.1.1", at=1e9, window_s=60,
    gpu_memory_peak_mb=1000, sm_active=0.4, cpu_cores=1.5, steps_per_s=20.0, energy_w=300,
)  # fmt: skip


def observe(run: int, **changes: Any) -> Observation:
    return dataclasses.replace(OBSERVATION, source=f"p/{run}", at=1e9 + run, **changes)


@pytest.fixture
def person(tmp_path: Path) -> UserWithoutSlurm:
    return UserWithoutSlurm(tmp_path)


@given(st.lists(st.floats(0.001, 1e6), min_size=2, max_size=30))
def test_mean_and_spread_are_those_of_all_runs(values: list[float]) -> None:
    found = RunningStatistics.start(values[0])
    for value in values[1:]:
        found = found.add(value)
    assert found.n == len(values)
    assert found.last == values[-1]
    assert math.isclose(found.mean, statistics.fmean(values), rel_tol=1e-9)
    assert found.sd == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)


def test_what_a_run_does_not_know_changes_nothing() -> None:
    record = ProfileRecord.start(observe(1)).add(observe(2, sm_active=None, steps_per_s=None))
    assert record.sm_active == 0.4
    assert record.steps_per_s is not None
    assert record.steps_per_s.n == 1
    assert record.samples == 2
    assert record.dram_active is None
    assert record.add(observe(2)) is record, "a run counts once"
    assert record.for_planning().gpu_memory_peak_mb == 1000


def test_packs_that_end_together_lose_nothing(tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: add_observations(tmp_path, [observe(run)]), range(40)))
    record = read_profile_file(profile_path(tmp_path, OBSERVATION.signature, "NVIDIA H200"))
    assert record is not None
    assert record.samples == 40
    assert sorted(path.suffix for path in (tmp_path / "profiles").iterdir()) == ["", "", ".json"]


def test_a_family_is_a_script_and_a_kind_its_words() -> None:
    job = Job(1, "a", "a.sh", ("--lr", "0.1", "--epochs=90"), "/")
    other = dataclasses.replace(job, arguments=("--lr", "3e-4", "--epochs=5"))
    named = dataclasses.replace(job, arguments=("--model", "vit", "resnet18"))
    assert len({compute_signature(b"x", j) for j in (job, other, named)}) == 3
    assert len({compute_family(b"x", j) for j in (job, other, named)}) == 1
    assert compute_family(b"x", job) != compute_family(b"y", job)
    assert compute_kind(b"x", job) == compute_kind(b"x", other) != compute_kind(b"x", named)
    bare, numbered = (dataclasses.replace(job, arguments=a) for a in ((), ("1", "2")))
    assert compute_kind(b"x", bare) == compute_kind(b"x", numbered)


def test_a_gpu_model_makes_a_harmless_file_name(tmp_path: Path) -> None:
    assert slug_gpu_model("NVIDIA H200") == "nvidia-h200"
    assert profile_path(tmp_path, "a", "../../x\x00/y").parent == tmp_path / "profiles"
    assert slug_gpu_model("\u202e") == "unknown"


def test_json_and_back() -> None:
    record = ProfileRecord.start(observe(1)).add(observe(2, steps_per_s=22.0))
    text = json.dumps(build_profile_mapping(record))
    assert parse_profile(json.loads(text), "x") == record
    learnt = dataclasses.replace(
        record, sensitivity=ShrunkenMean(-0.3, 4), pressure=ShrunkenMean(3.0, 3), compared=("p",)
    )
    text = json.dumps(build_profile_mapping(learnt))
    assert parse_profile(json.loads(text), "x") == learnt
    assert learnt.for_planning().sensitivity == pytest.approx(-0.3 / 6)
    assert learnt.for_planning().pressure == pytest.approx(3.0 / 5)


def test_what_is_written_is_read_however_long_the_name_of_the_job() -> None:
    record = ProfileRecord.start(observe(1, name="x" * 5000))
    found = parse_profile(json.loads(json.dumps(build_profile_mapping(record))), "x")
    assert found == dataclasses.replace(record, name="x" * 1000)


def test_what_a_newer_csub_adds_is_passed_over() -> None:
    record = ProfileRecord.start(OBSERVATION)
    mapping = build_profile_mapping(record)
    assert parse_profile({**mapping, "of_tomorrow": [1]}, "x") == record
    assert (record.for_planning().sensitivity, record.for_planning().pressure) == (0.0, 0.0)


def test_how_it_was_measured_is_kept() -> None:
    record = ProfileRecord.start(observe(1, measured_by=MeasuredBy.PAUSING))
    mapping = json.loads(json.dumps(build_profile_mapping(record)))
    assert mapping["measured_by"] == "pausing"
    assert parse_profile(mapping, "x") == record


def test_what_was_measured_by_pausing_never_takes_the_place_of_a_run_alone(tmp_path: Path) -> None:
    alone = ProfileRecord.start(observe(1))
    by_pausing = ProfileRecord.start(observe(2, measured_by=MeasuredBy.PAUSING))
    by_pausing = by_pausing.add(observe(3, measured_by=MeasuredBy.PAUSING))
    assert by_pausing.samples == 2
    assert import_profiles(tmp_path, [by_pausing]) == [by_pausing]
    assert import_profiles(tmp_path, [alone]) == [alone]
    assert import_profiles(tmp_path, [by_pausing]) == []
    assert list_profiles(tmp_path)[0] == [alone]


def test_who_says_the_largest_peak_is_kept_and_shown() -> None:
    seen = ProfileRecord.start(observe(1, gpu_memory_peak_mb=1170.0))
    assert seen.gpu_memory_by is PeakSource.NVML
    assert "1170 MB at most, by NVML's readings" in render_profile(seen, 100)
    by = PeakSource.ALLOCATOR
    both = seen.add(observe(2, gpu_memory_peak_mb=6804.0, gpu_memory_by=by))
    assert (both.gpu_memory_peak_mb, both.gpu_memory_by) == (6804, PeakSource.ALLOCATOR)
    assert "6804 MB at most, by PyTorch's allocator" in render_profile(both, 100)
    again = parse_profile(json.loads(json.dumps(build_profile_mapping(both))), "x")
    assert again == both
    # A run in which NVML alone saw more: a larger peak is no less true for that.
    more = both.add(observe(3, gpu_memory_peak_mb=9000.0))
    assert (more.gpu_memory_peak_mb, more.gpu_memory_by) == (9000, PeakSource.NVML)
    assert both.add(observe(3, gpu_memory_peak_mb=None)).gpu_memory_by is PeakSource.ALLOCATOR


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", 2), ("signature", "../../etc"), ("samples", "3"), ("samples", 0), ("name", None),
     ("sm_active", "much"), ("sm_active", float("nan")), ("gpu_memory_peak_mb", -1),
     ("steps_per_s", 3), ("steps_per_s", {"mean": 1}), ("gpu_uuids", "GPU-1"), ("seen", [1]),
     ("updated_at", None), ("sensitivity", 0.3), ("sensitivity", {"total": 0.1}),
     ("sensitivity", {"total": 0.1, "n": 0}), ("pressure", {"total": 1.5, "n": 1}),
     ("pressure", {"total": float("nan"), "n": 1}), ("pressure", {"total": None, "n": 1}),
     ("pressure", {"total": 10**400, "n": 2}), ("compared", [None]),
     ("schema", True), ("schema", 1.5), ("samples", True), ("sm_active", True),
     ("updated_at", True), ("steps_per_s", {"mean": True, "sd": 0, "n": 1, "last": 1}),
     ("steps_per_s", {"mean": 1, "sd": 0, "n": True, "last": 1}),
     ("pressure", {"total": True, "n": 1}), ("pressure", {"total": 1, "n": True}),
     ("gpu_memory_total_mb", 0), ("gpu_memory_total_mb", 0.5),
     ("gpu_memory_by", None), ("gpu_memory_by", ["nvml"]),
     ("gpu_model", "x" * 101), ("name", "x" * 1001), ("seen", ["x" * 1001]),
     ("gpu_uuids", ["x"] * 10_001), ("sm_active", 10**400), ("energy_w", float("inf")),
     ("name", [[]] * 900), ("measured_by", ["alone"]),
     ("measured_by", True)],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_key(key: str, value: object) -> None:
    mapping = {**build_profile_mapping(ProfileRecord.start(OBSERVATION)), key: value}
    with pytest.raises(UsageProblem) as caught:
        parse_profile(mapping, "here.json")
    assert str(caught.value).startswith(f"here.json: {key}: ")
    assert "\n" not in str(caught.value)


def test_profiles_are_listed_shown_and_forgotten(person: UserWithoutSlurm) -> None:
    assert "There are no usage profiles" in person.csub("profile", "list").stdout
    other = observe(9, signature="f" * 32, name="vit")
    add_observations(person.state, [observe(1), observe(2, steps_per_s=22.0), other])
    listed = person.csub("profile", "list", COLUMNS="80")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "0123456789ab" in listed.stdout
    assert "\x1b" not in listed.stdout
    shown = person.csub("profile", "show", "0123").stdout
    assert "21 /s over 2 runs" in shown
    assert "1000 MB" in shown
    assert len(json.loads(person.csub("profile", "list", "--json").stdout)) == 2
    assert person.csub("profile", "show", "nobody").returncode == 7
    assert person.csub("profile", "forget").returncode == 2
    assert "1 usage profile." in person.csub("profile", "forget", "vit").stdout
    assert [r.signature for r in list_profiles(person.state)[0]] == [OBSERVATION.signature]
    assert person.csub("profile", "forget", "--all").returncode == 0
    assert list_profiles(person.state) == ([], [])


def test_profiles_travel(person: UserWithoutSlurm, tmp_path: Path) -> None:
    add_observations(person.state, [observe(1), observe(2)])
    exported = person.csub("profile", "export").stdout
    file = tmp_path / "profiles.json"
    file.write_text(exported)
    (tmp_path / "b").mkdir()
    there = UserWithoutSlurm(tmp_path / "b")
    assert "1 usage profile" in there.csub("profile", "import", str(file)).stdout
    assert list_profiles(there.state)[0] == list_profiles(person.state)[0]
    again = there.csub("profile", "import", str(file))
    assert again.returncode == 0
    assert "as many runs or more" in again.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "it is not JSON"), ("3", "must be a usage profile or a list"),
     ('[{"schema": 9}]', "item 1: schema: it is of version 9"),
     ("[" * 100_000, "it is not JSON that csub reads: nested too deep"),
     ("1" * 5000, "a number has too many digits"), ('{"schema": 1, "schema": 2}', "comes twice"),
     ("[" + "3," * 10_000 + "3]", "it has 10001 items, 10000 at most"),
     (" " * ((64 << 20) + 1), "it is larger than 64 MiB"),
     ("NaN", "must be a usage profile or a list")],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_a_bad_file_is_one_sentence_and_changes_nothing(
    person: UserWithoutSlurm, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    done = person.csub("profile", "import", str(file))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "bad.json" in done.stderr
    assert done.stderr.endswith(": nothing was imported\n")
    assert list_profiles(person.state) == ([], [])


def build_two(person: UserWithoutSlurm) -> list[dict[str, Any]]:
    """The JSON forms of two usage profiles, none of which is here."""
    elsewhere = person.home / "elsewhere"
    add_observations(elsewhere, [observe(1), observe(2, signature="a" * 32)])
    return [build_profile_mapping(record) for record in list_profiles(elsewhere)[0]]


def test_an_item_that_is_wrong_is_named_and_none_is_taken_over(person: UserWithoutSlurm) -> None:
    good, other = build_two(person)
    file, second = person.home / "good.json", person.home / "second.json"
    file.write_text(json.dumps([good]))
    second.write_text(json.dumps([good, {**other, "sm_active": -1}]))
    done = person.csub("profile", "import", str(file), str(second))
    assert done.returncode == 2
    assert done.stderr == (
        f"csub: error: {second}: item 2: sm_active: cannot be less than 0, is -1: "
        "nothing was imported\n"
    )
    assert list_profiles(person.state) == ([], [])


def test_all_are_written_or_none(person: UserWithoutSlurm) -> None:
    good, other = build_two(person)
    file = person.home / "two.json"
    file.write_text(json.dumps([good, other]))
    blocked = profile_path(person.state, other["signature"], other["gpu_model"])
    blocked.mkdir(parents=True)
    done = person.csub("profile", "import", str(file))
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == f"csub: error: cannot read {blocked}: it is a directory, no file\n"
    assert list_profiles(person.state)[0] == []
    blocked.rmdir()
    # A profile of a newer csub is not written over.
    blocked.write_text(json.dumps({**other, "schema": 7}))
    done = person.csub("profile", "import", str(file))
    assert done.returncode == 2
    assert f"{blocked}: schema: it is of version 7" in done.stderr
    assert list_profiles(person.state)[0] == []
    assert json.loads(blocked.read_text())["schema"] == 7


def test_a_disk_that_fills_up_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_observations(tmp_path, [observe(1)])
    before = profile_path(tmp_path, OBSERVATION.signature, "NVIDIA H200").read_bytes()
    records = [ProfileRecord.start(observe(n, signature=f"{n:032x}")) for n in range(3)]
    newer = ProfileRecord.start(observe(1)).add(observe(2))
    written = 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal written
        written += 1
        if written > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, data, 0)

    monkeypatch.setattr("slurm_colloc.store.atomic_files.os.write", write)
    with pytest.raises(StateError, match="No space left on device"):
        import_profiles(tmp_path, [newer, *records])
    monkeypatch.undo()
    assert list_profiles(tmp_path) == ([ProfileRecord.start(observe(1))], [])
    assert profile_path(tmp_path, OBSERVATION.signature, "NVIDIA H200").read_bytes() == before
    assert sorted(path.suffix for path in (tmp_path / "profiles").iterdir()) == ["", "", ".json"]


def test_of_several_in_one_file_the_one_of_most_runs_counts(tmp_path: Path) -> None:
    one = ProfileRecord.start(observe(1))
    more = one.add(observe(2))
    assert import_profiles(tmp_path, [one, more, one]) == [more]
    assert list_profiles(tmp_path) == ([more], [])


def test_calls_at_the_same_time_leave_all_or_none(person: UserWithoutSlurm) -> None:
    file = person.home / "two.json"
    file.write_text(json.dumps(build_two(person)))
    words = [("import", str(file)), ("forget", "--all")] * 6
    with concurrent.futures.ThreadPoolExecutor(len(words)) as pool:
        done = list(pool.map(lambda both: person.csub("profile", *both), words))
    assert {(each.returncode, each.stderr) for each in done} == {(0, "")}
    counts = [int(each.stdout.split()[1]) if "Imported" in each.stdout
              else -int(each.stdout.split()[1]) for each in done]  # fmt: skip
    left, problems = list_profiles(person.state)
    assert (len(left), problems) == (sum(counts), [])
    assert {path.suffix for path in (person.state / "profiles").iterdir()} <= {"", ".json"}


def test_a_pipe_can_be_imported(person: UserWithoutSlurm) -> None:
    file = person.home / "two.json"
    file.write_text(json.dumps(build_two(person)))
    done = subprocess.run(
        ["/bin/sh", "-c", 'cat "$1" | "$2" -m slurm_colloc profile import /dev/stdin', "sh",
         str(file), sys.executable],
        env={"HOME": str(person.home), "PATH": os.defpath}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("Imported: 2 usage profiles.\n", "")
    assert len(list_profiles(person.state)[0]) == 2


def test_a_folder_that_cannot_be_read_is_not_said_to_be_empty(person: UserWithoutSlurm) -> None:
    (person.state / "profiles").touch()
    for words in (["list"], ["list", "--json"], ["export"], ["forget", "--all"]):
        done = person.csub("profile", *words)
        assert (done.returncode, done.stdout) == (6, ""), words
        assert done.stderr == (
            f"csub: error: cannot read {person.state}/profiles: Not a directory\n"
        )


def test_a_profile_of_another_version_is_ignored_named_and_kept(person: UserWithoutSlurm) -> None:
    add_observations(person.state, [observe(1)])
    path = profile_path(person.state, OBSERVATION.signature, "NVIDIA H200")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 7}))
    before = path.read_bytes()
    done = person.csub("profile", "list")
    assert done.returncode == 0
    assert "ignored:" in done.stderr
    assert "version 7" in done.stderr
    assert done.stdout == f"None of the usage profiles in {path.parent} can be read.\n"
    (problem,) = add_observations(person.state, [observe(2)])
    assert "left as it is" in problem
    assert path.read_bytes() == before
