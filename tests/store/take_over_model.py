"""A model of packs of two submissions whose runners take waiting members over from each other.

The functions of `slurm_colloc.store.inbox` and `take_over` run unchanged on a directory tree
that loses answers. Runners, cancels, sweeps and Slurm are actors as in `protocol_model`: they are
interleaved at every single call, and may crash between any two.

A member is named here by the letter of its submission and its number there, `s1` or `t1`: both
submissions give the same numbers. In a pack of the other one it has a number of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slurm_colloc.store import inbox
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import choose_guest_number, find_next_number

from .protocol_model import Faults, Tree, Violation, _Replay, _Suspended, ensure

STEP_LIMIT = 20_000
PACKS = ("a", "b", "c")
SUBMISSIONS = {"a": "s", "b": "s", "c": "t"}

PENDING, RUNNING, COMPLETED, FAILED = "pending", "running", "completed", "failed"


class PackTree(Tree):
    """The members and inboxes of several packs; a directory moves with what is in it."""

    def __init__(self, source: random.Random, faults: Faults) -> None:
        super().__init__(source, faults)
        self.folders = {"": set(PACKS)}
        for pack in PACKS:
            self.folders[pack] = {"inbox", "members"}
            self.folders[f"{pack}/inbox"] = set()
            self.folders[f"{pack}/members"] = set()

    def rename(self, source: str, target: str) -> None:
        contents = {
            path: names
            for path, names in self.folders.items()
            if path == source or path.startswith(f"{source}/")
        }
        if contents and target in self.folders and self.folders[target]:
            raise OSError(39, target)
        try:
            super().rename(source, target)
        finally:
            if contents and not self.exists(source):
                for path, names in contents.items():
                    del self.folders[path]
                    self.folders[target + path.removeprefix(source)] = names

    def drop(self, pack: str, number: int) -> None:
        """Remove a member that has not entered."""
        name = format_number(number)
        del self.folders[f"{pack}/members/{name}"]
        self.folders[f"{pack}/members"].discard(name)

    def drop_unentered(self, pack: str) -> None:
        """What a sweep removes under the lock: joiners that were killed on their way in."""
        for name in list(self.folders[f"{pack}/members"]):
            files = self.folders[f"{pack}/members/{name}"]
            if "spec.json" not in files or "entry.json" in files:
                self.drop(pack, int(name))


@dataclass(frozen=True)
class Rules:
    """What the model does, so that a mutant can stand in for any part."""

    begin: Callable[..., bool] = inbox.begin
    decide: Callable[..., bool] = inbox.decide
    move: Callable[..., bool] = inbox.move
    accept: Callable[..., bool] = inbox.accept
    withdraw_moving: Callable[..., bool] = inbox.withdraw_moving
    choose_guest_number: Callable[[int, int], int | None] = choose_guest_number
    locks_the_source: bool = True
    counts_those_that_left: bool = True
    forwards_requests: bool = True
    looks_again_after_asking: bool = True
    sweep_sends_on: bool = True
    sweep_looks_for_requests: bool = True


Step = tuple[Callable[..., Any], tuple[Any, ...] | None]
"""A function, called with these arguments and a file system; or, with None, one atomic action."""
Actor = Generator[Step, Any, Any]


@dataclass
class Pack:
    """What is known of one pack besides its directories; numbers are those that it has here."""

    first: set[int]
    slurm: str = PENDING
    attempt: int = 0
    lock: object = None
    is_open: bool = True
    requests: set[int] = field(default_factory=set)


@dataclass
class World:
    """Everything that happened."""

    tree: PackTree
    rules: Rules
    pick: Callable[[], float]
    packs: dict[str, Pack]
    homes: dict[tuple[str, int], str] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    joiners: set[str] = field(default_factory=set)
    starts: list[tuple[str, str, int]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    resubmitted: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)
    too_late: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def name(self, pack: str, number: int) -> str:
        """Which member a number in a pack is: of another submission, as its home.json says."""
        return self.homes.get((pack, number)) or f"{SUBMISSIONS[pack]}{number}"

    def numbers(self, member: str) -> list[tuple[str, int]]:
        """Each pack, and the number that a member has or would have there."""
        own = [(pack, int(member[1:])) for pack in PACKS if SUBMISSIONS[pack] == member[0]]
        return own + [place for place, home in self.homes.items() if home == member]

    def folder(self, pack: str, number: int) -> str:
        return f"{pack}/members/{format_number(number)}"

    def has(self, pack: str, number: int, name: str) -> bool:
        return self.tree.exists(f"{self.folder(pack, number)}/{name}")

    def must_settle(self, pack: str) -> bool:
        return self.packs[pack].is_open and self.is_over(pack)

    def is_in_place(self, pack: str, number: int) -> bool:
        """Its directory is there, and it was not submitted again."""
        is_there = self.tree.exists(self.folder(pack, number))
        return is_there and self.name(pack, number) not in self.resubmitted

    def is_over(self, pack: str) -> bool:
        return self.packs[pack].slurm in (COMPLETED, FAILED)


def act(function: Callable[[], Any]) -> Step:
    """One atomic action that is no call of the protocol."""
    return (function, None)


def lock(world: World, pack: str, tries: int) -> Generator[Step, Any, object]:
    """Get a pack's lock; None where another process keeps it."""
    key = object()

    def attempt() -> bool:
        if world.packs[pack].lock is None:
            world.packs[pack].lock = key
        return world.packs[pack].lock is key

    for _ in range(tries):
        if (yield act(attempt)):
            return key
    return None


def unlock(world: World, pack: str, key: object) -> None:
    if key is not None and world.packs[pack].lock is key:
        world.packs[pack].lock = None


# -- the runner -----------------------------------------------------------------------------------


class Runner:
    """One attempt of a pack's runner."""

    def __init__(self, world: World, pack: str) -> None:
        self.world, self.pack, self.rules = world, pack, world.rules
        self.attempt = 0
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.known: set[int] = set()
        self.decided: dict[tuple[str, int], int] = {}
        self.guests = 0
        self.ended_well = False
        self.key: object = None

    def run(self) -> Actor:  # noqa: C901, PLR0912  # one story
        world, pack = self.world, self.pack
        self.key = yield from lock(world, pack, 40)
        yield act(self._begin_attempt)
        for number in (yield inbox.list_taken, (pack,)):
            self._adopt(number)
        yield act(lambda: unlock(world, pack, self.key))
        yield from self._look_for_what_has_come()
        while True:
            yield from self._serve()
            if (yield act(self._is_fenced)):
                return
            for number in (yield inbox.list_waiting, (pack,)) or []:
                if number not in self.known and (yield inbox.take, (pack, number)):
                    self._adopt(number)
            for source, number in list(self.decided):
                yield from self._fetch(source, number)
            if not self.waiting and len(self.running) < 2 and world.pick() < 0.7:
                yield from self._take_over()
            while self.waiting and len(self.running) < 2:
                if (yield act(self._is_fenced)):
                    return
                yield from self._start(self.waiting.pop(0))
            if (yield act(self._is_fenced)):
                return
            if self.running:
                yield act(self._end_one)
                continue
            if self.waiting or self.decided or not (yield inbox.close, (pack,)):
                continue
            for number in (yield inbox.list_taken, (pack,)):
                self._adopt(number)
            if not self.waiting:
                break
        self.ended_well = True
        yield from self._close_books()

    def _begin_attempt(self) -> None:
        self.world.packs[self.pack].attempt += 1
        self.attempt = self.world.packs[self.pack].attempt

    def _is_fenced(self) -> bool:
        return self.world.packs[self.pack].attempt > self.attempt

    def _adopt(self, number: int) -> None:
        if number not in self.known:
            self.known.add(number)
            if self.world.name(self.pack, number) not in self.world.done:
                self.waiting.append(number)

    def _start(self, number: int) -> Actor:
        world, pack = self.world, self.pack
        member = world.name(pack, number)
        if (yield act(lambda: member in world.resubmitted)):
            # moved.json says so.
            return
        if not (yield self.rules.begin, (pack, number)):
            world.seen.add("taken over in the last moment")
            self.known.discard(number)
            return

        def note() -> None:
            earlier = [(p, a) for n, p, a in world.starts if n == member]
            ensure(all(p == pack for p, _ in earlier), f"{member} runs in {earlier} and in {pack}")
            ensure(all(a != self.attempt for _, a in earlier), f"{member} is started twice")
            ensure(member not in world.withdrawn, f"{member} was withdrawn, and is started")
            ensure(member not in world.resubmitted, f"{member} is submitted again, and is started")
            ensure(member not in world.done, f"{member} has ended, and is started")
            world.starts.append((member, pack, self.attempt))
            if member[0] != SUBMISSIONS[pack]:
                world.seen.add("started in a pack of another submission")
            self.running.append(number)

        if (yield act(self._is_fenced)):
            return
        yield act(note)

    def _end_one(self) -> None:
        if not self._is_fenced():
            self.world.done.add(self.world.name(self.pack, self.running[0]))
        self.running.pop(0)

    def _serve(self) -> Actor:
        """Cancel what was asked for; what is not here any more its taker is asked for."""
        world, pack = self.world, self.pack
        for number in sorted(world.packs[pack].requests):
            if number in self.running:
                yield act(partial(self._kill, number))
            elif number in self.waiting:
                if (yield self.rules.begin, (pack, number)):
                    self.waiting.remove(number)
                    yield act(partial(self._kill, number))
                else:
                    self.waiting.remove(number)
                    self.known.discard(number)
            elif world.name(pack, number) in world.done:
                yield act(partial(self._forget_request, number))
            elif (number not in self.known and (yield inbox.is_taken, (pack, number))) or (
                number not in self.known and (yield inbox.take, (pack, number))
            ):
                self._adopt(number)

    def _forget_request(self, number: int) -> None:
        self.world.too_late.add(self.world.name(self.pack, number))
        self.world.packs[self.pack].requests.discard(number)

    def _kill(self, number: int) -> None:
        if self._is_fenced():
            return
        self.world.killed.add(self.world.name(self.pack, number))
        self.world.done.add(self.world.name(self.pack, number))
        if number in self.running:
            self.running.remove(number)
        self.world.packs[self.pack].requests.discard(number)

    # Taking over.

    def _take_over(self) -> Actor:
        world = self.world
        others = [pack for pack in PACKS if pack != self.pack]
        source = others[int(world.pick() * len(others))]
        self.key = yield from lock(world, self.pack, 1)
        if self.key is None:
            return
        yield from self._take_over_from(source)
        yield act(lambda: unlock(world, self.pack, self.key))
        for place in list(self.decided):
            yield from self._fetch(*place)

    def _take_over_from(self, source: str) -> Actor:
        world, key = self.world, None
        if self.rules.locks_the_source:
            key = yield from lock(world, source, 1)
            if key is None:
                return
        theirs = world.packs[source]
        if (yield act(lambda: self._may_take_from(source))):
            found = list((yield inbox.list_waiting, (source,)) or [])
            if 0 < theirs.attempt <= self.attempt:
                found += [n for n in sorted(theirs.first) if world.has(source, n, "taken")]
            # Those that have come to it do not move again.
            found = [number for number in found if number in theirs.first]
            for number in found[: 1 + int(world.pick() * 2)]:
                if (yield act(self._is_fenced)):
                    break
                there = self._choose_number(source, number)
                if there in self.known:
                    break
                if (yield self.rules.decide, (source, self.pack, number, there)):
                    self.decided[source, number] = there
                    world.seen.add("taken over")
                    if theirs.attempt:
                        world.seen.add("taken over from one that runs")
                elif self._holds_both(source, key):
                    yield act(partial(self._ensure_not_taken, source, number, there))
        yield act(lambda: unlock(world, source, key))

    def _holds_both(self, source: str, key: object) -> bool:
        locks = [self.world.packs[pack].lock for pack in (source, self.pack)]
        return key is not None and locks == [key, self.key]

    def _ensure_not_taken(self, source: str, number: int, there: int) -> None:
        """A runner that is told so would not look for it any more."""
        mark = inbox.OVER + (self.pack if there == number else f"{self.pack}={there}")
        is_taken = self.world.has(source, number, mark)
        ensure(not is_taken, f"{number} of {source} was taken over by {self.pack}, who is told no")

    def _may_take_from(self, source: str) -> bool:
        theirs = self.world.packs[source]
        return theirs.is_open and self.world.packs[self.pack].is_open

    def _choose_number(self, source: str, number: int) -> int:
        """The number that a member will have here, for one of another submission a new one."""
        if SUBMISSIONS[source] == SUBMISSIONS[self.pack]:
            return number
        there = self.rules.choose_guest_number(self.attempt, self.guests)
        assert there is not None
        self.guests += 1
        # In its home.json, which is written before it is taken over.
        self.world.homes[self.pack, there] = self.world.name(source, number)
        return there

    def _fetch(self, source: str, number: int) -> Actor:
        there = self.decided[source, number]
        if not (yield self.rules.move, (source, self.pack, number, there)):
            return
        yield from self._welcome(source, number, there)
        self.decided.pop((source, number), None)

    def _welcome(self, source: str, number: int, there: int) -> Actor:
        world = self.world
        if self.rules.forwards_requests:

            def forward() -> None:
                if number in world.packs[source].requests:
                    world.packs[source].requests.discard(number)
                    world.packs[self.pack].requests.add(there)
                    world.seen.add("request forwarded")

            yield act(forward)
        if (yield self.rules.accept, (self.pack, there)):
            self._adopt(there)
        else:
            world.seen.add("cancelled on its way")

    def _look_for_what_has_come(self) -> Actor:
        for source in PACKS:
            if source == self.pack:
                continue
            for number, taking in (yield inbox.list_leaving, (source,)).items():
                if taking.taker == self.pack:
                    self.decided[source, number] = taking.number
                    self.world.seen.add("finished by a later attempt")
        for there in (yield inbox.list_arrived, (self.pack,)):
            member = self.world.name(self.pack, there)
            number = int(member[1:])
            home = next(
                name
                for name, pack in self.world.packs.items()
                if number in pack.first and SUBMISSIONS[name] == member[0]
            )
            yield from self._welcome(home, number, there)
        for number in (yield inbox.list_taken, (self.pack,)):
            self._adopt(number)

    def _close_books(self) -> Actor:
        world, pack = self.world, self.pack
        key = yield from lock(world, pack, 10)
        if key is not None and not self._is_fenced():
            yield act(partial(world.tree.drop_unentered, pack))
            moving = yield inbox.list_moving, (pack,)
            if not moving:
                yield act(lambda: setattr(world.packs[pack], "is_open", False))
        yield act(lambda: unlock(world, pack, key))


# -- csub -----------------------------------------------------------------------------------------


def cancel(world: World, member: str) -> Actor:
    """`csub cancel` of one member."""
    for _ in range(10):
        place = yield act(lambda: find(world, member))
        if member in world.resubmitted:
            # It is cancelled in its new pack.
            return
        if place is None:
            continue
        pack, number = place
        withdrawn = (yield inbox.withdraw, place) or (yield (world.rules.withdraw_moving, place))
        if withdrawn:
            world.withdrawn.add(member)
            ensure(
                all(n != member for n, _, _ in world.starts),
                f"{member} was withdrawn after its start",
            )
            return
        yield act(partial(world.packs[pack].requests.add, number))
        is_there = yield act(partial(world.is_in_place, pack, number))
        if is_there or not world.rules.looks_again_after_asking:
            world.asked.add(member)
            return
        world.seen.add("cancel looked again")


def find(world: World, member: str) -> tuple[str, int] | None:
    places = world.numbers(member)
    return next((place for place in places if world.tree.exists(world.folder(*place))), None)


def join(world: World, pack: str) -> Actor:
    """A job that joins a pack, under the pack's lock."""
    key = yield from lock(world, pack, 5)
    if key is None or (yield act(partial(lambda: not world.packs[pack].is_open))):
        yield act(lambda: unlock(world, pack, key))
        return
    claimed = yield lambda path, fs: fs.listdir(path), (f"{pack}/members",)
    gone = world.packs[pack].first if world.rules.counts_those_that_left else set()
    number = find_next_number([*map(int, claimed), *gone])
    if not (yield inbox.claim_number, (pack, number)):
        yield act(lambda: unlock(world, pack, key))
        return

    def write() -> None:
        for name in ("entry.json", "spec.json"):
            world.tree.write(world.folder(pack, number), name)
        world.joiners.add(world.name(pack, number))

    yield act(write)
    if (yield inbox.enter, (pack, number)):
        # In pack.json. If that is not written it joins all the same, and waits for this pack alone.
        yield act(partial(world.packs[pack].first.add, number))
        world.seen.add("joined")
    else:
        yield act(partial(world.tree.drop, pack, number))
    yield act(lambda: unlock(world, pack, key))


def sweep(world: World) -> Actor:
    """What each call of csub does first."""
    for pack in PACKS:
        if not (yield act(partial(world.must_settle, pack))):
            continue
        key = yield from lock(world, pack, 1)
        if key is None:
            continue
        yield from _settle(world, pack)
        yield act(partial(unlock, world, pack, key))


def _settle(world: World, pack: str) -> Actor:  # noqa: C901, PLR0912  # one story
    rules, mine = world.rules, world.packs[pack]
    if not mine.is_open:
        return
    if rules.sweep_sends_on:
        for source in PACKS:
            if source == pack:
                continue
            for number, taking in (yield inbox.list_leaving, (source,)).items():
                if taking.taker == pack:
                    yield inbox.move, (source, pack, number, taking.number)
        for number, (taker, there) in (yield inbox.list_leaving, (pack,)).items():
            key = yield from lock(world, taker, 1)
            if key is None:
                continue
            if (yield inbox.move, (pack, taker, number, there)):
                world.seen.add("sent on by the sweep")
                yield act(partial(setattr, world.packs[taker], "is_open", True))
            yield act(partial(unlock, world, taker, key))
    yield act(partial(world.tree.drop_unentered, pack))
    never = []
    for name in (yield lambda path, fs: fs.listdir(path), (f"{pack}/members",)):
        number = int(name)
        member = world.name(pack, number)
        leaving = (yield inbox.find_taker, (pack, number)) not in ("", pack)
        started = any(n == member for n, _, _ in world.starts)
        cancelled = world.has(pack, number, "cancelled")
        if not (leaving or started or cancelled or member in world.done | world.resubmitted):
            never.append(member)
    if never:
        yield act(lambda: setattr(mine, "attempt", mine.attempt + 1))

        def resubmit() -> None:
            for member in never:
                ensure(member not in world.resubmitted, f"{member} is submitted again twice")
                asked = [n for p, n in world.numbers(member) if n in world.packs[p].requests]
                if asked and rules.sweep_looks_for_requests:
                    world.killed.add(member)
                    continue
                world.resubmitted.add(member)
            world.seen.add("submitted again")

        yield act(resubmit)
    if not (yield inbox.list_leaving, (pack,)):
        yield act(lambda: setattr(mine, "is_open", False))


# -- the scheduler --------------------------------------------------------------------------------


class Stepper:
    """Executes an actor, one operation at a time."""

    def __init__(self, world: World, actor: Actor, runner: Runner | None = None) -> None:
        self.runner = runner
        self.ended = False
        self._world = world
        self._actor = actor
        self._answers: list[tuple[bool, Any]] = []
        self._call: Step = act(lambda: None)
        self._go_on(None)

    def step(self) -> None:
        function, arguments = self._call
        if arguments is None:
            self._go_on(function())
            return
        try:
            value = function(*arguments, _Replay(self._world.tree, self._answers))
        except _Suspended:
            return
        except OSError:
            self.crash()
            return
        self._go_on(value)

    def crash(self) -> None:
        """The process ends, and with it its locks."""
        frame: Any = self._actor
        while frame is not None:
            if frame.gi_frame is not None:
                held = frame.gi_frame.f_locals.get("key")
                for pack in PACKS:
                    unlock(self._world, pack, held)
            frame = frame.gi_yieldfrom
        if self.runner is not None:
            unlock(self._world, self.runner.pack, self.runner.key)
        self._actor.close()
        self.ended = True

    def _go_on(self, value: Any) -> None:
        self._answers = []
        try:
            self._call = self._actor.send(value)
        except StopIteration:
            self.ended = True


def build_world(source: random.Random, rules: Rules) -> World:
    pick = source.random
    faults = Faults(lost_answer=(0.0, 0.1, 0.3)[int(pick() * 3)])
    tree = PackTree(source, faults)
    packs: dict[str, Pack] = {}
    members, last = set(), dict.fromkeys(SUBMISSIONS.values(), 0)
    for name, submission in SUBMISSIONS.items():
        number = last[submission]
        first = set(range(number + 1, number + 1 + int(pick() * 4)))
        last[submission] += len(first)
        packs[name] = Pack(first)
        members |= {f"{submission}{each}" for each in first}
        for each in first:
            tree.folders[f"{name}/members"].add(format_number(each))
            tree.folders[f"{name}/members/{format_number(each)}"] = {"spec.json"}
            tree.write(f"{name}/inbox", f"{format_number(each)}.json")
    return World(tree, rules, pick, packs, members=members)


def explore(  # noqa: C901, PLR0912, PLR0915  # one story
    source: random.Random, rules: Rules
) -> World:
    """Play one random history to its end and check the promises.

    Raises:
        Violation: One was broken.
    """
    pick = source.random
    world = build_world(source, rules)
    members = sorted(world.members)
    later: list[Actor] = [sweep(world) for _ in range(int(pick() * 4))]
    later += [
        cancel(world, members[int(pick() * len(members))])
        for _ in range(int(pick() * 4))
        if members
    ]
    # Only a submission of one pack takes joiners.
    later += [join(world, "c") for _ in range(int(pick() * 3))]
    actors: list[Stepper] = []
    crash = (0.0, 0.005, 0.02)[int(pick() * 3)]
    another = 0.01 if pick() < 0.3 else 0.0

    def begin(pack: str) -> None:
        world.packs[pack].slurm = RUNNING
        runner = Runner(world, pack)
        actors.append(Stepper(world, runner.run(), runner))

    for _ in range(STEP_LIMIT):
        waiting = [name for name, pack in world.packs.items() if pack.slurm == PENDING]
        if waiting and pick() < 0.03:
            name = waiting[int(pick() * len(waiting))]
            if world.packs[name].attempt == 0 and pick() < 0.1:
                # It could not be started at all.
                world.packs[name].slurm = FAILED
            else:
                begin(name)
        if later and pick() < 0.03:
            actors.append(Stepper(world, later.pop(int(pick() * len(later)))))
        if not actors:
            if not waiting and not later:
                break
            continue
        at = int(pick() * len(actors))
        actor = actors[at]
        if crash and pick() < crash:
            actor.crash()
        else:
            actor.step()
        runner = actor.runner
        if actor.ended:
            del actors[at]
        if runner is None or world.is_over(runner.pack):
            continue
        pack = world.packs[runner.pack]
        is_newest = runner.attempt in (pack.attempt, 0)
        if actor.ended and is_newest and pack.slurm == RUNNING:
            requeues = not runner.ended_well and pack.attempt < 3 and pick() < 0.6
            pack.slurm = PENDING if requeues else COMPLETED if runner.ended_well else FAILED
            for other in actors:
                # Slurm leaves no process of a job that is over.
                if not requeues and other.runner is not None and other.runner.pack == runner.pack:
                    other.crash()
            actors = [other for other in actors if not other.ended]
        elif is_newest and runner.attempt and another and pack.attempt < 3 and pick() < another:
            # Taken for dead, and still alive.
            begin(runner.pack)
    else:
        raise Violation("it never came to an end")
    finish(world)
    check_end(world)
    return world


def finish(world: World) -> None:
    """From here on nothing fails: csub is called until no pack is looked at any more."""
    for pack in world.packs.values():
        if pack.slurm == RUNNING:
            pack.slurm = FAILED
    for _ in range(6):
        stepper = Stepper(world, sweep(world))
        while not stepper.ended:
            stepper.step()


def check_end(world: World) -> None:
    """What must hold once nothing moves any more."""
    tree = world.tree
    for member in sorted(world.members | world.joiners):
        places = [place for place in world.numbers(member) if tree.exists(world.folder(*place))]
        if member in world.joiners and not places:
            # It was refused, or killed on its way in.
            ensure(all(n != member for n, _, _ in world.starts), f"{member} ran and is gone")
            continue
        ensure(len(places) == 1, f"{member} is in {places}")
        ((place, number),) = places
        marks = [
            name
            for name in tree.folders[world.folder(place, number)]
            if name in ("taken", "begun", "cancelled") or name.startswith(inbox.OVER)
        ]
        marks += ["inbox"] * sum(
            tree.exists(f"{pack}/inbox/{format_number(each)}.json")
            for pack, each in world.numbers(member)
        )
        ensure(len(marks) == 1, f"{member} is in {marks}")
        started = any(n == member for n, _, _ in world.starts)
        cancelled = world.has(place, number, "cancelled") or member in world.killed
        ensure(
            started or cancelled or member in world.resubmitted,
            f"{member} in {place} was lost: {marks}",
        )
        ensure(not (started and member in world.resubmitted), f"{member} ran and runs again")
        if member in world.asked and not cancelled:
            ensure(
                number in world.packs[place].requests or member in world.too_late,
                f"{member} was to be cancelled, and {place} does not know it",
            )
        ensure(
            not (member in world.asked and member in world.resubmitted),
            f"{member} was to be cancelled, and was submitted again",
        )
    for pack in PACKS:
        for name in tree.folders[f"{pack}/members"]:
            is_known = world.name(pack, int(name)) in world.members | world.joiners
            ensure(is_known, f"{name} in {pack} is no member")
    ensure(not any(pack.is_open for pack in world.packs.values()), "a pack stays open for ever")
