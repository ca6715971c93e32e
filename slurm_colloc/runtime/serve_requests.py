"""What csub, and members themselves, ask of a runner for one member: it is done, or kept.

Also: an attempt of a pack ends as soon as a newer one has started elsewhere, or it counts as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from slurm_colloc.errors import StateError
from slurm_colloc.runtime.fill_places import MemberIntake
from slurm_colloc.runtime.guarded_steps import DeliberateEnd, GuardedSteps, Journal
from slurm_colloc.runtime.members import Member, PackMembers
from slurm_colloc.runtime.stop_member import MemberControl, kill
from slurm_colloc.store import inbox
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.inbox import find_taker, format_number
from slurm_colloc.store.member_states import read_attempt
from slurm_colloc.store.runner_requests import (
    Action,
    Request,
    forget_request,
    hand_on_requests,
    list_requests,
)
from slurm_colloc.store.written_ends import was_killed


class RequestHandler:
    """Serves requests, each as often as it takes.

    A cancel stays where it lies until its member has ended for good, so that a later attempt finds
    it, too. All others are gone once they are done.

    Args:
        pack: The pack's directory.
        members: Its members.
        control: Ends and signals them.
        intake: Takes in those that are new.
        steps: Keeps one request apart from the others.
        journal: The pack's log.
        find_elsewhere: Where a member is that has left this pack, and its number there.
    """

    def __init__(
        self,
        *,
        pack: Path,
        members: PackMembers,
        control: MemberControl,
        intake: MemberIntake,
        steps: GuardedSteps,
        journal: Journal,
        find_elsewhere: Callable[[int], tuple[Path, int] | None],
    ) -> None:
        self._pack = pack
        self._find_elsewhere = find_elsewhere
        self._members = members
        self._control = control
        self._intake = intake
        self._steps = steps
        self._journal = journal
        self._told: set[str] = set()
        self._done: set[str] = set()

    def work(self) -> None:
        """Serve what is there, oldest first.

        Raises:
            OSError: They cannot be listed.
            StateError: One cannot be read; the others are served.
        """
        unreadable: list[StateError] = []
        requests = list_requests(self._pack, unreadable)
        for request in requests:
            if request.path not in self._done:
                self._steps.run(
                    f"a request to {request.action} member {request.number}",
                    partial(self._serve, request, requests),
                )
            if request.path in self._done:
                # Where it cannot be removed it is at least not done twice.
                forget_request(request.path)
        if unreadable:
            raise unreadable[0]

    def _serve(self, request: Request, requests: Sequence[Request]) -> None:
        number = request.number
        member = self._find(number)
        is_cancelled = request.action is Action.CANCEL and number in self._members.waiting
        # Begun, so that no other pack takes it over while it is cancelled.
        if is_cancelled and member is not None and not inbox.begin(str(self._pack), number):
            self._intake.forget(member)
            return
        if member is None or member.is_final:
            if self._intake.is_late(number) or self._hand_on(number):
                return
            self._done.add(request.path)
            return
        if request.path not in self._told:
            self._told.add(request.path)
            self._journal.write(
                "request", action=request.action, member=number, reason=request.reason
            )
        if request.action is Action.CANCEL:
            self._control.cancel(member, request.reason)
            if not member.is_final:
                return
        elif request.action is Action.REQUEUE:
            if not any(_cancels(other, number) for other in requests):
                self._control.requeue(member)
        elif member.is_starting:
            # There is no script yet that could get it.
            return
        else:
            self._control.signal(member, request.signal, steps_only=request.steps_only)
        self._done.add(request.path)

    def _find(self, number: int) -> Member | None:
        """The member, taken in where it waits to be."""
        pack = str(self._pack)
        is_known = number in self._members.by_number
        if not is_known and (inbox.take(pack, number) or inbox.is_taken(pack, number)):
            self._intake.adopt(number)
        return self._members.by_number.get(number)

    def _hand_on(self, number: int) -> bool:
        """Leave what is asked for a member that was taken over to its taker; False for others."""
        if number in self._members.by_number:
            return False
        if find_taker(str(self._pack), number):
            # Its taker asks for it as it comes.
            return True
        if is_there(self._pack / "members" / format_number(number)):
            return False
        elsewhere = self._find_elsewhere(number)
        if elsewhere is not None:
            hand_on_requests(self._pack, number, *elsewhere)
        return elsewhere is not None


def _cancels(request: Request, number: int) -> bool:
    return request.action is Action.CANCEL and request.number == number


# ----
# An attempt of a pack ends as soon as a newer one has started elsewhere, or it counts as gone.


class Fenced(DeliberateEnd):
    """A newer attempt of this pack has started elsewhere."""

    exit_code = 1


class AttemptFence:
    """Between an attempt and the ones after it.

    Args:
        pack: The pack's directory.
        attempt: The attempt's number.
        members: Its members.
        restarts: How often Slurm has restarted the job.
    """

    def __init__(self, pack: Path, attempt: int, members: PackMembers, restarts: int = 0) -> None:
        self._pack = pack
        self._restarts = restarts
        self._attempt = attempt
        self._members = members

    def check(self) -> None:
        """End the members at once where this attempt is not to go on.

        Raises:
            Fenced: A newer one has started, or its guard takes it for dead.
        """
        newest = read_attempt(self._pack)
        if newest > self._attempt:
            self._end(f"attempt {newest} of this pack has started; attempt {self._attempt} ends")
        if was_killed(self._pack, self._restarts):
            self._end(
                f"this node counts as one that has left the job; attempt {self._attempt} ends"
            )

    def _end(self, why: str) -> NoReturn:
        for member in self._members.with_process():
            kill(member)
        raise Fenced(why)
