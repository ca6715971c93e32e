"""What becomes of clients, servers and daemons when one of them fails."""

from __future__ import annotations

import os
import signal

import pytest

from slurm_colloc.host.system.node_processes import identify
from slurm_colloc_lab.simgpu.mps.server_faults import compute_linked

from .backends import PATIENCE_S, ClientProcess, Mps

ILLEGAL_ADDRESS, RPC_FAILURE, NOT_READY, TERMINATED = 700, 806, 807, 810


def start_clients(mps: Mps, count: int) -> list[ClientProcess]:
    clients = [mps.start_client() for _ in range(count)]
    for client in clients:
        assert client.describe()["error"] == 0
    return clients


def wait_for_error(mps: Mps, client: ClientProcess) -> int:
    found: int = mps.wait(client.poll, "the error")
    return found


def test_an_illegal_address_ends_every_client_and_keeps_newcomers_out_until_all_have_left(
    mps: Mps,
) -> None:
    mps.start()
    culprit, *neighbours = start_clients(mps, 3)
    server = mps.server()
    culprit.send("fault")
    for client in neighbours:
        assert wait_for_error(mps, client) == ILLEGAL_ADDRESS
    assert mps.status(server) == "FAULT"
    newcomer = mps.start_client()
    if mps.backend.simulation is not None:
        # Documented; a real driver may also keep it waiting until the server is ACTIVE again.
        assert newcomer.describe()["error"] == NOT_READY
    # The log lists all of them, and whom it names first may be innocent.
    everybody = {culprit.pid, *(client.pid for client in neighbours)}
    mps.wait_for_log("sticky error set", "server")
    log = mps.log("server")
    listed = log[log.index("The following client process have a sticky error set:") + 1 :]
    assert {int(line) for line in listed[:3]} == everybody
    culprit.leave()
    assert mps.status(server) == "FAULT"
    for client in neighbours:
        client.leave()
    newcomer.leave()
    mps.wait(lambda: mps.status(server) == "ACTIVE", "ACTIVE")
    # The same server takes clients again.
    start_clients(mps, 1)
    assert mps.servers() == [server]


def test_a_client_that_is_killed_leaves_its_neighbours_alone(mps: Mps) -> None:
    mps.start()
    killed, neighbour = start_clients(mps, 2)
    server = mps.server()
    killed.process.kill()
    killed.process.wait(PATIENCE_S)
    mps.wait(lambda: mps.clients(server) == {neighbour.pid}, "its end")
    assert mps.status(server) == "ACTIVE"
    assert neighbour.poll() == 0


def test_a_terminated_client_meets_810_and_stays_listed_until_it_leaves(mps: Mps) -> None:
    mps.start()
    ended, neighbour = start_clients(mps, 2)
    server = mps.server()
    assert mps.ask(f"terminate_client {server} {ended.pid}").all == (0, "0\n", "")
    assert wait_for_error(mps, ended) == TERMINATED
    assert mps.clients(server) == {ended.pid, neighbour.pid}
    ended.leave()
    mps.wait(lambda: mps.clients(server) == {neighbour.pid}, "its end")
    assert neighbour.poll() == 0
    assert mps.ask(f"terminate_client {server} 999999999").lines[0] == (
        "Invalid process 999999999!"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_without_its_daemon_a_server_of_580_ends_and_one_of_550_goes_on(
    mps: Mps, number: signal.Signals
) -> None:
    mps.start()
    (client,) = start_clients(mps, 1)
    server, daemon = mps.server(), mps.pid
    os.kill(daemon, number)
    mps.wait(lambda: identify(daemon) is None, "the daemon's end")
    if mps.backend.version >= 580:
        mps.wait(lambda: identify(server) is None, "the server's end")
        assert wait_for_error(mps, client) == RPC_FAILURE
    else:
        assert client.poll() == 0
        assert identify(server) is not None
    # A newcomer finds no daemon, and runs without, which a real client cannot tell.
    described = mps.start_client().describe()
    without = None if mps.backend.simulation is None else False
    assert (described["error"], described["mps"]) == (0, without)


def test_when_a_server_is_killed_its_clients_fail_and_the_next_client_gets_another(
    mps: Mps,
) -> None:
    mps.start()
    (client,) = start_clients(mps, 1)
    server = mps.server()
    os.kill(server, signal.SIGKILL)
    error = wait_for_error(mps, client)
    # A real one may meet a failed allocation first.
    assert error == RPC_FAILURE or mps.backend.simulation is None
    mps.wait_for_log(f"^Server {server} exited with status 0$")
    (newcomer,) = start_clients(mps, 1)
    assert mps.server() != server
    assert mps.clients(mps.server()) == {newcomer.pid}


def test_quit_waits_for_clients_and_takes_no_new_ones(mps: Mps) -> None:
    mps.start()
    (client,) = start_clients(mps, 1)
    daemon, server = mps.pid, mps.server()
    quitting = mps.open_front_end()
    assert quitting.stdin is not None
    quitting.stdin.write("quit\n")
    quitting.stdin.close()
    mps.wait_for_log("again in at most 400ms$")
    assert quitting.poll() is None
    assert client.poll() == 0
    # Another control program comes back at once, with nothing.
    assert mps.ask("get_server_list").output == ""
    client.leave()
    quitting.wait(PATIENCE_S)
    mps.wait(lambda: identify(daemon) is None and identify(server) is None, "the end")
    assert f"Try shutting down server {server}, backoff is enabled" in mps.log()


def test_quit_with_a_time_limit_ends_a_server_that_has_clients(mps: Mps) -> None:
    mps.start()
    (client,) = start_clients(mps, 1)
    daemon, server = mps.pid, mps.server()
    assert mps.ask("quit -t 1").status == 0
    assert wait_for_error(mps, client) == RPC_FAILURE
    mps.wait(lambda: identify(daemon) is None and identify(server) is None, "the end")
    log = mps.log()
    assert f"Force shutting down server {server}" in log
    assert f"Server {server} exited with status 0" in log


def test_a_fault_reaches_the_gpus_that_clients_link_and_no_others() -> None:
    clients = [("a", "b"), ("b", "c"), ("d",), ("e", "f")]
    assert compute_linked(["a"], clients) == {"a", "b", "c"}
    assert compute_linked(["d"], clients) == {"d"}
    assert compute_linked(["f"], clients) == {"e", "f"}
    assert compute_linked([], clients) == set()
