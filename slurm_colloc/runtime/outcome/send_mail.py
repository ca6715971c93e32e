"""Sending mails: the site's MailProg is run on this node, as the user.

It never holds the runner up: a few at a time, each with a deadline, and at the end of the pack only
for a moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections import deque
from collections.abc import Mapping

from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.step_command import StartedProcess, start_process

AT_ONCE = 4
DEADLINE_S = 120.0
"""As slurmctld's MAIL_PROG_TIMEOUT."""


LAST_WAIT_S = 5.0
"""How long the end of a pack waits for its last mails, counted from its last member's end: its GPU
is held meanwhile, and no other can send them."""


@dataclasses.dataclass(frozen=True)
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
