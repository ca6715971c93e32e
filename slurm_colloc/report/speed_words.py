"""How fast a member that shares a GPU is against alone, in words.

Also: what measuring a pack by pausing its members has shown, in words; how long a running member
still takes, where it is known how many steps such a run has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_colloc.errors import CollocError
from slurm_colloc.model.measured_curve import DegreeState, describe_measured
from slurm_colloc.model.measurement import FIRST_COST_MOST_S
from slurm_colloc.model.member import MemberState, WaitKind, WaitReason
from slurm_colloc.model.records import is_number
from slurm_colloc.model.why_not_now import BEING_MEASURED
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import read_bytes, read_json
from slurm_colloc.store.profiles import FOLDER, ProfileNames, compute_signature, read_profile_file
from slurm_colloc.store.report_files import latest_path
from slurm_colloc.store.runner_requests import DegreeRecord

STALE_S = 15.0
"""A monitor that has not written for longer has gone, or its file system hangs."""

_AHEAD_S = 5.0
_WINDOW_LEAST_S = 5.0
_LEAST, _MOST = 1e-6, 1e15
"""No figure of a monitor is smaller or larger."""
_EVEN = 1.01
"""Below it a member does not count as slower."""


def describe_pace(
    view: PackView,
    member: MemberView,
    latest: Mapping[str, Any] | None,
    degree: DegreeRecord | None,
    now: float,
) -> str:
    """How much slower than alone a running member is; empty where nothing is known of that.

    What is measured now counts; where nothing is, what its plan has predicted. Time in which its
    runner had paused it is left out.

    Args:
        view: Its pack.
        member: It.
        latest: The content of its pack's latest.json; None where there is none.
        degree: What its runner has measured of its rate alone; None where nothing.
        now: Seconds since the epoch.
    """
    plan = member.spec.plan
    solo = plan.solo_steps_per_s or _find_rate_alone(member, degree)
    figures = find_figures(member, latest, now)
    rate, window_s = (_read_positive(figures.get(key)) for key in ("steps_per_s", "window_s"))
    if rate is not None and window_s is not None:
        end = now if latest is None else float(latest["at"])
        end -= _read_positive(figures.get("last_step_age_s")) or 0.0
        steps = rate * window_s
        window_s -= view.count_paused_s(member, end - window_s, end)
        rate = steps / window_s if window_s > 0 else None
    if solo and rate is not None and window_s is not None and window_s >= _WINDOW_LEAST_S:
        return (
            f"{_describe(solo / rate)} ({rate:.3g} of {solo:.3g} steps/s, over the last "
            f"{window_s:.0f} s)"
        )
    if plan.predicted_slowdown:
        return f"predicted to be {_describe(plan.predicted_slowdown)} while all run"
    return ""


def describe_cores(member: MemberView, degree: DegreeRecord | None) -> str:
    """The cores that a running member has besides its own; empty for none."""
    for loan in () if degree is None else degree.cores:
        if loan.member == member.place and loan.cores > loan.own:
            faster = (
                "" if loan.gain is None else f", and is {1.0 + loan.gain:.2f} times as fast since"
            )
            return (
                f"on {loan.cores} of {loan.of} cores: it waited {100 * loan.wait_share:.0f} % for "
                f"data with {loan.own}{faster}"
            )
    return ""


def describe_moved(member: MemberView, degree: DegreeRecord | None) -> str:
    """Where the GPU memory of a member is that takes turns; empty where it is on the GPU."""
    for moved in () if degree is None else degree.moved:
        if moved.member == member.place:
            if moved.problem and moved.mb is None:
                return f"keeps its GPU memory when its turn ends: {moved.problem}"
            size = "its GPU memory" if moved.mb is None else f"{moved.mb / 1024:.1f} GB"
            where = f"{size} moved to host memory"
            if moved.problem:
                return f"{where} and not back yet: {moved.problem}"
            return f"parked, {where} until its turn"
    return ""


_TOO_FEW = {
    0: "without workers its DataLoader cannot use {cores} cores",
    1: "1 worker cannot use {cores} cores",
}
_TOO_FEW_MORE = "{workers} workers cannot use {cores} cores"


def describe_workers(workers: int, cores: int) -> str:
    """That a DataLoader has too few workers for the cores that there are, as a clause."""
    return _TOO_FEW.get(workers, _TOO_FEW_MORE).format(workers=workers, cores=cores)


def advise_workers(member: MemberView, degree: DegreeRecord | None) -> str:
    """`2 workers cannot use 10 cores: num_workers=8`; empty where that is not so, or unknown."""
    for told in () if degree is None else degree.workers:
        if told.member == member.place:
            return f"{describe_workers(told.workers, told.cores)}: num_workers={told.advised}"
    return ""


def describe_lent(member: str, loan: Mapping[str, Any]) -> str:
    """The cores that a member had besides its own, for a report.

    Args:
        member: Its id.
        loan: One of `cores` of a summary's degree.
    """
    gain = loan["gain"]
    faster = "" if gain is None else f", which made it {1.0 + gain:.2f} times as fast"
    return (
        f"{member} had up to {loan['most']} of {loan['of']} cores instead of {loan['own']}, as it "
        f"waited {100 * loan['wait_share']:.0f} % for data{faster}"
    )


def _describe(slowdown: float) -> str:
    return "as fast as alone" if slowdown < _EVEN else f"{slowdown:.2f} times slower than alone"


def _find_rate_alone(member: MemberView, degree: DegreeRecord | None) -> float | None:
    """The newest rate alone that its runner knows."""
    found = [
        rate
        for rate in (() if degree is None else degree.rates_alone)
        if rate.member == member.place and rate.steps_per_s > 0
    ]
    return max(found, key=lambda rate: rate.at).steps_per_s if found else None


def find_figures(
    member: MemberView, latest: Mapping[str, Any] | None, now: float
) -> Mapping[str, Any]:
    """The monitor's figures of the member's present start; empty without any that are new."""
    value = latest or {}
    at, members = _read_positive(value.get("at")), value.get("members")
    if at is None or not now - STALE_S <= at <= now + _AHEAD_S or not isinstance(members, dict):
        return {}
    found = members.get(str(member.place))
    starts = member.record.starts if member.record is not None else None
    return found if isinstance(found, dict) and found.get("start") == starts else {}


def _read_positive(value: object) -> float | None:
    return float(value) if is_number(value) and _LEAST <= value <= _MOST else None


# ---- What measuring a pack by pausing its members has shown, in words; pure ----------------------

_PACK_LEAST = 2
_COST_LEAST_S = 0.05
"""Less is 0.0 s when it is written down."""


def describe_degree(record: DegreeRecord | None, at_once: int, *, is_over: bool = False) -> str:
    """Which degree is best in a pack, and from which numbers, or what came of measuring it.

    Args:
        record: What its runner has decided; None where nothing.
        at_once: How many of its members are there now, or, once it is over, were at most.
        is_over: No member will run again.

    Returns:
        A clause; empty where there is nothing to measure, as with one member.
    """
    if record is None:
        return ""
    if record.state is DegreeState.MEASURING and not record.reason:
        if at_once < _PACK_LEAST:
            return ""
        was_tried = record.cost_s > _COST_LEAST_S
        if is_over:
            why = "members came or went each time" if was_tried else "its members ended before"
            return f"nothing was measured: {why}"
        if was_tried and record.cost_s > FIRST_COST_MOST_S:
            return "measuring was cut short as members came or went, and is tried again later"
        return BEING_MEASURED
    return describe_measured(record.state, record.curve, record.degree, record.decisions)


def describe_limit(record: DegreeRecord | None) -> str:
    """Why fewer ran at once than had a place; empty where that was not so."""
    if record is None or record.state is not DegreeState.SETTLED:
        return ""
    if record.degree >= record.places:
        return ""
    said = describe_degree(record, record.places)
    return f"in its pack {said}" if said else ""


def explain_kept_waiting(record: DegreeRecord | None, running: int) -> WaitReason | None:
    """Why a member waits although its pack has a place for it; None where that is not why.

    Args:
        record: What the runner has decided; None where nothing.
        running: Members that run, those that are paused among them.
    """
    if record is None or record.state is DegreeState.OFF:
        return None
    if not record.degree <= running < record.places:
        return None
    if record.state is DegreeState.MEASURING:
        return WaitReason(WaitKind.MEASURING, count=running)
    said = describe_degree(record, running)
    return WaitReason(WaitKind.DEGREE, told=said) if said else None


def describe_cost(cost_s: float | None, share: float | None) -> str:
    """`measuring cost 3.4 s of the pack's work (0.6 %)`; empty where it cost nothing.

    Args:
        cost_s: Seconds of the whole pack's progress.
        share: The same as a part of the time that the pack took; None where that is not known.
    """
    if cost_s is None or cost_s < _COST_LEAST_S:
        return ""
    told = f"measuring cost {cost_s:.1f} s of the pack's work"
    return told if share is None else f"{told} ({100 * share:.1f} %)"


# ---- How long a running member still takes, where it is known how many steps such a run has ------


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
    return float(value) if is_number(value) else None
