"""The mails of members: what slurmctld sends for a job, the runner sends for each member.

Also: what stands in the mails of members that have ended; harmless in any mail program; sending
mails: the site's MailProg is run on this node, as the user.

A pack's Slurm job has no `--mail-type`. The site's MailProg gets the arguments and variables that
slurmctld gives it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import CollocError
from slurm_colloc.model.job import build_parameter_variables
from slurm_colloc.model.job_values import (
    TIME_SHARES,
    MailEvent,
    MailRequest,
    build_subject,
    choose_end_event,
    describe_end,
    describe_ends,
    format_mail_time,
)
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import FINAL_STATES, ExitCode, MemberState
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.runtime.allocation import find_user_name
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.step_command import StartedProcess, start_process
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import StateRecord, name_member, read_attempt, read_state
from slurm_colloc.store.pack_directory import list_members
from slurm_colloc.store.report_files import read_mail_text

# ----
# What stands in the mails of members that have ended; pure, and harmless in any mail program.

_LINE_MOST = 1000
_EVIDENCE_MOST = 5


@dataclass(frozen=True)
class TaskEnd:
    """How a task of an array has ended.

    Attributes:
        number: Its number.
        state: Its state.
        code: Its exit code.
        starts: How often it was started.
    """

    number: int
    state: MemberState
    code: ExitCode
    starts: int


def describe_member(shown_job_id: str, member: Member) -> str:
    """What became of a member, in a few lines.

    Each begins with a word of csub's or with blanks: mail programs take some signs at the
    beginning of a line for orders.
    """
    record, job, name = member.record, member.spec.job, member.name(shown_job_id)
    code = f", exit code {record.exit_code}" if record.exit_code is not None else ""
    where = f" on {record.node}" if record.node else ""
    lines = [
        f"{name} {shlex.join((job.script_name, *job.arguments))}",
        f"{record.state.value}{code}{where}{f': {record.reason}' if record.reason else ''}",
        *(f"  {line}" for line in record.evidence[:_EVIDENCE_MOST]),
        f"csub report {name.job} tells how fast it was",
    ]
    return "".join(f"{cut(escape_controls(line), _LINE_MOST)}\n" for line in lines)


def describe_tasks(shown_job_id: str, ends: Sequence[TaskEnd]) -> str:
    """How the tasks of an array have ended, a line each: where no summary was made in time."""
    return "".join(f"{shown_job_id}/{end.number}  {end.state.value}  {end.code}\n" for end in ends)


def describe_run_time(record: StateRecord) -> str:
    """`Run time 00:10:00`; empty for a member that was never started."""
    if record.started_at is None:
        return ""
    ended = record.ended_at if record.state in FINAL_STATES else None
    return f"Run time {format_mail_time((ended or time.time()) - record.started_at)}"


# ---- Sending mails: the site's MailProg is run on this node, as the user -------------------------
#
# It never holds the runner up: a few at a time, each with a deadline, and at the end of the pack
# only for a moment.

AT_ONCE = 4
DEADLINE_S = 120.0
"""As slurmctld's MAIL_PROG_TIMEOUT."""


LAST_WAIT_S = 5.0
"""How long the end of a pack waits for its last mails, counted from its last member's end: its GPU
is held meanwhile, and no other can send them."""


@dataclass(frozen=True)
class Mail:
    """A mail as MailProg is given it.

    Attributes:
        user: Whom it is for.
        subject: Its subject.
        environment: The variables that slurmctld would set.
        body: Its text, given to MailProg on standard input; slurmctld gives none.
    """

    user: str
    subject: str
    environment: Mapping[str, str]
    body: str = ""


class Outbox:
    """Mails that wait to be sent, and those that are being sent.

    Args:
        program: The site's MailProg; empty where it is not known.
        journal: The pack's log.
    """

    def __init__(self, program: str, journal: Journal) -> None:
        self._program = program
        self._journal = journal
        self._waiting: deque[Mail] = deque()
        self._sending: list[tuple[StartedProcess, Mail, float]] = []

    def put(self, mail: Mail) -> None:
        """Take a mail, to be sent by `work`."""
        self._waiting.append(mail)

    @property
    def is_empty(self) -> bool:
        """Nothing waits, and nothing is being sent."""
        return not self._waiting and not self._sending

    def work(self) -> None:
        """Send what waits, and look after what is being sent; never waits."""
        now = time.monotonic()
        for process, mail, deadline in list(self._sending):
            status = process.poll()
            if status is None and now < deadline:
                continue
            self._sending.remove((process, mail, deadline))
            if status is None:
                _kill(process)
                self._give_up(mail, f"it was ended after {DEADLINE_S:g} s")
            elif status:
                self._give_up(mail, f"it ended with status {status}")
        while self._waiting and len(self._sending) < AT_ONCE:
            self._send(self._waiting.popleft(), now)

    def give_up(self) -> None:
        """The pack is over: end what is being sent, and drop what waits."""
        for process, mail, _ in self._sending:
            _kill(process)
            self._give_up(mail, f"it was not done {LAST_WAIT_S:g} s after the end of the pack")
        for mail in self._waiting:
            self._give_up(mail, "the pack was over")
        self._sending.clear()
        self._waiting.clear()

    def _send(self, mail: Mail, now: float) -> None:
        if not self._program:
            self._give_up(mail, "Slurm's MailProg is not known here")
            return
        try:
            process = start_process(
                [self._program, "-s", mail.subject, mail.user],
                mail.environment,
                os.devnull,
                stdin=mail.body.encode("utf-8", "replace"),
            )
        except OSError as error:
            self._give_up(mail, f"{self._program}: {os.strerror(error.errno or 0)}")
            return
        self._sending.append((process, mail, now + DEADLINE_S))

    def _give_up(self, mail: Mail, reason: str) -> None:
        self._journal.write("mail_failed", to=mail.user, subject=mail.subject, reason=reason)


def _kill(process: StartedProcess) -> None:
    """End a mail program and what it has started: it leads a process group of its own."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # noqa: TID251 - its own


# ---- The mails of members: what slurmctld sends for a job, the runner sends for each member ------

_PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TZ", "USER")
_OF_THE_PACK = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ACCOUNT", "SLURM_JOB_GID", "SLURM_JOB_ID",
                "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION",
                "SLURM_JOB_QOS", "SLURM_JOB_UID", "SLURM_JOB_USER")  # fmt: skip


@dataclass(eq=False, kw_only=True)
class MemberMails:
    """Sends the mails of one attempt's members.

    Attributes:
        pack: The attempt of the pack.
    """

    pack: PackContext

    def __post_init__(self) -> None:
        # A job that was submitted alone: Slurm mails for the pack what was asked for it.
        self._by_slurm = any(
            word.startswith("--mail-type=") for word in self.pack.record.slurm_options
        )
        self._outbox = Outbox(self.pack.config.get("MailProg", ""), self.pack.journal)
        self._shares: dict[int, list[tuple[float, MailEvent]]] = {}
        self._held: list[Mail] = []

    def note(self, member: Member, before: StateRecord) -> None:
        """Note that a member's state was written; the mails that it calls for will be sent."""
        after = member.record
        request = self._get_request(member)
        if request is None or after.state is before.state:
            return
        if after.state is MemberState.RUNNING:
            self._plan_shares(member, request)
            submitted = self.pack.record if member.home is None else member.home
            since = member.spec.joined_at or submitted.created_at
            queued = format_mail_time((after.started_at or since) - since)
            self._tell(member, request, MailEvent.BEGIN, f"Queued time {queued}")
        elif after.state is MemberState.PENDING:
            self.note_requeue(member)
        elif after.state in FINAL_STATES:
            self._shares.pop(member.number, None)
            self._tell_end(member, request)

    def note_requeue(self, member: Member) -> None:
        """Note that a member that ran will start again."""
        self._shares.pop(member.number, None)
        request = self._get_request(member)
        if request is not None and not self._is_summed_up(member, request):
            self._tell(member, request, MailEvent.REQUEUE, describe_run_time(member.record))

    def work(self) -> None:
        """Send what is due, and look after what is being sent; never waits."""
        now = time.monotonic()
        for member in [self.pack.members.by_number[number] for number in self._shares]:
            self._tell_shares(member, now)
        self._outbox.work()

    def list_due(self) -> list[float]:
        """When there is something to do, on the monotonic clock."""
        return [shares[0][0] for shares in self._shares.values() if shares]

    @property
    def are_sent(self) -> bool:
        """None waits, and none is being sent."""
        return self._outbox.is_empty and not self._held

    @property
    def waits_for_summary(self) -> bool:
        """A mail waits for the pack's summary."""
        return bool(self._held)

    def release(self) -> None:
        """Let go the mail about a whole array, which waits for the pack's summary."""
        text = read_mail_text(self.pack.path)
        for mail in self._held:
            self._outbox.put(replace(mail, body=text or mail.body))
        self._held.clear()

    def give_up(self) -> None:
        """The pack is over: write down which mails were not sent."""
        self.release()
        self._outbox.give_up()

    # -- what to tell -------------------------------------------------------------------------

    def _get_request(self, member: Member) -> MailRequest | None:
        request = member.spec.job.mail
        if request is None or (self._by_slurm and not member.spec.joined):
            return None
        return request

    def _is_summed_up(self, member: Member, request: MailRequest) -> bool:
        return member.spec.job.array_task is not None and not request.each_task

    def _plan_shares(self, member: Member, request: MailRequest) -> None:
        limit_s = member.record.wall_limit_s
        if limit_s is not None and member.deadline is not None:
            self._shares[member.number] = sorted(
                (member.deadline - limit_s * (1.0 - share), event)
                for event, share in TIME_SHARES.items()
                if request.wants(event)
            )

    def _tell_shares(self, member: Member, now: float) -> None:
        """Tell of the part of its time limit that a running member has used."""
        shares = self._shares[member.number]
        request = self._get_request(member)
        while shares and request is not None and now >= shares[0][0]:
            _, event = shares.pop(0)
            self._tell(member, request, event, describe_run_time(member.record), once=False)

    def _tell_end(self, member: Member, request: MailRequest) -> None:
        record = member.record
        if not self._is_summed_up(member, request):
            event = choose_end_event(record.state, request)
            if event is not None:
                end = describe_end(record.state, record.exit_code)
                body = describe_member(self.pack.shown_id, member)
                self._tell(member, request, event, describe_run_time(record), end, body=body)
            return
        ends = self._collect_ends(member)
        if ends is None:
            return
        codes = [end.code for end in ends]
        failed = [end.state for end in ends if end.state not in _WELL]
        state = failed[0] if failed else record.state
        if any(end.starts > 1 for end in ends):
            self._tell(member, request, MailEvent.REQUEUE, "")
        event = choose_end_event(state, request)
        if event is not None:
            body = describe_tasks(member.name(self.pack.shown_id).job, ends)
            self._tell(member, request, event, "", describe_ends(state, codes), body=body)

    def _collect_ends(self, member: Member) -> list[TaskEnd] | None:
        """How all tasks of a member's array have ended; None while one of them has not."""
        ends = []
        job_id = member.name(self.pack.shown_id).job
        try:
            own = list(self._list_packs(member))
            takers = [
                self.pack.state.pack_path(name) for name in self.pack.state.list_takers(job_id)
            ]
            for pack in (*own, *takers):
                attempt = read_attempt(pack)
                for number in list_members(pack):
                    name = name_member(pack, job_id if pack in own else "", number)
                    if name.job != job_id or name.joined_as:
                        continue
                    record = read_state(pack, number, attempt)
                    if is_there(pack / "members" / format_number(number) / "cancelled"):
                        ends.append(TaskEnd(name.number, MemberState.CANCELLED, ExitCode(0, 15), 0))
                    elif record is None or record.state not in FINAL_STATES:
                        return None
                    else:
                        code = record.exit_code or ExitCode(1)
                        ends.append(TaskEnd(name.number, record.state, code, record.starts))
        except CollocError:
            return None
        return ends

    def _list_packs(self, member: Member) -> Iterator[Path]:
        """The packs as which a member's array was submitted."""
        record = self.pack.record
        if member.home is not None:
            record = self.pack.state.read_pack(member.home.pack_id) or record
        for index in record.indices:
            yield self.pack.path.parent / f"{record.submission}.{index}"

    def _is_first_to_tell(self, member: Member, event: MailEvent) -> bool:
        """True for one runner of all packs of an array: they agree by a file."""
        first = next(self._list_packs(member))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            os.close(os.open(first / f"mailed.{event.name.lower()}", flags, 0o600))
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def _tell(
        self,
        member: Member,
        request: MailRequest,
        event: MailEvent,
        time_text: str,
        end_text: str = "",
        *,
        once: bool = True,
        body: str = "",
    ) -> None:
        if not request.wants(event):
            return
        summed_up = self._is_summed_up(member, request)
        if summed_up and once and not self._is_first_to_tell(member, event):
            return
        job = member.spec.job
        name = member.name(self.pack.shown_id)
        job_id = name.job
        raw = self.pack.allocation.environment.get("SLURM_JOB_ID", job_id)
        if summed_up:
            shown = f"Array Summary Job_id={job_id}_* ({raw})"
            time_text = "" if once else time_text
        elif job.array_task is not None:
            shown = f"Array Task Job_id={job_id}_{name.number} ({job.own_id or raw})"
        else:
            shown = f"Job_id={name}"
        mail = Mail(
            request.user or self._get_default_user(),
            build_subject(shown, job.name, event, time_text, end_text),
            self._build_environment(member, event, time_text),
            body,
        )
        # What the whole array did is known once this pack has its summary.
        if (
            summed_up
            and body
            and all(m.record.is_final for m in self.pack.members.by_number.values())
        ):
            self._held.append(mail)
        else:
            self._outbox.put(mail)

    def _get_default_user(self) -> str:
        domain = self.pack.config.get("MailDomain", "")
        user = find_user_name()
        return f"{user}@{domain}" if domain and domain != "(null)" else user

    def _build_environment(
        self, member: Member, event: MailEvent, time_text: str
    ) -> dict[str, str]:
        """What slurmctld gives to MailProg, with the member's values."""
        batch, record = self.pack.allocation.environment, member.record
        environment = {name: batch[name] for name in _PASSED_ON if name in batch}
        environment |= {name: batch[name] for name in _OF_THE_PACK if name in batch}
        name = member.name(self.pack.shown_id)
        if own_id := member.spec.job.own_id:
            environment |= {"SLURM_JOB_ID": own_id, "SLURM_JOBID": own_id}
        environment |= {
            "SLURM_JOB_NAME": member.spec.job.name,
            "SLURM_JOB_WORK_DIR": member.spec.job.directory,
            "SLURM_JOB_STATE": record.state.value,
            "SLURM_JOB_MAIL_TYPE": event.value,
            "SLURM_JOB_CPUS_PER_NODE": str(member.spec.plan.cpus),
            "SLURM_JOB_RESTART_COUNT": str(max(0, record.starts - 1)),
            "SLURM_COLLOC_MEMBER": str(name),
            "SLURM_COLLOC_NAME": f"{name.job}_{name.number}",
        }
        environment |= build_parameter_variables(member.spec.job.parameters)
        if member.spec.job.array_task is not None:
            environment["SLURM_ARRAY_JOB_ID"] = name.job
            environment["SLURM_ARRAY_TASK_ID"] = str(name.number)
        kind, _, value = time_text.rpartition(" ")
        if value:
            which = "QUEUED" if kind.startswith("Queued") else "RUN"
            environment[f"SLURM_JOB_{which}_TIME"] = value
        # From 24.11 on, in seconds since 1970.
        moments = (("START", record.started_at), ("END", record.ended_at))
        environment |= {
            f"SLURM_JOB_{which}_TIME": str(int(moment))
            for which, moment in moments
            if moment is not None
        }
        if record.state in FINAL_STATES and record.exit_code is not None:
            code = record.exit_code
            environment["SLURM_JOB_EXIT_CODE"] = str(code.code << 8 | code.signal)
            environment["SLURM_JOB_EXIT_CODE2"] = str(code)
            environment["SLURM_JOB_EXIT_CODE_MAX"] = str(code.code)
        return environment


_WELL = frozenset({MemberState.COMPLETED, MemberState.CANCELLED})
