"""`csub plan [options] SCRIPT [arguments]`; also of `pack SCRIPT...`, `sweep ...`, `batch ...`.

Also: `csub plan --what-if`: a call with other values, planned alongside the one that is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurm_colloc.cli.answer import describe_open_room
from slurm_colloc.cli.submit_command import refuse_options_of_others
from slurm_colloc.errors import NoPackPossible, SlurmError, UsageProblem
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Policy, SharingMode, WaitEstimate
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import parse_gpu_memory_mb
from slurm_colloc.model.setting_values import GOAL_CHOICES, check_gpus_per_pack
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.explanation import PlanExplanation
from slurm_colloc.planning.job_needs import build_load, choose_bound
from slurm_colloc.planning.pack_pricing import estimate_wait
from slurm_colloc.report.plan_view import (
    PLAN_SCHEMA,
    build_plan_json,
    render_comparison,
    render_plan,
)
from slurm_colloc.report.terminal_tables import choose_width
from slurm_colloc.session.place_call import check_snapshot, prepare_call
from slurm_colloc.session.say_collisions import say_collisions
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.options import parse_command_line
from slurm_colloc.slurm.slurm_commands import count_gpus, list_node_states
from slurm_colloc.submission.jobs.call_jobs import Call, collect_call
from slurm_colloc.submission.jobs.job_options import parse_count, parse_slowdown
from slurm_colloc.submission.packs.open_job import ask_slurm, open_job
from slurm_colloc.submission.packs.submit_batch import group_call
from slurm_colloc.submission.plan.call_policy import choose_policy
from slurm_colloc.submission.plan.explain_plan import explain_call_plan
from slurm_colloc.submission.plan.plan_call import (
    CallPlan,
    choose_opening,
    plan_call,
)

# ---- `csub plan --what-if`: a call with other values, planned alongside the one that is made -----

WHAT_IF = ("degree", "mode", "max-slowdown", "goal", "gpu-mem", "gpus-per-pack")


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
    # Named here, as the user gave no --goal.
    goal = _choose(changes, "goal", GOAL_CHOICES)
    gpus = _parse(changes, "gpus-per-pack", check_gpus_per_pack)
    candidates = call.candidates
    told = {"gpu_memory_mb": gpu_memory_mb, "max_slowdown": slowdown}
    asked: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    if gpu_memory_mb is not None:
        # As --gpu-mem says of a job.
        asked["came_together"] = True
    if asked:
        candidates = tuple(replace(c, job=replace(c.job, **asked)) for c in candidates)
    is_alone = mode == SharingMode.EXCLUSIVE.value
    changed = replace(
        call,
        candidates=candidates,
        degree=None if is_alone else degree or call.degree,
        pack_size=None if is_alone or degree else call.pack_size,
        shares=((mode, origin),) if mode else call.shares,
        goals=((goal, origin),) if goal else call.goals,
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


# ----
# `csub plan [options] SCRIPT [arguments]`; also of `pack SCRIPT...`, `sweep ...`, `batch ...`.

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
                      goal=throughput|latency|energy, gpu-mem=10G, gpus-per-pack=4
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
        from slurm_colloc.cli.batch_and_sweep import read_table

        return read_table(argv, environ, directory).list_calls()
    return [("", collect_call(argv, environ, directory, pack=command == "pack"))]


def _plan(call: Call, directory: str, *, is_single: bool) -> None:
    what_if = call.options.text("what-if")
    changes = {} if what_if is None else parse_changes(what_if)
    session = Session.open()
    check_snapshot(call, directory)
    local = call.options.flag("local")
    on_terminal = sys.stdout.isatty()
    call, policy, which = prepare_call(call, session, local=local, asked_on_terminal=on_terminal)
    opening = choose_opening(
        call, session.settings, joins=which if is_single else "never", is_single=is_single
    )
    call = say_collisions(call, policy, session, may_meet=which != "never" or opening is not None)
    as_json, explains = call.options.flag("json"), call.options.flag("explain")
    room = describe_open_room(call, policy, session, joins=which)
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
        explanation, other = (replace(e, gpus=gpus) for e in (explanation, other))
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
