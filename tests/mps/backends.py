"""MPS daemons that the contract is held against, and how a test starts, asks and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_colloc.host.system.node_processes import ProcessId, identify
from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedGpu
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node

from ..signalling import send_signal

# Less than the minute that a test gets on a machine with a GPU, so that reasons are told.
PATIENCE_S = 45.0
# A command that has not answered by then is taken to hang.
HANG_S = 1.5
CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_CLIENT = Path(__file__).with_name("client.py")
_COMMAND_S = 30.0


@dataclass(frozen=True)
class Backend:
    """One implementation of MPS.

    Args:
        name: For people.
        version: Whose behaviour it has: 550 or 580. The contract's tables have both.
        control: The control program.
        simulation: SIM, where server and clients are simulated.
        variables: What every program needs in its environment.
    """

    name: str
    version: int
    control: Path
    simulation: Path | None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        """The control daemon itself is the simulated one."""
        return self.simulation is not None and self.control.is_relative_to(self.simulation)

    @property
    def server_directory(self) -> Path:
        """Where the server is that goes with it."""
        if self.simulation is not None:
            return self.simulation / "bin"
        found = shutil.which(SERVER, path=f"{self.control.parent}:{SYSTEM_PATH}")
        assert found, "the control program is here, its server is not"
        return Path(found).parent


@dataclass(frozen=True)
class Answer:
    """What the control program printed, and its exit status."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    @property
    def all(self) -> tuple[int, str, str]:
        return self.status, self.output, self.errors


class ClientProcess:
    """A program of client.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "the client says nothing"
        line = self.process.stdout.readline()
        assert line, "the client has ended"
        return line.strip()

    def describe(self) -> dict[str, Any]:
        """What it got; the first that it prints."""
        described = json.loads(self.read())
        assert isinstance(described, dict)
        return described

    def says_something(self, within_s: float) -> bool:
        """Whether it prints something in that time."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], within_s)
        return bool(ready)

    def send(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.read()

    def poll(self) -> int:
        """The number of its error, 0 for none."""
        return int(self.send("poll"))

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Mps:
    """One daemon in a directory of its own, with all that a test starts around it.

    Args:
        backend: Which one.
        directory: Short, and open to other users.
    """

    def __init__(self, backend: Backend, directory: Path) -> None:
        self.backend = backend
        self.directory = directory
        self.pipes = directory / "p"
        self.logs = directory / "l"
        self.uid = os.geteuid()
        self.environment = {
            **backend.variables,
            "LANG": "C",
            "PATH": f"{directory / 'bin'}:{backend.server_directory}:{SYSTEM_PATH}",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }
        self._processes: list[subprocess.Popen[Any]] = []

    # -- programs ----------------------------------------------------------------------------------

    def use_server(self, script: str) -> None:
        """Let the daemon find a shell script instead of the server."""
        folder = self.directory / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / SERVER
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def start(self, *, fds: Sequence[int] = (), check: bool = True) -> Answer:
        """Start the daemon in the background."""
        answer = self._run([str(self.backend.control), "-d"], pass_fds=tuple(fds))
        if check:
            assert answer.all == (0, "", "")
        return answer

    def start_in_foreground(self, output: Path) -> subprocess.Popen[Any]:
        """Start the daemon with -f, its output in a file, and wait until it listens."""
        with output.open("w") as file:
            process = self.spawn(
                [str(self.backend.control), "-f"], stdout=file, stderr=subprocess.STDOUT
            )
        self.wait(lambda: self.peer_pid() == process.pid, "the daemon listens")
        return process

    def ask(
        self,
        *lines: str,
        uid: int | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = _COMMAND_S,
    ) -> Answer:
        """Send lines through the control program."""
        text = "".join(f"{line}\n" for line in lines)
        return self._run(
            [str(self.backend.control)],
            uid=uid,
            input=text,
            timeout=timeout_s,
            env={**self.environment, **(environment or {})},
        )

    def hangs(self, line: str, *, is_taken: bool = False) -> bool:
        """Whether the control program does not come back.

        Args:
            line: What it is given.
            is_taken: The daemon takes it, and says so: a busy machine has its time until then.
        """
        asking = self.open_front_end()
        assert asking.stdin is not None
        asking.stdin.write(f"{line}\n")
        asking.stdin.close()
        if is_taken:
            self.wait_for_log(f"^Cmd:{line}$")
        try:
            asking.wait(HANG_S)
        except subprocess.TimeoutExpired:
            return True
        finally:
            asking.kill()
            asking.wait()
        return False

    def open_front_end(self) -> subprocess.Popen[str]:
        """Start the control program and leave its input open."""
        return self.spawn(
            [str(self.backend.control)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def spawn(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program that is ended with the test."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("env", self.environment)
        uid = options.pop("uid", None)
        process = subprocess.Popen(list(argv), cwd="/", **options, **self._as_user(uid))
        self._processes.append(process)
        return process

    def start_client(
        self,
        variables: Mapping[str, str] | None = None,
        *,
        count: int = 1,
        uid: int | None = None,
    ) -> ClientProcess:
        """Start a client; it waits for what it is told."""
        kind = "simulated" if self.backend.simulation is not None else "cuda"
        environment = {
            name: value
            for name, value in self.environment.items()
            # What holds for the daemon is not the client's.
            if not name.startswith("CUDA_MPS_") or name == "CUDA_MPS_PIPE_DIRECTORY"
        }
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        process = self.spawn(
            [sys.executable, "-I", str(_CLIENT), kind, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, **(variables or {})},
            uid=uid,
        )
        return ClientProcess(process)

    def _run(
        self, argv: list[str], *, uid: int | None = None, timeout: float = _COMMAND_S, **more: Any
    ) -> Answer:
        options: dict[str, Any] = {"env": self.environment, **more, **self._as_user(uid)}
        ended = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, check=False, cwd="/", **options
        )
        return Answer(ended.returncode, ended.stdout, ended.stderr)

    def _as_user(self, uid: int | None) -> dict[str, Any]:
        wanted = self.uid if uid is None else uid
        if wanted == os.geteuid():
            return {}
        return {"user": wanted, "group": wanted, "extra_groups": []}

    # -- looking -----------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for something to become true; what it was."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what} was waited for in vain\n{self.log()}"
            time.sleep(0.01)
        return found

    def peer_pid(self) -> int | None:
        """Who listens on the socket, as the kernel says."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            try:
                connection.connect(str(self.pipes / "control"))
            except OSError:
                return None
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int(struct.unpack("3i", data)[0])

    @property
    def pid(self) -> int:
        """The daemon."""
        pid = self.peer_pid()
        assert pid is not None, "no daemon listens"
        return pid

    def servers(self) -> list[int]:
        return [int(line) for line in self.ask("get_server_list").lines]

    def server(self) -> int:
        """The one server, once there is one."""
        found: list[int] = self.wait(self.servers, "a server")
        return found[0]

    def status(self, server: int) -> str:
        return self.ask(f"get_server_status {server}").output.strip()

    def start_server(self, uid: int | None = None) -> int:
        """Ask for a server and wait until it is ACTIVE."""
        assert self.ask(f"start_server -uid {self.uid if uid is None else uid}").all == (0, "", "")
        server = self.server()
        self.wait(lambda: self.status(server) == "ACTIVE", "ACTIVE")
        return server

    def clients(self, server: int) -> set[int]:
        return {int(line) for line in self.ask(f"get_client_list {server}").lines}

    def log(self, name: str = "control") -> list[str]:
        """The lines of a log, without the stamp."""
        try:
            text = (self.logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return []
        return strip_stamps(text.splitlines())

    def wait_for_log(self, pattern: str, name: str = "control") -> str:
        """Wait for a line of a log."""
        found: str = self.wait(
            lambda: next((line for line in self.log(name) if re.search(pattern, line)), ""),
            f"'{pattern}' in {name}.log",
        )
        return found

    def ask_and_read_log(self, line: str) -> list[str]:
        """Send a line; what the daemon logs while it answers, the answer included."""
        # The log comes later than the answer. This is no command, and nobody has sent it before.
        mark = f"mark-{os.urandom(4).hex()}"
        self.ask(line, mark)
        self.wait_for_log(f"^Cmd:{mark}$")
        log = self.log()
        begin = len(log) - log[::-1].index(f"Cmd:{line}")
        return log[begin : log.index(f"Cmd:{mark}", begin)]

    # -- the end -----------------------------------------------------------------------------------

    def find_processes(self) -> list[ProcessId]:
        """All processes whose environment names this directory."""
        mark = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(self.directory) + b"/"
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            identity = identify(int(entry.name))
            with contextlib.suppress(OSError):
                if identity and mark in (entry / "environ").read_bytes():
                    found.append(identity)
        return found

    def end(self) -> None:
        """End everything and remove the directory."""
        for identity in self.find_processes():
            send_signal(identity, signal.SIGKILL)
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self.wait(lambda: not self.find_processes(), "the end of all processes")
        shutil.rmtree(self.directory)


def strip_stamps(lines: Iterable[str]) -> list[str]:
    """The texts of log lines; a line without a stamp continues the one before."""
    return [re.sub(r"^\[\d{4}-\d\d-\d\d [\d:.]+ [A-Z][a-z]+ +\d+\] ", "", line) for line in lines]


def read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, ppid, pgrp, session and on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def name_gpu(mps: Mps) -> str:
    """The UUID of the first GPU."""
    if mps.backend.simulation is not None:
        return read_gpus(mps.backend.simulation)[0].uuid
    found = Path("/proc/driver/nvidia/gpus").glob("*/information")
    text = "".join(path.read_text() for path in found)
    match = re.search(r"GPU UUID:\s*(GPU-\S+)", text)
    assert match, "the driver names no GPU"
    return match[1]


def read_gpus(simulation: Path) -> tuple[SimulatedGpu, ...]:
    return Node(simulation / "nodes" / "n1").read_gpus()
