"""A model of the inbox protocol's world: a directory tree that fails, and actors that are
interleaved at every single call and may crash between any two of them.

The functions of `slurm_colloc.store.inbox` run unchanged on the tree. An actor is a generator
that yields calls. The scheduler executes a call one file system operation at a time: it runs it
again from its beginning with the answers that it has had so far, and stops it before the next.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from slurm_colloc.store import inbox

PACK = "p"
STEP_LIMIT = 3000


class Violation(AssertionError):
    """The protocol's promise was broken."""


def ensure(condition: object, text: str) -> None:
    """Raise a Violation unless the condition holds."""
    if not condition:
        raise Violation(text)


class _Suspended(BaseException):
    """The call wants another operation, which belongs to a later step."""


@dataclass
class Faults:
    """How often the file system misbehaves, as probabilities of one operation."""

    lost_answer: float = 0.0
    failure: float = 0.0


class Tree:
    """A directory tree; every operation is atomic, its answer may be lost.

    A lost answer: the operation was done, the client sent it again, and the second answer says
    that there is nothing to do (ENOENT, or EEXIST for mkdir).
    """

    def __init__(self, source: random.Random, faults: Faults) -> None:
        self.folders: dict[str, set[str]] = {
            PACK: {"inbox", "members"},
            f"{PACK}/inbox": set(),
            f"{PACK}/members": set(),
        }
        self._source = source
        self._faults = faults

    def _fail(self) -> None:
        if self._faults.failure and self._source.random() < self._faults.failure:
            raise OSError(errno.EIO, "I/O error")

    def _lose(self) -> bool:
        return bool(self._faults.lost_answer) and self._source.random() < self._faults.lost_answer

    def mkdir(self, path: str) -> None:
        self._fail()
        parent, _, name = path.rpartition("/")
        if name in self.folders[parent]:
            raise FileExistsError(path)
        self.folders[parent].add(name)
        self.folders[path] = set()
        if self._lose():
            raise FileExistsError(path)

    def rename(self, source: str, target: str) -> None:
        self._fail()
        parent, _, name = source.rpartition("/")
        new_parent, _, new_name = target.rpartition("/")
        if name not in self.folders.get(parent, ()) or new_parent not in self.folders:
            raise FileNotFoundError(source)
        self.folders[parent].remove(name)
        self.folders[new_parent].add(new_name)
        if self._lose():
            raise FileNotFoundError(source)

    def rmdir(self, path: str) -> None:
        self._fail()
        parent, _, name = path.rpartition("/")
        if path not in self.folders:
            raise FileNotFoundError(path)
        if self.folders[path]:
            raise OSError(errno.ENOTEMPTY, path)
        del self.folders[path]
        self.folders[parent].remove(name)
        if self._lose():
            raise FileNotFoundError(path)

    def listdir(self, path: str) -> list[str]:
        self._fail()
        if path not in self.folders:
            raise FileNotFoundError(path)
        return sorted(self.folders[path])

    def exists(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        return name in self.folders.get(parent, ())

    # What the actors do besides the protocol.

    def write(self, folder: str, name: str) -> None:
        self.folders[folder].add(name)

    def has(self, number: int, name: str) -> bool:
        return self.exists(f"{PACK}/members/{inbox.format_number(number)}/{name}")

    def is_waiting(self, number: int) -> bool:
        return self.exists(f"{PACK}/inbox/{inbox.format_number(number)}.json")


class _Replay:
    """Answers again what is known, performs one operation, and suspends before the next."""

    def __init__(self, tree: Tree, answers: list[tuple[bool, Any]]) -> None:
        self._tree = tree
        self._answers = answers
        self._next = 0
        self._fresh = False

    def _operate(self, operation: Callable[..., Any], *arguments: str) -> Any:
        if self._next < len(self._answers):
            good, value = self._answers[self._next]
            self._next += 1
            if good:
                return value
            raise value
        if self._fresh:
            raise _Suspended
        self._fresh = True
        self._next += 1
        try:
            value = operation(*arguments)
        except OSError as error:
            self._answers.append((False, error))
            raise
        self._answers.append((True, value))
        return value

    def mkdir(self, path: str) -> None:
        self._operate(self._tree.mkdir, path)

    def rename(self, source: str, target: str) -> None:
        self._operate(self._tree.rename, source, target)

    def rmdir(self, path: str) -> None:
        self._operate(self._tree.rmdir, path)

    def listdir(self, path: str) -> list[str]:
        names: list[str] = self._operate(self._tree.listdir, path)
        return names

    def exists(self, path: str) -> bool:
        return bool(self._operate(self._tree.exists, path))


@dataclass(frozen=True)
class Protocol:
    """The functions under test, so that a mutant can stand in for any of them."""

    claim_number: Callable[..., bool] = inbox.claim_number
    enter: Callable[..., bool] = inbox.enter
    take: Callable[..., bool] = inbox.take
    withdraw: Callable[..., bool] = inbox.withdraw
    list_waiting: Callable[..., list[int] | None] = inbox.list_waiting
    list_taken: Callable[..., list[int]] = inbox.list_taken
    close: Callable[..., bool] = inbox.close
    rescans_after_closing: bool = True


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of the protocol, called with the pack, these arguments and a file system; or, with
None for the arguments, one atomic action of another kind."""
Actor = Generator[tuple[Callable[..., Any], tuple[Any, ...] | None], Any, None]


@dataclass
class World:
    """Everything that happened, for the invariants; no actor reads it but for the attempt."""

    tree: Tree
    protocol: Protocol
    attempt: int = 0
    claimed: set[int] = field(default_factory=set)
    entered: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    withdrawn: set[int] = field(default_factory=set)
    runs: list[tuple[int, int]] = field(default_factory=list)
    final: dict[int, dict[int, bool]] = field(default_factory=dict)
    ended_well: set[int] = field(default_factory=set)
    taken_by: dict[int, int] = field(default_factory=dict)


def join(world: World, first: int) -> Actor:
    """One csub that wants its job in this pack."""
    protocol, number = world.protocol, first
    while not (yield protocol.claim_number, (number,)):
        number += 1
    ensure(number not in world.claimed, f"number {number} was claimed by two")
    world.claimed.add(number)
    folder = f"{PACK}/members/{inbox.format_number(number)}"
    yield (lambda: world.tree.write(folder, "entry.json")), None
    if (yield protocol.enter, (number,)):
        world.entered.add(number)
    else:
        world.elsewhere.add(number)


def cancel(world: World, number: int) -> Actor:
    """One csub that cancels a waiting member."""
    if (yield world.protocol.withdraw, (number,)):
        ensure(world.tree.has(number, "cancelled"), f"{number} was reported withdrawn, and is not")
        world.withdrawn.add(number)
    else:
        ensure(
            not world.tree.has(number, "cancelled"), f"{number} was withdrawn, and nobody was told"
        )


def run_pack(world: World, attempt: int) -> Actor:  # noqa: C901, PLR0912  # one story
    """One attempt of the runner, as runtime.runner does it."""
    protocol, degree = world.protocol, 2
    known: set[int] = set()
    waiting: list[int] = []
    running: list[int] = []

    def adopt(number: int) -> None:
        known.add(number)
        records = world.final.get(number, {})
        newest = max((a for a in records if a < attempt), default=None)
        if newest is None or not records[newest]:
            waiting.append(number)

    def start(number: int) -> None:
        ensure((number, attempt) not in world.runs, f"attempt {attempt} started {number} twice")
        ensure(not world.tree.has(number, "cancelled"), f"{number} was withdrawn, and is started")
        world.runs.append((number, attempt))
        world.final.setdefault(number, {})[attempt] = False

    def end(number: int) -> None:
        world.final[number][attempt] = True

    yield (lambda: setattr(world, "attempt", attempt)), None
    for number in (yield protocol.list_taken, ()):
        adopt(number)
    while True:
        if (yield (lambda: world.attempt), None) > attempt:
            return
        for number in (yield protocol.list_waiting, ()) or []:
            if number not in known and (yield protocol.take, (number,)):
                adopt(number)
        while waiting and len(running) < degree:
            if (yield (lambda: world.attempt), None) > attempt:
                return
            running.append(waiting.pop(0))
            yield (lambda: start(running[-1])), None
        if running:
            yield (lambda: end(running.pop(0))), None
            continue
        own = {number for number, by in world.taken_by.items() if by == attempt}
        ensure(own <= known, f"attempt {attempt} took {own - known} and does not know it")
        if waiting or not (yield protocol.close, ()):
            continue
        if protocol.rescans_after_closing:
            for number in (yield protocol.list_taken, ()):
                if number not in known:
                    adopt(number)
        if not waiting:
            break
    world.ended_well.add(attempt)


class _Stepper:
    """Executes an actor, one operation at a time."""

    def __init__(self, world: World, actor: Actor, attempt: int | None = None) -> None:
        self.attempt = attempt
        self._world = world
        self._actor = actor
        self._answers: list[tuple[bool, Any]] = []
        self.ended = False
        self._call = next(actor)

    def step(self) -> None:
        function, arguments = self._call
        if arguments is None:
            self._go_on(function())
            return
        try:
            value = function(PACK, *arguments, _Replay(self._world.tree, self._answers))
        except _Suspended:
            return
        except OSError:
            # Nobody expected it: the process ends here.
            self.ended = True
            return
        finally:
            if (
                self.attempt is not None
                and arguments
                and self._world.tree.has(arguments[0], "taken")
            ):
                self._world.taken_by.setdefault(arguments[0], self.attempt)
        self._go_on(value)

    def _go_on(self, value: Any) -> None:
        self._answers = []
        try:
            self._call = self._actor.send(value)
        except StopIteration:
            self.ended = True


def explore(source: random.Random, protocol: Protocol) -> World:
    """Play one random history to its end and check the promises.

    Raises:
        Violation: One was broken.
    """
    pick = source.random
    faults = Faults(
        lost_answer=(0.0, 0.1, 0.3)[int(pick() * 3)], failure=0.03 if pick() < 0.25 else 0.0
    )
    tree = Tree(source, faults)
    world = World(tree, protocol)
    first = int(pick() * 3)
    for number in range(1, first + 1):
        folder = f"{PACK}/members/{inbox.format_number(number)}"
        tree.folders[f"{PACK}/members"].add(inbox.format_number(number))
        tree.folders[folder] = set()
        tree.write(f"{PACK}/inbox", f"{inbox.format_number(number)}.json")
        world.claimed.add(number)
        world.entered.add(number)
    joiners = 1 + int(pick() * 3)
    actors = [_Stepper(world, join(world, first + 1)) for _ in range(joiners)]
    actors += [
        _Stepper(world, cancel(world, 1 + int(pick() * (first + joiners))))
        for _ in range(int(pick() * 3))
    ]
    attempts = 1
    actors.append(_Stepper(world, run_pack(world, 1), attempt=1))
    crash = (0.0, 0.01, 0.04)[int(pick() * 3)]
    another = 0.03 if pick() < 0.5 else 0.0
    for _ in range(STEP_LIMIT):
        if not actors:
            break
        at = int(pick() * len(actors))
        actor = actors[at]
        if crash and pick() < crash:
            actor.ended = True
        else:
            actor.step()
        if actor.ended:
            del actors[at]
        is_newest = actor.attempt == attempts
        requeued = is_newest and actor.ended and attempts not in world.ended_well and pick() < 0.7
        taken_for_dead = is_newest and not actor.ended and another and pick() < another
        if attempts < 3 and (requeued or taken_for_dead):
            attempts += 1
            actors.append(_Stepper(world, run_pack(world, attempts), attempt=attempts))
    else:
        raise Violation("it never came to an end")
    check_end(world, attempts)
    return world


def check_end(world: World, newest: int) -> None:
    """What must hold once nothing moves any more."""
    tree = world.tree
    for number in world.entered:
        places = [tree.is_waiting(number), tree.has(number, "taken"), tree.has(number, "cancelled")]
        ensure(sum(places) == 1, f"{number} entered and is in {sum(places)} places")
    for number in world.elsewhere:
        ensure(
            tree.has(number, "entry.json") and not tree.has(number, "taken"),
            f"{number} entered, and was submitted elsewhere too",
        )
    if newest in world.ended_well:
        ensure(not tree.exists(f"{PACK}/inbox"), "the pack has ended and is open")
        for number in world.entered:
            run = (number, newest) in world.runs or any(
                done for by, done in world.final.get(number, {}).items() if by < newest
            )
            ensure(run or tree.has(number, "cancelled"), f"{number} entered and never ran")
