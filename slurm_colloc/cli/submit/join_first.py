"""Joining an open pack: whether a call may, which pack has room, and what is said of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.model.plan import Policy
from slurm_colloc.slurm.options import Options
from slurm_colloc.store.all_packs import State
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.plan.call_policy import choose_join

if TYPE_CHECKING:
    from slurm_colloc.submission.join.join_pack import Joined


PARTNERS_NAMED = 4


def choose_packs_to_join(
    call: Call, session: Session, *, local: bool, asked_on_terminal: bool
) -> str:
    """Which packs a call's only job may join as it is submitted: `auto`, `pending` or `never`.

    The jobs of a larger call join none, see `choose_other_packs`.

    Args:
        call: The call.
        session: The session.
        local: It does without Slurm.
        asked_on_terminal: A person reads the answer, so that no program is surprised.

    Raises:
        UsageProblem: `--join` has another value.
    """
    which = choose_other_packs(call, session, local=local, asked_on_terminal=asked_on_terminal)
    is_single = len(call.candidates) == 1 and call.array is None
    return which if is_single else "never"


def choose_other_packs(
    call: Call, session: Session, *, local: bool, asked_on_terminal: bool
) -> str:
    """Packs of other submissions in which a call's jobs may run: `auto`, `pending` or `never`.

    A single script joins one as it is submitted. Jobs of --array and csub pack that wait are taken
    over by one that has room.

    Args:
        call: The call.
        session: The session.
        local: It does without Slurm.
        asked_on_terminal: A person reads the answer, so that no program is surprised.

    Raises:
        UsageProblem: `--join` has another value.
    """
    if local or not session.settings.state_shared or call.candidates[0].job.only_probe:
        return "never"
    return choose_join(call, session.settings, on_terminal=asked_on_terminal)


def find_room(
    call: Call, policy: Policy, session: Session, *, running: bool, only_plan: bool = False
) -> tuple[Joined | None, tuple[str, ...]]:
    """Join a pack, or only find it; and why others were not joined.

    Args:
        call: The call.
        policy: How far sharing may go.
        session: The session.
        running: Packs that run may be joined, too.
        only_plan: Find the pack that it would join, and change nothing.
    """
    state = session.state
    if not isinstance(state, State):
        # A job joins packs of its own user alone.
        return None, ()
    jobs = session.refresh() if state.list_open() else None
    if not jobs:
        return None, ()
    from slurm_colloc.submission.join.join_pack import join_open_pack

    return join_open_pack(
        call,
        policy,
        session.settings,
        state,
        session.slurm,
        packs=session.open_packs,
        jobs=jobs,
        running=running,
        only_plan=only_plan,
    )


def describe_open_room(call: Call, policy: Policy, session: Session, *, local: bool) -> str:
    """The open pack that a call's only job would join, in words; empty where there is none."""
    on_terminal = sys.stdout.isatty()
    which = choose_packs_to_join(call, session, local=local, asked_on_terminal=on_terminal)
    if which == "never":
        return ""
    joined = find_room(call, policy, session, running=which == "auto", only_plan=True)[0]
    if joined is None:
        return ""
    return f"The job would join pack {joined.member.job}: {describe_room(joined)}"


def tell_joined(options: Options, joined: Joined) -> None:
    """Say which pack a job has joined, with whom, and why."""
    if options.flag("json"):
        say(json.dumps(build_joined_json(joined)))
        return
    from slurm_colloc.cli.submit.submission_answer import tell_id

    if sys.stdout.isatty() and not (options.flag("parsable") or options.flag("quiet")):
        say(describe_joined(joined))
    else:
        # Its own submission is the member; the job's id would mean all that share the pack.
        tell_id(options, str(joined.member), describe_room(joined))
    if options.flag("explain") or options.flag("verbose"):
        for text in joined.record.reasons:
            note(f"pack {joined.member.job}: {text}")


def describe_joined(joined: Joined) -> str:
    """`Submitted batch job 4711 (member 4711/2 shares a pack with 4711/1: 2 of 16 places)`."""
    return f"Submitted batch job {joined.member.job} ({describe_room(joined)})"


def describe_room(joined: Joined) -> str:
    """`member 4711/2 shares a pack with 4711/1: 2 of 16 places`."""
    names = [str(partner) for partner in joined.partners]
    shown = names[: PARTNERS_NAMED if len(names) <= PARTNERS_NAMED else PARTNERS_NAMED - 1]
    last = shown.pop() if len(shown) == len(names) else f"{len(names) - len(shown)} others"
    partners = " and ".join(filter(None, [", ".join(shown), last]))
    how = "joined the running pack of" if joined.is_running else "shares a pack with"
    return f"member {joined.member} {how} {partners}: {len(names) + 1} of {joined.places} places"


def build_joined_json(joined: Joined) -> dict[str, Any]:
    """The answer with the fields that docs/json.md describes."""
    return {
        "schema": 1,
        "joined": {
            "member": str(joined.member),
            "job_id": joined.member.job,
            "slurm_job_id": joined.member.job,
            "running": joined.is_running,
            "partners": [str(partner) for partner in joined.partners],
            "places": joined.places,
        },
    }
