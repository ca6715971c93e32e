"""`csub check [options] SCRIPT [arguments]`: what would collide when it shares a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from slurm_colloc.check.check_script import (
    REQUEST,
    ResourceRow,
    SharingFit,
    check_script_text,
    compute_sharing,
    find_request_findings,
)
from slurm_colloc.check.collisions import (
    ScriptFinding,
    Severity,
    leave_out,
    list_names,
    merge_findings,
)
from slurm_colloc.errors import SlurmError
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Capacity
from slurm_colloc.model.printable import align_columns, escape_controls
from slurm_colloc.session.say_collisions import choose_accepted
from slurm_colloc.session.session import Session, say
from slurm_colloc.settings import read_given_environment

_FITS = {0: "does not fit", 1: "1 fits"}

HELP = """\
Usage: csub check [OPTIONS] SCRIPT [ARGUMENTS]

Say what would collide if SCRIPT shared a GPU, and how many such jobs fit on one. Nothing is run
and nothing is submitted. OPTIONS are those with which you would submit it.

  --json   Print one JSON object.

Each submission does the same and says what it finds. What surely loses work keeps a job alone. To
share all the same, --accept=NAME takes the name of a finding, here, at a submission, on a #CSUB
line, or as the setting accept = ["NAME"]:

  {names}

Exit status: 0 nothing would collide, 1 something would, 2 the call is wrong.
"""


def run_check(argv: Sequence[str]) -> int:
    """Check a script; the exit status.

    Raises:
        UsageProblem: The call, the script or a directive is wrong.
    """
    if any(word in ("-h", "--help") for word in argv[:1]):
        names = fill(" ".join(list_names()), 96, subsequent_indent="  ", break_on_hyphens=False)
        say(HELP.format(names=names))
        return 0
    from slurm_colloc.submission.jobs.call_jobs import collect_call
    from slurm_colloc.submission.packs.own_ids import OwnIds
    from slurm_colloc.submission.plan.call_policy import choose_policy
    from slurm_colloc.submission.plan.target_nodes import read_capacity

    environment = read_given_environment()
    call = collect_call(argv, environment, os.getcwd(), pack=False)  # noqa: PTH109
    session = Session.open()
    settings = session.settings
    candidate = call.candidates[0]
    job = candidate.job
    unreachable = ""
    try:
        capacity = read_capacity(job, settings, session.slurm)
    except SlurmError as error:
        unreachable = str(error)
        capacity = Capacity(gpu_memory_mb=settings.gpu_memory_mb(job.gpu_type))
    sharing = compute_sharing(job, capacity, choose_policy(call, settings))
    findings, read = check_script_text(job, candidate.script, environment)
    request = find_request_findings(job, call.options, sharing, capacity)
    own_id = OwnIds(session.own_state, settings, session.slurm).has_own(job)
    findings = leave_out(findings, choose_accepted(candidate.options, settings), own_id=own_id)
    everything = merge_findings([*findings, *request])
    alone = next((str(finding) for finding in findings if finding.level.keeps_alone), "")
    if alone:
        sharing = replace(sharing, members=1, alone_because=alone)
    if call.options.flag("json"):
        say(json.dumps(build_json(job.script_name, everything, sharing, read, unreachable)))
    else:
        say(render(job.script_name, everything, sharing, read, unreachable))
    return 1 if any(finding.level is not Severity.NOTE for finding in everything) else 0


def render(
    script: str,
    findings: Sequence[ScriptFinding],
    sharing: SharingFit,
    read: Sequence[str],
    unreachable: str,
) -> str:
    """The answer for people."""
    problems = [finding for finding in findings if finding.level is not Severity.NOTE]
    notes = [finding for finding in findings if finding.level is Severity.NOTE]
    lines = [_render_title(script, problems, read)]
    for heading, chosen in (("", problems), ("Good to know", notes)):
        if chosen:
            lines += ["", *([heading] if heading else [])]
            lines += _render_findings(chosen)
    lines += ["", *_render_sharing(sharing, unreachable)]
    return "\n".join(map(escape_controls, lines))


def _render_title(script: str, problems: Sequence[ScriptFinding], read: Sequence[str]) -> str:
    others = [name for name in read if name != script]
    names = f"{script} with {', '.join(others)}" if others else script
    if not problems:
        return f"{names}: nothing found that would collide"
    count = len(problems)
    things = "1 thing stands" if count == 1 else f"{count} things stand"
    return f"{names}: {things} in the way of sharing a GPU"


def _render_findings(findings: Sequence[ScriptFinding]) -> list[str]:
    rows: list[tuple[str, str]] = []
    for finding in findings:
        texts = [] if finding.file == REQUEST else [finding.what]
        alone = ", which keeps the job alone" if finding.level.keeps_alone else ""
        can_accept = finding.level is not Severity.NOTE and finding.kind in list_names()
        name = f" ({finding.kind}{alone})" if can_accept else ""
        texts.append(f"{finding.why}{name}")
        if finding.advice:
            texts.append(f"-> {finding.advice}")
        rows += zip([_label(finding), *[""] * len(texts)], texts, strict=False)
    return [f"  {line}" for line in align_columns(rows)]


def _label(finding: ScriptFinding) -> str:
    """Where it stands; what is missing where it stands nowhere."""
    if finding.file == REQUEST:
        return finding.what
    return ",".join([finding.place, *map(str, finding.also)])


def _render_sharing(sharing: SharingFit, unreachable: str) -> list[str]:
    if unreachable:
        return [f"How many would share a GPU is not known: {unreachable}"]
    if sharing.alone_because:
        return ["It would have its allocation to itself."]
    title = "On one GPU: 1 job like this at a time"
    if sharing.members > 1:
        title = f"On one GPU: {sharing.members} jobs like this at the same time"
    if sharing.members == sharing.degree:
        title += " (as many as --degree allows)"
    return [title, *(f"  {line}" for line in align_columns(list(map(_build_cells, sharing.rows))))]


def _build_cells(row: ResourceRow) -> tuple[str, ...]:
    unit = f" {row.unit}" if row.unit else ""
    there = f" of {row.available}{unit}" if row.available else ""
    if row.asked is None:
        if row.name == "host memory":
            return row.name, f"an equal share{there}"
        usable = f", {row.available}{unit} are usable" if row.available else ""
        return row.name, f"not stated{usable}"
    if row.available is None:
        return row.name, f"{row.asked}{unit} of an unknown amount"
    return row.name, f"{row.asked}{there}", _FITS.get(row.fits or 0, f"{row.fits} fit")


def build_json(
    script: str,
    findings: Sequence[ScriptFinding],
    sharing: SharingFit,
    read: Sequence[str],
    unreachable: str,
) -> dict[str, Any]:
    """The answer with the fields that docs/json.md describes."""
    return {
        "schema": 1,
        "script": script,
        "files_read": list(read),
        "findings": [
            {
                "level": finding.level.value,
                "kind": finding.kind,
                "file": finding.file,
                "lines": [finding.line, *finding.also] if finding.line else [],
                "what": finding.what,
                "why": finding.why,
                "advice": finding.advice or None,
            }
            for finding in findings
        ],
        "sharing": {
            "degree": sharing.degree,
            "members": None if unreachable else sharing.members,
            "alone_because": sharing.alone_because or None,
            "capacity_unknown_because": unreachable or None,
            "resources": [
                {
                    "name": row.name,
                    "unit": row.unit or None,
                    "asked": row.asked,
                    "available": row.available,
                    "fits": row.fits,
                }
                for row in sharing.rows
            ],
        },
    }
