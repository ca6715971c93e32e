"""Trainings of a mix on one GPU, or on the CPU: alone, and in the packs of a plan."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from benchmarks.gpu.mix import Alone
from benchmarks.gpu.mix_readings import EnergyMeter, build_load
from benchmarks.gpu.mix_worker import StepPool
from slurm_colloc.errors import NodeError
from slurm_colloc.host.mps.mps_control import build_member_environment
from slurm_colloc.model.plan import SharingMode
from slurm_colloc_lab.calibration.training_group import PrivateMps
from slurm_colloc_lab.calibration.training_server import Worker
from slurm_colloc_lab.calibration.whole_gpu import Readings
from slurm_colloc_lab.calibration.workloads import BY_NAME, TINY

Choose = Callable[[Sequence[int], Sequence[int]], int | None]

AT_ONCE = 16
"""How many trainings are built at the same time."""

_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_USUAL_PIPES = "/tmp/nvidia-mps"
_BUILD_S = 120.0
_LEAD_S = 0.05
_SETTLE_S, _WINDOW_S = 0.4, 1.0
_ROUNDS, _WINDOWS = 2, 2
# Seconds and steps, at least: before it is measured alone, and before its work in a pack.
_WARM_ALONE, _WARM_MEMBER = (0.6, 12), (0.3, 5)


@dataclass(frozen=True)
class Member:
    """What one member of a pack is to do.

    Attributes:
        kind: Its workload.
        steps: How many steps it does.
        percentage: Its MPS thread limit; None for none.
        gpu_memory_limit_mb: Its limit under MPS; None for none.
    """

    kind: str
    steps: int
    percentage: int | None = None
    gpu_memory_limit_mb: int | None = None


@dataclass(frozen=True)
class RanMember:
    """What a member did: monotonic seconds, None where it failed; and why it did."""

    begin_s: float | None
    end_s: float | None
    problem: str = ""


@dataclass(frozen=True)
class RanPack:
    """What a pack came to.

    Attributes:
        members: In their order.
        mps_s: Seconds for starting and ending the MPS daemon.
        setup_s: Seconds for starting, building, warming up and ending the members' processes.
        work_j: Energy from the first step to the last; None where it cannot be read.
        setup_j: Energy of all the rest.
    """

    members: tuple[RanMember, ...]
    mps_s: float
    setup_s: float
    work_j: float | None
    setup_j: float | None


class MixGpu:
    """One GPU, and the trainings that run on it; to be closed, best by `with`.

    Args:
        gpu_uuid: The GPU; None for the CPU.
        cores: Where trainings may run.
        scale: `full`, or `tiny` for tests.
        say: Is told, in words, what is not as it should be.

    Raises:
        NodeError: There is no torch.
    """

    def __init__(
        self,
        gpu_uuid: str | None,
        cores: Sequence[int],
        *,
        scale: str,
        say: Callable[[str], None],
    ) -> None:
        self._gpu_uuid = gpu_uuid
        self._cores = tuple(cores)
        self._scale = scale
        self._say = say
        # A daemon that somebody else has named would make all of this MPS.
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS_")}
        self._energy = EnergyMeter(gpu_uuid)
        self._pool = StepPool(self._environ)
        self._pool.wait_until_serving()

    def measure_alone(self, kinds: Sequence[str], idle_power_w: float | None) -> dict[str, Alone]:
        """Measure kinds of trainings, one at a time on the whole GPU without MPS.

        Each has two windows in each of two rounds, and the second fastest counts: hosts are slow
        for seconds, alone as in a pack.

        Raises:
            NodeError: One of them failed.
        """
        readings = Readings(self._gpu_uuid)
        if self._gpu_uuid and readings.problem:
            self._say(readings.problem)
        workers: list[Worker] = []
        found: dict[str, list[Alone]] = {}
        try:
            self._start(workers, kinds, [self._build_environment(None, None)] * len(kinds),
                        _WARM_ALONE)  # fmt: skip
            for worker in _ROUNDS * workers:
                for _ in range(_WINDOWS):
                    measured = self._measure_once(worker, readings, idle_power_w)
                    found.setdefault(worker.workload, []).append(measured)
        finally:
            self._pool.end(workers)
            readings.close()
        return {
            kind: sorted(each, key=lambda one: one.steps_per_s)[-2] for kind, each in found.items()
        }

    def _measure_once(
        self, worker: Worker, readings: Readings, idle_power_w: float | None
    ) -> Alone:
        begin = time.monotonic() + _LEAD_S
        mark = begin + _SETTLE_S
        end = mark + (_WINDOW_S if self._scale != TINY else 0.2)
        cores = self._cores[: BY_NAME[worker.workload].cpus]
        self._pool.run(worker, begin=begin, mark=mark, end=end, cores=cores)
        readings.start(mark, end)
        late = self._pool.wait([worker], ("ran",), end - begin + 20.0)
        gpu = readings.finish()
        if late or worker.state == "gone":
            self._pool.kill(late, "it did not answer in time")
            raise NodeError(f"{worker.workload} failed alone: {worker.problem}")
        answer = worker.answer
        return Alone(
            steps_per_s=answer["steps"] / answer["window_s"],
            gpu_memory_mb=worker.gpu_memory_mb,
            load=build_load(gpu, answer["cpu_s"] / answer["window_s"], idle_power_w),
        )

    def run_pack(
        self,
        members: Sequence[Member],
        mode: SharingMode,
        timeout_s: float,
        choose: Choose | None = None,
    ) -> RanPack:
        """Run members until each has done its steps.

        Args:
            members: The members; the processes of all are there before the first begins.
            mode: Without a GPU there is no MPS, whatever this says.
            timeout_s: How long the work may take; who is not done then has failed.
            choose: Who begins next, by places: of those that run and those that wait, in order.
                Without it all begin at a common moment.

        Raises:
            NodeError: MPS cannot be used.
        """
        entered, joules = time.monotonic(), self._energy.read()
        mps: PrivateMps | None = None
        workers: list[Worker] = []
        mps_s = 0.0
        try:
            if mode is SharingMode.MPS and self._gpu_uuid is not None:
                mps = PrivateMps(self._gpu_uuid, self._environ)
                mps_s = time.monotonic() - entered
            environments = [self._build_environment(mps, member) for member in members]
            self._start(workers, [member.kind for member in members], environments, _WARM_MEMBER)
            before = self._energy.read()
            begin = time.monotonic() + _LEAD_S
            work = _Work(
                self._pool, workers, members, cores=self._cores, begin=begin, choose=choose
            )
            late = self._pool.wait(work.started, ("ran",), timeout_s, on_event=work.go_on)
            done, after = time.monotonic(), self._energy.read()
            self._pool.kill(late, f"it was not done within {timeout_s:.0f} s")
            ran = tuple(_describe(worker) for worker in workers)
        finally:
            self._pool.end(workers)
            ending = time.monotonic()
            if mps is not None:
                report = mps.stop()
                if report is not None and not report.is_clean:
                    self._say(f"the MPS daemon was not ended cleanly: {report}")
                mps_s += time.monotonic() - ending
        whole_s = time.monotonic() - entered
        work_j = _subtract(after, before)
        return RanPack(
            members=ran,
            mps_s=mps_s,
            setup_s=whole_s - (done - begin) - mps_s,
            work_j=work_j,
            setup_j=_subtract(_subtract(self._energy.read(), joules), work_j),
        )

    def _start(
        self,
        workers: list[Worker],
        kinds: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        warm_up: tuple[float, int],
    ) -> None:
        """Build and warm up a worker for each kind, in their order.

        Raises:
            NodeError: One of them failed; a pack without it would be another one.
        """
        if self._scale == TINY:
            warm_up = (0.0, 2)
        for kind, environment in zip(kinds, environments, strict=True):
            starting = [worker for worker in workers if worker.state == "starting"]
            if len(starting) >= AT_ONCE:
                self._wait(starting[:1], "built")
            workers.append(
                self._pool.start(
                    kind,
                    device="cpu" if self._gpu_uuid is None else "cuda",
                    scale=self._scale,
                    environment=environment,
                    cores=self._cores,
                )
            )
        self._wait(workers, "built")
        for worker in workers:
            self._pool.warm_up(worker, *warm_up)
        self._wait(workers, "ready")

    def _wait(self, workers: Sequence[Worker], state: str) -> None:
        # One that is further than that is fine, too.
        late = self._pool.wait(workers, (state, "ready"), _BUILD_S)
        self._pool.kill(late, f"it was not {state} in time")
        for worker in workers:
            if worker in late or worker.state == "gone":
                raise NodeError(f"{worker.workload} cannot be started: {worker.problem}")

    def _build_environment(self, mps: PrivateMps | None, member: Member | None) -> dict[str, str]:
        if self._gpu_uuid is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        if mps is not None and member is not None:
            limit_mb = member.gpu_memory_limit_mb
            return build_member_environment(
                gpus=(self._gpu_uuid,),
                pipe_directory=mps.build_environment(None)[_PIPE],
                thread_percentage=member.percentage,
                gpu_memory_limits_mb={self._gpu_uuid: limit_mb} if limit_mb else None,
            )
        environment = {"CUDA_VISIBLE_DEVICES": self._gpu_uuid}
        if os.path.exists(f"{_USUAL_PIPES}/control"):  # noqa: PTH110
            # A daemon of the node's own, which must not be found.
            environment[_PIPE] = os.devnull
        return environment

    def close(self) -> None:
        """End everything."""
        self._pool.close()
        self._energy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Work:
    """Who runs of some workers, and on which cores.

    Attributes:
        started: Those that have been told to begin.
    """

    def __init__(
        self,
        pool: StepPool,
        workers: Sequence[Worker],
        members: Sequence[Member],
        *,
        cores: Sequence[int],
        begin: float,
        choose: Choose | None,
    ) -> None:
        self.started: list[Worker] = []
        self._pool, self._workers, self._members = pool, workers, members
        self._begin = begin
        self._choose = choose or _choose_first
        self._running: list[int] = []
        self._waiting = list(range(len(members)))
        self._cores = tuple(cores)
        self._held: dict[int, tuple[int, ...]] = {}
        self._start()

    def go_on(self, worker: Worker) -> None:
        """Note what a worker says; where it has ended, others may begin."""
        place = next(i for i, each in enumerate(self._workers) if each is worker)
        if worker.state in ("ran", "gone") and place in self._running:
            self._running.remove(place)
            del self._held[place]
            self._start()

    def _start(self) -> None:
        while (place := self._choose(self._running, self._waiting)) is not None:
            self._waiting.remove(place)
            self._running.append(place)
            member, worker = self._members[place], self._workers[place]
            need = min(BY_NAME[member.kind].cpus, len(self._cores))
            # The least used first: where there are enough, everyone has cores of its own.
            uses = [core for held in self._held.values() for core in held]
            cores = tuple(sorted(self._cores, key=uses.count)[:need])
            self._held[place] = cores
            self.started.append(worker)
            self._pool.run_steps(worker, begin=self._begin, steps=member.steps, cores=cores)


def _choose_first(_: Sequence[int], waiting: Sequence[int]) -> int | None:
    return waiting[0] if waiting else None


def _describe(worker: Worker) -> RanMember:
    if worker.state != "ran":
        return RanMember(None, None, worker.problem or f"it is {worker.state}")
    begin_s, end_s = float(worker.answer["begin_s"]), float(worker.answer["end_s"])
    assert math.isfinite(end_s)
    return RanMember(begin_s, end_s)


def _subtract(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right
