"""A chain's rules: the lead, what is due in the running link, whose turn it is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.model.chain import (
    HOLD_SHARE,
    LEAD_SHARE,
    LEAST_WAITS,
    UNKNOWN_SHARE,
    ChainRecord,
    Handover,
    Lead,
    Link,
    LinkStep,
    Successor,
    Turn,
    choose_lead,
    choose_step,
    compute_handovers,
    judge_turn,
    list_unrecorded,
)
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.plan import PastJob

LIMIT_S = 86400.0


def past(*waits: float, gpus: int = 1, limit_s: int = 86400) -> list[PastJob]:
    return [PastJob(gpus, limit_s, wait) for wait in waits]


def choose(own: list[PastJob], site: list[PastJob], estimate_s: float | None = None) -> Lead:
    return choose_lead(own, site, estimate_s, gpus=1, limit_s=LIMIT_S)


# ---- The lead ------------------------------------------------------------------------------------


def test_the_lead_is_a_high_quantile_of_the_users_own_waits() -> None:
    lead = choose(past(*[6000.0, 7000.0, 8000.0, 9000.0, 10000.0, 11000.0]), past(*[9.0] * 99))
    assert lead.seconds == 10000.0
    assert lead.why == "80 % of your last 6 such jobs waited at most 2:46:40"


def test_with_few_of_their_own_those_of_the_partition_count() -> None:
    lead = choose(past(*[1.0] * (LEAST_WAITS - 1)), past(*[5000.0] * LEAST_WAITS))
    assert lead.seconds == 5000.0
    assert "the partition's" in lead.why


def test_jobs_of_another_size_do_not_count() -> None:
    others = past(*[9000.0] * 20, gpus=8) + past(*[9000.0] * 20, limit_s=600)
    assert choose(others, []).seconds == UNKNOWN_SHARE * LIMIT_S


def test_the_newest_waits_count() -> None:
    assert choose(past(*[40000.0] * 99, *[3000.0] * 50), []).seconds == 3000.0


def test_what_slurm_expects_is_the_least() -> None:
    lead = choose(past(*[3000.0] * 9), [], 7200.0)
    assert (lead.seconds, lead.why) == (7200.0, "Slurm expects a wait of 2:00:00")
    assert choose(past(*[3000.0] * 9), [], 60.0).seconds == 3000.0


def test_the_lead_has_bounds_by_the_limit() -> None:
    assert choose(past(*[0.0] * 9), []).seconds == HOLD_SHARE * LIMIT_S
    lead = choose(past(*[200_000.0] * 9), [])
    assert lead.seconds == LEAD_SHARE * LIMIT_S
    assert lead.why.endswith("more than the time limit leaves")


# ---- What is due ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_s", "successor", "expected"),
    [
        (5000, Successor.NONE, LinkStep.NOTHING),
        (1100, Successor.NONE, LinkStep.SUBMIT),
        (1100, Successor.WAITS, LinkStep.NOTHING),
        (1100, Successor.HOLDS, LinkStep.SAVE),
        (250, Successor.HOLDS, LinkStep.NOTHING),
        (100, Successor.HOLDS, LinkStep.SAVE),
        (100, Successor.WAITS, LinkStep.SAVE),
        (100, Successor.NONE, LinkStep.SAVE),
        (-50, Successor.NONE, LinkStep.SAVE),
    ],
)
def test_what_is_due(left_s: float, successor: Successor, expected: LinkStep) -> None:
    step = choose_step(left_s=left_s, lead_s=1000, save_s=100, hold_s=200, successor=successor)
    assert step is expected


def test_handovers_are_counted_between_links_that_began() -> None:
    record = ChainRecord(
        links=(
            Link("1", 0.0, began_at=10.0, ended_at=100.0),
            Link("2", 60.0, up_at=96.0, began_at=101.0, ended_at=200.0),
            Link("3", 150.0, up_at=230.0, began_at=230.0),
            Link("4", 260.0),
        )
    )
    assert compute_handovers(record) == [Handover(36.0, 1.0, 5.0), Handover(80.0, 30.0, 0.0)]


def test_what_is_not_known_of_a_handover_is_not_counted() -> None:
    links = (Link("1", began_at=1.0), Link("2", up_at=9.0, began_at=9.0))
    assert compute_handovers(ChainRecord(links)) == [Handover(None, None, 0.0)]


# ---- Whose turn it is ----------------------------------------------------------------------------

LINKS = ChainRecord((Link("1"), Link("2"), Link("3")))


@pytest.mark.parametrize(
    ("own", "current", "state", "expected"),
    [
        ("1", "1", None, Turn.RUN),
        ("2", "1", SlurmJobState.RUNNING, Turn.HOLD),
        ("2", "1", SlurmJobState.COMPLETING, Turn.HOLD),
        ("2", "1", None, Turn.HOLD),
        ("2", "1", SlurmJobState.TIMEOUT, Turn.RUN),
        ("2", "1", SlurmJobState.PENDING, Turn.RUN),
        ("2", "1", SlurmJobState.ABSENT, Turn.RUN),
        ("2", "1", SlurmJobState.CANCELLED, Turn.LEAVE),
        ("1", "2", SlurmJobState.RUNNING, Turn.LEAVE),
        ("1", "2", SlurmJobState.TIMEOUT, Turn.LEAVE),
        ("9", "2", SlurmJobState.RUNNING, Turn.HOLD),
    ],
)
def test_whose_turn_it_is(
    own: str, current: str, state: SlurmJobState | None, expected: Turn
) -> None:
    assert judge_turn(LINKS, own=own, current=current, state=state, has_open=True) is expected


def test_no_link_begins_once_all_members_have_ended() -> None:
    for own in ("1", "2", "3"):
        turn = judge_turn(LINKS, own=own, current="1", state=None, has_open=False)
        assert turn is Turn.LEAVE


# ---- Histories: jobs, clocks, kills and cancels in any order -------------------------------------


@dataclass
class SimulatedJob:
    """A Slurm job of the model; times in its seconds."""

    job_id: str
    starts_at: float
    state: SlurmJobState = SlurmJobState.PENDING
    started_at: float = 0.0
    runs: bool = False
    saves_until: float | None = None
    has_runner: bool = True


@dataclass
class Model:
    """A chain in a Slurm that does what it likes; each step of time is a second."""

    rng: random.Random
    work: float
    links_most: int
    limit: float = 200.0
    now: float = 0.0
    done: float = 0.0
    clock_shift: float = 0.0
    record: ChainRecord = field(default_factory=ChainRecord)
    current: str = ""
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    finished: bool = False
    cancelled: bool = False
    refuses: bool = False
    never_two: bool = True

    def submit(self) -> str | None:
        """The successor, also one that an earlier call has submitted without an answer."""
        found = self.list_unrecorded()
        if self.refuses or found:
            return next(iter(found), None)
        job_id = str(len(self.jobs) + 1)
        wait = self.rng.choice((0.0, 5.0, 60.0, 400.0)) * self.rng.random()
        self.jobs[job_id] = SimulatedJob(job_id, self.now + wait)
        return job_id

    def begin(self) -> None:
        job_id = self.submit()
        assert job_id is not None
        self.record, self.current = ChainRecord((Link(job_id),)), job_id

    @property
    def has_open(self) -> bool:
        return not (self.finished or self.cancelled)

    # -- what csub does -------------------------------------------------------------------------

    def work_of(self, job: SimulatedJob) -> None:
        if job.state is not SlurmJobState.RUNNING or not job.has_runner:
            return
        if job.runs:
            self.run(job)
        else:
            self.await_turn(job)

    def await_turn(self, job: SimulatedJob) -> None:
        other = self.jobs.get(self.current)
        answers = self.rng.random() < 0.8
        state = other.state if other is not None and answers else None
        turn = judge_turn(
            self.record,
            own=job.job_id,
            current=self.current,
            state=state,
            has_open=self.has_open,
        )
        if turn is Turn.LEAVE:
            job.state = SlurmJobState.COMPLETED
        elif turn is Turn.RUN:
            if self.record.find(job.job_id) is None:
                self.record = ChainRecord((*self.record.links, Link(job.job_id)))
            self.current, job.runs = job.job_id, True
            self.cancel_unrecorded()

    def list_unrecorded(self) -> list[str]:
        marked = {job_id: job.state for job_id, job in self.jobs.items()}
        return list_unrecorded(self.record, marked)

    def cancel_unrecorded(self) -> None:
        for job_id in self.list_unrecorded():
            self.jobs[job_id].state = SlurmJobState.CANCELLED

    def run(self, job: SimulatedJob) -> None:
        place = self.record.find(job.job_id)
        assert place is not None
        self.done += 1
        if self.done >= self.work:
            self.finished = True
            self.end_chain(job)
            return
        if job.saves_until is not None:
            if self.now >= job.saves_until:
                self.hand_over(job)
            return
        if place + 1 >= self.links_most:
            return
        seen = self.look(job, place)
        left = job.started_at + self.limit - (self.now + self.clock_shift)
        step = choose_step(left_s=left, lead_s=60, save_s=10, hold_s=4, successor=seen)
        if step is LinkStep.SUBMIT and (new := self.submit()):
            event = self.rng.random()
            if event < 0.2:
                # It was killed before it had written that down, or sbatch gave no answer.
                job.has_runner = event >= 0.1
                return
            self.record = ChainRecord((*self.record.links, Link(new)))
        elif step is LinkStep.SAVE:
            job.saves_until = self.now + self.rng.choice((0, 3, 9))

    def look(self, job: SimulatedJob, place: int) -> Successor:
        successor = self.record.find_successor(job.job_id)
        if successor is None:
            return Successor.NONE
        state = self.jobs[successor.job_id].state
        if state is SlurmJobState.RUNNING:
            return Successor.HOLDS
        if state is SlurmJobState.PENDING:
            return Successor.WAITS
        self.record = ChainRecord(self.record.links[: place + 1])
        return Successor.NONE

    def hand_over(self, job: SimulatedJob) -> None:
        successor = self.record.find_successor(job.job_id)
        new = successor.job_id if successor else self.submit()
        job.runs = False
        if new is None:
            # Requeued: the same job again.
            self.record = ChainRecord((*self.record.links, Link(job.job_id)))
            job.state, job.starts_at = SlurmJobState.PENDING, self.now + self.rng.random() * 50
            job.saves_until = None
            return
        if successor is None:
            self.record = ChainRecord((*self.record.links, Link(new)))
        self.current, job.state = new, SlurmJobState.COMPLETED

    def end_chain(self, job: SimulatedJob) -> None:
        successor = self.record.find_successor(job.job_id)
        job.state, job.runs = SlurmJobState.COMPLETED, False
        if successor is not None and self.jobs[successor.job_id].state is SlurmJobState.PENDING:
            self.jobs[successor.job_id].state = SlurmJobState.CANCELLED
        self.cancel_unrecorded()

    # -- what Slurm, the node and the user do ---------------------------------------------------

    def step(self) -> None:
        self.now += 1
        event = self.rng.random()
        running = [job for job in self.jobs.values() if job.state is SlurmJobState.RUNNING]
        if running and event < 0.002:
            victim = self.rng.choice(running)
            victim.state, victim.runs = SlurmJobState.NODE_FAIL, False
        elif running and event < 0.004:
            victim = self.rng.choice(running)
            victim.state, victim.runs = SlurmJobState.PENDING, False
            victim.saves_until, victim.starts_at = None, self.now + self.rng.random() * 90
        elif event < 0.006:
            self.clock_shift = self.rng.choice((-3600.0, -5.0, 0.0, 5.0, 3600.0))
        elif event < 0.008:
            self.refuses = not self.refuses
        elif event < 0.0082:
            self.cancel()
        for job in list(self.jobs.values()):
            if job.state is SlurmJobState.PENDING and self.now >= job.starts_at:
                job.state, job.started_at, job.has_runner = SlurmJobState.RUNNING, self.now, True
            elif job.state is SlurmJobState.RUNNING and self.now >= job.started_at + self.limit:
                job.state, job.runs = SlurmJobState.TIMEOUT, False
            elif job.state is SlurmJobState.RUNNING and not job.has_runner:
                # Its guard has it requeued, or the members are gone with it.
                again = self.rng.random() < 0.5
                job.state = SlurmJobState.PENDING if again else SlurmJobState.FAILED
                job.runs, job.saves_until, job.starts_at = False, None, self.now + 20
            self.work_of(job)
        runs = [job for job in self.jobs.values() if job.runs]
        self.never_two = self.never_two and len(runs) <= 1
        # Of jobs that no link has run in there is one: the successor, or the first link.
        self.never_two = self.never_two and len(self.list_new()) <= 1

    def list_new(self) -> list[str]:
        alive = (SlurmJobState.PENDING, SlurmJobState.RUNNING)
        at = self.record.find(self.current) or 0
        begun = {link.job_id for link in self.record.links[: at + 1]}
        return [j.job_id for j in self.jobs.values() if j.state in alive and j.job_id not in begun]

    def cancel(self) -> None:
        self.cancelled = True
        for job in self.jobs.values():
            waits = job.state is SlurmJobState.PENDING
            if waits or (job.job_id == self.current and job.state is SlurmJobState.RUNNING):
                job.state, job.runs = SlurmJobState.CANCELLED, False

    @property
    def is_alive(self) -> bool:
        alive = (SlurmJobState.PENDING, SlurmJobState.RUNNING)
        return any(job.state in alive for job in self.jobs.values())


@settings(max_examples=2000, deadline=None)
@given(seed=st.integers(0, 2**32), work=st.integers(1, 1500), links=st.integers(2, 12))
def test_never_two_links_run_and_none_is_left(seed: int, work: int, links: int) -> None:
    model = Model(random.Random(seed), float(work), links)
    model.begin()
    for _ in range(12_000):
        if not model.is_alive:
            break
        model.step()
        assert model.never_two, model
    # No job of it waits or holds an allocation for ever.
    assert not model.is_alive, model
    if not model.has_open:
        return
    # It has not ended: its links are used up, or the last one was lost with no successor.
    last = model.jobs[model.current]
    place = model.record.find(model.current)
    assert place is not None
    assert last.state is not SlurmJobState.COMPLETED or place + 1 >= links, model


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), work=st.integers(1, 900))
def test_without_failures_a_chain_runs_to_its_end(seed: int, work: int) -> None:
    class Calm(Model):
        def step(self) -> None:
            self.now += 1
            for job in list(self.jobs.values()):
                if job.state is SlurmJobState.PENDING and self.now >= job.starts_at:
                    job.state, job.started_at = SlurmJobState.RUNNING, self.now
                self.work_of(job)

    class Even(random.Random):
        """Slurm always answers, and no runner is killed."""

        def random(self) -> float:
            return 0.5

    model = Calm(Even(seed), float(work), 100)
    model.begin()
    while model.is_alive and model.now < 20_000:
        model.step()
    assert model.finished
    assert model.done == work
