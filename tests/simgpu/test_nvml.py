"""NVIDIA's own Python binding on the simulated library."""

from __future__ import annotations

import pytest

from slurm_colloc_lab.simgpu.install import DRIVER_VERSION

from ..wait_until import wait_until
from .conftest import Simulation

MIB = 1024 * 1024
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6


def test_versions_are_those_of_the_driver_that_was_measured(simulation: Simulation) -> None:
    answer = simulation.ask(
        "answer = [n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion(),"
        " n.nvmlSystemGetCudaDriverVersion_v2(), n.nvmlSystemGetNVMLVersion()]"
    )
    assert answer == [DRIVER_VERSION, 13000, 13000, f"13.{DRIVER_VERSION}"]


def test_a_gpu_is_found_by_index_uuid_and_pci_address(simulation: Simulation) -> None:
    answer = simulation.ask(
        """
found = []
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    uuid, pci = n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetPciInfo(h)
    again = [n.nvmlDeviceGetHandleByUUID(uuid), n.nvmlDeviceGetHandleByUUID(uuid.upper()),
             n.nvmlDeviceGetHandleByPciBusId(pci.busId),
             n.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy)]
    assert all(n.nvmlDeviceGetIndex(other) == index for other in again)
    found.append([uuid, n.nvmlDeviceGetName(h), n.nvmlDeviceGetMinorNumber(h), pci.bus])
answer = [found, code(n.nvmlDeviceGetHandleByIndex, 2),
          code(n.nvmlDeviceGetHandleByUUID, "GPU-0"),
          code(n.nvmlDeviceGetHandleByPciBusId, "0000:FF:00.0")]
"""
    )
    uuids = simulation.uuids
    assert answer == [
        [
            [uuids[0], "NVIDIA H200", 0, 0x10],
            [uuids[1], "NVIDIA A100-SXM4-40GB", 1, 0x13],
        ],
        INVALID_ARGUMENT,
        NOT_FOUND,
        NOT_FOUND,
    ]


def test_the_node_is_slurm_s(simulation: Simulation) -> None:
    count = "answer = n.nvmlDeviceGetCount()"
    assert simulation.ask(count) == 2
    assert simulation.ask(count, extra={"SLURMD_NODENAME": "n2"}) == 1
    assert simulation.ask(count, extra={"SLURMD_NODENAME": "elsewhere"}) == 2


def test_the_library_finds_its_simulation_without_the_variable(simulation: Simulation) -> None:
    assert simulation.ask("answer = n.nvmlDeviceGetCount()", extra={"SIMGPU_ROOT": ""}) == 2


def test_sizes_and_abilities_are_those_of_the_models(simulation: Simulation) -> None:
    answer = simulation.ask(
        """
answer = []
for index in range(2):
    h = n.nvmlDeviceGetHandleByIndex(index)
    answer.append([n.nvmlDeviceGetNumGpuCores(h), n.nvmlDeviceGetCudaComputeCapability(h),
        n.nvmlDeviceGetArchitecture(h), n.nvmlDeviceGetMigMode(h),
        n.nvmlDeviceGetMaxMigDeviceCount(h), n.nvmlDeviceIsMigDeviceHandle(h).value,
        n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice,
        n.nvmlDeviceGetPowerManagementLimitConstraints(h), n.nvmlDeviceGetEnforcedPowerLimit(h),
        n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM), code(n.nvmlDeviceGetAttributes_v2, h)])
"""
    )
    assert answer == [
        [16896, [9, 0], 9, [0, 0], 0, 0, 1, [200000, 700000], 700000, 1980, NOT_SUPPORTED],
        [6912, [8, 0], 7, [0, 0], 0, 0, 0, [100000, 400000], 400000, 1410, NOT_SUPPORTED],
    ]


def test_what_this_driver_lacks_is_not_found(simulation: Simulation) -> None:
    answer = simulation.ask(
        """
h = n.nvmlDeviceGetHandleByIndex(0)
try:
    n.nvmlDeviceGetPcieThroughput(h, 0)
except n.NVMLError_FunctionNotFound:
    answer = "absent"
"""
    )
    assert answer == "absent"


def test_without_init_nothing_answers(simulation: Simulation) -> None:
    answer = simulation.ask(
        "n.nvmlInit(); n.nvmlShutdown(); first = code(n.nvmlDeviceGetCount); n.nvmlShutdown();"
        "answer = [first, code(n.nvmlDeviceGetCount), code(n.nvmlShutdown)]"
    )
    assert answer == [0, 1, 1]


def test_errors_have_their_words(simulation: Simulation) -> None:
    answer = simulation.ask("answer = [str(n.NVMLError(k)) for k in (4, 15, 12345)]")
    assert answer == ["Insufficient Permissions", "GPU is lost", "Unknown Error"]


# gpu_memory and processes


def test_memory_counts_the_driver_s_part_and_every_process(simulation: Simulation) -> None:
    process = simulation.start("--gpu-memory", "2G", "--seconds", "60")
    used, reserved = 2048 + 512, 616
    answer = simulation.ask(
        """
h = n.nvmlDeviceGetHandleByIndex(0)
old, new = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
answer = [[old.total, old.used, old.free], [new.total, new.reserved, new.used, new.free],
          [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
          n.nvmlDeviceGetMPSComputeRunningProcesses(h), n.nvmlDeviceGetGraphicsRunningProcesses(h),
          n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(1))]
"""
    )
    total = 143771
    assert answer == [
        [total * MIB, (used + reserved) * MIB, (total - used - reserved) * MIB],
        [total * MIB, reserved * MIB, used * MIB, (total - used - reserved) * MIB],
        [[process.pid, used * MIB]],
        [],
        [],
        [],
    ]


def test_a_wrong_structure_version_is_refused(simulation: Simulation) -> None:
    answer = simulation.ask(
        "h = n.nvmlDeviceGetHandleByIndex(0);"
        "answer = code(lambda: n.nvmlDeviceGetMemoryInfo(h, version=7))"
    )
    assert answer == 25


def test_a_short_list_tells_how_long_it_should_be(simulation: Simulation) -> None:
    for _ in range(3):
        simulation.start("--seconds", "60")
    answer = simulation.ask(
        """
from ctypes import byref, c_uint
h, count = n.nvmlDeviceGetHandleByIndex(0), c_uint(2)
array = (n.c_nvmlProcessInfo_v3_t * 2)()
fn = n._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
answer = [fn(h, byref(count), array), count.value]
"""
    )
    assert answer == [7, 3]


def test_the_killed_leave_no_trace(simulation: Simulation) -> None:
    process = simulation.start("--gpu-memory", "1G", "--seconds", "60")
    before = simulation.snapshot()
    assert before["n1"][simulation.uuids[0]]["processes"] == [process.pid]
    process.kill()
    process.wait()
    answer = simulation.ask(
        "h = n.nvmlDeviceGetHandleByIndex(0);"
        "answer = [pids(n.nvmlDeviceGetComputeRunningProcesses(h)),"
        " n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used,"
        " n.nvmlDeviceGetUtilizationRates(h).gpu]"
    )
    assert answer == [[], 0, 0]
    assert simulation.snapshot()["n1"][simulation.uuids[0]]["processes"] == []


# compute mode


def test_only_root_sets_the_compute_mode(simulation: Simulation, stranger: int) -> None:
    change = """
h = n.nvmlDeviceGetHandleByIndex(0)
result = code(n.nvmlDeviceSetComputeMode, h, n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
answer = [result, n.nvmlDeviceGetComputeMode(h),
          n.nvmlDeviceGetComputeMode(n.nvmlDeviceGetHandleByIndex(1))]
"""
    assert simulation.ask(change, uid=stranger) == [NO_PERMISSION, 0, 0]
    assert simulation.ask(change) == [0, 3, 0]
    assert simulation.node.read_gpus()[0].compute_mode == 3
    assert simulation.snapshot()["n1"][simulation.uuids[0]]["compute_mode"] == 3


def test_a_compute_mode_that_does_not_exist_is_refused(simulation: Simulation) -> None:
    answer = simulation.ask(
        "h = n.nvmlDeviceGetHandleByIndex(0);"
        "answer = [code(n.nvmlDeviceSetComputeMode, h, 4), n.nvmlDeviceGetComputeMode(h)]"
    )
    assert answer == [INVALID_ARGUMENT, 0]


# power limit


def test_only_root_sets_a_power_limit(simulation: Simulation, stranger: int) -> None:
    change = """
h = n.nvmlDeviceGetHandleByIndex(0)
result = code(n.nvmlDeviceSetPowerManagementLimit, h, 400000)
answer = [result, n.nvmlDeviceGetPowerManagementLimit(h), n.nvmlDeviceGetEnforcedPowerLimit(h),
          n.nvmlDeviceGetPowerManagementDefaultLimit(h),
          n.nvmlDeviceGetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(1))]
"""
    full = simulation.node.read_gpus()[1].default_power_limit_mw
    first = simulation.node.read_gpus()[0].default_power_limit_mw
    assert simulation.ask(change, uid=stranger) == [NO_PERMISSION, first, first, first, full]
    assert simulation.ask(change) == [0, 400_000, 400_000, first, full]
    assert simulation.snapshot()["n1"][simulation.uuids[0]]["power_limit_mw"] == 400_000


@pytest.mark.parametrize("beyond", ["low - 1", "high + 1"])
def test_a_power_limit_beyond_the_card_is_refused(simulation: Simulation, beyond: str) -> None:
    answer = simulation.ask(
        "h = n.nvmlDeviceGetHandleByIndex(0);"
        "before = n.nvmlDeviceGetPowerManagementLimit(h);"
        "low, high = n.nvmlDeviceGetPowerManagementLimitConstraints(h);"
        f"answer = [code(n.nvmlDeviceSetPowerManagementLimit, h, {beyond}),"
        " n.nvmlDeviceGetPowerManagementLimit(h) == before]"
    )
    assert answer == [INVALID_ARGUMENT, True]


# utilization, GPM, energy

_GPM = """
def measure(ids, seconds=0.5):
    h = n.nvmlDeviceGetHandleByIndex(0)
    samples = [n.nvmlGpmSampleAlloc() for _ in range(2)]
    n.nvmlGpmSampleGet(h, samples[0]); time.sleep(seconds); n.nvmlGpmSampleGet(h, samples[1])
    get = n.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(ids)
    get.sample1, get.sample2 = samples
    for i, id in enumerate(ids):
        get.metrics[i].metricId = id
    n.nvmlGpmMetricsGet(get)
    for sample in samples:
        n.nvmlGpmSampleFree(sample)
    return [[get.metrics[i].nvmlReturn, get.metrics[i].value] for i in range(len(ids))]
"""


def test_an_idle_gpu_rests(simulation: Simulation) -> None:
    answer = simulation.ask(
        f"""{_GPM}
h = n.nvmlDeviceGetHandleByIndex(0)
answer = [n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetPowerUsage(h),
    n.nvmlDeviceGetTemperature(h, 0) == n.nvmlDeviceGetTemperatureV(h, 0),
    n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM), n.nvmlDeviceGetCurrentClocksEventReasons(h),
    code(n.nvmlDeviceGetProcessUtilization, h, 0), measure([2, 10], 0.1)]
"""
    )
    assert answer == [0, 76000, True, 345, 1, NOT_FOUND, [[0, 0.0], [0, 0.0]]]


def test_use_is_what_a_process_says_it_uses(simulation: Simulation) -> None:
    process = simulation.start("--sm", "40", "--dram", "10", "--seconds", "60")
    answer = simulation.ask(
        f"""{_GPM}
h = n.nvmlDeviceGetHandleByIndex(0)
sample = n.nvmlDeviceGetProcessUtilization(h, 0)[0]
answer = [measure([2, 10, 3, 5]), [sample.pid, sample.smUtil, sample.memUtil],
    n.nvmlDeviceGetUtilizationRates(h).memory, n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    n.nvmlDeviceGetCurrentClocksEventReasons(h)]
"""
    )
    (_, sm), (_, dram), (_, occupancy), (_, tensor) = answer[0]
    assert sm == pytest.approx(40, rel=0.1)
    assert dram == pytest.approx(10, rel=0.1)
    assert 0 < occupancy < sm
    assert 0 < tensor < sm
    assert answer[1:] == [[process.pid, 40, 10], 10, 1980, 0]


def test_gpm_answers_as_measured_for_the_odd_ids(simulation: Simulation) -> None:
    answer = simulation.ask(f"{_GPM}\nanswer = measure([20, 21, *range(170, 175), 248, 249], 0.1)")
    assert answer == [[0, 0.0]] * 7 + [[INVALID_ARGUMENT, 0.0]] * 2


def test_an_ampere_has_no_gpm(simulation: Simulation) -> None:
    answer = simulation.ask(
        "sample = n.nvmlGpmSampleAlloc();"
        "answer = code(n.nvmlGpmSampleGet, n.nvmlDeviceGetHandleByIndex(1), sample)"
    )
    assert answer == NOT_SUPPORTED


def test_energy_never_shrinks_and_outlives_processes(simulation: Simulation) -> None:
    energy = "answer = n.nvmlDeviceGetTotalEnergyConsumption(n.nvmlDeviceGetHandleByIndex(0))"
    seen = [simulation.ask(energy)]
    ended = simulation.start("--sm", "50", "--seconds", "0.5")
    seen.append(simulation.ask(energy))
    ended.wait(60)
    killed = simulation.start("--sm", "50", "--seconds", "60")
    wait_until(lambda: _energy(simulation, killed.pid) > 50_000, "it has used energy")
    seen.append(simulation.ask(energy))
    killed.kill()
    killed.wait()
    seen.append(simulation.ask(energy))
    assert simulation.node.reap() == (killed.pid,)
    seen.append(simulation.ask(energy))
    assert seen == sorted(seen)
    totals = simulation.node.read_totals()[simulation.uuids[0]]
    assert totals["energy_mj"] > 50_000
    assert seen[-1] - seen[0] >= totals["energy_mj"]
    assert totals["work"] > 0


def _energy(simulation: Simulation, pid: int) -> float:
    return next((one.energy_mj for one in simulation.node.read_processes() if one.pid == pid), 0.0)


def test_a_decimal_comma_changes_nothing(simulation: Simulation) -> None:
    simulation.start("--sm", "40", "--seconds", "60")
    code = """
import locale, os
for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"):
    try:
        locale.setlocale(locale.LC_ALL, name)
        break
    except locale.Error:
        pass
h = n.nvmlDeviceGetHandleByIndex(0)
answer = n.nvmlDeviceGetProcessUtilization(h, 0)[0].smUtil
"""
    assert simulation.ask(code) == 40


# who sees what


def test_everybody_sees_everybody(simulation: Simulation, stranger: int) -> None:
    mine = simulation.start("--seconds", "60")
    theirs = simulation.start("--seconds", "60", uid=stranger)
    listed = (
        "answer = pids(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0)))"
    )
    expected = sorted([mine.pid, theirs.pid])
    assert simulation.ask(listed) == expected
    assert simulation.ask(listed, uid=stranger) == expected


def test_a_gpu_whose_device_file_is_closed_is_not_there(
    simulation: Simulation, stranger: int
) -> None:
    device = simulation.directory / "device"
    device.touch()
    device.chmod(0o600)
    path = simulation.node.directory / "gpus" / "0"
    path.write_text(path.read_text().replace("device=\n", f"device={device}\n"))
    seen = """
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
answer = [n.nvmlDeviceGetUUID(handle) for handle in handles]
"""
    uuids = simulation.uuids
    assert simulation.ask(seen) == uuids
    # As on a real machine, the remaining GPUs are numbered from 0.
    assert simulation.ask(seen, uid=stranger) == uuids[1:]
    device.chmod(0o666)
    assert simulation.ask(seen, uid=stranger) == uuids
