"""A keeper whose servers really become ACTIVE: on a simulated GPU, and on a real one."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from slurm_colloc.host.keeper.keeper_client import KeeperClient
from slurm_colloc.host.keeper.keeper_messages import (
    ClientJoined,
    ControlProved,
    DaemonDied,
    Event,
    Fault,
    KeeperDied,
    Ready,
    ServerStatus,
    Status,
    Stopped,
)
from slurm_colloc.host.mps.mps_control import build_member_environment, find_programs, judge_support
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport, choose_passed_environment
from slurm_colloc.host.nvml.nvml_query import NvmlAnswer, choose_job_gpus, probe_gpus
from slurm_colloc.host.system.node_processes import identify
from slurm_colloc_lab.simgpu.gpu_models import H200
from slurm_colloc_lab.simgpu.install import make_simulation, simulation_environment
from slurm_colloc_lab.simgpu.nvml.build_library import NoCompiler

from .conftest import PATIENCE_S, end_programs_below

CLIENT = Path(__file__).parents[1] / "mps" / "client.py"
E = TypeVar("E")


@dataclass
class Node:
    """A node with GPUs, one of which is the job's."""

    kind: str
    base: Path
    answer: NvmlAnswer
    uuid: str
    keepers: list[KeeperClient] = field(default_factory=list)
    clients: list[subprocess.Popen[str]] = field(default_factory=list)
    heard: list[Event] = field(default_factory=list)

    def start(self, **changes: Any) -> Ready:
        self.keepers.append(KeeperClient.start(self.make_options(**changes), log=2))
        return self.hear(Ready)

    def make_options(self, **changes: Any) -> MpsOptions:
        return MpsOptions(
            gpus=(self.uuid,),
            bases=(str(self.base),),
            environment=choose_passed_environment(os.environ),
            path=os.environ["PATH"],
            **changes,
        )

    @property
    def keeper(self) -> KeeperClient:
        return self.keepers[-1]

    def hear(self, kind: type[E], **fields: object) -> E:
        """Wait for an event with these values; it and those before it are not heard again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for index, event in enumerate(self.heard):
                if isinstance(event, kind) and all(
                    getattr(event, name) == value for name, value in fields.items()
                ):
                    del self.heard[: index + 1]
                    return event
            assert self.keeper.is_alive, self.heard
            assert time.monotonic() < deadline, self.heard
            select.select([self.keeper], [], [], 1.0)
            self.heard += self.keeper.poll()

    def start_client(self) -> subprocess.Popen[str]:
        """Start a process that uses the GPU as a member would."""
        ready = self.keeper.ready
        assert ready is not None
        member = build_member_environment(
            gpus=(self.uuid,), pipe_directory=ready.pipe_directory, thread_percentage=50
        )
        client = subprocess.Popen(
            [sys.executable, "-I", CLIENT, self.kind],
            env={**os.environ, **member},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.clients.append(client)
        assert json.loads(self.read(client))["error"] == 0
        return client

    def read(self, client: subprocess.Popen[str]) -> str:
        assert client.stdout is not None
        assert select.select([client.stdout], [], [], PATIENCE_S)[0]
        return client.stdout.readline().strip()

    def tell(self, client: subprocess.Popen[str], word: str) -> str:
        assert client.stdin is not None
        client.stdin.write(f"{word}\n")
        client.stdin.flush()
        return self.read(client)

    def leave(self, *clients: subprocess.Popen[str]) -> None:
        for client in clients:
            client.kill()
            client.wait(PATIENCE_S)

    def stop(self) -> StopReport:
        self.keeper.stop()
        return self.hear(Stopped).report

    def wait_until_off_gpu(self, *pids: int | None) -> None:
        """Wait until NVML shows none of these; other tests may use the GPU at the same time."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            gpu = probe_gpus(PATIENCE_S).find(self.uuid)
            assert gpu is not None
            assert gpu.processes is not None
            left = {process.pid for process in gpu.processes} & set(pids)
            if not left:
                return
            assert time.monotonic() < deadline, left

    def end(self) -> None:
        for keeper in self.keepers:
            keeper.kill()
            keeper.wait(time.monotonic() + PATIENCE_S)
        self.leave(*self.clients)
        for client in self.clients:
            for pipe in (client.stdin, client.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture(scope="module")
def simulation() -> Iterator[Path]:
    """A simulated node with two GPUs."""
    home = Path(tempfile.mkdtemp(prefix="hs", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        make_simulation(home / "sim", {"n1": [H200, H200]})
        yield home / "sim"
    except NoCompiler as problem:
        pytest.skip(str(problem))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def node(
    request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    """A node whose NVML and MPS can be used."""
    kind = str(request.param)
    if kind == "simulated":
        simulation = request.getfixturevalue("simulation")
        for name, value in simulation_environment(simulation, os.environ).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SLURM_JOB_GPUS", "1")
    elif not Path("/dev/nvidiactl").exists():
        pytest.skip("there is no NVIDIA GPU")
    answer = probe_gpus(PATIENCE_S)
    assert answer.problem == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    chosen = choose_job_gpus(answer, os.environ)
    assert chosen.uuids, chosen.reason
    found = Node(kind, base, answer, chosen.uuids[0])
    yield found
    found.end()
    end_programs_below(base)
    shutil.rmtree(base)
    base.mkdir()


def test_the_node_is_known_to_have_mps(node: Node) -> None:
    assert node.answer.doubts == ()
    support = judge_support(find_programs(os.environ["PATH"]), node.answer, (node.uuid,))
    assert support.is_possible, support.reason
    version = tuple(map(int, (node.answer.cuda_version or "").split(".")))
    assert support.client_cap == (60 if version >= (13, 1) else 48)
    assert support.notes == ()


def test_a_pack_runs_under_its_own_daemon_and_leaves_the_gpu_as_it_was(node: Node) -> None:
    ready = node.start()
    assert ready.server_pid is not None
    assert ready.active_ms is not None
    first, second = node.start_client(), node.start_client()
    for client in (first, second):
        node.hear(ClientJoined, pid=client.pid)
    node.keeper.ask_status()
    status = node.hear(Status)
    (server,) = status.servers
    assert (server.pid, server.uid, server.status) == (ready.server_pid, os.geteuid(), "ACTIVE")
    assert {client.pid for client in server.clients} == {first.pid, second.pid}
    gpu = probe_gpus(PATIENCE_S).find(node.uuid)
    assert gpu is not None
    assert gpu.processes is not None
    assert ready.server_pid in {process.pid for process in gpu.processes}
    if node.kind == "cuda":
        # The simulated client connects and allocates nothing.
        assert {first.pid, second.pid} <= {process.pid for process in gpu.mps_processes or ()}
    node.leave(first, second)
    report = node.stop()
    assert report.is_clean, report
    assert not report.forced
    assert report.gpu_processes == ()
    node.wait_until_off_gpu(ready.server_pid, first.pid, second.pid)
    assert list(node.base.iterdir()) == []
    print(
        f"\ncontrol {ready.control_ms:.0f} ms, ACTIVE {ready.active_ms:.0f} ms, "
        f"quit {report.quit_ms:.0f} ms, stop {report.elapsed_ms:.0f} ms"
    )


def test_a_fault_of_one_client_names_all_who_may_have_made_it(node: Node) -> None:
    ready = node.start()
    culprit, neighbour = node.start_client(), node.start_client()
    node.tell(culprit, "fault")
    fault = node.hear(Fault)
    assert fault.server_pid == ready.server_pid
    assert set(fault.suspects) == {culprit.pid, neighbour.pid}
    assert node.tell(neighbour, "poll") != "0"
    node.leave(culprit, neighbour)
    node.hear(ServerStatus, status="ACTIVE")
    newcomer = node.start_client()
    assert node.tell(newcomer, "poll") == "0"
    node.leave(newcomer)
    assert node.stop().is_clean


def test_clients_that_do_not_leave_are_ended_with_the_daemon(node: Node) -> None:
    node.start()
    client = node.start_client()
    node.keeper.stop(grace_s=0.1)
    report = node.hear(Stopped).report
    assert client.wait(PATIENCE_S) == -signal.SIGKILL
    assert report.is_clean, report
    assert report.forced
    assert report.gpu_processes == ()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_after_the_daemons_death_a_fresh_one_serves_newcomers(
    node: Node, number: signal.Signals
) -> None:
    first = node.start()
    victim = node.start_client()
    os.kill(first.daemon_pid, number)
    node.hear(DaemonDied)
    node.keeper.restart()
    second = node.hear(Ready)
    assert second.pipe_directory != first.pipe_directory
    assert node.tell(victim, "poll") != "0"
    node.leave(victim)
    newcomer = node.start_client()
    assert node.tell(newcomer, "poll") == "0"
    node.leave(newcomer)
    assert node.stop().is_clean


def test_after_the_servers_death_its_daemon_starts_another(node: Node) -> None:
    ready = node.start()
    victim = node.start_client()
    assert ready.server_pid is not None
    os.kill(ready.server_pid, signal.SIGKILL)
    node.hear(ServerStatus, status="EXITED")
    assert node.tell(victim, "poll") != "0"
    node.leave(victim)
    newcomer = node.start_client()
    assert node.tell(newcomer, "poll") == "0"
    node.leave(newcomer)
    assert node.stop().is_clean


def test_a_dead_runner_leaves_nothing_once_its_clients_have_left(node: Node) -> None:
    ready = node.start()
    client = node.start_client()
    node.hear(ClientJoined)
    assert node.keeper._child.stdin is not None
    node.keeper._child.stdin.close()
    deadline = time.monotonic() + PATIENCE_S
    while list(node.base.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # Connected clients need no files.
    assert node.tell(client, "poll") == "0"
    node.leave(client)
    node.keeper.wait(time.monotonic() + PATIENCE_S)
    assert identify(ready.daemon_pid) is None
    node.wait_until_off_gpu(ready.server_pid, client.pid)


def test_a_dead_keeper_leaves_nothing_once_the_runner_has_cleared_up(node: Node) -> None:
    ready = node.start()
    client = node.start_client()
    node.keeper.kill()
    node.hear(KeeperDied)
    report = node.keeper.recover(grace_s=0.1)
    assert client.wait(PATIENCE_S) == -signal.SIGKILL
    assert report.is_clean, report
    assert identify(ready.daemon_pid) is None
    assert ready.server_pid is not None
    assert identify(ready.server_pid) is None
    node.wait_until_off_gpu(ready.server_pid, client.pid)
    assert list(node.base.iterdir()) == []


def test_the_daemon_is_proven_before_its_server(node: Node) -> None:
    node.keepers.append(KeeperClient.start(node.make_options(), log=2))
    node.hear(ControlProved)
    node.hear(Ready)
    node.leave(node.start_client())
    assert node.stop().is_clean
