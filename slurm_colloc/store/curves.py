"""`curves/FAMILIES.GPUMODEL.json`: what packs have measured of how many run at once best.

One file for each set of families, GPU model and sharing mode; it is merged under a lock, so that
packs that end at the same moment lose nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import asdict, hash_sha256
from slurm_colloc.model.measured_curve import KnownCurve
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.store.atomic_files import locked_folder, read_record, remove_file, write_json
from slurm_colloc.store.profiles import slug_gpu_model

_FOLDER = "curves"
_MODES = (SharingMode.MPS, SharingMode.TIMESLICE)


def read_curves(
    root: Path, gpu_model: str, families: Collection[str]
) -> tuple[list[KnownCurve], list[str]]:
    """What is known of each of these families by itself, and of all of them together.

    Returns:
        The curves of all sharing modes, and what is wrong with those that cannot be read.
    """
    found: list[KnownCurve] = []
    problems: list[str] = []
    sets = dict.fromkeys([*((family,) for family in sorted(families)), tuple(sorted(families))])
    for chosen in sets:
        for mode in _MODES if chosen else ():
            try:
                curve = read_record(_build_path(root, chosen, gpu_model, mode), KnownCurve)
            except StateError as problem:
                problems.append(str(problem))
                continue
            # By its contents, too: it would tell of one job what another has done.
            if curve is not None and (curve.families, curve.gpu_model) == (chosen, gpu_model):
                found.append(curve)
    return found, problems


def list_curves(root: Path) -> tuple[list[KnownCurve], list[str]]:
    """All curves, and what is wrong with those that cannot be read."""
    found = []
    problems: list[str] = []
    for path in sorted((root / _FOLDER).glob("*.json")):
        try:
            curve = read_record(path, KnownCurve)
        except StateError as problem:
            problems.append(str(problem))
            continue
        if curve is not None and curve.points:
            found.append(curve)
    return found, problems


def add_curves(root: Path, curves: Iterable[KnownCurve]) -> list[str]:
    """Merge what a pack has measured into what is known; a file that cannot be read stays.

    Returns:
        What could not be merged, a sentence each.

    Raises:
        StateError: The folder cannot be locked or written.
    """
    problems = []
    with locked_folder(root / _FOLDER):
        for curve in curves:
            path = _build_path(root, curve.families, curve.gpu_model, curve.mode)
            try:
                known = read_record(path, KnownCurve)
            except StateError as problem:
                problems.append(f"{problem}; it was left as it is")
                continue
            merged = curve if known is None else known.add(curve)
            if merged != known:
                write_json(path, asdict(merged))
    return problems


def forget_curves(root: Path, forgotten: Collection[tuple[str, str]] | None) -> None:
    """Remove the curves in which one of some families has run.

    Args:
        root: The state directory.
        forgotten: Families, each with a GPU model; None for all curves, unreadable ones too.

    Raises:
        StateError: The folder cannot be locked, or a file not removed.
    """
    if not (root / _FOLDER).is_dir():
        return
    with locked_folder(root / _FOLDER):
        for path in (root / _FOLDER).glob("*.json"):
            if forgotten is None or _has_run(path, forgotten):
                remove_file(path)


def _has_run(path: Path, families: Collection[tuple[str, str]]) -> bool:
    """Whether one of some families is in a curve; not where it cannot be read."""
    with contextlib.suppress(StateError):
        curve = read_record(path, KnownCurve)
        if curve is not None:
            return any((family, curve.gpu_model) in families for family in curve.families)
    return False


def _build_path(root: Path, families: Iterable[str], gpu_model: str, mode: SharingMode) -> Path:
    digest = hash_sha256("\n".join((mode.value, *sorted(families))).encode())[:32]
    return root / _FOLDER / f"{digest}.{slug_gpu_model(gpu_model)}.json"
