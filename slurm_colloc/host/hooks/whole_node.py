"""What is done about all jobs of a node together: clearing up at boot, and saying what there is."""

from __future__ import annotations

import time

from slurm_colloc.errors import CollocError, NodeError, StateError
from slurm_colloc.host.hooks.hook_job import READY
from slurm_colloc.host.hooks.hook_report import HookPlace, HookReport, describe_recovered
from slurm_colloc.host.hooks.node_policy import MIG_SWITCH, NodePolicy, read_policy
from slurm_colloc.host.hooks.recover_jobs import RECOVERY_S, read_or_guess, recover
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc.host.nvml.nvml_query import NVML_S, start_question
from slurm_colloc.host.system.node_processes import list_processes, read_boot_id, read_uid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurm_colloc.host.mig.kept_modes import ModeAfterBoot

_MODES_S = 12.0
"""How long turning MIG on again may take; a mode takes about a second."""


def run_recover(place: HookPlace, node: str) -> tuple[HookReport, list[dict[str, Any]]]:
    """Undo what dead jobs have left, and turn MIG on again where a reboot has lost it."""
    lost, problem = _list_lost_modes(place)
    try:
        run = RunDirectory(place.run, makes=bool(lost))
    except FileNotFoundError:
        report = HookReport(outcome="nothing was prepared")
        if problem:
            report.details["mig"] = [problem]
        return report, []
    with run:
        found = recover(run, driver=place.driver, node=node)
        modes = _restore_modes(place, node, run, lost) if lost else ()
        run.sweep_aside(time.monotonic() + RECOVERY_S)
    told = [describe_recovered(one) for one in found]
    unsafe = [text for one in found if one.report for text in one.report.unsafe]
    unsafe += [one.told for one in modes if one.is_unsafe]
    report = HookReport("recovered", details={"jobs": told}, exit_status=1 if unsafe else 0)
    report.outcome = "; ".join(unsafe)
    if about_mig := [*([problem] if problem else []), *(one.told for one in modes)]:
        report.details["mig"] = about_mig
    return report, told


def _list_lost_modes(place: HookPlace) -> tuple[tuple[str, ...], str]:
    """GPUs that had MIG on before the reboot, and why they are not known."""
    from slurm_colloc.host.mig.kept_modes import list_lost_modes

    state = _read_policy(place).state_directory
    try:
        return list_lost_modes(state), ""
    except (NodeError, OSError) as error:
        return (), f"on which GPUs MIG was on before a reboot is not known: {state}: {error}"


def _restore_modes(
    place: HookPlace, node: str, run: RunDirectory, lost: tuple[str, ...]
) -> tuple[ModeAfterBoot, ...]:
    from slurm_colloc.host.mig.kept_modes import ModeAfterBoot, restore_modes

    if _is_slurmd_up():
        # Jobs may have these GPUs, with no process on them yet. A prolog knows whose they are.
        return tuple(
            ModeAfterBoot(
                uuid,
                f"MIG was on on {uuid} before the reboot: as slurmd runs, the next job that asks "
                f"for MIG there turns it on again",
            )
            for uuid in lost
        )
    policy = _read_policy(place)
    return restore_modes(
        start_question(place.driver, node, uuids=lost).ask(NVML_S),
        lost,
        state=policy.state_directory,
        may_switch=policy.mig == MIG_SWITCH,
        lock=run.lock_path,
        driver=place.driver,
        node=node,
        ends_at=time.monotonic() + _MODES_S,
    )


def _is_slurmd_up() -> bool:
    return any(
        process.name == "slurmd" and not process.has_ended and read_uid(process.id.pid) == 0
        for process in list_processes()
    )


def _read_policy(place: HookPlace) -> NodePolicy:
    """The policy; one that keeps nothing where it cannot be believed."""
    try:
        return read_policy(place.policy)
    except StateError:
        return NodePolicy(enabled=False, state_directory="")


def find_divided(place: HookPlace, job_id: str, *, spares_ready: bool) -> str:
    """Say which GPUs are, or may be, still divided for a job; empty where none is.

    Args:
        place: Where.
        job_id: The job.
        spares_ready: Nothing is said of one that is prepared.
    """
    try:
        run = RunDirectory(place.run, makes=False, needs_lock=False)
    except (CollocError, OSError):
        # It is not root's alone: what it says is not believed.
        return ""
    with run:
        checkpoint, problem = read_or_guess(run, job_id)
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
        run = RunDirectory(place.run, makes=False, needs_lock=False)
    except FileNotFoundError:
        return status
    with run:
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
    return status
