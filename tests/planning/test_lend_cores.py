"""Lending cores between members: who gets them, and that a loan that helps none ends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.planning.lend_cores import (
    CoreUse,
    advise_workers,
    choose_borrower,
    choose_loan,
    compute_gain,
    list_idle,
    list_wanted_back,
)


def even(parts: int, each: int) -> list[tuple[int, ...]]:
    return [tuple(range(n * each, (n + 1) * each)) for n in range(parts)]


class Pack:
    """Members that can use so many cores, on their own ones and what they borrow.

    A member's rate is the part that it has of the cores that it can use; it waits for the rest.
    """

    def __init__(self, needs: list[int], own: list[tuple[int, ...]]) -> None:
        self.needs, self.own = needs, own
        self.cpus = {cpu for cpus in own for cpu in cpus}
        self.loans: dict[int, tuple[int, ...]] = {}

    def look(self) -> list[CoreUse]:
        uses = []
        for number, (need, own) in enumerate(zip(self.needs, self.own, strict=True)):
            rate = self.get_rate(number)
            uses.append(CoreUse(number, own, min(need, self.count(number)), 1.0 - rate, 10 * rate))
        return uses

    def count(self, number: int) -> int:
        return len(self.own[number]) + len(self.loans.get(number, ()))

    def get_rate(self, number: int) -> float:
        return min(1.0, self.count(number) / self.needs[number])

    def run(self, rounds: int = 20) -> None:
        refused: set[int] = set()
        for _ in range(rounds):
            uses = self.look()
            borrower = choose_borrower(uses, self.loans, refused)
            if borrower is None:
                return
            lent = {cpu for cpus in self.loans.values() for cpu in cpus}
            had = self.loans.get(borrower.number, ())
            cpus = choose_loan(borrower, len(had), list_idle(uses, self.cpus, lent))
            before = {use.number: use.steps_per_s or 0.0 for use in uses}
            self.loans[borrower.number] = (*had, *cpus)
            after = {use.number: use.steps_per_s or 0.0 for use in self.look()}
            if not cpus or compute_gain(borrower.number, before, after) is None:
                self.loans[borrower.number] = had
                refused.add(borrower.number)


def test_two_and_ten_of_twelve_cores_make_a_quarter_more_than_an_even_split() -> None:
    pack = Pack([2, 10], even(2, 6))
    before = sum(map(pack.get_rate, range(2)))
    pack.run()
    assert pack.count(1) == 10
    assert sum(map(pack.get_rate, range(2))) >= 1.25 * before


def test_cores_of_no_member_and_of_paused_ones_go_first() -> None:
    uses = [
        CoreUse(1, (0, 1), 0.2),
        CoreUse(2, (2, 3), 2.0, is_paused=True),
        CoreUse(3, (4, 5), 2.0, 0.6, 5.0),
    ]
    assert list_idle(uses, range(8), ()) == (6, 7, 2, 3, 1)
    assert list_idle(uses, range(8), (6, 3)) == (7, 2, 1)


def test_what_a_member_uses_is_unknown_is_not_lent() -> None:
    assert list_idle([CoreUse(1, (0, 1), None)], range(2), ()) == ()


def test_one_that_does_not_wait_or_has_idle_cores_gets_none() -> None:
    busy = CoreUse(1, (0, 1), 2.0, 0.05, 5.0)
    # Its two workers cannot use more.
    fixed = CoreUse(2, (2, 3, 4, 5), 2.0, 0.6, 5.0)
    unknown = CoreUse(3, (6,), 1.0, None, 5.0)
    assert choose_borrower([busy, fixed, unknown], {}, ()) is None
    short = CoreUse(4, (7,), 1.0, 0.3, 5.0)
    shorter = CoreUse(5, (8,), 0.9, 0.6, 5.0)
    assert choose_borrower([short, shorter], {}, ()) == shorter
    assert choose_borrower([short, shorter], {5: (9,)}, ()) == short
    assert choose_borrower([short, shorter], {}, {4, 5}) is None


def test_an_owner_that_uses_what_it_has_lent_gets_it_back() -> None:
    lender = CoreUse(1, (0, 1, 2, 3), 2.0)
    assert list_wanted_back([lender], {2: (2, 3)}) == set()
    for used, count in ((2.2, 0), (2.5, 2), (4.0, 2)):
        assert len(list_wanted_back([CoreUse(1, (0, 1, 2, 3), used)], {2: (2, 3)})) == count


def test_a_loan_stays_only_where_it_pays() -> None:
    before = {1: 10.0, 2: 10.0, 3: 10.0}
    assert compute_gain(1, before, {1: 15.0, 2: 10.0, 3: 9.9}) == 0.5
    assert compute_gain(1, before, {1: 10.2, 2: 10.0, 3: 10.0}) is None
    # What it gains is lost by the others.
    assert compute_gain(1, before, {1: 12.0, 2: 8.0, 3: 8.0}) is None
    assert compute_gain(1, before, {2: 10.0}) is None
    assert compute_gain(9, before, {9: 5.0}) is None


def advise(
    workers: int | None,
    used: float | None,
    waits: float | None,
    *,
    own: int = 10,
    idle: int = 0,
    is_refused: bool = False,
) -> int | None:
    use = CoreUse(1, tuple(range(own)), used, waits, 5.0, workers=workers)
    return advise_workers(use, (), range(100, 100 + idle), is_refused=is_refused)


def test_workers_are_advised_where_there_are_cores_that_they_cannot_use() -> None:
    assert advise(2, 2.1, 0.75) == 8
    # No more than cores, those that could be lent among them.
    assert advise(2, 2.1, 0.9) == 10
    assert advise(2, 2.1, 0.9, own=4, idle=3) == 7
    # What it loads itself it does not do while it trains: two load in 30 % of the time.
    assert advise(0, 1.0, 0.6) == 2
    assert advise(0, 1.0, 0.4) == 1
    # Its clock and the monitor's differ.
    assert advise(2, 2.1, 1.02) == 10


def test_workers_are_advised_once_lent_cores_have_not_helped() -> None:
    assert advise(2, 2.0, 0.75, own=2, idle=8) is None
    assert advise(2, 2.0, 0.75, own=2, idle=8, is_refused=True) == 8
    assert advise(2, 2.0, 0.75, own=2, idle=0, is_refused=True) is None


def test_no_workers_are_advised_where_they_would_not_help_or_nothing_is_known() -> None:
    assert advise(None, 2.1, 0.75) is None
    assert advise(2, None, 0.75) is None
    assert advise(2, 2.1, None) is None
    assert advise(2, 2.1, 0.05) is None, "it does not wait"
    assert advise(2, 0.4, 0.75) is None, "its workers wait for a disk"
    assert advise(2, 9.6, 0.75) is None, "its workers use all cores"
    assert advise(12, 10.0, 0.75) is None, "it has as many as cores"
    paused = CoreUse(1, tuple(range(10)), 2.1, 0.75, 5.0, is_paused=True, workers=2)
    assert advise_workers(paused, (), (), is_refused=False) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 8))
def test_no_core_is_lent_twice_and_no_owner_is_slower(
    needs: list[int], each: int, more: int
) -> None:
    pack = Pack(needs, even(len(needs), each))
    pack.cpus |= set(range(100, 100 + more))
    alone = [pack.get_rate(number) for number in range(len(needs))]
    pack.run()
    lent = [cpu for cpus in pack.loans.values() for cpu in cpus]
    assert len(lent) == len(set(lent))
    assert set(lent) <= pack.cpus
    for number, need in enumerate(needs):
        mine = set(pack.own[number])
        assert len(mine - set(lent)) >= min(need, each)
        assert not mine & set(pack.loans.get(number, ()))
        assert pack.get_rate(number) >= alone[number]
