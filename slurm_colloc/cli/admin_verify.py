"""`csub admin verify`: are the hooks of this node whole, and do they do what they should?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pwd
import sys
from collections.abc import Mapping

from slurm_colloc.administration import confinement, node_files, removal, verifying
from slurm_colloc.administration.fake_job import FIRST_JOB_ID, FakeJob, choose_gpu
from slurm_colloc.administration.node_plan import build_node_files
from slurm_colloc.administration.places import find_places
from slurm_colloc.administration.slurm_lines import HookKind, HookPlan
from slurm_colloc.administration.verifying import Verification
from slurm_colloc.cli.admin_hooks import need_root, read_config, restore_places
from slurm_colloc.errors import CollocError, NodeError, NotFound, UsageProblem


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
    verifying.check_files(found, build_node_files(places, plans))
    verifying.check_python(found, places.prefix_path)
    policy = verifying.check_policy(found, places.policy_path)
    config = _read_slurm(found)
    if config is not None:
        _check_slurm(found, record, config)
    if policy is not None:
        confinement.check_limits(found, policy, config or {})
    confinement.check_tracing(found)
    if found.passed and policy is not None:
        answer = verifying.ask_nvml(places.prefix_path, places.simgpu)
        gpu = choose_gpu(answer, options.gpu, verifying.read_held_gpus(places.run_path))
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
        verifying.try_hooks(found, job, policy, places.prefix_path)
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
    called = removal.find_callers(record, removal.read_config_values(config), places)
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
    for line in verifying.render_checks(found.checks):
        sys.stdout.write(f"{line}\n")
