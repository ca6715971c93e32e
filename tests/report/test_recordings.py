"""Reports on packs that were recorded on an H200, against what programs and driver said there."""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

import pytest

from slurm_colloc.model.usage_profile import MeasuredBy
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.pack_run import read_run
from slurm_colloc.report.summary_file import add_times, read_summary
from slurm_colloc.store.profiles import list_profiles

from ..gpu.comparison import (
    compute_mean,
    compute_rise_per_s,
    find_nearest,
    parse_compute_apps,
)
from ..recordings.recorded import BATCH, H200, NAMES, RECORDED, SHARED
from ..recordings.replaying import Replay, count_by_program, find_window
from .generated import render_report

pytestmark = pytest.mark.skipif(not H200.exists(), reason="an sdist has no recordings")


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    return Replay(tmp_path_factory.mktemp("replay"))


def find_solo_truth(replay: Replay) -> float:
    """Steps per second alone, by the program."""
    (member,) = replay.summaries["alone"]["members"]
    return count_by_program("alone", 1, find_window("alone", member))


def find_slowdown_truths(replay: Replay, name: str, member: dict[str, Any]) -> list[float]:
    """By the programs: the rate alone over that in company, with and without the last second.

    Of a member whose neighbours go, the second between two readings in which they do belongs to
    both times; it is faster in it.
    """
    begin, end = find_window(name, member)
    came, gone = RECORDED[name].find_neighbours(member["member"])
    ends = [end] if end <= gone else [gone - 1, gone]
    windows = [(max(begin, came), last) for last in ends]
    alone = find_solo_truth(replay)
    rates = [count_by_program(name, member["member"], window) for window in windows]
    return sorted(alone / rate for rate in rates)


# -- speed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alone", *SHARED])
def test_rates_are_those_that_the_programs_counted(replay: Replay, name: str) -> None:
    members = replay.summaries[name]["members"]
    assert [member["member"] for member in members] == list(RECORDED[name].stays)
    for member in members:
        assert member["progress"] == "optimizer"
        assert member["rate"]["paused_s"] == 0
        begin, end = find_window(name, member)
        assert end - begin > 15
        truth = count_by_program(name, member["member"], (begin, end))
        assert member["rate"]["steps_per_s"] == pytest.approx(truth, rel=0.01)


def test_the_rate_alone_is_that_of_the_usage_profile(replay: Replay) -> None:
    alone = replay.summaries["alone"]["members"][0]
    assert alone["solo"]["source"] == "alone"
    assert alone["slowdown"] == 1
    profiles = list_profiles(replay.state)[0]
    (profile,) = [one for one in profiles if one.measured_by is MeasuredBy.ALONE]
    # Those that ran in company tell what they took, and no rate alone.
    assert all(one.steps_per_s is None for one in profiles if one is not profile)
    assert profile.gpu_model == "NVIDIA H200"
    assert profile.steps_per_s is not None
    assert profile.steps_per_s.mean == pytest.approx(find_solo_truth(replay), rel=0.01)
    window = find_window("alone", alone)
    for said, column in ((profile.sm_active, "sm_active"), (profile.energy_w, "power_w")):
        assert said == pytest.approx(compute_mean(RECORDED["alone"].gpu, column, window), rel=0.02)
    for name in SHARED:
        for member in replay.summaries[name]["members"]:
            assert member["solo"]["source"] == "profile"
            assert member["solo"]["steps_per_s"] == profile.steps_per_s.mean


@pytest.mark.parametrize("name", SHARED)
def test_slowdowns_and_stp_are_those_of_the_programs(replay: Replay, name: str) -> None:
    summary, stays = replay.summaries[name], RECORDED[name].stays
    truths = {}
    for member in summary["members"]:
        found = find_slowdown_truths(replay, name, member)
        assert 0.99 * found[0] < member["slowdown"] < 1.01 * found[-1]
        truths[member["member"]] = statistics.fmean(found)
    assert summary["pack"]["antt"] == pytest.approx(statistics.fmean(truths.values()), rel=0.015)
    # Two or more were there from the second start to the last end but one.
    begin = sorted(begin for begin, _ in stays.values())[1]
    end = sorted(end for _, end in stays.values())[-2]
    progress = [(min(stays[n][1], end) - max(stays[n][0], begin)) / truths[n] for n in stays]
    assert summary["pack"]["stp"] == pytest.approx(sum(progress) / (end - begin), rel=0.015)
    assert 1 < summary["pack"]["stp"] < len(stays)
    assert summary["pack"]["unknown"] == []


def test_the_wait_for_data_is_the_programs_own(replay: Replay) -> None:
    for member in replay.summaries["delayed"]["members"]:
        times, waited, _, batches = RECORDED["delayed"].read_program(member["member"])
        window = find_window("delayed", member)
        truth = compute_rise_per_s(times, waited, window)
        assert truth > 0.4
        assert member["stall"]["data"] == pytest.approx(truth, abs=0.05)
        rate = compute_rise_per_s(times, batches, window)
        assert member["rate"]["steps_per_s"] == pytest.approx(rate, rel=0.01)
        assert member["rate"]["samples_per_s"] == pytest.approx(BATCH * rate, rel=0.01)
        # Its script never ran alone.
        assert member["solo"] is None
        assert member["slowdown"] is None
        assert "no usage profile" in member["unknown"]["slowdown"]


# -- the GPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_and_the_monitor_are_as_they_were_read(replay: Replay, name: str) -> None:
    summary, rows = replay.summaries[name], RECORDED[name].gpu
    begin = min(begin for begin, _ in RECORDED[name].stays.values())
    # Runner and monitor see an end some milliseconds apart.
    ends = [end for _, end in RECORDED[name].stays.values()]
    end = max(*ends, *(row["at"] for row in RECORDED[name].members))
    assert (summary["window"]["from"], summary["window"]["to"]) == (begin, end)
    for metric in ("sm_active", "dram_active", "tensor_active", "utilization", "power_w"):
        truth = compute_mean(rows, metric, (begin, end))
        assert summary["gpu_use"][metric]["mean"] == pytest.approx(truth), metric
    peak = max(row["gpu_memory_mb"] for row in rows)
    assert summary["gpu_use"]["gpu_memory_mb"]["max"] == peak
    inside = [row for row in rows if begin <= row["at"] <= end]
    counted_j = inside[-1]["energy_j"] - inside[0]["energy_j"]
    assert summary["energy_j"] == pytest.approx(counted_j, rel=0.02)
    read_s = inside[-1]["at"] - inside[0]["at"]
    by_power_j = read_s * statistics.fmean(row["power_w"] for row in inside)
    assert summary["energy_j"] == pytest.approx(by_power_j, rel=0.04)
    for cause, said in summary["throttled_s"].items():
        counter = [row[f"throttle_{cause}_s"] for row in rows]
        assert said == counter[-1] - counter[0]
    assert summary["throttled_s"].keys() == {"power", "thermal", "brake"}
    monitor, coverage = RECORDED[name].monitor, summary["coverage"]
    assert {state["state"] for state in monitor["capabilities"].values()} == {"ok"}
    assert coverage["not_readable"] == {}
    assert coverage["share"] == monitor["ticks_taken"] / monitor["ticks_due"]
    assert coverage["gaps"] == monitor["gaps"]
    assert summary["gpu"]["model"] == "NVIDIA H200"


@pytest.mark.parametrize("name", NAMES)
def test_the_energy_of_members_and_the_rest_are_the_whole(replay: Replay, name: str) -> None:
    summary = replay.summaries[name]
    rest = summary["unexplained"]["energy_j"]
    parts = [m["energy_j"]["value"] for m in summary["members"] if m["energy_j"] is not None]
    assert sum(parts) + rest["rest"] == pytest.approx(rest["measured"])
    assert rest["measured"] == pytest.approx(summary["energy_j"], rel=0.001)
    assert all(part > 0 for part in parts)
    assert sum(parts) <= summary["energy_j"] * 1.001
    assert (rest["members_unknown"] == []) == (name != "delayed")


@pytest.mark.parametrize("name", NAMES)
def test_idle_power_is_that_of_a_gpu_on_which_nobody_has_begun(replay: Replay, name: str) -> None:
    first = RECORDED[name].gpu[0]
    assert first["gpu_memory_mb"] < 100
    idle_power_w = replay.summaries[name]["pack"]["idle_power_w"]
    assert idle_power_w == pytest.approx(first["power_w"], rel=0.02)


def test_who_was_alone_saved_no_energy(replay: Replay) -> None:
    summary = replay.summaries["alone"]
    saved_j = summary["pack"]["kwh_saved"] * 3.6e6
    assert abs(saved_j) < 0.03 * summary["energy_j"]


@pytest.mark.parametrize("name", SHARED)
def test_gpu_memory_of_members_is_that_of_nvidia_smi(replay: Replay, name: str) -> None:
    recorded, compared = RECORDED[name], 0
    for look in recorded.looks:
        printed = [size for size in parse_compute_apps(look["text"]).values() if size is not None]
        assert sorted(printed) == sorted(
            [*look["members_mb"].values(), *look["others_mb"].values()]
        )
        for number, size in look["members_mb"].items():
            own = [row for row in recorded.members if row["member"] == int(number)]
            before = find_nearest(
                [row for row in own if row["at"] <= look["at"]], "gpu_memory_mb", look["at"], 5.5
            )
            after = find_nearest(
                [row for row in own if row["at"] > look["at"]], "gpu_memory_mb", look["at"], 5.5
            )
            # Between two readings that differ nobody knows when it changed.
            if before == after:
                assert before == pytest.approx(size, rel=0.01)
                compared += 1
        whole = find_nearest(recorded.gpu, "gpu_memory_mb", look["at"], 1.5)
        if look is recorded.looks[-1]:
            assert sum(printed) == pytest.approx(whole, rel=0.01)
    assert compared >= 7
    for member in replay.summaries[name]["members"]:
        said = member["gpu_memory_mb"]
        assert said["attribution"] == "per_process"
        assert said["peak"] == max(recorded.of_member(member["member"], "gpu_memory_mb"))
        assert said["peak"] >= recorded.looks[-1]["members_mb"][str(member["member"])]


# -- SM activity of members ------------------------------------------------------------------------


def model_while_all_train(replay: Replay, name: str) -> tuple[float, float]:
    """SM activity of all members by the report's figures for a step of each; and the GPU's."""
    recorded = RECORDED[name]
    window = recorded.find_training()
    modelled = 0.0
    for member in replay.summaries[name]["members"]:
        number = member["member"]
        begin, end = recorded.stays[number]
        sm_s_per_step = member["sm_share"]["value"] * (end - begin) / member["steps"]
        modelled += sm_s_per_step * recorded.count_steps(number, window)
    measured = compute_mean(recorded.gpu, "sm_active", window)
    assert measured is not None
    return modelled / (window[1] - window[0]), measured


def test_models_of_members_explain_the_gpu_where_they_take_turns(replay: Replay) -> None:
    # A step keeps 6 % more of the SMs busy there than alone, for reasons that no model has.
    modelled, measured = model_while_all_train(replay, "timeslice")
    assert modelled == pytest.approx(measured, rel=0.08)


def test_models_under_thread_limits_say_more_than_there_was_and_are_shown_so(
    replay: Replay,
) -> None:
    modelled, measured = model_while_all_train(replay, "mps")
    assert modelled > 1.1 * measured
    rest = replay.summaries["mps"]["unexplained"]["sm_active"]
    assert rest["rest"] < 0
    assert rest["rest"] == pytest.approx(rest["measured"] - rest["explained"])
    assert rest["members_unknown"] == []
    text = render_report(replay.summaries["mps"], 140)
    assert "more than there was" in " ".join(text.split())


@pytest.mark.parametrize("name", SHARED)
def test_sm_activity_of_a_member_is_that_of_its_steps_alone(replay: Replay, name: str) -> None:
    alone = replay.summaries["alone"]["members"][0]
    window = find_window("alone", alone)
    sm_active = compute_mean(RECORDED["alone"].gpu, "sm_active", window)
    assert sm_active is not None
    sm_s_per_step = sm_active / find_solo_truth(replay)
    for member in replay.summaries[name]["members"]:
        begin, end = RECORDED[name].stays[member["member"]]
        steps = max(RECORDED[name].of_member(member["member"], "steps"))
        assert member["steps"] == steps
        assert member["sm_share"]["attribution"] == "modelled"
        truth = sm_s_per_step * steps / (end - begin)
        assert member["sm_share"]["value"] == pytest.approx(truth, rel=0.03)
    assert alone["sm_share"]["attribution"] == "exact"


# -- as people see it ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_command_says_the_same_as_the_summary(replay: Replay, name: str) -> None:
    done = replay.csub("report", RECORDED[name].job_id, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (said,) = json.loads(done.stdout)
    headline = said.pop("headline")
    assert headline == tell_headline([said])
    assert replay.csub("report", RECORDED[name].job_id).stdout.startswith(headline[:100])
    written = read_summary(replay.packs[name])
    assert written is not None
    assert said == add_times(written)
    fresh = json.loads(json.dumps(replay.summaries[name]))
    assert {**written, "made_at": 0} == {**fresh, "made_at": 0}
    run = read_run(replay.packs[name], replay.state)
    assert run.is_final
    assert run.problems == ()
    assert len(run.members) == len(fresh["members"])


WORDS = {
    "alone": ("exclusive (alone on its GPU)", "measured", "1170 MB", "had a kernel running for"),
    "timeslice": ("timeslice", "estimated", "own", "STP", "whole GPU", "Not split"),
    "mps": ("mps (by a daemon of the pack's own", "estimated", "740 MB", "STP", "Saved"),
    "delayed": ("timeslice", "unknown", "no usage profile on NVIDIA H200", "delayed.0.sh"),
}  # fmt: skip


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("name", NAMES)
def test_every_recording_is_a_table_with_the_words_that_matter(
    replay: Replay, name: str, width: int
) -> None:
    text = render_report(replay.summaries[name], width)
    assert max(map(len, text.splitlines())) <= width
    plain = " ".join(text.split())
    for words in (*WORDS[name], "NVIDIA H200", "COMPLETED", "100 % of its readings"):
        assert words in plain, words
    job_id = RECORDED[name].job_id
    assert all(f"{job_id}/{number}" in plain for number in RECORDED[name].stays)


def test_a_recording_tells_nothing_of_where_it_was_made() -> None:
    files = [path for path in H200.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 150_000
    paths, uuids, nodes = set(), set(), set()
    for file in files:
        text = file.read_bytes().decode(errors="replace")
        uuids |= set(re.findall(r"GPU-[0-9a-f]{8}", text))
        if file.suffix != ".parquet":
            paths |= set(re.findall(r"(?<![\w/.}])/(?:[a-z_]+/?){1,2}", text))
            nodes |= set(re.findall(r'"(?:node|submit_host)": ?"(.*?)"', text))
        if file.name == "pack.json":
            assert json.loads(text)["client_environment"] == []
    assert uuids == {"GPU-00000000"}
    assert nodes == {"node1", "login1"}
    assert paths <= {"/home/ada", "/home/ada/", "/opt/venv/", "/bin/bash"}
