"""How long a running member still takes, where it is known how many steps such a run has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_colloc.errors import CollocError
from slurm_colloc.model.member import MemberState
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.report.words.speed_words import find_figures
from slurm_colloc.store.atomic_files import read_bytes, read_json
from slurm_colloc.store.learned.faults import compute_signature
from slurm_colloc.store.learned.profile_index import FOLDER, ProfileNames
from slurm_colloc.store.learned.profiles import read_profile_file
from slurm_colloc.store.pack.sample_files import latest_path
from slurm_colloc.store.pack_reading import StateReader


class TimesToEnd:
    """Estimates for running members, each profile and each monitor's file read once.

    Args:
        state: The state directory, with usage profiles.
    """

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._names = ProfileNames(state.root)
        self._steps: dict[str, float | None] = {}

    def estimate(
        self,
        view: PackView,
        members: Iterable[MemberView],
        now: float,
        latest: Mapping[str, Any] | None = None,
    ) -> dict[int, float]:
        """Seconds to the end by number in the pack, at the rate of now; without those not known.

        A member that was started again may have begun from a checkpoint, so nothing is known of
        it; nor is of one that is paused.

        Args:
            view: A pack.
            members: Some of its members.
            now: Seconds since the epoch.
            latest: Its latest.json; None where it is to be read.
        """
        running = [
            member
            for member in members
            if member.state is MemberState.RUNNING
            and not member.is_parked
            and member.record is not None
            and member.record.starts == 1
        ]
        found: dict[int, float] = {}
        if not running:
            return found
        if latest is None:
            latest = self._read_latest(view)
        for member in running:
            figures = find_figures(member, latest, now)
            steps, rate = (_read_number(figures.get(key)) for key in ("steps", "steps_per_s"))
            if steps is None or not rate or rate < 0:
                continue
            total = self._find_steps(member)
            if total is not None and total >= steps:
                found[member.place] = (total - steps) / rate
        return found

    def _read_latest(self, view: PackView) -> dict[str, Any] | None:
        try:
            return read_json(latest_path(self._state.pack_path(view.record.pack_id)))
        except CollocError:
            return None

    def _find_steps(self, member: MemberView) -> float | None:
        """The steps of a whole run of its job, on whatever GPU model it was counted."""
        try:
            script = read_bytes(f"{member.files.path}/script")
            signature = compute_signature(script, member.spec.job)
        except (OSError, CollocError):
            return None
        if signature not in self._steps:
            self._steps[signature] = self._read_steps(signature)
        return self._steps[signature]

    def _read_steps(self, signature: str) -> float | None:
        for name in self._names.find_signature(signature):
            try:
                profile = read_profile_file(self._state.root / FOLDER / name)
            except CollocError:
                continue
            if profile is not None and profile.steps_total is not None:
                return profile.steps_total.mean
        return None


def _read_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def format_to_end(seconds: float | None) -> str:
    """`4 min`, `2 h 05 min`: a round figure, as it is an estimate; empty for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
