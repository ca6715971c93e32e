"""Running one of Slurm's commands: argument list in, text out, errors told apart.

Also: the process of one of Slurm's commands, which a site may have wrapped: its wait is bounded.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.errors import SlurmError, SlurmNoAnswer, SlurmRefused, SlurmUnreachable
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.slurm.real_command import choose_sbatch, find_real_command

# ----
# The process of one of Slurm's commands, which a site may have wrapped: its wait is bounded.
#
# A wrapper's child may keep the pipes open, ignore signals, or leave its process group. So the
# command has a process group of its own, which is killed at its time limit, and nothing here waits
# for a pipe to be closed once the command has ended.

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.1
"""How often it is looked whether the command has ended while its pipes are open."""

_DRAIN_S = 0.5
"""How long after the command's end what others write into its pipes is still taken."""

_KILLED_S = 2.0
"""How long a killed command may take to end; one that is stuck in the kernel is left to it."""


class CommandProcess:
    """A command that runs.

    Args:
        argv: The command and its arguments.
        environment: Its whole environment.
        program: The program's path; None for where PATH has it.
        inherited: Descriptors that it keeps open.
        directory: Where it runs; None for here.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        program: str | None = None,
        inherited: Sequence[int] = (),
        directory: str | None = None,
    ) -> None:
        self._child = subprocess.Popen(
            list(argv),
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=directory,
            pass_fds=tuple(inherited),
            # Ctrl-C reaches csub alone, and what the command has started ends with it.
            process_group=0,
        )
        self.stdout = b""
        self.stderr = b""

    def run(self, timeout_s: float) -> int | None:
        """Take what it writes until it has ended.

        Args:
            timeout_s: When it is killed, with all that is in its process group.

        Returns:
            Its exit status, negative for a signal; None where it was killed at its time limit.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._read(deadline)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._child.wait(max(0.0, deadline - time.monotonic()))
            self.signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_KILLED_S)
            return None
        except BaseException:
            self.signal(signal.SIGTERM)
            raise
        finally:
            for pipe in (self._child.stdout, self._child.stderr):
                if pipe is not None:
                    pipe.close()

    def signal(self, number: int) -> None:
        """Signal its process group, unless the command has ended."""
        # Until it is collected, no other process has its number.
        if self._child.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, number)

    def _read(self, deadline: float) -> None:
        """Read both pipes to their ends, or until shortly after the command's."""
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        taken = {self._child.stdout: bytearray(), self._child.stderr: bytearray()}
        with selectors.DefaultSelector() as selector:
            for pipe in taken:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
                ready = selector.select(min(left_s, _LOOK_S))
                for key, _ in ready:
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    taken[key.fileobj] += chunk  # type: ignore[index]
                    if not chunk:
                        selector.unregister(key.fileobj)
                if not ready and self._child.poll() is not None:
                    deadline = min(deadline, time.monotonic() + _DRAIN_S)
        self.stdout, self.stderr = map(bytes, taken.values())


# ---- Running one of Slurm's commands: argument list in, text out, errors told apart --------------

QUERY_TIMEOUT_S = 30.0
SUBMIT_TIMEOUT_S = 120.0

HINT_AFTER_NO_ANSWER = (
    "what was asked may still be done; csub queue shows it as soon as it is known"
)

_OF_ACCOUNTING = ("sacct", "sacctmgr")
"""Commands that ask slurmdbd and not the controller."""

# The request may have arrived; only the answer is missing.
_UNANSWERED = ("timed out", "zero bytes were transmitted", "unexpected message")

_UNCONFIGURED = ("configuration source", "cannot stat file", "unable to process configuration")

_UNREACHABLE = (
    "unable to contact slurm controller",
    "unable to establish controller machine",
    "connection refused",
    "connect failure",
    "munge",
    "no such file or directory: slurm.conf",
    "slurm_load_ctl_conf",
)


@dataclass(frozen=True)
class Output:
    """What a command that ended with 0 wrote."""

    stdout: str
    stderr: str


def build_client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm's commands: the user's, without what changes their output.

    `SBATCH_*`, `SQUEUE_*` and their like set options; csub reads the SBATCH_* variables itself
    and passes every option explicitly.
    """
    prefixes = ("SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_", "SACCT_", "SRUN_", "SLURM_JOB")
    exact = {"SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SLURM_EXIT_ERROR", "SLURM_BITSTR_LEN"}
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(prefixes) and name not in exact
    }


def run_slurm(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = QUERY_TIMEOUT_S,
    inherited: Sequence[int] = (),
    held: HeldInterrupts | None = None,
    directory: str | None = None,
) -> Output:
    """Run one command to its end.

    Args:
        argv: The command and its arguments.
        environment: Its environment; by default the user's, filtered.
        timeout_s: When to give up.
        inherited: Descriptors that it keeps open.
        held: Interrupts that are held back until its answer is there: a submission that was sent
            cannot be unsent. The second one ends the command.
        directory: Where to run it.

    Raises:
        SlurmUnreachable: The command is not installed, or no controller answers.
        SlurmRefused: It ended with another status than 0.
        SlurmNoAnswer: It did not end in time, or was killed.
    """
    env = build_client_environment(os.environ) if environment is None else dict(environment)
    program, env = choose_program(argv, env)
    try:
        process = CommandProcess(
            argv, env, program=program, inherited=inherited, directory=directory
        )
    except FileNotFoundError as error:
        raise _build_missing(argv) from error
    except OSError as error:
        raise SlurmError(
            f"cannot run {argv[0]}: {os.strerror(error.errno or 0)}", argv=argv
        ) from error
    if held is not None:
        held.process = process
    try:
        returncode = process.run(timeout_s)
    finally:
        if held is not None:
            held.process = None
    stderr = process.stderr.decode("utf-8", "replace")
    if returncode is None:
        # Where slurm.conf is missing, the commands try again for a minute.
        if "cannot stat file" in stderr:
            raise build_slurm_error(argv, 1, stderr)
        raise SlurmNoAnswer(
            f"{argv[0]} gave no answer within {timeout_s:g} s",
            hint="the controller may be down: try scontrol ping",
            argv=argv,
        )
    if returncode != 0:
        raise build_slurm_error(argv, returncode, stderr)
    return Output(process.stdout.decode("utf-8", "surrogateescape"), stderr)


def choose_program(
    argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Which program a command is, and its environment: never csub itself, nor a member's shim.

    csub may be called sbatch, and inside a member the shims come first in PATH.

    Raises:
        SlurmUnreachable: It is not installed.
    """
    name = argv[0]
    if "/" in name:
        return name, dict(environment)
    if name == "sbatch":
        chosen = choose_sbatch(environment, sys.argv[0])
        if chosen is None:
            raise _build_missing(argv)
        return chosen
    found = find_real_command(name, environment.get("PATH"))
    if found is None:
        raise _build_missing(argv)
    return found, dict(environment)


def _build_missing(argv: Sequence[str]) -> SlurmUnreachable:
    return SlurmUnreachable(
        f"there is no Slurm here: {argv[0]} is not installed or not in PATH",
        hint="call csub where sbatch works, or run without Slurm with csub --local",
        argv=argv,
    )


class HeldInterrupts:
    """Ctrl-C while something runs that must come to its end.

    Attributes:
        count: How often it was pressed.
        process: The command that is waited for; the second Ctrl-C ends it, a third one kills it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.process: CommandProcess | None = None

    def came(self) -> bool:
        """It was pressed."""
        return self.count > 0

    def note(self, *_: object) -> None:
        """Handle SIGINT."""
        self.count += 1
        if self.count > 1 and self.process is not None:
            self.process.signal(signal.SIGTERM if self.count == 2 else signal.SIGKILL)


@contextlib.contextmanager
def hold_interrupts() -> Iterator[HeldInterrupts]:
    """Count SIGINT instead of raising KeyboardInterrupt; only the main thread can."""
    held = HeldInterrupts()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    before = signal.signal(signal.SIGINT, held.note)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


def build_slurm_error(argv: Sequence[str], returncode: int, stderr: str) -> SlurmError:
    """Turn a failed command into a sentence: Slurm's own words without their prefixes."""
    name = argv[0].rsplit("/", 1)[-1]
    lines = []
    for line in stderr.split("\n"):
        text = line.strip()
        for prefix in (f"{name}: error: ", f"{name}: fatal: ", f"{name}: "):
            if text.startswith(prefix):
                text = text[len(prefix) :]
                break
        if text and text not in lines:
            lines.append(text)
    words = "; ".join(lines) or f"exit status {returncode}"
    folded = words.lower()
    kind: type[SlurmError] = SlurmRefused
    told, hint = f"{name}: {words}", ""
    if returncode < 0:
        told = f"{name} was ended by signal {-returncode} before it answered"
        kind, hint = SlurmNoAnswer, HINT_AFTER_NO_ANSWER
    elif any(mark in folded for mark in _UNCONFIGURED):
        kind, told = SlurmUnreachable, "Slurm is installed but has no configuration here"
        hint = "set SLURM_CONF, or run without Slurm with csub --local"
    elif any(mark in folded for mark in _UNANSWERED):
        told = f"Slurm's controller did not answer in time: {words}"
        kind, hint = SlurmNoAnswer, HINT_AFTER_NO_ANSWER
    elif any(mark in folded for mark in _UNREACHABLE):
        kind, hint = SlurmUnreachable, "nothing was changed; try again later"
        if name in _OF_ACCOUNTING:
            # Of its layers each says it once more; the last line is the plainest.
            told = f"Slurm's accounting does not answer: {lines[-1]}"
        else:
            told = f"Slurm's controller does not answer: {words}"
            hint += ", scontrol ping shows when it is back"
    return kind(told, hint=hint, argv=argv, returncode=returncode, stderr=stderr)
