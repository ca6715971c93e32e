"""Packs and programs that are not paused: by settings, and as far as their processes show it.

A program whose processes watch each other by short heartbeats takes a long pause for the death of
its partners, although all of them are paused together: its own watchers, and servers outside, go on
counting. Such a member is paused for no longer than a measurement, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_colloc.host.system.node_processes import Process, read_command_line
from slurm_colloc.model.plan import Rule
from slurm_colloc.settings import Settings
from slurm_colloc.store.pack.pack_records import PackRecord

NEVER = frozenset(
    {
        # Ray: raylet and gcs_server report to each other every few seconds.
        "raylet", "gcs_server",
        # MPI launchers and their daemons (Open MPI, PRRTE, Hydra of MPICH).
        "mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "hydra_pmi_proxy",
        # Schedulers of Dask and Spark are outside the member, and drop workers that are silent.
        "dask-worker", "dask",
    }
)  # fmt: skip
"""Names of programs (proc(5), comm: 15 characters at most)."""

SINGLETON = "--singleton-died-pipe"
"""With that option Open MPI starts its daemon below a program that was not started by mpirun (4.1,
ess_singleton_module.c): as Lightning does where mpi4py is installed. It has no partners."""

_NEVER_SHORT = frozenset(name[:15] for name in NEVER)


def find_pause_obstacle(processes: Iterable[Process]) -> str:
    """Why a member is never paused, by its processes; empty where it may be."""
    for process in processes:
        if process.name in _NEVER_SHORT and not _serves_one(process):
            return f"{process.name} watches its partners by short heartbeats"
    return ""


def _serves_one(process: Process) -> bool:
    """Whether it is the daemon that Open MPI starts below a program without ranks."""
    return process.name == "orted" and SINGLETON in read_command_line(process.id.pid)


def find_parking_obstacle(processes: int, ranks: int | None) -> str:
    """Why a member is paused for moments only, and never parked; empty where it may be.

    Args:
        processes: Those of its processes that have made steps.
        ranks: How many ranks it says that it has (WORLD_SIZE); None where it has none.
    """
    if (ranks or 1) > 1 or processes > 1:
        return "its ranks wait for each other with a time-out"
    return ""


def find_measuring_obstacle(record: PackRecord, settings: Settings, unwatched: str) -> str:
    """Why a pack is not measured by pausing its members; empty where it is.

    Args:
        record: Its pack.json.
        settings: The settings of this node.
        unwatched: Why nothing of it is watched; empty where it is.
    """
    if not settings.pause:
        return "the setting pause is off"
    if record.policy is not None and record.policy.rule is not Rule.CSUB:
        return f"the planner {record.policy.rule} does without"
    return unwatched
