"""On a simulated GPU: its figures over a window, and an MPS daemon that ends whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc_lab.calibration.training_group import PrivateMps
from slurm_colloc_lab.calibration.whole_gpu import NAMES
from slurm_colloc_lab.simgpu.gpu_models import A100_40, H200

from ..simgpu.conftest import Simulation, running_simulation
from ..wait_until import wait_until
from .short_cells import PATIENCE_S, is_running


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    """An H200, which has GPM, and an A100, which has not."""
    with running_simulation("cal", {"n1": [H200, A100_40]}) as made:
        yield made


_READ = """
import json, sys, time
from slurm_colloc_lab.calibration.whole_gpu import Readings
readings = Readings(sys.argv[1])
now = time.monotonic()
readings.start(now + 0.1, now + 0.9)
found = readings.finish()
readings.close()
print(json.dumps({"found": found, "problem": readings.problem}))
"""


def ask(simulation: Simulation, uuid: str) -> tuple[dict[str, float | None], str]:
    ended = subprocess.run(
        [sys.executable, "-c", _READ, uuid],
        env=simulation.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    return told["found"], told["problem"]


def test_figures_are_those_of_the_window(simulation: Simulation) -> None:
    found, problem = ask(simulation, simulation.uuids[0])
    assert problem == ""
    assert tuple(found) == NAMES
    assert found["sm_active"] == pytest.approx(0.0, abs=0.01)
    assert found["sm_clock_mhz"] is not None
    assert found["power_w"] is not None


def test_what_a_gpu_does_not_tell_is_none(simulation: Simulation) -> None:
    found, problem = ask(simulation, simulation.uuids[1])
    assert problem == "the GPU has no GPM"
    assert found["sm_active"] is None
    assert found["power_w"] is not None
    assert set(ask(simulation, "GPU-unknown")[0].values()) == {None}


def test_a_private_daemon_gives_limits_and_ends(simulation: Simulation) -> None:
    uuid = simulation.uuids[0]
    mps = PrivateMps(uuid, simulation.environment())
    try:
        assert is_running(mps.daemon_pid)
        environment = mps.build_environment(16)
        assert environment["CUDA_VISIBLE_DEVICES"] == uuid
        assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "16"
        assert Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in mps.build_environment(None)
    finally:
        report = mps.stop()
    assert report is not None
    assert report.directory_removed
    assert not is_running(mps.daemon_pid)
    assert not Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).exists()


def test_without_the_gpu_there_is_no_daemon(simulation: Simulation) -> None:
    with pytest.raises(NodeError, match="MPS cannot be used"):
        PrivateMps("GPU-00000000-0000-0000-0000-000000000000", simulation.environment())


_HOLD = """
import os, sys, time
from slurm_colloc_lab.calibration.training_group import PrivateMps
mps = PrivateMps(sys.argv[1], os.environ)
print(mps.daemon_pid, flush=True)
time.sleep(600)
"""


def test_a_daemon_ends_with_the_process_that_was_killed(simulation: Simulation) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, simulation.uuids[0]],
        env=simulation.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        wait_until(lambda: not is_running(pid), "the daemon has ended")
    finally:
        process.kill()
        process.communicate()


_CALIBRATE = """
import sys
from slurm_colloc_lab.calibration import calibrated_gpu
from slurm_colloc.__main__ import run
# Whatever machine this is, its cores are enough: none of the trainings will run.
calibrated_gpu.list_cores = lambda: range(16)
sys.exit(run(["calibrate", *sys.argv[1:]]))
"""


def calibrate(simulation: Simulation, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _CALIBRATE, *words],
        env={
            **simulation.environment(),
            "XDG_STATE_HOME": str(simulation.directory / "state"),
            "TMPDIR": str(simulation.directory),
        },
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )


@pytest.mark.long
@pytest.mark.torch
def test_where_no_training_runs_the_command_says_why_and_leaves_nothing(
    simulation: Simulation, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    raw = tmp_path / "rows.csv"
    ended = calibrate(simulation, "--gpu=0", "--scale=tiny", f"--raw={raw}")
    assert ended.returncode == 5, ended.stderr
    assert "measuring NVIDIA H200 with 16 cores" in ended.stderr
    assert "csub: error: nothing could be measured: " in ended.stderr
    # Before anything was started the idle GPU was looked at.
    header, idle = raw.read_text().splitlines()
    found = dict(zip(header.split(","), idle.split(","), strict=True))
    assert (found["label"], found["gpu_model"]) == ("idle", "NVIDIA H200")
    assert float(found["power_w"]) == pytest.approx(76, abs=5)
    assert float(found["power_limit_w"]) == 700
    assert not (simulation.directory / "state").exists()
    assert not list(simulation.directory.glob("csub-calibrate-*"))


def test_a_gpu_that_does_not_tell_what_it_does_is_refused(simulation: Simulation) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    ended = calibrate(simulation, "--gpu", simulation.uuids[1])
    assert ended.returncode == 5
    assert "does not tell what it does: the GPU has no GPM: " in ended.stderr
    assert "from Hopper on" in ended.stderr


def test_of_two_gpus_one_must_be_named(simulation: Simulation) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    ended = calibrate(simulation)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "there are 2 GPUs: 0 (NVIDIA H200), 1 (" in ended.stderr
