"""Answers of real control programs, and programs that give none."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mps.mps_control import (
    ControlProgram,
    MpsPrograms,
    build_daemon_environment,
    find_complaints,
    find_library_path,
    find_programs,
    parse_percentage,
    parse_pids,
    parse_server_status,
)
from slurm_colloc.host.system.child_programs import Outcome, run_program
from slurm_colloc.host.system.node_processes import list_processes, read_environment

from .conftest import write_program


# `ps` on an H200, driver 580.
def said(text: str, returncode: int | None = 0) -> Outcome:
    return Outcome(returncode, text, "")


def test_a_list_of_pids_is_read_and_anything_else_is_none() -> None:
    assert parse_pids(said("474\n")) == (474,)
    assert parse_pids(said("880\n879\n880\n")) == (880, 879)
    assert parse_pids(said("")) == ()
    assert parse_pids(said("Server 1 not found\n")) is None
    assert parse_pids(said("", returncode=1)) is None
    assert parse_pids(said("", returncode=None)) is None


def test_a_server_has_one_of_three_states() -> None:
    assert parse_server_status(said("ACTIVE\n")) == "ACTIVE"
    assert parse_server_status(said("INITIALIZING\n")) == "INITIALIZING"
    assert parse_server_status(said("FAULT\n")) == "FAULT"
    assert parse_server_status(said("Server 77 not found\n")) is None


def test_a_percentage_is_a_number_or_nothing() -> None:
    assert parse_percentage(said("28.5\n")) == 28.5
    assert parse_percentage(said("")) is None
    assert parse_percentage(said("Unknown command\n")) is None


def test_complaints_are_found_among_the_daily_lines() -> None:
    lines = [
        "[x Control 1] NEW UI",
        "[x Control 1] Invalid percentage, expected between (0.0, 100.0]",
        "[x Control 1] User did not send valid credentials",
        "[x Control 1] No default pinned memory limit set for the device!",
        "[x Control 1] 28.0",
    ]
    assert find_complaints(lines) == (lines[1], lines[3])


def test_the_environment_of_a_daemon_is_clean_and_finds_its_server() -> None:
    programs = MpsPrograms("/opt/n/nvidia-cuda-mps-control", "/opt/m/nvidia-cuda-mps-server")
    built = build_daemon_environment(
        programs,
        gpus=("GPU-1", "GPU-2"),
        pipe_directory="/tmp/m/p",
        log_directory="/tmp/m/l",
        added={"SLURMD_NODENAME": "n1", "PATH": "/evil", "CUDA_VISIBLE_DEVICES": "7"},
    )
    assert built == {
        "PATH": "/opt/n:/opt/m:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C",
        "SLURMD_NODENAME": "n1",
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/m/p",
        "CUDA_MPS_LOG_DIRECTORY": "/tmp/m/l",
        "CUDA_MPS_PROTOCOL_VERSION": "2",
    }


def test_only_the_drivers_own_library_directory_is_passed_on(tmp_path: Path) -> None:
    # Where the driver's libraries lie is the machine's affair: /usr/lib may be such a directory.
    driver, stubs, other = tmp_path / "driver", tmp_path / "stubs", tmp_path / "other"
    for directory, name in ((driver, "libcuda.so.1"), (stubs, "libcuda.so"), (other, "libc.so.6")):
        directory.mkdir()
        (directory / name).write_text("")
    path = f"{other}:{stubs}:{driver}:driver:"
    assert find_library_path({"LD_LIBRARY_PATH": path}) == {"LD_LIBRARY_PATH": str(driver)}
    assert find_library_path({"LD_LIBRARY_PATH": str(stubs)}) == {}
    assert find_library_path({}) == {}


def test_a_missing_program_is_named_with_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_colloc.host.mps.mps_control.PROGRAM_DIRECTORIES", ("/nowhere",))
    with pytest.raises(NodeError, match=r"nvidia-cuda-mps-control is not installed.*nowhere"):
        find_programs(str(tmp_path))
    control = write_program(tmp_path / "nvidia-cuda-mps-control", "#!/bin/sh\n")
    with pytest.raises(NodeError, match="nvidia-cuda-mps-server is not installed"):
        find_programs(str(tmp_path))
    server = tmp_path / "nvidia-cuda-mps-server"
    server.write_text("not executable")
    with pytest.raises(NodeError, match="nvidia-cuda-mps-server"):
        find_programs(str(tmp_path))
    server.chmod(0o755)
    assert find_programs(f"relative::{tmp_path}") == MpsPrograms(str(control), str(server))


def ask(program: Path, environment: Mapping[str, str], timeout_s: float) -> Outcome:
    return ControlProgram(MpsPrograms(str(program), ""), environment).ask("quit", timeout_s)


def test_a_command_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    program = write_program(tmp_path / "hangs", "#!/bin/sh\nexec sleep 600\n")
    started = time.monotonic()
    outcome = ask(program, {"PATH": "/usr/bin:/bin", "MARK": str(tmp_path)}, 0.2)
    assert time.monotonic() - started < 60
    assert (outcome.returncode, outcome.problem) == (None, "no answer within 0.2 s")
    left = [
        process
        for process in list_processes()
        if read_environment(process.id.pid).get("MARK") == str(tmp_path)
    ]
    assert left == []


def test_a_command_that_closes_its_output_and_hangs_is_ended_too(tmp_path: Path) -> None:
    text = "#!/bin/sh\nexec sleep 600 >/dev/null 2>&1\n"
    outcome = ask(write_program(tmp_path / "hangs", text), {"PATH": "/usr/bin:/bin"}, 0.2)
    assert (outcome.returncode, outcome.problem) == (None, "it did not end within 0.2 s")


def test_a_flood_of_output_is_cut(tmp_path: Path) -> None:
    program = write_program(tmp_path / "floods", "#!/bin/sh\nexec cat /dev/zero\n")
    outcome = ask(program, {"PATH": "/usr/bin:/bin"}, 60)
    assert outcome.returncode is None
    assert "bytes of output" in outcome.problem
    assert len(outcome.stdout) < 2 << 20


def test_a_program_that_cannot_be_started_is_an_answer_too(tmp_path: Path) -> None:
    outcome = ask(tmp_path / "missing", {}, 1)
    assert "missing cannot be started: No such file or directory" in outcome.problem


def test_programs_inherit_neither_descriptors_nor_ignored_signals(tmp_path: Path) -> None:
    leak = os.open(tmp_path / "leak", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(leak, True)
    program = write_program(
        tmp_path / "lists", "#!/bin/sh\nls -l /proc/$$/fd\ngrep SigIgn /proc/$$/status\n"
    )
    old = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        outcome = run_program([str(program)], {"PATH": "/usr/bin:/bin"}, timeout_s=60)
    finally:
        signal.signal(signal.SIGUSR1, old)
        os.close(leak)
    assert str(tmp_path / "leak") not in outcome.stdout
    ignored = int(outcome.stdout.split("SigIgn:")[1], 16)
    assert not ignored & (1 << (signal.SIGUSR1 - 1) | 1 << (signal.SIGPIPE - 1))
