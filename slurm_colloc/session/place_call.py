"""Where a call goes: into a pack that has room, or to Slurm as a submission of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import Policy, SharingMode
from slurm_colloc.session.session import Session, note
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.indexes import FOLDER
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.packs.submit_batch import Submitted
from slurm_colloc.submission.plan.call_policy import choose_join, choose_policy, is_captured
from slurm_colloc.submission.plan.plan_call import Opening
from slurm_colloc.submission.submit import submit_call, submit_local

if TYPE_CHECKING:
    from slurm_colloc.submission.join.join_pack import Joined
    from slurm_colloc.submission.plan.plan_call import CallPlan

    Tell = Callable[[CallPlan, Sequence[Submitted], Sequence[str]], None]

JOIN_WAIT_S = 30.0


def choose_other_packs(
    call: Call, session: Session, *, local: bool, asked_on_terminal: bool, has_links: bool = False
) -> str:
    """Packs of other submissions in which a call's jobs may run: `auto`, `pending` or `never`.

    A single script joins one as it is submitted. Jobs of --array and csub pack that wait are taken
    over by one that has room.

    Args:
        call: The call.
        session: The session.
        local: It does without Slurm.
        asked_on_terminal: A person reads the answer, so that no program is surprised.
        has_links: Slurm's commands are csub's here, see `choose_join`.

    Raises:
        UsageProblem: `--join` has another value.
    """
    if local or call.candidates[0].job.only_probe:
        return "never"
    if any(candidate.job.chain for candidate in call.candidates):
        return "never"
    is_single = len(call.candidates) == 1 and call.array is None
    which = choose_join(
        call,
        session.settings,
        on_terminal=asked_on_terminal,
        has_links=has_links and is_single,
    )
    if which != "never" and is_captured(call, on_terminal=asked_on_terminal):
        from slurm_colloc.submission.packs.own_ids import OwnIds

        # Without a number of its own a program could not ask Slurm for it.
        own_ids = OwnIds(session.own_state, session.settings, session.slurm)
        return which if own_ids.has_own(call.candidates[0].job) else "never"
    return which


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


def _check_chain(call: Call, *, local: bool) -> None:
    """Refuse `--chain` where it cannot be, or would only lose work.

    Args:
        call: The call.
        local: It does without Slurm.

    Raises:
        UsageProblem: It says what to do.
    """
    from slurm_colloc.check.saves import find_sign

    if local:
        raise UsageProblem("--chain needs Slurm", hint="leave out --chain or --local")
    if len({candidate.job.chain for candidate in call.candidates}) > 1:
        raise UsageProblem(
            "--chain differs between the jobs of this call, which may share a GPU",
            hint="give it on the command line, for all of them",
        )
    for candidate in {c.job.script_name: c for c in call.candidates}.values():
        options = candidate.options
        is_told = options is not None and options.flag("saves")
        if not is_told and not find_sign(candidate.job, candidate.script):
            raise UsageProblem(
                f"{candidate.job.script_name}: nothing shows that it saves its work when it is "
                "told to end, and a chain would begin anew in each link",
                hint="save at a signal and give --signal=B:USR1@300, or add --saves if it "
                "saves and resumes by itself",
            )


@dataclass(frozen=True)
class PlacedCall:
    """What became of a call.

    Attributes:
        submitted: Its Slurm jobs; none where its only job has joined a pack.
        joined: The pack that it has joined, or None.
    """

    submitted: Sequence[Submitted] = ()
    joined: Joined | None = None


def prepare_call(
    call: Call, session: Session, *, local: bool, asked_on_terminal: bool, has_links: bool = False
) -> tuple[Call, Policy, str]:
    """A call with members that it waits for found, and jobs that harmed others set apart.

    Args:
        call: The call.
        session: The session.
        local: It does without Slurm.
        asked_on_terminal: A person reads the answer.
        has_links: Slurm's commands are csub's here, see `choose_join`.

    Returns:
        The call; its policy, which holds for all that becomes of it; and which packs its only job
        may join as it is submitted: `auto`, `pending` or `never`, as for the jobs of a larger call.
    """
    if any(dict(c.job.group).get("dependency") for c in call.candidates):
        from slurm_colloc.session.depend_on_members import resolve_members

        call = resolve_members(session, call, local=local)
    if any(candidate.job.chain for candidate in call.candidates):
        _check_chain(call, local=local)
    # What packs that have ended show of these jobs counts in the plan.
    if isinstance(session.state, State) and os.path.isdir(session.state.root / FOLDER):  # noqa: PTH112
        from slurm_colloc.session.await_summaries import prepare_summaries

        prepare_summaries(session.state, session.settings)
    is_asked = call.options.flag("avoid-slow")
    if (is_asked or session.settings.avoid_slow) and not local:
        from slurm_colloc.submission.plan.slow_nodes import leave_out_slow_nodes

        call, told = leave_out_slow_nodes(call, session.state.root, is_asked=is_asked)
        for text in told:
            note(text)
    join = choose_other_packs(
        call, session, local=local, asked_on_terminal=asked_on_terminal, has_links=has_links
    )
    policy = replace(choose_policy(call, session.settings), join=join)
    # Path.is_dir() fails where it may not look; the state's own reader says so in a sentence.
    if os.path.isdir(session.state.root / "faults"):  # noqa: PTH112
        from slurm_colloc.submission.plan.known_jobs import bar_culprits

        if policy.mode is SharingMode.MPS:
            call, barred = bar_culprits(call, session.state.root)
            # Where they may have walls the plan says what becomes of them.
            for text in () if policy.may_cut else barred:
                note(text)
    is_single = len(call.candidates) == 1 and call.array is None
    return call, policy, join if is_single else "never"


def place_call(
    call: Call,
    policy: Policy,
    session: Session,
    directory: str,
    *,
    joins: str,
    tell: Tell,
    opening: Opening | None = None,
) -> PlacedCall:
    """Join a pack that has room, or submit the call.

    Args:
        call: The call, prepared.
        policy: How far sharing may go.
        session: The session.
        directory: The submission directory.
        joins: Which packs it may join, see `prepare_call`.
        tell: Is told what was submitted, and why it did not join the packs that were there. An
            interrupt waits for that.
        opening: How its only job is opened for others; None where it is not.

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    if call.options.flag("snapshot"):
        call = _move_into_snapshot(call, session, directory)
    state, refusals = session.own_state, tuple[str, ...]()
    with contextlib.ExitStack() as held:
        if joins != "never":
            # One csub of a user at a time: scripts that are typed or started at once do not each
            # open a pack of their own.
            state.prepare()
            held.enter_context(hold_lock(state.root / "joining.lock", JOIN_WAIT_S))
            joined, refusals = find_room(call, policy, session, running=joins == "auto")
            if joined is not None:
                return PlacedCall(joined=joined)
        elif state.list_open():
            session.refresh()
        if call.options.flag("local"):
            made, submitted = submit_local(
                call, policy, session.settings, state, environ=os.environ, directory=directory
            )
            tell(made, submitted, ())
            return PlacedCall(submitted)

        def answer(made: CallPlan, submitted: Sequence[Submitted]) -> None:
            # Before the id, as sbatch does: who reads both streams as one takes the last word.
            session.tell_notices()
            tell(made, submitted, refusals)

        return PlacedCall(
            submit_call(
                call,
                policy,
                session.settings,
                state,
                session.slurm,
                directory=directory,
                answer=answer,
                refusals=refusals,
                opening=opening,
            )
        )


def _move_into_snapshot(call: Call, session: Session, directory: str) -> Call:
    from slurm_colloc.submission.jobs.stored_jobs import move_into_snapshot

    state = session.own_state
    state.prepare()
    return move_into_snapshot(call, state.root, directory)


def check_snapshot(call: Call, directory: str) -> None:
    """The same for a call that submits nothing: what would be refused is, and nothing is copied.

    Raises:
        UsageProblem: What `--snapshot` asks for cannot be done.
    """
    if call.options.flag("snapshot"):
        from slurm_colloc.submission.jobs.stored_jobs import find_project

        find_project(call, directory)
