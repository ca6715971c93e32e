"""`csub why` and `csub explain`: what is known of a member, put into words."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_colloc.errors import CollocError, NotFound, SlurmError, StateError, UsageProblem
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.why_not_now import ONE_AT_A_TIME
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
    describe_of_pack,
    explain_why,
    fold_lines,
)
from slurm_colloc.session.selection import Choice
from slurm_colloc.session.session import Session
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.member_states import read_attempt
from slurm_colloc.store.pack_directory import read_setup, read_slurm_job_id
from slurm_colloc.store.report_files import latest_path
from slurm_colloc.store.runner_requests import DegreeRecord, read_degree

_FAILURES = (MemberState.FAILED, MemberState.OUT_OF_MEMORY)
_MAY_BE_MEMBERS = re.compile(r"L?\d.*|last([/_].*)?|all|.*/.*")


class Inquiry:
    """Asks Slurm about the jobs of packs, once for each.

    Args:
        session: The call.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fields: dict[str, Mapping[str, str]] = {}
        self._degrees: dict[str, DegreeRecord | None] = {}
        self._setups: dict[str, tuple[bool, bool]] = {}
        self._latest: dict[str, Mapping[str, Any] | None] = {}
        self._apart: dict[str, tuple[str, ...]] = {}
        self._left_out: dict[str, str] = {}

    def find_facts(self, view: PackView, member: MemberView) -> Facts:
        """What is known besides the state directory."""
        unprepared, takes_one = self._read_setup(view)
        return Facts(
            now=time.time(),
            fields=self._read_fields(view, member),
            unreachable=str(self._session.unreachable or ""),
            moved=self._find_new_name(member),
            degree=self._read_degree(view),
            latest=self._read_latest(view) if member.state is MemberState.RUNNING else None,
            is_gpu_unprepared=unprepared,
            takes_one=takes_one,
            last_line=_read_last_line(view, member),
            kept_apart=self._find_kept_apart(view, member),
            left_out=self._find_left_out(view, member),
        )

    def _find_left_out(self, view: PackView, member: MemberView) -> str:
        """Why the pack before its own, of the same call, takes no more members."""
        if member.state is not MemberState.PENDING:
            return ""
        pack_id = view.record.pack_id
        if pack_id not in self._left_out:
            self._left_out[pack_id] = ""
            with contextlib.suppress(CollocError):
                sisters = self._session.state.list_sisters(view.record)
                place = sisters.index(pack_id) if pack_id in sisters else 0
                before = self._session.state.read_pack(sisters[place - 1]) if place else None
                if before is not None:
                    names = [f"{view.shown_id}/{number}" for number in before.members]
                    self._left_out[pack_id] = describe_closed(before, names)
        return self._left_out[pack_id]

    def _find_kept_apart(self, view: PackView, member: MemberView) -> tuple[str, ...]:
        """Why it does not start in running packs of the same script that its user submitted before.

        Nothing is said where its submission is to stay by itself, as in each script's call, nor of
        a job that runs alone: why it does is said anyway.
        """
        waits = member.state is MemberState.PENDING and view.slurm_state is SlurmJobState.PENDING
        policy = view.record.policy
        if not waits or view.attempt or policy is None or policy.join != "auto":
            return ()
        if view.record.request is None:
            return ()
        pack_id = view.record.pack_id
        if pack_id not in self._apart:
            self._apart[pack_id] = tuple(_list_kept_apart(self._session.state, view))
        return self._apart[pack_id]

    def _read_degree(self, view: PackView) -> DegreeRecord | None:
        pack_id = view.record.pack_id
        if pack_id not in self._degrees:
            self._degrees[pack_id] = None
            with contextlib.suppress(StateError):
                path = self._session.state.pack_path(pack_id)
                self._degrees[pack_id] = read_degree(path, view.attempt)
        return self._degrees[pack_id]

    def _read_setup(self, view: PackView) -> tuple[bool, bool]:
        """Whether a pack's GPU is being prepared, and whether it takes one member at a time."""
        pack_id = view.record.pack_id
        if pack_id not in self._setups:
            self._setups[pack_id] = (False, False)
            with contextlib.suppress(StateError):
                setup = read_setup(self._session.state.pack_path(pack_id))
                is_old = setup is None or setup.attempt != view.attempt
                # A job that runs alone prepares nothing.
                shares = view.record.request is not None
                notes = () if setup is None or is_old else setup.notes
                takes_one = any(ONE_AT_A_TIME in note for note in notes)
                self._setups[pack_id] = (is_old and shares, takes_one)
        return self._setups[pack_id]

    def _read_latest(self, view: PackView) -> Mapping[str, Any] | None:
        pack_id = view.record.pack_id
        if pack_id not in self._latest:
            self._latest[pack_id] = None
            with contextlib.suppress(StateError):
                path = self._session.state.pack_path(pack_id)
                self._latest[pack_id] = read_json(latest_path(path))
        return self._latest[pack_id]

    def _read_fields(self, view: PackView, member: MemberView) -> Mapping[str, str]:
        waits = member.state is MemberState.PENDING and view.slurm_state is SlurmJobState.PENDING
        if not waits or not view.job_id or self._session.unreachable is not None:
            return {}
        if view.job_id not in self._fields:
            self._fields[view.job_id] = {}
            with contextlib.suppress(SlurmError):
                self._fields[view.job_id] = self._session.slurm.read_job(view.job_id) or {}
        return self._fields[view.job_id]

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
            of_pack = describe_of_pack(view, member, facts)
            lines.append((member, explain_why(view, member, facts), of_pack))
    if as_json:
        return json.dumps(
            [
                {
                    "member": str(member.member),
                    "state": member.state.value,
                    "reason": member.reason or None,
                    "why": line.partition(": ")[2],
                }
                for member, line, _ in lines
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
