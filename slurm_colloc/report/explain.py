"""`csub explain`: a member's state and end, or a word, in several lines; pure."""

from __future__ import annotations

import difflib

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.ends import EndCause
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.report.meanings import CAUSES, HELD, MEANINGS, Meaning
from slurm_colloc.report.reasons import REASONS, Reason, find_reason
from slurm_colloc.report.survey import HELD as HELD_REASON
from slurm_colloc.report.survey import MemberView, PackView
from slurm_colloc.report.why import Facts, explain_why


def explain_member(view: PackView, member: MemberView, facts: Facts) -> str:
    """What a member is, why, what comes next, and what can be done."""
    held = member.state is MemberState.PENDING and (member.is_held or member.reason == HELD_REASON)
    cause = view.cause_of(member)
    meaning = HELD if held else MEANINGS[member.state]
    lines = [explain_why(view, member, facts)]
    if cause and not held:
        label = "Before:" if member.state is MemberState.PENDING else "End:"
        lines.append(f"  {label:<10} {cause}")
        meaning = CAUSES.get(cause, meaning)
    evidence = member.record.evidence if member.record is not None else ()
    lines += [f"  {'Shown by:':<10} {line}" for line in evidence]
    lines += _render_meaning(meaning, str(member.member))
    reason = find_reason(member.reason) if member.state is MemberState.PENDING else None
    if reason is not None and reason.advice and not held:
        lines.append(f"  To know:   {_render_advice(reason, view.job_id or '')}")
    return "".join(f"{escape_controls(line)}\n" for line in lines)


def explain_word(text: str) -> str:
    """What a state, the class of an end or one of Slurm's reasons means.

    Raises:
        UsageProblem: It is none of these.
    """
    for state, meaning in MEANINGS.items():
        if text.upper() == state.value:
            return "\n".join([state.value, *_render_meaning(meaning, "ID")]) + "\n"
    for cause, meaning in CAUSES.items():
        if text.lower() == cause.lower():
            return "\n".join([cause, *_render_meaning(meaning, "ID")]) + "\n"
    names = {name.lower(): name for name in REASONS}
    name = names.get(text.lower(), text)
    reason = find_reason(name)
    if reason is None:
        known = {
            **{state.value.lower(): state.value for state in MemberState},
            **names,
            **{cause.value.lower(): cause.value for cause in EndCause},
        }
        near = difflib.get_close_matches(text.lower(), known, n=1)
        raise UsageProblem(
            f"{text!r} is no member, no state and no reason that csub knows",
            hint=f"did you mean {known[near[0]]}?"
            if near
            else "csub queue shows states and reasons, squeue(1) lists all of Slurm's",
        )
    lines = [name, f"  Means:     {reason.meaning}."]
    if reason.advice:
        lines.append(f"  To know:   {_render_advice(reason, '')}")
    return "\n".join(lines) + "\n"


def _render_advice(reason: Reason, job_id: str) -> str:
    return (f"{reason.advice}.").replace("=ID", f"={job_id}" if job_id else "=ID")


def _render_meaning(meaning: Meaning, name: str) -> list[str]:
    job = name.partition("/")[0]
    commands = [
        (command.format(id=name, job=job), what.format(id=name, job=job))
        for command, what in meaning.can
    ]
    width = max(len(command) for command, _ in commands)
    lines = [f"  Means:     {meaning.meaning}", f"  Next:      {meaning.next}"]
    for index, (command, what) in enumerate(commands):
        label = "You can:" if index == 0 else ""
        lines.append(f"  {label:<10} {command:<{width}}  {what}")
    return lines
