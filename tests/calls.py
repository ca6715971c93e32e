"""Calls of csub that need not start a Python each: forked from a process that has its imports.

Imports, and taking them down at the end, are most of what a call takes, and the tests make some
thousand. Each call is a process of its own, with a new environment, directory, user and standard
streams, and runs `main()` as csub does. How csub itself starts and ends is tested by others:
test_standard_streams.py, tests/packaging, and `CsubUser.start` in tests/commands and tests/cluster.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import pkgutil
import select
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
_PR_SET_DUMPABLE = 4
_IMPORTED_LATE = ("pyarrow.compute", "pyarrow.parquet", "pandas", "rich.markup", "rich.table")
"""What many a command imports only when it needs it; pyarrow looks for pandas."""
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What keeps numpy and pyarrow from starting any as they are imported."""


def run_csub(
    *words: str,
    environment: Mapping[str, str],
    directory: Path,
    user: tuple[int, int] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run csub with an environment, in a directory; what it said, as from `subprocess.run`.

    Args:
        words: Its arguments.
        environment: All that its environment has.
        directory: Where it runs.
        user: The uid and gid as which root runs it, without further groups; else its own.
        timeout_s: How long it may take; None for as long as it likes.

    Raises:
        subprocess.TimeoutExpired: It has taken longer, and goes on.
    """
    call = json.dumps([words, dict(environment), str(directory), user]).encode()
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
            if not select.select([answer], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(["csub", *words], timeout_s or 0.0)
            status = int(file.read())
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode(errors="surrogateescape"))
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
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", **_NO_THREADS},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _import_all() -> None:
    for module in pkgutil.iter_modules(cli.__path__, f"{cli.__name__}."):
        importlib.import_module(module.name)
    for name in _IMPORTED_LATE:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    # Of a process with threads, a fork may hang.
    assert len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _serve(channel: socket.socket) -> None:
    """Fork for each call; a child returns when it is to be csub."""
    _import_all()
    answers: dict[int, int] = {}
    """For each call that runs, its pidfd and where its status is waited for."""
    while True:
        ready = select.select([channel.fileno(), *answers], [], [])[0]
        for process in answers.keys() & ready:
            _answer(process, answers.pop(process))
        if channel.fileno() not in ready:
            continue
        call, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 4)
        if not call:
            sys.exit()
        *streams, answer = descriptors
        pid = os.fork()
        if not pid:
            break
        for descriptor in streams:
            os.close(descriptor)
        answers[os.pidfd_open(pid)] = answer
    channel.close()
    for descriptor in (answer, *answers, *answers.values()):
        os.close(descriptor)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words, environment, directory, user = json.loads(call)
    os.chdir(directory)
    if user:
        _become(*user)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = [csub.__file__, *words]


def _become(uid: int, gid: int) -> None:
    """Be another user, as a program is that this user has started."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    # Else what /proc says of this process is root's.
    assert ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) == 0


def _answer(process: int, answer: int) -> None:
    """Tell the status of a call that has ended, unless the one who waited for it is gone."""
    end = os.waitid(os.P_PIDFD, process, os.WEXITED)
    assert end is not None
    status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    with contextlib.suppress(BrokenPipeError):
        os.write(answer, str(status).encode())
    os.close(process)
    os.close(answer)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        csub.main()
    except SystemExit as end:
        # main() has written all out; to take down what is imported here takes long.
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
