"""A chain: one training over several Slurm jobs, its links; what is due in each of them; pure.

The runner of a link submits the next one while it runs, without a dependency. The next one, its
successor, holds its members back until it may take over. Rules after Mirage (arXiv 2306.14086).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.plan import PastJob, choose_bucket, find_quantile
from slurm_colloc.model.quantities import format_elapsed, format_moment

LINKS_MOST = 100
"""Links of a chain whose user gives no number."""

QUANTILE = 0.8
"""Of recent waits: so many of the successors are there in time, if waits stay as they were."""

LEAST_WAITS = 5
"""Fewer waits of jobs of the same size make no estimate."""

RECENT = 50
"""So many of the newest waits count."""

UNKNOWN_SHARE = 0.1
"""Of a link's limit: its lead where nothing tells how long requests wait."""

LEAD_SHARE = 0.9
"""Of a link's limit: no lead is longer, so that a successor that starts at once finds work done."""

HOLD_SHARE = 0.02
"""Of a link's limit: a successor holds its allocation unused for so long, at most, before its
predecessor is asked to save and to end."""


# ---- What is written down (chain.json) -----------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """One Slurm job of a chain; times in seconds since the epoch, None where not known.

    Attributes:
        job_id: What Slurm calls it, `4711` or `4711_2`.
        submitted_at: When it was submitted.
        lead_s: How long before the end of its predecessor that was to be, in seconds; None for
            the first.
        why: Why then, in words.
        up_at: When its runner came up.
        began_at: When it started members: not before its predecessor's had ended.
        ended_at: When its members had ended.
    """

    job_id: str
    submitted_at: float | None = None
    lead_s: float | None = None
    why: str = ""
    up_at: float | None = None
    began_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True)
class ChainRecord:
    """The links of a pack (chain.json), which the running link's runner alone writes.

    Attributes:
        links: In their order; the last may wait for its turn.
        problem: Why there is no successor, in words; empty where there is one or none is due.
        ended: Why the chain ends with the newest link; empty while it may go on.
        tries: How many successors of the running link have ended before their turn.
    """

    links: tuple[Link, ...] = ()
    problem: str = ""
    ended: str = ""
    tries: int = 0

    def find(self, job_id: str) -> int | None:
        """The newest link of a Slurm job, from 0; None where it has none."""
        places = [place for place, link in enumerate(self.links) if link.job_id == job_id]
        return places[-1] if places else None

    def with_times(
        self,
        place: int,
        *,
        up_at: float | None = None,
        began_at: float | None = None,
        ended_at: float | None = None,
    ) -> ChainRecord:
        """The same with times of one link that are known now."""
        link = self.links[place]
        changed = replace(
            link,
            up_at=link.up_at if up_at is None else up_at,
            began_at=link.began_at if began_at is None else began_at,
            ended_at=link.ended_at if ended_at is None else ended_at,
        )
        return replace(self, links=(*self.links[:place], changed, *self.links[place + 1 :]))

    def find_successor(self, job_id: str) -> Link | None:
        """The link behind that of a Slurm job; None where there is none yet."""
        place = self.find(job_id)
        behind = self.links[place + 1 :] if place is not None else ()
        return behind[0] if behind else None


@dataclass(frozen=True)
class Handover:
    """What it cost to go from one link to the next, in seconds; None where it is not known.

    Attributes:
        waited_s: From the successor's submission until it came up.
        interruption_s: From the end of the predecessor's members to the start of the successor's.
        overlap_s: For how long the successor held its allocation until its turn.
    """

    waited_s: float | None
    interruption_s: float | None
    overlap_s: float | None


def compute_handovers(record: ChainRecord) -> list[Handover]:
    """Those between links that have begun, in their order."""
    begun = [link for link in record.links if link.began_at is not None]
    found = []
    for before, link in itertools.pairwise(begun):
        found.append(
            Handover(
                _count(link.submitted_at, link.up_at),
                _count(before.ended_at, link.began_at),
                _count(link.up_at, link.began_at),
            )
        )
    return found


def sum_known(values: Iterable[float | None]) -> float | None:
    """Their sum; None where one is not known."""
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _count(since: float | None, until: float | None) -> float | None:
    # The clocks of two nodes may differ.
    return None if since is None or until is None else max(0.0, until - since)


# ---- How much ahead of a link's end its successor is submitted -----------------------------------


@dataclass(frozen=True)
class Lead:
    """How much ahead of the end of a link its successor is submitted.

    Attributes:
        seconds: So much.
        why: In words.
    """

    seconds: float
    why: str


def choose_lead(
    own: Sequence[PastJob],
    site: Sequence[PastJob],
    estimate_s: float | None,
    *,
    gpus: int,
    limit_s: float,
) -> Lead:
    """Choose it by how long such requests have waited lately.

    Args:
        own: The user's own jobs of that partition and QoS, oldest first.
        site: Those of all users in that partition, where they may be read.
        estimate_s: Slurm's own estimate of the wait; None where it gives none.
        gpus: GPUs that a link asks for.
        limit_s: Its time limit.
    """
    waits, of = _choose_waits(own, site, gpus, limit_s)
    if waits:
        lead_s = find_quantile(waits, QUANTILE)
        why = f"{100 * QUANTILE:g} % of {of} waited at most {format_elapsed(int(lead_s))}"
    else:
        lead_s = UNKNOWN_SHARE * limit_s if estimate_s is None else 0.0
        why = f"how long such jobs wait is not known: {100 * UNKNOWN_SHARE:g} % of the time limit"
    if estimate_s is not None and estimate_s >= lead_s:
        lead_s, why = estimate_s, f"Slurm expects a wait of {format_elapsed(int(estimate_s))}"
    # Slurm starts no job at once, and a successor may hold back for as long.
    lead_s = max(lead_s, HOLD_SHARE * limit_s)
    if lead_s > LEAD_SHARE * limit_s:
        lead_s = LEAD_SHARE * limit_s
        why += ", which is more than the time limit leaves"
    return Lead(lead_s, why)


def _choose_waits(
    own: Sequence[PastJob], site: Sequence[PastJob], gpus: int, limit_s: float
) -> tuple[list[float], str]:
    bucket = choose_bucket(int(limit_s))
    for jobs, whose in ((own, "your last"), (site, "the partition's last")):
        alike = [
            job.wait_s
            for job in jobs
            if job.gpus == gpus and choose_bucket(job.time_limit_s) == bucket
        ][-RECENT:]
        if len(alike) >= LEAST_WAITS:
            return alike, f"{whose} {len(alike)} such jobs"
    return [], ""


# ---- What is due ---------------------------------------------------------------------------------


class Successor(enum.Enum):
    """The next link, as the running one sees it."""

    NONE = "not submitted"
    WAITS = "waits in the queue"
    HOLDS = "has an allocation, and holds its members back"
    CANCELLED = "was cancelled"


_IS_THERE = frozenset({SlurmJobState.PENDING, SlurmJobState.RUNNING, SlurmJobState.SUSPENDED})


def list_unrecorded(record: ChainRecord, marked: Mapping[str, SlurmJobState]) -> list[str]:
    """The Slurm jobs of a chain that are no link of it yet, oldest first.

    There is one where sbatch gave no answer, or where a runner was killed before it had written
    down what it had submitted.

    Args:
        record: The links.
        marked: What squeue shows of jobs with the pack's comment.
    """
    found = [name for name, state in marked.items() if state in _IS_THERE]
    return sorted((n for n in found if record.find(n) is None), key=lambda name: (len(name), name))


class LinkStep(enum.Enum):
    """What is due in the running link."""

    NOTHING = "nothing"
    SUBMIT = "submit the successor"
    SAVE = "have the members save and end"


def choose_step(
    *, left_s: float, lead_s: float, save_s: float, hold_s: float, successor: Successor
) -> LinkStep:
    """What is due in a running link that is not the last.

    A successor that comes early takes over at once: its members lose nothing by it, and waiting
    would only keep a second allocation. What would end within `hold_s` anyway is left to end.

    Args:
        left_s: Until Slurm ends the link.
        lead_s: How much ahead of the end the successor is to be submitted.
        save_s: How long members take to save and to end.
        hold_s: How long a successor may hold its allocation unused.
        successor: The next link.
    """
    if left_s <= save_s:
        return LinkStep.SAVE
    if successor is Successor.HOLDS and left_s > save_s + hold_s:
        return LinkStep.SAVE
    if successor is Successor.NONE and left_s <= save_s + lead_s:
        return LinkStep.SUBMIT
    return LinkStep.NOTHING


class Turn(enum.Enum):
    """What a link does whose runner has come up."""

    HOLD = "it holds its members back"
    RUN = "it is its turn"
    LEAVE = "nothing is left for it"


_MAY_COME_BACK = frozenset(
    {SlurmJobState.RUNNING, SlurmJobState.COMPLETING, SlurmJobState.SUSPENDED}
)


def judge_turn(
    record: ChainRecord,
    *,
    own: str,
    current: str,
    state: SlurmJobState | None,
    has_open: bool,
) -> Turn:
    """Judge a link's turn, also that of one which Slurm has started again.

    Args:
        record: The links.
        own: Its Slurm job.
        current: The Slurm job that the pack's state names as its own: the only one that may run.
        state: What Slurm says of that job; ABSENT where Slurm does not know it any more, None
            where it gave no answer.
        has_open: A member has not ended for good.
    """
    if not has_open:
        return Turn.LEAVE
    if own == current:
        return Turn.RUN
    at, now_at = record.find(own), record.find(current)
    if at is not None and now_at is not None and at < now_at:
        # Requeued by Slurm after its turn.
        return Turn.LEAVE
    if state is None or state in _MAY_COME_BACK:
        return Turn.HOLD
    return Turn.LEAVE if state is SlurmJobState.CANCELLED else Turn.RUN


def describe_chain(record: ChainRecord, current: str, most: int) -> str:
    """Which link runs or waits, and what is known of the next one.

    Args:
        record: The links.
        current: The Slurm job that the pack's state names as its own.
        most: Of how many links the chain is made at most.
    """
    place = record.find(current) or 0
    link, told = record.links[place] if record.links else Link(current), []
    told.append(f"link {place + 1} of at most {most}")
    if place and link.submitted_at is not None:
        told[0] += f" (job {link.job_id}, {_describe_submission(link)})"
    successor = record.find_successor(current)
    if successor is not None:
        told.append(f"its successor {successor.job_id} was {_describe_submission(successor)}")
    told += [text for text in (record.problem, record.ended) if text]
    return "; ".join(told)


def _describe_submission(link: Link) -> str:
    when = "" if link.submitted_at is None else f" at {format_moment(link.submitted_at)[11:16]}"
    ahead = "" if link.lead_s is None else f", {format_elapsed(int(link.lead_s))} ahead"
    return f"submitted{when}{ahead}{f': {link.why}' if link.why else ''}"
