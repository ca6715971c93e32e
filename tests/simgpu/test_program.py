"""`simgpu run`: a process that behaves as a training on a GPU does."""

from __future__ import annotations

import dataclasses
import os
import signal

import pytest

from slurm_colloc_lab.simgpu.nvml.gpu_records import COMPUTE_MODES
from slurm_colloc_lab.simgpu.training.cuda_devices import choose_devices

from ..wait_until import wait_until
from .conftest import Simulation

TOTAL_MB, RESERVED_MB, CONTEXT_MB = 143771, 616, 512


def set_mode(simulation: Simulation, mode: str) -> None:
    gpu = simulation.node.read_gpus()[0]
    simulation.node.write_gpu(dataclasses.replace(gpu, compute_mode=COMPUTE_MODES[mode]))


def test_it_works_reports_and_leaves_nothing(simulation: Simulation) -> None:
    before = simulation.snapshot()
    ended = simulation.run("run", "--steps", "20", "--rate", "100", "--report")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "step 20 rate 100.000"
    assert simulation.snapshot() == before
    assert not list((simulation.node.directory / "processes").iterdir())
    assert simulation.node.read_totals()[simulation.uuids[0]]["work"] >= 20


def test_two_that_need_more_than_there_is_slow_each_other(simulation: Simulation) -> None:
    simulation.start("--sm", "100", "--seconds", "60")
    second = simulation.start("--sm", "100", "--seconds", "60")
    shares = wait_until(
        lambda: [one.sm_share for one in simulation.node.read_processes() if one.sm_share == 50.0],
        "each has half of the GPU",
    )
    assert shares
    second.kill()
    second.wait()
    wait_until(
        lambda: [one.sm_share for one in simulation.node.read_processes()] == [100.0],
        "the first one has all of it again",
    )


@pytest.mark.parametrize(
    ("fault", "status", "last"),
    [
        (
            "illegal-address",
            1,
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        ),
        ("device-assert", 1, "torch.AcceleratorError: CUDA error: device-side assert triggered"),
        ("out-of-gpu-memory", 1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        ("segfault", -signal.SIGSEGV, ""),
        ("sigkill-itself", -signal.SIGKILL, ""),
        ("exit=7", 7, ""),
        ("exit=0", 0, ""),
    ],
)
def test_it_fails_as_asked_and_alone(
    simulation: Simulation, fault: str, status: int, last: str
) -> None:
    neighbour = simulation.start("--seconds", "60")
    ended = simulation.run("run", "--seconds", "60", "--fault", f"{fault}@0.1")
    assert ended.returncode == status
    assert last in ended.stderr
    assert bool(last) == bool(ended.stderr)
    assert simulation.pids == [neighbour.pid]
    assert neighbour.poll() is None
    # What a killed one left is taken away by the next that gets a context.
    assert simulation.run("run", "--steps", "1").returncode == 0
    names = [entry.name for entry in (simulation.node.directory / "processes").iterdir()]
    assert [name for name in names if not name.startswith(".")] == [str(neighbour.pid)]


def test_one_that_hangs_ignores_sigterm_and_keeps_its_memory(simulation: Simulation) -> None:
    process = simulation.start("--fault", "hang", "--seconds", "60")
    wait_until(
        lambda: [one.sm_share for one in simulation.node.read_processes()] == [0.0], "it hangs"
    )
    process.send_signal(signal.SIGTERM)
    seen = simulation.node.read_processes()[0].updated_s
    wait_until(lambda: simulation.node.read_processes()[0].updated_s > seen, "it goes on")
    assert simulation.node.read_processes()[0].gpu_memory_mb == 1024 + CONTEXT_MB
    process.kill()
    process.wait()
    assert simulation.pids == []


def test_sigterm_ends_it(simulation: Simulation) -> None:
    process = simulation.start("--seconds", "60")
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM
    assert simulation.pids == []


def test_several_gpus_are_used_alike_at_the_pace_of_the_slowest(
    simulation: Simulation,
) -> None:
    # An H200 and an A100 with 40 GB: the memory of the smaller one is what there is.
    simulation.start("--sm", "100", "--seconds", "60", extra={"CUDA_VISIBLE_DEVICES": "1"})
    both = simulation.start(
        *("--gpus", "2", "--sm", "100", "--gpu-memory", "8G", "--seconds", "60"),
        *("--nvlink", "1000"),
    )
    wait_until(
        lambda: (
            [
                (one.gpus, one.gpu_memory_mb, one.sm_share, one.nvlink_mib_s)
                for one in simulation.node.read_processes()
                if one.pid == both.pid
            ]
            == [(tuple(simulation.uuids), 8192 + CONTEXT_MB, 50.0, 500.0)]
        ),
        "it holds as much on each GPU, and is as fast as its slowest",
    )
    seen = simulation.ask(
        "answer = [pids(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(i)))"
        " for i in (0, 1)]"
    )
    assert seen[0] == [both.pid]
    assert both.pid in seen[1]
    over = simulation.run("run", "--gpus", "2", "--gpu-memory", "39G", "--steps", "1")
    assert over.returncode == 1
    assert "CUDA out of memory" in over.stderr
    few = simulation.run("run", "--gpus", "3", "--steps", "1")
    assert few.stderr.splitlines()[-1] == "RuntimeError: No CUDA GPUs are available"


def test_what_it_sends_over_nvlink_is_counted_by_gpm(simulation: Simulation) -> None:
    ask = """
h = n.nvmlDeviceGetHandleByIndex(0)
samples = [n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()]
n.nvmlGpmSampleGet(h, samples[0])
time.sleep(1)
n.nvmlGpmSampleGet(h, samples[1])
want = n.c_nvmlGpmMetricsGet_t()
want.version, want.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, 2
want.sample1, want.sample2 = samples
want.metrics[0].metricId, want.metrics[1].metricId = 60, 61
n.nvmlGpmMetricsGet(want)
answer = [[want.metrics[i].nvmlReturn, want.metrics[i].value] for i in (0, 1)]
"""
    assert simulation.ask(ask) == [[0, 0.0], [0, 0.0]]
    simulation.start("--gpus", "2", "--seconds", "60", "--nvlink", "1000")
    (_, received), (_, sent) = simulation.ask(ask)
    assert received == sent == pytest.approx(1000.0, rel=0.3)


def test_a_gpu_that_falls_off_the_bus_ends_its_programs_alone(simulation: Simulation) -> None:
    other = simulation.start("--seconds", "60", extra={"CUDA_VISIBLE_DEVICES": "1"})
    lost = simulation.start("--seconds", "60")
    assert simulation.run("faults", f"fallen={simulation.uuids[0]}").returncode == 0
    assert lost.wait(60) == 1
    assert lost.stderr is not None
    assert "torch.AcceleratorError: CUDA error: unknown error" in lost.stderr.read()
    assert simulation.run("run", "--steps", "1").returncode == 1
    seen = simulation.ask("answer = [code(n.nvmlDeviceGetHandleByIndex, i) for i in (0, 1)]")
    assert seen == [15, 0]
    assert other.poll() is None
    simulation.run("faults")


# gpu_memory


def test_all_of_the_gpu_can_be_had_but_no_more(simulation: Simulation) -> None:
    room_mb = TOTAL_MB - RESERVED_MB - CONTEXT_MB
    assert simulation.run("run", "--gpu-memory", f"{room_mb}M", "--steps", "1").returncode == 0
    ended = simulation.run("run", "--gpu-memory", f"{room_mb + 1}M", "--block", "1M")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback (most recent call last):\n")
    assert ended.stderr.splitlines()[-1] == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 MiB. GPU 0 has a total "
        "capacity of 139.80 GiB of which 0 bytes is free. Including non-PyTorch memory, this "
        "process has 139.80 GiB memory in use. Of the allocated memory 139.30 GiB is allocated by "
        "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/"
        "stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def test_what_a_neighbour_holds_is_not_there(simulation: Simulation) -> None:
    neighbour = simulation.start("--gpu-memory", "130G", "--seconds", "60")
    refused = simulation.run("run", "--gpu-memory", "10G")
    assert refused.returncode == 1
    assert f" Process {neighbour.pid} has 130.50 GiB memory in use. Incl" in refused.stderr
    assert simulation.run("run", "--gpu-memory", "2G", "--steps", "1").returncode == 0
    neighbour.kill()
    neighbour.wait()
    assert simulation.run("run", "--gpu-memory", "10G", "--steps", "1").returncode == 0


def test_a_context_that_does_not_fit_is_refused(simulation: Simulation) -> None:
    room_mb = TOTAL_MB - RESERVED_MB - CONTEXT_MB
    simulation.start("--gpu-memory", f"{room_mb}M", "--seconds", "60")
    ended = simulation.run("run")
    assert ended.returncode == 1
    assert "torch.AcceleratorError: CUDA error: out of memory" in ended.stderr


def test_many_at_once_never_take_more_than_there_is(simulation: Simulation) -> None:
    started = [
        simulation.start("--gpu-memory", "30G", "--seconds", "60", ready=False) for _ in range(8)
    ]
    wait_until(
        lambda: (
            sum(one.updated_s > 0 for one in simulation.node.read_processes())
            + sum(process.poll() is not None for process in started)
            == len(started)
        ),
        "all have or have not",
    )
    held_mb = sum(one.gpu_memory_mb for one in simulation.node.read_processes())
    assert held_mb <= TOTAL_MB - RESERVED_MB
    assert len(simulation.pids) == 4
    assert [process.poll() for process in started].count(1) == 4


# which GPU


def test_it_uses_the_gpu_that_it_is_given(simulation: Simulation) -> None:
    first, second = simulation.uuids
    for value, gpu in (("0", first), ("1", second), (second, second), (second[:12], second)):
        process = simulation.start("--seconds", "60", extra={"CUDA_VISIBLE_DEVICES": value})
        assert simulation.snapshot()["n1"][gpu]["processes"] == [process.pid]
        process.kill()
        process.wait()


@pytest.mark.parametrize("value", ["", "-1", "2", "GPU-no", "NoDevFiles", "0,0"])
def test_without_a_gpu_it_says_so_as_pytorch_does(simulation: Simulation, value: str) -> None:
    ended = simulation.run("run", extra={"CUDA_VISIBLE_DEVICES": value})
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "RuntimeError: No CUDA GPUs are available"


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (None, ("GPU-a1", "GPU-b2", "GPU-b3")),
        ("2,0", ("GPU-b3", "GPU-a1")),
        ("0,7,1", ("GPU-a1",)),
        ("gpu-B2", ("GPU-b2",)),
        ("GPU-b", ()),
        ("", ()),
        ("1,GPU-b2", ()),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    value: str | None, chosen: tuple[str, ...]
) -> None:
    assert choose_devices(value, ("GPU-a1", "GPU-b2", "GPU-b3")) == chosen


# compute mode


def test_an_exclusive_gpu_takes_one_process(simulation: Simulation) -> None:
    set_mode(simulation, "exclusive_process")
    first = simulation.start("--seconds", "60")
    ended = simulation.run("run")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[1] == (
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    )
    assert simulation.pids == [first.pid]
    other = {"CUDA_VISIBLE_DEVICES": "1"}
    assert simulation.run("run", "--steps", "1", extra=other).returncode == 0
    first.kill()
    first.wait()
    assert simulation.run("run", "--steps", "1").returncode == 0


def test_of_many_at_once_an_exclusive_gpu_takes_one(simulation: Simulation) -> None:
    set_mode(simulation, "exclusive_process")
    started = [simulation.start("--seconds", "60", ready=False) for _ in range(6)]
    wait_until(
        lambda: sum(process.poll() is not None for process in started) == 5, "five are refused"
    )
    assert len(simulation.pids) == 1


def test_a_prohibited_gpu_takes_none(simulation: Simulation) -> None:
    set_mode(simulation, "prohibited")
    assert "busy or unavailable" in simulation.run("run").stderr
    set_mode(simulation, "default")
    assert simulation.run("run", "--steps", "1").returncode == 0


# the command line


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpu-memory", "much"),
        ("--sm", "101"),
        ("--sm", "nan"),
        ("--rate", "0"),
        ("--steps", "1", "--seconds", "1"),
        ("--fault", "sleep"),
        ("--fault", "exit"),
        ("--fault", "exit=256"),
        ("--fault", "segfault=1"),
        ("--fault", "hang@-1"),
    ],
)
def test_a_wrong_command_line_is_refused(
    simulation: Simulation, arguments: tuple[str, ...]
) -> None:
    ended = simulation.run("run", *arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert simulation.pids == []


def test_an_unknown_command_is_refused(simulation: Simulation) -> None:
    ended = simulation.run("walk")
    assert (ended.returncode, ended.stderr) == (
        2,
        "simgpu: error: simgpu has no command 'walk': see simgpu --help\n",
    )
    assert simulation.run("--help").stdout.startswith("usage: simgpu run")


def test_without_a_simulation_it_says_what_to_do(simulation: Simulation) -> None:
    ended = simulation.run("run", extra={"SIMGPU_ROOT": "/nowhere"})
    assert ended.returncode == 7
    assert ended.stderr == (
        "simgpu: error: SIMGPU_ROOT='/nowhere' is not a simulation of GPUs: make one with "
        "'csub sandbox up --fake-gpus' and use 'csub sandbox env'\n"
    )


def test_status_tells_gpus_and_processes(simulation: Simulation) -> None:
    process = simulation.start("--seconds", "60", "--sm", "25")
    lines = simulation.run("status").stdout.splitlines()
    assert lines[0] == (
        f"n1:0  {simulation.uuids[0]}  NVIDIA H200  default  {1024 + CONTEXT_MB} of {TOTAL_MB} MiB"
    )
    assert lines[1].split() == (
        f"pid {process.pid} uid {os.geteuid()} C {1024 + CONTEXT_MB} MiB SM 25.0 %".split()
    )
    assert lines[-1].startswith("n2:0  GPU-")
