"""Calls of csub that need not start a Python each: forked from a process that has its imports.

Imports are most of what a call takes, and tests/cli makes some hundred. Each call is a process of
its own, with a new environment, directory and standard streams, and runs `main()` as csub does. How
csub itself starts is tested by others: test_standard_streams.py, tests/packaging, tests/cluster.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from slurm_colloc import __main__ as csub
from slurm_colloc import cli

_LONGEST = 1 << 17


def run_csub(
    *words: str, environment: Mapping[str, str], directory: Path
) -> subprocess.CompletedProcess[str]:
    """Run csub with an environment, in a directory; what it said, as from `subprocess.run`."""
    call = json.dumps([words, dict(environment), str(directory)]).encode()
    assert len(call) < _LONGEST
    with (
        open(os.devnull) as nothing,  # noqa: PTH123 - a descriptor
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        answer, theirs = os.pipe()
        try:
            streams = [file.fileno() for file in (nothing, out, err)]
            socket.send_fds(_start_server(os.getpid()), [call], [*streams, theirs])
        finally:
            os.close(theirs)
        with open(answer) as file:  # noqa: PTH123 - a descriptor
            status = int(file.read())
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode())
    return subprocess.CompletedProcess(["csub", *words], status, *said)


class UserWithoutSlurm:
    """Somebody who calls csub where no Slurm is, with a home and a state directory in it.

    Args:
        root: Where the home is made.
        **variables: What else their environment has.
    """

    def __init__(self, root: Path, **variables: str) -> None:
        self.home = root / "home"
        self.state = self.home / ".local" / "state" / "slurm_colloc"
        self.state.mkdir(parents=True)
        self.environment = {
            "HOME": str(self.home), "PATH": os.defpath, "LC_ALL": "C.UTF-8", **variables,
        }  # fmt: skip

    def csub(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run csub; `variables` are those of this call alone."""
        return run_csub(*words, environment={**self.environment, **variables}, directory=self.home)


@cache
def _start_server(pid: int) -> socket.socket:  # noqa: ARG001 - one for each process of the tests
    """Start the process that is forked; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # Not the folder of this file first: its names are those of many a module.
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(channel: socket.socket) -> None:
    """Fork for each call; a child returns when it is to be csub."""
    for module in pkgutil.iter_modules(cli.__path__, f"{cli.__name__}."):
        importlib.import_module(module.name)
    # Of a process with threads, a fork may hang.
    assert len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208
    while True:
        call, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 4)
        if not call:
            sys.exit()
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()
    channel.close()
    *streams, answer = descriptors
    pid = os.fork()
    if pid:
        # Nobody waits for the answer of a call whose watcher is gone.
        _, status = os.waitpid(pid, 0)
        os.write(answer, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(answer)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words, environment, directory = json.loads(call)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = [csub.__file__, *words]


def _reap() -> None:
    """Let children go that have ended."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    csub.main()
