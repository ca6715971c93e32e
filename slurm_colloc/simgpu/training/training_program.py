"""`simgpu run`: a process that uses a simulated GPU as a PyTorch training uses a real one."""

from __future__ import annotations

import argparse
import math
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_colloc.errors import CollocError
from slurm_colloc.simgpu.nvml.gpu_records import SimulatedProcess
from slurm_colloc.simgpu.nvml.gpu_state import is_stopped, open_node, read_starttime
from slurm_colloc.simgpu.training.cuda_context import (
    Context,
    OutOfGpuMemory,
    open_context,
)
from slurm_colloc.simgpu.training.cuda_devices import choose_cuda_devices, list_cuda_devices
from slurm_colloc.simgpu.training.cuda_errors import ASSERT, ILLEGAL_ADDRESS, CudaError
from slurm_colloc.simgpu.training.failure_output import render_failure
from slurm_colloc.simgpu.training.shared_speed import GpuPart, ProcessLoad, compute_use

_TICK_S = 0.1
# After a longer silence the process was stopped; that time does not count as work.
_LONGEST_TICK_S = 1.0
_FAULTS = (
    "illegal-address",
    "device-assert",
    "out-of-gpu-memory",
    "segfault",
    "exit",
    "hang",
    "sigkill-itself",
)


class MpsAttachment(Protocol):
    """What this program needs of a connection to an MPS server; see mps_client.py."""

    gpus: tuple[str, ...]
    thread_percentage: float
    server_pid: int

    def gpu_memory_limit_mb(self, uuid: str, /) -> int | None:
        """The pinned limit on that GPU."""

    def fault(self, kind: str, /) -> Exception:
        """Fail so; the error that this process meets."""

    def poll(self) -> Exception | None:
        """A neighbour's fault that has reached this client."""

    def close(self) -> object:
        """Leave the server."""


@dataclass(frozen=True)
class TrainingFault:
    """A fault on demand.

    Args:
        kind: One of the known words.
        after_s: So long after the start.
        status: The exit status of `exit`.
    """

    kind: str
    after_s: float = 0.0
    status: int = 0


@dataclass(frozen=True)
class TrainingJob:
    """What the program should do.

    Args:
        gpu_memory_mb: What it takes apart from its context.
        block_mb: In pieces of this size.
        sm_demand: Per cent of SM time that it uses alone.
        dram_demand: Per cent of the memory bandwidth that it uses alone.
        steps_per_s: Its speed alone.
        steps: It ends after so many, or infinity.
        seconds: It ends after so long, or infinity.
        report: Print progress.
        fault: How it fails, if at all.
    """

    gpu_memory_mb: int
    block_mb: int
    sm_demand: float
    dram_demand: float
    steps_per_s: float
    steps: float
    seconds: float
    report: bool
    fault: TrainingFault | None


# -- the command line, pure ------------------------------------------------------------------------


def parse_size_mb(text: str) -> int:
    """Read 2G, 512M or a number of MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no size such as 2G or 512M")
    return math.ceil(float(match[1]) * (1024 if match[2].upper() == "G" else 1))


def parse_percent(text: str) -> float:
    """Read 0 to 100."""
    value = _parse_positive(text, low=0.0)
    if value > 100.0:
        raise argparse.ArgumentTypeError(f"'{text}' is not between 0 and 100")
    return value


def parse_fault(text: str) -> TrainingFault:
    """Read KIND or KIND@SECONDS, with exit=STATUS."""
    words, _, after = text.partition("@")
    kind, equals, status = words.partition("=")
    known = kind in _FAULTS and (kind == "exit") == bool(equals)
    if not known or (equals and not (status.isdigit() and int(status) < 256)):
        raise argparse.ArgumentTypeError(
            f"'{text}' is none of {', '.join(_FAULTS).replace('exit', 'exit=STATUS')}, "
            "with @SECONDS behind it or not"
        )
    return TrainingFault(kind, _parse_positive(after, low=0.0) if after else 0.0, int(status or 0))


def parse_job(argv: Sequence[str]) -> TrainingJob:
    """Read the command line.

    Raises:
        SystemExit: It is wrong, or asks for help.
    """
    parser = argparse.ArgumentParser(prog="simgpu run", description=__doc__)
    parser.add_argument("--gpu-memory", type=parse_size_mb, default=1024, metavar="SIZE")
    parser.add_argument("--block", type=parse_size_mb, default=128, metavar="SIZE")
    parser.add_argument("--sm", type=parse_percent, default=30.0, metavar="PERCENT")
    parser.add_argument("--dram", type=parse_percent, metavar="PERCENT")
    parser.add_argument("--rate", type=_parse_positive, default=10.0, metavar="STEPS_PER_S")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_parse_positive, metavar="N")
    length.add_argument("--seconds", type=_parse_positive, metavar="S")
    parser.add_argument("--report", action="store_true", help="print `step N rate R`")
    parser.add_argument("--fault", type=parse_fault, metavar="KIND[@SECONDS]")
    given = parser.parse_args(argv)
    steps = given.steps or (math.inf if given.seconds else 100.0)
    return TrainingJob(
        gpu_memory_mb=given.gpu_memory,
        block_mb=max(1, given.block),
        sm_demand=given.sm,
        dram_demand=given.sm / 3 if given.dram is None else given.dram,
        steps_per_s=given.rate,
        steps=steps,
        seconds=given.seconds or math.inf,
        report=given.report,
        fault=given.fault,
    )


def _parse_positive(text: str, low: float = 1e-6) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (low <= value < math.inf):
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return value


# -- the run ---------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Run one program; its exit status is PyTorch's: 1 after any CUDA error."""
    job = parse_job(argv)
    try:
        return _run(job)
    except (CudaError, OutOfGpuMemory) as error:
        sys.stderr.write(render_failure(error))
        return 1
    except CollocError as problem:
        sys.stderr.write(f"simgpu: error: {problem}\n")
        return problem.exit_code


def _run(job: TrainingJob) -> int:
    # Imported here: `simgpu run --help` and wrong command lines need no sockets.
    from slurm_colloc.simgpu.mps.client_process import attach

    pid = os.getpid()
    node = open_node(os.environ)
    attachment: MpsAttachment | None = attach(os.environ, pid)
    try:
        process = SimulatedProcess(
            pid=pid,
            starttime=read_starttime(pid) or 0,
            uid=os.geteuid(),
            gpus=(),
            gpu_memory_mb=0,
            type="M+C" if attachment else "C",
            mps_server=attachment.server_pid if attachment else None,
            started_s=time.time(),
            thread_percentage=attachment.thread_percentage if attachment else 100.0,
            sm_demand=job.sm_demand,
        )
        if attachment is not None:
            uuids = attachment.gpus
            limit_mb = attachment.gpu_memory_limit_mb(uuids[0]) if uuids else None
        else:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            chosen = choose_cuda_devices(visible, list_cuda_devices(node))
            uuids = tuple(device.uuid for device in chosen)
            limit_mb = None
        context = open_context(node, process, uuids, limit_mb)
        try:
            context.allocate(job.gpu_memory_mb, job.block_mb)
            return _work(job, context, attachment)
        finally:
            context.close()
    finally:
        if attachment is not None:
            attachment.close()


def _work(job: TrainingJob, context: Context, attachment: MpsAttachment | None) -> int:
    start = last = time.monotonic()
    reported = 0
    resumed_at = [start]
    # The time in which it was stopped is no work.
    signal.signal(signal.SIGCONT, lambda *_: resumed_at.append(time.monotonic()))
    while True:
        now = time.monotonic()
        last = max(last, resumed_at.pop() if len(resumed_at) > 1 else last)
        duration_s = min(now - last, _LONGEST_TICK_S)
        last = now
        rate = _account(job, context, duration_s)
        work = context.process.work
        if job.report and int(work) > reported:
            reported = int(min(work, job.steps))
            sys.stdout.write(f"step {reported} rate {rate:.3f}\n")
            sys.stdout.flush()
        if attachment is not None and (error := attachment.poll()) is not None:
            raise error
        if work >= job.steps or now - start >= job.seconds:
            return 0
        if job.fault and now - start >= job.fault.after_s:
            return _fail(job.fault, context, attachment)
        pauses = [_TICK_S, job.seconds - (now - start), (job.steps - work) / max(rate, 1e-3)]
        if job.fault:
            pauses.append(job.fault.after_s - (now - start))
        time.sleep(max(0.001, min(pauses)))


def _account(job: TrainingJob, context: Context, duration_s: float) -> float:
    """Add what the last moments brought, look who is there now, and tell; steps per second."""
    process, device = context.process, context.device
    gpu = device.gpu
    # What is stopped launches nothing: its neighbours run as if it were not there (measured on an
    # H100 under MPS and by time slices, docs/benchmarks.md).
    working = [other for other in context.read_neighbours() if not is_stopped(other)]
    loads = [
        ProcessLoad(job.sm_demand, job.dram_demand, process.thread_percentage, process.mps_server)
    ]
    loads += [
        ProcessLoad(other.sm_demand, 0.0, other.thread_percentage, other.mps_server)
        for other in working
        if device.runs(other)
    ]
    use = compute_use(
        loads,
        0,
        idle_power_w=gpu.idle_power_mw / 1000,
        power_limit_w=gpu.power_limit_mw / 1000,
        part=GpuPart(device.sm_part, device.dram_part),
        busy_elsewhere=sum(other.sm_demand > 0 for other in working if not device.runs(other)),
    )
    # Tensor pipes and occupancy in proportion: there is no measurement of them.
    tensor, occupancy = use.sm_share / 5, use.sm_share / 2
    rate = job.steps_per_s * use.rate
    context.update(
        sm_share=use.sm_share,
        dram_share=use.dram_share,
        tensor_share=tensor,
        occupancy_share=occupancy,
        duty=use.duty,
        power_mw=1000 * use.power_w,
        duty_sum=process.duty_sum + process.duty * duration_s,
        sm_sum=process.sm_sum + process.sm_share * duration_s,
        dram_sum=process.dram_sum + process.dram_share * duration_s,
        tensor_sum=process.tensor_sum + process.tensor_share * duration_s,
        occupancy_sum=process.occupancy_sum + process.occupancy_share * duration_s,
        energy_mj=process.energy_mj + process.power_mw * duration_s,
        work=process.work + rate * duration_s,
    )
    return rate


def _fail(fault: TrainingFault, context: Context, attachment: MpsAttachment | None) -> int:
    if fault.kind in ("illegal-address", "device-assert"):
        if attachment is not None:
            raise attachment.fault(fault.kind)
        raise CudaError(ILLEGAL_ADDRESS if fault.kind == "illegal-address" else ASSERT)
    if fault.kind == "out-of-gpu-memory":
        context.allocate(2 * context.device.gpu.gpu_memory_mb, 1024)
    if fault.kind in ("segfault", "sigkill-itself"):
        # What is meant to die should not fill a disk.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = signal.SIGSEGV if fault.kind == "segfault" else signal.SIGKILL
        if number is signal.SIGSEGV:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # noqa: TID251 - its own
    if fault.kind == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            context.update(sm_share=0.0, dram_share=0.0, tensor_share=0.0, occupancy_share=0.0)
            time.sleep(_TICK_S)
    return fault.status
