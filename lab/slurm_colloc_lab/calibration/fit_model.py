"""Fitting the contention model to measured packs.

Least squares of normalised progress (predicted less measured), with a loss in which odd packs weigh
less (soft L1); every pack weighs as one, however many members it has. The model itself stands in
`planning.contention` and is only called, for all packs at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_colloc.errors import NodeError, UsageProblem
from slurm_colloc.model.usage_profile import Calibration, Load, ModeModel
from slurm_colloc.planning.contention import predict_slowdowns
from slurm_colloc_lab.calibration.measured_packs import MODES, MeasuredPack, Measurements

NEAR = 2.5
"""Packs with a member that is slower than this are no plan's, so their errors count less."""

FEWEST_PACKS = 12
_FEWEST_TRAININGS = 4
_SCALE = 0.04
# First guess, least and most. A calibration file holds nothing below 0.
_COEFFICIENTS: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "timeslice": {
        "turns": (0.9, 0.0, 3.0),
        "switching": (0.1, 0.0, 2.0),
        "copying": (1.0, 0.0, 3.0),
    },
    "mps": {
        "waiting": (1.0, 0.0, 10.0),
        "width": (1.4, 0.3, 3.0),
        "narrowing": (0.6, 0.0, 2.0),
        "dram": (0.8, 0.0, 5.0),
        "capacity": (1.3, 0.3, 3.0),
        "crowding": (0.6, 0.0, 1.5),
        "copying": (1.0, 0.0, 3.0),
    },
}
# A training is set aside where in half of its packs it is off by more than this, and by so many
# times what is usual among the others.
_ODD = 0.25
_ODD_TIMES = 4.0
_ODD_PACKS = 3
_ODD_PART = 8
# Of a normal distribution: its standard deviation over the median of its absolute errors.
_TO_DEVIATION = 1.4826


@dataclass(frozen=True)
class Fit:
    """What was fitted.

    Attributes:
        calibration: The models, and how far they can be relied on.
        set_aside: By mode, trainings whose packs were not fitted because the model is far off for
            them, with the median of predicted less measured progress.
        not_fitted: By mode, why it has no model.
        usual: What |measured / predicted slowdown - 1| is at most for 68 % of the members that
            `residual` is of. It is smaller than `residual` where few members are far off.
    """

    calibration: Calibration
    set_aside: Mapping[str, Mapping[str, float]]
    not_fitted: Mapping[str, str]
    usual: float = 0.0


@dataclass(frozen=True)
class PackColumns:
    """Packs as arrays: for each place in a pack one of all packs."""

    loads: list[Load]
    limits: list[Any]
    weights: list[Any]
    progress: Any
    present: Any


def build_columns(packs: Sequence[MeasuredPack]) -> PackColumns:
    """Turn packs into arrays, as long as there are packs, for each of the places of the largest."""
    import numpy as np

    places = max((len(pack.names) for pack in packs), default=0)
    shape = (places, len(packs))
    # The other places are empty; what they would take must only be sane.
    fields: Any = {name: np.full(shape, 0.1) for name in ("engine", "sm", "dram", "pcie")}
    limits, progress = np.ones(shape), np.ones(shape)
    present = np.zeros(shape)
    for number, pack in enumerate(packs):
        for place, load in enumerate(pack.loads):
            for field, values in fields.items():
                values[place, number] = getattr(load, field)
            limits[place, number] = pack.limits[place]
            progress[place, number] = pack.progress[place]
            present[place, number] = 1.0
    return PackColumns(
        [
            Load(**{name: values[place] for name, values in fields.items()})
            for place in range(places)
        ],
        list(limits),
        list(present),
        progress,
        present > 0,
    )


def predict_columns(columns: PackColumns, model: ModeModel) -> Any:
    """Predicted normalised progress of every place of every pack."""
    import numpy as np

    slowdowns = predict_slowdowns(
        columns.loads,
        columns.limits,
        model,
        weights=columns.weights,
        maximum=np.maximum,
        larger=np.maximum,
    )
    # A mode without coefficients gives plain numbers.
    return 1.0 / np.array([np.broadcast_to(each, columns.present.shape[1]) for each in slowdowns])


def fit_mode(packs: Sequence[MeasuredPack], mode: str, first: ModeModel | None = None) -> ModeModel:
    """Fit the coefficients of one sharing mode.

    Args:
        packs: Packs of this mode.
        mode: `timeslice` or `mps`.
        first: Where to begin; near the end it takes a third of the time.

    Raises:
        NodeError: NumPy or SciPy is missing.
    """
    try:
        import numpy as np
        from scipy.optimize import least_squares
    except ImportError as error:
        raise NodeError(
            f"fitting needs {error.name}",
            hint="in a checkout of csub, pip install './lab[calibrate]'",
        ) from error
    coefficients = _COEFFICIENTS[mode]
    columns = build_columns(packs)
    weights = columns.present / np.sqrt(np.maximum(1, columns.present.sum(axis=0)))

    def compute_residuals(values: Sequence[float]) -> Any:
        model = ModeModel(**dict(zip(coefficients, map(float, values), strict=True)))
        predicted = predict_columns(columns, model)
        return (weights * (predicted - columns.progress))[columns.present]

    begin = [guess for guess, _, _ in coefficients.values()]
    if first is not None:
        begin = [
            min(most - 1e-3, max(least + 1e-3, getattr(first, name)))
            for name, (_, least, most) in coefficients.items()
        ]
    found = least_squares(
        compute_residuals,
        begin,
        bounds=(
            [least for _, least, _ in coefficients.values()],
            [most for _, _, most in coefficients.values()],
        ),
        loss="soft_l1",
        f_scale=_SCALE,
        xtol=1e-5,
        ftol=1e-6,
    )
    return ModeModel(**dict(zip(coefficients, (round(float(x), 4) for x in found.x), strict=True)))


def fit(measured: Measurements) -> Fit:
    """Fit all modes that there are enough packs of.

    `residual` says how far packs are off in the mean of their members: 1.48 times the median of
    |measured / predicted slowdown - 1|, a standard deviation where errors are normal, over the
    fitted packs whose members were all at most 2.5 times slower than alone. It is of packs, not of
    members: single members are slowed down by their cores of the host, too, partners or not.

    Raises:
        NodeError: NumPy or SciPy is missing.
        UsageProblem: There are not enough packs of any mode.
    """
    modes: dict[str, ModeModel] = {}
    not_fitted: dict[str, str] = {}
    set_aside: dict[str, dict[str, float]] = {}
    ratios: list[float] = []
    means: list[float] = []
    count = 0
    for mode in MODES:
        packs = [pack for pack in measured.packs if pack.mode == mode]
        names = {name for pack in packs for name in pack.names}
        # One alone under a thread limit tells nothing of how trainings disturb each other.
        shared = sum(len(pack.names) > 1 for pack in packs)
        if shared < FEWEST_PACKS or len(names) < _FEWEST_TRAININGS:
            not_fitted[mode] = f"only {shared} packs of {len(names)} trainings were measured"
            continue
        modes[mode], set_aside[mode] = fit_without_odd(packs, mode)
        packs = leave_out(packs, set_aside[mode])
        count += len(packs)
        columns = build_columns(packs)
        predicted = predict_columns(columns, modes[mode])[columns.present]
        real = columns.progress[columns.present]
        ratios += [
            float(p / r) - 1.0 for p, r in zip(predicted, real, strict=True) if r >= 1 / NEAR
        ]
        means += _list_mean_errors(columns, predict_columns(columns, modes[mode]))
    if not modes:
        raise UsageProblem(
            "nothing can be fitted: " + "; ".join(map(": ".join, not_fitted.items()))
        )
    calibration = Calibration(
        gpu_model=measured.gpu_model,
        modes=modes,
        residual=round(_TO_DEVIATION * statistics.median(map(abs, means)), 4) if means else 0.0,
        idle_power_w=measured.idle_power_w,
        power_limit_w=measured.power_limit_w,
        made_at=measured.made_at,
        driver=measured.driver,
        packs=count,
    )
    sizes = sorted(map(abs, ratios))
    usual = round(sizes[int(0.68 * len(sizes))], 4) if sizes else 0.0
    return Fit(calibration, {k: v for k, v in set_aside.items() if v}, not_fitted, usual)


def _list_mean_errors(columns: PackColumns, predicted: Any) -> list[float]:
    """Measured over predicted slowdown, less one, in the mean of each near pack's members."""
    errors = []
    for place in range(columns.present.shape[1]):
        there = columns.present[:, place]
        real = columns.progress[there, place]
        if len(real) > 1 and (real >= 1 / NEAR).all():
            errors.append(float((predicted[there, place] / real).mean()) - 1.0)
    return errors


def fit_without_odd(packs: Sequence[MeasuredPack], mode: str) -> tuple[ModeModel, dict[str, float]]:
    """Fit a mode, and set trainings aside that behave like no other, one after another.

    Why they do is not judged here. One that waits for the GPU many times a step, for example, may
    lose a whole time slice each time, which no figure of a usage profile would tell.

    Returns:
        The model, and by each training set aside the median of predicted less measured progress.
    """
    aside: dict[str, float] = {}
    names = {name for pack in packs for name in pack.names}
    while True:
        left = leave_out(packs, aside)
        model = fit_mode(left, mode)
        odd = find_oddest(left, model)
        if odd is None or len(aside) >= len(names) // _ODD_PART:
            return model, aside
        if len(leave_out(packs, (*aside, odd[0]))) < FEWEST_PACKS:
            return model, aside
        aside[odd[0]] = round(odd[1], 3)


def leave_out(packs: Sequence[MeasuredPack], names: Any) -> list[MeasuredPack]:
    """The packs that none of some trainings is in."""
    return [pack for pack in packs if not set(names) & set(pack.names)]


def find_oddest(packs: Sequence[MeasuredPack], model: ModeModel) -> tuple[str, float] | None:
    """The training that is predicted worst by far, and by how much; None where none is."""
    columns = build_columns(packs)
    errors = predict_columns(columns, model) - columns.progress
    found: dict[str, list[float]] = {}
    for number, pack in enumerate(packs):
        for place, name in enumerate(pack.names):
            found.setdefault(name, []).append(float(errors[place, number]))
    medians = {
        name: statistics.median(each) for name, each in found.items() if len(each) >= _ODD_PACKS
    }
    if len(medians) < _FEWEST_TRAININGS:
        return None
    name = max(medians, key=lambda each: abs(medians[each]))
    usual = statistics.median(abs(each) for each in medians.values())
    if abs(medians[name]) < max(_ODD, _ODD_TIMES * usual) or math.isnan(medians[name]):
        return None
    return name, medians[name]
