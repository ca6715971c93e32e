"""How a control daemon starts, and what it leaves in its directories."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from .backends import PATIENCE_S, Mps, read_stat, strip_stamps

SLEEPING = "exec sleep 1000"


def read_mode(path: Path) -> tuple[str, int]:
    status = path.lstat()
    return stat.filemode(status.st_mode)[0], stat.S_IMODE(status.st_mode)


def test_it_comes_back_at_once_as_the_leader_of_a_session_of_its_own(mps: Mps) -> None:
    mps.start()
    state, parent, group, session = read_stat(mps.pid)[:4]
    assert state not in "ZX"
    assert int(group) == int(session) == mps.pid
    assert int(parent) != os.getpid()
    for descriptor in range(3):
        assert Path(f"/proc/{mps.pid}/fd/{descriptor}").readlink() == Path("/dev/null")


def test_files_that_its_starter_has_open_stay_open_in_daemon_and_server(
    mps: Mps, tmp_path: Path
) -> None:
    mps.use_server(SLEEPING)
    with (tmp_path / "kept").open("w") as file:
        mps.start(fds=[file.fileno()])
        mps.ask(f"start_server -uid {mps.uid}")
        for pid in (mps.pid, mps.server()):
            assert Path(f"/proc/{pid}/fd/{file.fileno()}").readlink() == tmp_path / "kept"


def test_it_makes_its_directories_and_files_with_these_modes(mps: Mps) -> None:
    mps.start()
    assert read_mode(mps.pipes) == ("d", 0o777)
    assert read_mode(mps.logs) == ("d", 0o700)
    assert {path.name: read_mode(path) for path in mps.pipes.iterdir()} == {
        "control": ("s", 0o666),
        "control_privileged": ("s", 0o755),
        "control_lock": ("-", 0o666),
        "log": ("p", 0o777),
        "nvidia-cuda-mps-control.pid": ("-", 0o666),
    }
    assert {path.name: read_mode(path) for path in mps.logs.iterdir()} == {
        "control.log": ("-", 0o644),
        "server.log": ("-", 0o644),
    }
    assert (mps.pipes / "nvidia-cuda-mps-control.pid").read_text() == str(mps.pid)
    assert mps.wait_for_log("Starting control daemon using socket").endswith(
        str(mps.pipes / "control")
    )


def test_its_lock_is_a_posix_lock_that_anybody_can_hold_against_it(mps: Mps) -> None:
    mps.pipes.mkdir()
    lock = mps.pipes / "control_lock"
    with lock.open("w") as file:
        # A POSIX lock binds other processes only, and this one is not the daemon.
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert mps.start(check=False).all == (
            1,
            "An instance of this daemon is already running\n",
            "",
        )
    mps.start()


def test_a_second_daemon_is_refused_on_standard_output(mps: Mps) -> None:
    mps.start()
    first = mps.pid
    assert mps.start(check=False).all == (1, "An instance of this daemon is already running\n", "")
    assert mps.pid == first


def test_without_a_parent_directory_it_names_the_pipe_directory(mps: Mps) -> None:
    wanted = mps.directory / "no" / "p"
    mps.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(wanted)
    assert mps.start(check=False).all == (
        1,
        f"Cannot access CUDA_MPS_PIPE_DIRECTORY={wanted}\n",
        "",
    )


def test_without_a_log_directory_it_only_warns(mps: Mps) -> None:
    wanted = mps.directory / "no" / "l"
    mps.environment["CUDA_MPS_LOG_DIRECTORY"] = str(wanted)
    text = (
        f"Warning: Failed writing log files to directory [{wanted}]. No logs will be available.\n"
    )
    assert mps.start(check=False).all == (0, text, "")
    assert mps.servers() == []


@pytest.mark.parametrize(("length", "works"), [(87, True), (88, False)])
def test_a_pipe_directory_of_88_bytes_fails_without_a_word(
    mps: Mps, *, length: int, works: bool
) -> None:
    mps.pipes = mps.directory / ("p" * (length - len(str(mps.directory)) - 1))
    assert len(str(mps.pipes)) == length
    mps.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(mps.pipes)
    assert mps.start(check=False).all == (0 if works else 1, "", "")
    if works:
        assert mps.servers() == []
    else:
        # What came before the socket stays.
        assert (mps.pipes / "control_lock").exists()
        assert not (mps.pipes / "control_privileged").exists()


def test_a_control_program_without_a_daemon_says_so_on_standard_error(mps: Mps) -> None:
    nobody = (1, "", "Cannot find MPS control daemon process\n")
    assert mps.ask("get_server_list").all == nobody
    mps.start()
    daemon = mps.pid
    os.kill(daemon, signal.SIGKILL)
    mps.wait(lambda: mps.peer_pid() is None, "the daemon's end")
    # The sockets are still there.
    assert (mps.pipes / "control").exists()
    assert mps.ask("get_server_list").all == nobody


def test_after_sigkill_another_starts_in_the_same_directory(mps: Mps) -> None:
    mps.start()
    first = mps.pid
    os.kill(first, signal.SIGKILL)
    mps.wait(lambda: mps.peer_pid() is None, "the daemon's end")
    mps.start()
    assert mps.pid != first
    assert mps.servers() == []


def test_its_pid_file_is_written_over_but_never_shortened(mps: Mps) -> None:
    mps.pipes.mkdir()
    file = mps.pipes / "nvidia-cuda-mps-control.pid"
    file.write_text("x" * 11)
    mps.start()
    pid = str(mps.pid)
    assert file.read_text() == pid + "x" * (11 - len(pid))


def test_its_pid_file_and_its_log_follow_links(mps: Mps) -> None:
    mps.pipes.mkdir()
    mps.logs.mkdir()
    other, log = mps.directory / "other", mps.directory / "made"
    other.write_text("precious content")
    (mps.pipes / "nvidia-cuda-mps-control.pid").symlink_to(other)
    (mps.logs / "control.log").symlink_to(log)
    mps.start()
    assert other.read_text().startswith(str(mps.pid))
    mps.wait(lambda: "Starting control daemon" in log.read_text(), "the log")


def test_in_the_foreground_it_stays_and_logs_to_its_output_only(mps: Mps) -> None:
    output = mps.directory / "out"
    process = mps.start_in_foreground(output)
    assert list(mps.logs.iterdir()) == []
    mps.ask("bogus")
    mps.wait(lambda: 'Unknown command "bogus"' in output.read_text(), "its log")
    mps.ask("quit")
    assert process.wait(PATIENCE_S) == 0
    lines = strip_stamps(output.read_text().splitlines())
    assert lines[0] == f"Starting control daemon using socket {mps.pipes}/control"
    assert lines[-1] == "Exit with status 0"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_goes_to_standard_output(mps: Mps, option: str) -> None:
    ended = subprocess.run(
        [str(mps.backend.control), option],
        env=mps.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    head = {550: "CUDA MPS Control for Linux/Unix.", 580: "CUDA MPS Control for Linux/Unix/QNX."}
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"{head[mps.backend.version]}\nCopyright (C)")
    assert ("-M,--multiuser-server" in ended.stdout) == (mps.backend.version >= 580)


@pytest.mark.parametrize("option", ["-v", "-x", "--version"])
def test_any_other_option_makes_it_a_control_program(mps: Mps, option: str) -> None:
    if mps.backend.version >= 580 and not mps.backend.is_simulated:
        pytest.skip("580 takes commands as arguments; not looked at")
    mps.start()
    ended = subprocess.run(
        [str(mps.backend.control), option],
        env=mps.environment,
        input="get_default_client_priority\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "0\n")


def test_whoever_connects_and_says_nothing_keeps_all_others_waiting(mps: Mps) -> None:
    mps.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(mps.pipes / "control"))
        assert mps.hangs("get_server_list")
    assert mps.ask("get_default_client_priority").output == "0\n"


def test_without_a_driver_580_ends_with_244_and_no_word(mps: Mps) -> None:
    if mps.backend.version < 580 or not mps.backend.is_simulated:
        pytest.skip("550 needs no driver; on hardware there is one")
    mps.environment["SIMGPU_ROOT"] = "/nonexistent"
    assert mps.start(check=False).all == (244, "", "")


def test_where_it_sees_no_gpu_580_ends_with_100_and_no_word(mps: Mps, tmp_path: Path) -> None:
    # CUDA_ERROR_NO_DEVICE.
    mps.environment["CUDA_VISIBLE_DEVICES"] = "GPU-00000000-1111-2222-3333-444444444444"
    output = tmp_path / "out"
    if mps.backend.version < 580:
        # 550 does not look for one.
        mps.start_in_foreground(output)
        assert mps.ask("get_server_list").all == (0, "", "")
        return
    with output.open("w") as file:
        process = mps.spawn([str(mps.backend.control), "-f"], stdout=file, stderr=subprocess.STDOUT)
    assert (process.wait(PATIENCE_S), output.read_text()) == (100, "")
    assert mps.start(check=False).all == (100, "", "")


def test_a_daemon_starts_as_an_ordinary_user(mps: Mps, users: tuple[int, int]) -> None:
    os.chown(mps.directory, users[0], users[0])
    mps.uid = users[0]
    mps.start()
    status = Path(f"/proc/{mps.pid}/status").read_text()
    assert f"\nUid:\t{users[0]}\t" in status
    assert f"\nGid:\t{users[0]}\t" in status
    assert mps.ask("get_default_active_thread_percentage").all == (0, "100.0\n", "")
