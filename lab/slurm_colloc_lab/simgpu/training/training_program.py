"""`simgpu run`: a process that uses a simulated GPU as a PyTorch training uses a real one."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from slurm_colloc.errors import CollocError
from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedProcess
from slurm_colloc_lab.simgpu.nvml.gpu_state import is_stopped, open_node, read_starttime
from slurm_colloc_lab.simgpu.training.checkpoint import CheckpointThread
from slurm_colloc_lab.simgpu.training.cuda_context import (
    Context,
    OutOfGpuMemory,
    open_context,
)
from slurm_colloc_lab.simgpu.training.cuda_devices import (
    CudaDevice,
    choose_cuda_devices,
    list_cuda_devices,
)
from slurm_colloc_lab.simgpu.training.cuda_errors import ASSERT, ILLEGAL_ADDRESS, UNKNOWN, CudaError
from slurm_colloc_lab.simgpu.training.failure_output import render_failure
from slurm_colloc_lab.simgpu.training.shared_speed import (
    GpuPart,
    ProcessLoad,
    ProcessUse,
    compute_use,
)
from slurm_colloc_lab.simgpu.training.training_job import TrainingFault, TrainingJob, parse_job

_TICK_S = 0.1
# After a longer silence the process was stopped; that time does not count as work.
_LONGEST_TICK_S = 1.0


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
    from slurm_colloc_lab.simgpu.mps.client_process import attach

    pid = os.getpid()
    node = open_node(os.environ)
    attachment: MpsAttachment | None = attach(os.environ, pid, contexts=job.gpus)
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
            limits_mb = [attachment.gpu_memory_limit_mb(uuid) for uuid in uuids]
        else:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            chosen = choose_cuda_devices(visible, list_cuda_devices(node))
            uuids = tuple(device.uuid for device in chosen)
            limits_mb = [None] * len(uuids)
        context = open_context(node, process, uuids, limits_mb, job.gpus)
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
    checkpoint = CheckpointThread(context)
    while True:
        if checkpoint.work():
            last = time.monotonic()
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
        if not context.node.read_fallen().isdisjoint(context.process.gpus):
            raise CudaError(UNKNOWN)
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
    process = context.process
    # A step ends when its slowest GPU has done its part.
    pace = min(context.node.read_pace(device.gpu.uuid) for device in context.devices)
    use = min(
        (_compute_use(job, context, device) for device in context.devices),
        key=lambda one: one.rate,
    )
    # Tensor pipes and occupancy in proportion: there is no measurement of them.
    tensor, occupancy = use.sm_share / 5, use.sm_share / 2
    rate = job.steps_per_s * use.rate * pace
    nvlink_mib_s = job.nvlink_mib_s * use.rate if len(context.devices) > 1 else 0.0
    context.update(
        sm_share=use.sm_share,
        dram_share=use.dram_share,
        tensor_share=tensor,
        occupancy_share=occupancy,
        duty=use.duty,
        nvlink_mib_s=nvlink_mib_s,
        power_mw=1000 * use.power_w,
        duty_sum=process.duty_sum + process.duty * duration_s,
        sm_sum=process.sm_sum + process.sm_share * duration_s,
        dram_sum=process.dram_sum + process.dram_share * duration_s,
        tensor_sum=process.tensor_sum + process.tensor_share * duration_s,
        occupancy_sum=process.occupancy_sum + process.occupancy_share * duration_s,
        nvlink_mib=process.nvlink_mib + process.nvlink_mib_s * duration_s,
        energy_mj=process.energy_mj + process.power_mw * duration_s,
        work=process.work + rate * duration_s,
    )
    return rate


def _compute_use(job: TrainingJob, context: Context, device: CudaDevice) -> ProcessUse:
    """What the process gets and uses of one of its devices now."""
    process, gpu = context.process, device.gpu
    # What is stopped launches nothing: its neighbours run as if it were not there (measured on an
    # H100 under MPS and by time slices, docs/decisions/0029).
    working = [other for other in context.read_neighbours(device) if not is_stopped(other)]
    loads = [
        ProcessLoad(job.sm_demand, job.dram_demand, process.thread_percentage, process.mps_server)
    ]
    loads += [
        ProcessLoad(other.sm_demand, 0.0, other.thread_percentage, other.mps_server)
        for other in working
        if device.runs(other)
    ]
    return compute_use(
        loads,
        0,
        idle_power_w=gpu.idle_power_mw / 1000,
        power_limit_w=gpu.default_power_limit_mw / 1000,
        limited_to_w=gpu.power_limit_mw / 1000,
        part=GpuPart(device.sm_part, device.dram_part),
        busy_elsewhere=sum(other.sm_demand > 0 for other in working if not device.runs(other)),
    )


def _fail(fault: TrainingFault, context: Context, attachment: MpsAttachment | None) -> int:
    if fault.kind in ("illegal-address", "device-assert"):
        if attachment is not None:
            raise attachment.fault(fault.kind)
        raise CudaError(ILLEGAL_ADDRESS if fault.kind == "illegal-address" else ASSERT)
    if fault.kind == "out-of-gpu-memory":
        context.allocate(2 * context.devices[0].gpu.gpu_memory_mb, 1024)
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
