"""`calibrations/GPUMODEL.json`: the contention model of a GPU model, the user's, the site's, ours.

A file may come from anybody, so it is read with suspicion: only a regular file of limited size,
numbers in sane ranges, and one sentence where something is wrong. Then the next source is used.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.calibration import Calibration, ModeModel
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.store.files import make_directory, write_atomic
from slurm_colloc.store.profiles import slug_gpu_model

CALIBRATION_SCHEMA = 1
SHIPPED = "NVIDIA H200"
"""The GPU model whose calibration comes with csub, and is lent to those that have none."""

_FOLDER = "calibrations"
_BYTES_MOST = 256 * 1024
_CAPACITY_LEAST = 0.05
_RANGES: Mapping[str, tuple[float, float]] = {
    "width": (0.0, 10.0),
    "residual": (0.0, 2.0),
    "idle_power_w": (0.0, 10_000.0),
    "power_limit_w": (1.0, 10_000.0),
    "context_mb": (0, 16_384),
    "made_at": (0.0, 1e11),
    "packs": (0, 1_000_000),
}
_USUAL_RANGE = (0.0, 100.0)
"""Of all other coefficients."""


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
        gpu: NVML's name of the GPU model, or Slurm's type of it (`h200`); empty where unknown.
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
        name = choose_slug(gpu, _list_slugs(folder)) if folder is not None else None
        if folder is None or name is None:
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


def _list_slugs(folder: Path | None) -> list[str]:
    try:
        names = os.listdir(folder) if folder is not None else []
    except OSError:
        return []
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def read_calibration(path: Path, *, expected: str = "") -> Calibration:
    """Read a calibration file.

    Args:
        path: The file.
        expected: The file name of the GPU model that it must be of; empty for any.

    Raises:
        StateError: It cannot be read.
        UsageProblem: It is no calibration; the message names the file, the key and what is wrong.
    """
    data = _read_limited(path)
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{path}: it is not JSON ({error})") from error
    found = parse_calibration(value, str(path))
    if expected and slug_gpu_model(found.gpu_model) != expected:
        raise UsageProblem(f"{path}: gpu_model: it is one of {_show(found.gpu_model)}")
    return found


def _read_limited(path: Path) -> bytes:
    """The content of a regular file; a pipe or device of this name is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageProblem(f"{path}: it is no file")
            data = b""
            while len(data) <= _BYTES_MOST and (part := os.read(descriptor, _BYTES_MOST + 1)):
                data += part
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    if len(data) > _BYTES_MOST:
        raise UsageProblem(f"{path}: it is larger than {_BYTES_MOST // 1024} kB")
    return data


def build_calibration_mapping(calibration: Calibration) -> dict[str, Any]:
    """The JSON form of a calibration."""
    value = dataclasses.asdict(calibration)
    # Where it comes from is the reader's to say.
    del value["source"]
    modes = {str(name): dataclasses.asdict(model) for name, model in calibration.modes.items()}
    return {"schema": CALIBRATION_SCHEMA, **value, "modes": modes}


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration file.

    Raises:
        StateError: It cannot be written.
        UsageProblem: It would be refused when it is read.
    """
    value = build_calibration_mapping(calibration)
    parse_calibration(value, str(path))
    make_directory(path.parent)
    write_atomic(path, json.dumps(value, indent=1).encode() + b"\n", 0o644)


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
            f"{where}: schema: it is of version {_show(value.get('schema'))}, "
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
        raise UsageProblem(f"{where}: gpu_model: must be a name, is {_show(gpu_model)}")
    driver = value.get("driver", "")
    if not isinstance(driver, str) or len(driver) > 100:
        raise UsageProblem(f"{where}: driver: must be a text, is {_show(driver)}")
    return Calibration(
        gpu_model=gpu_model,
        modes=parsed,
        residual=_take(value, "residual", where),
        idle_power_w=_take_or_none(value, "idle_power_w", where),
        power_limit_w=_take_or_none(value, "power_limit_w", where),
        context_mb=int(_take(value, "context_mb", where, Calibration.context_mb)),
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
    if 0 < found.get("capacity", 0) < _CAPACITY_LEAST:
        # One of next to nothing would make a slowdown of next to infinity.
        shown = _show(found["capacity"])
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
        raise UsageProblem(f"{where}: must be a number, is {_show(item)}")
    # Not a number is in no range.
    if not least <= item <= most:
        raise UsageProblem(f"{where}: must be from {least:g} to {most:g}, is {_show(item)}")
    return float(item)


def _show(value: object) -> str:
    """A value of a foreign file in a message: short, and without escape sequences."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
