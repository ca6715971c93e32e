"""How a member is started: the srun command line and the wrapper's launch file; pure."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.runtime import programs

WRAPPER = os.path.join(os.path.dirname(programs.__file__), "wrapper.py")


def build_wrapper_argv(python: str, launch_file: str) -> list[str]:
    """The wrapper's command line: isolated, without site packages, so that it starts fast.

    Like all interpreters that csub starts on a node it writes no bytecode (-B): under a file size
    limit or on a full disk older Pythons leave half a file behind, at which every later start
    fails (python/cpython#126606).
    """
    return [python, "-IB", "-S", WRAPPER, launch_file]


def build_srun_argv(name: str, host_memory_mb: int | None, command: Sequence[str]) -> list[str]:
    """Start one task alongside others: no -c, no --exact, no --gres.

    Overlapping steps with --exact get the same cores, and --gres conflicts with --gpus-per-node
    of the job from 23.11 on; without them a step sees all of the job's CPUs and GPUs, and the
    wrapper binds itself (srun(1); seen on 22.05 and 26.05).

    Args:
        name: The step's name.
        host_memory_mb: Its host memory; None for no limit of its own.
        command: What it runs.
    """
    memory = [] if host_memory_mb is None else [f"--mem={host_memory_mb}"]
    return [
        "srun",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        *memory,
        f"--job-name={name}",
        "--cpu-bind=none",
        "--export=ALL",
        "--input=none",
        "--kill-on-bad-exit=0",
        *command,
    ]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The launch file's value; runtime.programs.wrapper reads it."""

    argv: Sequence[str]
    environment: Sequence[tuple[str, str]]
    directory: str
    cpus: Sequence[int]
    input: str | None
    output: str | None
    error: str | None
    truncate: bool
    umask: int
    prefix: str
    runner_pid: int
    kill_wait_s: float
    passes_on: bool
    own_tmpdir: str
    is_step: bool
    together: int = 0
    shares_cgroup: bool = False
    places: Mapping[str, object] | None = None


class StartedProcess:
    """A started member: the srun that waits for its step, or its wrapper itself."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()


def start_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: str | None,
    *,
    own_group: bool = True,
    stdin: bytes = b"",
) -> StartedProcess:
    """Start a command in the background.

    Args:
        argv: Command and arguments.
        environment: Its environment.
        log: File for its output; None to share this process's output.
        own_group: Start it in a process group of its own.
        stdin: What it reads from its standard input.

    Raises:
        OSError: It cannot be started.
    """
    descriptor = None
    source = _hold(stdin) if stdin else subprocess.DEVNULL
    if log is not None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return StartedProcess(
            subprocess.Popen(
                list(argv),
                stdin=source,
                stdout=descriptor,
                stderr=descriptor,
                env=dict(environment),
                process_group=0 if own_group else None,
            )
        )
    finally:
        if descriptor is not None:
            # What is started is started, whatever the file system says of the log.
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if source != subprocess.DEVNULL:
            os.close(source)


def _hold(data: bytes) -> int:
    """A file without a name that holds some bytes: nothing waits for its reader, as in a pipe."""
    descriptor = os.memfd_create("csub-stdin", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
