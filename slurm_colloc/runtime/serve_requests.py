"""What csub, and members themselves, ask of a runner for one member: it is done, or kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.runtime.fill_places import MemberIntake
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.stop_member import MemberControl
from slurm_colloc.runtime.take_over_members import MemberTakeOver
from slurm_colloc.store import inbox
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.inbox import find_taker, format_number
from slurm_colloc.store.runner_requests import (
    Action,
    Request,
    forget_request,
    hand_on_requests,
    list_requests,
)


@dataclass(eq=False, kw_only=True)
class RequestHandler:
    """Serves requests, each as often as it takes.

    A cancel stays where it lies until its member has ended for good, so that a later attempt finds
    it, too. All others are gone once they are done.

    Attributes:
        pack: The attempt of the pack.
        control: Ends and signals them.
        intake: Takes in those that are new.
        take_over: Knows where a member is that has left this pack.
    """

    pack: PackContext
    control: MemberControl
    intake: MemberIntake
    take_over: MemberTakeOver

    def __post_init__(self) -> None:
        self._told: set[str] = set()
        self._done: set[str] = set()

    def work(self) -> None:
        """Serve what is there, oldest first.

        Raises:
            OSError: They cannot be listed.
            StateError: One cannot be read; the others are served.
        """
        unreadable: list[StateError] = []
        requests = list_requests(self.pack.path, unreadable)
        for request in requests:
            if request.path not in self._done:
                self.pack.steps.run(
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
        is_cancelled = request.action is Action.CANCEL and number in self.pack.members.waiting
        # Begun, so that no other pack takes it over while it is cancelled.
        if is_cancelled and member is not None and not inbox.begin(str(self.pack.path), number):
            self.intake.forget(member)
            return
        if member is None or member.is_final:
            if self.intake.is_late(number) or self._hand_on(number):
                return
            self._done.add(request.path)
            return
        if request.path not in self._told:
            self._told.add(request.path)
            self.pack.journal.write(
                "request", action=request.action, member=number, reason=request.reason
            )
        if request.action is Action.CANCEL:
            self.control.cancel(member, request.reason)
            if not member.is_final:
                return
        elif request.action is Action.REQUEUE:
            others = (other for other in requests if other.number == number)
            if all(other.action is not Action.CANCEL for other in others):
                self.control.requeue(member)
        elif member.is_starting:
            # There is no script yet that could get it.
            return
        else:
            self.control.signal(member, request.signal, steps_only=request.steps_only)
        self._done.add(request.path)

    def _find(self, number: int) -> Member | None:
        """The member, taken in where it waits to be."""
        pack = str(self.pack.path)
        is_known = number in self.pack.members.by_number
        if not is_known and (inbox.take(pack, number) or inbox.is_taken(pack, number)):
            self.intake.adopt(number)
        return self.pack.members.by_number.get(number)

    def _hand_on(self, number: int) -> bool:
        """Leave what is asked for a member that was taken over to its taker; False for others."""
        if number in self.pack.members.by_number:
            return False
        if find_taker(str(self.pack.path), number):
            # Its taker asks for it as it comes.
            return True
        if is_there(self.pack.path / "members" / format_number(number)):
            return False
        elsewhere = self.take_over.find_elsewhere(number)
        if elsewhere is not None:
            hand_on_requests(self.pack.path, number, *elsewhere)
        return elsewhere is not None
