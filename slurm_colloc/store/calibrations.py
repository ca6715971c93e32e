"""`calibrations/GPUMODEL.json`: the contention model of a GPU model, the user's, the site's, ours.

Also: the JSON form of a calibration: numbers in sane ranges, one sentence where one is not.

A file may come from anywhere, so it is read with suspicion: only a regular file of limited size,
numbers in sane ranges, and one sentence where something is wrong. Then the next source is used.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.usage_profile import Calibration, ModeModel
from slurm_colloc.store.atomic_files import make_directory, read_bytes, write_atomic
from slurm_colloc.store.foreign_files import parse_foreign, show_foreign
from slurm_colloc.store.profiles import slug_gpu_model

# ----
# The JSON form of a calibration: numbers in sane ranges, one sentence where one is not; pure.

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


# ----
# `calibrations/GPUMODEL.json`: the contention model of a GPU model, the user's, the site's, ours.

SHIPPED = "NVIDIA H200"
"""The GPU model whose calibration comes with csub, and is lent to those that have none."""

_FOLDER = "calibrations"
_BYTES_MOST = 256 * 1024
_FILES_MOST = 64
"""Of a folder that are looked into for a misnamed one."""


@dataclasses.dataclass(frozen=True)
class FoundCalibration:
    """A calibration, and why it is this one.

    Attributes:
        calibration: It; its `source` says in words where it comes from.
        is_borrowed: It was made on another GPU model.
        problems: What is wrong with files that would have come first, a sentence each.
    """

    calibration: Calibration
    is_borrowed: bool = False
    problems: tuple[str, ...] = ()


def calibration_path(folder: Path, gpu_model: str) -> Path:
    """Where a calibration lies in a folder of them."""
    return folder / f"{slug_gpu_model(gpu_model)}.json"


def user_folder(root: Path) -> Path:
    """The user's own calibrations, in the state directory."""
    return root / _FOLDER


def shipped_folder() -> Path:
    """The calibrations that come with csub."""
    return Path(__file__).with_suffix("")


def find_calibration(gpu: str, root: Path, site: Path | None) -> FoundCalibration:
    """Find the calibration of a GPU model: the user's, else the site's, else ours, else borrowed.

    Args:
        gpu: NVML's name of the GPU model, or Slurm's type (`h200`); empty where unknown.
        root: The state directory.
        site: The site's folder; None for none.
    """
    problems: list[str] = []
    sources = (
        (user_folder(root), "the user's {}"),
        (site, "the site's {}"),
        (shipped_folder(), "shipped with csub"),
    )
    for folder, words in sources if gpu else ():
        if folder is None:
            continue
        try:
            slugs = _list_slugs(folder)
        except OSError as error:
            problems.append(f"cannot read {folder}: {os.strerror(error.errno or 0)}")
            continue
        name = choose_slug(gpu, slugs)
        if name is None:
            problems += _list_misnamed(gpu, folder, slugs)
            continue
        path = folder / f"{name}.json"
        try:
            return FoundCalibration(
                dataclasses.replace(
                    read_calibration(path, expected=name), source=words.format(path)
                ),
                problems=tuple(problems),
            )
        except (StateError, UsageProblem) as problem:
            problems.append(problem.message)
    lent = read_calibration(calibration_path(shipped_folder(), SHIPPED))
    # It keeps the name of the GPU model that it was made on, by which planning widens its margins.
    borrowed = dataclasses.replace(lent, source=f"borrowed from {lent.gpu_model}")
    return FoundCalibration(borrowed, is_borrowed=True, problems=tuple(problems))


def choose_slug(gpu: str, slugs: Sequence[str]) -> str | None:
    """The file name that a GPU model or a GPU type of Slurm means.

    Slurm's type is a part of NVML's name where gres.conf has AutoDetect=nvml: `h200` or
    `nvidia_h200` of `nvidia-h200`.

    Returns:
        Its own; else the one that has all words of it in a row; None where that is none or
        several.
    """
    found = match_slugs(gpu, slugs)
    return found[0] if len(found) == 1 else None


def match_slugs(gpu: str, slugs: Sequence[str]) -> list[str]:
    """The file names that a GPU model or a GPU type of Slurm may mean; its own alone counts."""
    wanted = slug_gpu_model(gpu)
    if wanted in slugs:
        return [wanted]
    return [slug for slug in slugs if f"-{wanted}-" in f"-{slug}-"]


def _list_slugs(folder: Path) -> list[str]:
    """The file names in a folder, without `.json`; none where there is no folder.

    Raises:
        OSError: It cannot be read.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def _list_misnamed(gpu: str, folder: Path, slugs: Sequence[str]) -> list[str]:
    """Files that would be of this GPU model by what is in them, a sentence each."""
    found = []
    for slug in slugs[:_FILES_MOST]:
        path = folder / f"{slug}.json"
        try:
            model = read_calibration(path).gpu_model
        except (StateError, UsageProblem):
            continue
        named = slug_gpu_model(model)
        if named != slug and match_slugs(gpu, [named]):
            found.append(_tell_misnamed(path, model))
    return found


def _tell_misnamed(path: Path, gpu_model: str) -> str:
    counts = calibration_path(path.parent, gpu_model).name
    return f"{path}: gpu_model: it is one of {show_foreign(gpu_model)}, only {counts} counts for it"


def read_calibration(path: Path, *, expected: str = "") -> Calibration:
    """Read a calibration file.

    Args:
        path: The file.
        expected: The file name of the GPU model that it must be of; empty for any.

    Raises:
        StateError: It cannot be read.
        UsageProblem: It is no calibration; the message names the file, the key and what is wrong.
    """
    value = parse_foreign(_read_limited(path), str(path), strict=True)
    found = parse_calibration(value, str(path))
    if expected and slug_gpu_model(found.gpu_model) != expected:
        raise UsageProblem(_tell_misnamed(path, found.gpu_model))
    return found


def _read_limited(path: Path) -> bytes:
    try:
        return read_bytes(path, _BYTES_MOST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            large = f"{path}: it is larger than {_BYTES_MOST // 1024} kB"
            raise UsageProblem(large) from error
        raise StateError(f"cannot read {path}: {error.strerror or error}") from error


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration file.

    Raises:
        StateError: It cannot be written.
        UsageProblem: It would be refused when it is read.
    """
    value = build_calibration_mapping(calibration)
    parse_calibration(value, str(path))
    make_directory(path.parent)
    try:
        write_atomic(path, json.dumps(value, indent=1).encode() + b"\n", 0o644)
    except StateError as problem:
        # It names a temporary file, and gives advice for the state directory.
        why = getattr(problem.__cause__, "strerror", None) or problem.message
        raise StateError(f"cannot write {path}: {why}") from problem
