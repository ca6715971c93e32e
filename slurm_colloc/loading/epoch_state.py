"""One epoch that is shared, as its producer and a member see it; pure, without sockets or clocks.

Times are seconds of any one clock. A member is named by a number, which is its socket's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_MOST = 16
WINDOW_LEAST = 2
WINDOW_BYTES = 256 << 20
"""Batches that one member may be ahead of another: so many bytes of them, within these numbers."""

PATIENCE_LEAST_S = 2.0
"""How long members that are a window behind hold the others up before they must go, at least."""
PATIENCE_SHARE = 0.05
"""And so much of an epoch: those who are as slow as that are better shared with."""

NO_ONE_S = 10.0
"""After which a producer that no one has come to ends."""

GIVE, REFUSE, DROP, FORGET, CLOSE = range(5)
"""What a producer does: give a batch to a member; tell one that there are no more; part from a slow
one; forget a batch; let no one in any more."""


class Consumer:
    """A member that is served.

    Attributes:
        name: As it is called at the meeting place.
        cursor: The batch that it needs next.
        waits: Whether it has asked for that, and not been given it.
    """

    __slots__ = ("cursor", "name", "waits")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cursor = 0
        self.waits = False


class EpochState:
    """What a producer knows of its epoch and of those who share it.

    Args:
        digest: Of the order, which a member that has its own must have too.
        total: Batches in the epoch.
        now_s: Now.

    Attributes:
        window: Batches that are kept at most.
        made: Batches that were made.
        base: The first batch that is kept.
        failure: Why no more are made; empty while they are.
        is_open: Whether members are let in.
    """

    def __init__(self, digest: bytes, total: int, now_s: float) -> None:
        self.digest = digest
        self.total = total
        self.window = WINDOW_LEAST
        self.made = 0
        self.base = 0
        self.failure = ""
        self.is_open = True
        self.consumers: dict[int, Consumer] = {}
        self._opened_s = self._looked_s = now_s
        self._closed_s = now_s
        # For how long members have waited for slower ones.
        self._held_s = 0.0

    def add(self, size: int) -> int:
        """One more batch was made, of so many bytes: its number."""
        if self.made == 0:
            self.window = max(WINDOW_LEAST, min(WINDOW_MOST, WINDOW_BYTES // max(size, 1)))
        self.made += 1
        return self.made - 1

    def has_room(self) -> bool:
        """Whether one more batch may be made."""
        return self.made - self.base < self.window

    def let_in(self, handle: int, name: str, digest: bytes) -> bool:
        """Whether a member is let in, which is served from then on."""
        if not self.is_open or digest not in (bytes(16), self.digest):
            return False
        self.consumers[handle] = Consumer(name)
        return True

    def part(self, handle: int) -> None:
        """A member has gone."""
        self.consumers.pop(handle, None)

    def want(self, handle: int, number: int) -> bool:
        """A member needs a batch; False where it may not ask for that."""
        consumer = self.consumers.get(handle)
        if consumer is None or not consumer.cursor <= number < self.total:
            return False
        consumer.cursor, consumer.waits = number, True
        return True

    def is_finished(self, now_s: float) -> bool:
        """Whether no one needs anything any more."""
        return not self.consumers and (not self.is_open or now_s - self._opened_s > NO_ONE_S)

    def compute_left_ms(self, now_s: float) -> tuple[int, int]:
        """How long the epoch still takes at its pace, 0 for one that has failed; and in all."""
        pace_ms = 1000 * (now_s - self._opened_s) / max(self.made, 1)
        left = 0 if self.failure else self.total - self.made
        return int(pace_ms * left), int(pace_ms * self.total)

    def list_answers(self) -> list[tuple[int, int]]:
        """What those are told now who have asked: GIVE or REFUSE, and whom."""
        found = []
        for handle, consumer in list(self.consumers.items()):
            if consumer.waits and consumer.cursor < self.made:
                consumer.waits = False
                found.append((GIVE, handle))
            elif consumer.waits and self.failure:
                # Who has just come was let in to be told; no one else need be.
                self.is_open = False
                self.part(handle)
                found.append((REFUSE, handle))
        return found

    def list_changes(
        self, now_s: float, compute_patience_s: Callable[[float], float]
    ) -> list[tuple[int, int]]:
        """What else is done now: CLOSE; DROP, and whom; FORGET, and which batch.

        Args:
            now_s: Now.
            compute_patience_s: How much longer to wait for those who are not here, by since when
                the door is open; asked only while that matters.
        """
        found = []
        if (
            self.is_open
            and self.made
            and self.consumers
            and compute_patience_s(self._opened_s) <= 0
        ):
            self.is_open, self._closed_s = False, now_s
            found.append((CLOSE, 0))
        for handle in self._list_slow(now_s):
            self.part(handle)
            found.append((DROP, handle))
        if not self.is_open:
            needed = min((each.cursor for each in self.consumers.values()), default=self.made)
            needed = min(needed, self.made)
            found += [(FORGET, number) for number in range(self.base, needed)]
            self.base = max(self.base, needed)
        return found

    def _list_slow(self, now_s: float) -> list[int]:
        """Those who are a window behind and have held up others for as long as that."""
        spent_s, self._looked_s = now_s - self._looked_s, now_s
        waiting = any(each.waits and each.cursor >= self.made for each in self.consumers.values())
        if self.is_open or not waiting or self.has_room():
            return []
        self._held_s += spent_s
        epoch_s = now_s - self._closed_s
        a_window_s = self.window * max(0.0, epoch_s - self._held_s) / self.made
        if self._held_s < max(PATIENCE_LEAST_S, a_window_s) + PATIENCE_SHARE * epoch_s:
            return []
        self._held_s = 0.0
        return [handle for handle, each in self.consumers.items() if each.cursor <= self.base]


class MemberEpoch:
    """How far a member is in an epoch; what it has not taken it makes itself.

    Args:
        total: Batches in the epoch.

    Attributes:
        taken: Batches that it has.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0

    def is_next(self, number: int) -> bool:
        """Whether a batch is the one that it needs; after any other it goes its own way."""
        return number == self.taken < self.total

    def choose_wanted(self) -> int | None:
        """The batch to ask for while it uses the one that it is given; None after the last."""
        return self.taken + 1 if self.taken + 1 < self.total else None
