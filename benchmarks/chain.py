"""Trainings longer than a time limit: csub's rules against `afterany` and an oracle, replayed.

A cluster with generated load is simulated: first come first served, with EASY backfill by time
limits. What is due in a chain is judged by the code that runners use (slurm_colloc.model.chain).
"""

from __future__ import annotations

import bisect
import copy
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.measuring import Section
from slurm_colloc.model.chain import HOLD_SHARE, LinkStep, Successor, choose_lead, choose_step
from slurm_colloc.model.plan import PastJob
from slurm_colloc.runtime.chain_links import LEAD_S

GPUS = 64
LIMIT_S = 24 * 3600.0
WORK_S = 10 * 86400.0
WARM_S = 2 * 86400.0
SAVE_S = 120.0
"""From the signal to the end of the members."""
OWN_GPUS = 4
TICK_S = 60.0
SEEDS = 6
LOADS = (0.7, 0.8, 0.9, 1.0, 1.1)
BY_WAITS = "csub, where Slurm gives no estimate"
ORACLE_STEPS = 18
"""Leads that the oracle tries, each in a copy of the cluster that runs on as this one will."""


@dataclass
class Job:
    """A request; times in seconds."""

    gpus: int
    limit_s: float
    run_s: float
    came_at: float
    began_at: float | None = None
    is_own: bool = False


@dataclass
class Cluster:
    """One partition of like GPUs."""

    arrivals: list[Job]
    now: float = 0.0
    next: int = 0
    free: int = GPUS
    queue: list[Job] = field(default_factory=list)
    running: list[tuple[float, int, Job]] = field(default_factory=list)
    past: list[PastJob] = field(default_factory=list)
    count: int = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Cluster:
        # Arrivals are never changed before they come.
        twin = copy.copy(self)
        twin.queue = [copy.copy(job) for job in self.queue]
        twin.running = list(self.running)
        twin.past = []
        return twin

    def expect_wait_s(self, job: Job) -> float:
        """What Slurm would say: the requests one after the other, each up to its time limit."""
        ends = [((other.began_at or 0.0) + other.limit_s, other.gpus)
                for _, _, other in self.running]  # fmt: skip
        heapq.heapify(ends)
        free, at = self.free, self.now
        for other in (*self.queue, job):
            while free < other.gpus:
                at, freed = heapq.heappop(ends)
                free += freed
            free -= other.gpus
            heapq.heappush(ends, (at + other.limit_s, other.gpus))
        return max(0.0, at - self.now)

    def submit(self, job: Job) -> None:
        """Take a request; it is looked at with the next event."""
        self.queue.append(job)
        self._schedule()

    def end(self, job: Job) -> None:
        """A job ends before its time."""
        for place, (_, _, other) in enumerate(self.running):
            if other is job:
                del self.running[place]
                self.free += job.gpus
                self._schedule()
                return

    def advance(self, until: float) -> None:
        """Go on to a moment."""
        while True:
            came = self.arrivals[self.next].came_at if self.next < len(self.arrivals) else until
            ends = self.running[0][0] if self.running else until
            self.now = min(came, ends, until)
            if self.now >= until:
                return
            if ends <= came:
                _, _, job = self.running.pop(0)
                self.free += job.gpus
            else:
                self.queue.append(copy.copy(self.arrivals[self.next]))
                self.next += 1
            self._schedule()

    def _start(self, job: Job) -> None:
        job.began_at = self.now
        self.free -= job.gpus
        self.count += 1
        bisect.insort(self.running, (self.now + job.run_s, self.count, job))
        self.past.append(PastJob(job.gpus, int(job.limit_s), self.now - job.came_at))

    def _schedule(self) -> None:
        while self.queue and self.queue[0].gpus <= self.free:
            self._start(self.queue.pop(0))
        if not self.queue or not self.free:
            return
        # The first that waits has a reservation; others may pass it where they do not delay that.
        free, shadow = self.free, self.now
        for limit_end, gpus in sorted(
            ((job.began_at or 0.0) + job.limit_s, job.gpus) for _, _, job in self.running
        ):
            free, shadow = free + gpus, limit_end
            if free >= self.queue[0].gpus:
                break
        spare = free - self.queue[0].gpus
        for job in self.queue[1:]:
            if job.gpus > self.free:
                continue
            ends_before = self.now + job.limit_s <= shadow
            if ends_before or job.gpus <= spare:
                spare -= 0 if ends_before else job.gpus
                self.queue.remove(job)
                self._start(job)


def generate(load: float, seed: int, length_s: float) -> list[Job]:
    """Requests of others, so many that they would use this part of all GPUs."""
    rng = random.Random(seed)
    jobs, at = [], 0.0
    sizes, weights = (1, 2, 4, 8), (60, 20, 10, 10)
    mean_gpus = sum(s * w for s, w in zip(sizes, weights, strict=True)) / 100
    draws = [min(LIMIT_S, rng.lognormvariate(8.9, 1.3)) for _ in range(20_000)]
    rate = load * GPUS / (mean_gpus * sum(draws) / len(draws))
    while at < length_s:
        at += rng.expovariate(rate)
        run_s = min(LIMIT_S, rng.lognormvariate(8.9, 1.3))
        limit_s = min(LIMIT_S, run_s * rng.uniform(1.0, 4.0))
        jobs.append(Job(rng.choices(sizes, weights)[0], limit_s, run_s, at))
    return jobs


@dataclass
class Outcome:
    """What a chain came to; sums of seconds."""

    links: int = 0
    interruption_s: float = 0.0
    uninterrupted: int = 0
    overlap_s: float = 0.0
    held_s: float = 0.0

    def add(self, other: Outcome) -> None:
        """Add those of another chain."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def _own(now: float) -> Job:
    return Job(OWN_GPUS, LIMIT_S, LIMIT_S, now, is_own=True)


def _wait_for(cluster: Cluster, job: Job, until: float = float("inf")) -> None:
    while job.began_at is None and cluster.now < until:
        cluster.advance(min(until, cluster.now + TICK_S))


def replay(rule: str, load: float, seed: int) -> Outcome:
    """Run one chain through a cluster with load."""
    cluster = Cluster(generate(load, seed, WARM_S + 6 * WORK_S))
    cluster.advance(WARM_S)
    found, left_s = Outcome(), WORK_S
    link = _own(cluster.now)
    cluster.submit(link)
    _wait_for(cluster, link)
    while True:
        assert link.began_at is not None
        turn_at, successor = cluster.now, None
        end_at = min(link.began_at + LIMIT_S, turn_at + left_s)
        lead_s, asked_at = _choose_lead(rule, cluster, end_at), cluster.now
        while cluster.now < end_at:
            cluster.advance(min(end_at, cluster.now + TICK_S))
            if rule.startswith("csub") and cluster.now >= asked_at + LEAD_S:
                lead_s, asked_at = _choose_lead(rule, cluster, end_at), cluster.now
            if rule == "afterany":
                continue
            seen = Successor.NONE if successor is None else Successor.WAITS
            if successor is not None and successor.began_at is not None:
                seen = Successor.HOLDS
            step = choose_step(
                left_s=link.began_at + LIMIT_S - cluster.now,
                lead_s=lead_s,
                save_s=SAVE_S,
                hold_s=HOLD_SHARE * LIMIT_S,
                successor=seen,
            )
            if step is LinkStep.SUBMIT:
                successor = _own(cluster.now)
                cluster.submit(successor)
            elif step is LinkStep.SAVE:
                end_at = min(end_at, cluster.now + SAVE_S)
        left_s -= cluster.now - turn_at
        found.held_s += cluster.now - link.began_at
        cluster.end(link)
        if left_s < 1:
            return found
        found.links += 1
        ended_at = cluster.now
        if successor is None:
            successor = _own(cluster.now)
            cluster.submit(successor)
        _wait_for(cluster, successor)
        assert successor.began_at is not None
        interruption_s = max(0.0, successor.began_at - ended_at)
        found.interruption_s += interruption_s
        found.uninterrupted += interruption_s <= TICK_S
        found.overlap_s += max(0.0, ended_at - successor.began_at)
        link = successor


def _choose_lead(rule: str, cluster: Cluster, end_at: float) -> float:
    if rule.startswith("csub"):
        site = cluster.past[-2000:]
        estimate_s = cluster.expect_wait_s(_own(cluster.now)) if rule == "csub" else None
        return choose_lead([], site, estimate_s, gpus=OWN_GPUS, limit_s=LIMIT_S).seconds
    if rule == "afterany":
        return 0.0
    # The oracle: of the leads whose successor is there in time, the shortest, or the one that
    # comes nearest.
    best: tuple[float, float] | None = None
    for number in range(1, ORACLE_STEPS + 1):
        lead_s = number / ORACLE_STEPS * 0.9 * LIMIT_S
        twin = copy.deepcopy(cluster)
        twin.advance(max(twin.now, end_at - SAVE_S - lead_s))
        job = _own(twin.now)
        twin.submit(job)
        _wait_for(twin, job, end_at + 2 * LIMIT_S)
        late_s = (job.began_at or end_at + 2 * LIMIT_S) - end_at
        if best is None or max(0.0, late_s) < best[0]:
            best = max(0.0, late_s), lead_s
        if late_s <= 0:
            break
    assert best is not None
    return best[1]


def measure_chain() -> Section:
    """Chains of ten days of work in links of a day, each rule in the same clusters."""
    return Section("Chains past the time limit", _HEADER, tuple(_list_rows()), (_ABOUT,))


_HEADER = (
    "load", "rule", "links", "interruption a link", "less than afterany", "not interrupted",
    "overlap",
)  # fmt: skip
_ABOUT = (
    f"{GPUS} GPUs, requests of 1 to 8 of them; the chain asks for {OWN_GPUS} for 24 hours and has "
    f"10 days of work; {SEEDS} seeds. Goal of csub: at least 50 % less interruption, overlap under "
    "5 % of the time that allocations are held. The lead is chosen anew each half hour."
)


def _list_rows() -> Iterator[tuple[str, ...]]:
    for load in LOADS:
        plain = 0.0
        for rule in ("afterany", BY_WAITS, "csub", "oracle"):
            found = Outcome()
            for seed in range(SEEDS):
                found.add(replay(rule, load, seed))
            mean_s = found.interruption_s / found.links
            plain = mean_s if rule == "afterany" else plain
            less = "" if rule == "afterany" or not plain else f"{1 - mean_s / plain:.0%}"
            yield (
                f"{load:g}",
                rule,
                str(found.links),
                f"{mean_s / 3600:.2f} h",
                less.replace("%", " %"),
                f"{100 * found.uninterrupted / found.links:.0f} %",
                f"{100 * found.overlap_s / found.held_s:.2f} %",
            )
