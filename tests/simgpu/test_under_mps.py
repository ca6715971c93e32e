"""Simulated trainings as clients of the simulated MPS."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc_lab.simgpu.nvml.gpu_records import COMPUTE_MODES

from ..wait_until import wait_until
from .conftest import PATIENCE_S, Simulation

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


@dataclass
class Daemon:
    """A control daemon on the first GPU."""

    simulation: Simulation
    process: subprocess.Popen[str]
    pipe: Path

    @property
    def client(self) -> dict[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}

    @property
    def server(self) -> int:
        """The server that all clients share."""
        servers = {one.mps_server for one in self.simulation.node.read_processes()} - {None}
        assert len(servers) == 1
        return int(servers.pop() or 0)


def start_daemon(simulation: Simulation, name: str, uuid: str) -> Daemon:
    pipe, log = simulation.directory.parent / name, simulation.directory.parent / f"{name}.log"
    pipe.mkdir()
    log.mkdir()
    extra = {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(log),
        "CUDA_VISIBLE_DEVICES": uuid,
    }
    process = subprocess.Popen(
        [str(simulation.directory / "bin" / "nvidia-cuda-mps-control"), "-f"],
        env=simulation.environment(extra),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    simulation.started.append(process)
    wait_until((pipe / "control").exists, "the daemon listens")
    return Daemon(simulation, process, pipe)


@pytest.fixture
def daemon(simulation: Simulation) -> Iterator[Daemon]:
    started = start_daemon(simulation, "p", simulation.uuids[0])
    yield started
    for process in simulation.started:
        process.kill()
    wait_until(lambda: not simulation.pids, "server and clients have gone")


def test_nvml_shows_server_and_clients_as_measured(daemon: Daemon) -> None:
    simulation = daemon.simulation
    clients = [
        simulation.start("--gpu-memory", "1G", "--sm", "20", "--seconds", "60", extra=daemon.client)
        for _ in range(2)
    ]
    # Together they use a little more of the SMs than alone; each sees the other within a moment.
    wait_until(
        lambda: sum(round(one.sm_share) for one in simulation.node.read_processes()) == 44,
        "both have seen each other",
    )
    answer = simulation.ask(
        """
h = n.nvmlDeviceGetHandleByIndex(0)
show = lambda get: sorted([p.pid, p.usedGpuMemory >> 20] for p in get(h))
answer = [show(n.nvmlDeviceGetComputeRunningProcesses),
          show(n.nvmlDeviceGetMPSComputeRunningProcesses),
          [[s.pid, s.smUtil] for s in n.nvmlDeviceGetProcessUtilization(h, 0)]]
"""
    )
    mine = sorted([client.pid, 1024 + 512] for client in clients)
    assert answer[0] == sorted([*mine, [daemon.server, 66]])
    assert answer[1] == mine
    # All of the SM time is the server's.
    assert answer[2] == [[daemon.server, 44]]


@pytest.mark.parametrize(("limit", "blocks"), [("3G", 2), ("4G", 3)])
def test_a_pinned_limit_includes_the_context(daemon: Daemon, limit: str, blocks: int) -> None:
    extra = {
        **daemon.client,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{daemon.simulation.uuids[0]}={limit}",
    }
    arguments = ["run", "--block", "1G", "--steps", "1", "--gpu-memory"]
    fits = daemon.simulation.run(*arguments, f"{blocks}G", extra=extra)
    assert (fits.returncode, fits.stderr) == (0, "")
    refused = daemon.simulation.run(*arguments, f"{blocks + 1}G", extra=extra)
    assert refused.returncode == 1
    assert "capacity of 139.80 GiB of which 512.00 MiB is free" in refused.stderr
    assert f"{blocks}.00 GiB is allocated by PyTorch" in refused.stderr


def test_a_lower_thread_limit_makes_a_smaller_context(daemon: Daemon) -> None:
    extra = {**daemon.client, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    client = daemon.simulation.start("--gpu-memory", "1M", "--seconds", "60", extra=extra)
    process = next(one for one in daemon.simulation.node.read_processes() if one.pid == client.pid)
    assert process.gpu_memory_mb == 1 + 512 - 372


def test_a_thread_limit_is_a_ceiling(daemon: Daemon) -> None:
    extra = {**daemon.client, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"}
    arguments = ["run", "--sm", "40", "--steps", "3", "--rate", "20", "--report"]
    limited = daemon.simulation.run(*arguments, extra=extra)
    assert limited.stdout.splitlines()[-1] == "step 3 rate 10.000"
    free = daemon.simulation.run(*arguments, extra=daemon.client)
    assert free.stdout.splitlines()[-1] == "step 3 rate 20.000"


def test_an_illegal_address_ends_every_client_of_the_server_and_nobody_else(
    daemon: Daemon,
) -> None:
    simulation = daemon.simulation
    other = start_daemon(simulation, "q", simulation.uuids[1])
    victims = [simulation.start("--seconds", "60", extra=daemon.client) for _ in range(2)]
    spared = [
        simulation.start("--seconds", "60"),
        simulation.start("--seconds", "60", extra=other.client),
    ]
    culprit = simulation.run("run", "--fault", "illegal-address@0.1", extra=daemon.client)
    endings = {
        (victim.wait(PATIENCE_S), victim.stderr.read() if victim.stderr else "")
        for victim in victims
    }
    assert endings == {(1, culprit.stderr)}
    assert ILLEGAL in culprit.stderr
    assert culprit.returncode == 1
    assert [process.poll() for process in spared] == [None, None]
    newcomer = simulation.run("run", "--steps", "1", extra=daemon.client)
    assert newcomer.returncode == 0


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("device-assert", 1),
        ("out-of-gpu-memory", 1),
        ("segfault", -signal.SIGSEGV),
        ("sigkill-itself", -signal.SIGKILL),
        ("exit=3", 3),
    ],
)
def test_other_faults_stay_with_their_process(daemon: Daemon, fault: str, status: int) -> None:
    neighbours = [daemon.simulation.start("--seconds", "60", extra=daemon.client) for _ in range(2)]
    ended = daemon.simulation.run("run", "--fault", f"{fault}@0.1", extra=daemon.client)
    assert ended.returncode == status
    before = [_find_work(daemon.simulation, process.pid) for process in neighbours]
    wait_until(
        lambda: all(
            _find_work(daemon.simulation, process.pid) > work
            for process, work in zip(neighbours, before, strict=True)
        ),
        "both neighbours go on",
    )


def test_a_wrong_pipe_directory_is_a_silent_bypass(daemon: Daemon) -> None:
    extra = {
        "CUDA_MPS_PIPE_DIRECTORY": f"{daemon.pipe}/elsewhere",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
    }
    arguments = ["run", "--sm", "80", "--gpu-memory", "4G", "--steps", "2", "--report"]
    ended = daemon.simulation.run(*arguments, extra=extra)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "step 2 rate 10.000"


def test_in_exclusive_mode_the_bypass_is_loud(daemon: Daemon) -> None:
    simulation = daemon.simulation
    gpu = simulation.node.read_gpus()[0]
    exclusive = COMPUTE_MODES["exclusive_process"]
    simulation.node.write_gpu(dataclasses.replace(gpu, compute_mode=exclusive))
    clients = [simulation.start("--seconds", "60", extra=daemon.client) for _ in range(2)]
    refused = simulation.run("run")
    assert refused.returncode == 1
    assert "busy or unavailable" in refused.stderr
    assert [client.poll() for client in clients] == [None, None]


def test_an_index_that_the_daemon_has_resolved_means_nothing_to_a_client(
    simulation: Simulation,
) -> None:
    """The second GPU is the daemon's first, so a client that keeps `1` has none."""
    daemon = start_daemon(simulation, "p", "1")
    client = simulation.start(
        "--seconds", "60", extra={**daemon.client, "CUDA_VISIBLE_DEVICES": "0"}
    )
    assert client.pid in simulation.snapshot()["n1"][simulation.uuids[1]]["processes"]
    kept = simulation.run("run", extra={**daemon.client, "CUDA_VISIBLE_DEVICES": "1"})
    assert "No CUDA GPUs are available" in kept.stderr
    for process in simulation.started:
        process.kill()
    wait_until(lambda: not simulation.pids, "all have gone")


def test_the_gpus_are_as_before_once_all_have_left(simulation: Simulation) -> None:
    before = simulation.snapshot()
    daemon = start_daemon(simulation, "p", simulation.uuids[0])
    for _ in range(2):
        ended = simulation.run("run", "--steps", "2", extra=daemon.client)
        assert ended.returncode == 0
    assert simulation.snapshot() != before
    ended = subprocess.run(
        [str(simulation.directory / "bin" / "nvidia-cuda-mps-control")],
        env=simulation.environment(daemon.client),
        input="quit\n",
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0
    daemon.process.wait(PATIENCE_S)
    assert simulation.snapshot() == before
    assert not list((simulation.node.directory / "processes").iterdir())


def _find_work(simulation: Simulation, pid: int) -> float:
    return next(one.work for one in simulation.node.read_processes() if one.pid == pid)
