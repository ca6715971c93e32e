"""What in the scripts of a call would collide is said before it is submitted.

What would lose work keeps its job alone, until the user accepts that; the rest is only said.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Policy, SharingMode
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.session.session import Session, note
from slurm_colloc.session.standard_streams import is_one_stream
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.options import Options
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate
from slurm_colloc.submission.packs.own_ids import OwnIds

_SCRIPTS_MOST = 20
"""Different scripts of one call that are read."""
_SAID_MOST = 8
_HINT = "; it runs alone, --accept={name} shares all the same"


def say_collisions(call: Call, policy: Policy, session: Session, *, may_meet: bool) -> Call:
    """Say what would collide; the call with what is to be known of it later.

    Args:
        call: The call, prepared.
        policy: How far sharing may go.
        session: The session.
        may_meet: A job by itself may join others, or others may join it.

    Raises:
        UsageProblem: `--accept` or the setting names no finding.
    """
    options = {id(candidate.options): candidate.options for candidate in call.candidates}
    accepted = {key: choose_accepted(one, session.settings) for key, one in options.items()}
    kinds: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in call.candidates:
        job = candidate.job
        can_share = job.gpus and not job.alone_because and (may_meet or len(call.candidates) > 1)
        if can_share and policy.mode is not SharingMode.EXCLUSIVE:
            # Of jobs that differ in arguments the first is read, unless these are commands.
            arguments = job.arguments if job.script_name == "--wrap" else ()
            key = (candidate.script, job.script_name, job.directory, arguments)
            kinds.setdefault(key, []).append(candidate)
    if not kinds:
        return call
    # A job that shares with none loads none of this.
    from slurm_colloc.check.collisions import leave_out
    from slurm_colloc.check.kept_readings import KeptReadings

    readings = KeptReadings(session.own_state.root)
    ids = OwnIds(session.own_state, session.settings, session.slurm)
    changed: dict[int, Candidate] = {}
    said: list[str] = []
    is_quiet = call.options.flag("quiet")
    for alike in list(kinds.values())[:_SCRIPTS_MOST]:
        job = alike[0].job
        reading = readings.read(job, alike[0].script, alike[0].environment)
        if reading.unread:
            said += [f"{job.script_name}: {reading.unread}"] * (not is_quiet)
        own_id = any(one.by_job_id for one in reading.findings) and ids.has_own(job)
        left = leave_out(reading.findings, accepted[id(alike[0].options)], own_id=own_id)
        alone = [one for one in left if one.level.keeps_alone]
        told = tuple(str(one) for one in left if one not in alone)
        said += [f"{one}{_HINT.format(name=one.kind)}" for one in alone]
        said += [] if is_quiet else told
        for candidate in alike if left else ():
            because = "; ".join(map(str, alone))
            changed[id(candidate)] = replace(
                candidate, job=replace(candidate.job, alone_because=because, findings=told)
            )
    if len(kinds) > _SCRIPTS_MOST and not is_quiet:
        left_out = format_count(len(kinds) - _SCRIPTS_MOST, "script")
        said.insert(0, f"not checked: {left_out}; csub check SCRIPT does it")
    readings.keep()
    _say(said)
    return replace(call, candidates=tuple(changed.get(id(c), c) for c in call.candidates))


def choose_accepted(options: Options | None, settings: Settings) -> frozenset[str]:
    """The names of the findings that a job accepts, by its options and the settings.

    Raises:
        UsageProblem: A name is none.
    """
    text = options.text("accept") if options is not None else None
    given = (text or "").replace(",", "\n").split()
    if not given and not settings.accept:
        return frozenset()
    from slurm_colloc.check.collisions import list_names

    known = list_names()
    for names, origin in ((given, "--accept"), (settings.accept, "the setting accept")):
        for name in names:
            if name not in known:
                raise UsageProblem(
                    f"{origin}: {escape_controls(cut(str(name)))} is not the name of a finding",
                    hint=", ".join(known),
                )
    return frozenset([*given, *settings.accept])


def _say(lines: Sequence[str]) -> None:
    # Who reads both streams together reads the last word as the id; csub why has it all.
    if is_one_stream():
        return
    for line in lines[:_SAID_MOST]:
        note(line)
    if len(lines) > _SAID_MOST:
        note(f"and {format_count(len(lines) - _SAID_MOST, 'more finding')}: csub check shows them")
