"""The page of all commands is made of the program; here without what builds the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from slurm_colloc.cli.subcommands import build_app
from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS

FILE = Path(__file__).resolve().parents[2] / "docs" / "site" / "command_reference.py"


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    # It sets the width for the help texts that it asks for.
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("TERMINAL_WIDTH", "90")
    spec = importlib.util.spec_from_file_location("command_reference", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_each_command_and_option(reference: Any) -> None:
    text = reference.render_commands()
    group: Any = typer.main.get_command(build_app())
    shown = {name for name, command in group.commands.items() if not command.hidden}
    assert len(shown) > 25
    assert shown - set(re.findall(r"^### csub ([a-z]+)$", text, re.MULTILINE)) == set()
    options = {f"--{option.name}" for option in (*OWN_OPTIONS, *SBATCH_OPTIONS)}
    assert options - set(re.findall(r"--[a-z][a-z-]*", text)) == set()


def test_a_command_without_a_group_is_not_left_out(
    reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "list_groups", lambda _: iter(()))
    with pytest.raises(RuntimeError, match=r"in no group of csub --help: .*queue"):
        reference.render_commands()
