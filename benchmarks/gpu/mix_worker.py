"""The calibration's fork server, whose trainings can also do a given number of steps.

As a program: `python -m benchmarks.gpu.mix_worker`, which speaks as
slurm_colloc_lab.calibration.training_worker does. A run whose end lies before its begin does as
many steps as `mark` says.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc_lab.calibration import training_server, training_worker
from slurm_colloc_lab.calibration.training_window import Ran, Stepper, choose_unit, pin

_MODULE = "benchmarks.gpu.mix_worker"
_FIRST_STEPS = 2
_MIB = 1 << 20


@dataclass(frozen=True)
class Done:
    """What it took to do a number of steps.

    Attributes:
        steps: How many.
        begin_s: When the first began, in monotonic seconds.
        end_s: When the GPU had done the last.
        cpu_s: CPU seconds of all threads and processes.
    """

    steps: int
    begin_s: float
    end_s: float
    cpu_s: float


class StepRunner(Stepper):
    """A training in this process that does what it is told, by time or by steps."""

    def warm_up(self, seconds: float, steps: int) -> float | None:
        """Step until nothing is done for the first time any more.

        Returns:
            The most gpu_memory that torch held, in MiB, the first steps included, in which cuDNN
            may try its algorithms: a memory limit must leave room for it. None on a CPU.
        """
        for _ in range(_FIRST_STEPS):
            self._training.step()
        self._synchronize()
        first_mb = self._torch.cuda.max_memory_reserved() / _MIB if self._on_gpu else 0.0
        settled_mb = super().warm_up(seconds, steps)
        return None if settled_mb is None else max(first_mb, settled_mb)

    def run(  # type: ignore[override]
        self, begin: float, mark: float, end: float, cores: Sequence[int]
    ) -> Ran | Done:
        """Step from `begin` to `end`, or `mark` steps where `end` is earlier."""
        if end >= begin:
            return super().run(begin, mark, end, cores)
        return self.run_steps(begin, round(mark), cores)

    def run_steps(self, begin: float, steps: int, cores: Sequence[int]) -> Done:
        """Do steps from `begin` on, and wait until the GPU has done the last one.

        Two units of steps at most are ahead of what the GPU has done, as in a run by time.

        Args:
            begin: Monotonic seconds.
            steps: How many.
            cores: Where all threads and processes of the training have to run.
        """
        pin((os.getpid(), *self._training.helpers), cores)
        time.sleep(max(0.0, begin - time.monotonic()))
        _, _, cpu_s = self._count(0)
        started = time.monotonic()
        unit, left, before = choose_unit(self._step_s), steps, None
        while left:
            for _ in range(min(unit, left)):
                self._training.step()
            left -= min(unit, left)
            if self._on_gpu:
                event = self._torch.cuda.Event()
                event.record()
                before, noted = event, before
                if noted is not None:
                    noted.synchronize()
        self._synchronize()
        ended, _, cpu_end_s = self._count(steps)
        return Done(steps, started, ended, cpu_end_s - cpu_s)


class StepPool(training_server.Pool):
    """The calibration's pool, over the server of this module.

    Args:
        environ: The environment that workers start from.

    Raises:
        NodeError: The server cannot be started.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ, _MODULE)

    def run_steps(
        self, one: training_server.Worker, *, begin: float, steps: int, cores: Sequence[int]
    ) -> None:
        """Have a worker do steps from `begin` on, in monotonic seconds; it says `ran`."""
        self.run(one, begin=begin, mark=float(steps), end=begin - 1.0, cores=cores)


if __name__ == "__main__":
    sys.exit(training_worker.main(_MODULE, StepRunner))
