"""Making a simulation, using it and removing it."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.host.hooks.hook_report import DRIVER_VARIABLE
from slurm_colloc.model.mig_profiles import MIG_TABLES
from slurm_colloc_lab.simgpu.gpu_models import GpuModel
from slurm_colloc_lab.simgpu.nvml.build_library import CUDA_LIBRARY, LIBRARY, install_library
from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedGpu, render_pairs
from slurm_colloc_lab.simgpu.nvml.gpu_state import ROOT_VARIABLE, Node, write_file
from slurm_colloc_lab.simgpu.nvml.mig_instances import read_instances
from slurm_colloc_lab.simgpu.nvml.partition_profiles import render_profiles

DRIVER_VERSION = "580.159.04"
"""The driver that the rules were measured with."""

_DRIVER = {
    "driver_version": DRIVER_VERSION,
    "nvml_version": f"13.{DRIVER_VERSION}",
    "cuda_version": 13000,
}
# What lies in SIM/bin, and the module that each is.
_PROGRAMS = {
    "simgpu": "simgpu_command",
    "nvidia-cuda-mps-control": "mps.control_program",
    "nvidia-cuda-mps-server": "mps.server_program",
}
# Where an environment was scrubbed, PATH alone leads here.
_LAUNCHER = """\
#!/bin/sh
{variable}=${{{variable}:-{root}}} exec {python} -I {launch} {module} "$@"
"""


def make_simulation(
    directory: Path,
    nodes: Mapping[str, Sequence[GpuModel]],
    *,
    devices: Mapping[str, Sequence[Path]] | None = None,
    environment: Mapping[str, str] | None = None,
    mig: bool = False,
) -> None:
    """Make a simulation, or bring one up to date; what runs in it goes on.

    Args:
        directory: SIM; its parents must be open to all who are to use it.
        nodes: The GPUs of each node. Nodes that are not named go.
        devices: A device file for each GPU, which is then seen only where that may be opened.
        environment: For the compiler; this process's own where it is not given.
        mig: GPUs that are made now have MIG mode on.

    Raises:
        NoCompiler: The NVML library cannot be compiled.
        StateError: The directory cannot be written.
    """
    try:
        for folder in (directory, directory / "bin", directory / "lib", directory / "nodes"):
            _make_directory(folder, 0o755)
        install_library(directory / "lib" / LIBRARY, environment or os.environ)
        (directory / "lib" / CUDA_LIBRARY).unlink(missing_ok=True)
        (directory / "lib" / CUDA_LIBRARY).hardlink_to(directory / "lib" / LIBRARY)
        if not (directory / "driver").exists():
            born_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
            write_file(directory / "driver", render_pairs({**_DRIVER, "born_s": born_s}), 0o644)
        _write_launchers(directory)
        for name, models in nodes.items():
            files = tuple((devices or {}).get(name, ()))
            _make_node(directory / "nodes" / name, models, files, mig=mig)
        for entry in (directory / "nodes").iterdir():
            if entry.name not in nodes:
                shutil.rmtree(entry)
    except OSError as error:
        raise StateError(
            f"the GPU simulation in {directory} cannot be made ({error.strerror})",
            hint="choose another directory",
        ) from error


def remove(directory: Path) -> None:
    """Remove a simulation with all that is in it; nothing happens where there is none."""
    shutil.rmtree(directory, ignore_errors=True)


def simulation_environment(
    directory: Path, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables with which programs meet the simulated GPUs.

    Args:
        directory: SIM.
        base: The environment whose PATH and LD_LIBRARY_PATH are continued; this process's own
            where it is not given.
    """
    given = os.environ if base is None else base
    own = {"PATH": directory / "bin", "LD_LIBRARY_PATH": directory / "lib"}
    variables = {ROOT_VARIABLE: str(directory), DRIVER_VARIABLE: str(directory)}
    for name, first in own.items():
        rest = [entry for entry in given.get(name, "").split(os.pathsep) if entry]
        if name == "PATH" and not rest:
            rest = os.defpath.split(os.pathsep)
        variables[name] = os.pathsep.join([str(first), *(e for e in rest if e != str(first))])
    return variables


def list_nodes(directory: Path) -> tuple[Node, ...]:
    """The nodes of a simulation by name; none where there is no simulation."""
    folder = directory / "nodes"
    if not folder.is_dir():
        return ()
    return tuple(Node(entry) for entry in sorted(folder.iterdir()))


def snapshot(directory: Path) -> dict[str, dict[str, dict[str, object]]]:
    """What is on every GPU, to be compared with another moment.

    Returns:
        By node and GPU UUID: `compute_mode`, `power_limit_mw`, `gpu_memory_mb` and `processes`
        (pids), and of a GPU with MIG on or pending `mig`: its modes, and its instances by profile
        and placement. What only grows, like energy, is not in it, nor are UUIDs of MIG devices.
    """
    seen: dict[str, dict[str, dict[str, object]]] = {}
    for node in list_nodes(directory):
        processes = node.read_processes()
        seen[node.name] = {}
        for gpu in node.read_gpus():
            here = [process for process in processes if gpu.uuid in process.gpus]
            seen[node.name][gpu.uuid] = {
                "compute_mode": gpu.compute_mode,
                "power_limit_mw": gpu.power_limit_mw,
                "gpu_memory_mb": sum(process.gpu_memory_mb for process in here),
                "processes": [process.pid for process in here],
            }
            if gpu.mig_mode or gpu.mig_pending:
                seen[node.name][gpu.uuid]["mig"] = _describe_partition(node, gpu)
    return seen


def _describe_partition(node: Node, gpu: SimulatedGpu) -> dict[str, object]:
    whole, parts = read_instances(node, gpu)
    return {
        "mode": [gpu.mig_mode, gpu.mig_pending],
        "instances": [
            {
                "profile_id": one.profile_id,
                "placement": [one.placement.start, one.placement.size],
                "compute_instances": [
                    [part.placement.start, part.placement.size]
                    for part in sorted(parts, key=lambda part: part.placement)
                    if part.gpu_instance == one.instance_id
                ],
            }
            for one in sorted(whole, key=lambda one: one.placement)
        ],
    }


def build_gpu(model: GpuModel, node: Path, nvml_index: int) -> SimulatedGpu:
    """One GPU of a node. Its UUID follows from its place, so that repairs do not change it."""
    digest = hashlib.sha256(f"{node}/{nvml_index}".encode()).hexdigest()
    parts = (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
    return SimulatedGpu(
        nvml_index=nvml_index,
        uuid=f"GPU-{'-'.join(parts)}",
        name=model.name,
        minor=nvml_index,
        pci_bus_id=f"00000000:{0x10 + 3 * nvml_index:02X}:00.0",
        gpu_memory_mb=model.gpu_memory_mb,
        reserved_gpu_memory_mb=model.reserved_gpu_memory_mb,
        sm_count=model.sm_count,
        core_count=model.core_count,
        capability=model.capability,
        architecture=model.architecture,
        compute_mode=0,
        idle_power_mw=1000 * model.idle_power_w,
        power_limit_mw=1000 * model.power_limit_w,
        default_power_limit_mw=1000 * model.power_limit_w,
        min_power_limit_mw=1000 * model.min_power_limit_w,
        sm_clock_mhz=model.sm_clock_mhz,
        memory_clock_mhz=model.memory_clock_mhz,
        mig=bool(model.mig_table),
        gpm=model.gpm,
    )


def _make_node(
    directory: Path, models: Sequence[GpuModel], files: Sequence[Path], *, mig: bool
) -> None:
    for folder in ("", "gpus", "profiles", "instances"):
        _make_directory(directory / folder, 0o755)
    # Every user's processes describe themselves here, as every user's use a real driver.
    _make_directory(directory / "processes", 0o1777)
    for name, mode in (("lock", 0o644), ("totals", 0o666)):
        descriptor = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.fchmod(descriptor, mode)
        os.close(descriptor)
    node = Node(directory)
    kept = {gpu.uuid: gpu for gpu in node.read_gpus()}
    for number, model in enumerate(models):
        gpu = build_gpu(model, directory, number)
        device = str(files[number]) if files else ""
        mode = int(mig and gpu.mig)
        before = kept.get(gpu.uuid, replace(gpu, mig_mode=mode, mig_pending=mode))
        if before.name != gpu.name:
            (directory / "instances" / str(number)).unlink(missing_ok=True)
        profiles = MIG_TABLES.get(model.mig_table, ())
        text = render_profiles(model.mig_table, profiles)
        write_file(directory / "profiles" / str(number), text, 0o644)
        node.write_gpu(
            replace(
                gpu,
                compute_mode=before.compute_mode,
                mig_mode=before.mig_mode,
                mig_pending=before.mig_pending,
                device=device,
            )
        )
    for folder in ("gpus", "profiles", "instances"):
        for entry in (directory / folder).iterdir():
            if entry.name.isdigit() and int(entry.name) >= len(models):
                entry.unlink()


def _write_launchers(directory: Path) -> None:
    launch = Path(__file__).resolve().with_name("launch.py")
    for name, module in _PROGRAMS.items():
        text = _LAUNCHER.format(
            variable=ROOT_VARIABLE,
            root=shlex.quote(str(directory)),
            python=shlex.quote(sys.executable),
            launch=shlex.quote(str(launch)),
            module=module,
        )
        write_file(directory / "bin" / name, text, 0o755)


def _make_directory(directory: Path, mode: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StateError(
            f"{directory} of the GPU simulation belongs to somebody else",
            hint="choose another directory",
        )
    directory.chmod(mode)
