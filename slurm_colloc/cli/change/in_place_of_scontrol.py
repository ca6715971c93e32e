"""csub under the name scontrol: it shows and steers tasks of packs, Slurm all other jobs.

As with scancel (`in_place_of_scancel`) a call is divided: what it says of members is done as
`csub hold`, `release` and `requeue` do it, and Slurm's scontrol gets the jobs that are left. A task
is not a job of Slurm's, so what would change its pack for others is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_colloc.cli.change.ask_runner import Problems, join_names, require_here
from slurm_colloc.cli.change.hold_and_release import hold, release
from slurm_colloc.cli.change.in_place_of_scancel import find_named
from slurm_colloc.cli.change.other_gpu_sets import list_chosen, list_others
from slurm_colloc.cli.change.requeue_members import requeue
from slurm_colloc.cli.handed_to_slurm import ask_slurm, find_command
from slurm_colloc.cli.look.packed_tasks import Answer, answer_with_tasks, is_shared
from slurm_colloc.cli.look.show_job import list_job_records
from slurm_colloc.cli.session import Session, freeze, note
from slurm_colloc.cli.standard_streams import has_reader
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.member import ALL, Selection
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.slurm.tables.scontrol_words import ScontrolCall, parse_scontrol

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

Found = Sequence[tuple[PackView, Sequence[MemberView]]]


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
        named, left = _divide(session, call)
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


def _divide(session: Session, call: ScontrolCall) -> tuple[Found, Sequence[str]]:
    """The members that are meant, and the ids of jobs that csub does not know."""
    return find_named(session, call.ids) if session.state.list_open() else ((), call.ids)


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
