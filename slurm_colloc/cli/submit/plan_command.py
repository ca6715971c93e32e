"""`csub plan [options] SCRIPT [arguments]`; also of `pack SCRIPT...`, `sweep ...`, `batch ...`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.cli.submit.join_first import choose_packs_to_join, describe_open_room
from slurm_colloc.cli.submit.place_call import check_snapshot, prepare_call
from slurm_colloc.cli.submit.plan_changes import apply_changes, name_changes, parse_changes
from slurm_colloc.cli.submit.refuse_options import refuse_options_of_others
from slurm_colloc.errors import SlurmError, UsageProblem
from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.queue_waits import WaitEstimate
from slurm_colloc.planning.explain.explanation import PlanExplanation
from slurm_colloc.planning.job_load import build_load
from slurm_colloc.planning.job_needs import choose_bound
from slurm_colloc.planning.predict.queue_gain import estimate_wait
from slurm_colloc.report.plan.plan_figures import render_comparison
from slurm_colloc.report.plan.plan_view import PLAN_SCHEMA, build_plan_json, render_plan
from slurm_colloc.report.terminal_tables import choose_width
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import parse_command_line
from slurm_colloc.slurm.slurm_nodes import count_gpus, list_node_states
from slurm_colloc.submission.jobs.call_jobs import Call, collect_call
from slurm_colloc.submission.packs.ask_slurm import ask_slurm
from slurm_colloc.submission.packs.open_job import open_job
from slurm_colloc.submission.packs.submit_batch import group_call
from slurm_colloc.submission.plan.explain_plan import explain_call_plan
from slurm_colloc.submission.plan.opening import choose_opening
from slurm_colloc.submission.plan.plan_call import CallPlan, plan_call

_HELP = """\
Usage: csub plan [--explain] [--json] [--what-if=CHANGES] [OPTIONS] SCRIPT [ARGUMENTS]
       csub plan [--explain] [--json] [--what-if=CHANGES] [OPTIONS] pack SCRIPT...
       csub plan [--explain] [--json] [--what-if=CHANGES] [OPTIONS] sweep SCRIPT --lr 0.1,0.2
       csub plan [--explain] [--json] [--what-if=CHANGES] [OPTIONS] batch TABLE

Shows which jobs would share a GPU, how many, in which mode and with which limits, and how fast
each would be. Takes all options of a submission (csub submit --help) and submits nothing.

  --explain           all reasons, and what keeps jobs apart that are not in one pack
  --json              one JSON object
  --what-if=CHANGES   also show the plan with other values, separated by commas:
                      degree=4, mode=mps|timeslice|mig|exclusive, max-slowdown=2,
                      goal=throughput|latency|energy, gpu-mem=10G,
                      policy=csub|exclusive|first-fit|carma|additive
"""


def run_plan(argv: Sequence[str]) -> int:
    """Plan a call and show the plan; the exit status."""
    if any(word in ("-h", "--help", "--usage") for word in _list_leading(argv)):
        say(_HELP)
        return 0
    directory = os.getcwd()  # noqa: PTH109  # a str, as the records want it
    words, command = split_command(argv)
    calls = _collect(words, command, directory)
    if len(calls) > 1 and calls[0][1].options.flag("json"):
        raise UsageProblem(
            f"--json is for a single plan, and these are {len(calls)}", hint="leave --json out"
        )
    for title, call in calls:
        refuse_options_of_others(call.options, "plan", also=command)
        if title:
            say(f"{title}:")
        _plan(call, directory, is_single=command not in ("sweep", "batch"))
    sys.stdout.flush()
    return 0


def _collect(argv: Sequence[str], command: str, directory: str) -> list[tuple[str, Call]]:
    """The calls that a command would make; several, with titles, of a table of radT's."""
    environ = read_given_environment()
    if command == "sweep":
        from slurm_colloc.submission.jobs.sweep_jobs import collect_sweep

        return [("", collect_sweep(argv, environ, directory))]
    if command == "batch":
        from slurm_colloc.cli.submit.batch_command import read_table

        return read_table(argv, environ, directory).list_calls()
    return [("", collect_call(argv, environ, directory, pack=command == "pack"))]


def _plan(call: Call, directory: str, *, is_single: bool) -> None:
    what_if = call.options.text("what-if")
    changes = {} if what_if is None else parse_changes(what_if)
    session = Session.open()
    check_snapshot(call, session, directory)
    local = call.options.flag("local")
    on_terminal = sys.stdout.isatty()
    call, policy = prepare_call(call, session, local=local, asked_on_terminal=on_terminal)
    which = choose_packs_to_join(call, session, local=local, asked_on_terminal=on_terminal)
    opening = choose_opening(
        call, session.settings, joins=which if is_single else "never", is_single=is_single
    )
    as_json, explains = call.options.flag("json"), call.options.flag("explain")
    room = describe_open_room(call, policy, session, local=local)
    if room and not as_json:
        say(room)
        say("Without these changes, the plan would be:")
    slurm = None if local else session.slurm
    made = plan_call(call, policy, session.settings, slurm, looks_at_queue=True)
    if opening is not None and slurm is not None:
        made = open_job(made, opening, session.settings, slurm, directory=directory)
    explanation = explain_call_plan(made)
    waits = _list_waits(made)
    words = ", ".join(f"{name}={value}" for name, value in changes.items())
    other, warnings = None, _list_warnings(made)
    if changes:
        changed, changed_policy = apply_changes(call, changes, session)
        with name_changes(changes):
            changed_plan = plan_call(changed, changed_policy, session.settings, slurm)
        other = explain_call_plan(changed_plan)
        # When the last job ends depends on how many packs run side by side.
        gpus = _count_gpus(call)
        explanation, other = (dataclasses.replace(e, gpus=gpus) for e in (explanation, other))
        told = [text for text in _list_warnings(changed_plan) if text not in warnings]
        warnings += [f"with {words}: {text}" for text in told]
    for text in made.problems:
        note(f"ignored: {text}")
    if as_json:
        say(json.dumps(_build_json(made, explanation, other, changes, room=room)))
        return
    if not explains:
        # They are among the reasons, which are not shown.
        for text in warnings:
            note(text)
    width = choose_width()
    sources = _list_sources(made) if explains else ()
    say(render_plan(explanation, width, explain=explains, sources=sources, waits=waits))
    if not local:
        for text in _ask_slurm(made, session, directory):
            say(text)
    if other is not None:
        say(render_comparison(explanation, other, words, width))
        if explains:
            say(f"With {words}:")
            say(render_plan(other, width, explain=True))
    say("Nothing was submitted.")


def _count_gpus(call: Call) -> int | None:
    """The GPUs of the partition; None where jobs name several ways, or Slurm does not say."""
    partitions = {dict(candidate.job.group).get("partition") for candidate in call.candidates}
    with contextlib.suppress(SlurmError):
        if len(partitions) == 1 and not call.options.flag("local"):
            return count_gpus(list_node_states(), partitions.pop())
    return None


def _list_leading(argv: Sequence[str]) -> list[str]:
    """The options before the first word that is none."""
    leading: list[str] = []
    for word in argv:
        if not word.startswith("-") or word == "--":
            break
        leading.append(word)
    return leading


def split_command(argv: Sequence[str]) -> tuple[list[str], str]:
    """The command line without the word `pack`, `sweep` or `batch`, and which of them was there."""
    words = parse_command_line(argv).words
    if not words or words[0] not in ("pack", "sweep", "batch"):
        return list(argv), ""
    at = len(argv) - len(words)
    return [*argv[:at], *argv[at + 1 :]], words[0]


def _list_waits(made: CallPlan) -> list[WaitEstimate | None]:
    if all(planned.waits is None for planned in made.parts):
        return []
    waits = [(pack, made.find_part(pack).waits) for pack in made.plan.packs]
    return [None if table is None else estimate_wait(pack, table) for pack, table in waits]


def _find_unknown_queue(made: CallPlan) -> str | None:
    """Why no wait is estimated, where that was asked; of the first partition of which none is."""
    tables = [planned.waits for planned in made.parts if planned.waits is not None]
    return next((table.unknown for table in tables if table.unknown), None)


def _list_warnings(made: CallPlan) -> list[str]:
    """What of a plan is dangerous, each once."""
    return list(dict.fromkeys(text for p in made.parts for text in p.part.warnings))


def _list_calibrations(made: CallPlan) -> list[Calibration]:
    """Those of all jobs of which it is known what they take of a GPU, each once."""
    known = [planned.part.knowledge for planned in made.parts]
    used = [k.calibration for k in known if any(map(build_load, k.profiles.values()))]
    return [calibration for i, calibration in enumerate(used) if calibration not in used[:i]]


def _list_sources(made: CallPlan) -> list[str]:
    unknown = _find_unknown_queue(made)
    queue = [f"Queue: no estimate: {unknown}"] if unknown else []
    used = [_describe(calibration) for calibration in _list_calibrations(made)]
    if not used:
        none = "Calibration: none needed, because what the jobs use of a GPU is not known yet"
        return [none, *queue]
    return [*dict.fromkeys(used), *queue]


def _describe(calibration: Calibration) -> str:
    made = f", of {calibration.packs} packs" if calibration.packs else ""
    off = f"predictions are off by {100 * calibration.residual:.0f} % (standard deviation)"
    return f"Calibration: {calibration.gpu_model}{made}; {off}; it is {calibration.source}"


def _ask_slurm(made: CallPlan, session: Session, directory: str) -> list[str]:
    """What Slurm says of the request; a Slurm that does not answer is named."""
    told: list[str] = []
    try:
        for batch in group_call(made, session.slurm):
            notes, said = ask_slurm(batch, session.settings, session.slurm, directory)
            told += [*notes, f"Slurm: {said}"]
    except SlurmError as problem:
        told.append(f"Slurm: {problem}")
    return list(dict.fromkeys(told))


def _build_json(
    made: CallPlan,
    explanation: PlanExplanation,
    other: PlanExplanation | None,
    changes: dict[str, str],
    *,
    room: str,
) -> dict[str, Any]:
    return {
        "schema": PLAN_SCHEMA,
        **build_plan_json(explanation, _list_waits(made)),
        "would_join": room or None,
        "policy": {
            "goal": made.policy.goal.value,
            "policy": made.policy.rule.value,
            "max_slowdown": min(choose_bound(job, made.policy) for job in made.jobs),
            "degree": made.policy.degree,
            "degree_is_asked": made.policy.degree_is_asked,
        },
        "calibrations": [
            {
                "gpu_model": calibration.gpu_model,
                "source": calibration.source,
                "residual": calibration.residual,
                "packs": calibration.packs,
                "made_at": calibration.made_at or None,
            }
            for calibration in _list_calibrations(made)
        ],
        "queue_unknown": _find_unknown_queue(made),
        "problems": list(made.problems),
        "what_if": None if other is None else {"changes": changes, **build_plan_json(other)},
    }
