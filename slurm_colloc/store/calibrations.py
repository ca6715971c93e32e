"""`calibrations/GPUMODEL.json`: the contention model of a GPU model, the user's, the site's, ours.

A file may come from anywhere, so it is read with suspicion: only a regular file of limited size,
numbers in sane ranges, and one sentence where something is wrong. Then the next source is used.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.calibration import Calibration
from slurm_colloc.store.atomic_files import make_directory, read_bytes, write_atomic
from slurm_colloc.store.foreign_json import parse_foreign, show_foreign
from slurm_colloc.store.learned.calibration_format import (
    build_calibration_mapping,
    parse_calibration,
)
from slurm_colloc.store.learned.profiles import slug_gpu_model

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
