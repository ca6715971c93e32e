from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a pack on its node; this process is member 1."""
    directory = tmp_path / "pack"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("SLURM_COLLOC_PROGRESS", str(directory / "0001.1"))
    return directory
