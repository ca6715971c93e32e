"""Rows become packs; what is missing, cut short or hostile is passed over or refused."""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc_lab.calibration.measured_packs import build_measurements, read_rows

from .tables import TABLES


def make_row(
    name: str, rate: object, *, cell: int, size: int = 1, **more: object
) -> dict[str, str]:
    row = {
        "run": "r", "group": "g", "mode": "mps", "thread_percentage": "", "cell": cell,
        "label": "", "size": size, "workload": name, "family": "f", "rate_per_s": rate,
        "engine_active": 0.5, "sm_active": 0.25, "dram_active": 0.125, "window_s": 2.0,
        "cpu_s": 1.0, "power_w": 300.0, "gpu_model": "NVIDIA H200", **more,
    }  # fmt: skip
    return {key: str(value) for key, value in row.items()}


def test_progress_is_against_the_best_rate_alone_and_its_figures() -> None:
    rows = [
        make_row("a", 80, cell=0, engine_active=0.3),
        make_row("a", 100, cell=1, engine_active=0.6),
        make_row("a", 90, cell=2, engine_active=0.4),
        make_row("a", 50, cell=3, size=2, thread_percentage=66),
        make_row("a", 75, cell=3, size=2),
        make_row("", "", cell=9, label="idle", size=0, power_w=80),
    ]
    found = build_measurements(rows)
    (alone,) = found.alone.values()
    assert alone.rate == 100
    assert found.others == {"a": (0.8, 0.9)}
    assert alone.load.engine == 0.6
    assert alone.load.power_w == 220
    assert alone.load.cpu_cores == 0.5
    (pack,) = found.packs
    assert pack.loads == (alone.load, alone.load)
    assert pack.progress == (0.5, 0.75)
    assert pack.limits == (0.66, 1.0)
    assert pack.worst == 2.0
    assert (found.gpu_model, found.idle_power_w, found.cells_left_out) == ("NVIDIA H200", 80, 0)


def test_each_run_has_rates_alone_of_its_own() -> None:
    rows = [
        make_row("a", 100, cell=0),
        make_row("a", 50, cell=1, size=2),
        make_row("a", 75, cell=1, size=2),
        # On a slower host, which prepares less work for the same GPU.
        make_row("a", 60, cell=0, run="slow", engine_active=0.3),
        make_row("a", 48, cell=1, size=2, run="slow"),
        make_row("a", 30, cell=1, size=2, run="slow"),
        # Nobody has measured it alone.
        make_row("a", 48, cell=0, size=2, run="cut"),
        make_row("a", 30, cell=0, size=2, run="cut"),
    ]
    found = build_measurements(rows)
    assert {run: alone.rate for (run, _), alone in found.alone.items()} == {"r": 100, "slow": 60}
    fast, slow = found.packs
    assert (fast.progress, slow.progress) == ((0.5, 0.75), (0.8, 0.5))
    assert [pack.loads[0].engine for pack in (fast, slow)] == [0.5, 0.3]
    assert found.cells_left_out == 1


def test_a_training_alone_under_a_limit_is_a_pack() -> None:
    rows = [make_row("a", 100, cell=0), make_row("a", 60, cell=1, thread_percentage=50)]
    assert build_measurements(rows).packs[0].limits == (0.5,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_per_s": "nan"},
        {"rate_per_s": "-3"},
        {"rate_per_s": "0"},
        {"rate_per_s": "1e400"},
        {"rate_per_s": ""},
        {"thread_percentage": "0"},
        {"thread_percentage": "250"},
        {"thread_percentage": "half"},
        {"mode": "mig"},
        {"size": "3"},
        {"workload": "\x1b[31m"},
        {"workload": "x" * 500},
        {"family": ""},
    ],
)
def test_a_cell_with_a_row_that_makes_no_sense_is_no_pack(wrong: dict[str, str]) -> None:
    rows = [
        make_row("a", 100, cell=0),
        make_row("a", 50, cell=1, size=2),
        {**make_row("a", 50, cell=1, size=2), **wrong},
    ]
    found = build_measurements(rows)
    assert (found.packs, found.cells_left_out) == ((), 1)


def test_a_training_without_figures_of_the_gpu_is_in_no_pack() -> None:
    rows = [
        make_row("a", 100, cell=0),
        make_row("b", 100, cell=1, sm_active=""),
        make_row("a", 50, cell=2, size=2),
        make_row("b", 50, cell=2, size=2),
    ]
    found = build_measurements(rows)
    assert [name for _, name in found.alone] == ["a"]
    assert (found.packs, found.cells_left_out) == ((), 2)
    with pytest.raises(UsageProblem, match="figures of the GPU: SM, DRAM and engine"):
        build_measurements([make_row("a", 100, cell=0, dram_active="")])


def test_rows_of_two_gpu_models_are_refused() -> None:
    rows = [make_row("a", 1, cell=0), make_row("a", 1, cell=1, gpu_model="NVIDIA A30")]
    with pytest.raises(UsageProblem, match="several GPU models: NVIDIA A30, NVIDIA H200"):
        build_measurements(rows)


def test_a_table_that_was_cut_anywhere_gives_what_is_whole(tmp_path: Path) -> None:
    whole = TABLES[0].read_bytes()
    packs = len(build_measurements(read_rows(TABLES[:1])).packs)
    chance = random.Random(1)
    for _ in range(20):
        path = tmp_path / "cut.csv"
        path.write_bytes(whole[: chance.randrange(20_000, len(whole))])
        found = build_measurements(read_rows([path]))
        assert len(found.packs) <= packs
        # A name that was cut makes a cell of its own.
        assert found.cells_left_out <= 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it holds no rows"),
        (b"a,b\n", "it holds no rows"),
        (b"a,b\n1,2\n", "it has no column run"),
        (b"\xff\xfe\x00rubbish", "cannot read"),
        (b'run,"' + b"x" * 200_000 + b"\n1,2\n", "cannot read"),
    ],
)
def test_what_is_no_table_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(UsageProblem, match=words):
        read_rows([path])


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    why = {
        "pipe": "it is a named pipe, no file",
        "": "it is a directory, no file",
        "missing": "it does not exist",
    }
    for name, words in why.items():
        path = tmp_path / name
        with pytest.raises(UsageProblem, match=words):
            read_rows([path])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(changes=[{"cell": ""}, {"cell": "0"}])
@given(
    changes=st.lists(
        st.dictionaries(
            st.sampled_from(sorted(make_row("a", 1, cell=0))),
            st.text() | st.sampled_from(["nan", "inf", "-1", "0", "1e-320", "1e308", "66", "mps"]),
            max_size=3,
        ),
        max_size=6,
    )
)
def test_whatever_stands_in_a_table_nothing_breaks(
    tmp_path: Path, changes: list[dict[str, str]]
) -> None:
    rows = [
        # Of a run of their own: no row that is changed below can get into their cells.
        make_row("a", 100, cell=0, run="whole"),
        make_row("a", 50, cell=1, size=2, run="whole"),
        make_row("a", 75, cell=1, size=2, run="whole"),
        make_row("a", 100, cell=0),
        make_row("b", 100, cell=1),
        make_row("a", 50, cell=2, size=2),
        make_row("b", 75, cell=2, size=2),
    ]
    for cell, one in enumerate(changes, 3):
        rows += [
            {**make_row("a", 50, cell=cell), **one},
            {**make_row("a", 50, cell=-cell, size=2), **one},
            make_row("b", 75, cell=-cell, size=2),
        ]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    try:
        found = build_measurements(read_rows([path]))
    except UsageProblem as problem:
        message = problem.message
        assert message.startswith(("the rows are of several GPU models", f"cannot read {path}"))
        return
    assert found.packs
    for pack in found.packs:
        assert all(0 < progress < float("inf") for progress in pack.progress)
        assert all(0 < limit <= 1 for limit in pack.limits)


def test_our_own_tables_are_whole() -> None:
    found = build_measurements(read_rows(TABLES))
    assert found.gpu_model == "NVIDIA H200"
    assert found.cells_left_out == 0
    assert len({name for _, name in found.alone}) == 17
    assert len(found.packs) > 400
