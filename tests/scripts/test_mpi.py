"""The scripts run the MPI that srun can start, whatever else is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import mpi, script_runs
from .catalogue import CASES


def make_mpi(folder: Path, version: str) -> Path:
    """A directory with mpicc and mpirun that say what they are."""
    folder.mkdir()
    for name in ("mpicc", "mpirun"):
        (folder / name).write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip has installed no MPI."""
    monkeypatch.setattr(mpi, "_list_installed", lambda: iter(()))


@pytest.mark.usefixtures("none_installed")
def test_another_mpi_that_comes_first_in_path_is_passed_over(tmp_path: Path) -> None:
    other = make_mpi(tmp_path / "open", "gcc version 14.2.0 (Debian 14.2.0-19)")
    wanted = make_mpi(tmp_path / "mpich", "mpicc for MPICH version 5.0.2")
    assert mpi.find_mpich(f"{other}:{tmp_path}:{wanted}") == wanted
    assert mpi.find_mpich(f"{other}:{tmp_path}") is None


@pytest.mark.usefixtures("none_installed")
def test_where_only_another_mpi_is_installed_its_scripts_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_mpi(tmp_path / "open", "gcc version 14.2.0 (Debian 14.2.0-19)")
    (other / "cc").symlink_to("/bin/true")
    monkeypatch.setattr(script_runs, "SEARCH", str(other))
    cases = [case for case in CASES if case.uses_mpi]
    assert len(cases) == 2
    assert {script_runs.find_missing(case) for case in cases} == {
        "mpicc and mpirun of MPICH, which srun can start; pip install -e '.[scripts]'"
    }
