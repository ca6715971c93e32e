"""Divides what Slurm gave a job on a node among its GPU sets there, before any runner begins.

Who: the user; where: each of the job's nodes, in the process that starts its runners.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer
from slurm_colloc.host.nvml.nvml_query import probe_gpus
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.gpu.gpu_patience import GpuPatience
from slurm_colloc.runtime.gpu.gpu_set_shares import (
    GpuSetWant,
    build_shares,
    list_job_gpus,
)
from slurm_colloc.runtime.queue.allocation import (
    Allocation,
    explain_unbound,
    read_host_memory_mb,
)
from slurm_colloc.store.pack.gpu_division import (
    GpuDivision,
    GpuSetShare,
    read_problem,
    write_division,
)
from slurm_colloc.store.pack.pack_directory import read_pack
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack_reading import list_node_packs

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""Where the kernel says which CPUs are nearest to a device (sysfs-bus-pci, local_cpulist)."""

_OF_ONE_NODE = (
    ("SLURM_JOB_NODELIST", "{}"),
    ("SLURM_NODELIST", "{}"),
    ("SLURM_JOB_NUM_NODES", "1"),
    ("SLURM_NNODES", "1"),
    ("SLURM_TASKS_PER_NODE", "1"),
)
"""What a job of one node has in place of what one of several has."""


def divide_job(packs: Sequence[Path], record: PackRecord, allocation: Allocation) -> GpuDivision:
    """Divide the node's GPUs, CPUs and host memory, and write division.json.

    NVML that does not answer costs nothing but the names: GPUs are then divided as Slurm counts
    them.

    Args:
        packs: The directories of the packs of the node's sets, in order.
        record: The first one's pack.json.
        allocation: What Slurm gave the job there.
    """
    answer = probe_gpus(GpuPatience().nvml_s)
    sizes = record.gpu_sets[record.gpu_set :][: len(packs)]
    division = build_division(
        answer,
        [_read_want(pack, gpus) for pack, gpus in zip(packs, sizes, strict=True)],
        allocation,
        takes_mig=record.mode is SharingMode.MIG,
    )
    with contextlib.suppress(StateError):
        # For those that look; the runners are told by this process.
        write_division(packs[0], division)
    return division


def find_own_problem(pack: Path, record: PackRecord, restarts: int) -> str:
    """Why nothing can run in a pack's GPU set, by the division of its node; empty where it can.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        restarts: How often Slurm has restarted the job.
    """
    names = list_node_packs(record, record.node)
    return read_problem(pack.parent / names[0], names.index(record.pack_id), restarts)


def build_division(
    answer: NvmlAnswer,
    wants: Sequence[GpuSetWant],
    allocation: Allocation,
    *,
    takes_mig: bool = False,
    pci_devices: Path = PCI_DEVICES,
) -> GpuDivision:
    """The division; nothing is written.

    Args:
        answer: What NVML says.
        wants: What each set was planned with.
        allocation: What Slurm gave.
        takes_mig: GPUs that are divided by MIG are what was asked for.
        pci_devices: The kernel's files of PCI devices.
    """
    gpus, doubt = list_job_gpus(answer, allocation.environment, takes_mig=takes_mig)
    gpus = tuple(
        dataclasses.replace(gpu, near=read_near_cpus(gpu.pci_bus_id, pci_devices)) for gpu in gpus
    )
    shares, is_near, notes = build_shares(
        gpus,
        wants,
        allocation.cores,
        read_host_memory_mb(allocation.environment),
        unbound=explain_unbound(allocation),
    )
    if doubt:
        notes = (*notes, f"not all of its GPUs are known by UUID: {doubt}")
    return GpuDivision(allocation.restarts, allocation.node, shares, is_near, notes)


def _read_want(pack: Path, gpus: int) -> GpuSetWant:
    """What a set was planned with; of one whose record cannot be read its own runner tells."""
    with contextlib.suppress(StateError):
        record = read_pack(pack)
        if record is not None and record.request is not None:
            return GpuSetWant(gpus, record.request.cpus, record.request.host_memory_mb)
    return GpuSetWant(gpus, 1)


def read_near_cpus(pci_bus_id: str | None, pci_devices: Path = PCI_DEVICES) -> frozenset[int]:
    """The CPUs nearest to a device; none where the kernel does not say.

    Args:
        pci_bus_id: As NVML writes it, with a domain of eight digits.
        pci_devices: The kernel's files.
    """
    if pci_bus_id is None:
        return frozenset()
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        text = (pci_devices / f"{domain[-4:]}:{rest}" / "local_cpulist").read_text()
        return frozenset(parse_cpu_list(text))
    except (OSError, ValueError):
        return frozenset()


def parse_cpu_list(text: str) -> list[int]:
    """The CPUs of a list as the kernel writes it, `0-3,8`.

    Raises:
        ValueError: It is none.
    """
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def build_set_environment(
    environ: Mapping[str, str], share: GpuSetShare, want_cpus: int, node: str = ""
) -> dict[str, str]:
    """The batch script's environment as it would be in a job that has this share alone; pure.

    Args:
        environ: That of the whole job.
        share: What the set has.
        want_cpus: The CPUs that it was planned with, which count where none are bound.
        node: The set's node, where the job has others, too; else empty.
    """
    found = dict(environ)
    cpus = str(len(share.cpus) or want_cpus)
    found["CUDA_VISIBLE_DEVICES"] = ",".join(share.gpus)
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
        if name in found:
            found[name] = ",".join(share.slurm_gpus)
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        if name in found:
            found[name] = cpus
    if "SLURM_GPUS_ON_NODE" in found:
        found["SLURM_GPUS_ON_NODE"] = str(len(share.gpus))
    if node:
        found |= {name: value.format(node) for name, value in _OF_ONE_NODE if name in found}
    if share.host_memory_mb is not None:
        for name in ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"):
            found.pop(name, None)
        found["SLURM_MEM_PER_NODE"] = str(share.host_memory_mb)
    return found


def enter_share(share: GpuSetShare, want_cpus: int, node: str = "") -> None:
    """Make this process one that has a set's share alone; see `build_set_environment`."""
    environment = build_set_environment(os.environ, share, want_cpus, node)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if share.cpus:
        # What was read before is not the kernel's last word: a CPU may have been taken since.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, share.cpus)
