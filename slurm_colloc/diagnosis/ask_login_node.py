"""Asks on the login node what diagnosis.login_findings judges."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from slurm_colloc import __version__
from slurm_colloc.diagnosis.login_findings import AskProblem, LoginFacts, name_files
from slurm_colloc.errors import CollocError, SlurmUnreachable
from slurm_colloc.settings import Settings, load_settings
from slurm_colloc.settings_files import find_files
from slurm_colloc.slurm.choose_access import describe_access, open_slurm
from slurm_colloc.slurm.slurm_commands import SlurmCommands
from slurm_colloc.slurm.slurm_nodes import list_node_states, read_client_version
from slurm_colloc.store.all_packs import open_own_state
from slurm_colloc.store.atomic_files import make_directory


def ask_login() -> tuple[LoginFacts, Settings]:
    """Ask everything; what fails is among the facts.

    Returns:
        The facts, and the settings; the built-in ones where they cannot be read.
    """
    facts = LoginFacts(__version__, platform.python_version(), sys.executable)
    settings = Settings()
    try:
        settings = load_settings()
        files = find_files(os.environ)
        there = [path for path in (files.site, files.user) if path and Path(path).exists()]
        facts = dataclasses.replace(
            facts,
            settings_files=name_files(there, os.environ),
            state_path=str(settings.state_path),
            state_shared=settings.state_shared,
            state_trouble=try_state(settings),
        )
    except CollocError as error:
        facts = dataclasses.replace(facts, settings_trouble=_explain(error))
    try:
        facts = dataclasses.replace(facts, client_version=read_client_version())
    except CollocError as error:
        return dataclasses.replace(facts, client_trouble=_explain(error)), settings
    return ask_controller(facts, settings), settings


def try_state(settings: Settings) -> AskProblem:
    """Write a file into the state directory; why that fails, or nothing."""
    path = settings.state_path
    try:
        open_own_state(path)
        make_directory(path)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"csub doctor\n")
            file.flush()
    except CollocError as error:
        return _explain(error)
    except OSError as error:
        return AskProblem(f"{path} cannot be written: {os.strerror(error.errno or 0)}")
    return AskProblem()


def ask_controller(facts: LoginFacts, settings: Settings) -> LoginFacts:
    """Ask the controller how it is set up, and which nodes it has."""
    started = time.monotonic()
    try:
        config = SlurmCommands().read_config()
        answer_ms = (time.monotonic() - started) * 1000
        facts = dataclasses.replace(facts, config=config, answer_ms=round(answer_ms, 1))
        facts = dataclasses.replace(facts, nodes=tuple(list_node_states()))
    except CollocError as error:
        return dataclasses.replace(facts, config=None, controller_trouble=_explain(error))
    try:
        open_slurm(settings)
        facts = dataclasses.replace(facts, access=describe_access(settings))
    except SlurmUnreachable as error:
        facts = dataclasses.replace(facts, access_trouble=_explain(error))
    except CollocError as error:
        hint = "unset that variable, or give it one of these values"
        facts = dataclasses.replace(facts, access_trouble=AskProblem(error.message, hint))
    return facts


def _explain(error: CollocError) -> AskProblem:
    return AskProblem(error.message, error.hint)
