"""The files that simulated processes share."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc_lab.simgpu.gpu_models import H200
from slurm_colloc_lab.simgpu.install import build_gpu
from slurm_colloc_lab.simgpu.nvml.gpu_records import (
    SUMS,
    SimulatedGpu,
    SimulatedProcess,
    parse_gpu,
    parse_process,
    parse_totals,
    render_gpu,
    render_process,
    render_totals,
)
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node, open_node, read_starttime

from .conftest import Simulation

texts = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
# The files have six decimals.
numbers = st.integers(0, 10**9).map(lambda whole: whole / 1000)
processes = st.builds(
    SimulatedProcess,
    pid=st.integers(1, 2**22),
    starttime=st.integers(0, 2**62),
    uid=st.integers(0, 2**31),
    gpus=st.lists(texts, max_size=3).map(tuple),
    gpu_memory_mb=st.integers(0, 10**6),
    type=st.sampled_from(["C", "M+C"]),
    mps_server=st.none() | st.integers(1, 2**22),
    **dict.fromkeys(("started_s", "thread_percentage", "sm_share", "power_mw", *SUMS), numbers),
)


@given(processes)
def test_a_process_is_read_as_it_was_written(process: SimulatedProcess) -> None:
    assert parse_process(process.pid, render_process(process)) == process


@given(st.text(max_size=200))
def test_rubbish_is_no_process(text: str) -> None:
    assert parse_process(1, text) is None


@given(st.dictionaries(texts, st.fixed_dictionaries(dict.fromkeys(SUMS, numbers)), max_size=3))
def test_totals_are_read_as_they_were_written(totals: dict[str, dict[str, float]]) -> None:
    assert parse_totals(render_totals(totals)) == totals


def test_a_gpu_is_read_as_it_was_written() -> None:
    gpu = dataclasses.replace(build_gpu(H200, Path("/sim/n1"), 3), device="/dev/nvidia3")
    assert parse_gpu(3, render_gpu(gpu)) == gpu


def test_every_gpu_of_many_nodes_has_its_own_uuid() -> None:
    gpus: list[SimulatedGpu] = [
        build_gpu(H200, Path(f"/sim/n{node}"), number) for node in range(20) for number in range(8)
    ]
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)


def describe(simulation: Simulation, pid: int, **changes: object) -> SimulatedProcess:
    process = SimulatedProcess(
        pid=pid,
        starttime=read_starttime(pid) or 0,
        uid=os.geteuid(),
        gpus=(simulation.uuids[0],),
        gpu_memory_mb=100,
        work=5.0,
        energy_mj=7.0,
    )
    return dataclasses.replace(process, **changes)  # type: ignore[arg-type]


def test_another_process_with_the_same_number_is_not_it(simulation: Simulation) -> None:
    mine = describe(simulation, os.getpid())
    simulation.node.write_process(mine)
    assert simulation.node.read_processes() == (mine,)
    simulation.node.write_process(dataclasses.replace(mine, starttime=mine.starttime - 1))
    assert simulation.node.read_processes() == ()
    assert (
        simulation.ask(
            "answer = pids(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0)))"
        )
        == []
    )
    assert simulation.node.reap() == (os.getpid(),)


def test_a_zombie_holds_nothing(simulation: Simulation) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        simulation.node.write_process(describe(simulation, child.pid))
        assert simulation.pids == [child.pid]
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert simulation.pids == []
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


def test_what_the_dead_used_is_counted_once(simulation: Simulation) -> None:
    simulation.node.write_process(describe(simulation, os.getpid(), starttime=1))
    seen: list[tuple[int, ...]] = []
    threads = [
        threading.Thread(target=lambda: seen.append(Node(simulation.node.directory).reap()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) == (os.getpid(),)
    assert sum(map(len, seen)) == 1
    totals = simulation.node.read_totals()[simulation.uuids[0]]
    assert (totals["work"], totals["energy_mj"]) == (5.0, 7.0)


def test_totals_have_room_for_every_gpu(simulation: Simulation) -> None:
    for number in range(64):
        gpu = f"GPU-{number:08}-0000-0000-0000-000000000000"
        changed = describe(simulation, os.getpid(), gpus=(gpu,), energy_mj=1e12)
        simulation.node.write_process(changed)
        simulation.node.remove_process(os.getpid())
    totals = simulation.node.read_totals()
    assert len(totals) == 64
    assert {sums["energy_mj"] for sums in totals.values()} == {1e12}


def test_readers_never_see_half_a_file(simulation: Simulation) -> None:
    """One writes as fast as it can, and both Python and C read it all the time."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(simulation.node.directory), simulation.uuids[0]],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        answer = simulation.ask(
            """
h = n.nvmlDeviceGetHandleByIndex(0)
answer = set()
for _ in range(500):
    answer |= {tuple((p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h))}
answer = sorted(answer)
"""
        )
        assert answer == [[[writer.pid, 100 * 2**20]]]
        for _ in range(500):
            (process,) = simulation.node.read_processes()
            assert process.energy_mj == process.work
    finally:
        writer.kill()
        writer.wait()
        if writer.stdout is not None:
            writer.stdout.close()


_WRITER = """
import os, sys
from pathlib import Path
from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedProcess
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node, read_starttime
node, pid, count = Node(Path(sys.argv[1])), os.getpid(), 0.0
while True:
    node.write_process(SimulatedProcess(pid, read_starttime(pid), 0, (sys.argv[2],), 100,
                                  energy_mj=count, work=count))
    if not count:
        print("ready", flush=True)
    count += 1.0
"""


def test_energy_grows_while_processes_come_and_go(simulation: Simulation) -> None:
    """Readings of another process while many start and end: what is counted stays counted."""
    for _ in range(4):
        simulation.start("--seconds", "0.4", ready=False)
    readings = simulation.ask(
        """
h = n.nvmlDeviceGetHandleByIndex(0)
end = time.monotonic() + 1.0
answer = []
while time.monotonic() < end:
    answer.append(n.nvmlDeviceGetTotalEnergyConsumption(h))
"""
    )
    assert readings == sorted(readings)
    assert len(set(readings)) > 2


# what others write


def test_a_forged_process_is_not_believed(simulation: Simulation, stranger: int) -> None:
    """A user can describe only his own processes."""
    forged = describe(simulation, os.getpid(), gpu_memory_mb=140000)
    path = simulation.node.directory / "processes" / str(os.getpid())
    path.write_text(render_process(forged))
    os.chown(path, stranger, stranger)
    assert simulation.pids == []
    assert simulation.run("run", "--gpu-memory", "100G", "--steps", "1").returncode == 0


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "huge", "binary"])
def test_odd_files_are_passed_over(simulation: Simulation, kind: str, tmp_path: Path) -> None:
    path = simulation.node.directory / "processes" / str(os.getpid())
    if kind == "link":
        (tmp_path / "real").write_text(render_process(describe(simulation, os.getpid())))
        path.symlink_to(tmp_path / "real")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "huge":
        path.write_text("gpu=x\n" * 100_000)
    else:
        path.write_bytes(bytes(range(256)) * 10)
    assert simulation.pids == []
    assert (
        simulation.ask(
            "answer = pids(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0)))"
        )
        == []
    )
    assert simulation.run("run", "--steps", "1").returncode == 0


def test_a_stranger_cannot_take_away_what_is_anothers(
    simulation: Simulation, stranger: int
) -> None:
    mine = describe(simulation, os.getpid(), starttime=1)
    simulation.node.write_process(mine)
    assert simulation.run("run", "--steps", "1", uid=stranger).returncode == 0
    path = simulation.node.directory / "processes" / str(os.getpid())
    assert path.exists()
    # It counts all the same.
    energy = simulation.ask(
        "answer = n.nvmlDeviceGetTotalEnergyConsumption(n.nvmlDeviceGetHandleByIndex(0))"
    )
    assert energy >= 7
    assert simulation.node.reap() == (os.getpid(),)


def test_a_held_lock_is_told_after_a_while(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_colloc_lab.simgpu.nvml.gpu_state._LOCK_S", 0.05)
    start = time.monotonic()
    with (
        simulation.node.locked(),
        pytest.raises(StateError, match="has been held"),
        Node(simulation.node.directory).locked(),
    ):
        pass
    assert time.monotonic() > start


def test_nvml_answers_while_somebody_holds_the_lock(simulation: Simulation) -> None:
    with simulation.node.locked():
        assert (
            simulation.ask(
                "answer = n.nvmlDeviceGetTotalEnergyConsumption(n.nvmlDeviceGetHandleByIndex(0))"
            )
            >= 0
        )


def test_a_damaged_gpu_file_is_told(simulation: Simulation) -> None:
    (simulation.node.directory / "gpus" / "0").write_text("uuid=GPU-1\n")
    with pytest.raises(StateError, match="gpus/0 is damaged"):
        simulation.node.read_gpus()


def test_no_simulation_is_told() -> None:
    with pytest.raises(NotFound, match="SIMGPU_ROOT=''"):
        open_node({})
