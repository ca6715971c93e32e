"""The links of a chain: submitting the next Slurm job, waiting for the turn, handing over.

Who: the user; where: the pack's first node. All links run the same pack: its directory, its
members and its batch script. `slurm_job_id` names the one link that may run; what the links have
done is in chain.json. What is due is judged in model/chain.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from slurm_colloc.errors import CollocError, SlurmError, SlurmNoAnswer, StateError
from slurm_colloc.model.chain import (
    HOLD_SHARE,
    ChainRecord,
    Lead,
    Link,
    LinkStep,
    Successor,
    Turn,
    choose_lead,
    choose_step,
    judge_turn,
    list_unrecorded,
)
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.model.quantities import parse_time_limit_s
from slurm_colloc.runtime.allocation import read_allocation
from slurm_colloc.runtime.collect_ends import EndCollector, SlurmDecision
from slurm_colloc.runtime.guarded_steps import Journal, insist
from slurm_colloc.runtime.member_dependencies import hand_over
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.stop_member import MemberControl
from slurm_colloc.runtime.verdict import PackVerdict
from slurm_colloc.settings import read_given_environment
from slurm_colloc.slurm.accounting import read_history
from slurm_colloc.slurm.run_command import QUERY_TIMEOUT_S
from slurm_colloc.slurm.slurm_commands import SlurmAccess, find_marked, parse_moment
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import hold_lock, is_there, write_atomic
from slurm_colloc.store.indexes import build_pack_id
from slurm_colloc.store.member_states import read_attempt, read_state
from slurm_colloc.store.pack_directory import (
    PackRecord,
    list_members,
    read_chain,
    read_own_pack,
    read_slurm_job_id,
    write_chain,
    write_ended,
)
from slurm_colloc.store.written_ends import forget_kill, list_kills

LOOK_S = 1.0
"""How often a link that holds its members back looks whether its turn has come."""

ASK_S = 15.0
"""How often Slurm is asked about another link."""

LEAD_S = 1800.0
"""How often it is asked again how long requests wait."""

TRIES = 3
"""How many successors are submitted that end before their turn, for whatever reason."""

SAVE_S, SAVE_SHARE = 30.0, 0.05
"""Before a link's end, and at most this part of its limit: members get their TERM. After it they
have KillWait, as at any time limit."""

LOCK_WAIT_S = 30.0


# ---- The turn of a link that has come up ---------------------------------------------------------


def await_turn(path: str) -> bool:
    """Hold the members of a pack back until this Slurm job may run them.

    Called before the guard and the runner are there, so that nothing of the pack is this job's yet.

    Args:
        path: The pack's directory.

    Returns:
        False where nothing is left for this job to do.
    """
    pack = Path(path)
    allocation = read_allocation(read_given_environment())
    record = insist("reading the pack", lambda: read_own_pack(pack))
    if record is None:
        # Told where all is read.
        return True
    os.environ.update(
        replace(allocation, called_in=dict(record.client_environment)).own_environment
    )
    wait = _TurnWait(pack, record, allocation.job_id, SlurmAccess())
    return insist("waiting for the turn", wait.wait)


class _TurnWait:
    def __init__(self, pack: Path, record: PackRecord, own: str, slurm: SlurmAccess) -> None:
        self._pack, self._record, self._own, self._slurm = pack, record, own, slurm
        self._up_at = time.time()
        self._ask_at = 0.0
        self._state: SlurmJobState | None = None

    def wait(self) -> bool:
        mark = name_mark(self._pack, self._own)
        while True:
            current = read_slurm_job_id(self._pack) or self._own
            turn = self._judge(current)
            if turn is Turn.HOLD:
                if not is_there(mark):
                    write_atomic(mark, b"")
                time.sleep(LOOK_S)
                continue
            if turn is Turn.RUN and not self._take_over(current):
                continue
            with contextlib.suppress(OSError):
                mark.unlink(missing_ok=True)
            if turn is Turn.LEAVE:
                Journal(self._pack).write("link_leaves", job=self._own)
            return turn is Turn.RUN

    def _judge(self, current: str) -> Turn:
        return judge_turn(
            read_links(self._pack),
            own=self._own,
            current=current,
            state=self._ask(current),
            has_open=has_open_members(self._pack),
        )

    def _ask(self, current: str) -> SlurmJobState | None:
        """What Slurm says of the link that runs; None where it gives no answer."""
        if current == self._own:
            return None
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at, self._state = now + ASK_S, None
            with contextlib.suppress(SlurmError):
                fields = self._slurm.read_job(current)
                self._state = SlurmJobState.parse((fields or {}).get("JobState", ""))
        return self._state

    def _take_over(self, current: str) -> bool:
        """Make this the link that runs; False where another has become it meanwhile."""
        with hold_lock(self._pack / "lock", LOCK_WAIT_S) as locked:
            if not locked or (read_slurm_job_id(self._pack) or self._own) != current:
                return False
            # What Slurm said some seconds ago may be over: a requeued job runs again.
            self._ask_at = 0.0
            if self._judge(current) is not Turn.RUN:
                return False
            chain, now = read_links(self._pack), time.time()
            place = chain.find(self._own)
            if place is None:
                # The one before it was killed before it could write down what it had submitted.
                submitted = self._record.created_at if not chain.links else None
                chain = replace(chain, links=(*chain.links, Link(self._own, submitted)))
                place = len(chain.links) - 1
            link = chain.links[place]
            if link.began_at is None:
                chain = chain.with_times(place, up_at=link.up_at or self._up_at, began_at=now)
                if place and chain.links[place - 1].ended_at is None:
                    ended_at = self._slurm.read_end_time(chain.links[place - 1].job_id)
                    chain = chain.with_times(place - 1, ended_at=ended_at)
            write_chain(self._pack, replace(chain, problem="", tries=0))
            for kill in list_kills(self._pack) if current != self._own else ():
                # Of another job's start.
                forget_kill(self._pack, kill.restarts)
            state = State(self._pack.parent.parent, self._record.cluster)
            state.pass_on(self._record, self._own)
        with contextlib.suppress(SlurmError):
            # What was submitted twice would hold an allocation for nothing.
            if others := find_unrecorded(self._slurm, self._record, chain):
                self._slurm.cancel(*others)
        return True


def read_links(pack: Path) -> ChainRecord:
    """Read chain.json; what is damaged is moved away, and said: a training is not lost by it.

    Raises:
        StateError: It cannot be read now.
    """
    try:
        return read_chain(pack)
    except StateError as problem:
        if problem.__cause__ is None or isinstance(problem.__cause__, OSError):
            raise
        os.replace(pack / "chain.json", pack / "chain.damaged")
        told = f"{problem.message}; it is chain.damaged now, and links before this one do not count"
        sys.stderr.write(f"csub: {told}\n")
        Journal(pack).write("chain", problem=told)
        return ChainRecord()


def find_unrecorded(slurm: SlurmAccess, record: PackRecord, chain: ChainRecord) -> list[str]:
    """Ask Slurm for jobs of a pack that are no link of it yet, oldest first.

    Raises:
        SlurmError: Slurm did not answer.
    """
    marked = find_marked(slurm.list_jobs(), record.submission, record.array_index)
    return list_unrecorded(chain, marked)


def has_open_members(pack: Path) -> bool:
    """Whether a member of a pack has not ended for good."""
    attempt = read_attempt(pack)
    for number in list_members(pack):
        record = read_state(pack, number, attempt)
        if not (record is not None and record.is_final) and not is_there(
            pack / "members" / inbox.format_number(number) / "cancelled"
        ):
            return True
    return False


def name_mark(pack: Path, job_id: str) -> Path:
    """The file that says that a link has come up and waits for its turn."""
    return pack / f"up.{job_id}"


# ---- What the running link does ------------------------------------------------------------------

_TEST_START = late_pattern(r"to start at (\S+)")
_LEFT_OUT = ("array", "dependency", "begin", "output", "error", "open-mode")


@dataclass(eq=False, kw_only=True)
class ChainLinks:
    """Submits the successor of the running link in time, and hands over to it.

    Attributes:
        pack: The attempt of the pack.
        control: Ends its members.
        decision: Is told once this link ends.
    """

    pack: PackContext
    control: MemberControl
    decision: SlurmDecision

    def __post_init__(self) -> None:
        self._has_asked = self._is_signalled = False
        self._chain = ChainRecord()
        self._place = 0
        if self.pack.record.chain:
            self._chain = read_links(self.pack.path)
            self._place = self._chain.find(self.pack.allocation.job_id) or 0
        self._ask_at = self._lead_at = self._submit_at = 0.0
        self._end_at: float | None = None
        self._limit_s: float | None = None
        self._lead = Lead(0.0, "")
        self._successor = Successor.NONE
        self._unanswered = ""

    @property
    def goes_on(self) -> bool:
        """There may be a link after this one."""
        return self._place + 1 < self.pack.record.chain and not self._chain.ended

    @property
    def is_saving(self) -> bool:
        """Its members were asked to save and to end; they go on in the next link."""
        return self._has_asked or self._is_signalled

    def note_signal(self, number: int) -> None:
        """Slurm has sent a batch script its `--signal`, up to a minute early (sbatch(1))."""
        signals = (member.spec.job.signal for member in self.pack.members.by_number.values())
        if self.goes_on and any(signal and signal.number == number for signal in signals):
            self._is_signalled = True

    def work(self) -> None:
        """Do what is due; to be called again and again."""
        slurm = self.pack.slurm
        if slurm is None or not self.goes_on or self._has_asked:
            return
        self._look(slurm)
        if self._end_at is None or self._limit_s is None or not self.goes_on:
            return
        left_s = self._end_at - time.time()
        step = choose_step(
            left_s=left_s,
            lead_s=self._lead.seconds,
            save_s=self._save_s,
            hold_s=HOLD_SHARE * self._limit_s,
            successor=self._successor,
        )
        if step is LinkStep.SUBMIT and self.pack.clock() >= self._submit_at:
            self._submit(slurm)
        elif step is LinkStep.SAVE or self._is_signalled:
            self._save(left_s)

    def conclude(self, ends: EndCollector) -> None:
        """Once all members that were to save have ended, this link does, too."""
        if not self.is_saving or self.decision.ending is not None:
            return
        if not self.pack.members.with_process() and not ends.undecided:
            self._chain = self._chain.with_times(self._place, ended_at=time.time())
            self.decision.ending = PackVerdict(False, None, "the next link goes on")
            self.pack.journal.write("ending", reason=self.decision.ending.reason)

    def finish(self, *, is_over: bool) -> None:
        """Hand over to the next link; the last that the runner does with the pack.

        Args:
            is_over: No member is to run again.
        """
        slurm, ending, own = self.pack.slurm, self.decision.ending, self.pack.allocation.job_id
        if slurm is None or not self.pack.record.chain:
            return
        if self._chain.links[self._place].ended_at is None:
            self._chain = self._chain.with_times(self._place, ended_at=time.time())
        self._write(self._chain)
        link = self._chain.find_successor(own)
        if is_over:
            if link is not None:
                slurm.cancel(link.job_id)
            if others := find_unrecorded(slurm, self.pack.record, self._chain):
                slurm.cancel(*others)
            return
        # Slurm may have been quicker than this runner.
        is_timeout = ending is not None and ending.state is MemberState.TIMEOUT
        if not self.goes_on or not (self.is_saving or is_timeout):
            return
        if link is None and self._submit(slurm):
            link = self._chain.find_successor(own)
        if link is None:
            self._requeue(slurm)
            return
        hand_over(self.pack, slurm, link.job_id)
        # Where the lock is not to be had, the successor finds by itself that it may go on.
        with hold_lock(self.pack.path / "lock", LOCK_WAIT_S) as locked:
            if locked:
                self.pack.state.pass_on(self.pack.record, link.job_id)

    # -- looking ------------------------------------------------------------------------------

    @property
    def _signal_s(self) -> float:
        signals = (member.spec.job.signal for member in self.pack.members.list_members())
        return max((signal.seconds_before_end for signal in signals if signal), default=0)

    @property
    def _save_s(self) -> float:
        """So long before Slurm's end members begin to save."""
        return self._signal_s + self._term_s

    @property
    def _term_s(self) -> float:
        return min(SAVE_S, SAVE_SHARE * (self._limit_s or 0.0))

    def _look(self, slurm: SlurmAccess) -> None:
        now = self.pack.clock()
        link = self._chain.find_successor(self.pack.allocation.job_id)
        if link is not None and self._successor is not Successor.HOLDS:
            is_up = is_there(name_mark(self.pack.path, link.job_id))
            self._successor = Successor.HOLDS if is_up else Successor.WAITS
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_S
        try:
            fields = slurm.read_job(self.pack.allocation.job_id) or {}
            self._end_at = parse_moment(fields.get("EndTime", ""))
            with contextlib.suppress(ValueError):
                self._limit_s = parse_time_limit_s(fields.get("TimeLimit", ""))
            if self._limit_s is not None and now >= self._lead_at:
                self._lead_at = now + LEAD_S
                self._lead = self._find_lead(slurm, fields, self._limit_s)
            if link is not None:
                self._judge_successor(link, slurm.read_job(link.job_id))
        except SlurmError as error:
            self._unanswered = f"Slurm did not answer: {error.message}"
            self._tell_problem(self._unanswered)
        else:
            if self._chain.problem == self._unanswered:
                self._tell_problem("")

    def _judge_successor(self, link: Link, fields: dict[str, str] | None) -> None:
        state = SlurmJobState.parse((fields or {}).get("JobState", ""))
        if state in (SlurmJobState.PENDING, SlurmJobState.RUNNING, SlurmJobState.SUSPENDED):
            return
        with contextlib.suppress(OSError):
            name_mark(self.pack.path, link.job_id).unlink(missing_ok=True)
        if state is SlurmJobState.COMPLETING:
            # How it ended Slurm tells once its processes are gone.
            self._successor = Successor.WAITS
            return
        self._successor = Successor.CANCELLED
        if state is SlurmJobState.CANCELLED:
            self._write(replace(self._chain, ended=f"its successor {link.job_id} was cancelled"))
            return
        lost = f"its successor {link.job_id} ended before its turn ({state})"
        links = self._chain.links[: self._place + 1]
        tries = self._chain.tries + 1
        ended = f"{lost}, as {tries - 1} before it" if tries >= TRIES else ""
        self._successor = Successor.NONE
        self._write(ChainRecord(links, problem=lost, ended=ended, tries=tries))

    def _find_lead(self, slurm: SlurmAccess, fields: dict[str, str], limit_s: float) -> Lead:
        partition, qos = fields.get("Partition"), fields.get("QOS", "")
        own, _ = read_history(partition, own=True, qos="" if qos in ("(null)", "N/A") else qos)
        site, _ = read_history(partition)
        estimate_s = None
        with contextlib.suppress(CollocError, OSError):
            script, words, environment = self._build_request()
            told = slurm.check(
                script, words, environment=environment, directory=self.pack.record.submit_directory
            )
            if found := _TEST_START.search(told):
                at = parse_moment(found[1])
                estimate_s = None if at is None else max(0.0, at - time.time())
        gpus = max(1, len(self.pack.allocation.gpus))
        lead = choose_lead(own, site, estimate_s, gpus=gpus, limit_s=limit_s)
        self.pack.journal.write("lead", seconds=round(lead.seconds), reason=lead.why)
        return lead

    # -- acting -------------------------------------------------------------------------------

    def _build_request(self) -> tuple[str, list[str], dict[str, str]]:
        """The batch script, the options and the environment of a further link: as of the first."""
        record = self.pack.record
        words = [
            word for word in record.slurm_options
            if word.removeprefix("--").partition("=")[0] not in _LEFT_OUT
        ]  # fmt: skip
        if record.is_array:
            words.append(f"--array={record.index}")
        # Where this link's own output goes, that of the next one follows.
        for name, descriptor in (("output", 1), ("error", 2)):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith("/") and os.path.isfile(target):
                words.append(f"--{name}={target.replace('%', '%%')}")
        words.append("--open-mode=append")
        first = build_pack_id(record.submission, record.indices[0])
        script = self.pack.state.pack_path(first) / f"{record.submission}.sh"
        return str(script), words, dict(record.client_environment)

    def _submit(self, slurm: SlurmAccess) -> bool:
        self._submit_at = self.pack.clock() + 4 * ASK_S
        try:
            if not self._find_successor(slurm):
                self._ask_sbatch(slurm)
        except (CollocError, OSError) as error:
            self._tell_problem(f"its successor could not be submitted: {error}")
            return False
        return True

    def _ask_sbatch(self, slurm: SlurmAccess) -> None:
        script, words, environment = self._build_request()
        directory, index = self.pack.record.submit_directory, self.pack.record.array_index
        try:
            job_id = slurm.submit(
                script,
                words,
                environment=environment,
                directory=directory,
                # The runner waits no longer for this than for other answers.
                timeout_s=QUERY_TIMEOUT_S,
            )
        except SlurmNoAnswer:
            if not self._find_successor(slurm):
                raise
            return
        name = job_id if index is None else f"{job_id}_{index}"
        self._add(Link(name, time.time(), self._lead.seconds, self._lead.why))

    def _find_successor(self, slurm: SlurmAccess) -> bool:
        """Find again what was submitted, but not written down; there is one successor."""
        found = find_unrecorded(slurm, self.pack.record, self._chain)
        if not found:
            return False
        self._add(Link(found[0], why="found by its comment"))
        if found[1:]:
            slurm.cancel(*found[1:])
        return True

    def _add(self, link: Link) -> None:
        self._write(replace(self._chain, links=(*self._chain.links, link), problem=""))
        self._successor = Successor.WAITS
        self.pack.journal.write("successor", job=link.job_id, reason=link.why)

    def _save(self, left_s: float) -> None:
        """Have the members save, as at a time limit: `--signal` now, TERM after it."""
        self._has_asked = True
        self.pack.journal.write("saves", left_s=round(left_s), successor=self._successor.value)
        is_at_end = left_s <= self._save_s or self._is_signalled
        now = self.pack.clock()
        for member in self.pack.members.with_process():
            request = member.spec.job.signal
            member.deadline = now
            if request is None:
                continue
            notice_s = left_s - self._term_s if is_at_end else request.seconds_before_end
            member.deadline = now + max(0.0, notice_s)
            # At the end of a batch script's job Slurm itself sends it.
            if not (is_at_end and self.pack.is_lone):
                member.signal_at = now

    def _requeue(self, slurm: SlurmAccess) -> None:
        """No second job is taken, as under MaxSubmitJobs: this one goes back into the queue."""
        own, before = self.pack.allocation.job_id, self._chain
        again = Link(own, time.time(), why=f"this job was requeued: {before.problem}")
        self._write(replace(before, links=(*before.links, again)))
        try:
            slurm.requeue_running(own)
        except SlurmError as error:
            self._write(before)
            self._tell_problem(f"{before.problem}; nor could it be requeued: {error.message}")
            write_ended(self.pack.path, SlurmJobState.TIMEOUT)

    def _tell_problem(self, problem: str) -> None:
        if problem != self._chain.problem:
            self.pack.journal.write("chain", problem=problem)
            self._write(replace(self._chain, problem=problem))

    def _write(self, chain: ChainRecord) -> None:
        self._chain = chain
        write_chain(self.pack.path, chain)
