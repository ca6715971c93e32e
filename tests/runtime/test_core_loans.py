"""Cores that move between members of a pack: real processes, the affinity of their threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.core_loans import JUDGED_AFTER_S, LENDING_LOOK_S, LOOK_S, CoreLender
from slurm_colloc.runtime.members import Member, PackMembers
from slurm_colloc.store.member_states import StateRecord

from .pack_contexts import build_context
from .stepped_runner import PlainProcess
from .test_members import SPEC

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")

WRAPPER = "import subprocess, sys; subprocess.run([sys.executable, '-ISc', *sys.argv[1:]])"
PROGRAM = """
import os, sys, threading, time
if sys.argv[1:] == ["pinned"]:
    os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:1]))
for _ in range(2):
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
print("up", flush=True)
if sys.argv[1:] == ["busy"]:
    while True: pass
time.sleep(300)
"""


class LendingPack:
    """Members with processes, a clock and figures."""

    def __init__(self, path: Path) -> None:
        self.cpus = sorted(os.sched_getaffinity(0))[:2]
        path.mkdir(parents=True)
        self.now = 1000.0
        self.looked_at = 0.0
        self.figures: dict[str, Any] = {}
        self.is_measuring = False
        self.children: list[subprocess.Popen[str]] = []
        allocation = Allocation("1", "1", "n", 0, 2, tuple((cpu,) for cpu in self.cpus), (), {})
        self.pack = build_context(
            path, members=PackMembers([]), clock=lambda: self.now, allocation=allocation
        )
        self.lender = CoreLender(
            pack=self.pack,
            # It is asked for the monitor's figures, and whether members are measured.
            progress=cast("Any", self),
            measured_degree=cast("Any", self),
        )

    def start(self, number: int, cpus: tuple[int, ...], *words: str) -> Member:
        record = StateRecord(MemberState.RUNNING, 1, starts=1)
        member = Member(number, SPEC, replace(record, cpus=cpus))
        child = subprocess.Popen(
            [sys.executable, "-ISc", WRAPPER, PROGRAM, *words],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, set(cpus)),
        )
        self.children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        member.process, member.wrapper_pid = PlainProcess(), child.pid
        self.pack.members.by_number[number] = member
        return member

    def tell(self, **members: dict[str, Any]) -> None:
        """New figures of members, and time for them."""
        self.now += JUDGED_AFTER_S
        self.looked_at += 1.0
        self.figures = {number[1:]: {"start": 1, **found} for number, found in members.items()}
        self.lender.work()

    def list_affinities(self, member: Member) -> list[set[int]]:
        """Of all threads of the program."""
        found = self.lender._processes.find({member.number: member.wrapper_pid or 0})
        return [
            os.sched_getaffinity(int(thread.name))
            for process in found[member.number]
            for thread in Path(f"/proc/{process.id.pid}/task").iterdir()
        ]

    def list_events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.pack.path / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[LendingPack]:
    made = LendingPack(tmp_path / "state" / "packs" / "p")
    yield made
    for child in made.children:
        subprocess.run(["pkill", "-KILL", "-P", str(child.pid)], check=False)
        child.kill()
        child.communicate()


IDLE = {"cpu_cores": 0.1, "wait_share": 0.0, "steps_per_s": 10.0}
SHORT = {"cpu_cores": 1.0, "wait_share": 0.61, "steps_per_s": 10.0}


def test_the_only_core_of_one_that_runs_is_not_lent(bed: LendingPack) -> None:
    first, second = bed.cpus
    bed.start(1, (first,))
    short = bed.start(2, (second,))
    bed.tell(m1=IDLE, m2=SHORT)
    assert bed.list_affinities(short) == [{second}] * 3
    assert bed.lender.list_loans() == ()


def test_all_threads_run_on_the_lent_cores_and_on_their_own_again(bed: LendingPack) -> None:
    first, second = bed.cpus
    short = bed.start(1, (first,))
    paused = bed.start(2, (second,))
    paused.paused_at = bed.now
    bed.tell(m1=SHORT, m2=IDLE)
    assert bed.list_affinities(short) == [{first, second}] * 3
    (loan,) = bed.lender.list_loans()
    assert (loan.member, loan.own, loan.cores, loan.of, loan.wait_share) == (1, 1, 2, 2, 0.61)
    bed.tell(m1={**SHORT, "cpu_cores": 1.8, "wait_share": 0.05, "steps_per_s": 17.0}, m2=IDLE)
    assert bed.lender.list_loans()[0].gain == pytest.approx(0.7)
    bed.is_measuring = True
    bed.lender.work()
    assert bed.list_affinities(short) == [{first}] * 3
    assert (bed.lender.list_loans()[0].cores, bed.lender.list_loans()[0].most) == (1, 2)


def test_a_loan_that_does_not_help_ends_and_is_not_tried_again_at_once(bed: LendingPack) -> None:
    first, second = bed.cpus
    short, other = bed.start(1, (first,)), bed.start(2, (second,))
    other.paused_at = bed.now
    bed.tell(m1=SHORT, m2=IDLE)
    bed.tell(m1=SHORT, m2=IDLE)
    assert bed.list_affinities(short) == [{first}] * 3
    bed.tell(m1=SHORT, m2=IDLE)
    assert bed.lender.loans == {}
    assert [event["reason"] for event in bed.list_events("cores_back")] == ["it was no faster"]


def test_an_owner_has_its_cores_back_within_two_looks(bed: LendingPack) -> None:
    first, second = bed.cpus
    short = bed.start(1, (first,))
    owner = bed.start(2, (second,), "busy")
    owner.paused_at = bed.now
    bed.tell(m1=SHORT, m2=IDLE)
    assert bed.lender.loans == {1: [second]}
    owner.paused_at = None

    # Its processor time is real. The first look may find it as it begins.
    for _ in range(3):
        bed.now += LENDING_LOOK_S
        assert all(moment <= bed.now for moment in bed.lender.list_due())
        bed.lender.work()
        time.sleep(LENDING_LOOK_S)
    assert bed.lender.loans == {}
    assert bed.list_affinities(short) == [{first}] * 3


def test_threads_that_have_bound_themselves_are_left_alone(bed: LendingPack) -> None:
    first, second = bed.cpus
    pinned = bed.start(1, (first, second), "pinned")
    bed.lender._bind([pinned], 1, [])
    before = bed.list_affinities(pinned)
    assert all(len(affinity) == 1 for affinity in before)
    bed.lender.loans[1] = []
    bed.lender._bind([pinned], 1, [99])
    assert bed.list_affinities(pinned) == before


def test_one_that_has_ended_owes_nothing(bed: LendingPack) -> None:
    first, second = bed.cpus
    bed.start(1, (first,))
    other = bed.start(2, (second,))
    other.paused_at = bed.now
    bed.tell(m1=SHORT, m2=IDLE)
    bed.pack.members.by_number[1].forget_start()
    bed.now += LOOK_S
    bed.lender.work()
    assert bed.lender.loans == {}
    assert bed.lender.list_loans()[0].cores == 1


def test_one_that_was_started_again_has_its_own_cores(bed: LendingPack) -> None:
    first, second = bed.cpus
    short = bed.start(1, (first,))
    other = bed.start(2, (second,))
    other.paused_at = bed.now
    bed.tell(m1=SHORT, m2=IDLE)
    assert bed.lender.list_loans()[0].cores == 2
    short.record = replace(short.record, starts=2)
    bed.now += LOOK_S
    bed.lender.work()
    (loan,) = bed.lender.list_loans()
    assert (loan.cores, loan.most) == (1, 2)


def test_one_with_too_few_workers_is_told_so_until_it_no_longer_waits(bed: LendingPack) -> None:
    first, second = bed.cpus
    bed.start(1, (first, second))
    few = {"cpu_cores": 1.0, "wait_share": 0.5, "steps_per_s": 10.0, "loader_workers": 1}
    bed.tell(m1=few)
    (advice,) = bed.lender.list_advice()
    assert (advice.member, advice.workers, advice.cores, advice.advised) == (1, 1, 2, 2)
    bed.tell(m1={**few, "wait_share": 0.6})
    assert bed.lender.list_advice() == (advice,)
    bed.tell(m1={**few, "wait_share": 0.0})
    assert bed.lender.list_advice() == ()


def test_one_to_which_lent_cores_were_of_no_use_is_told_what_would_be(bed: LendingPack) -> None:
    first, second = bed.cpus
    bed.start(1, (first,))
    other = bed.start(2, (second,))
    other.paused_at = bed.now
    few = {**SHORT, "loader_workers": 1}
    bed.tell(m1=few, m2=IDLE)
    assert bed.lender.list_advice() == ()
    bed.tell(m1=few, m2=IDLE)
    bed.tell(m1=few, m2=IDLE)
    (advice,) = bed.lender.list_advice()
    assert (advice.member, advice.workers, advice.cores, advice.advised) == (1, 1, 2, 2)
    bed.tell(m1={**few, "loader_workers": None}, m2=IDLE)
    assert bed.lender.list_advice() == ()
