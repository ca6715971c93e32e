"""`gpus/GPUMODEL.json`: how fast the user's jobs were alone on each GPU, by the newest packs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.gpu_pace import GpuPace, GpuRun, GpuRuns, compare_paces
from slurm_colloc.model.late_definitions import asdict
from slurm_colloc.store.atomic_files import locked_folder, read_record, remove_file, write_json
from slurm_colloc.store.profiles import slug_gpu_model

_FOLDER = "gpus"


def add_gpu_runs(root: Path, gpu_model: str, runs: Sequence[GpuRun]) -> None:
    """Note what a pack has shown of its GPUs; the same pack once.

    Raises:
        StateError: The file cannot be read or written.
    """
    path = _build_path(root, gpu_model)
    with locked_folder(root / _FOLDER):
        known = read_record(path, GpuRuns) or GpuRuns(gpu_model)
        write_json(path, asdict(known.add(runs)))


def read_paces(root: Path, gpu_model: str | None = None) -> list[GpuPace]:
    """GPUs by how fast they are; a file that cannot be read tells nothing.

    Args:
        root: The state directory.
        gpu_model: Their model; None for all models.
    """
    folder = root / _FOLDER
    paths = sorted(folder.glob("*.json")) if gpu_model is None else [_build_path(root, gpu_model)]
    found: list[GpuPace] = []
    for path in paths:
        with contextlib.suppress(StateError):
            if (runs := read_record(path, GpuRuns)) is not None:
                found += compare_paces(runs)
    return found


def forget_gpu_runs(root: Path) -> None:
    """Remove all that is known of GPUs.

    Raises:
        StateError: A file cannot be removed.
    """
    if (root / _FOLDER).is_dir():
        with locked_folder(root / _FOLDER):
            for path in (root / _FOLDER).glob("*.json"):
                remove_file(path)


def _build_path(root: Path, gpu_model: str) -> Path:
    return root / _FOLDER / f"{slug_gpu_model(gpu_model)}.json"
