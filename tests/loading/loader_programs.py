"""A pack's directory, company in it, and programs that are its members."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_colloc.loading.members import MeetingPlace
from slurm_colloc.loading.same_loader import identify

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"


def run_program(name: str, *words: str, limit_s: float = 500) -> list[dict[str, Any]]:
    """Run one of the programs, and read its lines."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("SLURM_COLLOC_PROGRESS", None)
    ended = subprocess.run(
        [sys.executable, str(PROGRAMS / name), *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit_s,
        check=True,
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def make_history(count: int, **changed: Any) -> dict[str, Any]:
    """A history in which nothing goes wrong."""
    plain = {
        "seed": 0,
        "length": 61,
        "batch": 4,
        "shuffle": True,
        "drop_last": False,
        "workers": 0,
        "make_s": 0,
        "epochs": 2,
        "faults": [],
        "together": True,
        "members": [{"seed": number, "start_s": 0, "use_s": 0.002} for number in range(count)],
    }
    return {**plain, **changed}


@contextmanager
def in_company(loader: Any, key: str | None = None) -> Iterator[None]:
    """Another member that has the same loader, and is not waited for."""
    own = os.environ["SLURM_COLLOC_PROGRESS"]
    os.environ["SLURM_COLLOC_PROGRESS"] = str(Path(own).parent / "0009.1")
    try:
        place = MeetingPlace(str(Path(own).parent), *identify(loader, key))
    finally:
        os.environ["SLURM_COLLOC_PROGRESS"] = own
    place.note_in_vain(place.name)
    yield
    place.leave()
