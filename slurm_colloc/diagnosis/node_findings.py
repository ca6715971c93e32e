"""What the tiny job tells of its node, judged; pure. The GPU stands in diagnosis.gpu_findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_colloc.diagnosis.findings import Finding, Level, green, red, unknown, yellow
from slurm_colloc.diagnosis.gpu_findings import judge_hooks, judge_mps, judge_nvml
from slurm_colloc.diagnosis.job_findings import (
    NO_PYTHON,
    NO_STATE,
    NO_WRITING,
    DoctorQuestion,
    JobOutcome,
    judge_job,
)

_OLDEST_PYTHON = (3, 11)
_LITTLE_MB = 1024
_ASK = "ask the administrators"
_SHARE = "set state_dir in the settings to a path that login and compute nodes share"

CHECKS = ("job", "shared-state", "python", "steps", "tmpdir", "nvml", "mps", "hooks")


def judge_no_job(why: str) -> list[Finding]:
    """The findings of a job that was not run.

    Args:
        why: Why not.
    """
    return [unknown(check, why) for check in CHECKS]


def judge_outcome(outcome: JobOutcome, asked: DoctorQuestion) -> list[Finding]:
    """All findings of the job and its node, in the order in which they are shown."""
    return [
        judge_job(outcome, asked),
        judge_shared_state(outcome, asked),
        judge_python(outcome, asked),
        judge_steps(outcome, asked),
        judge_tmpdir(outcome),
        *_judge_gpu(outcome, asked),
    ]


def _judge_gpu(outcome: JobOutcome, asked: DoctorQuestion) -> list[Finding]:
    names = ("nvml", "mps", "hooks")
    if not asked.gpus:
        return [unknown(name, "the job asked for no GPU") for name in names]
    if outcome.seen is None:
        return [_unseen(name, outcome) for name in names]
    seen = outcome.seen
    return [judge_nvml(seen, asked.python), judge_mps(seen, asked.share), judge_hooks(seen)]


def _unseen(check: str, outcome: JobOutcome) -> Finding:
    if not outcome.node:
        return unknown(check, "no job ran")
    return unknown(check, f"no answer came back from {outcome.node}")


def judge_shared_state(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """The node sees what csub writes."""
    check, node = "shared-state", outcome.node
    values = {"path": asked.place}
    what = "the state directory" if asked.state_shared else "the directory of this call"
    if outcome.exit_code in (NO_STATE, NO_WRITING) and outcome.seen is None:
        how = "is not on" if outcome.exit_code == NO_STATE else "cannot be written from"
        advice = _SHARE if asked.state_shared else "call csub doctor in a directory that nodes see"
        return red(check, f"{asked.place} {how} {node or 'the node'}", advice, **values)
    if not outcome.wrote:
        return _unseen(check, outcome)
    if not asked.state_shared:
        return yellow(
            check,
            "packs travel in their batch scripts (state_shared = false)",
            "csub shows of members only what Slurm says of their job, and no job joins a pack",
            "",
            **values,
        )
    return green(check, f"{what} is seen and can be written from {node}", **values)


def judge_python(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """The interpreter of the nodes is there, with this package."""
    check, node, seen = "python", outcome.node or "the node", outcome.seen
    install = f"install slurm_colloc {asked.version} for it, or set node_python in the settings"
    values: dict[str, object] = {"executable": asked.python, "version": None, "package": None}
    if outcome.exit_code == NO_PYTHON and seen is None:
        advice = "set node_python in the settings to a Python that the nodes have"
        return red(check, f"there is no Python at {asked.python} on {node}", advice, **values)
    if seen is None:
        version = re.search(r"(\d+)\.(\d+)\S*", outcome.python)
        if version and (int(version[1]), int(version[2])) < _OLDEST_PYTHON:
            return red(
                check,
                f"{asked.python} on {node} is Python {version[0]}",
                "set node_python in the settings to a Python from 3.11 on",
                **{**values, "version": version[0]},
            )
        if "No module named" in outcome.errors:
            what = f"{asked.python} on {node} has no slurm_colloc ({outcome.errors})"
            return red(check, what, install, **values)
        if outcome.errors:
            what = f"{asked.python} on {node} cannot look: {outcome.errors}"
            return red(check, what, install, **values)
        return _unseen(check, outcome)
    values = {"executable": asked.python, "version": seen.python, "package": seen.version}
    what = f"{seen.python} ({asked.python}) with slurm_colloc {seen.version} on {seen.node}"
    if seen.version != asked.version:
        return yellow(
            check,
            f"{what}, and {asked.version} here",
            "packs may ask for what the other version does not know",
            install,
            **values,
        )
    return green(check, what, **values)


def judge_steps(outcome: JobOutcome, asked: DoctorQuestion) -> Finding:
    """Members can be job steps."""
    check = "steps"
    trial = outcome.seen.steps if outcome.seen else None
    if trial is None:
        return _unseen(check, outcome)
    values = {"works": not trial.problem, "elapsed_ms": trial.elapsed_ms}
    if not trial.problem:
        took = "" if trial.elapsed_ms is None else f" in {trial.elapsed_ms:.0f} ms"
        return green(check, f"srun --overlap starts a step{took}", **values)
    if asked.launcher == "process":
        return green(check, 'members are plain processes (launcher = "process")', **values)
    what = f"srun --overlap starts no step: {trial.problem}"
    if asked.launcher == "srun":
        advice = f'set launcher to "auto" in the settings, and {_ASK} about srun on the nodes'
        return red(check, what, advice, **values)
    return yellow(
        check,
        what,
        "members are plain processes: no host memory limit of their own, no line of their own in "
        "sacct",
        f"{_ASK} about srun on the nodes",
        **values,
    )


def judge_tmpdir(outcome: JobOutcome) -> Finding:
    """There is room for temporary files."""
    check = "tmpdir"
    look = outcome.seen.tmpdir if outcome.seen else None
    if look is None:
        return _unseen(check, outcome)
    values = {"path": look.path, "free_mb": look.free_mb}
    if look.problem:
        return red(
            check,
            f"nothing can be written to {look.path}: {look.problem}",
            "set TMPDIR to a directory that the nodes have and you may write",
            **values,
        )
    room = "an unknown amount" if look.free_mb is None else f"{look.free_mb} MiB"
    what = f"{look.path} has {room} free"
    if look.free_mb is not None and look.free_mb < _LITTLE_MB:
        return yellow(
            check,
            what,
            "programs that write temporary files may fail",
            "set TMPDIR to a directory with more room",
            **values,
        )
    return green(check, what, **values)


def find_obstacle(findings: Sequence[Finding]) -> str:
    """Why no job needs to be tried after what the login node has told; empty where one does."""
    for check, why in (
        ("settings", "the settings cannot be read"),
        ("slurm", "there is no Slurm here"),
        ("controller", "the controller does not answer"),
        ("state", "the state directory cannot be written"),
        ("nodes", "no node takes jobs"),
    ):
        if any(f.check == check and f.level is Level.RED for f in findings):
            return why
    return ""
