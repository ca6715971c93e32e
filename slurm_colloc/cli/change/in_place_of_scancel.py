"""csub under the name scancel: it ends and signals tasks of packs, Slurm all other jobs.

A program that has an array from csub under the name sbatch means its tasks, by their ids
(`scancel 4711_3`), by signals (`scancel --signal=USR1 4711`) or by what they have in common
(`scancel --state=PENDING --name=sweep`). Slurm knows packs alone, so the call is divided: members
of packs are asked for through their runners, and Slurm's scancel gets the jobs that are left.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from slurm_colloc.cli.change.ask_runner import Problems, require_here, wake_runner
from slurm_colloc.cli.change.cancel_members import cancel
from slurm_colloc.cli.handed_to_slurm import ask_slurm, find_command
from slurm_colloc.cli.look.packed_tasks import is_shared
from slurm_colloc.cli.session import Session, freeze, note
from slurm_colloc.cli.standard_streams import has_reader
from slurm_colloc.errors import CollocError, NotFound, SlurmRefused, UsageProblem
from slurm_colloc.model.job_ids import parse_job_id
from slurm_colloc.model.member import ALL, MemberState, Selection
from slurm_colloc.model.sbatch.quantities import parse_signal
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.runtime.programs.member_requests import SCANCEL
from slurm_colloc.runtime.programs.own_answers import read_output
from slurm_colloc.slurm.tables.command_words import split_ids
from slurm_colloc.store.pack.runner_requests import Action, Request, write_request

_HOW = frozenset({"b", "f", "Q", "s", "v", "ctld"})
"""What is done, and how it is told. All others choose jobs."""

_OF_JOBS = frozenset({"A", "p", "q", "R", "w"})
"""What a member has in common with its pack, so that squeue can tell, by the same letters."""

_OF_TASKS = frozenset({"n", "t", "me", "u"})
_BY_ENVIRONMENT = {
    "SCANCEL_ACCOUNT": "A", "SCANCEL_BATCH": "b", "SCANCEL_FULL": "f", "SCANCEL_NAME": "n",
    "SCANCEL_PARTITION": "p", "SCANCEL_QOS": "q", "SCANCEL_STATE": "t", "SCANCEL_USER": "u",
}  # fmt: skip
"""scancel(1), ENVIRONMENT VARIABLES."""

_STATES = {"": "", "PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED"}
"""Those by which scancel chooses; a parked member is suspended for csub alone."""

Found = Sequence[tuple[PackView, Sequence[MemberView]]]


@dataclass(frozen=True)
class CancelOrder:
    """What a call of scancel asks for.

    Attributes:
        given: Values of options by letter or name, empty for flags.
        words: The options as they stood, with the letter or name of each.
        ids: The ids that were named; none where jobs are chosen by options alone.
        state: The state in which they must be; empty for any.
        number: The signal to send; 0 to end jobs.
    """

    given: Mapping[str, str]
    words: tuple[tuple[str, str], ...]
    ids: tuple[str, ...]
    state: str
    number: int

    def list_words(self, *, chooses: bool = True) -> list[str]:
        """The options, also those that choose jobs or without them."""
        return [word for key, word in self.words if chooses or key in _HOW]

    @property
    def filters(self) -> frozenset[str]:
        """The options by which jobs are chosen."""
        return frozenset(self.given) - _HOW

    def is_for(self, member: MemberView) -> bool:
        """Whether the options choose a member, as far as it may differ from its pack."""
        if member.is_final or self.given.get("n", member.name) != member.name:
            return False
        return self.state in ("", member.state.value)


def run_scancel(argv: Sequence[str]) -> int:
    """Do what `scancel ARGUMENTS` asks; the exit status.

    Raises:
        CollocError: A member could not be ended or signalled; all else was.
        SlurmUnreachable: There is no scancel of Slurm's in PATH.
    """
    find_command("scancel")
    order = read_order(argv, os.environ)
    if order is None:
        return ask_slurm("scancel", argv)
    try:
        session = Session.open_own()
        session.tells_upkeep = has_reader()
        if session.state.list_open():
            _refuse_steps(session, order.ids)
            found, left = _divide(session, order)
        else:
            found, left = (), None
    except _StepRefused:
        raise
    except (CollocError, OSError) as error:
        note(f"{error}; only Slurm is asked")
        # Of an id that it does not know Slurm's scancel says nothing.
        return ask_slurm("scancel", argv) or int(any("_" in word for word in order.ids))
    if left is None:
        return ask_slurm("scancel", argv)
    status = ask_slurm("scancel", left) if left else 0
    if not found:
        return status
    if "v" in order.given:
        _tell(found, order.number)
    if order.number:
        return _signal(session, order, found) or status
    return cancel(session, freeze(found), yes=True) or status


def read_order(argv: Sequence[str], environment: Mapping[str, str]) -> CancelOrder | None:
    """Read a call of scancel.

    Args:
        argv: Its arguments.
        environment: Its environment.

    Returns:
        None for one that is for Slurm alone: wrong, about other users, clusters or the like.
    """
    split = SCANCEL.split(argv)
    if split is None:
        return None
    options, operands = split
    given = {key: environment[name] for name, key in _BY_ENVIRONMENT.items() if name in environment}
    given |= {key: value or "" for key, value, _ in options}
    ids = tuple(word for operand in operands for word in split_ids(operand))
    state = given.get("t", "").upper()
    state = _STATES.get(state, state)
    try:
        number = parse_signal(given.get("s", "KILL"))
    except ValueError:
        return None
    order = CancelOrder(
        given,
        tuple((key, word) for key, _, words in options for word in words),
        ids,
        state,
        # scancel without a signal, and with this one: TERM, and KILL after KillWait.
        0 if number == signal.SIGKILL else number,
    )
    own = pwd.getpwuid(os.geteuid())
    is_own = given.get("u") in (None, own.pw_name, str(own.pw_uid))
    is_known = given.keys() <= _HOW | _OF_TASKS | _OF_JOBS
    return (
        order
        if is_known and is_own and state in _STATES.values() and (ids or order.filters)
        else None
    )


def _divide(session: Session, order: CancelOrder) -> tuple[Found, list[str] | None]:
    """The members that are meant, and the arguments of Slurm's scancel for all else.

    Returns:
        For the latter nothing where no other job is meant, and None where no pack is.
    """
    if order.ids:
        found, left = find_named(session, order.ids)
    else:
        found, left = session.survey([Selection(ALL)]), []
    packs = [(view, members) for view, members in found if is_shared(view)]
    alone = [view.job_id for view, members in found if not is_shared(view) and members]
    # A submission may have become several Slurm jobs.
    is_spread = not {job.partition("_")[0] for job in alone} <= {
        word.partition("_")[0] for word in order.ids
    }
    if not packs and not (order.ids and is_spread):
        return (), None
    jobs = _list_jobs(order, _OF_JOBS) if order.filters & _OF_JOBS else None
    chosen = [
        (view, [member for member in members if order.is_for(member)])
        for view, members in packs
        if jobs is None or view.job_id in jobs
    ]
    words = order.list_words()
    if order.ids:
        left += alone
    else:
        # By the options alone Slurm would choose packs, too.
        words = order.list_words(chooses=False)
        known = {view.job_id for view, _ in packs}
        left = [job for job in _list_jobs(order, order.filters) if job not in known]
    rest = [*words, *dict.fromkeys(left)] if left else []
    return [(view, members) for view, members in chosen if members], rest


def find_named(session: Session, ids: Sequence[str]) -> tuple[Found, list[str]]:
    """The members of submissions that ids name, and ids that csub does not know."""
    known: dict[str, Selection] = {}
    for word in ids:
        with contextlib.suppress(NotFound, ValueError):
            named = parse_job_id(word)
            if named and named[0].isdigit() and session.state.find_packs(named[0]):
                known[word] = Selection(*named)
    try:
        found = session.survey(list(known.values())) if known else []
    except NotFound:
        # One names no member; Slurm says what it says of such a task.
        known = {word: one for word, one in known.items() if _is_there(session, one)}
        found = session.survey(list(known.values()))
    return found, [word for word in ids if word not in known]


class _StepRefused(UsageProblem):
    """A step of a task in a pack is named."""


def _refuse_steps(session: Session, ids: Sequence[str]) -> None:
    """Refuse steps of tasks in packs: Slurm's scancel would say nothing, and do nothing.

    Raises:
        _StepRefused: One is named.
    """
    for word in ids:
        task, dot, _ = word.partition(".")
        with contextlib.suppress(NotFound, ValueError):
            named = parse_job_id(task) if dot and not task.isdigit() else None
            if named is None or not session.state.find_packs(named[0]):
                continue
            if any(is_shared(view) for view, _ in session.survey([Selection(*named)])):
                raise _StepRefused(
                    f"{word} cannot be ended alone: steps of a pack are numbered through all its "
                    "members",
                    hint=f"scancel {task} ends the task",
                )


def _is_there(session: Session, selection: Selection) -> bool:
    try:
        return bool(session.survey([selection]))
    except NotFound:
        return False


def _list_jobs(order: CancelOrder, filters: AbstractSet[str]) -> list[str]:
    """The user's jobs that meet some of the options, as squeue has them."""
    chosen = filters & order.filters
    words = [f"-{key}{order.given[key]}" for key in chosen & {*_OF_JOBS, "n"}]
    if order.state and "t" in chosen:
        words.append(f"--states={order.state}")
    environment = {key: text for key, text in os.environ.items() if not key.startswith("SQUEUE_")}
    asked = ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.geteuid()}", *words]
    status, text = read_output(find_command("squeue"), asked, environment)
    if status:
        raise SlurmRefused("squeue does not tell which jobs are meant")
    return text.split()


def _signal(session: Session, order: CancelOrder, found: Found) -> int:
    """Have a signal sent to members that run, by their runners; the exit status.

    Raises:
        CollocError: It could not be asked for; all others were.
    """
    problems = Problems()
    steps_only = not order.given.keys() & {"b", "f"}
    for view, members in found:
        running = [member for member in members if member.state is MemberState.RUNNING]
        with problems.noted():
            require_here(session, view)
            if running and view.record.carried:
                raise UsageProblem(
                    f"{running[0].member} cannot be signalled: its pack shares no path with this "
                    "machine",
                    hint=f"squeue -s lists its step, and scancel -s takes {view.job_id}.STEP",
                )
            for member in running:
                path = session.state.pack_path(view.record.pack_id)
                request = Request(
                    Action.SIGNAL, member.place, order.number, steps_only, reason="scancel -s"
                )
                write_request(path, request)
            if running:
                wake_runner(session, view, running[0].member)
    return problems.settle()


def _tell(found: Found, number: int) -> None:
    """Say what scancel says with --verbose."""
    what = f"Signal {number} to" if number else "Terminating"
    for _, members in found:
        for member in members:
            job, number = member.member.job, member.member.number
            name = job if member.names_alone else f"{job}_{number}"
            note(f"{what} job {name}", "scancel")
