"""The GPUs of the nodes: the machine's own, or stand-ins that only have a device file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc_lab.sandbox.sandbox_record import SandboxRecord, write_file
from slurm_colloc_lab.sandbox.sandbox_spec import Layout
from slurm_colloc_lab.simgpu.gpu_models import choose_model
from slurm_colloc_lab.simgpu.install import make_simulation, remove, simulation_environment
from slurm_colloc_lab.simgpu.nvml.build_library import NoCompiler
from slurm_colloc_lab.simgpu.nvml.gpu_state import is_permitted

# NVIDIA's character device major; minors from 200 on belong to no driver instance.
_MAJOR = 195
_FIRST_MINOR = 200
_FAKE_GPUS_PER_NODE = 2


@dataclass(frozen=True)
class GpuFiles:
    """Device files by node.

    Args:
        per_node: For each node the files of its GPUs.
        real: Whether there is an NVIDIA GPU behind them.
        reason: Where they come from, as a clause for `status`.
    """

    per_node: tuple[tuple[Path, ...], ...]
    real: bool
    reason: str


def find_real_gpus(dev: Path = Path("/dev")) -> tuple[Path, ...]:
    """The machine's /dev/nvidia0, /dev/nvidia1 and so on, by number."""
    numbers = sorted(
        int(match[1])
        for entry in dev.iterdir()
        if (match := re.fullmatch(r"nvidia(\d+)", entry.name))
    )
    return tuple(dev / f"nvidia{number}" for number in numbers)


def choose_gpu_files(
    real: tuple[Path, ...], directory: Path, *, nodes: int, per_node: int | None, fake: bool
) -> GpuFiles:
    """Split the real GPUs over the nodes, or name the files of the fake ones.

    Raises:
        UsageProblem: More real GPUs are wanted than there are.
    """
    if real and not fake:
        share = len(real) // nodes if per_node is None else per_node
        if share * nodes > len(real) or (per_node is None and share == 0):
            wanted = f"{nodes} nodes of {share or 1}"
            raise UsageProblem(
                f"{len(real)} GPUs of this machine are too few for {wanted}",
                hint="give --nodes and --gpus-per-node to suit, or --fake-gpus",
            )
        files, origin = real, f"real, {real[0]} and on"
    else:
        share = _FAKE_GPUS_PER_NODE if per_node is None else per_node
        files = tuple(directory / f"gpu{number}" for number in range(nodes * share))
        origin = "fake, as asked for" if real else "fake, there is no /dev/nvidia0"
    split = tuple(files[node * share : (node + 1) * share] for node in range(nodes))
    return GpuFiles(split, bool(real) and not fake, origin)


def make_fake_gpus(files: tuple[Path, ...], *, is_root: bool) -> None:
    """Make the device files that are missing.

    slurmd wants a file per GPU and no more than that. Root makes device nodes that no driver
    answers to, so that device limits have something to act on. An ordinary user cannot, and gets
    a link to some character device for each.

    Raises:
        StateError: A file cannot be made.
    """
    wanted = {file for file in files if not os.path.lexists(file)}
    if not wanted:
        return
    targets = () if is_root else _find_character_devices()
    if not is_root and len(targets) < len(files):
        raise StateError(
            f"an ordinary user's fake GPUs need a character device each, and /dev has "
            f"{len(targets)} of the {len(files)}",
            hint="use fewer GPUs",
        )
    for number, file in enumerate(files):
        if file not in wanted:
            continue
        try:
            if is_root:
                os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, _FIRST_MINOR + number))
                file.chmod(0o666)
            else:
                file.symlink_to(targets[number])
        except OSError as error:
            raise StateError(
                f"the fake GPU {file} cannot be made ({error.strerror})",
                hint="choose a directory on a file system that allows device files",
            ) from error


def _find_character_devices() -> tuple[Path, ...]:
    """Character devices of this machine, terminals first: one path for each device number."""
    chosen: dict[int, Path] = {}
    for entry in sorted(Path("/dev").iterdir(), key=lambda path: (path.name[:3] != "tty", path)):
        try:
            status = entry.lstat()
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            chosen.setdefault(status.st_rdev, entry)
    return tuple(chosen.values())


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
    try:
        make_simulation(
            layout.simgpu,
            {
                name: [choose_model(kind) for kind in record.spec.name_gpu_types(len(paths))]
                for name, paths in devices.items()
            },
            devices=devices if _are_limits_told(files.per_node) else None,
            mig=record.spec.mig,
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
    return "none, the GPUs are real" if record.gpus_are_real else "none"


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
