"""Which cores of a pack's job lend themselves to which member; pure.

A member keeps the cores that it asked for. Cores that none uses are lent to one that is short of
them: all of its own are busy, and it waits for data. A loan is judged by what the pack's rates do
after it, and taken back where the member makes no more progress or the others less.

Source of the idea: A-Dloader (+28.9 % throughput, -10 % makespan against an even split).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass

EXCESS = 0.25
"""So much of the cores that it has lent an owner may use before all of them come back: who has
borrowed them leaves it half of each."""
BUSY_PART = 0.65
"""Of its cores, of one that is short of them: ten workers that take turns on six cores were seen to
keep 4.4 of them busy."""
WAIT_LEAST = 0.1
"""Of its time that it waits for data."""
GAIN_LEAST = 0.05
"""By so much a member must be faster with more cores."""
LOSS_MOST = 0.03
"""By so much the others together may be slower: noise of their rates."""


@dataclass(frozen=True)
class CoreUse:
    """What a running member does with its cores.

    Attributes:
        number: Its number.
        own: The CPUs that it asked for.
        used: How many it keeps busy, mean of the last seconds; None where unknown.
        wait_share: The part of its time that it waits for data; None where unknown.
        steps_per_s: Its rate; None where unknown.
        is_paused: Its processes are stopped.
        workers: Of its DataLoader; None where unknown.
    """

    number: int
    own: tuple[int, ...]
    used: float | None = None
    wait_share: float | None = None
    steps_per_s: float | None = None
    is_paused: bool = False
    workers: int | None = None


def list_idle(
    uses: Sequence[CoreUse], cpus: Collection[int], lent: Collection[int]
) -> tuple[int, ...]:
    """CPUs that can be lent: first those of no member, then of paused ones, then unused ones.

    Args:
        uses: All members that run.
        cpus: All CPUs of the job.
        lent: CPUs that are lent already.
    """
    owned = {cpu for use in uses for cpu in use.own}
    found = [cpu for cpu in sorted(cpus) if cpu not in owned and cpu not in lent]
    for use in sorted(uses, key=lambda use: not use.is_paused):
        if use.is_paused:
            free = len(use.own)
        elif use.used is None:
            continue
        else:
            free = math.floor(len(use.own) - use.used)
        mine = [cpu for cpu in use.own if cpu in lent]
        rest = [cpu for cpu in use.own if cpu not in lent]
        # The first CPUs stay, so that one that is bound to a socket keeps its neighbourhood.
        found += rest[len(rest) - max(0, free - len(mine)) :]
    return tuple(found)


def choose_borrower(
    uses: Sequence[CoreUse], loans: Mapping[int, Sequence[int]], refused: Collection[int]
) -> CoreUse | None:
    """The member that waits most for data with all of its cores busy; None where none does.

    Args:
        uses: All members that run.
        loans: CPUs that each has borrowed, by its number.
        refused: Members that more cores have not helped.
    """

    def is_short(use: CoreUse) -> bool:
        have = len(use.own) + len(loans.get(use.number, ()))
        return (
            use.number not in refused
            and not use.is_paused
            and bool(use.own and use.steps_per_s)
            and (use.used or 0.0) >= BUSY_PART * have
            and (use.wait_share or 0.0) >= WAIT_LEAST
        )

    return max(filter(is_short, uses), key=lambda use: use.wait_share or 0.0, default=None)


def choose_loan(use: CoreUse, borrowed: int, idle: Sequence[int]) -> tuple[int, ...]:
    """The CPUs that it gets now: at most as many as it has, so that little is lost by a mistake."""
    return tuple(idle[: len(use.own) + borrowed])


def list_wanted_back(uses: Sequence[CoreUse], loans: Mapping[int, Sequence[int]]) -> set[int]:
    """Lent CPUs that their owners need again.

    Args:
        uses: All members that run; `used` is what they use at this moment.
        loans: CPUs that each has borrowed, by its number.
    """
    lent = {cpu for cpus in loans.values() for cpu in cpus}
    wanted: set[int] = set()
    for use in uses:
        mine = [cpu for cpu in use.own if cpu in lent]
        used = 0.0 if use.is_paused else use.used or 0.0
        if mine and used > len(use.own) - len(mine) + EXCESS:
            wanted.update(mine)
    return wanted


def compute_gain(
    borrower: int, before: Mapping[int, float], after: Mapping[int, float]
) -> float | None:
    """By what part the borrower's rate rose, where the loan is to stay; None where not.

    Args:
        borrower: Its number.
        before: Steps per second of each member before the loan.
        after: The same afterwards; members that have gone since are left out.
    """
    if not before.get(borrower) or borrower not in after:
        return None
    gain = after[borrower] / before[borrower] - 1.0
    others = [after[n] / rate - 1.0 for n, rate in before.items() if n in after and n != borrower]
    loss = -math.fsum(others) / len(others) if others else 0.0
    # A loan that helps one by less than it costs all others makes the sum of progress smaller.
    is_worth = gain >= GAIN_LEAST and loss <= LOSS_MOST and gain > loss * len(others)
    return gain if is_worth else None


def advise_workers(
    use: CoreUse, borrowed: Sequence[int], idle: Sequence[int], *, is_refused: bool
) -> int | None:
    """Workers with which its DataLoader would use cores that it cannot use; None for no advice.

    Args:
        use: What it does with its cores.
        borrowed: CPUs that it has besides its own.
        idle: CPUs that could be lent.
        is_refused: More cores have not helped it.
    """
    if None in (use.workers, use.used, use.wait_share) or use.is_paused:
        return None
    workers, used, waits = use.workers or 0, use.used or 0.0, use.wait_share or 0.0
    have, cores = len(use.own) + len(borrowed), len({*use.own, *borrowed, *idle})
    # Workers that wait themselves, as for a disk, need no cores.
    if waits < WAIT_LEAST or used < BUSY_PART * max(1, workers):
        return None
    if used >= BUSY_PART * (cores if is_refused else have):
        return None
    # Workers load all the time; without them the program does, while it waits. They are to be as
    # fast as the rest of it.
    loads = workers or waits
    needed = math.ceil(loads / (1.0 - waits) - 1e-6) if waits < 1.0 else cores
    advised = min(needed, cores)
    return advised if advised > workers else None
