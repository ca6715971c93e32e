"""`csub admin verify`: are the hooks of this node whole, and do they do what they should?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pwd
import re
import sys
from collections.abc import Mapping

from slurm_colloc.administration import hooks_in_use, node_files, verify_hooks
from slurm_colloc.administration.fake_job import FIRST_JOB_ID, FakeJob, choose_gpu
from slurm_colloc.administration.node_paths import find_places
from slurm_colloc.administration.node_plan import build_node_files
from slurm_colloc.administration.slurm_lines import HookKind, HookPlan
from slurm_colloc.administration.verify_hooks import Verification
from slurm_colloc.cli.admin.admin_hooks import need_root, read_config, restore_places
from slurm_colloc.errors import CollocError, NodeError, NotFound, UsageProblem
from slurm_colloc.host.hooks.node_policy import NodePolicy
from slurm_colloc.host.mps.daemon_limits import DaemonLimits, LimitedGroups, make_limited_groups
from slurm_colloc.host.system.control_groups import read_hierarchies, remove_groups


def verify(options: argparse.Namespace) -> int:
    """Look at everything, run the hooks once, print what was found; 0 where all is well.

    Raises:
        CollocError: There is nothing to verify, or no GPU to try it on.
    """
    need_root("run hooks as slurmd does")
    places = find_places(os.environ)
    record = node_files.read_record(places)
    if record is None:
        raise NotFound(
            f"no hooks are installed on this machine: there is no {places.record_path}",
            hint="csub admin install-hooks --node",
        )
    places = restore_places(places, record)
    try:
        user = pwd.getpwnam(options.user)
    except KeyError:
        raise UsageProblem(f"there is no user {options.user!r} on this machine") from None
    if user.pw_uid == 0:
        raise UsageProblem("the hooks never start a daemon for root", hint="name another --user")
    found = Verification(record["hooks"]["prolog"], record["hooks"]["epilog"])
    kinds: tuple[HookKind, ...] = ("prolog", "epilog")
    plans = [HookPlan(kind, record["hooks"][kind]) for kind in kinds]
    verify_hooks.check_files(found, build_node_files(places, plans))
    verify_hooks.check_python(found, places.prefix_path)
    policy = verify_hooks.check_policy(found, places.policy_path)
    config = _read_slurm(found)
    if config is not None:
        _check_slurm(found, record, config)
    if policy is not None:
        check_limits(found, policy, config or {})
    check_tracing(found)
    if found.passed and policy is not None:
        answer = verify_hooks.ask_nvml(places.prefix_path, places.driver)
        gpu = choose_gpu(answer, options.gpu, verify_hooks.read_held_gpus(places.run_path))
        job = FakeJob(
            job_id=str(FIRST_JOB_ID + os.getpid()),
            uid=user.pw_uid,
            gid=user.pw_gid,
            user=options.user,
            gpu=gpu,
            partition=options.partition or next(iter(policy.partitions), "verify"),
            account=options.account or next(iter(policy.accounts), "verify"),
            node=os.uname().nodename.partition(".")[0],
        )
        verify_hooks.try_hooks(found, job, policy, places.prefix_path)
    _report(found, as_json=options.json)
    if not found.passed:
        failed = [check.name for check in found.checks if check.outcome == "failed"]
        raise NodeError(f"the hooks of this node do not work yet: {', '.join(failed)}")
    return 0


def _read_slurm(found: Verification) -> Mapping[str, str] | None:
    """What the running Slurm is configured with; None where it cannot be asked."""
    try:
        return read_config("")
    except CollocError as problem:
        found.add("Slurm", ok=None, detail=f"not asked: {problem.message}")
        return None


def _check_slurm(found: Verification, record: dict[str, object], config: Mapping[str, str]) -> None:
    """Say whether Slurm calls the hooks; a node may be made ready before slurm.conf is."""
    places = find_places(os.environ)
    called = hooks_in_use.find_callers(record, hooks_in_use.read_config_values(config), places)
    for kind in ("prolog", "epilog"):
        detail = (
            f"{kind.capitalize()}={called[kind]}"
            if kind in called
            else (f"slurm.conf does not name the {kind} yet: csub admin install-hooks --controller")
        )
        found.add("Slurm", True if kind in called else None, detail)


def _report(found: Verification, *, as_json: bool) -> None:
    if as_json:
        checks = [dataclasses.asdict(check) for check in found.checks]
        sys.stdout.write(json.dumps({"schema": 1, "passed": found.passed, "checks": checks}) + "\n")
        return
    for line in verify_hooks.render_checks(found.checks):
        sys.stdout.write(f"{line}\n")


# What a node keeps a user's processes from, tried out: limits of root's daemons, tracing.
#
# One line each, with what to do where something is missing.

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
FIRST_WITH_RUN_IN_JOB = (24, 5)
_INSIDE_JOB = "PrologFlags=Alloc,Contain,RunInJob in slurm.conf"


def check_limits(found: Verification, policy: NodePolicy, slurm: Mapping[str, str]) -> None:
    """Try whether this node can limit a daemon, and say what it cannot.

    Args:
        found: The verification.
        policy: The node's policy.
        slurm: What `scontrol show config` says; empty where it was not asked.
    """
    if "runinjob" in slurm.get("PrologFlags", "").lower():
        found.add("limits", ok=True, detail="PrologFlags has RunInJob: the job's own limits hold")
        return
    limits = DaemonLimits((), policy.daemon_memory_mb, policy.daemon_processes, 1)
    made = make_limited_groups(read_hierarchies(), f"verify-{os.getpid()}", limits)
    left = remove_groups(made.paths)
    advice = f"; the job's own limits would hold with {_INSIDE_JOB}" if _has_flag(slurm) else ""
    if not made.missing:
        words = (
            f"a daemon gets the job's GPUs and CPUs, {policy.daemon_memory_mb} MiB of host memory, "
            f"{policy.daemon_processes} processes{advice}"
        )
        found.add("limits", ok=True, detail=words)
    else:
        # A site that requires them gets no daemon here.
        found.add(
            "limits",
            ok=False if policy.require_limits else None,
            detail=f"{_describe_missing(made)}: {_advise(slurm)}",
        )
    for text in left:
        found.add("limits", ok=False, detail=text)


def _describe_missing(made: LimitedGroups) -> str:
    reasons = "; ".join(made.refused) or "there is no such cgroup controller"
    return f"a daemon's {', '.join(made.missing)} cannot be limited ({reasons})"


def _advise(slurm: Mapping[str, str]) -> str:
    first = "mount the cgroup controllers devices, memory and pids, or cgroup version 2"
    return f"{first}, or set {_INSIDE_JOB}" if _has_flag(slurm) else first


def _has_flag(slurm: Mapping[str, str]) -> bool:
    match = re.match(r"(\d+)\.(\d+)", slurm.get("SLURM_VERSION", ""))
    return match is not None and (int(match[1]), int(match[2])) >= FIRST_WITH_RUN_IN_JOB


def check_tracing(found: Verification, path: str = YAMA) -> None:
    """Say whether a user's processes may trace each other.

    Args:
        found: The verification.
        path: Yama's setting.
    """
    try:
        with open(path, encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        scope = ""
    if scope not in ("", "0"):
        found.add("Yama", ok=True, detail=f"kernel.yama.ptrace_scope is {scope}")
        return
    why = "is 0" if scope else "is not there: this kernel has no Yama"
    words = (
        f"kernel.yama.ptrace_scope {why}; one user's processes can trace each other, but not the "
        "daemons of root's prologs, which have a group id of their own"
    )
    advice = "; sysctl kernel.yama.ptrace_scope=1 forbids it" if scope else ""
    found.add("Yama", ok=None, detail=words + advice)
