"""The simulated GPUs of a sandbox: NVML and MPS for its fake GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.sandbox.gpus import GpuFiles
from slurm_colloc.sandbox.record import SandboxRecord, write_file
from slurm_colloc.sandbox.simgpu.build import NoCompiler
from slurm_colloc.sandbox.simgpu.install import make_simulation, remove, simulation_environment
from slurm_colloc.sandbox.simgpu.models import choose_model
from slurm_colloc.sandbox.simgpu.state import is_permitted
from slurm_colloc.sandbox.spec import Layout


def make_simulated_gpus(layout: Layout, record: SandboxRecord, files: GpuFiles) -> None:
    """Simulate a GPU behind each fake device file, where a C compiler allows it.

    Raises:
        StateError: The files cannot be written.
    """
    layout.no_simulation.unlink(missing_ok=True)
    if files.real or not record.spec.simgpu:
        remove(layout.simgpu)
        return
    devices = dict(zip(record.node_names, files.per_node, strict=True))
    model = choose_model(record.spec.gpu_type)
    try:
        make_simulation(
            layout.simgpu,
            {name: [model] * len(paths) for name, paths in devices.items()},
            devices=devices if _are_limits_told(files.per_node) else None,
        )
    except NoCompiler as problem:
        remove(layout.simgpu)
        write_file(layout.no_simulation, f"{problem}\n", mode=0o644)


def remove_simulated_gpus(layout: Layout) -> None:
    """Remove the simulation."""
    remove(layout.simgpu)


def describe_simulation(layout: Layout, record: SandboxRecord) -> str:
    """What is simulated, or why not, as a clause for `status`."""
    if _is_made(layout):
        return f"NVML, MPS and processes in {layout.simgpu}"
    try:
        return f"none: {layout.no_simulation.read_text().strip()}"
    except OSError:
        pass
    if not record.spec.simgpu:
        return "none, as asked for"
    return "none, the GPUs are real" if record.gpu_reason.startswith("real") else "none"


def build_simulation_environment(layout: Layout, base: dict[str, str]) -> dict[str, str]:
    """The variables for programs to meet the simulated GPUs; none where there are none."""
    return simulation_environment(layout.simgpu, base) if _is_made(layout) else {}


def _is_made(layout: Layout) -> bool:
    return (layout.simgpu / "driver").exists()


def _are_limits_told(per_node: Sequence[Sequence[Path]]) -> bool:
    """Whether opening a device file tells what a job may use.

    It does where root made device nodes that it may open itself. Links to terminals, which an
    ordinary user's sandbox has, say nothing, and no cgroup of his limits them.
    """
    paths = [str(path) for paths in per_node for path in paths]
    return os.geteuid() == 0 and all(is_permitted(path) for path in paths)
