"""The runner's side of a keeper: starts it, asks it, hears from it, and never waits for it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import Any

import slurm_colloc
from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.host.keeper.keeper_messages import (
    ControlProved,
    Event,
    Failed,
    KeeperDied,
    Ready,
    Stopped,
    decode,
    encode,
)
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport
from slurm_colloc.host.system.child_programs import DEVNULL, PIPE, Child, collect, start_program
from slurm_colloc.host.system.directories import BASES
from slurm_colloc.host.system.signals import end_child

_ROOT = os.path.dirname(os.path.dirname(slurm_colloc.__file__))
# Without site packages, so that it is up in a few milliseconds; the package's own place comes last
# on the path, so that nothing next to it can stand in for the standard library. For -B see
# runtime.step_command.
_BOOT = (
    "import sys; sys.path.append(sys.argv.pop()); "
    "from slurm_colloc.process_name import name_process; name_process('csub-keeper'); "
    "from slurm_colloc.host.keeper.keeper import main; sys.exit(main())"
)
_READ_BYTES = 65536
_LOCK_S = 5.0


class KeeperClient:
    """A keeper that has been started; use `KeeperClient.start`."""

    def __init__(self, child: Child, options: MpsOptions) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._child = child
        self._options = options
        self._requests = child.stdin.fileno()
        self._events = child.stdout.fileno()
        for descriptor in (self._requests, self._events):
            os.set_blocking(descriptor, False)
        self._unsent = b""
        self._partial = b""
        self._is_over = False
        self._has_let_go = False
        self.ready: Ready | None = None
        """The last Ready; None until there is one."""
        self.directory: str | None = None
        """The daemon's private directory, as soon as it is known."""

    @classmethod
    def start(
        cls, options: MpsOptions, *, python: str = sys.executable, log: int = DEVNULL
    ) -> KeeperClient:
        """Start a keeper; `poll` says what becomes of it.

        Args:
            options: The daemon that is wanted.
            python: The interpreter.
            log: Descriptor for what the keeper itself writes when it fails unexpectedly.

        Raises:
            OSError: It cannot be started.
        """
        child = start_program(
            [python, "-IB", "-S", "-c", _BOOT, _ROOT],
            os.environ,
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            own_session=True,
        )
        keeper = cls(child, options)
        keeper._send({"options": options})
        return keeper

    @property
    def pid(self) -> int:
        """The keeper's own pid."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """It still has something to say."""
        return not self._is_over

    def fileno(self) -> int:
        """Readable when `poll` has something."""
        return self._events

    def poll(self) -> list[Event]:
        """What has happened; never waits."""
        if self._is_over:
            return []
        self._flush()
        # Looked at before the pipe is read: then nothing that it wrote is missed.
        status = self._child.poll()
        events: list[Event] = []
        ended = False
        while True:
            try:
                data = os.read(self._events, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(StateError):
                    events.append(self._note(decode(line)))
        if any(isinstance(event, (Failed, Stopped)) for event in events):
            self._close()
        elif ended or status is not None:
            self._close()
            events.append(KeeperDied(self._child.returncode))
        return events

    def _note(self, event: Event) -> Event:
        if isinstance(event, (ControlProved, Ready)):
            self.directory = event.directory
        if isinstance(event, Ready):
            self.ready = event
        return event

    def _close(self) -> None:
        self._is_over = True
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        # It has said its last word and ends within milliseconds.
        collect(self._child, 1.0)

    def ask_status(self) -> None:
        """Ask for a Status."""
        self._send({"request": "status"})

    def restart(self) -> None:
        """End what is left and start a fresh daemon; the answer is Ready or Failed."""
        self._send({"request": "restart"})

    def stop(self, grace_s: float = 0.5) -> None:
        """End the daemon; the answer is Stopped.

        Args:
            grace_s: How long clients may take to leave; the caller has ended them.
        """
        self._send({"request": "stop", "grace_s": grace_s})

    def abandon(self) -> None:
        """Let it remove its files now, and end by itself once its clients have gone; says Stopped.

        For a runner that Slurm is about to kill together with it: connected clients need no files.
        """
        if not self._is_over and self._child.stdin is not None:
            self._unsent = b""
            self._has_let_go = True
            self._child.stdin.close()

    def _send(self, request: dict[str, Any]) -> None:
        if self._is_over or self._has_let_go:
            return
        self._unsent += encode(request)
        self._flush()

    def _flush(self) -> None:
        # A full or broken pipe is told by the other one.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self._requests, self._unsent) :]

    def wait(self, deadline: float) -> list[Event]:
        """Wait until the keeper has ended.

        Args:
            deadline: Until when, on the monotonic clock.

        Returns:
            What has happened meanwhile; the last is Stopped, Failed or KeeperDied if it has ended.
        """
        events = self.poll()
        while not self._is_over and (left_s := deadline - time.monotonic()) > 0:
            select.select([self._events], [], [], min(left_s, 1.0))
            events += self.poll()
        return events

    def kill(self) -> None:
        """End the keeper itself at once; then `recover`."""
        end_child(self._child.pid)

    def recover(self, *, grace_s: float = 0.0) -> StopReport:
        """End the daemon and remove its directory without the keeper. This takes up to seconds.

        A keeper that still lives is killed first.

        Args:
            grace_s: How long clients may take to leave.
        """
        from slurm_colloc.host.mps.stop_daemon import find_directories, recover

        if not self._is_over:
            end_child(self._child.pid)
            self._close()
        # It may have died before it could say where; a restart makes another one.
        paths = set(find_directories(self._options.bases or BASES, self.pid))
        paths |= {self.directory} if self.directory is not None else set()
        report = StopReport(elapsed_ms=0.0, directory_removed=True)
        for path in sorted(paths):
            try:
                report = recover(
                    path, grace_s=grace_s, logs_to=self._options.logs_to, patience_s=_LOCK_S
                )
            except FileNotFoundError:
                continue
            except (CollocError, OSError) as error:
                report = StopReport(elapsed_ms=0.0, left=(f"{path}: {error}",))
        return report
