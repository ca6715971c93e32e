"""The processes of one group: started together, and ended with their MPS daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.calibration.cells import MPS, Cell, Group
from slurm_colloc.calibration.mps_sharing import PrivateMps
from slurm_colloc.calibration.pool import Pool, Worker
from slurm_colloc.calibration.workloads import TINY

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
        """Who takes part in a cell; None where too few have lasted."""
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
