"""The processes of one group: started together, and ended with their MPS daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.errors import NodeError
from slurm_colloc.host.keeper.keeper_client import KeeperClient
from slurm_colloc.host.keeper.keeper_messages import Failed, KeeperDied, Ready, Stopped
from slurm_colloc.host.mps.mps_control import build_member_environment
from slurm_colloc.host.mps.mps_state import MpsOptions, StopReport, choose_passed_environment
from slurm_colloc_lab.calibration.cells import MPS, Cell, Group
from slurm_colloc_lab.calibration.training_server import Pool, Worker
from slurm_colloc_lab.calibration.workloads import TINY

AT_ONCE = 16
"""How many workers are built at the same time."""

_USUAL_PIPES = "/tmp/nvidia-mps"
# Seconds and steps, at least.
_WARM_UP = (0.6, 12)
_TINY_WARM_UP = (0.0, 2)
_BUILD_S = 150.0
_WARM_S = 60.0
_LATE_S = 20.0


class OpenGroup:
    """A group whose workers run.

    Args:
        group: What is to be measured.
        pool: Where workers come from.
        gpu_uuid: The GPU; None for the CPU, where there is no MPS.
        scale: `full` or `tiny`.
        cores: Where workers may run.
        environ: The environment that programs of MPS are found with.

    Raises:
        NodeError: MPS cannot be used.
    """

    def __init__(
        self,
        group: Group,
        pool: Pool,
        *,
        gpu_uuid: str | None,
        scale: str,
        cores: Sequence[int],
        environ: Mapping[str, str],
    ) -> None:
        self.group = group
        self.workers: list[Worker] = []
        self._pool = pool
        self._gpu_uuid = gpu_uuid
        self._scale = scale
        self._cores = tuple(cores)
        self._mps: PrivateMps | None = None
        if group.mode == MPS and gpu_uuid is not None:
            self._mps = PrivateMps(gpu_uuid, environ)

    def start(self) -> None:
        """Build and warm up all workers that the cells need; one that fails is `gone`."""
        pool = self._pool
        copies = self.group.count_copies()
        wanted = [member for member, count in copies.items() for _ in range(count)]
        warm_up = _TINY_WARM_UP if self._scale == TINY else _WARM_UP
        warmed: list[Worker] = []

        def start_next() -> None:
            building = sum(worker.state == "starting" for worker in self.workers)
            while wanted and building < AT_ONCE:
                member = wanted.pop(0)
                worker = pool.start(
                    member.workload,
                    device="cpu" if self._gpu_uuid is None else "cuda",
                    scale=self._scale,
                    environment=self._build_environment(member.limit),
                    cores=self._cores,
                    limit=member.limit,
                )
                self.workers.append(worker)
                building += 1

        def go_on(worker: Worker) -> None:
            if worker.state == "built":
                worker.state = "warming"
                warmed.append(worker)
                pool.warm_up(worker, *warm_up)
            start_next()

        start_next()
        built = ("built", "warming", "ready")
        late = pool.wait(self.workers, built, _BUILD_S, on_event=go_on)
        self._give_up(late, "it was not built in time")
        self._give_up(pool.wait(warmed, ("ready",), _WARM_S), "it did not warm up in time")

    def _give_up(self, late: list[Worker], problem: str) -> None:
        self._pool.kill(late, problem)
        self._pool.wait(late, (), _LATE_S)

    def _build_environment(self, limit: int | None) -> dict[str, str]:
        if self._gpu_uuid is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        if self._mps is not None:
            return self._mps.build_environment(limit)
        environment = {"CUDA_VISIBLE_DEVICES": self._gpu_uuid}
        if os.path.exists(f"{_USUAL_PIPES}/control"):  # noqa: PTH110
            # A daemon of the node's own, which must not be found.
            environment["CUDA_MPS_PIPE_DIRECTORY"] = os.devnull
        return environment

    def choose_workers(self, cell: Cell) -> list[Worker] | None:
        """The members that take part in a cell; None where too few have lasted."""
        left = [worker for worker in self.workers if worker.state != "gone"]
        chosen: list[Worker] = []
        for member in cell.members:
            alike = (each for each in left if (each.workload, each.limit) == member)
            worker = next(alike, None)
            if worker is None:
                return None
            left.remove(worker)
            chosen.append(worker)
        return chosen

    def run(
        self, workers: list[Worker], shares: Sequence[Sequence[int]], begin: float, cell: Cell
    ) -> None:
        """Have workers run a cell from `begin` on, in monotonic seconds; see `finish`."""
        mark = begin + cell.settle_s
        end = mark + cell.window_s
        for worker, cores in zip(workers, shares, strict=True):
            self._pool.run(worker, begin=begin, mark=mark, end=end, cores=cores)

    def finish(self, workers: list[Worker], timeout_s: float) -> None:
        """Wait for the answers; who gives none in time is gone."""
        late = self._pool.wait(workers, ("ran",), timeout_s)
        self._give_up(late, "it did not answer in time")

    def close(self, say: Callable[[str], None]) -> None:
        """End the workers, then their MPS daemon.

        Args:
            say: Is told what could not be ended.
        """
        try:
            self._pool.end(self.workers)
        finally:
            mps, self._mps = self._mps, None
            report = mps.stop() if mps is not None else None
            if report is not None and not report.is_clean:
                say(f"{self.group.name}: the MPS daemon was not ended cleanly: {report}")


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
            self._keeper = KeeperClient.start(options)
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
