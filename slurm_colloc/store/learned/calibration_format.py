"""The JSON form of a calibration: numbers in sane ranges, one sentence where one is not; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.calibration import Calibration, ModeModel
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.store.foreign_json import show_foreign

CALIBRATION_SCHEMA = 1
_CAPACITY_LEAST = 0.05
_RANGES: Mapping[str, tuple[float, float]] = {
    "width": (0.0, 10.0),
    # One of 0 would say that no prediction is ever off: written where nothing was known.
    "residual": (1e-4, 2.0),
    "idle_power_w": (0.0, 10_000.0),
    "power_limit_w": (1.0, 10_000.0),
    "made_at": (0.0, 1e11),
    "packs": (0, 1_000_000),
}
_USUAL_RANGE = (0.0, 100.0)
"""Of all other coefficients."""


def build_calibration_mapping(calibration: Calibration) -> dict[str, Any]:
    """The JSON form of a calibration."""
    value = dataclasses.asdict(calibration)
    # Where it comes from is the reader's to say.
    del value["source"]
    modes = {str(name): dataclasses.asdict(model) for name, model in calibration.modes.items()}
    return {"schema": CALIBRATION_SCHEMA, **value, "modes": modes}


def check_idle_power(watts: float) -> None:
    """See that a power can stand in a calibration.

    Raises:
        UsageProblem: It is out of bounds.
    """
    _check_number(watts, "--idle-power", _RANGES["idle_power_w"])


def parse_calibration(value: object, where: str) -> Calibration:
    """Read the JSON form of a calibration; keys that are not known are left out.

    Args:
        value: The value.
        where: Where it stands, for the message.

    Raises:
        UsageProblem: It is no calibration, or one of another schema version.
    """
    if not isinstance(value, dict):
        raise UsageProblem(f"{where}: a calibration is a JSON object")
    if value.get("schema") != CALIBRATION_SCHEMA or value.get("schema") is True:
        raise UsageProblem(
            f"{where}: schema: it is of version {show_foreign(value.get('schema'))}, "
            f"this csub reads {CALIBRATION_SCHEMA}"
        )
    modes = value.get("modes")
    if not isinstance(modes, dict) or not modes:
        raise UsageProblem(f"{where}: modes: must be an object with a sharing mode at least")
    known = [mode.value for mode in SharingMode]
    parsed = {
        name: _parse_mode(item, f"{where}: modes.{name}")
        for name, item in modes.items()
        if name in known
    }
    if not parsed:
        raise UsageProblem(f"{where}: modes: none of {', '.join(known[1:])} is there")
    gpu_model = value.get("gpu_model")
    if not isinstance(gpu_model, str) or not 1 <= len(gpu_model) <= 100:
        raise UsageProblem(f"{where}: gpu_model: must be a name, is {show_foreign(gpu_model)}")
    driver = value.get("driver", "")
    if not isinstance(driver, str) or len(driver) > 100:
        raise UsageProblem(f"{where}: driver: must be a text, is {show_foreign(driver)}")
    residual = _take(value, "residual", where)
    idle_w = _take_or_none(value, "idle_power_w", where)
    limit_w = _take_or_none(value, "power_limit_w", where)
    if idle_w is not None and limit_w is not None and limit_w <= idle_w:
        raise UsageProblem(
            f"{where}: power_limit_w: must be above idle_power_w, which is {idle_w:g}, "
            f"is {limit_w:g}"
        )
    return Calibration(
        gpu_model=gpu_model,
        modes=parsed,
        residual=residual,
        idle_power_w=idle_w,
        power_limit_w=limit_w,
        made_at=_take(value, "made_at", where, 0.0),
        driver=driver,
        packs=int(_take(value, "packs", where, 0)),
    )


def _parse_mode(value: object, where: str) -> ModeModel:
    if not isinstance(value, dict):
        raise UsageProblem(f"{where}: must be an object")
    names = [field.name for field in dataclasses.fields(ModeModel)]
    found = {name: _take(value, name, where) for name in names if name in value}
    if not found:
        raise UsageProblem(f"{where}: none of {', '.join(names)} is there")
    if not any(number for name, number in found.items() if name != "width"):
        # It would say that jobs never disturb each other.
        raise UsageProblem(f"{where}: one of {', '.join(found)} must be above 0")
    if 0 < found.get("capacity", 0) < _CAPACITY_LEAST:
        # One of next to nothing would make a slowdown of next to infinity.
        shown = show_foreign(found["capacity"])
        raise UsageProblem(f"{where}.capacity: must be 0 or at least {_CAPACITY_LEAST}, is {shown}")
    return ModeModel(**found)


def _take_or_none(value: Mapping[str, Any], key: str, where: str) -> float | None:
    return None if value.get(key) is None else _take(value, key, where)


def _take(value: Mapping[str, Any], key: str, where: str, usual: float | None = None) -> float:
    if key not in value and usual is not None:
        return usual
    separator = "." if ": modes." in where else ": "
    return _check_number(value.get(key), f"{where}{separator}{key}", _RANGES.get(key))


def _check_number(item: object, where: str, allowed: tuple[float, float] | None) -> float:
    least, most = allowed or _USUAL_RANGE
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise UsageProblem(f"{where}: must be a number, is {show_foreign(item)}")
    # Not a number is in no range.
    if not least <= item <= most:
        raise UsageProblem(f"{where}: must be from {least:g} to {most:g}, is {show_foreign(item)}")
    return float(item)
