"""Measures cells on one GPU, or on a CPU.

It needs torch in the interpreter that runs it, nvidia-ml-py for the figures of the GPU, and
NVIDIA's programs for MPS; nothing else but the standard library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from slurm_colloc.errors import NodeError
from slurm_colloc_lab.calibration.cells import MPS, Cell, Group, RowWriter
from slurm_colloc_lab.calibration.measured_packs import IDLE
from slurm_colloc_lab.calibration.training_group import OpenGroup
from slurm_colloc_lab.calibration.training_server import Pool, Worker
from slurm_colloc_lab.calibration.whole_gpu import Readings
from slurm_colloc_lab.calibration.workloads import BY_NAME, FULL

_LEAD_S = 0.03
_LATE_S = 20.0
_IDLE_S = 2.5


@dataclass(frozen=True)
class Opened:
    """How the start of a group went.

    Args:
        workers: How many are ready.
        start_s: How long it took.
        problems: By each worker that failed, what and why.
    """

    workers: int
    start_s: float
    problems: tuple[str, ...]


class Bench:
    """One GPU, and what is measured on it; to be closed, best by `with`.

    Args:
        gpu_uuid: The GPU; None for the CPU.
        cores: Where trainings may run.
        out: CSV file that rows are appended to.
        run: What rows call this run.
        gpu_model: NVML's name of the GPU, for the rows.
        driver: The driver's version, likewise.
        scale: `full`, or `tiny` for tests.
        say: Is told, in words, what is not as it should be.
        environ: The environment that programs start from.
    """

    def __init__(
        self,
        gpu_uuid: str | None,
        cores: Sequence[int],
        out: Path,
        *,
        run: str = "",
        gpu_model: str = "",
        driver: str = "",
        scale: str = FULL,
        say: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._gpu_uuid = gpu_uuid
        # Neighbours may be two threads of one core, so each gets one of its own first.
        self._cores = (*cores[::2], *cores[1::2])
        self._run = run
        self._run_at = time.time()
        self._gpu_model = gpu_model
        self._driver = driver
        self._scale = scale
        self._say = say
        # A daemon that the environment names would make time slicing MPS.
        self._environ = {k: v for k, v in environ.items() if not k.startswith("CUDA_MPS_")}
        self._rows = RowWriter(out)
        self._open: OpenGroup | None = None
        self._readings = Readings(gpu_uuid)
        self.pool: Pool | None = None
        """The server of trainings, where one runs."""
        if gpu_uuid and self._readings.problem:
            say(self._readings.problem)

    def open(self, group: Group) -> Opened:
        """Start all workers that the cells of a group need; one that fails is left out.

        Raises:
            NodeError: There is no MPS, or no torch.
        """
        begun = time.monotonic()
        self.close_group()
        if group.mode == MPS and self._gpu_uuid is None:
            raise NodeError("there is no MPS without a GPU")
        if self.pool is not None and not self.pool.is_alive:
            self.pool.close()
            self.pool = None
        if self.pool is None:
            self.pool = Pool(self._environ)
        opened = self._open = OpenGroup(
            group,
            self.pool,
            gpu_uuid=self._gpu_uuid,
            scale=self._scale,
            cores=self._cores,
            environ=self._environ,
        )
        self.pool.wait_until_serving()
        opened.start()
        return Opened(
            workers=sum(worker.state == "ready" for worker in opened.workers),
            start_s=time.monotonic() - begun,
            problems=tuple(
                f"{worker.workload}: {worker.problem}"
                for worker in opened.workers
                if worker.state == "gone"
            ),
        )

    def run_cell(self, cell: Cell, number: int = 0) -> bool:
        """Measure one cell in the open group, and write its rows.

        Args:
            cell: What to measure.
            number: What rows call it.

        Returns:
            False where a member was missing or failed; then nothing is written.
        """
        opened = self._open
        if opened is None:
            raise ValueError("no group is open")
        workers = opened.choose_workers(cell)
        if workers is None:
            return False
        needs = [BY_NAME[member.workload].cpus for member in cell.members]
        shares, is_shared = give_cores(needs, self._cores)
        begin = time.monotonic() + _LEAD_S
        mark = begin + cell.settle_s
        opened.run(workers, shares, begin, cell)
        self._readings.start(mark, mark + cell.window_s)
        opened.finish(workers, cell.settle_s + cell.window_s + _LATE_S)
        gpu = self._readings.finish()
        failed = [worker for worker in workers if worker.state == "gone"]
        for worker in failed:
            where = describe_members(cell)
            self._say(f"{opened.group.name}: {worker.workload} failed in {where}: {worker.problem}")
        if failed:
            return False
        common = {
            **self._describe_run(),
            "group": opened.group.name,
            "mode": opened.group.mode,
            "cell": number,
            "label": cell.label,
            "members": describe_members(cell),
            "size": len(workers),
            "cores_shared": int(is_shared),
            "settle_s": cell.settle_s,
            "t_begin": f"{mark:.2f}",
            **gpu,
        }
        self._rows.write(
            [
                {**common, "member": place, "cores": len(cores), **_describe(worker)}
                for place, (worker, cores) in enumerate(zip(workers, shares, strict=True))
            ]
        )
        return True

    def measure_idle(self) -> None:
        """Write a row of the GPU with nothing on it; before any group is opened."""
        if self._gpu_uuid is None:
            return
        mark = time.monotonic() + _LEAD_S
        self._readings.start(mark, mark + _IDLE_S)
        time.sleep(_LEAD_S + _IDLE_S)
        gpu = self._readings.finish()
        row = {"label": IDLE, "size": 0, "window_s": _IDLE_S, "t_begin": f"{mark:.2f}"}
        self._rows.write([{**self._describe_run(), **row, **gpu}])

    @property
    def readings_problem(self) -> str:
        """Why the GPU tells nothing of what it does; empty where it does."""
        return self._readings.problem

    def _describe_run(self) -> dict[str, object]:
        return {
            "run": self._run,
            "run_at": self._run_at,
            "gpu_model": self._gpu_model,
            "driver": self._driver,
            "power_limit_w": self._readings.power_limit_w,
        }

    def close_group(self) -> None:
        """End the workers of the open group, and its MPS daemon."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close(self._say)

    def close(self) -> None:
        """End everything."""
        try:
            self.close_group()
        finally:
            if self.pool is not None:
                self.pool.close()
            self._readings.close()
            self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _describe(worker: Worker) -> dict[str, object]:
    """The columns that are a member's own."""
    answer = worker.answer
    window_s = float(answer["window_s"])
    return {
        "workload": worker.workload,
        "thread_percentage": worker.limit,
        "family": BY_NAME[worker.workload].family,
        "window_s": window_s,
        "steps": answer["steps"],
        "rate_per_s": answer["steps"] / window_s,
        "cpu_s": answer["cpu_s"],
        "gpu_memory_mb": worker.gpu_memory_mb,
    }


def give_cores(needs: Sequence[int], cores: Sequence[int]) -> tuple[list[tuple[int, ...]], bool]:
    """Cores for each member, disjoint where there are enough; pure.

    Args:
        needs: How many each needs.
        cores: What there is; empty to pin none.

    Returns:
        The cores of each, and whether some are shared.
    """
    if not cores:
        return [() for _ in needs], True
    shares = []
    place = 0
    for need in needs:
        count = min(need, len(cores))
        shares.append(tuple(cores[(place + one) % len(cores)] for one in range(count)))
        place += need
    return shares, place > len(cores)


def describe_members(cell: Cell) -> str:
    """Its members in one word, such as `gnn+mlp@50`; pure."""
    return "+".join(
        sorted(name if limit is None else f"{name}@{limit}" for name, limit in cell.members)
    )
