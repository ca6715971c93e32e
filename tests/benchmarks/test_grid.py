"""A grid of ways of sharing: what csub chooses, what is measured, and what that is held against."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.grid import parse_arguments, parse_bounds, parse_degrees
from benchmarks.gpu.grid_choice import Choice, Known, build_alone
from benchmarks.gpu.grid_design import (
    ALONE_SHARING,
    OTHER,
    USUAL,
    Ask,
    Sharing,
    build_grid,
    choose_next,
    coarsen,
    estimate_s,
    make_group,
)
from benchmarks.gpu.grid_report import describe_run, list_left_out, render_run
from benchmarks.gpu.grid_table import choose_rivals, compute_outcome, read_cells
from benchmarks.gpu.grid_turns import (
    Turns,
    build_bundles,
    build_turns,
    choose_turns,
    estimate_turns_s,
)
from benchmarks.gpu.mix import Alone
from slurm_colloc.model.plan import Capacity
from slurm_colloc.model.usage_profile import Load
from slurm_colloc.store.calibrations import (
    SHIPPED,
    calibration_path,
    read_calibration,
    shipped_folder,
)
from slurm_colloc_lab.calibration.cells import MPS, TIMESLICE
from slurm_colloc_lab.calibration.measured_packs import build_measurements, read_rows
from slurm_colloc_lab.calibration.workloads import MOST_WORKERS, Room, WorkloadNeed

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION = read_calibration(calibration_path(shipped_folder(), SHIPPED))
LIGHT = Load(engine=0.34, sm=0.14, dram=0.03, power_w=90.0)
HEAVY = Load(engine=1.0, sm=0.95, dram=0.6, power_w=600.0)
CAPACITY = Capacity(cpus_per_gpu=16, gpu_memory_mb=143_000)
CHOSEN = (Sharing(MPS, 20, 10), Sharing(MPS, 15, 13))


def know(load: Load) -> Known:
    alone = Alone(150.0, 900.0, load)
    return Known("small", alone, CALIBRATION, CAPACITY, CALIBRATION.gpu_model)


def make_ask(kind: str = "small", memory_mb: int = 900, gpu_memory_mb: int = 143_000) -> Ask:
    usual = USUAL.get(kind, OTHER)
    return Ask(
        kind, WorkloadNeed(1, memory_mb), usual.degrees, usual.limits, Room(16, gpu_memory_mb)
    )


def choose(sharing: Sharing, bound: float = 2.0) -> Choice:
    return Choice(bound, sharing, 1.5, 7.0, ("why",), ())


def make_rows(
    sharing: Sharing, rates: Sequence[float], group: str, cell: int = 0
) -> list[dict[str, str]]:
    """What the bench writes of one cell, as far as a grid reads it."""
    return [
        {
            "run": "r",
            "group": group,
            "cell": str(cell),
            "label": "same",
            "mode": sharing.mode,
            "thread_percentage": "" if sharing.limit is None else str(sharing.limit),
            "size": str(sharing.degree),
            "workload": "small",
            "rate_per_s": str(rate),
        }
        for rate in rates
    ]


def test_csub_chooses_more_under_a_looser_bound_and_one_alone_where_nothing_is_to_be_had() -> None:
    strict, loose = (know(LIGHT).choose(16, bound) for bound in (1.5, 2.0))
    assert strict.sharing.mode == MPS
    assert 2 < strict.sharing.degree < loose.sharing.degree <= 16
    assert strict.slowdown < 1.5 < loose.slowdown < 2.0
    assert strict.multiple == pytest.approx(strict.sharing.degree / strict.slowdown, rel=0.02)
    assert strict.multiple == pytest.approx(know(LIGHT).predict(strict.sharing), rel=0.02)
    # All sixteen are in packs, and one more than was chosen is not one pack.
    assert sum(int(str(pack["members"])) for pack in strict.packs) == 16
    assert len(know(LIGHT).plan(strict.sharing.degree + 1, 1.5)) > 1
    heavy = know(HEAVY).choose(4, 1.5)
    assert (heavy.sharing, heavy.multiple) == (ALONE_SHARING, 1.0)
    assert len(heavy.packs) == 4


def test_what_is_known_alone_is_of_the_fastest_cell_that_tells_it() -> None:
    told = {"engine_active": "0.5", "sm_active": "0.2", "dram_active": "0.1", "power_w": "170"}
    rows = [
        {"rate_per_s": "100", "gpu_memory_mb": "900", "window_s": "1", **told},
        {"rate_per_s": "120", "gpu_memory_mb": "900", "window_s": "1", **told, "sm_active": "0.3"},
        {"rate_per_s": "130", "gpu_memory_mb": "900", "window_s": "1"},
    ]
    alone = build_alone(rows, 70.0)
    assert alone.load is not None
    assert (alone.steps_per_s, alone.load.sm, alone.load.power_w) == (120.0, 0.3, 100.0)
    assert build_alone(rows[2:], 70.0).load is None


def test_the_grid_has_every_mode_limit_and_degree_that_the_machine_has_room_for() -> None:
    ask = make_ask()
    grid = build_grid(ask, CHOSEN)
    assert [row[0] for row in grid[:2]] == [CHOSEN[0], CHOSEN[1]]
    assert (grid[2][0].mode, grid[2][0].limit) == (MPS, None)
    sharings = [sharing for row in grid for sharing in row]
    assert len(sharings) == len(set(sharings))
    # 16 % is as good as the 15 % that csub chose.
    assert {row[0].limit for row in grid} == {*ask.limits, 15, None} - {16}
    for row in grid:
        assert {(sharing.mode, sharing.limit) for sharing in row} == {(row[0].mode, row[0].limit)}
        assert {sharing.degree for sharing in row} >= set(ask.degrees)
    few = build_grid(make_ask(memory_mb=9000, gpu_memory_mb=80_000), ())
    assert max(sharing.degree for row in few for sharing in row) == 6
    plain = Ask("small", WorkloadNeed(), (2, 3), (50,), Room(16, modes=(TIMESLICE,)))
    assert [row[0].mode for row in build_grid(plain, ())] == [TIMESLICE]


@pytest.mark.parametrize("kind", ["small", "medium", "large", "mlp"])
@pytest.mark.parametrize("seconds", [30.0, 100.0, 200.0, 400.0, 1000.0])
def test_what_is_measured_fits_the_time_and_the_rest_is_named(kind: str, seconds: float) -> None:
    ask = make_ask(kind)
    degree = max(ask.degrees) - 1
    chosen = (Sharing(MPS, 200 // degree, degree),)
    grid = build_grid(ask, chosen)
    done: set[Sharing] = set()
    left_s = seconds
    while row := choose_next(ask, grid, done, chosen=chosen, seconds=left_s):
        assert not done & set(row)
        done.update(row)
        left_s -= estimate_s(make_group(ask, "", row))
    assert left_s >= 0
    assert chosen[0] in done
    whole = {sharing for row in grid for sharing in row}
    left_out = sum(len(degrees) for _, _, degrees in list_left_out(grid, done))
    assert left_out == len(whole - done)
    assert (seconds < 1000) or whole == done


def test_a_coarser_grid_is_a_part_of_the_finer_one_and_keeps_what_csub_chose() -> None:
    grid = build_grid(make_ask(), CHOSEN)
    finer = {sharing for row in grid for sharing in row}
    for level in range(5):
        coarse = {sharing for row in coarsen(grid, CHOSEN, level) for sharing in row}
        assert set(CHOSEN) <= coarse <= finer
        assert {TIMESLICE, MPS} == {sharing.mode for sharing in coarse}
        assert (len(coarse) < len(finer)) == (level > 0)
        finer = coarse


def test_what_is_compared_runs_side_by_side_as_far_as_it_fits() -> None:
    ask = make_ask()
    rivals = (Sharing(MPS, 16, 12), Sharing(MPS, 20, 8), Sharing(TIMESLICE, None, 4))
    bundles = build_bundles(ask, [(CHOSEN[0], rivals)])
    assert [set(bundle) for bundle in bundles] == [
        {CHOSEN[0], rivals[0], rivals[1]},
        {rivals[2]},
    ]
    # Of those with the same limit, the largest has all processes that the others need.
    group = build_turns(ask, [(CHOSEN[0], rivals)], choose_all(ask, CHOSEN[0], rivals))[0]
    assert sum(group.count_copies().values()) == 22
    many = [(Sharing(MPS, limit, 16), [Sharing(MPS, limit + 1, 16)]) for limit in (10, 20, 30)]
    for bundle in build_bundles(ask, many):
        assert sum({s.limit: s.degree for s in bundle}.values()) <= MOST_WORKERS
        assert any(choice in bundle for choice, _ in many)


def choose_all(ask: Ask, choice: Sharing, rivals: Sequence[Sharing]) -> Turns:
    found = choose_turns(ask, [(choice, rivals)], 1000.0, 1.0)
    assert found == (3, 2)
    return found


def test_less_is_measured_in_turn_where_there_is_less_time() -> None:
    ask = make_ask()
    compared = [(CHOSEN[0], [Sharing(MPS, limit, 12) for limit in (12, 16, 25)])]
    before = 1e9
    for seconds in (200.0, 70.0, 50.0, 40.0):
        turns = choose_turns(ask, compared, seconds, 1.0)
        if turns is None:
            break
        cost_s = estimate_turns_s(build_turns(ask, compared, turns), 1.0)
        assert cost_s <= min(seconds, before)
        before = cost_s
    assert choose_turns(ask, compared, 20.0, 1.0) is None
    first, second = (
        build_turns(ask, compared, choose_all(ask, *compared[0]), n)[0] for n in (0, 1)
    )
    assert first.cells[0] != second.cells[0]
    assert sorted(map(str, first.cells)) == sorted(map(str, second.cells))


def test_rivals_keep_the_bound_and_the_choice_is_judged_by_cells_in_turn() -> None:
    chosen, good, lucky, slow = (
        Sharing(MPS, 20, 10),
        Sharing(MPS, 16, 10),
        Sharing(MPS, 12, 10),
        Sharing(MPS, 8, 16),
    )
    rows = make_rows(ALONE_SHARING, [90.0], "alone-1")
    rows += make_rows(ALONE_SHARING, [100.0], "alone-2")
    rows += make_rows(chosen, [70.0] * 10, "grid-1")
    rows += make_rows(good, [72.0] * 10, "grid-2")
    rows += make_rows(lucky, [80.0] * 10, "grid-3")
    # More throughput than all, but beyond the bound.
    rows += make_rows(slow, [60.0] * 16, "grid-4")
    for cell, (own, other, third) in enumerate([(70, 71, 60), (72, 73, 62), (71, 75, 61)]):
        for sharing, rate in ((chosen, own), (good, other), (lucky, third)):
            rows += make_rows(sharing, [float(rate)] * 10, f"again-{sharing.limit}", cell)
    cells = read_cells(rows, "r")
    choice = choose(chosen, 1.5)
    outcome = compute_outcome(cells, [choice])
    assert choose_rivals(outcome.first, choice) == (lucky, good, ALONE_SHARING)
    assert choose_rivals(outcome.first, choose(chosen, 2.0))[0] == slow
    verdict = outcome.verdicts[0]
    assert verdict.first == pytest.approx(70 / 80)
    assert verdict.ratio == pytest.approx(71 / 73)
    assert (verdict.first_best, verdict.best) == (lucky, good)
    assert verdict.found is not None
    assert verdict.found.slowdown == pytest.approx(100 / 71)
    assert verdict.problems == ()
    words = render_run(outcome, [(good, slow)], {good})
    assert "97.3 % of the best, 10 by mps at 16 %" in words
    assert "mps 8 %" in words
    told: Any = json.loads(json.dumps(describe_run(outcome, [], set(), know(LIGHT))))
    assert told["alone"]["rates_per_s"] == [90.0, 100.0]
    assert told["verdicts"][0]["ratio"] == pytest.approx(71 / 73)
    assert {entry["cells"] for entry in told["in_turn"]} == {3}


def test_what_is_not_known_is_said_to_be_so() -> None:
    rows = make_rows(ALONE_SHARING, [100.0], "alone-1")
    rows += make_rows(CHOSEN[0], [40.0] * 10, "grid-1")
    # A cell that lacks a member, and one of another run.
    rows += make_rows(CHOSEN[1], [70.0] * 12, "grid-2")
    rows += [{**row, "run": "x"} for row in make_rows(CHOSEN[1], [70.0] * 13, "grid-3")]
    cells = read_cells(rows, "r")
    assert [cell.sharing for cell in cells] == [ALONE_SHARING, CHOSEN[0]]
    passed, missing = compute_outcome(cells, [choose(each) for each in CHOSEN]).verdicts
    assert passed.ratio is None
    assert any("passes the bound: 2.50" in problem for problem in passed.problems)
    assert missing.first is None
    assert any("was not measured" in problem for problem in missing.problems)
    assert describe_run(compute_outcome([], []), [], set(), None) == {"alone": None}


def test_words_of_the_command_line(tmp_path: Path) -> None:
    arguments = parse_arguments(["--csv", str(tmp_path / "x.csv"), "--bounds", "1.5,2"])
    assert (arguments.cores, arguments.bounds) == (tuple(range(16)), (1.5, 2.0))
    assert parse_degrees("8,4,8") == (4, 8)
    for text in ("0.5", "nan", "x", ""):
        with pytest.raises(ValueError, match=r"slowdown|float"):
            parse_bounds(text)
    with pytest.raises(ValueError, match="above 0"):
        parse_degrees("0")


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Measure a tiny grid on the processor."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    command = [sys.executable, "-m", "benchmarks.gpu.grid", "--device", "cpu", "--scale", "tiny"]
    command += ["--cores", cores, "--kind", "rl", "--most", "3", "--degrees", "2,3"]
    command += ["--csv", str(tmp_path / "x.csv"), "--json", str(tmp_path / "x.json"), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.long
@pytest.mark.torch
def test_real_trainings_are_measured_over_a_grid_and_in_turn(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with start(tmp_path, "--bounds", "50", "--rounds", "2", "--seconds", "200") as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "of 3 csub chooses 3 by timeslice" in said
    told: Any = json.loads((tmp_path / "x.json").read_text())
    assert told["left_out"] == []
    assert {entry["degree"] for entry in told["grid"]} == {1, 2, 3}
    assert {entry["degree"]: entry["cells"] for entry in told["in_turn"]} == {1: 4, 2: 4, 3: 4}
    verdict = told["verdicts"][0]
    assert (verdict["chosen"]["degree"], verdict["planned"][0]["members"]) == (3, 3)
    assert verdict["ratio"] > 0
    rows = read_rows([tmp_path / "x.csv"])
    cells = read_cells(rows, told["run"])
    # Alone at the beginning and at the end, the grid, and two starts of two turns.
    assert [cell.sharing.degree for cell in cells].count(2) == 1 + 4
    assert len([cell for cell in cells if cell.group.startswith("alone-")]) == 3 + 2


@pytest.mark.torch
def test_a_grid_without_time_measures_nothing_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with start(tmp_path, "--seconds", "1") as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert "nothing of the grid could be measured" in said.splitlines()[-1]


@pytest.mark.torch
def test_a_grid_that_is_ended_leaves_no_process_and_keeps_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    process = start(tmp_path, "--rounds", "1000", "--seconds", "3000")
    with process:
        deadline = time.monotonic() + 240
        while not (tmp_path / "x.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        children = list_children(process.pid)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert children
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert read_rows([tmp_path / "x.csv"])
    assert json.loads((tmp_path / "x.json").read_text())["alone"]["rates_per_s"]


def list_children(pid: int) -> list[int]:
    """All processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    found = [int(word) for word in text.split()]
    return found + [each for child in found for each in list_children(child)]


def test_rows_of_a_grid_can_be_fitted() -> None:
    told = {"engine_active": "0.5", "sm_active": "0.2", "dram_active": "0.1", "family": "resnet"}
    rows = [
        {**row, **told}
        for row in (
            *make_rows(ALONE_SHARING, [100.0], "alone-1"),
            *make_rows(CHOSEN[0], [70.0] * 10, "grid-1"),
            *make_rows(CHOSEN[0], [71.0] * 10, "again-1"),
        )
    ]
    found = build_measurements(rows)
    assert [pack.limits[0] for pack in found.packs] == [0.2, 0.2]
    assert found.packs[0].progress[0] == pytest.approx(0.7)
