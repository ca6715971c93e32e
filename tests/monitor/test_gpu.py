"""GPUs as NVIDIA's own binding shows them, on the simulated library: well, ill, and gone."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from slurm_colloc.store.report_files import GPU_COLUMNS

from ..simgpu.conftest import Simulation
from ..wait_until import wait_until
from .bed import Bed, Row, environment_of

MEASURED = [name for name, _ in GPU_COLUMNS[3:]]
GPM = ["sm_active", "sm_occupancy", "tensor_active", "dram_active"]
# What the simulated driver does not have; see docs/simulated-gpu.md.
ABSENT = {"throttle_power_s", "throttle_thermal_s", "throttle_brake_s"}
SILENT = {"nvml": "NVML does not answer"}


def is_read(bed: Bed, uuid: str, name: str = "power_w") -> bool:
    latest = bed.latest
    return latest is not None and latest["gpus"].get(uuid, {}).get(name) is not None


def gaps_of(bed: Bed, text: str) -> list[tuple[float, float, str]]:
    return [(a, b, c) for a, b, c in bed.monitor["gaps"] if text in c]


def rows_of(bed: Bed, uuid: str) -> list[Row]:
    return [row for row in bed.rows("gpu") if row["uuid"] == uuid]


def test_all_that_a_gpu_has_is_read(bed: Bed, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    simulation.start("--sm", "40", "--dram", "10", "--gpu-memory", "2G", "--seconds", "120")
    bed.write_setup(h200)
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda _: is_read(bed, h200, "sm_active"), "GPM has two samples")
    time.sleep(2)
    told = bed.end_monitor(monitor)
    rows = rows_of(bed, h200)
    last = rows[-1]
    assert {name for name in MEASURED if last[name] is None} == ABSENT
    assert last["sm_active"] == pytest.approx(0.4, rel=0.1)
    assert last["dram_active"] == pytest.approx(0.1, rel=0.1)
    assert last["gpu_memory_mb"] == 2048 + 512
    assert last["pcie_tx_mib_s"] == 0
    energies = [row["energy_j"] for row in rows if row["energy_j"] is not None]
    assert energies == sorted(energies)
    assert told["capabilities"]["sm_active"] == {"source": "gpm:2", "state": "ok", "detail": ""}
    assert {told["capabilities"][name]["state"] for name in ABSENT} == {"unsupported"}
    assert told["gpus"] == [h200]


def test_a_gpu_without_gpm_is_read_by_the_rest(bed: Bed, simulation: Simulation) -> None:
    _, a100 = simulation.uuids
    bed.write_setup(a100)
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda _: is_read(bed, a100), "it is read")
    told = bed.end_monitor(monitor)
    last = rows_of(bed, a100)[-1]
    assert [last[name] for name in GPM] == [None] * 4
    assert last["utilization"] == 0
    assert told["capabilities"]["sm_active"]["state"] == "unsupported"
    assert told["capabilities"]["utilization"]["state"] == "ok"


def test_gpu_memory_is_each_member_s_own(bed: Bed, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    environ = {**environment_of(simulation), "CUDA_VISIBLE_DEVICES": h200}
    bed.write_setup(h200)
    command = "simgpu run --sm 10 --seconds 120 --gpu-memory"
    bed.start_member(1, f"{command} 1G & {command} 2G & wait", extra=environ)
    bed.start_member(2, "sleep 120", extra=environ)
    simulation.start("--gpu-memory", "4G", "--seconds", "120")
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(
        lambda now: now["members"].get("1", {}).get("gpu_memory_mb") == 1024 + 2048 + 2 * 512,
        "all of its processes are counted",
    )
    assert (bed.latest or {})["members"]["2"]["gpu_memory_mb"] == 0
    bed.end_monitor(monitor)


def test_of_a_member_on_two_gpus_it_is_that_of_the_fuller(bed: Bed, simulation: Simulation) -> None:
    first, second = simulation.uuids
    environ = environment_of(simulation)
    bed.write_setup(first, second)
    run = "simgpu run --sm 10 --seconds 120 --gpu-memory"
    both = f"{run} 1G --gpus 2 --nvlink 500 & {run} 2G & wait"
    bed.start_member(1, both, extra={**environ, "CUDA_VISIBLE_DEVICES": f"{first},{second}"})
    bed.start_member(2, "sleep 120", extra=environ)
    monitor = bed.start_monitor(environ)
    held = {first: 1024.0 + 2048 + 2 * 512, second: 1024.0 + 512}
    bed.wait_for(
        lambda now: now["members"].get("1", {}).get("gpu_memory_by_gpu") == held,
        "both of its processes are found, on their GPUs",
    )
    latest = bed.latest or {}
    assert latest["members"]["1"]["gpu_memory_mb"] == held[first]
    assert latest["members"]["2"]["gpu_memory_mb"] == 0
    assert latest["members"]["2"]["gpu_memory_by_gpu"] == {}
    bed.wait_for(lambda now: now["gpus"].get(first, {}).get("nvlink_tx_mib_s"), "NVLink is counted")
    told = bed.end_monitor(monitor)
    assert told["gpus"] == [first, second]
    assert [told["gpu_models"][uuid]["index"] for uuid in (first, second)] == [0, 1]
    assert rows_of(bed, first)[-1]["nvlink_rx_mib_s"] == pytest.approx(500, rel=0.2)
    # An A100 has no GPM.
    assert rows_of(bed, second)[-1]["nvlink_rx_mib_s"] is None
    assert bed.member_rows(1)[-1]["gpu_memory_mb"] in (None, held[first])


def test_gpu_memory_of_a_member_in_a_pid_namespace_is_unknown_not_0(
    bed: Bed, simulation: Simulation
) -> None:
    unshare = "unshare --user --map-root-user --pid --fork --kill-child --mount-proc"
    if subprocess.run([*unshare.split(), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    h200, _ = simulation.uuids
    environ = {**environment_of(simulation), "CUDA_VISIBLE_DEVICES": h200}
    bed.write_setup(h200)
    # The simulated driver does not list it: it is named by a pid that is nobody's outside.
    run = f"{unshare} simgpu run --sm 10 --seconds 120 --gpu-memory 1G"
    begin = bed.pack / "begin"
    bed.start_member(1, f"until [ -e {begin} ]; do sleep 0.1; done; {run}", extra=environ)
    bed.start_member(2, "simgpu run --sm 10 --seconds 120 --gpu-memory 1G", extra=environ)
    bed.start_member(3, "sleep 120", extra=environ)
    monitor = bed.start_monitor(environment_of(simulation))

    def reads(now: dict[str, Any], number: int) -> Any:
        return now["members"].get(str(number), {}).get("gpu_memory_mb", "nothing")

    bed.wait_for(lambda now: reads(now, 1) == 0, "it uses none yet")
    begin.touch()
    bed.wait_for(lambda now: reads(now, 1) is None, "it is in a namespace")
    bed.wait_for(lambda now: (reads(now, 2), reads(now, 3)) == (1024 + 512, 0), "others are told")
    bed.end_monitor(monitor)


def test_without_a_setup_slurm_says_which_gpu(bed: Bed, simulation: Simulation) -> None:
    _, a100 = simulation.uuids
    environ = {**environment_of(simulation), "SLURM_JOB_GPUS": "1"}
    monitor = bed.start_monitor(environ)
    bed.wait_for(lambda _: is_read(bed, a100), "it is found")
    assert bed.end_monitor(monitor)["gpus"] == [a100]


def test_where_nobody_knows_the_gpu_none_is_read(bed: Bed, simulation: Simulation) -> None:
    bed.start_member(1, "sleep 120")
    monitor = bed.start_monitor(environment_of(simulation))
    unknown = "it is not known which GPU is the pack's"
    # At first the driver may not have answered yet.
    bed.wait_for(lambda now: unknown in now["problems"].get("nvml", ""), "it says so")
    bed.wait_for(lambda now: "1" in now["members"], "the member is seen")
    bed.end_monitor(monitor)
    assert bed.rows("gpu") == []
    assert gaps_of(bed, unknown)


def test_a_lost_gpu_is_a_gap_and_its_neighbour_is_read(bed: Bed, simulation: Simulation) -> None:
    h200, a100 = simulation.uuids
    bed.write_setup(h200, a100)
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda _: is_read(bed, h200) and is_read(bed, a100), "both are read")
    simulation.run("faults", f"lost={h200}")
    bed.wait_for(lambda now: now["problems"] == {h200: "NVML: GPU is lost"}, "it is lost")
    assert is_read(bed, a100)
    simulation.run("faults")
    bed.wait_for(lambda _: is_read(bed, h200, "sm_active"), "it is back")
    bed.end_monitor(monitor)
    since, until, reason = gaps_of(bed, "lost")[0]
    assert reason == f"gpu {h200}: NVML: GPU is lost"
    within = [row for row in rows_of(bed, h200) if since <= row["at"] < until]
    assert within
    assert all(row[name] is None for row in within for name in MEASURED)


def test_nvml_that_comes_later(bed: Bed, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    bed.write_setup(h200)
    simulation.run("faults", "no-driver")
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda now: "Not Loaded" in now["problems"].get("nvml", ""), "it is not there")
    simulation.run("faults")
    bed.wait_for(lambda _: is_read(bed, h200), "it is there")
    bed.end_monitor(monitor)
    assert gaps_of(bed, "Driver Not Loaded")
    assert rows_of(bed, h200)[0]["power_w"] is None


def test_a_gpu_whose_every_call_fails_is_tried_again(bed: Bed, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    bed.write_setup(h200)
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda _: is_read(bed, h200), "it is read")
    state = simulation.node.directory / "gpus" / "0"
    away = state.rename(simulation.directory / "away")
    bed.wait_for(lambda now: "Unknown Error" in now["problems"].get(h200, ""), "all calls fail")
    away.rename(state)
    bed.wait_for(lambda _: is_read(bed, h200, "sm_active"), "it is back")
    bed.end_monitor(monitor)
    assert gaps_of(bed, f"gpu {h200}: NVML: Unknown Error")


def test_a_driver_that_hangs_stops_no_member_s_samples(bed: Bed, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    bed.write_setup(h200)
    bed.start_member(1, "sleep 120")
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda _: is_read(bed, h200), "it is read")
    simulation.run("faults", "hang=30")
    bed.wait_for(lambda now: now["problems"] == SILENT, "the driver hangs")
    hung_at = time.time()
    wait_until(
        lambda: sum(row["at"] > hung_at for row in bed.ask_for_rows(monitor, 1)) > 10,
        "members are read",
    )
    # Nor does it stop the end.
    bed.end_monitor(monitor)
    assert gaps_of(bed, "gpu: NVML does not answer")
    assert rows_of(bed, h200)[-1]["power_w"] is None


def test_a_driver_that_hung_is_read_again(bed: Bed, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    bed.write_setup(h200)
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda _: is_read(bed, h200), "it is read")
    simulation.run("faults", "hang=0.5")
    bed.wait_for(lambda now: now["problems"] == SILENT, "the driver hangs")
    simulation.run("faults")
    wait_until(lambda: is_read(bed, h200), "it is back")
    bed.end_monitor(monitor)
    assert all(until > since for since, until, _ in gaps_of(bed, "does not answer"))


def test_a_driver_that_hangs_from_the_start(bed: Bed, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    bed.write_setup(h200)
    bed.start_member(1, "sleep 120")
    simulation.run("faults", "hang=30")
    monitor = bed.start_monitor(environment_of(simulation))
    bed.wait_for(lambda now: "1" in now["members"], "the member is seen")
    bed.end_monitor(monitor)
    assert gaps_of(bed, "NVML has not answered yet")
