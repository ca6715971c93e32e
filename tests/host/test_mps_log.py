"""The words of real logs: driver 580.159.04 on an H200, and 550.163.01 without a GPU."""

from __future__ import annotations

from slurm_colloc.host.mps.mps_logs import (
    ClientJoined,
    ClientLeft,
    DaemonTrouble,
    Fault,
    LogEvent,
    LogReader,
    ServerStatus,
    parse_line,
)

STARTING = """\
[2026-11-21 14:37:24.729 Control   422] Starting control daemon using socket /tmp/m/p/control
[2026-11-21 14:37:24.729 Control   422] CUDA MPS Control binary version: 13000
[2026-11-21 14:37:30.864 Control   422] Accepting connection...
[2026-11-21 14:37:30.864 Control   422] User did not send valid credentials
[2026-11-21 14:37:30.865 Control   422] NEW CLIENT 426 from user 0: Server is not ready, push \
client to pending list
[2026-11-21 14:37:30.865 Control   474] Starting new server 474 for user 0
[2026-11-21 14:37:30.867 Other   474] Startup
[2026-11-21 14:37:30.867 Other   474] Connecting to control daemon on socket: /tmp/m/p/control
[2026-11-21 14:37:31.052 Server   474] Creating server context on device 0 (NVIDIA H200)
[2026-11-21 14:37:31.138 Server   474] CUDA MPS Server for Linux/Unix. Binary version: 13000
[2026-11-21 14:37:31.138 Control   422] NEW SERVER 474: Ready
[2026-11-21 14:37:31.138 Server   474] Server has started
"""

CLIENTS = """\
[2026-11-21 14:37:31.138 Server   474] Received new client request for {PID: -1333654781, \
Context ID: 0}
[2026-11-21 14:37:31.138 Server   474] Client {PID: 426, Context ID: 0} connected
[2026-11-21 14:37:31.139 Server   474] Creating worker thread for client {PID: 426, Context ID: 0}
[2026-11-21 14:37:31.139 Server   474] Client {PID: 424, Context ID: 0} connected
[2026-11-21 14:37:31.202 Server   474] Client {PID: 426, Context ID: 1} connected
[2026-11-21 14:37:31.202 Server   474] Status of client {PID: 426, Context ID: 1} is ACTIVE
[2026-11-21 14:37:31.234 Server   474] Client {PID: 424, Context ID: 1} connected
[2026-11-21 14:37:37.630 Control   422] 474
"""

FAULT = """\
[2026-11-21 14:37:41.352 Server   474] Client {PID: 424, Context: 1} encountered a fatal GPU error.
[2026-11-21 14:37:41.352 Server   474] Server is handling a fatal GPU error.
[2026-11-21 14:37:41.352 Server   474] Client {PID: 424, Context ID: 1} on device 0 to be torn down
[2026-11-21 14:37:41.352 Server   474] Client {PID: 426, Context ID: 1} on device 0 to be torn down
[2026-11-21 14:37:41.352 Server   474] All clients belonging to error trigging process 424 will \
be torn down
[2026-11-21 14:37:41.352 Server   474] Client {PID: 424, Context ID: 1} on the error-trigging \
process 424 to be torn down
[2026-11-21 14:37:41.352 Server   474] The following devices will be reset:
[2026-11-21 14:37:41.352 Server   474] 0
[2026-11-21 14:37:41.352 Server   474] The following client process have a sticky error set:
[2026-11-21 14:37:41.352 Server   474] 424
[2026-11-21 14:37:41.352 Server   474] 426
"""

AFTER = """\
[2026-11-21 14:37:41.893 Server   474] Server failed to recevie command with status 806, \
assuming client {PID: 426, Context ID: 1} exit
[2026-11-21 14:37:41.893 Server   474] Client {PID: 426, Context ID: 1} exiting. Number of \
active client contexts is 1.
[2026-11-21 14:37:41.937 Server   474] Client process 426 disconnected
[2026-11-21 14:37:41.963 Control   422] FAULT
[2026-11-21 14:37:42.266 Server   474] Destroy server context on device 0 (NVIDIA H200)
[2026-11-21 14:37:42.337 Server   474] Client process 424 disconnected
[2026-11-21 14:37:54.128 Control   422] Server 474 exited with status 0
[2026-11-21 14:37:54.128 Control   422] Exit with status 0
"""


def read(*texts: str) -> list[LogEvent]:
    reader = LogReader()
    events = [event for text in texts for event in reader.read(text.splitlines())]
    return events + reader.flush()


def test_a_line_tells_when_who_and_what() -> None:
    line = parse_line("[2026-11-21 14:37:31.138 Control   422] NEW SERVER 474: Ready\n")
    assert (line.when, line.who, line.pid) == ("2026-11-21 14:37:31.138", "Control", 422)
    assert line.text == "NEW SERVER 474: Ready"
    assert parse_line("no stamp").who == ""
    assert parse_line("").text == ""


def test_a_server_starts_and_becomes_active() -> None:
    events = read(STARTING)
    assert [(e.server_pid, e.status) for e in events if isinstance(e, ServerStatus)] == [
        (474, "INITIALIZING"),
        (474, "ACTIVE"),
    ]
    # What is written for every client and every look at the socket is no problem.
    assert not any(isinstance(event, DaemonTrouble) for event in events)


def test_the_daemon_tells_its_cuda_version() -> None:
    reader = LogReader()
    reader.read(STARTING.splitlines())
    assert reader.version == "13.0"
    reader.read(["[2026-11-21 14:37:24.729 Control   422] CUDA MPS Control binary version: 13040"])
    assert reader.version == "13.4"


def test_a_client_connects_once_whatever_its_contexts() -> None:
    events = read(STARTING, CLIENTS)
    assert [e for e in events if isinstance(e, ClientJoined)] == [
        ClientJoined(426, 474),
        ClientJoined(424, 474),
    ]


def test_a_fault_has_suspects_and_no_culprit() -> None:
    (fault,) = (e for e in read(STARTING, CLIENTS, FAULT, AFTER) if isinstance(e, Fault))
    assert (fault.server_pid, fault.suspects, fault.named_pid) == (474, (424, 426), 424)
    assert fault.text.splitlines() == FAULT.splitlines()


def test_a_fault_that_is_read_in_pieces_is_one_fault() -> None:
    whole = [e for e in read(STARTING, CLIENTS, FAULT, AFTER) if isinstance(e, Fault)]
    pieces = read(STARTING, CLIENTS, *FAULT.splitlines(), AFTER)
    assert [e for e in pieces if isinstance(e, Fault)] == whole


def test_a_fault_at_the_end_is_told_when_asked_for() -> None:
    reader = LogReader()
    events = reader.read((CLIENTS + FAULT).splitlines())
    assert not any(isinstance(event, Fault) for event in events)
    assert reader.has_open_fault
    (fault,) = reader.flush()
    assert isinstance(fault, Fault)
    assert fault.suspects == (424, 426)
    assert reader.flush() == []


def test_what_others_write_meanwhile_does_not_end_a_fault() -> None:
    lines = FAULT.splitlines()
    lines.insert(5, "[2026-11-21 14:37:41.353 Control   422] Accepting connection...")
    lines.insert(6, "[2026-11-21 14:37:41.353 Control   422] 999")
    (fault,) = (e for e in read("\n".join(lines)) if isinstance(e, Fault))
    assert fault.suspects == (424, 426)


def test_a_fault_without_its_list_still_has_suspects() -> None:
    head = FAULT.splitlines()
    (fault,) = (e for e in read("\n".join(head[:4])) if isinstance(e, Fault))
    assert fault.suspects == (424, 426)
    (fault,) = (e for e in read(head[0]) if isinstance(e, Fault))
    assert fault.suspects == (424,)
    (fault,) = (e for e in read(head[1]) if isinstance(e, Fault))
    assert (fault.suspects, fault.named_pid) == ((), None)


def test_a_server_in_fault_is_active_again_when_all_have_left() -> None:
    events = read(STARTING, CLIENTS, FAULT, AFTER)
    states = [e.status for e in events if isinstance(e, ServerStatus)]
    assert states == ["INITIALIZING", "ACTIVE", "FAULT", "ACTIVE", "EXITED"]
    assert [e.pid for e in events if isinstance(e, ClientLeft)] == [426, 424]


def test_a_second_fault_is_told_as_well() -> None:
    events = read(CLIENTS, FAULT, AFTER, CLIENTS, FAULT)
    assert len([e for e in events if isinstance(e, Fault)]) == 2


def test_the_clients_of_a_server_that_ends_have_left() -> None:
    ended = "[2026-11-21 14:38:00.000 Control   422] Server 474 exited with status 1"
    events = read(STARTING, CLIENTS, ended)
    # They have not left by themselves: its own end is told first.
    assert events[-2:] == [ClientLeft(424, 474), ClientLeft(426, 474)]
    assert isinstance(events[-3], ServerStatus)
    assert events[-3].status == "EXITED"


def test_what_cannot_start_is_a_problem() -> None:
    (problem,) = read(
        "[2026-11-21 14:33:42.032 Control  6212] Failed to start server using uid 1000. Reason"
    )
    assert problem == DaemonTrouble(6212, "Failed to start server using uid 1000. Reason")


def test_the_answers_of_commands_are_not_events() -> None:
    assert (
        read(
            "[2026-11-21 14:33:42.032 Control  6212] Cmd:get_server_status 77\n"
            "[2026-11-21 14:33:42.032 Control  6212] Server 77 not found\n"
            "[2026-11-21 14:33:42.032 Control  6212] FAULT\n"
            "[2026-11-21 14:33:42.032 Control  6212] Server 6222 is <busy>\n"
            "stub 6222 ['/x/nvidia-cuda-mps-server']\n"
            "\x00\x01 \n"
        )
        == []
    )
