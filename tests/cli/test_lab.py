"""What csub says where slurm-colloc-lab is not installed, and what it finds where it is."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from slurm_colloc.__main__ import run
from slurm_colloc.cli import command_groups
from slurm_colloc.cli.command_groups import ENTRY_POINTS, OF_LAB, list_installed
from slurm_colloc.cli.subcommands import build_app

LAB = Path(__file__).resolve().parents[2] / "lab"
ABSENT = (
    "is in the package slurm-colloc-lab, which is not installed: "
    "pip install ./lab in a checkout of csub"
)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without entry points, and a home of its own."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    monkeypatch.setattr(command_groups, "sys", SimpleNamespace(path=[str(tmp_path)]))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    return tmp_path


@pytest.mark.parametrize("name", sorted(OF_LAB))
@pytest.mark.parametrize("word", ["--help", "up"])
def test_without_the_lab_its_commands_say_where_they_are(
    without: Path, capsys: pytest.CaptureFixture[str], name: str, word: str
) -> None:
    assert run([name, word]) == 2
    assert capsys.readouterr().err == f"csub: error: csub {name} {ABSENT}\n"
    assert not (without / "home").exists()


@pytest.mark.usefixtures("without")
def test_without_the_lab_the_help_does_not_list_its_commands() -> None:
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    assert "admin" in commands
    assert not OF_LAB & set(commands)


def test_all_that_the_lab_declares_is_found_under_a_name_that_csub_knows() -> None:
    declared = tomllib.loads((LAB / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(declared) == {ENTRY_POINTS}
    assert set(declared[ENTRY_POINTS]) == OF_LAB <= list_installed()
    for name, place in declared[ENTRY_POINTS].items():
        (entry,) = importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)
        assert entry.value == place
        assert callable(entry.load())
