"""`csub why` and `csub explain`: what is known of a member, put into words."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from slurm_colloc.errors import CollocError, NotFound, StateError, UsageProblem
from slurm_colloc.model.chain import describe_chain
from slurm_colloc.model.late_definitions import late_pattern
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.planning.same_kind import compute_reason_to_stay
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
    find_output_owner,
    read_last_line,
)
from slurm_colloc.report.report_sentences import find_word
from slurm_colloc.report.show_view import find_log_paths
from slurm_colloc.report.state_meanings import explain_member, explain_word
from slurm_colloc.report.why_line import (
    Facts,
    describe_closed,
    explain_why,
    fold_lines,
)
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.gpu_paces import read_paces
from slurm_colloc.store.member_states import read_attempt
from slurm_colloc.store.pack_directory import read_chain, read_setup, read_slurm_job_id
from slurm_colloc.store.report_files import latest_path
from slurm_colloc.store.runner_requests import DegreeRecord, read_degree

_FAILURES = (MemberState.FAILED, MemberState.OUT_OF_MEMORY)
_Read = TypeVar("_Read")
_MAY_BE_MEMBERS = late_pattern(r"L?\d.*|last([/_].*)?|all|.*/.*")


class Inquiry:
    """Asks Slurm about the jobs of packs, once for each.

    Args:
        session: The call.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[str, str], Any] = {}
        self._fields: dict[str, Mapping[str, str]] = {}

    def _once(
        self, read: Callable[[PackView], _Read], view: PackView, otherwise: _Read, of: str = ""
    ) -> _Read:
        """What is read of a pack, or of what `of` names, once; `otherwise` where it cannot be."""
        key = (read.__name__, of or view.record.pack_id)
        if key not in self._known:
            self._known[key] = otherwise
            with contextlib.suppress(CollocError):
                self._known[key] = read(view)
        found: _Read = self._known[key]
        return found

    def find_facts(self, view: PackView, member: MemberView) -> Facts:
        """What is known besides the state directory."""
        is_pending = member.state is MemberState.PENDING
        waits = is_pending and view.slurm_state is SlurmJobState.PENDING
        asks = waits and view.job_id and self._session.unreachable is None
        is_running = member.state is MemberState.RUNNING
        unprepared, takes_one = self._once(self._read_setup, view, (False, False))
        return Facts(
            now=time.time(),
            fields=self._once(self._read_fields, view, {}, view.job_id) if asks else {},
            unreachable=str(self._session.unreachable or ""),
            moved=self._find_new_name(member),
            degree=self._once(self._read_degree, view, None),
            latest=self._once(self._read_latest, view, None) if is_running else None,
            is_gpu_unprepared=unprepared,
            takes_one=takes_one,
            last_line=_read_last_line(view, member),
            kept_apart=self._once(self._read_kept_apart, view, ()) if waits else (),
            left_out=self._once(self._read_left_out, view, "") if is_pending else "",
            slow_gpu="" if is_pending else self._find_slow_gpu(view, member),
            chain=self._once(self._read_chain, view, "") if view.record.chain else "",
        )

    def _find_slow_gpu(self, view: PackView, member: MemberView) -> str:
        none: Mapping[str, str] = {}
        record, slow = member.record, self._once(self._read_slow, view, none, "slow GPUs")
        if record is None or not slow:
            return ""
        used: set[str] = set()
        if record.gpu is not None:
            used = {*record.gpu.uuids, record.gpu.gpu or ""}
        if not used & set(slow) and view.record.request is None:
            # A job alone prepares nothing: what was watched was its own.
            used = set(self._once(self._read_watched, view, tuple[str, ...]()))
        return "; ".join(told for uuid, told in slow.items() if uuid in used)

    def _read_slow(self, view: PackView) -> Mapping[str, str]:  # noqa: ARG002 - of all packs
        paces = read_paces(self._session.state.root)
        return {pace.uuid: pace.describe() for pace in paces if pace.is_slow}

    def _read_watched(self, view: PackView) -> tuple[str, ...]:
        latest = self._read_latest(view) or {}
        gpus = latest.get("gpus")
        return tuple(gpus) if isinstance(gpus, dict) else ()

    def _read_chain(self, view: PackView) -> str:
        try:
            chain = read_chain(self._session.state.pack_path(view.record.pack_id))
        except StateError as problem:
            return f"its link is not known: {problem}"
        return describe_chain(chain, view.job_id, view.record.chain)

    def _read_left_out(self, view: PackView) -> str:
        """Why the pack before it in its submission takes no more members; empty where it may."""
        sisters = self._session.state.list_sisters(view.record)
        place = sisters.index(view.record.pack_id) if view.record.pack_id in sisters else 0
        before = self._session.state.read_pack(sisters[place - 1]) if place else None
        if before is None:
            return ""
        return describe_closed(before, [f"{view.shown_id}/{number}" for number in before.members])

    def _read_kept_apart(self, view: PackView) -> tuple[str, ...]:
        """Why waiting members do not start in open packs of other submissions with room.

        Only where --join lets them, and where they wait with their pack: one that has begun takes
        over by itself.
        """
        policy = view.record.policy
        if view.attempt or policy is None or policy.join != "auto" or view.record.request is None:
            return ()
        return tuple(_list_kept_apart(self._session.state, view))

    def _read_degree(self, view: PackView) -> DegreeRecord | None:
        return read_degree(self._session.state.pack_path(view.record.pack_id), view.attempt)

    def _read_setup(self, view: PackView) -> tuple[bool, bool]:
        """Whether a pack's GPU is still to be prepared, and whether it takes one process only."""
        setup = read_setup(self._session.state.pack_path(view.record.pack_id))
        is_old = setup is None or setup.attempt != view.attempt
        # A job alone prepares nothing.
        shares = view.record.request is not None
        return is_old and shares, setup is not None and not is_old and setup.takes_one

    def _read_latest(self, view: PackView) -> Mapping[str, Any] | None:
        return read_json(latest_path(self._session.state.pack_path(view.record.pack_id)))

    def _read_fields(self, view: PackView) -> Mapping[str, str]:
        if view.job_id not in self._fields:
            self._fields |= self._session.slurm.read_elements(view.job_id)
        return self._fields.get(view.job_id, {})

    def _find_new_name(self, member: MemberView) -> str:
        if member.moved_to is None:
            return ""
        job_id = read_slurm_job_id(self._session.state.pack_path(member.moved_to))
        return f"{job_id.partition('_')[0]}/{member.member.number}" if job_id else ""


def _list_kept_apart(state: StateReader, view: PackView) -> Iterator[str]:
    """Why members of a waiting pack do not start in running ones that have room, a clause each."""
    from slurm_colloc.runtime.sister_packs import explain_difference

    own = {view.record.pack_id, *state.list_sisters(view.record)}
    for pack_id in state.list_open():
        with contextlib.suppress(StateError, OSError):
            other = state.pack_path(pack_id)
            record = None if pack_id in own else state.read_pack(pack_id)
            attempt = 0 if record is None else read_attempt(other)
            if record is None or record.request is None or not attempt:
                continue
            degree = read_degree(other, attempt)
            if degree is None or not degree.room:
                continue
            reason = explain_difference(record, view.record)
            stays = compute_reason_to_stay(record.policy, record.group)
            if reason or stays:
                job_id = (record.shown_id or read_slurm_job_id(other) or "?").partition("_")[0]
                told = f": {reason}" if reason else f", which takes no other jobs: {stays}"
                yield f"it does not start in the pack of {job_id}, which has room{told}"


def _read_last_line(view: PackView, member: MemberView) -> str:
    if member.state not in _FAILURES or member.record is None:
        return ""
    out, err = find_log_paths(view, member)
    return read_last_line((err, out), find_output_owner(member))


def tell_why(session: Session, choice: Choice, *, as_json: bool) -> str:
    """A line for each member; in JSON nothing is folded.

    Raises:
        NotFound: There is no such pack or member.
    """
    inquiry = Inquiry(session)
    lines = []
    for view, members in session.survey(choice):
        for member in members:
            facts = inquiry.find_facts(view, member)
            lines.append(explain_why(view, member, facts))
    if as_json:
        return json.dumps(
            [
                {
                    "member": line.member.member.address,
                    "job_id": line.member.own_id or None,
                    "state": line.member.state.value,
                    "reason": line.member.reason or None,
                    "why": line.join(),
                }
                for line in lines
            ]
        )
    return "".join(f"{escape_controls(line)}\n" for line in fold_lines(lines))


def explain(session: Session, targets: Sequence[str]) -> tuple[str, list[CollocError]]:
    """Several lines for each member or word, and what is wrong with the others."""
    inquiry = Inquiry(session)
    texts: list[str] = []
    problems: list[CollocError] = []
    for target in targets:
        try:
            texts += _explain_target(session, inquiry, target)
        except (NotFound, UsageProblem) as problem:
            problems.append(problem)
    return "\n".join(texts), problems


def _explain_target(session: Session, inquiry: Inquiry, target: str) -> list[str]:
    # A word such as STEPS/S has the slash of a member's id.
    if find_word(target) is not None or not _MAY_BE_MEMBERS.fullmatch(target):
        return [explain_word(target)]
    return [
        explain_member(view, member, inquiry.find_facts(view, member))
        for view, members in session.survey(Choice.parse([target]))
        for member in members
    ]
