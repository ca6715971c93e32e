"""What follows the last member's end: its mails, the jobs that wait for it, the pack's summary.

The GPU is free for others only once the Slurm job has ended, and nothing outlives that for certain.
So all of it is begun at once, while the monitor and the MPS daemon are still being ended, and is
waited for only for a moment. The next call of csub makes a summary that was not made
(cli.await_summaries); jobs that wait for members start, at the latest, when the pack is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_colloc.runtime.guarded_steps import GuardedSteps
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.outcome.member_mails import MemberMails
from slurm_colloc.runtime.outcome.send_mail import LAST_WAIT_S
from slurm_colloc.runtime.pack.member_dependencies import Dependents
from slurm_colloc.runtime.watch.pack_monitor import PackMonitor

LAST_WORK_S = 2.0
"""How long the end of a pack waits for its summary, and for Slurm about jobs that wait for it."""


class LastWork:
    """Does, alongside each other, what is left to do for a pack.

    Args:
        monitor: Has the summary made.
        dependents: Lets the jobs go that wait for members.
        mails: Sends the last mails.
        steps: Keeps what goes wrong with one apart from the others.
        journal: The pack's log.
    """

    def __init__(
        self,
        *,
        monitor: PackMonitor,
        dependents: Dependents,
        mails: MemberMails,
        steps: GuardedSteps,
        journal: Journal,
    ) -> None:
        self._monitor = monitor
        self._dependents = dependents
        self._mails = mails
        self._steps = steps
        self._journal = journal
        self._begun_at = time.monotonic()

    def begin(self) -> None:
        """Begin with what needs neither the monitor's figures nor the last states."""
        self._begun_at = time.monotonic()
        self._steps.run("the mails", self._mails.work)
        self._steps.run("dependents", lambda: self._dependents.look(at_once=True))

    def finish(self, wait: Callable[[], None], *, summarizes: bool) -> None:
        """Wait for it within reason, and say what is left.

        Args:
            wait: Waits for a moment.
            summarizes: The pack has come to its own end, so it gets its summary.
        """
        since = time.monotonic()
        if summarizes:
            wants_mail = self._mails.waits_for_summary
            self._steps.run(
                "the summary", lambda: self._monitor.begin_summary(wants_mail=wants_mail)
            )
        self._steps.run("dependents", lambda: self._dependents.look(at_once=True))
        self._steps.run("the mails", self._mails.work)
        while self._list_left(since):
            # The mail about a whole array has its table from the summary.
            is_made = not self._monitor.is_summarizing
            if is_made or time.monotonic() >= since + LAST_WORK_S:
                self._steps.run("the mails", self._mails.release)
            wait()
            self._steps.run("the mails", self._mails.work)
        left = self._monitor.has_summary_left, self._dependents.is_busy
        if any(left):
            self._journal.write("left_over", summary=left[0], dependents=left[1])
        self._mails.give_up()

    def _list_left(self, since: float) -> list[str]:
        """What is still worth being waited for."""
        now = time.monotonic()
        is_early = now < since + LAST_WORK_S
        return [
            name
            for name, is_busy, may_take in (
                ("summary", self._monitor.is_summarizing, is_early),
                ("dependents", self._dependents.is_busy, is_early),
                ("mails", not self._mails.are_sent, now < self._begun_at + LAST_WAIT_S),
            )
            if is_busy and may_take
        ]
