"""The runners of a Slurm job with several GPU sets, one for each; who: the node's starter.

Also: the other nodes of a pack's Slurm job: a step on each runs a guard and runners of its own; a
node of several whose step has ended: its members start again in the GPU sets of the others.

It loads what all of them need, divides what the job has on the node, and forks them: so they share
most of their memory, and what Slurm gave is divided once. None goes on before the guard knows of
all. The starter of the first node has those of the others started.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from slurm_colloc.errors import CollocError, SlurmError, StateError
from slurm_colloc.model.late_definitions import KW_ONLY, dataclass, replace, write_methods
from slurm_colloc.model.member import EndCause, MemberState, is_guest
from slurm_colloc.runtime.allocation import (
    Allocation,
    read_allocation,
    read_host_memory_mb,
    requeues_jobs,
)
from slurm_colloc.runtime.divide_gpus import divide_job, enter_share
from slurm_colloc.runtime.guard import GuardPipe, fork_keeping_signals
from slurm_colloc.runtime.guarded_steps import Journal, insist
from slurm_colloc.runtime.member_environment import build_step_environment
from slurm_colloc.runtime.requeue_after_kill import JobStanding, judge_standing
from slurm_colloc.runtime.step_command import StartedProcess, build_srun_argv, start_process
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import list_node_packs
from slurm_colloc.store.member_states import StateRecord, read_attempt, read_state, write_state
from slurm_colloc.store.pack_directory import (
    GpuDivision,
    PackRecord,
    read_division,
    read_own_pack,
    read_pack,
    read_spec,
)
from slurm_colloc.store.written_ends import RunnerKill, find_written_end, read_kill, write_kill

# ---- The other nodes of a pack's Slurm job: a step on each runs a guard and runners of its own ---
#
# Who: the user; where: the first node, in the job's starter, and what comes of it on the other
# ones.
#
# Slurm gives a step variables of its own, and leaves others as they are on the first node. So the
# batch script's travel with it, and what is started there begins with what a batch script of that
# node would have.

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


# ---- The runners of a Slurm job with several GPU sets, one for each; who: the node's starter -----

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
    """Start the runners of all GPU sets on a node; returns in each of them, never in the starter.

    What keeps it from starting them is said in the batch script's output, and ends it.

    Args:
        path: The directory of the pack of the node's first set.
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
    arrive_on_node()
    packs = [Path(path).parent / name for name in list_node_packs(record, record.node)]
    allocation = read_allocation(read_given_environment())
    nodes = {} if record.node else start_other_nodes(Path(path), record, os.environ)
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
            _end([*started, *nodes])
            raise
        if pid == 0:
            os.close(go_write)
            if not os.read(go_read, 1):
                # The starter was killed before the guard knew of this process.
                os._exit(1)
            os.close(go_read)
            node = allocation.node if record.set_nodes else ""
            enter_share(division.shares[number], _find_cpus(pack, record), node)
            return str(pack)
        started[pid] = str(pack)
    guard.name_runners(started, nodes)
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


# ----
# A node of several whose step has ended: its members start again in the GPU sets of the others.
#
# Slurm takes a node that fails out of a job with --no-kill, and ends the steps there (sbatch(1)).
# The guard of the first node then sees the end of the srun that stood for it. A runner that is cut
# off and still lives is fenced first: it finds that it counts as gone, and ends its members.

FENCE_S = 3.0
"""How long a runner that is cut off may take to end its members; it looks once a second."""


def leave_node(path: str) -> bool:
    """Free what has not ended on a node; see `LeftNode.settle`."""
    allocation = read_allocation(read_given_environment())
    return LeftNode(Path(path), allocation, SlurmAccess()).settle()


@dataclass(eq=False)
class LeftNode:
    """A node whose step has ended.

    Attributes:
        pack: The directory of the pack of its first GPU set.
        allocation: What Slurm gave the batch script.
        slurm: Slurm.
        fence_s: How long a runner there may take to end its members.
    """

    pack: Path
    allocation: Allocation
    slurm: SlurmAccess
    _: KW_ONLY
    fence_s: float = FENCE_S

    def settle(self) -> bool:
        """Let members of runners that are gone start again elsewhere.

        Returns:
            All of them do: what became of the node is not the job's failure.

        Raises:
            StateError: The packs cannot be read, or what is found not be written down.
        """
        left = [path for path in self._list_packs() if not self._has_ended(path)]
        if not left or self._ends():
            return False
        node = self._find_name()
        for path in left:
            # A controller that does not answer is no reason to let the others wait for ever.
            attempt = read_attempt(path)
            kill = RunnerKill(
                self.allocation.restarts, attempt, 0, time.time(), "the others go on", node
            )
            write_kill(path, kill)
            Journal(path).write("node_left", node=node)
        time.sleep(self.fence_s)
        freed = [self._free(path, node) for path in left]
        return all(freed)

    def _list_packs(self) -> list[Path]:
        record = insist("reading the pack", lambda: read_pack(self.pack))
        if record is None:
            raise StateError(f"{self.pack} is not on this node")
        return [self.pack.parent / name for name in list_node_packs(record, record.node)]

    def _has_ended(self, path: Path) -> bool:
        """Whether a runner has done all it had to, or its own guard has seen it die."""
        is_closed = inbox.list_waiting(str(path)) is None
        return is_closed or read_kill(path, self.allocation.restarts) is not None

    def _ends(self) -> bool:
        """Whether Slurm is ending the whole job, or has started it again."""
        with contextlib.suppress(SlurmError):
            fields = self.slurm.read_job(self.allocation.job_id)
            if fields is not None:
                standing = judge_standing(fields, self.allocation.restarts, time.time())
                return standing is not JobStanding.RUNS
        return False

    def _find_name(self) -> str:
        with contextlib.suppress(StateError):
            division = read_division(self.pack)
            if division is not None and division.restarts == self.allocation.restarts:
                return division.node
        return "another node"

    def _free(self, path: Path, node: str) -> bool:
        """Free the members of one pack that had begun; False where one may not start again."""
        site_requeues = requeues_jobs(self._read_config())
        attempt = read_attempt(path)
        all_go_on = True
        for number in inbox.list_taken(str(path)):
            record = read_state(path, number, attempt)
            end = find_written_end(path, number, record, starts_again=True)
            if end is not None:
                record = replace(end, attempt=attempt)
                write_state(path, number, record)
            if record is None or record.is_final or not record.starts:
                inbox.set_free(str(path), number)
                continue
            wish = read_spec(path, number).job.requeue
            # One of another submission moves no more.
            may = (site_requeues if wish is None else wish) and not is_guest(number)
            write_state(path, number, _tell_of_node(record, node, attempt, goes_on=may))
            if may:
                inbox.set_free(str(path), number)
            all_go_on = all_go_on and may
        return all_go_on

    def _read_config(self) -> dict[str, str]:
        with contextlib.suppress(SlurmError):
            return self.slurm.read_config()
        return {}


def _tell_of_node(record: StateRecord, node: str, attempt: int, *, goes_on: bool) -> StateRecord:
    """A member's record after the failure of its node."""
    told = f"{node} has left the job"
    evidence = tuple(dict.fromkeys((*record.evidence, f"Slurm: {told}")))
    if goes_on:
        return replace(
            record,
            state=MemberState.PENDING,
            attempt=attempt,
            reason=f"{told}; it runs again",
            cause=EndCause.NODE_FAILURE.value,
            evidence=evidence,
        )
    return replace(
        record,
        state=MemberState.NODE_FAIL,
        attempt=attempt,
        ended_at=time.time(),
        reason=f"{told}; it may not be requeued",
        cause=EndCause.NODE_FAILURE.value,
        evidence=evidence,
    )
