"""The keeper: a process that is the MPS daemon's parent; who: the user; where: with the runner.

It starts the daemon, tells the runner what happens to it, and outlives the runner for as long as it
takes to end everything: the end of its standard input means that it alone is left to do so. A
daemon that root has prepared is only watched, and left alone at the end (prepared_daemon).
Messages are those of host.keeper.keeper_messages, the options first; nothing else is written to
standard output. Signals that Slurm sends to the processes of a step are ignored, except SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from typing import Any

from slurm_colloc.errors import CollocError
from slurm_colloc.host.keeper.keeper_messages import (
    ControlProved,
    Failed,
    Ready,
    Stopped,
    Sweeping,
)
from slurm_colloc.host.keeper.keeper_process import Channel, collect_orphans, take_over
from slurm_colloc.host.keeper.watch_daemon import DaemonWatch, wait_for_active
from slurm_colloc.host.mps.mps_leftovers import sweep
from slurm_colloc.host.mps.mps_log_files import write_logs
from slurm_colloc.host.mps.mps_options import MpsOptions, StopReport
from slurm_colloc.host.mps.start_daemon import RunningMps, start_daemon, start_server
from slurm_colloc.host.mps.stop_daemon import stop_daemon
from slurm_colloc.host.system.own_directory import BASES
from slurm_colloc.host.system.remove_directory import remove_at_once, remove_directory

_TICK_S = 0.1


class Keeper:
    """One keeper.

    Args:
        channel: To the runner.
        started: When the process started, on the monotonic clock.
    """

    def __init__(self, channel: Channel, started: float) -> None:
        self._channel = channel
        self._say = channel.say
        self._started = started
        self._generation = 0
        self._watch: DaemonWatch | None = None

    def run(self) -> int:
        """Keep one daemon until the runner has had enough, or has gone."""
        options = self._read_options()
        if options is None:
            return 2
        try:
            return self._keep(options)
        finally:
            if self._watch is not None:
                # Something unforeseen: it is told on standard error, and nothing is left.
                self._stop(0.0, asks_nvml=False)

    def _keep(self, options: MpsOptions) -> int:
        if not self._start(options):
            return 1
        self._sweep(options)
        while True:
            self._channel.listen(_TICK_S)
            if self._channel.is_abandoned:
                return self._end_abandoned()
            self._watched.look()
            while self._channel.requests:
                if not self._handle(self._channel.requests.pop(0)):
                    return 0

    def _read_options(self) -> MpsOptions | None:
        while not self._channel.requests and not self._channel.is_abandoned:
            self._channel.listen(3600.0)
        if not self._channel.requests:
            return None
        options = self._channel.requests.pop(0).get("options")
        return options if isinstance(options, MpsOptions) else None

    @property
    def _watched(self) -> DaemonWatch:
        assert self._watch is not None
        return self._watch

    # -- starting -----------------------------------------------------------------------------

    def _start(self, options: MpsOptions) -> bool:
        """Start a daemon and say how that went; False where there is none or no runner."""
        self._generation += 1
        try:
            running = self._adopt(options) if options.adopt else start_daemon(options)
        except CollocError as error:
            self._say(Failed(str(error)))
            return False
        self._watch = DaemonWatch(running, self._say)
        self._say(
            ControlProved(
                directory=running.directory.path,
                pipe_directory=running.directory.pipe_path,
                daemon_pid=running.daemon.pid,
                control_ms=running.control_ms,
                refused_bases=running.directory.refused,
            )
        )
        asked_at = time.monotonic()
        server_pid: int | None = None
        try:
            if not (options.adopt and running.control.read_servers()):
                start_server(running)
            if options.needs_active:
                server_pid = wait_for_active(running, self._goes_on)
                if server_pid is None:
                    return self._break_off()
        except CollocError as error:
            self._watched.tell(running.events)
            report = self._stop(0.0, asks_nvml=False)
            self._say(Failed(str(error), report.notes))
            return False
        active_ms = (time.monotonic() - asked_at) * 1000
        self._say(
            Ready(
                directory=running.directory.path,
                pipe_directory=running.directory.pipe_path,
                daemon_pid=running.daemon.pid,
                server_pid=server_pid,
                version=running.logs.version,
                control_ms=running.control_ms,
                active_ms=None if server_pid is None else active_ms,
                total_ms=(time.monotonic() - self._started) * 1000,
                refused_bases=running.directory.refused,
                notes=tuple(running.notes),
                restarted=self._generation > 1,
            )
        )
        self._watched.tell(running.events)
        return True

    @staticmethod
    def _adopt(options: MpsOptions) -> RunningMps:
        from slurm_colloc.host.keeper.prepared_daemon import adopt_daemon

        return adopt_daemon(options)

    def _goes_on(self, wait_s: float) -> bool:
        """Wait while a server starts; False where the runner has gone or wants an end."""
        self._channel.listen(wait_s)
        return not self._channel.is_abandoned and all(
            request.get("request") != "stop" for request in self._channel.requests
        )

    def _break_off(self) -> bool:
        if self._channel.is_abandoned:
            self._end_abandoned()
        else:
            self._say(Stopped(self._stop(0.0, asks_nvml=True)))
        return False

    def _sweep(self, options: MpsOptions) -> None:
        """Clear up after earlier packs, in a process of its own: their daemons may hang."""
        if os.fork() != 0:
            return
        status = 1
        try:
            # The lock says that the keeper lives, not that this process does.
            self._watched.running.directory.close()
            self._channel.close_requests()
            for found in sweep(options.bases or BASES):
                self._say(Sweeping(found.path, found.label, found.report, found.reason))
            status = 0
        finally:
            os._exit(status)

    # -- requests -----------------------------------------------------------------------------

    def _handle(self, request: dict[str, Any]) -> bool:
        """Do what the runner asks for; False where that was the end."""
        kind = request.get("request")
        if kind == "status":
            self._say(self._watched.read_status())
        elif kind == "restart":
            # In the place of one that root had prepared the pack gets one of its own.
            options = replace(self._watched.running.options, adopt="")
            self._stop(0.0, asks_nvml=False)
            return self._start(options)
        elif kind == "stop":
            self._watched.follow(flushes=True)
            self._say(Stopped(self._stop(float(request.get("grace_s", 0.5)), asks_nvml=True)))
            return False
        return True

    # -- the end ------------------------------------------------------------------------------

    def _stop(self, grace_s: float, *, asks_nvml: bool) -> StopReport:
        watch, self._watch = self._watched, None
        running = watch.running
        prefix = f"mps.{self._generation}."
        if running.options.adopt and not watch.has_died:
            from slurm_colloc.host.keeper.prepared_daemon import release_daemon

            return release_daemon(running, prefix)
        return stop_daemon(
            running,
            grace_s=grace_s,
            logs_prefix=prefix,
            asks_nvml=asks_nvml,
            has_directory=not running.options.adopt,
        )

    def _end_abandoned(self) -> int:
        """The runner is gone or lets go, and Slurm may kill this process soon: files first.

        Clients that are connected need no files. They may go on for a while, because members get
        time to end well after a TERM, and for as long as the runner's guard keeps them.
        """
        watch = self._watched
        running = watch.running
        if running.options.adopt:
            self._say(Stopped(self._stop(0.0, asks_nvml=False)))
            return 0
        # Slurm's SIGKILL may be a millisecond away. The logs are open, and need no names.
        path, opened = running.directory.path, running.directory.descriptor
        if not remove_at_once(path, opened):
            remove_directory(path, opened)
        target = running.options.logs_to
        if target is not None:
            with contextlib.suppress(OSError):
                write_logs(target, f"mps.{self._generation}.", running.logs.read_whole())
        deadline = time.monotonic() + running.options.orphan_grace_s
        watch.look()
        guard_pid = running.options.guard_pid
        while watch.has_clients() and not watch.has_died:
            # The guard of the runner adopts this process, and stands while members may live.
            if time.monotonic() >= deadline and (not guard_pid or os.getppid() != guard_pid):
                break
            time.sleep(_TICK_S)
            watch.look()
        report = stop_daemon(running, grace_s=0.0, asks_nvml=False, has_directory=False)
        self._watch = None
        collect_orphans(None)
        # To a runner that has only let go, see KeeperClient.abandon.
        self._say(Stopped(replace(report, directory_removed=True)))
        return 0


def main() -> int:
    """Take the process over and keep."""
    started = time.monotonic()
    return Keeper(Channel(*take_over()), started).run()


if __name__ == "__main__":
    sys.exit(main())
