"""Thousands of histories of the protocol, by a scheduler of the test's: no sockets, no clock.

Its producers and members are the package's own decisions; what the scheduler chooses is who acts
next, what is lost, who dies, and how late a message comes.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from slurm_colloc.loading.epoch_state import (
    CLOSE,
    DROP,
    GIVE,
    WINDOW_BYTES,
    EpochState,
    MemberEpoch,
)

QUICK, MANY = 400, 10_000
FREE = bytes(16)
ACTIONS_MOST = 60_000
FAULTS = ("producer dies", "producer fails", "member dies", "a message cannot be sent")


class Channel:
    """Both directions of a socket: what was sent before it was closed still comes."""

    def __init__(self) -> None:
        self.to_member: deque[tuple[str, int, tuple[int, ...]]] = deque()
        self.to_producer: deque[int] = deque()
        self.has_producer = self.has_member = True


class Producer:
    def __init__(self, order: list[int], batch: int, now_s: float, window: int) -> None:
        self.batches = [tuple(order[at : at + batch]) for at in range(0, len(order), batch)]
        self.state = EpochState(b"d" * 16, len(self.batches), now_s)
        self.size = WINDOW_BYTES // window
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.channels: dict[int, Channel] = {}
        self.is_alive = True

    def let_in(self, handle: int, digest: bytes) -> Channel | None:
        if not self.state.let_in(handle, str(handle), digest):
            return None
        self.channels[handle] = Channel()
        return self.channels[handle]

    def make(self) -> None:
        number = self.state.add(self.size)
        self.blocks[number] = self.batches[number]
        # What a window is for: memory has an end.
        assert len(self.blocks) <= self.state.window

    def part(self, handle: int) -> None:
        self.state.part(handle)
        self.channels.pop(handle).has_producer = False

    def hear(self, handle: int) -> None:
        channel = self.channels[handle]
        if not channel.to_producer or not self.state.want(handle, channel.to_producer.popleft()):
            self.part(handle)

    def look(self, now_s: float, patience_s: float, may_send: Any) -> None:
        for act, handle in self.state.list_answers():
            channel = self.channels[handle]
            if act == GIVE and may_send() and channel.has_member:
                number = self.state.consumers[handle].cursor
                channel.to_member.append(("batch", number, self.blocks[number]))
                continue
            if act != GIVE:
                channel.to_member.append(("failed", 0, ()))
            self.part(handle)
        for act, number in self.state.list_changes(now_s, lambda _: patience_s):
            if act == DROP:
                self.channels[number].to_member.append(("dropped", 0, ()))
                self.part(number)
            elif act != CLOSE:
                del self.blocks[number]

    def die(self) -> None:
        self.is_alive = False
        for handle in list(self.channels):
            self.part(handle)


class Member:
    def __init__(self, number: int, pace: float) -> None:
        self.number = number
        self.pace = pace
        self.is_alive = True
        self.epochs: list[list[int]] = []
        self.shared = 0
        self.channel: Channel | None = None
        self.progress = MemberEpoch(0)
        self.batches: list[tuple[int, ...]] = []
        self.owned: Producer | None = None


class History:
    """One history; all chance is of its seed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.length, self.batch = chance.randrange(1, 50), chance.randrange(1, 5)
        self.epochs = chance.randrange(1, 4)
        self.window = chance.choice((1, 2, 3, 16))
        self.is_free = chance.random() < 0.8
        count = chance.randrange(1, 6)
        self.members = [Member(n, chance.choice((1.0, 1.0, 0.02))) for n in range(count)]
        self.faults = [f for f in FAULTS if chance.random() < 0.3]
        self.now_s = 100.0
        self.producer: Producer | None = None
        self.seen_faults: set[str] = set()

    def run(self) -> None:
        for _ in range(ACTIONS_MOST):
            ready = [m for m in self.members if m.is_alive and len(m.epochs) <= self.epochs]
            if not ready:
                return
            self.now_s += self.chance.choice((0.0, 0.01, 0.2))
            if self.chance.random() < 0.02 and self.faults:
                self.go_wrong(self.chance.choice(self.faults))
            if self.chance.random() < 0.5:
                self.work()
            member = self.chance.choice(ready)
            if self.chance.random() < member.pace and member.is_alive:
                self.act(member)
        raise AssertionError("it does not end")

    def go_wrong(self, fault: str) -> None:
        producer, member = self.producer, self.chance.choice(self.members)
        if fault == "member dies" and self.chance.random() < 0.3:
            member.is_alive = False
            if member.channel is not None:
                member.channel.has_member = False
            if member.owned is not None:
                member.owned.die()
        elif producer is None or not producer.is_alive:
            return
        elif fault == "producer dies":
            producer.die()
        elif fault == "producer fails":
            producer.state.failure = "ValueError"
        else:
            return
        self.seen_faults.add(fault)

    def work(self) -> None:
        """The producer makes, hears or answers."""
        producer, chance = self.producer, self.chance
        if producer is None or not producer.is_alive:
            return
        state = producer.state
        if state.made < state.total and not state.failure and state.has_room():
            producer.make()
        for handle, channel in list(producer.channels.items()):
            if chance.random() < 0.7 and (channel.to_producer or not channel.has_member):
                producer.hear(handle)
        patience_s = chance.choice((0.0, 5.0))
        producer.look(self.now_s, patience_s, self.may_send)
        if state.is_finished(self.now_s):
            producer.die()

    def may_send(self) -> bool:
        if FAULTS[3] not in self.faults or self.chance.random() > 0.02:
            return True
        self.seen_faults.add(FAULTS[3])
        return False

    def act(self, member: Member) -> None:
        if member.channel is None:
            if member.progress.taken == member.progress.total:
                self.begin(member)
            else:
                self.take_own(member)
            return
        channel = member.channel
        if channel.to_member:
            kind, number, ids = channel.to_member.popleft()
            if kind == "batch" and member.progress.is_next(number):
                wanted = member.progress.choose_wanted()
                if wanted is not None and channel.has_producer:
                    channel.to_producer.append(wanted)
                self.take(member, ids)
                member.shared += 1
                if member.progress.taken < member.progress.total:
                    return
        elif channel.has_producer:
            return
        channel.has_member = False
        member.channel = None

    def take_own(self, member: Member) -> None:
        self.take(member, member.batches[member.progress.taken])

    def take(self, member: Member, ids: tuple[int, ...]) -> None:
        member.epochs[-1] += ids
        member.progress.taken += 1

    def begin(self, member: Member) -> None:
        order = list(range(self.length))
        if self.is_free:
            self.chance.shuffle(order)
        member.epochs.append([])
        if len(member.epochs) > self.epochs:
            return
        producer = self.producer
        if producer is None or not producer.is_alive:
            producer = self.producer = Producer(order, self.batch, self.now_s, self.window)
            member.owned = producer
        digest = FREE if self.is_free else b"d" * 16
        # Another session of its own may not be over for the producer yet.
        handle = 10 * len(member.epochs) + member.number
        member.channel = producer.let_in(handle, digest)
        own = [tuple(order[at : at + self.batch]) for at in range(0, self.length, self.batch)]
        member.batches = own if member.channel is None else producer.batches
        member.progress = MemberEpoch(len(member.batches))
        if member.channel is not None:
            member.channel.to_producer.append(0)


@pytest.mark.parametrize(
    "count", [QUICK, pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(0)])]
)
def test_each_member_sees_the_dataset_once_an_epoch(count: int) -> None:
    wrong, shared, own, faults = [], 0, 0, set()
    for seed in range(count):
        history = History(seed)
        history.run()
        faults |= history.seen_faults
        whole = list(range(history.length))
        for member in history.members:
            *ended, last = member.epochs or [[]]
            if any(sorted(epoch) != whole for epoch in ended):
                wrong.append((seed, member.number, "an epoch"))
            # One that has died has seen nothing twice.
            if len(set(last)) != len(last):
                wrong.append((seed, member.number, "its last"))
            if member.is_alive and len(ended) != history.epochs:
                wrong.append((seed, member.number, "too few"))
            shared += member.shared
            own += sum(map(len, member.epochs)) // history.batch - member.shared
    assert wrong == []
    # Histories in which hardly anything is shared, or all is, tell little.
    assert min(shared, own) > (shared + own) / 4
    assert faults == set(FAULTS)
