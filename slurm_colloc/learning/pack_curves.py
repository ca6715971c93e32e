"""What a pack has measured of how many run at once, as knowledge for the next plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from slurm_colloc.model.degree.known_curve import FamilyRate, KnownCurve, KnownPoint
from slurm_colloc.model.degree.measured_curve import CurvePoint, RateSource
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage.profile import may_be_one_kind
from slurm_colloc.report.summary.pack_run import MemberRun, PackRun
from slurm_colloc.report.summary.rates_by_pausing import is_part

_STOOD_STILL = 1000.0
"""The slowdown of a member that made no step in its windows."""


def build_curves(run: PackRun) -> list[KnownCurve]:
    """One curve for each set of families that has run together: each point counts to its own.

    Left out are MIG instances, packs of several GPUs, and families whose members have unlike rates
    alone: their script does this or that, by its arguments.
    """
    record, model = run.degree, run.gpu_model
    mode = SharingMode.TIMESLICE if run.setup is None else run.setup.mode
    if record is None or model is None or len(run.gpu_uuids) != 1:
        return []
    if mode not in (SharingMode.MPS, SharingMode.TIMESLICE):
        return []
    members = {member.number: member for member in run.members}
    rates = {
        family: _find_rates(run, [m for m in run.members if m.family == family])
        for family in {m.family for m in run.members if m.family is not None}
    }
    at = max((decision.at for decision in record.decisions), default=None)
    at = at if at is not None else run.window[1] if run.window is not None else 0.0
    pack = f"{run.view.record.pack_id}/{run.view.attempt}"
    found: dict[tuple[str, ...], KnownCurve] = {}
    for point in record.curve:
        there = [members.get(number) for number in point.members]
        known = [m for m in there if m is not None and m.family is not None]
        families = tuple(sorted({m.family for m in known if m.family is not None}))
        if point.degree < 2 or point.stp <= 0 or len(known) != point.degree:
            continue
        if not all(may_be_one_kind(rates[family]) for family in families):
            continue
        curve = KnownCurve(
            families,
            model,
            SharingMode(mode),
            (_build_point(point, at),),
            tuple(FamilyRate(f, fmean(rates[f])) for f in families if rates[f]),
            tuple(sorted({m.view.name for m in known})),
            (pack,),
        )
        found[families] = found[families].add(curve) if families in found else curve
    return list(found.values())


def _build_point(point: CurvePoint, at: float) -> KnownPoint:
    slowdown = point.worst_slowdown
    if slowdown is not None and not math.isfinite(slowdown):
        slowdown = _STOOD_STILL
    return KnownPoint(point.degree, point.stp, slowdown, at)


def _find_rates(run: PackRun, members: Sequence[MemberRun]) -> list[float]:
    """The rates alone that were measured of a family: one for each kind in it.

    Those by pausing; where there are none, of one that was there before the others.
    """
    kinds = {member.number: member.kind for member in members}
    for source in (RateSource.PAUSING, RateSource.FIRST):
        by_kind: dict[str | None, list[float]] = {}
        for rate in run.degree.rates_alone if run.degree is not None else ():
            is_own = rate.member in kinds and rate.source is source
            if is_own and rate.steps_per_s > 0 and not is_part(rate.thread_percentage):
                by_kind.setdefault(kinds[rate.member], []).append(rate.steps_per_s)
        if by_kind:
            return [fmean(rates) for rates in by_kind.values()]
    return []
