"""What Slurm really gave the pack on this node."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.planning.hard_limits import split_cpus

_CPU_ROOT = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Allocation:
    """The allocation as the batch script sees it.

    Attributes:
        job_id: What Slurm calls it, `4711` or `4711_2`; `L3` without Slurm.
        shown_job_id: The id that members are named after: the array's, for an element; that of the
            first Slurm job of the submission, where it became several.
        node: The node's name.
        restarts: How often Slurm has restarted the job.
        cpus_allocated: CPUs that Slurm gave.
        cores: CPUs this process may use, grouped by physical core.
        gpus: Slurm's GPU indices, empty without GPUs.
        environment: The batch script's environment.
        called_in: The environment that sbatch was given.
    """

    job_id: str
    shown_job_id: str
    node: str
    restarts: int
    cpus_allocated: int
    cores: tuple[tuple[int, ...], ...]
    gpus: tuple[str, ...]
    environment: Mapping[str, str]
    called_in: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def own_environment(self) -> dict[str, str]:
        """That of the runner and of the programs that it starts for itself.

        With all but `--export=ALL` Slurm gives the batch script what a login has. Slurm's commands
        or NVIDIA's may be where a module or a wrapper had put them before csub was called.
        """
        extended = dict(self.environment)
        for name in ("PATH", "LD_LIBRARY_PATH"):
            found = [extended.get(name, ""), self.called_in.get(name, "")]
            folders = [folder for text in found for folder in text.split(os.pathsep)]
            if kept := [folder for folder in folders if os.path.isabs(folder)]:
                extended[name] = os.pathsep.join(dict.fromkeys(kept))
        return extended


def read_allocation(environ: Mapping[str, str], local_id: str = "") -> Allocation:
    """Read the allocation from the batch script's environment and the kernel.

    Args:
        environ: The batch script's environment.
        local_id: The id of a pack that runs without Slurm.
    """
    allowed = os.sched_getaffinity(0)
    array = environ.get("SLURM_ARRAY_JOB_ID")
    shown = local_id or array or environ["SLURM_JOB_ID"]
    gpus = environ.get("SLURM_JOB_GPUS") or environ.get("CUDA_VISIBLE_DEVICES", "")
    return Allocation(
        job_id=f"{array}_{environ['SLURM_ARRAY_TASK_ID']}" if array and not local_id else shown,
        shown_job_id=shown,
        node=environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
        restarts=int(environ.get("SLURM_RESTART_COUNT", "0")),
        cpus_allocated=int(environ.get("SLURM_CPUS_ON_NODE", str(len(allowed)))),
        cores=read_cores(allowed),
        gpus=tuple(word for word in gpus.split(",") if word),
        environment=dict(environ),
    )


def read_cores(allowed: set[int]) -> tuple[tuple[int, ...], ...]:
    """Group CPUs by physical core; each alone where the kernel does not say."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(allowed):
        path = _CPU_ROOT / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            siblings = path.read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.setdefault(siblings, []).append(cpu)
    return tuple(tuple(core) for core in cores.values())


def read_host_memory_mb(environ: Mapping[str, str]) -> int | None:
    """What Slurm lets the job use on this node, in MB; None where it does not say; pure."""
    with contextlib.suppress(KeyError, ValueError):
        if "SLURM_MEM_PER_NODE" in environ:
            return int(environ["SLURM_MEM_PER_NODE"])
        return int(environ["SLURM_MEM_PER_CPU"]) * int(environ["SLURM_CPUS_ON_NODE"])
    return None


def explain_unbound(allocation: Allocation) -> str:
    """Why members are not bound to CPUs; empty where they can be."""
    usable = sum(len(core) for core in allocation.cores)
    if usable > allocation.cpus_allocated and "SLURM_JOB_ID" in allocation.environment:
        return (
            f"Slurm gave {allocation.cpus_allocated} CPUs but binds jobs to none: "
            "members are not bound either"
        )
    return ""


def choose_places(
    allocation: Allocation, wanted: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Give each place its CPUs.

    Args:
        allocation: The allocation.
        wanted: CPUs of each place.

    Returns:
        CPU numbers per place, and an empty string; or no CPUs per place (no binding), and why.
    """
    unbound = tuple(() for _ in wanted)
    if why := explain_unbound(allocation):
        return unbound, why
    usable = sum(len(core) for core in allocation.cores)
    shares = split_cpus(allocation.cores, wanted)
    if shares is None:
        return unbound, (
            f"{usable} CPUs can be used here, the members want {sum(wanted)}: they are not bound"
        )
    return shares, ""


def read_kill_wait_s(config: Mapping[str, str]) -> float:
    """Slurm's KillWait; its default of 30 s where it cannot be read."""
    with contextlib.suppress(KeyError, ValueError, IndexError):
        return float(config["KillWait"].split()[0])
    return 30.0


def signals_tasks_alone(config: Mapping[str, str]) -> bool:
    """Signals other than KILL reach only the tasks of a step, not the processes below them.

    So does proctrack/cgroup (`_slurm_cgroup_is_pid_a_slurm_task`, 22.05 to 26.05); the other
    plugins signal every process of the step.
    """
    return config.get("ProctrackType", "") == "proctrack/cgroup"


def requeues_jobs(config: Mapping[str, str]) -> bool:
    """Slurm's JobRequeue; its default of 1 where it cannot be read."""
    return config.get("JobRequeue", "1").split()[:1] != ["0"]


def find_user_name() -> str:
    """The user's name; the number where this node has none for it, as in Slurm's own messages."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # KeyError up to Python 3.12.
        return str(os.getuid())
