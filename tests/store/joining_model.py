"""A model of joining, starting, sweeping and submitting again: actors that are interleaved at
every step and killed between any two, on packs and a Slurm of dictionaries.

Each actor does its steps in the order of the code that it stands for (submission.join.join_pack,
runtime.__main__, submission.upkeep.sweep, endings and resubmission). `Rules` names what that order
is for; a test turns one rule off after the other and expects a broken promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from .protocol_model import Violation, ensure

STEP_LIMIT = 20_000
PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = range(5)
OVER = (COMPLETED, FAILED, CANCELLED)

Steps = Generator[None, None, None]


@dataclass(frozen=True)
class Rules:
    """What the order of the steps is for; each may be turned off."""

    spec_last: bool = True
    spec_dropped_first: bool = True
    looks_whether_open: bool = True
    claims_under_lock: bool = True
    scontrol_inherits_lock: bool = True
    looks_for_a_start: bool = True
    runner_starts_under_lock: bool = True
    runner_drops_unentered: bool = True
    closes_only_empty: bool = True
    settles_under_lock: bool = True
    notes_before_submission: bool = True
    notes_stay: bool = True
    waits_for_what_moves: bool = True
    looks_at_moves_first: bool = True
    respects_work: bool = True
    starts_are_noted: bool = True


class Actor:
    """A process; what it holds is free again once it has ended and nobody inherited it."""

    def __init__(self, steps: Callable[[Actor], Steps]) -> None:
        self.alive = True
        self._steps = steps(self)

    def step(self) -> None:
        """Do one step."""
        try:
            next(self._steps)
        except StopIteration:
            self.alive = False

    def kill(self) -> None:
        """End at once; no clean-up runs."""
        self.alive = False


class Lock:
    """A lock of open files: held while any process that has it lives."""

    def __init__(self) -> None:
        self.owners: list[Actor] = []

    def is_free(self) -> bool:
        """Nobody has it."""
        self.owners = [owner for owner in self.owners if owner.alive]
        return not self.owners

    def release(self, owner: Actor) -> None:
        """Give it up."""
        self.owners = [other for other in self.owners if other is not owner]


@dataclass
class Member:
    """A member's directory: the names of its files, and whose job it is."""

    job: int
    files: set[str] = field(default_factory=set)
    moved_to: int | None = None


@dataclass
class Pack:
    """A pack's directory."""

    slurm_id: int | None = None
    members: dict[int, Member] = field(default_factory=dict)
    inbox: set[int] | None = field(default_factory=set)
    attempt: int = 0
    ended: bool = False
    lock: Lock = field(default_factory=Lock)
    making: Lock = field(default_factory=Lock)


@dataclass
class SlurmJob:
    """What Slurm knows of a job."""

    pack: int
    cpus: int
    state: int = PENDING
    runner: Actor | None = None


class World:
    """All packs, Slurm, and what was answered."""

    def __init__(self, source: random.Random, rules: Rules) -> None:
        self.pick = source.random
        self.rules = rules
        self.packs: dict[int, Pack] = {}
        self.open: set[int] = set()
        self.slurm: dict[int, SlurmJob] = {}
        self.actors: list[Actor] = []
        self.runs: dict[int, int] = {}
        self.answered: set[int] = set()
        self.entered: set[int] = set()
        self.told: set[int] = set()
        self.seen: set[str] = set()
        self.last_pack = 0

    def start(self, steps: Callable[[Actor], Steps]) -> Actor:
        """A new process."""
        actor = Actor(steps)
        self.actors.append(actor)
        return actor

    def place_pack(self, jobs: dict[int, int]) -> int:
        """Write a whole pack; its id."""
        self.last_pack += 1
        members = {number: Member(job, {"spec"}) for number, job in jobs.items()}
        self.packs[self.last_pack] = Pack(members=members, inbox=set(jobs))
        self.open.add(self.last_pack)
        return self.last_pack

    def sbatch(self, pack_id: int) -> None:
        """Slurm takes a pack."""
        pack = self.packs.get(pack_id)
        if pack is not None:
            self.slurm[len(self.slurm) + 1] = SlurmJob(pack_id, len(pack.members))

    def find_job(self, pack_id: int) -> int | None:
        """The Slurm job with a pack's comment."""
        return next((i for i, job in self.slurm.items() if job.pack == pack_id), None)

    def discard(self, pack_id: int) -> None:
        """Remove a pack that no Slurm job knows."""
        self.packs.pop(pack_id, None)
        self.open.discard(pack_id)

    def has_moved(self, member: Member) -> bool:
        """It was submitted again, in a pack that is there."""
        return member.moved_to in self.packs


def lock(lock_: Lock, actor: Actor, patience: int) -> Generator[None, None, bool]:
    """Wait for a lock."""
    for _ in range(patience + 1):
        if lock_.is_free():
            lock_.owners.append(actor)
            return True
        yield
    return False


def has_entered(member: Member) -> Generator[None, None, bool]:
    """Two looks at the directory: spec first."""
    if "spec" not in member.files:
        return False
    yield
    return "entry" not in member.files


def list_members(pack: Pack) -> Generator[None, None, list[int]]:
    """The members that have entered."""
    found = []
    for number, member in sorted(pack.members.items()):
        if (yield from has_entered(member)):
            found.append(number)
    return found


def drop(world: World, pack: Pack, number: int) -> Steps:
    """Remove a directory, a file at a time."""
    names = ["spec", "entry"] if world.rules.spec_dropped_first else ["entry", "spec"]
    for name in names:
        if number in pack.members:
            pack.members[number].files.discard(name)
        yield
    pack.members.pop(number, None)


def drop_unentered(world: World, pack: Pack) -> Steps:
    """Remove what killed joiners left."""
    for number in sorted(pack.members):
        member = pack.members.get(number)
        if member is not None and not (yield from has_entered(member)):
            yield from drop(world, pack, number)
            world.seen.add("dropped")


def join(world: World, job: int) -> Callable[[Actor], Steps]:
    """One csub that joins a pack, or submits a new one."""

    def steps(me: Actor) -> Steps:
        seen = [(pack_id, world.packs[pack_id].slurm_id) for pack_id in sorted(world.open)
                if pack_id in world.packs]  # fmt: skip
        yield
        states = {number: job_.state for number, job_ in world.slurm.items()}
        yield
        for pack_id, slurm_id in seen:
            state = states.get(slurm_id or 0)
            if slurm_id is None or state not in (PENDING, RUNNING) or pack_id not in world.packs:
                continue
            pack = world.packs[pack_id]
            if world.rules.claims_under_lock and not (yield from lock(pack.lock, me, 8)):
                continue
            is_in = yield from _join_pack(world, pack_id, job, slurm_id, state)
            pack.lock.release(me)
            if is_in:
                world.answered.add(job)
                return
            yield
        world.entered.add(job)
        pack_id = world.place_pack({1: job})
        world.packs[pack_id].making.owners.append(me)
        yield
        world.sbatch(pack_id)
        yield
        ensure(pack_id in world.packs, f"the pack of {job} was dropped while it was submitted")
        world.packs[pack_id].slurm_id = world.find_job(pack_id)
        world.answered.add(job)

    return steps


def _join_pack(
    world: World, pack_id: int, job: int, slurm_id: int, state: int
) -> Generator[None, None, bool]:
    rules, pack = world.rules, world.packs[pack_id]
    yield from drop_unentered(world, pack)
    if rules.looks_whether_open and (pack_id not in world.open or pack.ended):
        return False
    attempt = pack.attempt
    if state == RUNNING and not attempt:
        # None of its members has ended, so that no place is free.
        return False
    present = yield from list_members(pack)
    number = max(pack.members, default=0) + 1
    yield
    if number in pack.members:
        # mkdir tells; nobody else claims under the lock.
        return False
    member = pack.members[number] = Member(job)
    yield
    for name in ("entry", "spec") if rules.spec_last else ("spec", "entry"):
        member.files.add(name)
        yield
    if state == PENDING:
        done: list[int] = []
        asked = world.start(_scontrol(world, slurm_id, len(present) + 1, done))
        if rules.scontrol_inherits_lock:
            pack.lock.owners.append(asked)
        while asked.alive:
            yield
        late = rules.looks_for_a_start and pack.attempt != attempt
        if not done or late:
            yield from drop(world, pack, number)
            world.seen.add("started meanwhile")
            return False
    if pack.inbox is None:
        yield from drop(world, pack, number)
        world.seen.add("closed meanwhile")
        return False
    ensure(
        state == RUNNING or pack.attempt == attempt,
        f"{job} joined a pack as if it waited, after it had divided what it got",
    )
    ensure(pack.members.get(number) is member, f"{job} was dropped while it joined")
    member.files.discard("entry")
    pack.inbox.add(number)
    world.entered.add(job)
    world.seen.add("joined while waiting" if state == PENDING else "joined while running")
    return True


def _scontrol(world: World, slurm_id: int, cpus: int, done: list[int]) -> Callable[[Actor], Steps]:
    def steps(_: Actor) -> Steps:
        yield from hang()
        if world.slurm[slurm_id].state == PENDING:
            world.slurm[slurm_id].cpus = cpus
            done.append(cpus)
        yield from hang()

    def hang() -> Steps:
        # Now and then longer than anybody waits for a lock.
        for _ in range((1, 10, 100)[int(world.pick() * 3)]):
            yield

    return steps


def run_pack(world: World, slurm_id: int) -> Callable[[Actor], Steps]:
    """The runner of a pack."""

    def steps(me: Actor) -> Steps:
        rules, job = world.rules, world.slurm[slurm_id]
        pack = world.packs[job.pack]
        pack.slurm_id = slurm_id
        yield
        is_locked = rules.runner_starts_under_lock and (yield from lock(pack.lock, me, 30))
        pack.attempt += 1
        yield
        places = yield from list_members(pack)
        if is_locked or not rules.runner_starts_under_lock:
            ensure(job.cpus >= len(places), f"{len(places)} members got {job.cpus} CPUs")
        pack.lock.release(me)
        yield
        known: set[int] = set()
        while pack.inbox is not None:
            for number in sorted(pack.inbox):
                pack.inbox.discard(number)
                known.add(number)
                yield
                yield from _run_member(world, pack.members[number])
            if not pack.inbox or not rules.closes_only_empty:
                pack.inbox = None
            yield
        if (yield from lock(pack.lock, me, 40)):
            if rules.runner_drops_unentered:
                yield from drop_unentered(world, pack)
            world.open.discard(job.pack)
        job.state = COMPLETED

    return steps


def _run_member(world: World, member: Member) -> Steps:
    ensure(member.job in world.entered, f"{member.job} did not enter, and is started")
    world.runs[member.job] = world.runs.get(member.job, 0) + 1
    ensure(world.runs[member.job] == 1, f"{member.job} is started twice")
    if world.rules.starts_are_noted:
        member.files.add("started")
    yield
    member.files.add("state")
    yield


def sweep(world: World) -> Callable[[Actor], Steps]:
    """What each call of csub does first."""

    def steps(me: Actor) -> Steps:
        looked = []
        for pack_id in sorted(world.open):
            pack = world.packs.get(pack_id)
            in_work = pack is not None and not pack.making.is_free()
            looked.append((pack_id, in_work, None if pack is None else pack.slurm_id))
        yield
        states = {number: job.state for number, job in world.slurm.items()}
        jobs = {job.pack: number for number, job in world.slurm.items()}
        yield
        for pack_id, in_work, slurm_id in looked:
            pack = world.packs.get(pack_id)
            if pack is None:
                continue
            if slurm_id is None and pack_id in jobs:
                slurm_id = pack.slurm_id = jobs[pack_id]  # noqa: PLW2901
                world.seen.add("adopted")
            if slurm_id is None:
                busy = in_work and world.rules.respects_work
                if not busy:
                    world.discard(pack_id)
                    world.seen.add("dropped a submission")
            elif states.get(slurm_id) in OVER:
                yield from _settle(world, me, pack_id, states[slurm_id])
            yield

    return steps


def _settle(world: World, me: Actor, pack_id: int, last: int) -> Steps:
    rules, pack = world.rules, world.packs[pack_id]
    if rules.settles_under_lock and not (yield from lock(pack.lock, me, 0)):
        return
    if pack_id in world.open:
        pack.ended = True
        yield
        yield from drop_unentered(world, pack)
        is_moving = yield from _is_moving(world, pack)
        never = yield from _list_never_started(world, pack)
        if not rules.looks_at_moves_first:
            is_moving = yield from _is_moving(world, pack)
        is_done = True
        if never and last != CANCELLED:
            is_done = yield from _resubmit(world, me, pack, never)
        if is_done and not (is_moving and rules.waits_for_what_moves):
            world.open.discard(pack_id)
    pack.lock.release(me)


def _is_moving(world: World, pack: Pack) -> Generator[None, None, bool]:
    for member in list(pack.members.values()):
        yield
        target = world.packs.get(member.moved_to or 0)
        if target is not None and target.slurm_id is None:
            return True
    return False


def _list_never_started(world: World, pack: Pack) -> Generator[None, None, list[int]]:
    found = []
    for number in (yield from list_members(pack)):
        member = pack.members[number]
        if not {"state", "started"} & member.files and not world.has_moved(member):
            found.append(number)
    return found


def _resubmit(
    world: World, me: Actor, pack: Pack, numbers: list[int]
) -> Generator[None, None, bool]:
    """True where it is settled: Slurm has it, or has refused it and the user was told."""
    rules = world.rules
    jobs = {number: pack.members[number].job for number in numbers}
    world.seen.add("submitted again")
    new_id = world.last_pack + 1

    def write_notes() -> Steps:
        for number in numbers:
            pack.members[number].moved_to = new_id
            yield

    if rules.notes_before_submission:
        # Reserved, so that no other submission takes the number meanwhile.
        world.last_pack += 1
        yield from write_notes()
        members = {number: Member(job, {"spec"}) for number, job in jobs.items()}
        new = world.packs[new_id] = Pack(members=members, inbox=set(jobs))
        new.making.owners.append(me)
        world.open.add(new_id)
    else:
        new_id = world.place_pack(jobs)
        new = world.packs[new_id]
        new.making.owners.append(me)
    yield
    outcome = world.pick()
    refused, silent = outcome < 0.15, outcome > 0.85

    def submit(_: Actor) -> Steps:
        yield
        if not refused:
            world.sbatch(new_id)

    child = world.start(submit)
    new.making.owners.append(child)
    while child.alive:
        yield
    if refused:
        world.discard(new_id)
        world.told |= set(jobs.values())
        world.seen.add("refused")
        return True
    if silent or world.find_job(new_id) is None:
        # Slurm has it, and its answer was lost; or sbatch was killed before it had asked.
        new.making.release(me)
        if not rules.notes_stay:
            for number in numbers:
                pack.members[number].moved_to = None
        world.seen.add("unanswered")
        return False
    yield
    if not rules.notes_before_submission:
        yield from write_notes()
    new.slurm_id = world.find_job(new_id)
    new.making.release(me)
    return True


def explore(source: random.Random, rules: Rules) -> World:
    """Play one random history to its end and check the promises.

    Raises:
        Violation: One was broken.
    """
    world = World(source, rules)
    pick = source.random
    for job in range(1 + int(pick() * 4)):
        world.start(join(world, job))
    later = [join(world, 100 + job) for job in range(int(pick() * 4))]
    later += [sweep(world) for _ in range(1 + int(pick() * 8))]
    kill, fate = (0.0, 0.01, 0.03)[int(pick() * 3)], (0.01, 0.03)[int(pick() * 2)]
    for _ in range(STEP_LIMIT):
        if later and pick() < 0.05:
            world.start(later.pop(int(pick() * len(later))))
        if pick() < fate:
            _let_slurm_act(world)
        if not world.actors:
            if not later:
                break
            continue
        actor = world.actors[int(pick() * len(world.actors))]
        is_runner = any(job.runner is actor for job in world.slurm.values())
        if not is_runner and pick() < kill:
            actor.kill()
        else:
            actor.step()
        world.actors = [other for other in world.actors if other.alive]
    else:
        raise Violation("it never came to an end")
    _finish(world)
    _check_end(world)
    return world


def _let_slurm_act(world: World) -> None:
    """A job starts, fails, or is cancelled."""
    alive = [number for number, job in world.slurm.items() if job.state not in OVER]
    if not alive:
        return
    number = alive[int(world.pick() * len(alive))]
    job = world.slurm[number]
    if job.state == PENDING and world.pick() < 0.8:
        job.state = RUNNING
        job.runner = world.start(run_pack(world, number))
        return
    if job.runner is not None:
        if not job.runner.alive:
            return
        job.runner.kill()
        world.actors = [other for other in world.actors if other.alive]
    job.state = CANCELLED if world.pick() < 0.4 else FAILED


def _finish(world: World) -> None:
    """From here on nothing is killed: Slurm runs what it has, and csub is called again."""
    for _ in range(40):
        for number, job in list(world.slurm.items()):
            if job.state == PENDING and job.pack in world.packs:
                job.state = RUNNING
                job.runner = world.start(run_pack(world, number))
        world.start(sweep(world))
        while world.actors:
            world.actors[0].step()
            world.actors = world.actors[1:] + world.actors[:1]
            world.actors = [other for other in world.actors if other.alive]
        if not world.open:
            return
    raise Violation(f"packs {sorted(world.open)} stay open for ever")


def _check_end(world: World) -> None:
    for job in world.answered - world.told:
        ensure(
            world.runs.get(job) or _was_cancelled(world, job),
            f"{job} was answered, and neither ran nor was cancelled",
        )
    for pack in world.packs.values():
        for number, member in pack.members.items():
            is_member = "spec" in member.files and "entry" not in member.files
            ensure(is_member, f"member {number} of an ended pack has never entered")


def _was_cancelled(world: World, job: int) -> bool:
    return any(
        member.job == job and not world.has_moved(member)
        for pack_id, pack in world.packs.items()
        if (number := world.find_job(pack_id)) is not None
        and world.slurm[number].state == CANCELLED
        for member in pack.members.values()
    )
