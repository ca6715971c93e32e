"""What follows the last member's end: begun at once, waited for only for a moment, then left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import cast

import pytest

from slurm_colloc.runtime.end_pack import LAST_WORK_S, LastWork
from slurm_colloc.runtime.member_dependencies import Dependents
from slurm_colloc.runtime.member_mails import LAST_WAIT_S, MemberMails
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.step_command import start_process
from slurm_colloc.store.indexes import is_due, list_due

from ..wait_until import wait_until
from .stepped_runner import PlainProcess, SteppedRunner


class Slow:
    """Stands for the monitor, the dependents and the mails: each is done at a moment."""

    def __init__(self, now: list[float], summary: float, dependents: float, mails: float) -> None:
        self._now = now
        self._done_at = {"summary": summary, "dependents": dependents, "mails": mails}
        self.begun: list[str] = []
        self.gave_up = 0

    def _is_busy(self, name: str) -> bool:
        return self._now[0] < self._done_at[name]

    waits_for_summary = False

    def begin_summary(self, *, wants_mail: bool) -> None:
        assert not wants_mail
        self.begun.append("summary")

    @property
    def is_summarizing(self) -> bool:
        return "summary" in self.begun and self._is_busy("summary")

    @property
    def has_summary_left(self) -> bool:
        return "summary" not in self.begun or self._is_busy("summary")

    def look(self, *, at_once: bool) -> None:
        assert at_once
        self.begun.append("dependents")

    @property
    def is_busy(self) -> bool:
        return self._is_busy("dependents")

    def work(self) -> None:
        self.begun.append("mails")

    def release(self) -> None:
        self.begun.append("table")

    @property
    def are_sent(self) -> bool:
        return not self._is_busy("mails")

    def give_up(self) -> None:
        self.gave_up += 1


@pytest.fixture
def finish(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[float, Slow]]:
    """Does the last work; when that was over, and what was asked of its parts."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def finish(
        summary: float, dependents: float, mails: float, *, stops_s: float = 1.0,
        summarizes: bool = True,
    ) -> tuple[float, Slow]:  # fmt: skip
        slow = Slow(now, summary, dependents, mails)
        work = LastWork(
            pack=bed.context, monitor=cast(PackMonitor, slow),
            dependents=cast(Dependents, slow), mails=cast(MemberMails, slow),
        )  # fmt: skip
        work.begin()
        assert slow.begun == ["mails", "dependents"]
        now[0] += stops_s

        def wait() -> None:
            now[0] += 0.1

        work.finish(wait, summarizes=summarizes)
        assert slow.gave_up == 1
        return now[0], slow

    return finish


def test_what_is_done_is_not_waited_for(finish: Callable[..., tuple[float, Slow]]) -> None:
    assert finish(0.0, 0.0, 0.0)[0] == 1.0


def test_all_of_it_is_waited_for_at_the_same_time(
    finish: Callable[..., tuple[float, Slow]], bed: SteppedRunner
) -> None:
    ended_at, _ = finish(2.5, 2.0, 2.4)
    assert ended_at == pytest.approx(2.5)
    assert bed.events("left_over") == []


@pytest.mark.parametrize("left", ["summary", "dependents"])
def test_the_gpu_is_held_for_a_moment_only_and_what_is_left_is_said(
    finish: Callable[..., tuple[float, Slow]], bed: SteppedRunner, left: str
) -> None:
    done_at = {"summary": 0.0, "dependents": 0.0, left: 1000.0}
    ended_at, _ = finish(done_at["summary"], done_at["dependents"], 0.0)
    assert ended_at == pytest.approx(1.0 + LAST_WORK_S, abs=0.11)
    (said,) = bed.events("left_over")
    assert {name for name in done_at if said[name]} == {left}


def test_mails_have_a_little_longer_counted_from_the_last_members_end(
    finish: Callable[..., tuple[float, Slow]],
) -> None:
    assert finish(0.0, 0.0, 1000.0)[0] == pytest.approx(LAST_WAIT_S, abs=0.11)


def test_where_the_daemon_took_long_mails_have_had_their_time(
    finish: Callable[..., tuple[float, Slow]],
) -> None:
    assert finish(0.0, 0.0, 1000.0, stops_s=LAST_WAIT_S + 1.0)[0] == LAST_WAIT_S + 1.0


def test_a_pack_that_slurm_ends_has_no_summary_here(
    finish: Callable[..., tuple[float, Slow]], bed: SteppedRunner
) -> None:
    _, slow = finish(1000.0, 0.0, 0.0, summarizes=False)
    assert "summary" not in slow.begun
    assert bed.events("left_over")[0]["summary"] is True


def test_a_pack_that_is_watched_is_due_a_summary_before_its_members_have_ended(
    bed: SteppedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = bed.state.root
    monitor = bed.parts.monitor
    assert not is_due(root, "s.0")
    started: list[str] = []

    def start(_log: str, module: str, *_words: str) -> PlainProcess:
        started.append(module)
        return PlainProcess()

    monkeypatch.setattr(monitor, "_start", start)
    # Nothing was measured, so nothing is summed up.
    monitor.begin_summary()
    assert started == []
    monitor._begin_at = 0.0
    monitor.work()
    assert list_due(root) == {"s.0": False}
    monitor.begin_summary()
    assert list_due(root) == {"s.0": True}
    assert started == ["slurm_colloc.monitor", "slurm_colloc"]
    assert monitor.is_summarizing
    assert monitor.has_summary_left
    monitor.stop()


def test_a_monitor_that_has_not_heard_it_is_told_again_to_end(bed: SteppedRunner) -> None:
    """Signals of one number that wait are one, and the first sender's: Slurm's own TERM may be."""
    deaf_once = (
        "import signal, sys, time\n"
        "heard = []\n"
        "def hear(*_):\n"
        "    heard.append(1)\n"
        "    if len(heard) > 1: sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, hear)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(60)\n"
    )
    log = bed.pack / "deaf.log"
    process = start_process([sys.executable, "-c", deaf_once], {}, str(log))
    wait_until(lambda: log.read_text() == "up\n", "it listens")
    monitor = bed.parts.monitor
    monitor._process = process
    monitor.stop()
    assert process.poll() == 0
    assert bed.events("monitor_killed") == []
