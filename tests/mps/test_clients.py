"""Servers with clients: who is served, and within which limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc_lab.simgpu.mps.client_limits import count_sms
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node

from .backends import ClientProcess, Mps, name_gpu, read_gpus

UNSEEN = "GPU-00000000-1111-2222-3333-444444444444"
# What CUDA itself takes of a pinned limit on a GPU, and more.
CONTEXT_MB = 1300


def connect(mps: Mps, **variables: str) -> tuple[ClientProcess, dict[str, object]]:
    """Start a client and wait until it has its context."""
    client = mps.start_client(variables)
    described = client.describe()
    assert described["error"] == 0
    return client, described


def test_a_server_is_initializing_and_then_active(mps: Mps) -> None:
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    server = mps.server()
    seen = [mps.status(server)]
    while seen[-1] == "INITIALIZING":
        seen.append(mps.status(server))
    assert seen[-1] == "ACTIVE"
    mps.wait_for_log(f"^NEW SERVER {server}: Ready$")
    mps.wait_for_log("^Server has started$", "server")
    assert "Active Threads Percentage set to 100.0" in mps.log("server")
    # A second request for the same user changes nothing.
    mps.ask(f"start_server -uid {mps.uid}")
    assert mps.servers() == [server]
    assert mps.ask("ps").all == (0, "", "")


def test_the_first_client_brings_the_server_and_is_listed_until_it_leaves(mps: Mps) -> None:
    mps.start()
    client, _ = connect(mps)
    server = mps.server()
    assert mps.clients(server) == {client.pid}
    head, row = mps.ask("ps").lines
    assert head == (
        "PID       ID        SERVER         DEVICE                    NAMESPACE      "
        "COMMAND        "
    )
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    expected = f"{client.pid:<10}1         {server:<15}{name_gpu(mps)[:22]:26}{namespace:<15}"
    assert row.startswith(expected)
    assert mps.ask(f"ps -p {server}").lines == [head, row]
    assert any(line.startswith(f"NEW CLIENT {client.pid} from user") for line in mps.log())
    client.leave()
    mps.wait(lambda: not mps.clients(server), "the client's end")
    assert mps.ask("ps").output == ""
    mps.wait_for_log(f"^Client process {client.pid} disconnected$", "server")


def test_without_its_daemons_directory_a_process_runs_silently_without_mps(mps: Mps) -> None:
    mps.start()
    server = mps.start_server()
    client, described = connect(
        mps,
        CUDA_MPS_PIPE_DIRECTORY=str(mps.directory / "elsewhere"),
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10",
    )
    free, _ = connect(mps)
    assert mps.clients(server) == {free.pid}
    # A real client cannot tell.
    assert described["mps"] is (None if mps.backend.simulation is None else False)
    # Not even its limit holds.
    alone, _ = connect(mps, CUDA_MPS_PIPE_DIRECTORY=str(mps.directory / "elsewhere"))
    assert described["sms"] == _describe_sms(mps)
    assert client.poll() == alone.poll() == 0


def _describe_sms(mps: Mps) -> object:
    _, described = connect(mps)
    return described["sms"]


@pytest.mark.parametrize(
    ("given", "percentage"),
    [("25", 25.0), ("28.57", 28.57), ("0", 100.0), ("150", 100.0), ("x", 100.0)],
)
def test_a_clients_thread_percentage_is_rounded_down_and_nonsense_is_ignored(
    mps: Mps, given: str, percentage: float
) -> None:
    mps.start()
    whole = _describe_sms(mps)
    assert isinstance(whole, int)
    _, described = connect(mps, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=given)
    assert described["sms"] == count_sms(percentage, whole)


def test_a_default_percentage_binds_the_next_server_and_a_client_can_only_tighten_it(
    mps: Mps,
) -> None:
    mps.start()
    _, described = connect(mps)
    whole = described["sms"]
    assert isinstance(whole, int)
    assert mps.ask("set_default_active_thread_percentage 50").output == "50.0\n"
    server = mps.server()
    # The running server keeps what it has.
    assert mps.ask(f"get_active_thread_percentage {server}").output == "100.0\n"
    answer = mps.ask(
        f"set_active_thread_percentage {server} 25", f"set_active_thread_percentage {server} 0"
    )
    assert answer.output == "25.0\n25.0\n"
    for wanted, gets in (("100", 25.0), ("10", 10.0)):
        _, described = connect(mps, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=wanted)
        assert described["sms"] == count_sms(gets, whole)


@pytest.mark.parametrize("by", ["index", "uuid"])
def test_a_pinned_limit_holds_by_index_and_by_uuid_context_included(mps: Mps, by: str) -> None:
    mps.start()
    name = "0" if by == "index" else name_gpu(mps)
    _, described = connect(mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"{name}=20000M")
    assert 20000 - CONTEXT_MB <= read_free_mb(described) <= 20000


def test_an_entry_for_an_unseen_gpu_drops_every_limit(mps: Mps) -> None:
    mps.start()
    _, free = connect(mps)
    limits = f"{UNSEEN}=20G,{name_gpu(mps)}=20G"
    _, described = connect(mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=limits)
    # On real hardware other tests may use the GPU at the same time.
    assert read_free_mb(described) > read_free_mb(free) / 2 > 20 * 1024


def test_a_limit_above_the_gpus_memory_is_ignored(mps: Mps) -> None:
    mps.start()
    _, free = connect(mps)
    limit = f"{name_gpu(mps)}=4000G"
    _, described = connect(mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=limit)
    assert read_free_mb(described) > read_free_mb(free) / 2


def test_limits_of_the_daemon_reach_the_clients_and_can_only_be_tightened(mps: Mps) -> None:
    mps.start()
    mps.ask("set_default_device_pinned_mem_limit 0 30000M")
    _, described = connect(mps)
    assert 30000 - CONTEXT_MB <= read_free_mb(described) <= 30000
    server = mps.server()
    assert mps.ask(f"get_device_pinned_mem_limit {server} 0").output == "29G\n"
    for wanted, gets_mb in (("40000M", 30000), ("20000M", 20000)):
        _, described = connect(mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"0={wanted}")
        assert gets_mb - CONTEXT_MB <= read_free_mb(described) <= gets_mb
    # Later clients only.
    assert mps.ask(f"set_device_pinned_mem_limit {server} 0 10000M").all == (0, "", "")
    assert mps.ask(f"get_device_pinned_mem_limit {server} 0").output == "9G\n"
    _, described = connect(mps)
    assert read_free_mb(described) <= 10000


def test_a_limit_in_the_daemons_environment_binds_no_client_of_580(mps: Mps) -> None:
    mps.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=30000M"
    mps.start()
    client, described = connect(mps)
    assert mps.clients(mps.server()) == {client.pid}
    if mps.backend.version >= 580:
        # 142425 MB on an H200.
        assert read_free_mb(described) > 40000
    else:
        assert 30000 - CONTEXT_MB <= read_free_mb(described) <= 30000


def read_free_mb(described: dict[str, object]) -> int:
    free_mb = described["free_mb"]
    assert isinstance(free_mb, int)
    return free_mb


def test_an_index_that_the_daemon_has_resolved_already_names_no_gpu(mps: Mps) -> None:
    mps.environment["CUDA_VISIBLE_DEVICES"] = name_gpu(mps)
    mps.start()
    assert mps.start_client({"CUDA_VISIBLE_DEVICES": "1"}).describe()["error"] == 100
    connect(mps, CUDA_VISIBLE_DEVICES=name_gpu(mps))


def test_clients_beyond_48_are_refused_with_808(mps: Mps) -> None:
    mps.start()
    if mps.backend.simulation is None:
        crowd = [connect(mps)[0] for _ in range(48)]
    else:
        # Each of its connections counts as a client here.
        crowd = [mps.start_client(count=48)]
        assert crowd[0].describe()["error"] == 0
    assert mps.start_client().describe()["error"] == 808
    assert crowd[0].poll() == 0
    crowd[0].leave()
    server = mps.server()
    mps.wait(lambda: len(mps.clients(server)) < 48, "a free place")
    connect(mps)


def test_a_client_of_another_user_waits_until_the_first_users_have_left(
    mps: Mps, users: tuple[int, int]
) -> None:
    if mps.backend.simulation is None:
        pytest.skip("the GPU's files may be closed to a user without an account")
    mps.start()
    first = mps.start_client(uid=users[0])
    assert first.describe()["error"] == 0
    server = mps.server()
    second = mps.start_client(uid=users[1])
    mps.wait_for_log(f"^NEW CLIENT {second.pid} from user {users[1]}: Server is not ready")
    mps.wait_for_log(f"^Server {server} has 2 active worker threads. Server will not shutdown.$")
    assert not second.says_something(0.5)
    assert mps.clients(server) == {first.pid}
    first.leave()
    assert second.describe()["error"] == 0
    assert mps.clients(mps.server()) == {second.pid}
    assert mps.server() != server


def test_the_server_holds_66_mib_of_its_own_on_each_gpu(mps: Mps) -> None:
    if mps.backend.simulation is None:
        pytest.skip("NVML's view of a real GPU is measured in tests/gpu")
    node = Node(mps.backend.simulation / "nodes" / "n1")
    mps.start()
    server = mps.start_server()
    found = next(process for process in node.read_processes() if process.pid == server)
    assert found.gpu_memory_mb == 66
    assert found.gpus == tuple(gpu.uuid for gpu in read_gpus(mps.backend.simulation))
    mps.ask("quit")
    mps.wait(lambda: all(p.pid != server for p in node.read_processes()), "the server's end")
