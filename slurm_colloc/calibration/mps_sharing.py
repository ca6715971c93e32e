"""A private MPS daemon for one group of trainings."""

from __future__ import annotations

import time
from collections.abc import Mapping

from slurm_colloc.errors import NodeError
from slurm_colloc.host.keeper_client import Keeper
from slurm_colloc.host.keeper_messages import Failed, KeeperDied, Ready, Stopped
from slurm_colloc.host.mps_options import MpsOptions, StopReport, choose_passed_environment
from slurm_colloc.host.mps_support import build_member_environment

_POLL_S = 0.005
_READY_S = 45.0
_STOPPED_S = 30.0


class PrivateMps:
    """A daemon that ends with its keeper, and so with this process, whatever ends that.

    Args:
        gpu_uuid: The GPU.
        environ: This process's environment.

    Raises:
        NodeError: There is no MPS here, or it does not get ready.
    """

    def __init__(self, gpu_uuid: str, environ: Mapping[str, str]) -> None:
        self._gpu_uuid = gpu_uuid
        options = MpsOptions(
            gpus=(gpu_uuid,),
            environment=choose_passed_environment(environ),
            path=environ.get("PATH", ""),
            label="calibration",
            orphan_grace_s=2.0,
        )
        try:
            self._keeper = Keeper.start(options)
        except OSError as error:
            raise NodeError(f"the MPS keeper cannot be started: {error}") from error
        try:
            self._ready = self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> Ready:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            for event in self._keeper.poll():
                if isinstance(event, Ready):
                    return event
                if isinstance(event, Failed):
                    raise NodeError(f"MPS cannot be used: {event.reason}")
                if isinstance(event, KeeperDied):
                    raise NodeError("the keeper of the MPS daemon has died")
            time.sleep(_POLL_S)
        raise NodeError(f"the MPS daemon was not ready within {_READY_S:g} s")

    @property
    def daemon_pid(self) -> int:
        """The daemon's process."""
        return self._ready.daemon_pid

    def build_environment(self, thread_percentage: float | None) -> dict[str, str]:
        """What makes a process a client.

        Args:
            thread_percentage: What it may use of the SMs; None for no limit.
        """
        return build_member_environment(
            gpus=(self._gpu_uuid,),
            pipe_directory=self._ready.pipe_directory,
            thread_percentage=thread_percentage,
        )

    def stop(self) -> StopReport | None:
        """End the daemon; its clients have ended. None where there was nothing to end."""
        report: StopReport | None = None
        self._keeper.stop()
        for event in self._keeper.wait(time.monotonic() + _STOPPED_S):
            if isinstance(event, Stopped):
                report = event.report
            elif isinstance(event, KeeperDied):
                report = self._keeper.recover()
        if self._keeper.is_alive:
            self._keeper.kill()
            report = self._keeper.recover()
        return report
