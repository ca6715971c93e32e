"""The probe window: an unknown job runs alone before its neighbours start.

So its rate alone is known, which every slowdown is measured against. An attempt of a pack has one
window at most, at its start, however that ends: short jobs are not to run one after the other. The
rest of the family (model.profile) goes by what the first has shown.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_colloc.model.degree.probe_window import (
    ALONE_FIRST,
    BESIDE_WAITING,
    ProbeProgress,
    choose_patience,
    find_obstacle_to_probe,
    judge_window,
)
from slurm_colloc.model.member import MemberId, MemberState
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.watch.latest_json import read_latest
from slurm_colloc.store.atomic_files import read_bytes
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_holds import is_held


class ProbeWindow:
    """Lets one member run alone for its probe window.

    Args:
        pack: The pack's directory.
        shown_id: The pack's job id as users know it.
        roster: Its members.
        ledger: Writes why the others wait.
        journal: The pack's log.
        is_wanted: The settings let unknown jobs be probed.
        instruments: The settings let steps be counted.
        find_gpu_model: The GPU's model; None where it is not known.
        why_unwatched: Why nothing is measured in this pack; empty where it is.
        end: Ends a member whose job is to be probed and no more.
    """

    def __init__(
        self,
        *,
        pack: Path,
        shown_id: str,
        roster: PackMembers,
        ledger: StateWriter,
        journal: Journal,
        is_wanted: bool,
        instruments: bool,
        find_gpu_model: Callable[[], str | None],
        why_unwatched: Callable[[], str],
        end: Callable[[Member], None],
    ) -> None:
        self._pack = pack
        self._shown_id = shown_id
        self._roster = roster
        self._ledger = ledger
        self._journal = journal
        self._is_wanted = is_wanted
        self._instruments = instruments
        self._find_gpu_model = find_gpu_model
        self._why_unwatched = why_unwatched
        self._end = end
        self._probed: Member | None = None
        self._has_probed = False
        self._begun_at = 0.0
        self.rates: dict[int, float] = {}
        """Steps per second alone that windows have shown, by member number."""

    @property
    def is_open(self) -> bool:
        """A window is open."""
        return self._probed is not None

    def holds(self, member: Member) -> bool:
        """Whether a waiting member must not start yet; if it is the one to be probed, it may."""
        if self._probed is not None and self._probed.process is None:
            # It could not be started, or has ended; nobody else may be there to end the window.
            self.work()
        if self._probed is not None:
            return True
        if self._is_to_be_probed(member):
            self._probed, self._begun_at = member, time.monotonic()
            self._has_probed = member.is_probed = True
            self._journal.write("probe", member=member.number)
        return False

    def tell_waiting(self) -> None:
        """Write down why members wait that have a place."""
        if self._probed is None:
            return
        text = self._describe(self._probed)
        places = sum(place.occupant is None for place in self._roster.places)
        for number in itertools.islice(self._roster.waiting, places):
            member = self._roster.members[number]
            if not member.record.reason and not is_held(self._pack, number):
                self._ledger.write(member, MemberState.PENDING, reason=text)

    def work(self) -> None:
        """See whether the window is over."""
        member = self._probed
        if member is None:
            return
        try:
            reason = self._judge(member)
        except Exception as error:  # noqa: BLE001 - figures of other hands never end a pack
            reason = f"what it shows cannot be judged: {error!r}"
        if not reason:
            return
        if not member.record.starts:
            # It never ran, so there was no window.
            self._has_probed = False
        text = self._describe(member)
        elapsed_s = round(time.monotonic() - self._begun_at, 1)
        self._journal.write("probed", member=member.number, seconds=elapsed_s, reason=reason)
        self._probed = None
        if member.process is not None and member.spec.job.only_probe:
            self._end(member)
        for number in self._roster.waiting:
            waiting = self._roster.members[number]
            # Meanwhile somebody may have had another reason to wait.
            if waiting.record.reason == text:
                self._ledger.write(waiting, MemberState.PENDING, reason="")

    def _describe(self, member: Member) -> str:
        name = MemberId(self._shown_id, member.number)
        return (
            f"{name} {ALONE_FIRST}, {BESIDE_WAITING.window_s:g} s at most, so that its rate "
            "alone is known (--no-probe)"
        )

    def _judge(self, member: Member) -> str:
        if member.process is None:
            return "it has ended"
        job = member.spec.job
        unwatched = self._why_unwatched()
        if unwatched:
            return f"nothing is measured: {unwatched}"
        latest = self._read_latest(member)
        progress = ProbeProgress(
            elapsed_s=time.monotonic() - self._begun_at,
            steps=latest.get("steps"),
            steady=bool(latest.get("steady")),
            settled_s=latest.get("settled_s") or 0.0,
            steps_per_s=latest.get("steps_per_s"),
            mean_steps_per_s=latest.get("mean_steps_per_s"),
            mean_error=latest.get("mean_error"),
        )
        if progress.rate_alone is not None:
            self.rates[member.number] = float(progress.rate_alone)
        return judge_window(progress, choose_patience(job))

    def _read_latest(self, member: Member) -> dict[str, Any]:
        """The monitor's newest figures of the member's present start; empty without."""
        latest = read_latest(self._pack)
        found = latest["members"].get(str(member.number), {}) if latest is not None else {}
        return dict(found) if found.get("start") == member.record.starts else {}

    def _is_to_be_probed(self, member: Member) -> bool:
        job = member.spec.job
        if job.only_probe:
            return True
        is_alone = not self._roster.running() and len(self._roster.places) > 1
        if not self._is_wanted or self._has_probed or not is_alone or self._roster.takes_one:
            return False
        if member.record.starts:
            return False
        obstacle = find_obstacle_to_probe(job, instruments=self._instruments)
        if obstacle or self._why_unwatched():
            return False
        model = self._find_gpu_model()
        return model is not None and not self._is_known(member, model)

    def _is_known(self, member: Member, gpu_model: str) -> bool:
        # Loaded only by packs that may probe.
        from slurm_colloc.store.learned.profiles import is_known

        job = member.spec.job
        try:
            script = read_bytes(f"{self._pack}/members/{format_number(member.number)}/script")
        except OSError:
            # Who cannot be found again need not be measured.
            return True
        return is_known(self._pack.parent.parent, script, job, gpu_model)
