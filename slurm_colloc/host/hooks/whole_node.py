"""What is done about all jobs of a node together: clearing up at boot, and saying what there is."""

from __future__ import annotations

import time

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.host.hooks.checkpoint import READY
from slurm_colloc.host.hooks.hook_report import HookPlace, HookReport, describe_recovered
from slurm_colloc.host.hooks.node_policy import read_policy
from slurm_colloc.host.hooks.recover_jobs import RECOVERY_S, read_or_guess, recover
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc.host.system.node_processes import read_boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run_recover(place: HookPlace, node: str) -> tuple[HookReport, list[dict[str, Any]]]:
    """Undo what dead jobs have left."""
    try:
        run = RunDirectory(place.run, makes=False)
    except FileNotFoundError:
        return HookReport(outcome="nothing was prepared"), []
    try:
        found = recover(run, simulation=place.simulation, node=node)
        run.sweep_aside(time.monotonic() + RECOVERY_S)
    finally:
        run.close()
    told = [describe_recovered(one) for one in found]
    unsafe = [text for one in found if one.report for text in one.report.unsafe]
    report = HookReport("recovered", details={"jobs": told}, exit_status=1 if unsafe else 0)
    report.outcome = "; ".join(unsafe)
    return report, told


def find_divided(place: HookPlace, job_id: str, *, spares_ready: bool) -> str:
    """Say which GPUs are, or may be, still divided for a job; empty where none is.

    Args:
        place: Where.
        job_id: The job.
        spares_ready: Nothing is said of one that is prepared.
    """
    try:
        run = RunDirectory(place.run, makes=False)
    except (CollocError, OSError):
        # It is not root's alone: what it says is not believed.
        return ""
    try:
        checkpoint, problem = read_or_guess(run, job_id)
    finally:
        run.close()
    if checkpoint is None or not checkpoint.divides:
        return ""
    if spares_ready and checkpoint.phase == READY:
        return ""
    if checkpoint.doubt:
        return f"not fit for the next job: {problem}"
    gpus = ", ".join(claim.gpu for claim in checkpoint.mig)
    return f"not fit for the next job: {gpus} is still divided for job {job_id}"


def build_status(place: HookPlace) -> dict[str, Any]:
    """What root has prepared on this node now."""
    status: dict[str, Any] = {"schema": 1, "run_directory": place.run, "jobs": []}
    try:
        policy = read_policy(place.policy)
        status["policy"] = {"path": place.policy, "enabled": policy.enabled, "problem": ""}
    except StateError as error:
        status["policy"] = {"path": place.policy, "enabled": None, "problem": str(error)}
    try:
        run = RunDirectory(place.run, makes=False)
    except FileNotFoundError:
        return status
    try:
        for job_id in run.list_jobs():
            checkpoint, problem = read_or_guess(run, job_id)
            if checkpoint is None:
                continue
            peers = [read_peer(f"{run.path}/{job_id}/{name}/p") for name in checkpoint.daemons]
            status["jobs"].append(
                {
                    "job_id": job_id,
                    "uid": None if problem else checkpoint.uid,
                    "phase": checkpoint.phase,
                    "mode": checkpoint.mode,
                    "gpus": list(checkpoint.gpus),
                    "daemon_pids": [None if peer is None else peer.pid for peer in peers],
                    "is_of_this_boot": checkpoint.boot == read_boot_id(),
                    "problem": problem,
                }
            )
    finally:
        run.close()
    return status
