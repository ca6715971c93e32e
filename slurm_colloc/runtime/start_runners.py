"""The runners of a Slurm job with several GPU sets, one for each; who: the job's starter.

It loads what all of them need, divides what the job has, and forks them: so they share most of
their memory, and what Slurm gave is divided once. None goes on before the guard knows of all.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.model.late_definitions import write_methods
from slurm_colloc.runtime.allocation import (
    read_allocation,
)
from slurm_colloc.runtime.divide_gpus import divide_job, enter_share
from slurm_colloc.runtime.guard import GuardPipe, fork_keeping_signals
from slurm_colloc.runtime.guarded_steps import Journal, insist
from slurm_colloc.settings import read_given_environment
from slurm_colloc.store.all_packs import list_gpu_set_packs
from slurm_colloc.store.pack_directory import (
    GpuDivision,
    PackRecord,
    read_own_pack,
    read_pack,
)

LOADED_ONCE = (
    "slurm_colloc.runtime.attempt",
    "slurm_colloc.runtime.discover_gpus",
    "slurm_colloc.runtime.node_daemon",
    "slurm_colloc.runtime.pack_daemon",
    "slurm_colloc.runtime.member_limits",
    "slurm_colloc.store.profiles",
    "hashlib",
)
"""What every runner loads sooner or later: of what is there before the fork they share the memory.
"""


def become_runner(path: str, guard: GuardPipe) -> str:
    """Start the runners of all GPU sets; returns in each of them, never in the starter.

    What keeps it from starting them is said in the batch script's output, and ends it.

    Args:
        path: The directory of the pack of the first set.
        guard: The line to the guard.

    Returns:
        The directory of the pack whose runner this process is now.
    """
    try:
        return _start_runners(path, guard)
    except CollocError as error:
        sys.stderr.write(f"csub: error: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        sys.stderr.write(f"csub: error: the runners of {path} cannot be started: {error}\n")
        sys.exit(1)


def _start_runners(path: str, guard: GuardPipe) -> str:
    """See `become_runner`.

    Raises:
        StateError: The pack cannot be read.
        OSError: There are not as many processes to be had; those that were are ended again.
    """
    record = insist("reading the pack", lambda: read_own_pack(Path(path)))
    if record is None:
        raise StateError(f"{path} is not on this node")
    packs = [Path(path).parent / name for name in list_gpu_set_packs(record)]
    allocation = read_allocation(read_given_environment())
    division = divide_job(packs, record, allocation)
    _write_down(packs, division)
    for name in LOADED_ONCE:
        import_module(name)
    write_methods()
    gc.collect()
    # What is there now stays: a collection would copy all of it into each runner.
    gc.freeze()
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    started: dict[int, str] = {}
    for number, pack in enumerate(packs):
        try:
            pid = fork_keeping_signals()
        except OSError:
            _end(started)
            raise
        if pid == 0:
            os.close(go_write)
            if not os.read(go_read, 1):
                # The starter was killed before the guard knew of this process.
                os._exit(1)
            os.close(go_read)
            enter_share(division.shares[number], _find_cpus(pack, record))
            return str(pack)
        started[pid] = str(pack)
    guard.name_runners(started)
    os.write(go_write, b"!" * len(started))
    os._exit(0)


def _end(started: Iterable[int]) -> None:
    for pid in started:
        os.kill(pid, signal.SIGKILL)  # noqa: TID251 - its own
        os.waitpid(pid, 0)


def _find_cpus(pack: Path, first: PackRecord) -> int:
    """The CPUs that a set was planned with; its runner tells where its record cannot be read."""
    record = first
    with contextlib.suppress(StateError):
        record = read_pack(pack) or first
    return 1 if record.request is None else record.request.cpus


def _write_down(packs: list[Path], division: GpuDivision) -> None:
    for number, (pack, share) in enumerate(zip(packs, division.shares, strict=True)):
        Journal(pack).write(
            "gpu_set",
            set=number,
            gpus=share.gpus,
            cpus=share.cpus,
            host_memory_mb=share.host_memory_mb,
            problem=share.problem,
            notes=division.notes,
        )
