"""A node for root's hooks whose GPUs have MIG on, and what its tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slurm_colloc.host.system.node_processes import list_processes, read_command_line
from slurm_colloc_lab.simgpu.nvml.mig_instances import switch_mig_mode

from .hook_node import HookNode

COMMENT = "sweep [csub/1 mig=3g+2g+1g+1g]"


@contextmanager
def mig_on(bed: HookNode) -> Iterator[HookNode]:
    """The node with MIG on, and a site that lets jobs use that; off again at the end."""
    bed.write_policy(mig="where-on")
    switch(bed, on=True)
    yield bed
    bed.fail_nvml()
    for path in (bed.run / "jobs").glob("*.json"):
        bed.epilog(path.stem)
    switch(bed, on=False)


def switch(bed: HookNode, *, on: bool) -> None:
    for gpu in bed.node.read_gpus():
        switch_mig_mode(bed.node, gpu, on=on)


def list_profiles(bed: HookNode, job_id: str = "11", gpu: int = 0) -> list[str]:
    return [one["profile"] for one in bed.setup(job_id)["mig"]["gpus"][gpu]["instances"]]


def list_own(bed: HookNode, *words: str) -> list[int]:
    """Processes of this node's hooks that have all these words."""
    found = []
    for process in list_processes():
        line = read_command_line(process.id.pid)
        is_of_bed = any(word.startswith(str(bed.run)) for word in line)
        if is_of_bed and not process.has_ended and set(words) <= set(line):
            found.append(process.id.pid)
    return found
