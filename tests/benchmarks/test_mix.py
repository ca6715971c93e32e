"""A mix of jobs, the packs that rules make of it, and what is computed of its rows."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.mix import WEIGHTS, Alone, Mix, build_profile, draw_mix, forecast_rule
from benchmarks.gpu.mix_live import LIVE, LiveRule, forecast_live
from benchmarks.gpu.mix_packs import build_rows, parse_rules, prepare
from benchmarks.gpu.mix_readings import build_load
from benchmarks.gpu.mix_running import RanMember, RanPack
from benchmarks.gpu.mix_table import COLUMNS, compute_results, find_missing, render_table
from benchmarks.gpu.mix_turns import RuleRun, choose_runs, estimate_s, order_packs
from benchmarks.gpu.policies import parse_cores, read_all, write_rows
from benchmarks.gpu.rules import Rule
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import Capacity, SharingMode
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.store.calibrations import (
    SHIPPED,
    calibration_path,
    read_calibration,
    shipped_folder,
)
from slurm_colloc_lab.calibration.workloads import BY_NAME, WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION = read_calibration(calibration_path(shipped_folder(), SHIPPED))
LIGHT = Load(engine=0.3, sm=0.1, dram=0.03, power_w=100.0)
HEAVY = Load(engine=1.0, sm=0.9, dram=0.3, power_w=500.0)


def make_mix(count: int = 30, **loads: Load) -> Mix:
    """A mix in which all kinds are light, except those that are given."""
    alone = {kind: Alone(50.0, 1000.0, loads.get(kind, LIGHT)) for kind in BY_NAME}
    capacity = Capacity(cpus_per_gpu=16, gpu_memory_mb=143_000)
    return Mix(draw_mix(count, 1, 8.0), alone, CALIBRATION, capacity, CALIBRATION.gpu_model)


def test_a_mix_is_the_same_for_the_same_seed_and_small_ones_are_frequent() -> None:
    assert draw_mix(30, 1, 8.0) == draw_mix(30, 1, 8.0) != draw_mix(30, 2, 8.0)
    many = draw_mix(4000, 1, 8.0)
    lengths = [job.length_s for job in many]
    assert statistics.median(lengths) == pytest.approx(8.0, rel=0.1)
    assert max(lengths) == 16.0
    # A longer mix of the same seed is the same mix, slower.
    assert [2 * job.length_s for job in draw_mix(9, 1, 8.0)] == pytest.approx(
        [job.length_s for job in draw_mix(9, 1, 16.0)]
    )
    drawn = {name: {kind for kinds in of for kind in kinds} for name, of in WEIGHTS.items()}
    assert drawn["small"] == drawn["even"] == {workload.name for workload in WORKLOADS}
    assert drawn["small"] | drawn["input"] == set(BY_NAME)
    fed = draw_mix(400, 1, 8.0, "input")
    assert sum(job.kind in ("loader", "disk", "speech") for job in fed) == pytest.approx(
        208, abs=40
    )
    assert sum(job.kind == "small" for job in many) > 2 * sum(job.kind == "large" for job in many)


def test_what_was_measured_alone_is_what_planning_knows() -> None:
    job = dataclasses.replace(draw_mix(1, 1, 8.0)[0], length_s=10.0)
    alone = Alone(50.03, 1000.4, LIGHT)
    profile = build_profile(job, alone, gpu_model="X", context_mb=512, idle_power_w=75.0, stretch=3)
    assert (profile.sm_activity, profile.power_w, profile.gpu_memory_peak_mb) == (0.1, 175.0, 1512)
    assert profile.run_s == pytest.approx(3 * 500 / 50.03)
    unread = build_profile(
        job, Alone(50.0, None, None), gpu_model="X", context_mb=512, idle_power_w=75.0
    )
    assert (unread.sm_activity, unread.power_w, unread.gpu_memory_peak_mb) == (None, None, None)


@pytest.mark.parametrize("rule", list(Rule))
def test_every_job_is_in_one_pack_of_every_rule(rule: Rule) -> None:
    mix = make_mix(12, mlp=HEAVY)
    told, packs = prepare(mix, str(rule))
    assert sorted(number for pack in packs for number in pack.jobs) == list(range(12))
    assert told.packs == len(packs)
    for pack in packs:
        assert sum(BY_NAME[member.kind].cpus for member in pack.members) <= 16
        assert len(pack.jobs) > 1 or pack.mode is SharingMode.EXCLUSIVE
    if rule is Rule.EXCLUSIVE:
        alone_s = sum(mix.get_alone_s(number) for number in range(12))
        assert told.worst_slowdown == 1.0
        assert told.makespan_s == pytest.approx(alone_s)
    if rule is Rule.CSUB:
        assert 1.0 < told.worst_slowdown <= 1.5
        assert told.makespan_s < sum(mix.get_alone_s(number) for number in range(12))


def test_jobs_that_fill_the_gpu_share_it_with_nobody_under_csub() -> None:
    mix = make_mix(8, **dict.fromkeys(BY_NAME, HEAVY))
    packs = mix.plan(Rule.CSUB)
    assert [len(pack.members) for pack in packs] == [1] * 8
    assert forecast_rule(mix, packs).beyond == 0


@pytest.mark.parametrize("rule", LIVE)
def test_a_gpu_is_filled_in_order_as_jobs_end(rule: Rule) -> None:
    mix = make_mix(20)
    live = LiveRule(mix, rule)
    running: list[int] = []
    waiting = list(live.order)
    while (new := live.choose(running, waiting)) is not None:
        assert new == waiting.pop(0)
        running.append(new)
    assert 1 < len(running) < 20
    assert sum(BY_NAME[mix.jobs[number].kind].cpus for number in running) <= 16
    # One that runs is in the way of the next; an empty GPU takes any.
    assert live.choose([], waiting) == waiting[0]
    assert live.choose(running, []) is None
    told, slowdowns = forecast_live(mix, live)
    assert sorted(slowdowns) == list(range(20))
    assert told.widest >= len(running)
    assert min(slowdowns.values()) >= 1.0 - 1e-9


def test_without_engine_activity_the_additive_rule_packs_more() -> None:
    mix = make_mix(12)
    told, packs = prepare(mix, "additive-sm")
    assert len(packs) < len(prepare(mix, "additive")[1])
    assert told.widest <= 10  # SM activities of 0.1 each
    assert max(len(pack.jobs) for pack in packs) > 3  # engine activities of 0.3 each
    live = LiveRule(mix, Rule.ADDITIVE, by_sm=True)
    assert live.choose(live.order[:3], live.order[3:]) == live.order[3]
    assert LiveRule(mix, Rule.ADDITIVE).choose(live.order[:3], live.order[3:]) is None


def test_carma_live_adds_nothing_to_a_busy_gpu() -> None:
    mix = make_mix(6, **dict.fromkeys(BY_NAME, HEAVY))
    live = LiveRule(mix, Rule.CARMA)
    assert live.choose([0], [1, 2]) is None
    told, _ = forecast_live(mix, live)
    assert told.widest == 1
    # By the memory that is free, too.
    full = dataclasses.replace(make_mix(6), capacity=Capacity(cpus_per_gpu=16, gpu_memory_mb=6_000))
    assert LiveRule(full, Rule.CARMA).choose([0], [1]) is None


def test_rows_give_makespan_slowdown_and_what_is_missing(tmp_path: Path) -> None:
    mix = make_mix(6)
    path = tmp_path / "rows.csv"
    expected = {}
    for rule, mps_s in (("exclusive", 0.0), ("additive", 1.5)):
        begin, work = 103.0, 0.0
        for number, pack in enumerate(prepare(mix, rule)[1]):
            took = [2.0 * mix.get_alone_s(job) for job in pack.jobs]
            ran = RanPack(
                tuple(RanMember(begin, begin + each) for each in took), mps_s, 3.0, 500.0, None
            )
            common = {"run": "r", "round": 1, "rule": rule, "pack": number}
            write_rows(path, [{**common, **row} for row in build_rows(mix, pack, ran, 100.0)])
            begin, work = begin + max(took) + 3.0, work + max(took) + mps_s
        expected[rule] = work
    rows = read_all([path])
    assert tuple(rows[0]) == COLUMNS
    results = {result.rule: result for result in compute_results(rows)}
    for rule, work_s in expected.items():
        found = results[rule]
        assert found.makespan_s == pytest.approx(work_s)
        assert found.slowdowns == pytest.approx([2.0] * 6)
        assert found.energy_j == 500.0 * found.packs
        assert found.setup_s == 3.0 * found.packs
        told = prepare(mix, rule)[0].makespan_s
        assert found.predicted_s == pytest.approx(told)
    ratio = expected["additive"] / expected["exclusive"]
    line = next(each for each in render_table(rows, 6).splitlines() if each.startswith("| add"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[5] == f"{ratio:.3f}"
    # All run for twice as long as alone, under either rule.
    assert cells[11:17] == ["2.00", "2.00", "6", "1.00", "1.00", "0"]
    assert find_missing(rows, ["exclusive", "additive"], 6) == []
    assert find_missing(rows, ["csub"], 6) == ["csub: 0 of 6 jobs were measured"]
    assert find_missing(rows[:-1], ["additive"], 6) == ["additive: 5 of 6 jobs were measured"]


def test_rows_of_different_mixes_are_not_put_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    row: dict[str, object] = dict.fromkeys(COLUMNS, 0)
    write_rows(path, [{**row, "kind": "mlp"}])
    assert len(read_all([path, path])) == 2
    other = tmp_path / "other.csv"
    write_rows(other, [{**row, "kind": "rl"}])
    with pytest.raises(UsageProblem, match="different mixes"):
        read_all([path, other])
    with pytest.raises(UsageProblem, match="cannot read"):
        read_all([tmp_path / "none.csv"])


def test_a_job_that_failed_has_no_slowdown() -> None:
    mix = make_mix(2)
    pack = prepare(mix, "exclusive")[1][0]
    ran = RanPack((RanMember(None, None, "out of memory"),), 0.0, 0.0, None, None)
    row = build_rows(mix, pack, ran, 0.0)[0]
    assert (row["end_s"], row["slowdown"], row["work_j"]) == (None, None, None)
    assert row["problem"] == "out of memory"
    rows = [{name: str(row.get(name, "0") or "") for name in COLUMNS}]
    assert compute_results(rows)[0].failed == 1
    assert compute_results(rows)[0].energy_j is None


def test_what_a_gpu_does_not_tell_is_unknown() -> None:
    told: dict[str, float | None] = {"engine_active": 0.5, "sm_active": 0.2, "dram_active": 0.1}
    load = build_load({**told, "power_w": 175.0, "pcie_tx_mib_s": 5500.0}, 0.9, 75.0)
    assert load is not None
    assert (load.sm, load.power_w, load.cpu_cores) == (0.2, 100.0, 0.9)
    assert load.pcie == pytest.approx(0.1)
    assert build_load({**told, "sm_active": None}, 1.0, 75.0) is None


def make_runs(mix: Mix, *rules: str) -> list[RuleRun]:
    runs = []
    for rule in rules:
        told, packs = prepare(mix, rule)
        runs.append(RuleRun(rule, 1, told, tuple(packs), 0.0))
    return runs


def test_rules_take_turns_and_each_has_its_packs_in_order() -> None:
    runs = make_runs(make_mix(), "exclusive", "csub", "carma-live")
    turns = order_packs(runs)
    for place, run in enumerate(runs):
        assert [number for at, number in turns if at == place] == list(range(len(run.packs)))
    # Half of each rule is done when half of all is: the only pack of a live rule is in the middle.
    at = turns.index((2, 0))
    assert 0 < [place for place, _ in turns[:at]].count(1) < len(runs[1].packs)
    before = [number for place, number in turns[:at] if place == 0]
    done_s = sum(estimate_s(runs[0].packs[number]) for number in before)
    longest_s = max(map(estimate_s, runs[0].packs))
    assert done_s == pytest.approx(runs[0].expected_s / 2, abs=longest_s)


def test_rules_for_which_there_is_no_time_are_left_out_from_the_end() -> None:
    runs = make_runs(make_mix(), "csub", "exclusive", "additive")
    enough_s = sum(run.expected_s for run in runs)
    assert choose_runs(runs, enough_s) == runs
    assert choose_runs(runs, enough_s - 1.0) == runs[:2]
    assert choose_runs(runs, runs[0].expected_s + 1.0) == runs[:1]
    assert choose_runs(runs, 0.0) == []


def test_csub_with_another_bound_packs_by_it_and_is_judged_by_it() -> None:
    mix = make_mix(hog=HEAVY, small=replace(LIGHT, engine=0.7, sm=0.4))
    usual, wide = prepare(mix, "csub"), prepare(mix, "csub:3")
    assert wide[0].widest > usual[0].widest
    assert {pack.bound for pack in usual[1]} == {1.5}
    assert {pack.bound for pack in wide[1]} == {3.0}
    done = RanPack((RanMember(0.0, 1.0),) * len(wide[1][0].members), 0.0, 0.0, None, None)
    assert {row["bound"] for row in build_rows(mix, wide[1][0], done, 0.0)} == {3.0}


def test_words_of_the_command_line() -> None:
    assert parse_cores("0-2,5") == (0, 1, 2, 5)
    assert parse_rules("csub,carma-live,csub") == ["csub", "carma-live", "csub"]
    assert parse_rules("csub:2,csub:1.75") == ["csub:2", "csub:1.75"]
    for text in ("lucid", "csub-live", "exclusive-live", "csub:", "csub:0.5", "carma:2", ""):
        with pytest.raises(ValueError, match="the rules are"):
            parse_rules(text)


def call(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Measure a tiny mix on the processor."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.policies",
        "--device",
        "cpu",
        "--scale",
        "tiny",
    ]
    command += ["--cores", ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))]
    command += ["--jobs", "4", "--csv", str(tmp_path / "rows.csv"), *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.long
@pytest.mark.torch
def test_real_trainings_run_in_the_packs_of_a_plan(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended = call(tmp_path, "--rules", "exclusive,additive,carma-live", "--stretch", "1000")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = read_all([tmp_path / "rows.csv"])
    results = {result.rule: result for result in compute_results(rows)}
    assert {rule: result.jobs for rule, result in results.items()} == {
        "exclusive": 4,
        "additive": 4,
        "carma-live": 4,
    }
    assert results["exclusive"].packs == 4 > results["additive"].packs
    assert all(row["problem"] == "" for row in rows)
    # The same work, whatever the rule.
    work = {(row["job"], row["kind"], row["steps"]) for row in rows}
    assert len(work) == 4
    assert "missing" not in ended.stdout


@pytest.mark.long
@pytest.mark.torch
def test_what_there_was_no_time_for_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended = call(tmp_path, "--rules", "exclusive", "--seconds", "1")
    assert ended.returncode == 1
    assert "exclusive 1: there is no time for it" in ended.stdout
    assert not (tmp_path / "rows.csv").exists()
