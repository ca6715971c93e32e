"""Programs on the MIG devices of simulated GPUs, and what NVML says of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_colloc_lab.simgpu.gpu_models import H100_80, H200
from slurm_colloc_lab.simgpu.training.cuda_devices import choose_cuda_devices, list_cuda_devices
from slurm_colloc_lab.simgpu.training.shared_speed import GpuPart, ProcessLoad, compute_use

from ..wait_until import wait_until
from .conftest import Simulation, running_simulation
from .test_mig_instances import HELPERS

MIB = 1024 * 1024
IN_USE, NOT_SUPPORTED = 19, 3

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes instances")


@pytest.fixture
def cut() -> Iterator[tuple[Simulation, list[str]]]:
    """An H100 cut into 3g, 2g and 1g, a whole H200 behind it; the MIG devices."""
    with running_simulation("sgp", {"n1": [H100_80, H200]}) as made:
        made.run("mig", "on", made.uuids[0])
        uuids = ask(
            made,
            """
parts = [fill(make(9, 4, 4)), fill(make(14, 2, 2)), fill(make(19, 0, 1))]
answer = [n.nvmlDeviceGetUUID(device_of(part)) for part in parts]
""",
        )
        yield made, uuids


def ask(simulation: Simulation, code: str, **options: Any) -> Any:
    return simulation.ask(f"{HELPERS}\n{code}", **options)


def on(uuid: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": uuid}


def test_a_program_has_the_memory_of_its_instance(cut: tuple[Simulation, list[str]]) -> None:
    simulation, uuids = cut
    assert (
        simulation.run("run", "--gpu-memory", "8G", "--steps", "1", extra=on(uuids[2])).returncode
        == 0
    )
    ended = simulation.run("run", "--gpu-memory", "10G", "--steps", "1", extra=on(uuids[2]))
    assert ended.returncode == 1
    assert "GPU 0 has a total capacity of 9.75 GiB of which" in ended.stderr


def test_neighbours_in_other_instances_take_nothing(cut: tuple[Simulation, list[str]]) -> None:
    simulation, uuids = cut
    simulation.start("--gpu-memory", "30G", "--sm", "90", "--seconds", "60", extra=on(uuids[0]))
    simulation.start("--gpu-memory", "15G", "--sm", "20", "--seconds", "60", extra=on(uuids[1]))
    rates = [one.sm_share for one in simulation.node.read_processes()]
    # 60 of 132 multiprocessors at most, and 20 % that fit into 32 of them.
    wait_until(
        lambda: (
            [
                round(one.sm_share, 1)
                for one in sorted(simulation.node.read_processes(), key=lambda one: -one.sm_share)
            ]
            == [45.5, 20.0]
        ),
        f"each has its own part, not {rates}",
    )


def test_nvml_lists_a_process_with_its_instance(cut: tuple[Simulation, list[str]]) -> None:
    simulation, uuids = cut
    first = simulation.start("--gpu-memory", "4G", "--seconds", "60", extra=on(uuids[0]))
    second = simulation.start("--gpu-memory", "2G", "--seconds", "60", extra=on(uuids[2]))
    whole = simulation.start("--seconds", "60", extra=on(simulation.uuids[1]))
    answer = ask(
        simulation,
        f"""
def listed(handle):
    return [[p.pid, p.gpuInstanceId, p.computeInstanceId, p.usedGpuMemory >> 20]
            for p in n.nvmlDeviceGetComputeRunningProcesses(handle)]
def used(handle):
    return n.nvmlDeviceGetMemoryInfo(handle).used >> 20
handles = [n.nvmlDeviceGetHandleByUUID(uuid) for uuid in {uuids!r}]
answer = [[listed(handle) for handle in handles], [used(handle) for handle in handles],
          sorted(listed(h)), used(h), [p.gpuInstanceId for p in
          n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(1))]]
""",
    )
    one, other = [first.pid, 1, 0, 4608], [second.pid, 11, 0, 2560]
    reserved = 472
    assert answer == [
        [[one], [], [other]],
        [4608, 0, 2560],
        sorted([one, other]),
        4608 + 2560 + reserved,
        # pynvml shows what means none as it is.
        [0xFFFFFFFF],
    ]
    assert whole.poll() is None


def test_what_is_in_use_is_not_destroyed_until_it_has_ended(
    cut: tuple[Simulation, list[str]],
) -> None:
    simulation, uuids = cut
    process = simulation.start("--seconds", "60", extra=on(uuids[0]))
    take = """
one = n.nvmlDeviceGetGpuInstanceById(h, 1)
part = n.nvmlGpuInstanceGetComputeInstanceById(one, 0)
answer = [code(n.nvmlComputeInstanceDestroy, part), code(n.nvmlGpuInstanceDestroy, one)]
"""
    assert ask(simulation, take) == [IN_USE, IN_USE]
    # Another instance can be changed meanwhile.
    other = take.replace("(h, 1)", "(h, 6)")
    assert ask(simulation, other) == [0, 0]
    process.kill()
    process.wait()
    assert ask(simulation, take) == [0, 0]


def test_gpm_and_the_names_that_mig_takes_away(cut: tuple[Simulation, list[str]]) -> None:
    simulation, uuids = cut
    simulation.start("--sm", "90", "--dram", "20", "--seconds", "60", extra=on(uuids[0]))
    answer = ask(
        simulation,
        f"""
d = n.nvmlDeviceGetHandleByUUID({uuids[0]!r})
def measure(instance):
    samples = [n.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        n.nvmlGpmMigSampleGet(h, instance, sample)
        time.sleep(0.5)
    wanted = n.c_nvmlGpmMetricsGet_t()
    wanted.version, wanted.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, 2
    wanted.sample1, wanted.sample2 = samples
    wanted.metrics[0].metricId, wanted.metrics[1].metricId = 2, 10
    n.nvmlGpmMetricsGet(wanted)
    return [wanted.metrics[0].value, wanted.metrics[1].value]
measure(1)
answer = [measure(1), measure(11), code(n.nvmlDeviceGetPowerUsage, d),
          code(n.nvmlDeviceGetTotalEnergyConsumption, d), code(n.nvmlDeviceGetUtilizationRates, d),
          code(n.nvmlDeviceGetUtilizationRates, h), code(n.nvmlDeviceGetPowerUsage, h)]
""",
    )
    (sm, dram), idle, *codes = answer
    assert sm == pytest.approx(100.0, abs=5.0)
    # Half of the bandwidth is its own, and it runs at half the speed that it asks 20 % for.
    assert dram == pytest.approx(20.0 * (60 / 132) / 0.9 * 2, abs=3.0)
    assert idle == [0.0, 0.0]
    assert codes == [NOT_SUPPORTED] * 4 + [0]


def test_what_ended_on_an_instance_counts_for_its_gpm(cut: tuple[Simulation, list[str]]) -> None:
    simulation, uuids = cut
    simulation.run("run", "--sm", "40", "--seconds", "0.6", extra=on(uuids[0]))
    simulation.run("status")
    totals = simulation.node.read_totals()
    gpu = simulation.uuids[0]
    assert totals[f"{gpu}/1"]["sm_sum"] == totals[gpu]["sm_sum"] > 0


def test_compute_instances_of_one_gpu_instance_share_its_memory(
    cut: tuple[Simulation, list[str]],
) -> None:
    simulation, _ = cut
    uuids = ask(
        simulation,
        """
for k in (1, 6, 11):
    one = n.nvmlDeviceGetGpuInstanceById(h, k)
    n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(one, 0))
    n.nvmlGpuInstanceDestroy(one)
one = make(9, 4, 4)
answer = [n.nvmlDeviceGetUUID(device_of(fill(one, 0))) for _ in range(2)]
""",
    )
    simulation.start("--gpu-memory", "30G", "--sm", "80", "--seconds", "60", extra=on(uuids[0]))
    ended = simulation.run("run", "--gpu-memory", "20G", "--steps", "1", extra=on(uuids[1]))
    assert "torch.OutOfMemoryError" in ended.stderr
    ended = simulation.run(
        "run", "--gpu-memory", "4G", "--sm", "10", "--steps", "3", "--report", extra=on(uuids[1])
    )
    assert ended.stdout.splitlines()[-1] == "step 3 rate 10.000"


def test_the_clients_of_a_daemon_inside_an_instance_share_it(
    cut: tuple[Simulation, list[str]],
) -> None:
    simulation, uuids = cut
    directory = simulation.directory.parent
    extra = {
        **on(uuids[0]),
        "CUDA_MPS_PIPE_DIRECTORY": str(directory / "p"),
        "CUDA_MPS_LOG_DIRECTORY": str(directory / "l"),
    }
    control = str(simulation.directory / "bin" / "nvidia-cuda-mps-control")
    subprocess.run([control, "-d"], env=simulation.environment(extra), check=True, timeout=60)
    try:
        clients = [simulation.start("--sm", "20", "--seconds", "60", extra=extra) for _ in range(2)]
        answer = ask(
            simulation,
            f"""
d = n.nvmlDeviceGetHandleByUUID({uuids[0]!r})
answer = [[[p.pid, p.gpuInstanceId] for p in n.nvmlDeviceGetMPSComputeRunningProcesses(d)],
          len(n.nvmlDeviceGetComputeRunningProcesses(d))]
""",
        )
        assert answer == [sorted([client.pid, 1] for client in clients), 3]
    finally:
        for process in simulation.started:
            process.kill()
            process.wait()
        subprocess.run(
            [control],
            env=simulation.environment(extra),
            input="quit\n",
            text=True,
            timeout=60,
            check=False,
        )


# What CUDA shows


def test_cuda_shows_one_mig_device(cut: tuple[Simulation, list[str]]) -> None:
    simulation, uuids = cut
    devices = list_cuda_devices(simulation.node)
    gpu, whole = simulation.uuids
    assert [device.uuid for device in devices] == [*uuids, whole]

    def see(value: str | None) -> list[str]:
        return [device.uuid for device in choose_cuda_devices(value, devices)]

    assert see(None) == [uuids[0]]
    assert see("1") == [uuids[1]]
    assert see(uuids[2]) == [uuids[2]]
    assert see(uuids[2].lower()) == [uuids[2]]
    assert see(f"{uuids[1]},{uuids[2]}") == [uuids[1]]
    assert see(f"MIG-{gpu}/6/0") == [uuids[1]]
    assert see(gpu) == [uuids[0]]
    assert see(whole) == [whole]
    assert see(f"{whole},{uuids[0]}") == [whole]
    assert see("MIG-00000000-0000-0000-0000-000000000000") == []


def test_a_partitioned_gpu_without_compute_instances_is_no_device() -> None:
    with running_simulation("sgq", {"n1": [H100_80]}, mig=True) as simulation:
        ended = simulation.run("run", "--steps", "1")
        assert "No CUDA GPUs are available" in ended.stderr
        ask(simulation, "make(9, 4, 4); answer = 0")
        ended = simulation.run("run", "--steps", "1", extra=on(simulation.uuids[0]))
        assert "No CUDA GPUs are available" in ended.stderr


# Speed, pure


@pytest.mark.parametrize(
    ("demand", "part", "rate"),
    [
        (20.0, GpuPart(0.5, 0.5), 1.0),
        (80.0, GpuPart(0.5, 1.0), 0.625),
        (80.0, GpuPart(0.5, 0.125), 0.46875),  # the bandwidth binds: 26.7 % of 12.5 %
        (100.0, GpuPart(1.0, 1.0), 1.0),
    ],
)
def test_a_part_is_a_ceiling(demand: float, part: GpuPart, rate: float) -> None:
    load = ProcessLoad(demand, demand / 3)
    use = compute_use([load], 0, idle_power_w=70, power_limit_w=700, part=part)
    assert use.rate == pytest.approx(rate)


def test_those_who_share_a_part_share_it_as_a_gpu() -> None:
    half = GpuPart(0.5, 1.0)
    alone = compute_use(
        [ProcessLoad(40.0), ProcessLoad(40.0)], 0, idle_power_w=70, power_limit_w=700
    )
    on_half = compute_use(
        [ProcessLoad(20.0), ProcessLoad(20.0)], 0, idle_power_w=70, power_limit_w=700, part=half
    )
    assert on_half.rate == pytest.approx(alone.rate)
    assert on_half.sm_share == pytest.approx(alone.sm_share / 2)
