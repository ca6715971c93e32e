"""`csub admin status` and `recover`: what hooks have prepared on this node, and its end."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
import time
from typing import Any

from slurm_colloc.administration.node_files import read_record
from slurm_colloc.administration.places import Places, find_places
from slurm_colloc.administration.status_view import (
    describe_recovered_job,
    list_unsafe,
    render_status,
)
from slurm_colloc.cli.admin_hooks import need_root
from slurm_colloc.errors import CollocError
from slurm_colloc.host.audit import write_audit
from slurm_colloc.host.hook_report import HookReport, Place
from slurm_colloc.host.policy import read_policy
from slurm_colloc.model.printable import escape_controls

NOT_FIT = 1
"""How `recover` ends where the node is not fit for jobs, as a hook does."""

_AS_ROOT = "call it with sudo"


def show_status(options: argparse.Namespace) -> int:
    """Print what hooks have prepared for jobs of this node.

    Raises:
        CollocError: It is not root, or the run directory cannot be believed.
    """
    need_root("see what the hooks have prepared", hint=_AS_ROOT)
    from slurm_colloc.host.whole_node import build_status

    place = find_place(find_places(os.environ))
    status = build_status(place)
    for job in status["jobs"]:
        job.setdefault("made_at", _read_made_at(place.run, job["job_id"]))
    if options.json:
        sys.stdout.write(json.dumps(status) + "\n")
    else:
        sys.stdout.write(render_status(status, _name_user))
    return 0


def recover_node(options: argparse.Namespace) -> int:
    """Undo what jobs have left that are gone; 0 where the node is fit for jobs.

    Raises:
        CollocError: It is not root, or the run directory cannot be believed.
    """
    need_root("undo what jobs have left", hint=_AS_ROOT)
    from slurm_colloc.host.whole_node import run_recover

    place = find_place(find_places(os.environ))
    # As the unit of systemd does it.
    os.umask(0o077)
    os.chdir("/")
    started = time.monotonic()
    report, told = run_recover(place, os.environ.get("SLURMD_NODENAME", ""))
    problem = _leave_line(place, report, time.monotonic() - started)
    unsafe = list_unsafe(told)
    is_fit = not report.exit_status
    if options.json:
        sys.stdout.write(json.dumps({"schema": 1, "is_fit": is_fit, "jobs": told}) + "\n")
    else:
        for found in told:
            sys.stdout.write(f"{describe_recovered_job(found)}\n")
        if not told:
            sys.stdout.write("nothing is prepared\n")
    if problem:
        _warn(f"the audit log has no line of this: {problem}")
    if is_fit:
        return 0
    _warn(
        f"this node is not fit for jobs: {'; '.join(unsafe) or report.outcome}: keep it drained, "
        "end what holds the GPU or reboot, then call this again, csub admin verify, and scontrol "
        "update NodeName=NODE State=RESUME"
    )
    return NOT_FIT


def find_place(places: Places) -> Place:
    """Where the installed hooks work; where they usually would if none are installed.

    Raises:
        StateError: The record of what was installed cannot be read.
    """
    record = read_record(places) or {}
    run, policy = record.get("run"), record.get("policy")
    return Place(
        run=run if isinstance(run, str) else places.run_path,
        policy=policy if isinstance(policy, str) else places.policy_path,
        simulation=places.simgpu,
    )


def _leave_line(place: Place, report: HookReport, took_s: float) -> str:
    """Write the audit log's line; why it could not be written, empty where it was."""
    try:
        log = read_policy(place.policy).audit_log
    except CollocError as error:
        report.details["policy"] = str(error)
        log = ""
    entry: dict[str, Any] = {
        "hook": "recover",
        "mode": report.mode,
        "action": report.action,
        "outcome": report.outcome,
        "ms": round(took_s * 1000, 1),
        "exit": report.exit_status,
        **report.details,
    }
    return write_audit(log, entry)


def _read_made_at(run: str, job_id: str) -> float | None:
    """When a job's prolog began, by its checkpoint (seconds since 1970)."""
    try:
        with open(f"{run}/jobs/{job_id}.json", "rb") as file:
            return float(json.loads(file.read())["made_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return "?"


def _warn(text: str) -> None:
    sys.stderr.write(f"csub: {escape_controls(text)}\n")
