"""What the control program answers, while the daemon has no server that takes clients."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .backends import Mps, name_gpu, read_stat

SLEEPING = "exec sleep 1000"
NOT_FOUND = "Server 1 not found\n"


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("bogus", 'Unknown command "bogus"\n'),
        ("", 'Unknown command ""\n'),
        ("GET_SERVER_LIST", 'Unknown command "GET_SERVER_LIST"\n'),
        ("help", 'Unknown command "help"\n'),
        ("  get_default_client_priority  x", "0\n"),
        ("get_server_list", ""),
        ("get_server_status", "A server PID is required\n"),
        ("get_server_status 1", NOT_FOUND),
        ("get_server_status 99999999999", "Server 1215752191 not found\n"),
        ("get_client_list", "Server 0 not found\n"),
        ("get_client_list 1", NOT_FOUND),
        ("get_device_client_list", ""),
        ("get_device_client_list 1", NOT_FOUND),
        ("ps", "Server not found\n"),
        ("ps -p 1", f"{NOT_FOUND}{NOT_FOUND}\n"),
        ("shutdown_server 1", NOT_FOUND),
        ("terminate_client 1 2", f"{NOT_FOUND}Server 1 not found!\n1\n"),
        ("get_active_thread_percentage 1", NOT_FOUND),
        ("set_active_thread_percentage 1 30", NOT_FOUND),
        ("get_device_pinned_mem_limit 1 0", NOT_FOUND),
        ("start_server", "A user id (UID) is required to start a new server\n"),
        ("start_server 0", "A user id (UID) is required to start a new server\n"),
        ("start_server -uid x", "A user id (UID) is required to start a new server\n"),
    ],
)
def test_errors_are_text_on_standard_output_and_exit_status_0(
    mps: Mps, line: str, output: str
) -> None:
    mps.start()
    assert mps.ask(line).all == (0, output, "")
    assert mps.wait_for_log("^Cmd:") == f"Cmd:{line}"


def test_several_lines_are_answered_in_turn(mps: Mps) -> None:
    mps.start()
    answer = mps.ask("get_default_active_thread_percentage", "bogus", "get_server_list")
    assert answer.all == (0, '100.0\nUnknown command "bogus"\n', "")


def test_a_second_control_program_is_turned_away_in_silence_while_one_is_open(mps: Mps) -> None:
    mps.start()
    first = mps.open_front_end()
    assert first.stdin is not None
    first.stdin.write("get_default_active_thread_percentage\n")
    first.stdin.flush()
    # Into a pipe the control program writes its answers at its end.
    mps.wait_for_log(r"^100\.0$")
    second = mps.ask("get_default_active_thread_percentage")
    # Which of them it is, is chance: it depends on how fast the daemon closes.
    assert second.all in (
        (0, "", ""),
        (1, "", ""),
        (1, "", "Cannot send command to MPS control daemon process\n"),
    )
    assert first.communicate() == ("100.0\n", "")
    assert mps.ask("get_default_active_thread_percentage").output == "100.0\n"


# -- thread percentage and priority ----------------------------------------------------------------


def test_a_bad_percentage_shows_the_old_one_and_the_reason_is_in_the_log(mps: Mps) -> None:
    mps.start()
    reason = "Invalid percentage, expected between (0.0, 100.0]"
    lines = [f"set_default_active_thread_percentage {word}" for word in ("0", "101", "abc", "")]
    answer = mps.ask("set_default_active_thread_percentage 33.333", *lines)
    assert answer.all == (0, "33.3\n" * 5, "")
    mps.wait(lambda: mps.log().count(reason) == len(lines), reason)


def test_a_bad_priority_is_refused_and_no_priority_is_0(mps: Mps) -> None:
    mps.start()
    answer = mps.ask(
        "set_default_client_priority 1",
        "get_default_client_priority",
        "set_default_client_priority 5",
        "get_default_client_priority",
        "set_default_client_priority x",
        "get_default_client_priority",
    )
    assert answer.output == "1\nInvalid priority value - must be 0 or 1!\n1\n0\n"


@pytest.mark.parametrize(
    ("percentage", "priority", "shown"), [("40", "1", "40.0\n1\n"), ("0", "5", "100.0\n0\n")]
)
def test_the_environment_sets_defaults_and_nonsense_is_ignored_in_silence(
    mps: Mps, percentage: str, priority: str, shown: str
) -> None:
    mps.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = percentage
    mps.environment["CUDA_MPS_CLIENT_PRIORITY"] = priority
    mps.start()
    lines = ("get_default_active_thread_percentage", "get_default_client_priority")
    assert mps.ask(*lines).output == shown


# -- pinned limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("8192M", "8G"),
        ("1500M", "1G"),
        ("512MB", "512M"),
        ("1g", "1G"),
        ("8192", "8G"),
        ("1.5G", "1M"),
        ("abc", ""),
        ("0", ""),
    ],
)
def test_a_limit_is_shown_in_whole_gib_and_read_as_c_reads_numbers(
    mps: Mps, given: str, shown: str
) -> None:
    mps.start()
    lines = (
        "set_default_device_pinned_mem_limit 0 2G",
        f"set_default_device_pinned_mem_limit 0 {given}",
        "get_default_device_pinned_mem_limit 0",
    )
    assert mps.ask(*lines).all == (0, f"{shown}\n" if shown else "", "")


def test_without_a_limit_the_answer_is_empty_and_the_reason_is_in_the_log(mps: Mps) -> None:
    # A limit in the environment is the server's; the daemon does not show it.
    mps.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=1G"
    mps.start()
    read, bad = "get_default_device_pinned_mem_limit 0", "set_default_device_pinned_mem_limit 32 1G"
    assert mps.ask(read, bad).all == (0, "", "")
    reason = "No default pinned memory limit set for the device!"
    assert mps.ask_and_read_log(read) == [reason]
    words = {
        550: ["Invalid device ordinal!"],
        580: [f"{bad}.", "Invalid device identifier format: 32"],
    }
    assert mps.ask_and_read_log(bad) == words[mps.backend.version]


def test_a_limit_by_uuid_holds_on_580_and_on_550_takes_away_that_of_gpu_0(mps: Mps) -> None:
    mps.start()
    uuid = name_gpu(mps)
    answer = mps.ask(
        "set_default_device_pinned_mem_limit 0 2G",
        f"set_default_device_pinned_mem_limit {uuid} 3G",
        f"get_default_device_pinned_mem_limit {uuid}",
        "get_default_device_pinned_mem_limit 0",
    )
    assert (answer.status, answer.errors) == (0, "")
    assert answer.lines[:1] == {550: [], 580: ["3G"]}[mps.backend.version]


def test_only_580_can_be_asked_for_devices(mps: Mps) -> None:
    mps.start()
    answer = mps.ask("device_query")
    assert (answer.status, answer.errors) == (0, "")
    if mps.backend.version < 580:
        assert answer.output == 'Unknown command "device_query"\n'
    else:
        assert answer.lines[0] == "Default"
        assert answer.lines[1].split("  ")[0] == "Device Ordinal"
        assert answer.lines[2].split()[2].startswith("GPU-")


# -- servers that never become ready ---------------------------------------------------------------


def test_a_server_that_cannot_start_is_told_of_in_the_log_only(mps: Mps) -> None:
    mps.environment["PATH"] = "/nonexistent"
    mps.start()
    assert mps.ask(f"start_server -uid {mps.uid}").all == (0, "", "")
    ended = mps.wait_for_log(r"^Server \d+ exited with status|: Ready$")
    assert ended.endswith("exited with status 1"), mps.log()
    assert mps.ask("get_server_list").all == (0, "", "")


def test_a_server_is_found_along_path_and_has_the_daemons_environment(mps: Mps) -> None:
    mps.use_server(f"env > {mps.directory}/env; {SLEEPING}")
    mps.environment["MARK"] = "of the daemon"
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    server = mps.server()
    mps.wait_for_log(f"^Starting new server {server} for user {mps.uid}$")
    # Group and session are the daemon's.
    assert read_stat(server)[1:4] == [str(mps.pid)] * 3
    made = mps.directory / "env"
    mps.wait(lambda: made.exists() and "PATH=" in made.read_text(), "its environment")
    assert "MARK=of the daemon" in made.read_text()
    assert mps.ask(f"get_server_status {server}").output == "INITIALIZING\n"


def test_a_server_that_is_not_ready_answers_nothing(mps: Mps) -> None:
    mps.use_server(SLEEPING)
    mps.start()
    mps.ask(f"start_server -uid {mps.uid}")
    server = mps.server()
    silent = (
        f"get_client_list {server}",
        f"get_device_client_list {server}",
        f"get_active_thread_percentage {server}",
        f"set_active_thread_percentage {server} 10",
        f"set_device_pinned_mem_limit {server} 0 1G",
    )
    assert mps.ask(*silent).all == (0, "", "")
    mps.wait_for_log(f"^Server {server} is <busy>$")
    assert mps.ask("ps").output == "Server not found\n"
    assert mps.ask(f"terminate_client {server} 1").output == f"Server {server} not found!\n1\n"
    # A server that has been told to end says FAULT until it has.
    assert mps.ask(f"shutdown_server {server}").all == (0, "", "")
    assert mps.ask(f"get_server_status {server}").output == "FAULT\n"


def test_a_server_is_started_again_for_waiting_clients_six_times_in_all(mps: Mps) -> None:
    mps.use_server("exit 3")
    mps.start()
    client = mps.start_client()
    error = client.describe()["error"]
    # What a real client makes of a daemon without a server was not looked at.
    assert error == 805 or mps.backend.simulation is None
    started = [line for line in mps.log() if line.startswith("Starting new server")]
    assert len(started) == 6
    assert mps.servers() == []


# -- who may ---------------------------------------------------------------------------------------


def test_another_user_may_ask_but_not_change(mps: Mps, users: tuple[int, int]) -> None:
    user, _ = users
    mps.use_server(SLEEPING)
    mps.start()
    settings = (
        "set_default_active_thread_percentage 5",
        "set_default_device_pinned_mem_limit 0 1G",
        "set_default_client_priority 1",
    )
    who = {550: "the user started it", 580: "the user who started it"}[mps.backend.version]
    refusal = (
        f"Insufficient privileges for UID {user}. Control deamon settings can only be modified by "
        f"{who} or by the root user.\n"
    )
    assert mps.ask(*settings, uid=user).all == (0, refusal * 3, "")
    quit_refusal = "Not enough privilege to execute quit command\n"
    assert mps.ask("quit", uid=user).all == (0, quit_refusal, "")
    answer = mps.ask("get_default_active_thread_percentage", "get_server_list", uid=user)
    assert answer.all == (0, "100.0\n", "")


def test_a_user_may_not_touch_another_users_server(mps: Mps, users: tuple[int, int]) -> None:
    user, other = users
    mps.use_server(SLEEPING)
    mps.start()
    mps.ask(f"start_server -uid {user}")
    server = mps.server()
    head = f"Insufficient privileges for UID {other}. "
    reason = {
        550: "Only the root user may shutdown another user's server.",
        580: "Control deamon settings can only be modified by the user who started it or by the "
        "root user.",
    }[mps.backend.version]
    assert mps.ask(f"shutdown_server {server} -f", uid=other).output == f"{head}{reason}\n"
    assert mps.server() == server
    assert mps.ask(f"shutdown_server {server} -f", uid=user).all == (0, "", "")
    mps.wait(lambda: mps.servers() == [], "the server's end")


def test_a_user_may_not_start_a_server_for_another(mps: Mps, users: tuple[int, int]) -> None:
    user, other = users
    mps.use_server(SLEEPING)
    mps.start()
    reason = {
        550: "Only the root user may start server for another user.",
        580: "Control deamon settings can only be modified by the user who started it or by the "
        "root user.",
    }[mps.backend.version]
    assert mps.ask(f"start_server -uid {other}", uid=user).all == (
        0,
        f"Insufficient privileges for UID {user}. {reason}\n",
        "",
    )
    assert mps.servers() == []


def test_root_may_control_a_users_daemon(mps: Mps, users: tuple[int, int]) -> None:
    os.chown(mps.directory, users[0], users[0])
    mps.uid = users[0]
    mps.start()
    assert mps.ask("set_default_active_thread_percentage 5", uid=0).output == "5.0\n"
    assert mps.ask("set_default_active_thread_percentage 7", uid=users[1]).output.startswith(
        f"Insufficient privileges for UID {users[1]}."
    )
    daemon = mps.pid
    assert mps.ask("quit", uid=0).all == (0, "", "")
    mps.wait(lambda: mps.peer_pid() is None, "the daemon's end")
    assert daemon


def test_a_users_daemon_cannot_start_a_server_of_root(mps: Mps, users: tuple[int, int]) -> None:
    os.chown(mps.directory, users[0], users[0])
    mps.uid = users[0]
    mps.start()
    assert mps.ask("start_server -uid 0", uid=0).all == (0, "", "")
    ended = mps.wait_for_log(r"^Server \d+ exited with status|: Ready$")
    assert ended.endswith("exited with status 1"), mps.log()
    reason = "Failed to start server using uid 0. Operation not permitted"
    # 580 ends it without a reason.
    assert (reason in mps.log()) is (mps.backend.version == 550), mps.log()


def test_a_server_of_root_s_daemon_keeps_roots_group_and_groups(
    mps: Mps, users: tuple[int, int]
) -> None:
    mps.use_server(SLEEPING)
    mps.start()
    mps.ask(f"start_server -uid {users[0]}")
    server = mps.server()
    mine = Path("/proc/self/status").read_text().splitlines()
    groups = next(line for line in mine if line.startswith("Groups:")).split()
    mps.wait(lambda: read_ids(server, "Uid")[0] == users[0], "its user")
    assert read_ids(server, "Gid") == [0, 0, 0, 0]
    assert read_ids(server, "Groups") == [int(word) for word in groups[1:]]


def test_while_a_server_is_starting_another_users_is_not_started(
    mps: Mps, users: tuple[int, int]
) -> None:
    mps.use_server(SLEEPING)
    mps.start()
    mps.ask(f"start_server -uid {users[0]}")
    server = mps.server()
    assert mps.ask(f"start_server -uid {users[1]}").all == (0, "", "")
    assert mps.servers() == [server]
    # Once the first has ended, it is the other's turn.
    os.kill(server, signal.SIGKILL)
    mps.wait(lambda: mps.servers() not in ([], [server]), "the other server")
    mps.wait(lambda: read_ids(mps.server(), "Uid")[0] == users[1], "its user")


def read_ids(pid: int, name: str) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in status if line.startswith(f"{name}:"))
    return [int(word) for word in line.split()[1:]]
