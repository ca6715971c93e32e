"""What slurmd's hooks call: `python -I -B -m slurm_colloc.host.lifecycle COMMAND`; who: root.

    prolog    prepare what the job's comment asks for, within the site's policy
    epilog    undo what the checkpoint of the job says
    recover   undo what dead jobs have left, at boot
    status    say what there is, as JSON

A hook fails only where the node is not fit for the next job (or the policy is strict): Slurm drains
the node then. The prolog's script passes on no other status than UNSAFE_PROLOG, so that a broken
installation drains nothing. Every other fault is told to the job in setup.json, and to the audit
log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from slurm_colloc.errors import CollocError, StateError, UsageProblem
from slurm_colloc.host.hooks.hook_job import DEFAULT_RUN, HookJob, read_hook_job
from slurm_colloc.host.hooks.hook_report import DRIVER_VARIABLE, HookPlace, HookReport
from slurm_colloc.host.hooks.node_policy import DEFAULT_POLICY, NodePolicy, read_policy

UNSAFE_PROLOG = 10
"""hooks/prolog.sh turns it into 1, and everything else into 0."""

COMMANDS = ("prolog", "epilog", "recover", "status")
USAGE = (
    "usage: python -m slurm_colloc.host.lifecycle prolog|epilog|recover|status "
    "[--run-directory DIRECTORY] [--policy FILE]"
)

# -- the command line -----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status of the hook."""
    command, run, policy = _read_arguments(sys.argv[1:] if argv is None else argv)
    if command not in COMMANDS:
        sys.stderr.write(f"{USAGE}\n")
        return UsageProblem.exit_code
    # From a constant line of the hook's script, never from the job.
    place = HookPlace(run, policy, os.environ.get(DRIVER_VARIABLE, ""))
    try:
        if os.geteuid() != 0:
            raise StateError("this is for slurmd to call, as root")
        if command == "status":
            from slurm_colloc.host.hooks.whole_node import build_status

            sys.stdout.write(json.dumps(build_status(place), indent=2) + "\n")
            return 0
        os.umask(0o077)
        os.chdir("/")
        if command == "recover":
            return _recover_and_tell(place)
        job = read_hook_job(os.environ)
    except (CollocError, OSError) as problem:
        sys.stderr.write(f"slurm_colloc: error: {problem}\n")
        return problem.exit_code if isinstance(problem, CollocError) else 1
    return _run_hook(command, place, job)


def _read_arguments(words: Sequence[str]) -> tuple[str, str, str]:
    """Command, run directory and policy; an empty command where they are not understood."""
    values = {"--run-directory": DEFAULT_RUN, "--policy": DEFAULT_POLICY}
    options = words[1:]
    if not words or len(options) % 2 or not set(options[::2]) <= set(values):
        return "", "", ""
    values.update(zip(options[::2], options[1::2], strict=True))
    return words[0], values["--run-directory"], values["--policy"]


def _recover_and_tell(place: HookPlace) -> int:
    from slurm_colloc.host.hooks.whole_node import run_recover
    from slurm_colloc.host.system.signals import act_as_hook

    act_as_hook()
    started = time.monotonic()
    policy, problem = _read_policy(place)
    report, told = run_recover(place, os.environ.get("SLURMD_NODENAME", ""))
    if problem:
        report.details["policy"] = problem
    _audit(policy, "recover", None, report, started)
    about_mig = report.details.get("mig", [])
    told_all = {"schema": 1, "jobs": told, "mig": about_mig}
    sys.stdout.write(json.dumps(told_all, indent=2) + "\n")
    return report.exit_status


def _run_hook(command: str, place: HookPlace, job: HookJob) -> int:
    started = time.monotonic()
    # slurmd waits until no process has its pipes any more, be it a child that hangs in the kernel.
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    policy, problem = _read_policy(place)
    # Neither loads what only the other needs. A broken installation ends with a status of its own.
    if command == "epilog":
        from slurm_colloc.host.hooks.epilog import run_epilog
    else:
        from slurm_colloc.host.hooks.prolog import run_prolog
    from slurm_colloc.host.system.signals import act_as_hook

    act_as_hook()
    try:
        if command == "epilog":
            report = run_epilog(place, policy, job)
        elif problem:
            report = HookReport(outcome=problem)
        else:
            report = run_prolog(place, policy, job)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not drain the node
        report = HookReport(outcome=f"unforeseen: {type(error).__name__}: {error}")
    # Whatever the way out, no job starts on a GPU that is divided for one that is over.
    if report.action != "prepared" and not report.exit_status:
        _fail_if_divided(command, place, job, report)
    if problem:
        report.details["policy"] = problem
    if report.action != "none" or report.outcome != "nothing was prepared":
        _audit(policy, command, job, report, started)
    if command == "prolog" and report.exit_status:
        return UNSAFE_PROLOG
    return report.exit_status


def _fail_if_divided(command: str, place: HookPlace, job: HookJob, report: HookReport) -> None:
    if not os.path.lexists(f"{place.run}/jobs/{job.job_id}.json"):
        return
    from slurm_colloc.host.hooks.whole_node import find_divided

    divided = find_divided(place, job.job_id, spares_ready=command == "prolog")
    if divided:
        report.exit_status = 1
        report.outcome = f"{divided}; {report.outcome}" if report.outcome else divided


def _read_policy(place: HookPlace) -> tuple[NodePolicy, str]:
    """The policy, or the built-in one and why: an epilog undoes whatever became of the policy."""
    try:
        return read_policy(place.policy), ""
    except StateError as error:
        return NodePolicy(enabled=False), str(error)


def _audit(
    policy: NodePolicy, command: str, job: HookJob | None, report: HookReport, started: float
) -> None:
    from slurm_colloc.host.system.signals import RECORD

    about = {} if job is None else {"job": job.job_id, "uid": job.uid, "node": job.node}
    entry = report.build_entry(command, time.monotonic() - started, about)
    entry |= RECORD.describe()
    if policy.ignored:
        entry["ignored"] = list(policy.ignored)
    from slurm_colloc.host.hooks.audit_log import write_audit

    write_audit(policy.audit_log, entry)


if __name__ == "__main__":
    sys.exit(main())
