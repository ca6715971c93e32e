"""Real trainings, tiny and on the CPU, are measured; whatever fails takes nothing else along."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc_lab.calibration.cells import COLUMNS, RowWriter
from slurm_colloc_lab.calibration.gpu_bench import Bench
from slurm_colloc_lab.calibration.training_server import Pool
from slurm_colloc_lab.calibration.workloads import TINY, WORKLOADS

from ..wait_until import wait_until
from .short_cells import PATIENCE_S, cell, group, is_running, list_descendants

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.long]

CORES = sorted(os.sched_getaffinity(0))[:2]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def bench(tmp_path: Path, said: list[str]) -> Iterator[Bench]:
    with Bench(None, CORES, tmp_path / "rows.csv", scale=TINY, say=said.append) as made:
        yield made


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_workload_steps(bench: Bench, tmp_path: Path, said: list[str]) -> None:
    cells = [cell(workload.name) for workload in WORKLOADS]
    opened = bench.open(group(*cells))
    assert (opened.workers, opened.problems) == (len(WORKLOADS), ())
    for number, one in enumerate(cells):
        assert bench.run_cell(one, number)
    rows = read(tmp_path / "rows.csv")
    assert [row["workload"] for row in rows] == [workload.name for workload in WORKLOADS]
    for row in rows:
        assert float(row["rate_per_s"]) > 0
        assert float(row["cpu_s"]) > 0
        assert float(row["window_s"]) == pytest.approx(0.2)
    assert said == []


def test_a_row_has_what_was_measured_and_nothing_for_what_could_not_be(
    bench: Bench, tmp_path: Path
) -> None:
    bench.open(group(cell("small", "mlp", "small")))
    assert bench.run_cell(cell("small", "mlp", "small"), 7)
    rows = read(tmp_path / "rows.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [row["workload"] for row in rows] == ["small", "mlp", "small"]
    assert [row["member"] for row in rows] == ["0", "1", "2"]
    for row in rows:
        assert row["members"] == "mlp+small+small"
        assert row["size"] == "3"
        assert row["cell"] == "7"
        assert row["cores_shared"] == str(int(len(CORES) < 3))
        assert float(row["steps"]) == pytest.approx(
            float(row["rate_per_s"]) * float(row["window_s"]), rel=1e-3
        )
        for name in ("sm_active", "power_w", "gpu_memory_mb", "thread_percentage"):
            assert row[name] == ""


def test_rows_are_appended_under_one_header(tmp_path: Path) -> None:
    for name in ("mlp", "rl"):
        writer = RowWriter(tmp_path / "rows.csv")
        writer.write([{"workload": name, "rate_per_s": 12.345678, "run_at": 1795361885.7}])
        writer.close()
    rows = read(tmp_path / "rows.csv")
    assert [row["workload"] for row in rows] == ["mlp", "rl"]
    assert (rows[1]["rate_per_s"], rows[1]["run_at"]) == ("12.346", "1795361886")


def test_a_worker_that_dies_is_left_out_and_the_others_go_on(
    bench: Bench, tmp_path: Path, said: list[str]
) -> None:
    bench.open(group(cell("mlp", "gnn"), cell("gnn")))
    assert bench.pool is not None
    victim = next(each for each in bench.pool.workers.values() if each.workload == "mlp")
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    assert not bench.run_cell(cell("mlp", "gnn"))
    assert not bench.run_cell(cell("mlp"))
    assert bench.run_cell(cell("gnn"))
    assert [row["members"] for row in read(tmp_path / "rows.csv")] == ["gnn"]
    assert said == ["some: mlp failed in gnn+mlp: it ended with status -9"]


def test_errors_are_told_in_their_own_words_and_hanging_workers_given_up() -> None:
    pool = Pool(os.environ)
    try:
        pool.wait_until_serving()
        wrong, hanging, right = (
            pool.start("mlp", device=device, scale=TINY, environment={}, cores=CORES)
            for device in ("nowhere", "cpu", "cpu")
        )
        assert pool.wait([wrong, hanging, right], ("built",), PATIENCE_S) == []
        pool.wait([wrong], (), PATIENCE_S)
        assert wrong.problem.startswith("RuntimeError: ")
        assert "nowhere" in wrong.problem

        assert hanging.pid is not None
        os.kill(hanging.pid, signal.SIGSTOP)
        for worker in (hanging, right):
            pool.warm_up(worker, 0.0, 1)
        assert pool.wait([right], ("ready",), PATIENCE_S) == []
        late = pool.wait([hanging, right], ("ready",), 0.0)
        assert late == [hanging]
        pool.kill(late, "it hangs")
        assert pool.wait(late, (), PATIENCE_S) == []
        assert hanging.problem == "it hangs"
        assert (right.state, right.problem) == ("ready", "")
    finally:
        pool.close()


def test_a_server_that_dies_is_replaced_for_the_next_group(bench: Bench) -> None:
    bench.open(group(cell("mlp")))
    assert bench.pool is not None
    os.kill(bench.pool.pid, signal.SIGKILL)
    assert not bench.run_cell(cell("mlp"))
    assert bench.open(group(cell("mlp"))).workers == 1
    assert bench.run_cell(cell("mlp"))


def test_there_is_no_mps_without_a_gpu(bench: Bench) -> None:
    with pytest.raises(NodeError, match="no MPS without a GPU"):
        bench.open(group(cell("mlp"), mode="mps"))


def test_nothing_outlives_a_bench(tmp_path: Path) -> None:
    with Bench(None, CORES, tmp_path / "rows.csv", scale=TINY, say=print) as bench:
        bench.open(group(cell("loader", "mlp")))
        assert bench.pool is not None
        started = {bench.pool.pid, *list_descendants([bench.pool.pid])}
        # Server, two workers, and two processes of the loader.
        assert len(started) >= 5
    assert not [pid for pid in started if is_running(pid)]


_PROGRAM = """
import sys, time
from pathlib import Path
from slurm_colloc_lab.calibration.gpu_bench import Bench
from slurm_colloc_lab.calibration.cells import Group, make_cell
cells = (make_cell("pair", ("loader", "mlp")),)
bench = Bench(None, (), Path(sys.argv[1]), scale="tiny", say=print)
bench.open(Group("some", "timeslice", cells))
print("open", flush=True)
time.sleep(600)
"""


def test_when_the_bench_is_killed_its_workers_end(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _PROGRAM, str(tmp_path / "rows.csv")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        started = list_descendants([process.pid])
        assert len(started) >= 5
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_running, started)), "the workers have ended")
    finally:
        process.kill()
        process.communicate()
