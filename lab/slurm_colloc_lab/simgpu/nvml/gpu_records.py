"""A simulated GPU and a process on it as values, and their text; pure.

Both are lines `key=value`. nvml_state.c reads the same text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive_process": 3}
"""By the names of nvidia-smi; the numbers are NVML's."""

SUMS = (
    "duty_sum",
    "sm_sum",
    "dram_sum",
    "tensor_sum",
    "occupancy_sum",
    "nvlink_mib",
    "energy_mj",
    "work",
)
"""Fields of a process that only grow, and that are kept when it ends."""


@dataclass(frozen=True)
class SimulatedGpu:
    """One simulated GPU.

    Args:
        nvml_index: Its number on the node.
        uuid: `GPU-` and a UUID.
        name: The product's name as NVML gives it.
        minor: Minor number of its device file.
        pci_bus_id: As `00000000:1A:00.0`.
        gpu_memory_mb: The total, in MiB.
        reserved_gpu_memory_mb: What the driver keeps for itself.
        sm_count: Streaming multiprocessors.
        core_count: FP32 lanes of all of them.
        capability: CUDA compute capability, `9.0`.
        architecture: NVML's number: 7 is Ampere, 9 is Hopper.
        compute_mode: NVML's number, see `COMPUTE_MODES`.
        idle_power_mw: What it draws with nothing on it.
        power_limit_mw: Its limit.
        default_power_limit_mw: The limit that it starts with, the highest that can be set.
        min_power_limit_mw: The lowest limit that can be set.
        sm_clock_mhz: The highest clock of its SMs.
        memory_clock_mhz: The clock of its memory.
        mig: Whether it can be partitioned.
        gpm: Whether it has GPU performance monitoring.
        device: Device file that has to be openable for it to be seen, or an empty string.
        persistence_mode: 1 where the driver stays loaded.
        mig_mode: 1 where MIG is on.
        mig_pending: What it is to be after the next reset.
    """

    nvml_index: int
    uuid: str
    name: str
    minor: int
    pci_bus_id: str
    gpu_memory_mb: int
    reserved_gpu_memory_mb: int
    sm_count: int
    core_count: int
    capability: str
    architecture: int
    compute_mode: int
    idle_power_mw: int
    power_limit_mw: int
    default_power_limit_mw: int
    min_power_limit_mw: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    mig: bool
    gpm: bool
    device: str = ""
    persistence_mode: int = 1
    mig_mode: int = 0
    mig_pending: int = 0


@dataclass(frozen=True)
class SimulatedProcess:
    """One process that holds a context, as it last described itself.

    Shares are per cent of the whole GPU. Sums are those shares times seconds. It uses the same on
    each of its GPUs.

    Args:
        pid: Its number.
        starttime: Field 22 of /proc/PID/stat, so that the number is not mistaken.
        uid: Its owner.
        gpus: UUIDs of the GPUs that it has a context on.
        gpu_memory_mb: What it holds on each of them, its context included.
        instance: The MIG device that it is on, GPU instance/compute instance: `1/0`; empty on a
            whole GPU.
        type: `C`, or `M+C` for a client of MPS, as nvidia-smi prints it.
        mps_server: Pid of its MPS server.
        started_s: Unix time at which it got its context.
        thread_percentage: Its limit under MPS; 100 is none.
        sm_demand: SM share that it would use alone.
        sm_share: SM share that it uses now.
        dram_share: Share of the memory bandwidth that it uses now.
        tensor_share: Share of the tensor pipe that it uses now.
        occupancy_share: Share of the warps that it keeps resident now.
        duty: Share of the time in which one of its kernels runs now.
        nvlink_mib_s: What each of its GPUs sends to the others now, in MiB/s.
        power_mw: What it makes the GPU draw above idle now.
        updated_s: CLOCK_MONOTONIC of this description.
        duty_sum: Of `duty`.
        sm_sum: Of `sm_share`.
        dram_sum: Of `dram_share`.
        tensor_sum: Of `tensor_share`.
        occupancy_sum: Of `occupancy_share`.
        nvlink_mib: What each of its GPUs has sent to the others.
        energy_mj: Energy above idle since its start.
        work: Steps done.
    """

    pid: int
    starttime: int
    uid: int
    gpus: tuple[str, ...]
    gpu_memory_mb: int
    instance: str = ""
    type: str = "C"
    mps_server: int | None = None
    started_s: float = 0.0
    thread_percentage: float = 100.0
    sm_demand: float = 0.0
    sm_share: float = 0.0
    dram_share: float = 0.0
    tensor_share: float = 0.0
    occupancy_share: float = 0.0
    duty: float = 0.0
    nvlink_mib_s: float = 0.0
    power_mw: float = 0.0
    updated_s: float = 0.0
    duty_sum: float = 0.0
    sm_sum: float = 0.0
    dram_sum: float = 0.0
    tensor_sum: float = 0.0
    occupancy_sum: float = 0.0
    nvlink_mib: float = 0.0
    energy_mj: float = 0.0
    work: float = 0.0


def parse_pairs(text: str) -> dict[str, str]:
    """The pairs of `key=value` lines; other lines are left out."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def render_pairs(pairs: Mapping[str, object]) -> str:
    """The text that `parse_pairs` reads."""
    return "".join(f"{key}={_render_value(value)}\n" for key, value in pairs.items())


def parse_gpu(nvml_index: int, text: str) -> SimulatedGpu:
    """Read a GPU's file.

    Raises:
        ValueError: A value is missing or no number.
    """
    return SimulatedGpu(
        nvml_index=nvml_index, **_parse_fields(SimulatedGpu, parse_pairs(text), ("nvml_index",))
    )


def render_gpu(gpu: SimulatedGpu) -> str:
    """The text of a GPU's file."""
    pairs = dataclasses.asdict(gpu)
    del pairs["nvml_index"]
    return render_pairs(pairs)


def parse_process(pid: int, text: str) -> SimulatedProcess | None:
    """Read a process's file; None where it is not whole. Its key `gpu` names all its GPUs."""
    pairs = parse_pairs(text)
    pairs["gpus"] = pairs.pop("gpu", "")
    try:
        fields = _parse_fields(SimulatedProcess, pairs, ("pid",))
        return SimulatedProcess(pid=pid, **fields)
    except (TypeError, ValueError):
        return None


def render_process(process: SimulatedProcess) -> str:
    """The text of a process's file."""
    pairs = dataclasses.asdict(process)
    del pairs["pid"]
    return render_pairs({"gpu": pairs.pop("gpus"), **pairs})


def parse_totals(text: str) -> dict[str, dict[str, float]]:
    """Sums of ended processes by GPU: lines `UUID.field=number`."""
    totals: dict[str, dict[str, float]] = {}
    for key, value in parse_pairs(text).items():
        uuid, dot, name = key.rpartition(".")
        if dot and name in SUMS:
            totals.setdefault(uuid, dict.fromkeys(SUMS, 0.0))[name] = _parse_number(value)
    return totals


def render_totals(totals: Mapping[str, Mapping[str, float]]) -> str:
    """The text of the totals."""
    return render_pairs(
        {f"{uuid}.{name}": value for uuid, sums in totals.items() for name, value in sums.items()}
    )


def _render_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, (tuple, list)):
        return ",".join(str(item) for item in value)
    return str(value)


def _parse_fields(kind: Any, pairs: Mapping[str, str], without: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in without or field.name not in pairs:
            continue
        text = pairs[field.name]
        if field.type == "int":
            values[field.name] = int(text)
        elif field.type == "bool":
            values[field.name] = text not in ("", "0")
        elif field.type == "float":
            values[field.name] = _parse_number(text)
        elif field.type == "int | None":
            values[field.name] = int(text) if text else None
        elif field.type == "tuple[str, ...]":
            values[field.name] = tuple(word for word in text.split(",") if word)
        else:
            values[field.name] = text
    return values


def _parse_number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else 0.0
