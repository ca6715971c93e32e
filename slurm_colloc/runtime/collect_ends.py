"""Members whose processes have ended: the verdict, which may have to wait for Slurm's decision.

Also: the end of one start of a member, from top to bottom; what becomes of a pack after a signal
that its runner did not send.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from functools import partial
from typing import TYPE_CHECKING

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import EndCause, MemberState
from slurm_colloc.runtime.blame import Blame, BlameFinder
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pause_members import MemberPauser
from slurm_colloc.runtime.start_member import MemberStarter, StartCollector
from slurm_colloc.runtime.stop_member import (
    LOG_LIMIT,
    InnerSteps,
    clean,
    ends_before_its_srun,
    outlives_its_srun,
    read_exit,
    read_log,
)
from slurm_colloc.runtime.verdict import (
    PackVerdict,
    StopReason,
    Verdict,
    judge_pack,
    judge_process_end,
    read_kill_reason,
)
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.slurm.slurm_commands import SlurmAccess

if TYPE_CHECKING:
    from slurm_colloc.runtime.chain_links import ChainLinks

# ---- The end of one start of a member, from top to bottom ----------------------------------------
#
# collect_ends has judged how its processes ended. Here follow: whose fault it was, what that means
# for its neighbours, its place, its state, and with the state the mails. The jobs that wait for the
# member are let go in the same turn of the runner (member_dependencies).


GOES_ON = "it was asked to save, and goes on in the next link of its chain"


@dataclass(eq=False, kw_only=True)
class MemberEnds:
    """Does all that the end of a member calls for.

    Attributes:
        pack: The attempt of the pack.
        blame_finder: Says whose fault an end was.
        states: Writes states; the mails hear of each.
        pauser: Forgets members that have ended.
        chain: Whether what ends now was asked to save, and goes on in the next link; None for no
            chain.
    """

    pack: PackContext
    blame_finder: BlameFinder
    states: StateWriter
    pauser: MemberPauser
    chain: ChainLinks | None = None

    def end(self, member: Member, verdict: Verdict) -> None:
        """Everything from a verdict on, in this order.

        Args:
            member: The member; its processes have ended, or it could not be started.
            verdict: How they ended, with a state.
        """
        is_saving = self.chain is not None and self.chain.is_saving
        if is_saving and member.asked is not StopReason.CANCEL:
            # Also with status 0: many programs end so once they have saved.
            verdict = replace(verdict, state=MemberState.PENDING, reason=GOES_ON)
        self.blame_finder.listen(member, verdict)
        blame = self.blame_finder.find(member, verdict)
        self.blame_finder.publish(member, blame)
        blame = _try_again(member, blame)
        if blame.verdict.state is MemberState.PENDING and member.asked is StopReason.CANCEL:
            # Whatever would have it run again: it is not wanted any more.
            verdict = replace(
                blame.verdict, state=MemberState.CANCELLED, reason=StopReason.CANCEL.value
            )
            blame = replace(blame, verdict=verdict, cause=EndCause.CANCELLED)
        self.free(member)
        if blame.verdict.state is MemberState.PENDING:
            self._wait_again(member, blame)
        else:
            self._end_for_good(member, blame)

    def end_unjudged(self, member: Member, reason: str) -> None:
        """End a member of which nothing can be found out but that its processes have ended.

        Args:
            member: The member.
            reason: Why, for people.
        """
        self.free(member)
        self.states.write_end(member, MemberState.FAILED, None, reason)
        self.pack.journal.write("member_end", member=member.number, state="FAILED", reason=reason)

    def free(self, member: Member) -> None:
        """Forget a member's process and what was asked of it, and free its place."""
        member.forget_start()
        self.pauser.forget(member)
        self.pack.members.vacate(member.number)
        clean(member)

    def _wait_again(self, member: Member, blame: Blame) -> None:
        reason = blame.verdict.reason
        self.states.write(
            member, MemberState.PENDING, reason=reason, exit_code=None, **_tell(member, blame)
        )
        if blame.cause is None:
            self.pack.members.waiting.append(member.number)
        else:
            # It has lost its turn; one that has had none yet is submitted again, if time runs out.
            self.pack.members.waiting.appendleft(member.number)
        self.pack.journal.write("requeue", member=member.number, reason=reason)

    def _end_for_good(self, member: Member, blame: Blame) -> None:
        verdict, told = blame.verdict, _tell(member, blame)
        assert verdict.state is not None
        self.states.write_end(
            member,
            verdict.state,
            verdict.exit_code,
            verdict.reason,
            ended_at=verdict.ended_at,
            **told,
        )
        self.pack.journal.write(
            "member_end",
            member=member.number,
            state=verdict.state,
            exit=verdict.exit_code,
            cause=told["cause"],
        )


def _try_again(member: Member, blame: Blame) -> Blame:
    """The same, but it runs again where it failed by itself and has retries left (`--retries`)."""
    verdict, retries = blame.verdict, blame.retries
    most = member.spec.job.retries
    is_own = not (verdict.never_started or verdict.without_script or blame.is_culprit)
    if verdict.state is not MemberState.FAILED or not is_own or retries.failures >= most:
        return blame
    tries = retries.failures + 1
    reason = f"{verdict.reason or 'it failed'}; it runs again, retry {tries} of {most}"
    return replace(
        blame,
        verdict=replace(verdict, state=MemberState.PENDING, reason=reason),
        retries=replace(retries, failures=tries),
    )


def _tell(member: Member, blame: Blame) -> dict[str, object]:
    """What its state says of an end besides the verdict."""
    return {
        "cause": blame.cause.value if blame.cause else "",
        # What an earlier start has shown counts as well.
        "evidence": tuple(dict.fromkeys((*member.record.evidence, *blame.evidence))),
        "retries": blame.retries,
        "gpu": member.gpu,
    }


# ---- What becomes of a pack after a signal that its runner did not send --------------------------
#
# Preemption, scancel and time limits reach the steps first. Until Slurm shows that the pack goes
# on, nothing is started, and how the signalled members ended is not decided.

ASK_INTERVAL_S = 1.0
"""How often Slurm is asked, while that is undecided."""

TERM_SETTLES_S = 2.0
"""A TERM to the batch script itself is that of an ending job, unless Slurm shows the job running
so long after it: slurmctld changes the job's state before it signals."""


@dataclass(eq=False, kw_only=True)
class SlurmDecision:
    """Follows what Slurm says of the pack's job.

    Attributes:
        pack: The attempt of the pack.
        slurm_log: Descriptor of the file to which slurmstepd writes.
    """

    pack: PackContext
    slurm_log: int = 2

    def __post_init__(self) -> None:
        self._log_offset = os.fstat(self.slurm_log).st_size
        self._kill_reason = ""
        self._ask_at = 0.0
        self._terminated_at: float | None = None
        self._is_open = False
        self.ending: PackVerdict | None = None

    @property
    def is_undecided(self) -> bool:
        """Something foreign has happened, and Slurm has not shown what it means."""
        return self.ending is None and (self._is_open or self._terminated_at is not None)

    @property
    def was_terminated(self) -> bool:
        """The batch script itself was sent TERM."""
        return self._terminated_at is not None

    def terminate(self) -> None:
        """Note a TERM to the batch script; called from a signal handler."""
        self._terminated_at = time.monotonic()

    def open(self, kill_reason: str, *, ask_in_s: float = 0.0) -> None:
        """Note that something foreign ended or signalled a member.

        Args:
            kill_reason: What slurmstepd said of it, if anything.
            ask_in_s: When to ask Slurm first, where it would know no more now.
        """
        if not self._is_open:
            self._is_open = True
            self._ask_at = time.monotonic() + ask_in_s
            self.pack.journal.write("foreign_signal", reason=kill_reason)
        self._kill_reason = kill_reason or self._kill_reason

    def follow(self) -> bool:
        """Ask Slurm, if it is time to; True if the pack turns out to go on."""
        if not self.is_undecided:
            return False
        if not self._is_open:
            self.open("")
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + ASK_INTERVAL_S
        if self.pack.slurm is None:
            self.ending = PackVerdict(False, MemberState.CANCELLED, "the pack was cancelled")
            return False
        verdict = self._ask(self.pack.slurm)
        if verdict is None:
            return False
        if not verdict.goes_on:
            self.ending = verdict
            self.pack.journal.write("ending", reason=verdict.reason)
            return False
        if self._terminated_at is not None and now - self._terminated_at < TERM_SETTLES_S:
            return False
        self._is_open = False
        self._terminated_at = None
        self._kill_reason = ""
        return True

    def settle(self) -> PackVerdict | None:
        """The last word that can be had here, once every member has ended."""
        if self.ending is not None and self.ending.state is None and self.pack.slurm is not None:
            # While Slurm shows COMPLETING, only what slurmstepd wrote tells why.
            self._kill_reason = self._kill_reason or read_kill_reason(self._read_own_log())
            self.ending = self._ask(self.pack.slurm) or self.ending
        return self.ending

    def _ask(self, slurm: SlurmAccess) -> PackVerdict | None:
        fields = None
        with contextlib.suppress(SlurmError):
            fields = slurm.read_job(self.pack.allocation.job_id)
        return judge_pack(
            fields, self.pack.allocation.restarts, self._kill_reason, is_lone=self.pack.is_lone
        )

    def _read_own_log(self) -> str:
        """What was written to the batch script's standard error since this attempt began."""
        with contextlib.suppress(OSError):
            status = os.fstat(self.slurm_log)
            if stat.S_ISREG(status.st_mode):
                with open(f"/proc/self/fd/{self.slurm_log}", "rb") as file:
                    file.seek(max(self._log_offset, status.st_size - LOG_LIMIT))
                    return file.read().decode("utf-8", "replace")
        return ""


# ----
# Members whose processes have ended: the verdict, which may have to wait for Slurm's decision.

SRUN_GRACE_S = 10.0
"""How long an srun may still run once the wrapper has written how its member ended. On 26.05 it
waits until slurmctld has noted the end of the step: minutes, where slurmctld is away."""


@dataclass(eq=False, kw_only=True)
class EndCollector:
    """Collects the ends of members' processes.

    Attributes:
        pack: The attempt of the pack.
        starts: Notes starts that were not seen before the end.
        starter: Does without job steps where they do not work.
        inner_steps: The steps that members' own scripts have started.
        slurm_decision: Is told of what the runner did not do itself.
        ends: Does all that an end calls for.

        undecided: Verdicts that wait for Slurm's decision about the pack, by member number.
    """

    pack: PackContext
    starts: StartCollector
    starter: MemberStarter
    inner_steps: InnerSteps
    slurm_decision: SlurmDecision
    ends: MemberEnds

    def __post_init__(self) -> None:
        self._decided: set[int] = set()
        self.undecided: dict[int, Verdict] = {}

    def collect(self) -> None:
        """Judge the members whose processes have ended."""
        for member in self.pack.members.with_process():
            self.pack.steps.run(
                f"the end of member {member.number}",
                partial(self._look_at, member),
                partial(self._end_unjudged, member),
            )
        self._end_decided()

    def _look_at(self, member: Member) -> None:
        assert member.process is not None
        status = member.process.poll()
        if status is None:
            if not self._has_left_its_srun(member):
                return
            self.pack.journal.write("srun_left", member=member.number)
            # The record of the end says all; subprocess itself collects the srun later.
            status = 0
        self.starts.note(member)
        if outlives_its_srun(member):
            if not member.is_orphan:
                member.is_orphan = True
                self.pack.journal.write("srun_lost", member=member.number, status=status)
            return
        self._judge(member, status)

    def _end_unjudged(self, member: Member, error: Exception) -> bool:
        """Its place is not kept for ever for what cannot be read."""
        if member.is_final or (member.process is not None and member.process.poll() is None):
            return False
        self.undecided.pop(member.number, None)
        self.ends.end_unjudged(member, f"how it ended cannot be found out: {error}")
        return True

    def _has_left_its_srun(self, member: Member) -> bool:
        """True where the wrapper has long written its end, and srun still waits for something."""
        if not ends_before_its_srun(member):
            return False
        now = time.monotonic()
        if member.ended_at is None:
            member.ended_at = now
        return now >= member.ended_at + SRUN_GRACE_S

    def _judge(self, member: Member, status: int) -> None:
        log = read_log(member)
        verdict = judge_process_end(
            read_exit(member),
            started=member.pid is not None,
            srun_status=status,
            log=log,
            asked=member.asked,
        )
        if verdict.ended_at is None:
            # What Slurm is asked about first may be decided a minute from now.
            verdict = replace(verdict, ended_at=time.time())
        self.inner_steps.end(member)
        if not self._may_be_the_packs(member, verdict):
            self.ends.end(member, verdict)
            return
        wait_s = ASK_INTERVAL_S if verdict.too_late else 0.0
        self.slurm_decision.open(read_kill_reason(log), ask_in_s=wait_s)
        self.ends.free(member)
        self.undecided[member.number] = verdict

    def _may_be_the_packs(self, member: Member, verdict: Verdict) -> bool:
        """Whether a member's end may be that of its pack, which Slurm alone can tell."""
        if verdict.foreign:
            return True
        if member.asked is not None:
            return False
        # So may be that of a step that does not come up.
        is_unstarted = verdict.never_started and verdict.state is MemberState.FAILED
        is_step = member.launcher == "srun"
        return (is_unstarted and is_step) or self.slurm_decision.was_terminated

    def resume(self) -> None:
        """The signal was meant for the members alone: what ended counts as it ended."""
        self._decided.update(self.undecided)
        self.pack.journal.write("goes_on")
        self._end_decided()

    def _end_decided(self) -> None:
        for number in sorted(self._decided):
            member = self.pack.members.by_number[number]
            self.pack.steps.run(
                f"the end of member {number}",
                partial(self._resume, member),
                partial(self._end_unjudged, member),
            )
        self._decided &= self.undecided.keys()

    def _resume(self, member: Member) -> None:
        verdict = self.undecided[member.number]
        runs_again = verdict.too_late or (
            verdict.never_started and self.starter.fall_back(member, verdict.reason)
        )
        if member.asked in (StopReason.CANCEL, StopReason.REQUEUE) and (
            runs_again or verdict.state is not MemberState.COMPLETED
        ):
            # It was asked meanwhile, while csub still showed the member running.
            is_cancel = member.asked is StopReason.CANCEL
            state = MemberState.CANCELLED if is_cancel else MemberState.PENDING
            verdict = replace(verdict, state=state, reason=member.asked.value)
        elif runs_again:
            del self.undecided[member.number]
            self.pack.members.waiting.appendleft(member.number)
            return
        elif verdict.state is None:
            # Slurm says so where it was asked to; otherwise its processes were killed.
            state = MemberState.CANCELLED if verdict.reason else MemberState.FAILED
            verdict = replace(verdict, state=state, reason="its step was killed")
        self.ends.end(member, verdict)
        del self.undecided[member.number]
