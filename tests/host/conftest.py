"""NVIDIA's real control daemon with a server that needs no GPU, and what tests of it share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.hooks.run_directory import is_mounted, unmount_all
from slurm_colloc.host.mps.mps_control import find_library_path
from slurm_colloc.host.mps.mps_state import MpsOptions
from slurm_colloc.host.nvml.nvml_query import probe_gpus
from slurm_colloc.host.system.node_processes import (
    ProcessId,
    list_processes,
    read_environment,
)
from slurm_colloc_lab.simgpu.gpu_models import H200
from slurm_colloc_lab.simgpu.install import make_simulation
from slurm_colloc_lab.simgpu.nvml.build_library import NoCompiler

from ..mps.nvidia import find_control
from ..signalling import send_signal
from .hook_node import NODE, HookNode, reset_gpus
from .waiting import Start, waiting_children

# Less than the minute that a test gets on a machine with a GPU, so that reasons are told.
PATIENCE_S = 45


def find_gpu() -> str:
    """This machine's first GPU, because a daemon from 580 on ends at once where it sees none.

    Any UUID will do where there is no GPU.
    """
    if Path("/dev/nvidiactl").exists():
        for gpu in probe_gpus(PATIENCE_S).gpus:
            if gpu.uuid is not None:
                return gpu.uuid
    return "GPU-5a41ce45-e82a-a159-ec6f-fe593e0e1c21"


GPU = find_gpu()

# It stays, like a server that has clients. What it was told to survive stands in its environment.
# Whether a server's own output reaches the daemon's is not known of every driver, so that it is up
# shows in a file.
STUB_SERVER = """#!/usr/bin/python3 -IS
import os, signal
if os.environ.get("STUB_SERVER") == "stubborn":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
open(os.environ["CUDA_MPS_LOG_DIRECTORY"] + f"/stub.{os.getpid()}", "w").close()
while True:
    signal.pause()
"""


def find_control_program() -> Path | None:
    """NVIDIA's control program: 550, which runs without a GPU, fetched, or one that is named."""
    named = os.environ.get("CSUB_NVIDIA_MPS")
    for part in ("", "bin", "usr/bin", "x/usr/bin") if named else ():
        candidate = Path(named or "") / part / "nvidia-cuda-mps-control"
        if candidate.is_file():
            return candidate
    return find_control()


def find_older_python() -> Path | None:
    """An interpreter older than the one csub itself needs, as nodes may have."""
    for version in ("3.9", "3.10"):
        own = Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")
        for candidate in (Path(f"/usr/bin/python{version}"), *own):
            if candidate.exists():
                return candidate
    return None


@pytest.fixture
def older_python() -> Path:
    """The interpreter of an old node."""
    found = find_older_python()
    if found is None:
        pytest.skip("this machine has no Python 3.9 or 3.10")
    return found


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory with a short path that every user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="h", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    for place in (directory / "run").glob("*"):
        if place.name.isdigit() and is_mounted(str(place)):
            unmount_all(str(place))
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that wait; they are gone at the end."""
    with waiting_children() as found:
        yield found


@pytest.fixture
def base(short_directory: Path) -> Iterator[Path]:
    """Where private directories are made; whatever is still run from it is ended."""
    made = short_directory / "base"
    made.mkdir()
    made.chmod(0o1777)
    yield made
    end_programs_below(made)


@pytest.fixture
def programs(short_directory: Path) -> Path:
    """A directory with NVIDIA's real control program and a stub of its server."""
    control = find_control_program()
    if control is None:
        pytest.skip(
            "NVIDIA's control daemon is not there: python -m tests.mps.nvidia fetches it, "
            "or CSUB_NVIDIA_MPS names its directory"
        )
    directory = short_directory / "bin"
    directory.mkdir()
    shutil.copy(control, directory / control.name)
    write_program(directory / "nvidia-cuda-mps-server", STUB_SERVER)
    return directory


@pytest.fixture
def driver(programs: Path) -> int:
    """Which driver's control program it is, as the tables of tests/mps number them."""
    ended = subprocess.run(
        [programs / "nvidia-cuda-mps-control", "-h"],
        env={"PATH": "/usr/bin:/bin", **find_library_path(os.environ)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended
    return 580 if "Linux/Unix/QNX" in ended.stdout else 550


@pytest.fixture
def options(programs: Path, base: Path) -> Callable[..., MpsOptions]:
    """Makes options for a daemon; a stub server never becomes ACTIVE."""

    def make(**changes: object) -> MpsOptions:
        fields: dict[str, object] = {
            "gpus": (GPU,),
            "bases": (str(base),),
            "path": str(programs),
            "needs_active": False,
            "control_cap_s": float(PATIENCE_S),
            **changes,
        }
        return MpsOptions(**fields)  # type: ignore[arg-type]

    return make


def write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def list_programs_below(base: Path) -> list[ProcessId]:
    """Daemons and servers whose pipe directory lies below a base."""
    return [
        process.id
        for process in list_processes()
        if not process.has_ended
        and process.name.startswith("nvidia-cuda-mps")
        and (read_environment(process.id.pid).get("CUDA_MPS_PIPE_DIRECTORY") or "").startswith(
            f"{base}/"
        )
    ]


def end_programs_below(base: Path) -> None:
    for identity in list_programs_below(base):
        send_signal(identity, signal.SIGKILL)


@pytest.fixture(scope="module")
def simulation() -> Iterator[Path]:
    """A node with two simulated GPUs."""
    home = Path(tempfile.mkdtemp(prefix="hk", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        make_simulation(home / "sim", {NODE: [H200, H200]})
        yield home / "sim"
    except NoCompiler as problem:
        pytest.skip(str(problem))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def bed(short_directory: Path, simulation: Path) -> Iterator[HookNode]:
    """The same node with a policy, for root's hooks."""
    found = HookNode(short_directory, simulation)
    found.slurm_conf.write_text(f"NodeName={NODE} Gres=gpu:2\n")
    found.write_policy()
    found.fail_nvml()
    reset_gpus(found)
    yield found
    found.end_all()
