"""How good the fitted model is on packs that it has not seen, and how good it could be at all."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_colloc.model.usage_profile import ModeModel
from slurm_colloc_lab.calibration.fit_model import (
    FEWEST_PACKS,
    NEAR,
    Fit,
    build_columns,
    fit_mode,
    leave_out,
    predict_columns,
)
from slurm_colloc_lab.calibration.measured_packs import MeasuredPack, Measurements

BOUND = 1.5
"""The slowdown bound at which it is judged whether a pack is told from one that should not be."""

PAIRS_TO_FIT, TRIPLES_TO_FIT = 30, 15
_PART_TO_FIT = 2 / 3
"""Of pairs and triples, where there are few."""
_DRAWS = 5
_SIZES = {2: "pair", 3: "triple", 4: "pack of 4", 7: "pack of 7", 12: "pack of 12"}

Prediction = tuple[MeasuredPack, tuple[float, ...]]
"""A pack, and the predicted progress of its members."""


@dataclass(frozen=True)
class Errors:
    """Predicted against measured normalised progress.

    Attributes:
        packs: How many packs were predicted; one counts once for each fit it was kept from.
        members: How many members they have.
        mean: Mean of |predicted - measured|.
        relative: Mean of |predicted - measured| / measured.
        p95: 95th percentile of |predicted - measured|.
        bias: Mean of predicted - measured.
    """

    packs: int
    members: int
    mean: float
    relative: float
    p95: float
    bias: float


@dataclass(frozen=True)
class Judgement:
    """Whether packs whose members all keep the bound are told from others.

    Attributes:
        packs: How many packs were judged.
        good: How many of them keep the bound.
        precision: Of those predicted to keep it, the share that does; None where there are none.
        recall: Of those that keep it, the share that is predicted to; likewise.
    """

    packs: int
    good: int
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class Evaluated:
    """The errors of one mode on one kind of packs.

    Attributes:
        mode: `timeslice` or `mps`.
        kind: Such as `unseen pair`.
        all: On all packs of the kind; None without any.
        near: On those whose members are all at most 2.5 times slower; likewise.
        judgement: Telling packs that keep a slowdown bound of 1.5 from others.
    """

    mode: str
    kind: str
    all: Errors | None
    near: Errors | None
    judgement: Judgement


def evaluate(measured: Measurements, fitted: Fit, *, draws: int = _DRAWS) -> list[Evaluated]:
    """Compute errors on what was fitted and on what was not, for each mode that has a model.

    Unseen packs: fitted to about 30 pairs and 15 triples (or two thirds of them), drawn so that
    the same members are never on both sides, and to trainings alone under limits; tested on all
    others. Unseen jobs and families: fitted without one, tested on the packs that it is in.
    Trainings that were set aside are out of all of it but the first line, which says what they
    cost.

    Args:
        measured: The packs.
        fitted: What `fit` made of them.
        draws: How often pairs and triples are drawn.
    """
    found: list[Evaluated] = []
    for mode, model in fitted.calibration.modes.items():
        whole = [pack for pack in measured.packs if pack.mode == mode]
        aside = fitted.set_aside.get(mode, {})
        packs = leave_out(whole, aside)
        fitter = _Fitter(mode, model)
        if aside:
            found.append(_sum_up(mode, "all, with those set aside", fitter.predict(whole, model)))
        found.append(_sum_up(mode, "all, as fitted", fitter.predict(packs, model)))
        by_kind: dict[str, list[Prediction]] = {}
        for draw in range(draws):
            to_fit, to_test = split(packs, random.Random(draw))
            for pack, predicted in fitter.predict_unseen(to_fit, to_test):
                by_kind.setdefault(_name_kind(pack), []).append((pack, predicted))
        kinds = [f"unseen {name}" for name in (*_SIZES.values(), "copies of one")]
        found += [_sum_up(mode, kind, by_kind.get(kind, [])) for kind in kinds]
        found.append(
            _sum_up(mode, "unseen job", fitter.predict_without(packs, lambda pack: pack.names))
        )
        found.append(
            _sum_up(mode, "unseen family", fitter.predict_without(packs, lambda p: p.families))
        )
    return [each for each in found if each.all is not None]


def split(
    packs: Sequence[MeasuredPack], chance: random.Random
) -> tuple[list[MeasuredPack], list[MeasuredPack]]:
    """Draw what is fitted and what is tested; the same members are never in both."""
    sizes = Counter(len(pack.names) for pack in packs)
    left = {
        size: min(most, round(_PART_TO_FIT * sizes[size]))
        for size, most in ((2, PAIRS_TO_FIT), (3, TRIPLES_TO_FIT))
    }
    by_members: dict[tuple[str, ...], list[MeasuredPack]] = {}
    for pack in packs:
        by_members.setdefault(tuple(sorted(pack.names)), []).append(pack)
    order = sorted(by_members)
    chance.shuffle(order)
    to_fit: list[MeasuredPack] = []
    to_test: list[MeasuredPack] = []
    for members in order:
        found = by_members[members]
        is_drawn = len(members) == 1 or left.get(len(members), 0) > 0
        if len(members) in left:
            left[len(members)] -= len(found)
        (to_fit if is_drawn else to_test).extend(found)
    return to_fit, to_test


@dataclass(frozen=True)
class _Fitter:
    mode: str
    first: ModeModel

    def predict(self, packs: Sequence[MeasuredPack], model: ModeModel) -> list[Prediction]:
        if not packs:
            return []
        predicted = predict_columns(build_columns(packs), model)
        return [
            (pack, tuple(float(each) for each in predicted[: len(pack.names), number]))
            for number, pack in enumerate(packs)
        ]

    def predict_unseen(
        self, to_fit: Sequence[MeasuredPack], to_test: Sequence[MeasuredPack]
    ) -> list[Prediction]:
        if len(to_fit) < FEWEST_PACKS or not to_test:
            return []
        return self.predict(to_test, fit_mode(to_fit, self.mode, self.first))

    def predict_without(
        self,
        packs: Sequence[MeasuredPack],
        list_keys: Callable[[MeasuredPack], Iterable[str]],
    ) -> list[Prediction]:
        """For each training or family: fitted without it, tested on the packs that it is in."""
        found: list[Prediction] = []
        for key in sorted({key for pack in packs for key in list_keys(pack)}):
            with_it = [pack for pack in packs if key in list_keys(pack)]
            without = [pack for pack in packs if key not in list_keys(pack)]
            found += self.predict_unseen(without, with_it)
        return found


def _name_kind(pack: MeasuredPack) -> str:
    if len(set(pack.names)) == 1 and len(pack.names) > 2:
        return "unseen copies of one"
    return f"unseen {_SIZES.get(len(pack.names), 'others')}"


def _sum_up(mode: str, kind: str, found: Sequence[Prediction]) -> Evaluated:
    near = [each for each in found if each[0].worst <= NEAR]
    return Evaluated(mode, kind, compute_errors(found), compute_errors(near), judge(found))


def compute_errors(found: Sequence[Prediction]) -> Errors | None:
    """The errors of predictions; None without any."""
    pairs = [
        (predicted, measured)
        for pack, progress in found
        for predicted, measured in zip(progress, pack.progress, strict=True)
    ]
    if not pairs:
        return None
    sizes = sorted(abs(predicted - measured) for predicted, measured in pairs)
    return Errors(
        packs=len(found),
        members=len(pairs),
        mean=statistics.fmean(sizes),
        relative=statistics.fmean(abs(p - m) / m for p, m in pairs),
        p95=sizes[min(len(sizes) - 1, math.ceil(0.95 * len(sizes)) - 1)],
        bias=statistics.fmean(p - m for p, m in pairs),
    )


def judge(found: Sequence[Prediction], bound: float = BOUND) -> Judgement:
    """How well packs that keep a slowdown bound are told from others; one alone is no pack."""
    judged = [
        (min(predicted) >= 1 / bound, pack.worst <= bound)
        for pack, predicted in found
        if len(pack.names) > 1
    ]
    right = sum(said and is_good for said, is_good in judged)
    said_good = sum(said for said, _ in judged)
    good = sum(is_good for _, is_good in judged)
    return Judgement(
        packs=len(judged),
        good=good,
        precision=right / said_good if said_good else None,
        recall=right / good if good else None,
    )


@dataclass(frozen=True)
class Noise:
    """How far measurements of the same thing are from each other: no model can be better.

    Attributes:
        members: Of how many members a like one was measured: same pack, training and limit.
        mean: Mean distance of their progress from their mean, in progress.
        alone: Mean share of its best rate that a training alone had in its other cells.
        alone_least: The smallest of these shares.
    """

    members: int
    mean: float | None
    alone: float | None
    alone_least: float | None


def compute_noise(measured: Measurements) -> Noise:
    """Compare members that no model tells apart: repeated packs, and copies within one."""
    groups: dict[object, list[float]] = {}
    for pack in measured.packs:
        # Runs have loads of their own, by which a model tells their packs apart.
        kinds = tuple(zip(pack.names, pack.limits, pack.loads, strict=True))
        members = frozenset(Counter(kinds).items())
        for kind, progress in zip(kinds, pack.progress, strict=True):
            groups.setdefault((pack.mode, members, kind), []).append(progress)
    distances = [
        # Their mean is made of themselves, which makes distances look too small.
        abs(value - statistics.fmean(values)) * math.sqrt(len(values) / (len(values) - 1))
        for values in groups.values()
        if len(values) > 1
        for value in values
    ]
    shares = [share for each in measured.others.values() for share in each]
    return Noise(
        members=len(distances),
        mean=statistics.fmean(distances) if distances else None,
        alone=statistics.fmean(shares) if shares else None,
        alone_least=min(shares, default=None),
    )
