"""Carrying out measurements: windows in which some members run and the others are paused.

And the one of `csub probe`, in which its only member runs until its rate is known.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.measurement import (
    SETTLE_S,
    DegreeMeasurement,
    MeasurementCutShort,
    Measuring,
    ProbePatience,
    ProbeProgress,
    Window,
    WindowResult,
    choose_patience,
    judge_window,
)
from slurm_colloc.runtime.member_progress import WindowRates, read_latest
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.pause_members import MemberPauser
from slurm_colloc.runtime.stop_member import MemberControl
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.member_states import PARKED

LATE_S = 1.0
"""A window that is ended so much later than it should was disturbed: it is measured again."""
AGAIN_MOST = 3


@dataclass(eq=False)
class PauseWindows:
    """Carries out one measurement after the other.

    Attributes:
        pauser: Pauses members.
        rates: Reads what they have done.
    """

    pauser: MemberPauser
    rates: WindowRates

    def __post_init__(self) -> None:
        self._measuring: Measuring | None = None
        self._members: dict[int, Member] = {}
        self._starts: dict[int, int] = {}
        self._window: Window | None = None
        self._opened_at = 0.0
        self._begun_at: float | None = None
        self._due = 0.0
        self._again = 0
        self._began_at = self._ended_at = 0.0

    @property
    def is_open(self) -> bool:
        """Windows are being measured."""
        return self._measuring is not None

    def list_due(self) -> list[float]:
        """When something is to be done (monotonic clock)."""
        return [self._due] if self.is_open else []

    def begin(self, measuring: Measuring, members: Sequence[Member]) -> None:
        """Begin a measurement of running members.

        Args:
            measuring: Yields the windows.
            members: All members that run.
        """
        self._members = {member.number: member for member in members}
        self._starts = {member.number: member.record.starts for member in members}
        self._again = 0
        self._began_at = self.pauser.pack.clock()
        first = next(measuring)
        self._measuring = measuring
        try:
            self._open(first)
        except BaseException:
            self.stop()
            raise

    def work(self, running: Sequence[Member]) -> DegreeMeasurement | None:
        """Do what is due; what was measured once all windows are over, None before.

        Args:
            running: Who runs now: a member that has come or gone, or is being ended, ends the
                measurement (`is_open` is False then). Where one has only gone, what was seen
                before may be enough.
        """
        if not self.is_open:
            return None
        try:
            if not self._may_go_on(running):
                return self._cut_short(running)
            if self.pauser.pack.clock() < self._due:
                if self._begun_at is not None:
                    self.rates.look(self._list_running())
                return None
            if self._begun_at is None:
                self._begun_at = self.pauser.pack.clock()
                self.rates.begin(self._list_running(), self._opened_at)
                assert self._window is not None
                self._due = self._begun_at + self._window.length_s
                return None
            return self._close()
        except BaseException:
            self.stop()
            raise

    @property
    def lasted_s(self) -> float:
        """How long the measurement has lasted, or the last one did."""
        return (self.pauser.pack.clock() if self.is_open else self._ended_at) - self._began_at

    def stop(self) -> None:
        """End the measurement without a result; those that it has paused go on."""
        if self._measuring is not None:
            self._release().close()

    def _release(self) -> Measuring:
        """Let those go on that the measurement has paused; the measurement."""
        assert self._measuring is not None
        measuring, self._measuring = self._measuring, None
        self._ended_at = self.pauser.pack.clock()
        self.pauser.resume(m for m in self._members.values() if not m.is_parked)
        parked = [m for m in self._members.values() if m.is_parked and m.process is not None]
        self.pauser.pause(parked, PARKED)
        return measuring

    def _cut_short(self, running: Sequence[Member]) -> DegreeMeasurement | None:
        """End it now; what the windows so far have shown, None where that is too little."""
        measuring = self._release()
        now = {member.number: member.record.starts for member in running}
        with contextlib.closing(measuring):
            # What was measured of all tells nothing where others have come.
            if now.items() < self._starts.items():
                try:
                    measuring.throw(MeasurementCutShort())
                except MeasurementCutShort:
                    return None
                except StopIteration as end:
                    measured: DegreeMeasurement = end.value
                    return measured
        return None

    def _may_go_on(self, running: Sequence[Member]) -> bool:
        is_same = {m.number: m.record.starts for m in running} == self._starts
        is_ending = any(m.asked is not None or m.end_by is not None for m in running)
        return is_same and not is_ending and self._holds()

    def _holds(self) -> bool:
        """Whether just those run that are to run: a signal lets a paused member go on."""
        assert self._window is not None
        return all(
            (member.paused_at is None) == (number in self._window.members)
            for number, member in self._members.items()
        )

    def _list_running(self) -> list[Member]:
        assert self._window is not None
        return [self._members[number] for number in sorted(self._window.members)]

    def _open(self, window: Window) -> None:
        self._window = window
        others = [m for number, m in self._members.items() if number not in window.members]
        self.pauser.pause(others)
        self.pauser.resume(self._list_running())
        self._opened_at = self.pauser.pack.clock()
        self._begun_at = None
        self._due = self._opened_at + SETTLE_S

    def _close(self) -> DegreeMeasurement | None:
        assert self._window is not None
        assert self._measuring is not None
        rates = self.rates.end(self._list_running())
        now = self.pauser.pack.clock()
        if now > self._due + LATE_S and self._again < AGAIN_MOST:
            self._again += 1
            self._open(self._window)
            return None
        try:
            self._open(self._measuring.send(WindowResult(rates, now - self._opened_at)))
        except StopIteration as end:
            self._measuring = None
            self._ended_at = self.pauser.pack.clock()
            measured = end.value
            assert isinstance(measured, DegreeMeasurement)
            return measured
        return None


@dataclass(eq=False, kw_only=True)
class ProbeWindow:
    """Ends a member that is only to be probed, once its rate alone is known.

    Attributes:
        pack: The attempt of the pack.
        monitor: Whether anything is measured in this pack.
        control: Ends the member.
    """

    pack: PackContext
    monitor: PackMonitor
    control: MemberControl

    def __post_init__(self) -> None:
        self._begun_at: dict[tuple[int, int], float] = {}

    def work(self) -> None:
        """See whether the window is over."""
        for member in self.pack.members.running():
            if not member.spec.job.only_probe or member.asked is not None:
                continue
            elapsed_s = self._count_s(member)
            try:
                reason = self._judge(member, elapsed_s)
            except Exception as error:  # noqa: BLE001 - figures of other hands never end a pack
                reason = f"what it shows cannot be judged: {error!r}"
            if reason:
                seconds = round(elapsed_s, 1)
                self.pack.journal.write(
                    "probed", member=member.number, seconds=seconds, reason=reason
                )
                self.control.end(member, StopReason.PROBED)

    def _count_s(self, member: Member) -> float:
        """Seconds since its window was opened: as its start was seen."""
        now, key = time.monotonic(), (member.number, member.record.starts)
        if key not in self._begun_at:
            self.pack.journal.write("probe", member=member.number)
        return now - self._begun_at.setdefault(key, now)

    def _judge(self, member: Member, elapsed_s: float) -> str:
        unwatched = self.monitor.obstacle
        if unwatched:
            return f"nothing is measured: {unwatched}"
        latest = self._read_latest(member)
        progress = ProbeProgress(
            elapsed_s=elapsed_s,
            steps=latest.get("steps"),
            steady=bool(latest.get("steady")),
            settled_s=latest.get("settled_s") or 0.0,
            steps_per_s=latest.get("steps_per_s"),
            mean_steps_per_s=latest.get("mean_steps_per_s"),
            mean_error=latest.get("mean_error"),
        )
        patience = choose_patience(member.spec.job)
        if member.spec.job.tells_stalls:
            has_begun, is_told = _look_for_stalls(f"{member.prefix}.stalls")
            return judge_stalls_window(progress, patience, has_begun=has_begun, is_told=is_told)
        return judge_window(progress, patience)

    def _read_latest(self, member: Member) -> dict[str, Any]:
        """The monitor's newest figures of the member's present start; empty without."""
        latest = read_latest(self.pack.path)
        found = latest["members"].get(str(member.number), {}) if latest is not None else {}
        return dict(found) if found.get("start") == member.record.starts else {}


PHASES_FROM_STEPS = 40
"""Phases that tell stalls begin by then, if a DataLoader gives the batches."""


def judge_stalls_window(
    progress: ProbeProgress, patience: ProbePatience, *, has_begun: bool, is_told: bool
) -> str:
    """Why the window of `csub probe --stalls` is over; empty while it is not.

    Args:
        progress: What is known of the member.
        patience: How long the window may be.
        has_begun: The first phase has begun.
        is_told: All phases are over, or there can be none.
    """
    if is_told:
        return "its stalls were looked for"
    if progress.elapsed_s >= patience.window_s:
        return f"its stalls were not told within {patience.window_s:g} s"
    if has_begun or 0 < (progress.steps or 0) < PHASES_FROM_STEPS:
        return ""
    return judge_window(progress, patience)


def _look_for_stalls(result: str) -> tuple[bool, bool]:
    """Whether a member's phases have begun, and whether its result is final."""
    found = read_json(result)
    return os.path.exists(f"{result}.begun"), bool(found and found.get("final"))
