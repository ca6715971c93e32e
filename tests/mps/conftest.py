"""The backends of the MPS contract; each is left out, with the reason, where it cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.simgpu.gpu_models import H200
from slurm_colloc_lab.simgpu.install import make_simulation, simulation_environment
from slurm_colloc_lab.simgpu.nvml.build_library import NoCompiler

from . import nvidia
from .backends import CONTROL, SYSTEM_PATH, Backend, Mps

# Numbers that no account has; nothing looks them up.
USER, OTHER_USER = 61234, 61235
_DRIVERS = {550: "550.163.01", 580: "580.159.04"}
# Where driver containers have them.
_PROGRAMS = f"{SYSTEM_PATH}:/usr/local/bin:/usr/local/nvidia/bin"


@pytest.fixture(scope="session")
def simulations() -> Iterator[dict[int, Path]]:
    """A simulation for each driver, with two GPUs."""
    home = Path(tempfile.mkdtemp(prefix="ms", dir="/var/tmp"))
    home.chmod(0o755)
    found = {}
    try:
        for version, driver in _DRIVERS.items():
            found[version] = home / str(version)
            make_simulation(found[version], {"n1": [H200, H200]})
            (found[version] / "driver").write_text(f"driver_version={driver}\n")
        yield found
    except NoCompiler as problem:
        pytest.skip(str(problem))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(
    params=[
        pytest.param("simulated-550", marks=pytest.mark.long),
        "simulated-580",
        pytest.param("nvidia-550", marks=pytest.mark.long),
        pytest.param("hardware", marks=pytest.mark.gpu),
    ]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each implementation in turn."""
    name = str(request.param)
    if name == "hardware":
        return _find_hardware()
    simulations: dict[int, Path] = request.getfixturevalue("simulations")
    version = int(name.partition("-")[2])
    simulation = simulations[version]
    variables = {"SIMGPU_ROOT": simulation_environment(simulation, {})["SIMGPU_ROOT"]}
    control: Path | None = simulation / "bin" / CONTROL
    if name.startswith("nvidia"):
        control = nvidia.find_control()
        if control is None:
            pytest.skip("NVIDIA's control daemon is not here (.ci/setup test fetches it)")
        if not nvidia.read_version().startswith("550."):
            pytest.skip(f"NVIDIA's control daemon {nvidia.read_version()} needs a driver")
    assert control is not None
    return Backend(name, version, control, simulation, variables)


def _find_hardware() -> Backend:
    control = shutil.which(CONTROL, path=f"{os.environ['PATH']}:{_PROGRAMS}")
    if not Path("/dev/nvidia0").exists() or control is None:
        pytest.skip("there is no NVIDIA GPU with MPS")
    driver = Path("/sys/module/nvidia/version")
    version = driver.read_text().partition(".")[0] if driver.exists() else "580"
    # Libraries may lie where only the loader's configuration or this variable finds them.
    variables = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
    return Backend("hardware", 580 if int(version) >= 580 else 550, Path(control), None, variables)


@pytest.fixture
def mps(backend: Backend) -> Iterator[Mps]:
    """A daemon that is not started yet, and ends with the test."""
    directory = Path(tempfile.mkdtemp(prefix="mp", dir="/var/tmp"))
    directory.chmod(0o755)
    found = Mps(backend, directory)
    yield found
    found.end()


@pytest.fixture
def users(backend: Backend) -> tuple[int, int]:
    """Two ordinary users that root can act as."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as other users")
    argv = [str(backend.control), "-h"]
    for program in (argv, [sys.executable, "-I", "-c", "import slurm_colloc"]):
        environment = {**os.environ, **backend.variables}
        ended = subprocess.run(
            program,
            user=USER,
            group=USER,
            extra_groups=[],
            env=environment,
            cwd="/",
            capture_output=True,
            check=False,
        )
        if ended.returncode:
            pytest.skip(f"other users cannot run {program[0]}")
    return USER, OTHER_USER
