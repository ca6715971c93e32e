"""The other nodes of a pack's Slurm job: a step on each runs a guard and runners of its own.

Who: the user; where: the first node, in the job's starter, and what comes of it on the other ones.

Slurm gives a step variables of its own, and leaves others as they are on the first node. So the
batch script's travel with it, and what is started there begins with what a batch script of that
node would have.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.runtime.launch.member_environment import build_step_environment
from slurm_colloc.runtime.launch.step_command import (
    StartedProcess,
    build_srun_argv,
    start_process,
)
from slurm_colloc.runtime.queue.allocation import read_host_memory_mb
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack_reading import list_node_packs

TRAVELS_AS = "SLURM_COLLOC_BATCH"
"""The variable in which the batch script's own SLURM* come to another node, as JSON."""

_OF_A_NODE = ("SLURMD_NODENAME", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_TOPOLOGY_ADDR")
"""What Slurm tells a step of its own node, as it tells the batch script."""


def start_other_nodes(path: Path, record: PackRecord, environ: Mapping[str, str]) -> dict[int, str]:
    """Have the runners of the other nodes started, each node's by a step.

    Args:
        path: The directory of the job's first pack.
        record: Its pack.json.
        environ: The batch script's environment.

    Returns:
        By the process id of the srun that stands for a node, the directory of its first pack.

    Raises:
        OSError: srun cannot be started; those that were are ended again.
    """
    started: dict[int, str] = {}
    processes: list[StartedProcess] = []
    for node in range(1, 1 + max(record.set_nodes, default=0)):
        pack = str(path.parent / list_node_packs(record, node)[0])
        argv = build_srun_argv(
            f"csub-node{node + 1}",
            read_host_memory_mb(environ),
            [sys.executable, "-IB", "-m", "slurm_colloc.runtime", pack],
            place=f"--relative={node}",
        )
        try:
            process = start_process(argv, _build_environment(environ), None)
        except OSError:
            for earlier in processes:
                earlier.kill()
            raise
        processes.append(process)
        started[process.pid] = pack
    return started


def _build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in environ.items() if name.startswith("SLURM")}
    return build_step_environment(environ) | {TRAVELS_AS: json.dumps(own)}


def build_node_environment(environ: Mapping[str, str], host: str) -> dict[str, str]:
    """What a batch script would have on another node of the job; pure.

    Args:
        environ: What the step has there.
        host: The machine's name, as uname(2) has it.
    """
    batch = json.loads(environ[TRAVELS_AS])
    found = {name: value for name, value in environ.items() if not name.startswith("SLURM")}
    found |= batch
    found |= {name: environ[name] for name in _OF_A_NODE if name in batch and name in environ}
    if "SLURM_JOB_GPUS" in batch and "SLURM_STEP_GPUS" in environ:
        found["SLURM_JOB_GPUS"] = environ["SLURM_STEP_GPUS"]
    if "HOSTNAME" in found:
        found["HOSTNAME"] = host
    return found


def arrive_on_node() -> None:
    """Make this process one of a batch script of its node, where it came from the first one."""
    if TRAVELS_AS not in os.environ:
        return
    environment = build_node_environment(os.environ, os.uname().nodename)
    os.environ.clear()
    os.environ.update(environment)
