"""`csub plan --what-if`: a call with other values, planned alongside the one that is made."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from slurm_colloc.cli.session import Session
from slurm_colloc.errors import NoPackPossible, UsageProblem
from slurm_colloc.model.plan import Policy, SharingMode
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.sbatch.quantities import parse_gpu_memory_mb
from slurm_colloc.model.setting_values import GOAL_CHOICES, RULE_CHOICES, check_gpus_per_pack
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.jobs.job_options import parse_count, parse_slowdown
from slurm_colloc.submission.plan.call_policy import choose_policy

WHAT_IF = ("degree", "mode", "max-slowdown", "goal", "gpu-mem", "gpus-per-pack", "policy")


def parse_changes(text: str) -> dict[str, str]:
    """Read `--what-if=degree=4,mode=mig`.

    Raises:
        UsageProblem: A name is not known, has no value or comes twice, or two contradict.
    """
    changes: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in WHAT_IF or not value:
            what = f"there is no {cut(name)!a}" if value else f"{cut(part.strip())!a} has no value"
            raise UsageProblem(
                f"--what-if: {what if text.strip() else 'it names no change'}",
                hint=f"{', '.join(WHAT_IF)}, as in --what-if=degree=4,mode=timeslice",
            )
        if name in changes:
            raise UsageProblem(
                f"--what-if: {name} is given twice, as {cut(changes[name])!a} and {cut(value)!a}",
                hint="give it once: one plan is shown alongside the one that would be made",
            )
        changes[name] = value
    if changes.get("mode") == SharingMode.EXCLUSIVE.value and changes.get("degree", "1") != "1":
        raise UsageProblem(
            "--what-if: mode=exclusive gives each job a GPU of its own, so degree="
            f"{cut(changes['degree'])!a} contradicts it",
            hint="leave one of them out",
        )
    return changes


def apply_changes(call: Call, changes: dict[str, str], session: Session) -> tuple[Call, Policy]:
    """The call with other values, and its policy.

    Raises:
        UsageProblem: A value is wrong.
    """
    origin = "--what-if"
    degree = _parse(changes, "degree", parse_count)
    slowdown = _parse(changes, "max-slowdown", parse_slowdown)
    gpu_memory_mb = _parse(changes, "gpu-mem", parse_gpu_memory_mb)
    mode = _choose(changes, "mode", [known.value for known in SharingMode])
    # Named here, as the user gave neither --goal nor --policy.
    goal = _choose(changes, "goal", GOAL_CHOICES)
    rule = _choose(changes, "policy", RULE_CHOICES)
    gpus = _parse(changes, "gpus-per-pack", check_gpus_per_pack)
    candidates = call.candidates
    told = {"gpu_memory_mb": gpu_memory_mb, "max_slowdown": slowdown}
    asked: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    if gpu_memory_mb is not None:
        # As --gpu-mem says of a job.
        asked["came_together"] = True
    if asked:
        candidates = tuple(
            dataclasses.replace(c, job=dataclasses.replace(c.job, **asked)) for c in candidates
        )
    is_alone = mode == SharingMode.EXCLUSIVE.value
    changed = dataclasses.replace(
        call,
        candidates=candidates,
        degree=None if is_alone else degree or call.degree,
        pack_size=None if is_alone or degree else call.pack_size,
        shares=((mode, origin),) if mode else call.shares,
        goals=((goal, origin),) if goal else call.goals,
        rules=((rule, origin),) if rule else call.rules,
        gpu_counts=((gpus, origin),) if gpus else call.gpu_counts,
    )
    return changed, choose_policy(changed, session.settings)


@contextlib.contextmanager
def name_changes(changes: Mapping[str, str]) -> Iterator[None]:
    """Have a refusal name the change that was asked for: it is no option of the command line."""
    try:
        yield
    except NoPackPossible as problem:
        words = escape_controls(",".join(f"{name}={value}" for name, value in changes.items()))
        told = problem.message.replace("--gpu-mem=", "").replace("--gpus-per-pack=", "")
        raise NoPackPossible(f"--what-if={words}: {told}", hint=problem.hint) from problem


def _parse(changes: dict[str, str], name: str, parse: Callable[[str], Any]) -> Any:
    if name not in changes:
        return None
    text = changes[name]
    try:
        return parse(text)
    except ValueError as error:
        # The reason may repeat it.
        reason = str(error).replace(text, cut(text))
        raise UsageProblem(f"--what-if: {name}={cut(text)!a}: {reason}") from error


def _choose(changes: dict[str, str], name: str, choices: Iterable[str]) -> str | None:
    """One of some words; None where it is not to change."""
    text = changes.get(name)
    if text is not None and text not in choices:
        raise UsageProblem(f"--what-if: {name}={cut(text)!a} is none of {', '.join(choices)}")
    return text
