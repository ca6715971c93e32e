"""What `simgpu mig` and `simgpu reboot` do: the administrator's part of a partitioned GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.mig_profiles import MIG_TABLES
from slurm_colloc_lab.simgpu.gpu_models import MODELS
from slurm_colloc_lab.simgpu.install import list_nodes
from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedGpu
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node, write_file
from slurm_colloc_lab.simgpu.nvml.mig_instances import (
    read_instances,
    read_profiles,
    restart_gpu,
    switch_mig_mode,
)
from slurm_colloc_lab.simgpu.nvml.partition_profiles import render_profiles

_USAGE = "see simgpu --help"


def run_mig(node: Node, words: Sequence[str]) -> None:
    """Set MIG mode, or how profiles are named.

    Args:
        node: Whose GPUs.
        words: What followed `simgpu mig`.

    Raises:
        UsageProblem: The words mean nothing.
        StateError: A GPU is in use, or cannot be partitioned.
    """
    if words[0] == "names" and words[1:] in (["board"], ["memory"]):
        for one in list_nodes(_find_simulation(node)):
            for gpu in one.read_gpus():
                _write_names(one, gpu, by_memory=words[1] == "memory")
        return
    if words[0] not in ("on", "off") or len(words) > 2:
        raise UsageProblem(f"simgpu mig does not know '{' '.join(words)}'", hint=_USAGE)
    chosen = [gpu for gpu in node.read_gpus() if gpu.uuid in words[1:] or not words[1:]]
    if not chosen:
        raise UsageProblem(f"node {node.name} has no GPU {words[1]}", hint="see simgpu status")
    for gpu in chosen:
        if not gpu.mig:
            raise StateError(f"{gpu.uuid} cannot be partitioned")
        _need_idle(node, gpu)
    for gpu in chosen:
        switch_mig_mode(node, gpu, on=words[0] == "on")


def run_reboot(node: Node, words: Sequence[str]) -> None:
    """Leave a node's GPUs as they are after its reboot.

    Args:
        node: The node, where none is named.
        words: The node's name, or nothing.

    Raises:
        UsageProblem: There is no such node.
        StateError: Processes that a reboot would have ended are still on a GPU.
    """
    known = {one.name: one for one in list_nodes(_find_simulation(node))}
    if words and words[0] not in known:
        raise UsageProblem(
            f"the simulation has no node {words[0]}", hint=f"it has {', '.join(known)}"
        )
    node = known[words[0]] if words else node
    node.reap()
    for gpu in node.read_gpus():
        _need_idle(node, gpu)
    for gpu in node.read_gpus():
        restart_gpu(node, gpu)


def describe_mig_devices(node: Node, gpu: SimulatedGpu) -> list[dict[str, object]]:
    """A GPU's MIG devices for `simgpu status`."""
    whole, parts = read_instances(node, gpu)
    profiles = read_profiles(node, gpu) if whole else {}
    rows: list[dict[str, object]] = []
    for part in parts:
        one = next((one for one in whole if one.instance_id == part.gpu_instance), None)
        if one is None or one.profile_id not in profiles:
            continue
        profile = profiles[one.profile_id]
        is_whole = part.placement.size == profile.compute_slices
        rows.append(
            {
                "uuid": part.uuid,
                "profile": profile.name if is_whole else f"{part.placement.size}c.{profile.name}",
                "instance": f"{part.gpu_instance}/{part.instance_id}",
                "placement": f"{one.placement.start}:{one.placement.size}",
            }
        )
    return rows


def _find_simulation(node: Node) -> Path:
    return node.directory.parent.parent


def _need_idle(node: Node, gpu: SimulatedGpu) -> None:
    pids = [process.pid for process in node.read_processes() if gpu.uuid in process.gpus]
    if pids:
        raise StateError(
            f"process {pids[0]} is still on GPU {gpu.nvml_index} of node {node.name}",
            hint="end it first",
        )


def _write_names(node: Node, gpu: SimulatedGpu, *, by_memory: bool) -> None:
    table = next((model.mig_table for model in MODELS.values() if model.name == gpu.name), "")
    if table:
        text = render_profiles(table, MIG_TABLES[table], by_memory=by_memory)
        write_file(node.directory / "profiles" / str(gpu.nvml_index), text, 0o644)
