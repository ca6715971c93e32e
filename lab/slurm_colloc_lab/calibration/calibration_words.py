"""A calibration in words and as JSON: what was fitted, and how far it can be relied on; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from slurm_colloc.store.calibrations import build_calibration_mapping
from slurm_colloc_lab.calibration.fit_model import NEAR, Fit
from slurm_colloc_lab.calibration.model_error import BOUND, Errors, Evaluated, Noise

CALIBRATE_SCHEMA = 1
_COLUMNS = (
    "  mean, p95: of |predicted - measured|; bias: mean of predicted - measured (above 0: jobs",
    "  were slower than predicted); of it: mean of |predicted - measured| / measured;",
    f"  <= {NEAR:g}x: the packs whose members are all at most {NEAR:g} times slower than alone.",
)
_USED = {
    "timeslice": ("turns", "switching", "copying"),
    "mps": ("waiting", "width", "narrowing", "dram", "capacity", "crowding", "copying"),
}


def render_fit(fitted: Fit, evaluated: Sequence[Evaluated], noise: Noise) -> str:
    """Some lines for people."""
    calibration = fitted.calibration
    lines = [f"{calibration.gpu_model or 'unknown GPU'}: fitted to {calibration.packs} packs"]
    for mode, model in calibration.modes.items():
        values = (f"{name} {getattr(model, name):.3g}" for name in _USED[mode])
        lines.append(f"  {mode:<10} {', '.join(values)}")
        lines += [
            f"  {'':<10} without {name}: its progress is predicted {error:+.2f} off in the median, "
            "unlike that of all others"
            for name, error in fitted.set_aside.get(mode, {}).items()
        ]
    lines += [f"  {mode:<10} no model: {why}" for mode, why in fitted.not_fitted.items()]
    lines.append(
        f"  packs whose members are at most {NEAR:g} times slower are off by "
        f"{100 * calibration.residual:.0f} % in their mean (standard deviation); 68 % of their "
        f"members by at most {100 * fitted.usual:.0f} %"
    )
    lines += ["", "Errors of predicted normalised progress (1 is as fast as alone):", ""]
    lines.append(
        f"  {'mode':<10}{'packs':<28}{'number':>7}{'mean':>7}{'p95':>7}{'bias':>7}{'of it':>7}"
        f"{'':>3}{f'<= {NEAR:g}x':>7}{'mean':>7}{'of it':>7}"
    )
    for each in evaluated:
        lines.append(f"  {each.mode:<10}{each.kind:<28}{_show(each.all)}   {_show_near(each.near)}")
    lines += ["", *_COLUMNS]
    lines += ["", f"  Told from others, packs whose members keep a slowdown bound of {BOUND:g}:"]
    for each in evaluated:
        judged = each.judgement
        if each.kind.startswith(("unseen job", "unseen pair", "all, as")):
            lines.append(
                f"  {each.mode:<10}{each.kind:<28}{judged.good} of {judged.packs}; "
                f"precision {_share(judged.precision)}, recall {_share(judged.recall)}"
            )
    lines += ["", *_describe_noise(noise)]
    return "\n".join(lines)


def _show(errors: Errors | None) -> str:
    if errors is None:
        return f"{0:>7}{'-':>7}{'-':>7}{'-':>7}{'-':>7}"
    return (
        f"{errors.packs:>7}{errors.mean:>7.3f}{errors.p95:>7.3f}{errors.bias:>+7.3f}"
        f"{100 * errors.relative:>6.1f}%"
    )


def _show_near(errors: Errors | None) -> str:
    if errors is None:
        return f"{0:>7}{'-':>7}{'-':>7}"
    return f"{errors.packs:>7}{errors.mean:>7.3f}{100 * errors.relative:>6.1f}%"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _describe_noise(noise: Noise) -> list[str]:
    lines = []
    if noise.mean is not None:
        lines.append(
            f"  Noise: members that no model tells apart differ by {noise.mean:.3f} from their "
            f"mean ({noise.members} members)."
        )
    if noise.alone is not None and noise.alone_least is not None:
        lines.append(
            f"  A training alone ran at {100 * noise.alone:.0f} % of its best rate in its other "
            f"cells, at worst at {100 * noise.alone_least:.0f} %."
        )
    return lines


def build_calibrate_json(
    fitted: Fit,
    evaluated: Sequence[Evaluated],
    noise: Noise,
    *,
    written: str | None,
    raw: str | None,
    cells_left_out: int,
) -> dict[str, Any]:
    """The same for programs.

    Args:
        fitted: What was fitted.
        evaluated: Its errors.
        noise: The noise of the measurements.
        written: Path of the calibration file; None where none was written.
        raw: Path of the rows; None where they were not kept.
        cells_left_out: How many cells were passed over.
    """
    return {
        "schema": CALIBRATE_SCHEMA,
        "calibration": build_calibration_mapping(fitted.calibration),
        "written": written,
        "raw": raw,
        "set_aside": {mode: dict(names) for mode, names in fitted.set_aside.items()},
        "usual": fitted.usual,
        "not_fitted": dict(fitted.not_fitted),
        "cells_left_out": cells_left_out,
        "errors": [dataclasses.asdict(each) for each in evaluated],
        "noise": dataclasses.asdict(noise),
    }
