"""Clearing up after jobs whose epilog did not run or did not come to its end; who: root.

Also: which jobs Slurm runs something of on this node, as the kernel says; calls no Slurm.

It runs at boot and in each prolog of a job of ours, there within a budget of its own: first for
dead jobs that still hold the new job's GPUs, for all others once the new job has what it asked for.
What is not proven to be of a dead job is left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.host.hooks.hook_job import (
    SLUID,
    UNDOING,
    Checkpoint,
    DamagedCheckpoint,
    guess_checkpoint,
)
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.system.node_processes import read_boot_id, read_process, read_uids
from slurm_colloc.host.system.signals import end_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc.host.hooks.epilog import UndoReport


STARTING_S = 60.0
"""How long a job whose prolog has ended may take to show a process, where its GPU is another's."""

RECOVERY_S = 30.0
"""How long clearing up may take at boot, where no job waits for it."""

UNSEEN_S = 900.0
"""How long a job of which nothing was ever seen is taken for one that waits for its first step."""


@dataclass(frozen=True)
class Recovered:
    """What was found of another job.

    Args:
        job_id: Which.
        report: How it was undone; None where it was left alone.
        reason: Why it was undone, or left alone.
        divided: GPUs that are, or may be, still divided for it although it may not live.
    """

    job_id: str
    report: UndoReport | None
    reason: str
    divided: tuple[str, ...] = ()


def find_death(
    checkpoint: Checkpoint,
    *,
    boot: str,
    running: Collection[str] | None,
    claimed: Collection[str],
    now: float,
) -> str:
    """Say why a job is dead; empty where it may live. Pure.

    Args:
        checkpoint: The job's checkpoint, whose lock is free.
        boot: This boot.
        running: Jobs, by id or SLUID, of which Slurm runs something here; None where that cannot
            be told.
        claimed: GPUs that Slurm has just given to another job.
        now: The time (seconds since 1970).
    """
    if checkpoint.boot != boot:
        return "the node has been rebooted"
    if checkpoint.phase == UNDOING:
        return "its epilog did not come to its end"
    if running is None or is_running(checkpoint, running):
        return ""
    age_s = now - checkpoint.made_at
    if checkpoint.seen:
        return "Slurm no longer runs it"
    if set(checkpoint.gpus) & set(claimed) and age_s > STARTING_S:
        return "Slurm has given its GPU to another job"
    if age_s > UNSEEN_S:
        return "it was never seen to run"
    return ""


def is_running(checkpoint: Checkpoint, running: Collection[str]) -> bool:
    """Whether Slurm runs something of a job; pure."""
    return checkpoint.job_id in running or (checkpoint.sluid or None) in running


def recover(
    run: RunDirectory,
    *,
    besides: str = "",
    claimed: Collection[str] = (),
    driver: str = "",
    node: str = "",
    holders_only: bool = False,
    budget_s: float = RECOVERY_S,
) -> tuple[Recovered, ...]:
    """Undo what dead jobs have left.

    Args:
        run: Root's directory.
        besides: A job that is left out, because its own prolog looks after it.
        claimed: GPUs that Slurm has just given to that job.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
        holders_only: Look only at jobs that hold one of those GPUs.
        budget_s: How long it may take in all; what is left is for the next hook.
    """
    found = []
    known = {*run.list_jobs(), *run.list_drafts(), *run.list_directories()}
    jobs = sorted(known - {besides}, key=int)
    if holders_only:
        jobs = [job_id for job_id in jobs if _holds(run, job_id, claimed)]
    deadline = time.monotonic() + budget_s
    # The process table is read once, and only where there is something to judge by it.
    running: frozenset[str] | None = frozenset()
    if jobs:
        running = list_running_jobs()
    for job_id in jobs:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            told = "no time was left: the next hook looks at it"
            found.append(Recovered(job_id, None, told, _list_divided(run, job_id)))
            continue
        try:
            with run.locked_job(job_id, 0.0):
                checkpoint, reason = _judge(run, job_id, running, claimed)
                if checkpoint is None:
                    # Its own epilog has just ended, or a prolog was killed over its first file.
                    run.remove(job_id)
                    continue
                undone = None
                if reason:
                    # Most prologs find nothing dead.
                    from slurm_colloc.host.hooks.epilog import MIG_UNDO_S, UNDOING_S, JobUndo
                    from slurm_colloc.host.nvml.nvml_query import NVML_S

                    undone = JobUndo(
                        run,
                        checkpoint,
                        driver=driver,
                        node=node,
                        budget_s=min(left_s, UNDOING_S),
                        nvml_s=min(left_s, NVML_S),
                        mig_s=min(left_s, MIG_UNDO_S),
                        slow_until=deadline,
                    ).undo()
                divided = _list_divided(run, job_id) if reason else ()
                found.append(Recovered(job_id, undone, reason or "its job may be alive", divided))
        except TimeoutError:
            told = "another hook is at work on it"
            found.append(Recovered(job_id, None, told, _list_divided(run, job_id)))
    return tuple(found)


def _holds(run: RunDirectory, job_id: str, claimed: Collection[str]) -> bool:
    checkpoint, _ = read_or_guess(run, job_id)
    return checkpoint is not None and not set(claimed).isdisjoint(checkpoint.gpus)


def describe_divided(found: Collection[Recovered], gpus: Collection[str]) -> str:
    """Say which of a job's GPUs are still divided for another; empty where none is; pure.

    Args:
        found: What was found of the others.
        gpus: The job's GPUs.
    """
    for one in found:
        if held := set(gpus).intersection(one.divided):
            why = "; ".join(one.report.unsafe + one.report.left) if one.report else one.reason
            return (
                f"not fit for this job: {', '.join(sorted(held))} is still divided for job "
                f"{one.job_id}: {why}"
            )
    return ""


def _list_divided(run: RunDirectory, job_id: str) -> tuple[str, ...]:
    checkpoint, _ = read_or_guess(run, job_id)
    return checkpoint.gpus if checkpoint is not None and checkpoint.divides else ()


def _judge(
    run: RunDirectory, job_id: str, running: Collection[str] | None, claimed: Collection[str]
) -> tuple[Checkpoint | None, str]:
    """A job's checkpoint, and why the job is dead; empty where it may live."""
    checkpoint, problem = read_or_guess(run, job_id)
    if checkpoint is None:
        return None, ""
    if problem:
        is_dead = running is not None and not is_running(checkpoint, running)
        return checkpoint, problem if is_dead else ""
    reason = find_death(
        checkpoint, boot=read_boot_id(), running=running, claimed=claimed, now=time.time()
    )
    if not reason and running and is_running(checkpoint, running) and not checkpoint.seen:
        # On a full disk it is noted the next time.
        with contextlib.suppress(OSError):
            run.write(replace(checkpoint, seen=True))
    return checkpoint, reason


def read_or_guess(run: RunDirectory, job_id: str) -> tuple[Checkpoint | None, str]:
    """Read a checkpoint, or make up one that undoes what can be seen without it.

    Returns:
        The checkpoint, None where there is nothing of the job at all; and what is wrong with it,
        empty where nothing is.
    """
    try:
        checkpoint = run.read(job_id)
    except DamagedCheckpoint as error:
        return guess_checkpoint(job_id, error), str(error)
    if checkpoint is None and job_id in run.list_directories():
        return Checkpoint(job_id, -1, -1, phase=UNDOING), "it has a directory and no checkpoint"
    return checkpoint, ""


# ---- Which jobs Slurm runs something of on this node, as the kernel says; calls no Slurm ---------
#
# A process is looked at by stat, status and cgroup alone, which wait for no other process. Slurm's
# control groups are root's. Without them only the title of a slurmstepd tells its job: it is
# believed of uid 0 alone, and read in a child of its own, because reading it may hang.

_STEP_DAEMON = "slurmstepd"
_TITLE = re.compile(rb"slurmstepd: \[([0-9]{1,10})\.")
_TITLE_BYTES = 128
_TITLES_S = 0.5
_END = b".\n"
# v1 .../slurm/uid_1000/job_4711/..., v2 .../slurmstepd.scope/job_4711/..., 26.05 .../sEKN.../...
_GROUP = re.compile(
    r"/slurm[^/]*/uid_[0-9]+/job_(?P<v1>[0-9]{1,10})(?:/|$)"
    r"|/(?:[^/]+_)?slurmstepd\.scope/(?:job_(?P<v2>[0-9]{1,10})|(?P<sluid>" + SLUID.pattern + r"))"
    r"(?:/|$)"
)
# A user's own service manager may make groups of any name below these.
_OF_USERS = ("/user.slice/", "/machine.slice/")


def list_running_jobs() -> frozenset[str] | None:
    """Ids and SLUIDs of the jobs of which this node has a process in one of Slurm's groups.

    Where Slurm has no control groups: of which it has a slurmstepd. A job that was allocated and
    runs no step yet has neither.

    Returns:
        The jobs; None where a slurmstepd did not tell its job in time.
    """
    found: set[str] = set()
    unplaced = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            jobs = _find_jobs(f"/proc/{name}")
            found.update(jobs)
            if not jobs and _is_step_daemon(int(name)):
                unplaced.append(int(name))
    titles = _read_titles(unplaced)
    return None if titles is None else frozenset(found) | titles


def _find_jobs(directory: str) -> tuple[str, ...]:
    try:
        with open(f"{directory}/cgroup", encoding="utf-8", errors="replace") as file:
            return find_jobs_of_cgroups(file.read())
    except OSError:
        return ()


def find_jobs_of_cgroups(text: str) -> tuple[str, ...]:
    """The jobs that a process belongs to, by id or SLUID; pure.

    Args:
        text: The text of /proc/PID/cgroup.
    """
    paths = (line.split(":", 2)[-1] for line in text.splitlines())
    matches = (_GROUP.search(path) for path in paths if not path.startswith(_OF_USERS))
    return tuple(match[match.lastgroup or 0] for match in matches if match is not None)


def _is_step_daemon(pid: int) -> bool:
    process = read_process(pid)
    if process is None or process.has_ended or not process.name.startswith(_STEP_DAEMON):
        return False
    return set(read_uids(pid) or (-1,)) == {0}


def _read_titles(pids: Sequence[int]) -> frozenset[str] | None:
    """The jobs in the titles of root's own slurmstepds; None where one cannot be read in time."""
    if not pids:
        return frozenset()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for pid in pids:
                title = b""
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        title = file.read(_TITLE_BYTES)
                except OSError:
                    pass
                match = _TITLE.match(title)
                if match is not None:
                    os.write(write_end, match[1] + b"\n")
            os.write(write_end, _END)
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        data = _read_until(read_end, time.monotonic() + _TITLES_S)
    finally:
        os.close(read_end)
        end_child(child)
        os.waitpid(child, os.WNOHANG)
    if not data.endswith(_END):
        return None
    return frozenset(data.removesuffix(_END).decode("ascii").split())


def _read_until(descriptor: int, deadline: float) -> bytes:
    """What comes until the other end is closed, or no time is left."""
    data = b""
    while (left_s := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], left_s)[0]:
            break
        chunk = os.read(descriptor, 65536)
        if not chunk:
            break
        data += chunk
    return data
