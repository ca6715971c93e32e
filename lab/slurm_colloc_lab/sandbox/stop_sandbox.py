"""Ending what belongs to a sandbox, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from slurm_colloc.errors import CollocError, SlurmError
from slurm_colloc.host.system.node_processes import ProcessId, list_running_processes
from slurm_colloc_lab.sandbox import daemons
from slurm_colloc_lab.sandbox.cgroups import find_node_groups, remove_groups
from slurm_colloc_lab.sandbox.daemons import is_port_listening
from slurm_colloc_lab.sandbox.sandbox_processes import stop_processes, wait_until
from slurm_colloc_lab.sandbox.sandbox_record import SandboxRecord, read_record
from slurm_colloc_lab.sandbox.sandbox_spec import Layout
from slurm_colloc_lab.sandbox.sandbox_status import run_command

_CANCEL_S = 4.0
_TERM_S = 3.0
_ROUNDS = 10


def cancel_all_jobs(layout: Layout, record: SandboxRecord) -> None:
    """Let jobs end as scancel ends them; what does not end in time is killed later."""
    if not is_port_listening(record.controller_port) or not daemons.is_running(layout, "slurmctld"):
        return
    try:
        listed = run_command(layout, ["squeue", "-h", "-o", "%F"], timeout_s=_CANCEL_S)
        if not listed.strip():
            return
        run_command(layout, ["scancel", "-Q", *sorted(set(listed.split()))], timeout_s=_CANCEL_S)
        wait_until(
            lambda: not run_command(layout, ["squeue", "-h", "-o", "%F"], timeout_s=_CANCEL_S),
            _CANCEL_S,
            poll_s=0.1,
        )
    except CollocError:
        # A controller that hangs must not keep its cluster from going down.
        return


def stop_everything(layout: Layout, record: SandboxRecord | None) -> bool:
    """End all processes of this sandbox and remove its cgroups; whether there were any."""
    names = list_known_nodes(layout, record)
    table = list_running_processes()
    slurmds = set(daemons.find_all_slurmd(layout, table))
    ended = bool(slurmds)
    jobs = daemons.find_job_processes(layout, names, table) if names else set()
    ended |= bool(jobs)
    stop_surely(layout, slurmds, term_s=_TERM_S)
    stop_surely(layout, jobs, term_s=0)
    stop_job_processes(layout, names)
    table = list_running_processes()
    for found in (
        daemons.find_slurmctld(layout, table),
        daemons.find_slurmdbd(layout, table),
        daemons.find_database(layout, table),
        daemons.find_munged(layout, table),
    ):
        ended |= bool(found)
        stop_surely(layout, set(found), term_s=10.0)
    wait_until(lambda: not remove_groups(find_node_groups(names)), 2.0)
    for leftover in (layout.munge_socket, layout.run / "munge.sock.lock"):
        leftover.unlink(missing_ok=True)
    for name in names:
        shutil.rmtree(layout.spool / name, ignore_errors=True)
    return ended


def list_known_nodes(layout: Layout, record: SandboxRecord | None) -> tuple[str, ...]:
    """The remembered nodes, and those of an earlier life that left a spool directory."""
    if record is None:
        record = read_record(layout.record)
    names = set(record.node_names if record else ())
    if layout.spool.is_dir():
        names |= {entry.name for entry in layout.spool.iterdir() if entry.is_dir()}
    return tuple(sorted(names))


def stop_job_processes(layout: Layout, names: Sequence[str]) -> None:
    """KILL job processes until a look at the process table finds no new ones."""
    for _ in range(_ROUNDS):
        left = daemons.find_job_processes(layout, names, list_running_processes())
        if not left:
            return
        stop_surely(layout, left, term_s=0)
    raise SlurmError(f"jobs of the sandbox in {layout.directory} start faster than they end")


def stop_surely(layout: Layout, identities: set[ProcessId], *, term_s: float) -> None:
    """TERM, then KILL after `term_s` seconds (0: at once).

    Raises:
        SlurmError: A process outlives even that.
    """
    left = stop_processes(identities, term_s=term_s)
    if left:
        pids = ", ".join(str(identity.pid) for identity in sorted(left))
        raise SlurmError(
            f"process {pids} of the sandbox in {layout.directory} does not end",
            hint="it hangs in the kernel; try again later",
        )
