"""`csub plan [options] SCRIPT [arguments]`, `csub plan [options] pack SCRIPT...`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.cli.submitting import ask_slurm, describe_open_room, prepare_call
from slurm_colloc.errors import SlurmError, UsageProblem
from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.plan import Policy, SharingMode
from slurm_colloc.model.quantities import parse_gpu_memory_mb
from slurm_colloc.model.waits import WaitEstimate
from slurm_colloc.planning.explanation import PlanExplanation
from slurm_colloc.planning.needs import choose_bound
from slurm_colloc.planning.queueing import estimate_wait
from slurm_colloc.report.plan_view import (
    PLAN_SCHEMA,
    build_plan_json,
    render_comparison,
    render_plan,
)
from slurm_colloc.report.terminal import choose_width
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import parse_command_line
from slurm_colloc.submission.collect import Call, collect_call
from slurm_colloc.submission.explained import explain_planning
from slurm_colloc.submission.planned import Planning, plan_call
from slurm_colloc.submission.policy import choose_policy
from slurm_colloc.submission.request import group_into_batches

WHAT_IF = ("degree", "mode", "max-slowdown", "goal", "gpu-mem", "policy")

_HELP = """\
Usage: csub plan [--explain] [--json] [--what-if=CHANGES] [OPTIONS] SCRIPT [ARGUMENTS]
       csub plan [--explain] [--json] [--what-if=CHANGES] [OPTIONS] pack SCRIPT...

Shows which jobs would share a GPU, how many, in which mode and with which limits, and how fast
each would be. Takes all options of a submission (csub submit --help) and submits nothing.

  --explain           all reasons, and for jobs that were not put together what is in the way
  --json              one JSON object
  --what-if=CHANGES   the plan beside one with other values, with commas between them:
                      degree=4, mode=mps|timeslice|mig|exclusive, max-slowdown=2,
                      goal=throughput|latency|energy, gpu-mem=10G,
                      policy=csub|exclusive|first-fit|carma|additive
"""


def run_plan(argv: Sequence[str]) -> int:
    """Plan a call and show the plan; the exit status."""
    if any(word in ("-h", "--help", "--usage") for word in _list_leading(argv)):
        say(_HELP)
        return 0
    argv, pack = split_pack(argv)
    directory = os.getcwd()  # noqa: PTH109  # a str, as the records want it
    call = collect_call(argv, read_given_environment(), directory, pack=pack)
    changes = parse_changes(call.options.text("what-if") or "")
    session = Session.open()
    local = call.options.flag("local")
    call = prepare_call(call, session, local=local)
    as_json, explains = call.options.flag("json"), call.options.flag("explain")
    room = describe_open_room(call, session, local=local)
    if room and not as_json:
        say(room)
        say("By itself it would be planned so:")
    slurm = None if local else session.slurm
    planning = plan_call(call, session.settings, slurm, looks_at_queue=True)
    explanation = explain_planning(planning)
    waits = _list_waits(planning)
    other = None
    if changes:
        changed, policy = apply_changes(call, changes, session)
        other = explain_planning(plan_call(changed, session.settings, slurm, policy))
    for text in planning.problems:
        note(f"ignored: {text}")
    if as_json:
        say(json.dumps(_build_json(planning, explanation, other, changes, room=room)))
        return 0
    width = choose_width()
    sources = _list_sources(planning) if explains else ()
    say(render_plan(explanation, width, explain=explains, sources=sources, waits=waits))
    if not local:
        for text in _ask_slurm(planning, session, directory):
            say(text)
    if other is not None:
        words = ", ".join(f"{name}={value}" for name, value in changes.items())
        say(render_comparison(explanation, other, words, width))
        if explains:
            say(f"With {words}:")
            say(render_plan(other, width, explain=True))
    say("Nothing was submitted.")
    sys.stdout.flush()
    return 0


def _list_leading(argv: Sequence[str]) -> list[str]:
    """The options before the first word that is none."""
    leading: list[str] = []
    for word in argv:
        if not word.startswith("-") or word == "--":
            break
        leading.append(word)
    return leading


def split_pack(argv: Sequence[str]) -> tuple[list[str], bool]:
    """The command line without the word `pack`, and whether it was there."""
    words = parse_command_line(argv).words
    if not words or words[0] != "pack":
        return list(argv), False
    at = len(argv) - len(words)
    return [*argv[:at], *argv[at + 1 :]], True


def parse_changes(text: str) -> dict[str, str]:
    """Read `--what-if=degree=4,mode=mig`.

    Raises:
        UsageProblem: A name is not known, or has no value.
    """
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, separator, value = part.strip().partition("=")
        if name not in WHAT_IF or not value:
            what = f"{part.strip()!a} has no value" if not separator or not value else ""
            raise UsageProblem(
                f"--what-if: {what or f'there is no {name!a}'}",
                hint=f"{', '.join(WHAT_IF)}, as in --what-if=degree=4,mode=timeslice",
            )
        changes[name] = value
    return changes


def apply_changes(
    call: Call, changes: dict[str, str], session: Session
) -> tuple[Call, Policy | None]:
    """The call with other values, and its policy where the call cannot say it.

    Raises:
        UsageProblem: A value is wrong.
    """
    origin = "--what-if"
    degree = _parse(changes, "degree", _parse_count)
    slowdown = _parse(changes, "max-slowdown", _parse_slowdown)
    gpu_memory_mb = _parse(changes, "gpu-mem", parse_gpu_memory_mb)
    mode = changes.get("mode")
    if mode is not None and mode not in [known.value for known in SharingMode]:
        choices = ", ".join(known.value for known in SharingMode)
        raise UsageProblem(f"{origin}: mode={mode!a} is none of {choices}")
    candidates = call.candidates
    told = {"gpu_memory_mb": gpu_memory_mb, "max_slowdown": slowdown}
    asked = {name: value for name, value in told.items() if value is not None}
    if asked:
        candidates = tuple(
            dataclasses.replace(c, job=dataclasses.replace(c.job, **asked)) for c in candidates
        )
    is_mig = mode == SharingMode.MIG.value
    is_alone = mode == SharingMode.EXCLUSIVE.value
    changed = dataclasses.replace(
        call,
        candidates=candidates,
        degree=None if is_alone else degree or call.degree,
        pack_size=None if is_alone or degree else call.pack_size,
        shares=((mode, origin),) if mode and not is_mig else call.shares,
        goals=((changes["goal"], origin),) if "goal" in changes else call.goals,
        rules=((changes["policy"], origin),) if "policy" in changes else call.rules,
    )
    if not is_mig:
        return changed, None
    policy = choose_policy(changed, session.settings)
    return changed, dataclasses.replace(policy, mode=SharingMode.MIG, modes=(SharingMode.MIG,))


def _parse(changes: dict[str, str], name: str, parse: Callable[[str], Any]) -> Any:
    if name not in changes:
        return None
    try:
        return parse(changes[name])
    except ValueError as error:
        raise UsageProblem(f"--what-if: {name}={changes[name]!a}: {error}") from error


def _parse_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("a number of at least 1 is needed")
    return int(text)


def _parse_slowdown(text: str) -> float:
    value = float(text)
    if not 1.0 <= value <= 100.0:
        raise ValueError("a number from 1 to 100 is needed")
    return value


def _list_waits(planning: Planning) -> list[WaitEstimate | None]:
    if all(planned.waits is None for planned in planning.parts):
        return []
    waits = [(pack, planning.find_part(pack).waits) for pack in planning.plan.packs]
    return [None if table is None else estimate_wait(pack, table) for pack, table in waits]


def _find_unknown_queue(planning: Planning) -> str | None:
    """Why no wait is estimated, where that was asked; of the first partition of which none is."""
    tables = [planned.waits for planned in planning.parts if planned.waits is not None]
    return next((table.unknown for table in tables if table.unknown), None)


def _choose_calibration(planning: Planning) -> Calibration:
    """That of the first jobs that have been measured."""
    known = [planned.part.knowledge for planned in planning.parts]
    return next((k for k in known if k.profiles), known[0]).calibration


def _list_sources(planning: Planning) -> list[str]:
    unknown = _find_unknown_queue(planning)
    queue = [f"Queue: no estimate: {unknown}"] if unknown else []
    known = [planned.part.knowledge for planned in planning.parts]
    used = [_describe(k.calibration) for k in known if k.profiles]
    if not used:
        return ["Calibration: none needed, as none of the jobs has been measured yet", *queue]
    return [*dict.fromkeys(used), *queue]


def _describe(calibration: Calibration) -> str:
    made = f", of {calibration.packs} packs" if calibration.packs else ""
    off = f"predictions are off by {100 * calibration.residual:.0f} % (standard deviation)"
    return f"Calibration: {calibration.gpu_model}{made}, {calibration.source}; {off}"


def _ask_slurm(planning: Planning, session: Session, directory: str) -> list[str]:
    """What Slurm says of the request; a Slurm that does not answer is named."""
    told: list[str] = []
    try:
        for batch in group_into_batches(planning.plan, planning.jobs):
            told += ask_slurm(batch, planning.jobs, planning.plan.packs_at_once, session, directory)
    except SlurmError as problem:
        told.append(f"Slurm: {problem}")
    return list(dict.fromkeys(told))


def _build_json(
    planning: Planning,
    explanation: PlanExplanation,
    other: PlanExplanation | None,
    changes: dict[str, str],
    *,
    room: str,
) -> dict[str, Any]:
    calibration = _choose_calibration(planning)
    return {
        "schema": PLAN_SCHEMA,
        **build_plan_json(explanation, _list_waits(planning)),
        "would_join": room or None,
        "policy": {
            "goal": planning.policy.goal.value,
            "policy": planning.policy.rule.value,
            "max_slowdown": min(choose_bound(job, planning.policy) for job in planning.jobs),
            "degree": planning.policy.degree,
            "degree_is_asked": planning.policy.degree_is_asked,
        },
        "calibration": {
            "gpu_model": calibration.gpu_model,
            "source": calibration.source,
            "residual": calibration.residual,
            "packs": calibration.packs,
            "made_at": calibration.made_at or None,
        },
        "queue_unknown": _find_unknown_queue(planning),
        "problems": list(planning.problems),
        "what_if": None if other is None else {"changes": changes, **build_plan_json(other)},
    }
