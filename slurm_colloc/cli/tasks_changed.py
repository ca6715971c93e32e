"""csub under the name scancel: it ends and signals tasks of packs, Slurm all other jobs.

Also: `scontrol show job` with tasks of packs: each has a record, all else is as scontrol says; csub
under the name scontrol: it shows and steers tasks of packs, Slurm all other jobs.

A program that has an array from csub under the name sbatch means its tasks, by their ids
(`scancel 4711_3`), by signals (`scancel --signal=USR1 4711`) or by what they have in common
(`scancel --state=PENDING --name=sweep`). Slurm knows packs alone, so the call is divided: members
of packs are asked for through their runners, and Slurm's scancel gets the jobs that are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from slurm_colloc.cli.hold_and_wait import hold, release
from slurm_colloc.cli.sbatch_call import ask_slurm, find_command
from slurm_colloc.cli.tasks_listed import (
    Answer,
    JobChoice,
    PackedTasks,
    answer_with_tasks,
    is_shared,
)
from slurm_colloc.errors import CollocError, NotFound, SlurmRefused, UsageProblem
from slurm_colloc.model.job_ids import is_own_number, parse_job_id
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.member import ALL, MemberState, Selection
from slurm_colloc.model.quantities import parse_signal
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.slurm_tasks import SlurmTask, write_json_record, write_record
from slurm_colloc.runtime.programs.member_commands import read_output
from slurm_colloc.runtime.programs.member_requests import SCANCEL
from slurm_colloc.session.cancel_and_requeue import (
    Problems,
    cancel,
    join_names,
    list_chosen,
    list_others,
    requeue,
    require_here,
    wake_runner,
)
from slurm_colloc.session.session import Session, freeze, note
from slurm_colloc.session.standard_streams import has_reader
from slurm_colloc.slurm.scontrol_records import (
    ScontrolCall,
    find_field,
    join_records,
    name_job,
    parse_scontrol,
    split_ids,
    split_records,
)
from slurm_colloc.store.runner_requests import Action, Request, write_request

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
_Record = TypeVar("_Record")


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
            found, left = _divide_order(session, order)
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


def _divide_order(session: Session, order: CancelOrder) -> tuple[Found, list[str] | None]:
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
            named = parse_job_id(_name_script_job(word))
            if named and named[0].isdigit():
                selection = session.state.resolve(Selection(*named))
                if session.state.find_packs(selection.job):
                    known[word] = selection
    try:
        found = session.survey(list(known.values())) if known else []
    except NotFound:
        # One names no member; Slurm says what it says of such a task.
        known = {word: one for word, one in known.items() if _is_there(session, one)}
        found = session.survey(list(known.values()))
    return found, [word for word in ids if word not in known]


_SCRIPT_STEP = ".batch"


def _name_script_job(word: str) -> str:
    """The task whose script a word names, `4711_3.batch`; other words as they are."""
    task = word.removesuffix(_SCRIPT_STEP)
    return word if task.isdigit() and not is_own_number(task) else task


class _StepRefused(UsageProblem):
    """A step of a task in a pack is named."""


def _refuse_steps(session: Session, ids: Sequence[str]) -> None:
    """Refuse steps of tasks in packs: Slurm's scancel would say nothing, and do nothing.

    Raises:
        _StepRefused: One is named.
    """
    for word in ids:
        task, dot, _ = _name_script_job(word).partition(".")
        with contextlib.suppress(NotFound, ValueError):
            is_task = not task.isdigit() or is_own_number(task)
            named = parse_job_id(task) if dot and is_task else None
            if named is None:
                continue
            if not session.state.find_packs(session.state.resolve(Selection(*named)).job):
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
    names_script = any(one.endswith(_SCRIPT_STEP) for one in order.ids)
    steps_only = not names_script and not order.given.keys() & {"b", "f"}
    for view, members in found:
        running = [member for member in members if member.state is MemberState.RUNNING]
        with problems.noted():
            require_here(session, view)
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
            note(f"{what} job {member.member.joined_as or name}", "scancel")


# ---- `scontrol show job` with tasks of packs: each has a record, all else is as scontrol says ----


def list_job_records(session: Session, call: ScontrolCall) -> list[str] | None:
    """The lines of the answer; None where scontrol is to answer alone.

    Args:
        session: The state.
        call: What was asked.
    """
    choice = JobChoice(session, ",".join(call.ids) or None)
    asked = choice.translate(",".join(call.ids)).split(",") if call.ids else [""]
    if call.ids:
        # An array's answer has all of its elements.
        asked = [one for one in asked if "_" not in one or one.partition("_")[0] not in asked]
    is_json = "json" in call.options
    options = [one for one in call.words if one != "-o" and not "--oneliner".startswith(one)]
    answers = []
    for one in asked:
        words = ["scontrol", *options, "show", "job", *filter(None, [one])]
        is_silent = bool(call.ids)
        status, text = read_output(find_command("scontrol"), words, os.environ, is_silent=is_silent)
        if not status and text:
            answers.append(text)
    if is_json:
        return _fill_json(session, choice, answers)
    split = [record for text in answers for record in split_records(text) if record.strip()]
    records = [(name_job(record), find_field(record, "JobId") or "", record) for record in split]
    told = _fill(session, choice, records, write_record)
    if not told:
        return None
    is_one_line = "o" in call.options
    text = join_records([*told, ""], is_one_line=is_one_line)
    return text.removesuffix("\n").split("\n")


def _fill(
    session: Session,
    choice: JobChoice,
    records: Sequence[tuple[str, str, _Record]],
    write: Callable[[SlurmTask, _Record], _Record],
) -> list[_Record]:
    """Records of jobs, each with its name and id: those of tasks in the place of their packs'."""
    names = [name for name, _, _ in records]
    arrays = dict.fromkeys(name.partition("_")[0] for name in names)
    tasks = PackedTasks(session, [*choice.jobs, *arrays], os.environ)
    hidden = tasks.names()
    told: list[_Record] = []
    shown: set[str] = set()
    for name, number, record in records:
        found = tasks.find(name, set(names))
        # Of a task that another pack has taken over Slurm may still know the element.
        if found is None and name not in hidden and choice.is_named(name, number):
            told.append(record)
        for task in found or ():
            if task.name_for_slurm not in shown and choice.wants(task, (name, number)):
                shown.add(task.name_for_slurm)
                told.append(write(task, record))
    return told


def _fill_json(session: Session, choice: JobChoice, answers: Sequence[str]) -> list[str] | None:
    try:
        documents = [json.loads(text) for text in answers]
        jobs = [job for document in documents for job in document["jobs"]]
        records = [(_name_json_job(job), str(job["job_id"]), job) for job in jobs]
    except (KeyError, TypeError, ValueError):
        return None
    told = _fill(session, choice, records, write_json_record)
    if not told:
        return None
    return json.dumps({**documents[0], "jobs": told}, indent=2).split("\n")


def _name_json_job(job: dict[str, Any]) -> str:
    array, task = (_read_number(job.get(key)) for key in ("array_job_id", "array_task_id"))
    if waiting := job.get("array_task_string"):
        return f"{array}_[{waiting}]"
    return f"{array}_{task}" if array and task is not None else str(job["job_id"])


def _read_number(value: Any) -> int | None:
    """A number in the form of any release; None where it is not set."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") else None
    return None if value is None else int(value)


# ---- csub under the name scontrol: it shows and steers tasks of packs, Slurm all other jobs ------
#
# As with scancel (`in_place_of_scancel`) a call is divided: what it says of members is done as
# `csub hold`, `release` and `requeue` do it, and Slurm's scontrol gets the jobs that are left. A
# task is not a job of Slurm's, so what would change its pack for others is refused.

_DONE: dict[str, Callable[[Session, Sequence[Selection]], int]] = {
    "hold": hold,
    "release": release,
    "requeue": requeue,
}

_OF_PACKS = (
    "account", "admincomment", "deadline", "eligibletime", "excnodelist", "features", "licenses",
    "nice", "partition", "priority", "qos", "reqnodelist", "nodelist", "reservationname",
    "starttime", "wckey",
)  # fmt: skip
"""What may be changed for a whole pack: it says where and when it runs, and as whose."""


def run_scontrol(argv: Sequence[str]) -> int:
    """Do what `scontrol ARGUMENTS` asks; the exit status.

    Raises:
        CollocError: It cannot be done for a member; for all others it was.
        SlurmUnreachable: There is no scontrol of Slurm's in PATH.
    """
    find_command("scontrol")
    call = parse_scontrol(argv)
    if call is None:
        return ask_slurm("scontrol", argv)
    if call.verb == "show":

        def answer(session: Session) -> Answer:
            return 0, list_job_records(session, call)

        return answer_with_tasks("scontrol", argv, answer)
    try:
        session = Session.open_own()
        session.tells_upkeep = has_reader()
        is_csubs = bool(session.state.list_open())
        named, left = find_named(session, call.ids) if is_csubs else ((), call.ids)
    except (CollocError, OSError) as error:
        note(f"{error}; only Slurm is asked")
        return ask_slurm("scontrol", argv)
    if not call.ids:
        _refuse_names(session, call)
        return ask_slurm("scontrol", argv)
    packs = [(view, members) for view, members in named if is_shared(view)]
    alone = [view.job_id for view, members in named if members and not is_shared(view)]
    if not packs:
        words = call.write_words([*left, *alone]) if alone else argv
        return ask_slurm("scontrol", words)
    if call.verb == "update":
        return _update(session, call, packs, [*left, *alone])
    rest = list(dict.fromkeys([*left, *alone]))
    status = ask_slurm("scontrol", call.write_words(rest)) if rest else 0
    if call.verb == "requeuehold":
        raise UsageProblem(
            f"scontrol requeuehold cannot be done for a task of a pack: {_name(packs)}",
            hint="csub requeue puts it back into the queue; csub hold holds one that waits",
        )
    return _DONE[call.verb](session, freeze(packs)) or status


def _refuse_names(session: Session, call: ScontrolCall) -> None:
    """Refuse a call that chooses jobs by name: that of a pack is one member's.

    Raises:
        UsageProblem: Members have such a name.
    """
    wanted = {word.partition("=")[2] for word in call.rest if "name=" in word.lower()}
    for view, members in session.survey([Selection(ALL)]):
        if is_shared(view) and any({member.name, view.record.name} & wanted for member in members):
            raise UsageProblem(
                f"scontrol {call.verb} by name cannot be done where jobs share a pack",
                hint=f"name them by their ids: {_name([(view, members)])}",
            )


def _update(session: Session, call: ScontrolCall, packs: Found, left: Sequence[str]) -> int:
    """Change packs of which all members are named, and other jobs; the exit status.

    Raises:
        UsageProblem: Something is said of a member alone.
    """
    chosen = list_chosen(packs)
    problems = Problems()
    ids = list(left)
    for view, members in packs:
        with problems.noted():
            require_here(session, view)
            for word in call.rest:
                _require_of_pack(word, members)
            named = {member.place for member in members}
            others = [m for m in view.members if not m.is_final and m.place not in named]
            others += [m for m in list_others(session, view, chosen) if not m.is_final]
            if others:
                raise UsageProblem(
                    f"{join_names(list(members))} cannot be changed alone: the pack has "
                    f"{join_names(others)}, too",
                    hint="name all of them",
                )
            ids.append(view.job_id)
    status = ask_slurm("scontrol", call.write_words(list(dict.fromkeys(ids)))) if ids else 0
    return problems.settle() or status


def _require_of_pack(word: str, members: Sequence[MemberView]) -> None:
    key = word.partition("=")[0].rstrip("+-").lower()
    if len(key) > 2 and any(name.startswith(key) for name in _OF_PACKS):
        return
    raise UsageProblem(
        f"{join_names(list(members))}: {word.partition('=')[0]} cannot be changed for a task of a "
        "pack",
        hint="csub cancel ends it; submit it again with another value",
    )


def _name(packs: Found) -> str:
    return join_names([member for _, members in packs for member in members])
