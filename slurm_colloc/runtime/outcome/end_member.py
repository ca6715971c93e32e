"""The end of one start of a member, from top to bottom.

collect_ends has judged how its processes ended. Here follow: whose fault it was, what that means
for its neighbours, its place, its state, and with the state the mails. The jobs that wait for the
member are let go in the same turn of the runner (pack.member_dependencies).
"""

from __future__ import annotations

import dataclasses

from slurm_colloc.model.end_causes import EndCause
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.member_processes import clean
from slurm_colloc.runtime.outcome.blame import Blame
from slurm_colloc.runtime.outcome.find_blame import BlameFinder
from slurm_colloc.runtime.outcome.verdict import StopReason, Verdict
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pausing.pause_members import MemberPauser
from slurm_colloc.runtime.queue.members import Member, PackMembers


class MemberEnds:
    """Does all that the end of a member calls for.

    Args:
        members: The members.
        blame_finder: Says whose fault an end was.
        states: Writes states; the mails hear of each.
        pauser: Forgets members that have ended.
        journal: The pack's log.
    """

    def __init__(
        self,
        *,
        members: PackMembers,
        blame_finder: BlameFinder,
        states: StateWriter,
        pauser: MemberPauser,
        journal: Journal,
    ) -> None:
        self._members = members
        self._blame_finder = blame_finder
        self._states = states
        self._pauser = pauser
        self._journal = journal

    def end(self, member: Member, verdict: Verdict) -> None:
        """Everything from a verdict on, in this order.

        Args:
            member: The member; its processes have ended, or it could not be started.
            verdict: How they ended, with a state.
        """
        blame = self._blame_finder.find(member, verdict)
        self._blame_finder.publish(member, blame)
        blame = _try_again(member, blame)
        if blame.verdict.state is MemberState.PENDING and member.asked is StopReason.CANCEL:
            # Whatever would have it run again: it is not wanted any more.
            verdict = dataclasses.replace(
                blame.verdict, state=MemberState.CANCELLED, reason=StopReason.CANCEL.value
            )
            blame = dataclasses.replace(blame, verdict=verdict, cause=EndCause.CANCELLED)
        self.free(member)
        if blame.verdict.state is MemberState.PENDING:
            self._wait_again(member, blame)
        else:
            self._end_for_good(member, blame)

    def end_unjudged(self, member: Member, reason: str) -> None:
        """End a member of which nothing can be found out but that its processes have ended.

        Args:
            member: The member.
            reason: Why, for people.
        """
        self.free(member)
        self._states.write_end(member, MemberState.FAILED, None, reason)
        self._journal.write("member_end", member=member.number, state="FAILED", reason=reason)

    def free(self, member: Member) -> None:
        """Forget a member's process and what was asked of it, and free its place."""
        member.process = None
        member.asked = None
        member.pid = member.wrapper_pid = None
        member.deadline = member.signal_at = None
        member.end_by = member.ended_at = None
        member.is_orphan = member.is_parked = member.is_at_door = False
        member.reserved_mb = None
        member.paused_s = 0.0
        self._pauser.forget(member)
        self._members.vacate(member.number)
        clean(member)

    def _wait_again(self, member: Member, blame: Blame) -> None:
        reason = blame.verdict.reason
        self._states.write(
            member, MemberState.PENDING, reason=reason, exit_code=None, **_tell(member, blame)
        )
        if blame.cause is None:
            self._members.waiting.append(member.number)
        else:
            # It has lost its turn; one that has had none yet is submitted again, if time runs out.
            self._members.waiting.appendleft(member.number)
        self._journal.write("requeue", member=member.number, reason=reason)

    def _end_for_good(self, member: Member, blame: Blame) -> None:
        verdict, told = blame.verdict, _tell(member, blame)
        assert verdict.state is not None
        self._states.write_end(
            member,
            verdict.state,
            verdict.exit_code,
            verdict.reason,
            ended_at=verdict.ended_at,
            **told,
        )
        self._journal.write(
            "member_end",
            member=member.number,
            state=verdict.state,
            exit=verdict.exit_code,
            cause=told["cause"],
        )


def _try_again(member: Member, blame: Blame) -> Blame:
    """The same, but it runs again where it failed by itself and has retries left (`--retries`)."""
    verdict, retries = blame.verdict, blame.retries
    most = member.spec.job.retries
    is_own = not (verdict.never_started or verdict.without_script or blame.is_culprit)
    if verdict.state is not MemberState.FAILED or not is_own or retries.failures >= most:
        return blame
    tries = retries.failures + 1
    reason = f"{verdict.reason or 'it failed'}; it runs again, retry {tries} of {most}"
    return dataclasses.replace(
        blame,
        verdict=dataclasses.replace(verdict, state=MemberState.PENDING, reason=reason),
        retries=dataclasses.replace(retries, failures=tries),
    )


def _tell(member: Member, blame: Blame) -> dict[str, object]:
    """What its state says of an end besides the verdict."""
    return {
        "cause": blame.cause.value if blame.cause else "",
        # What an earlier start has shown counts as well.
        "evidence": tuple(dict.fromkeys((*member.record.evidence, *blame.evidence))),
        "retries": blame.retries,
        "gpu": member.gpu,
    }
