"""Runs slurm_colloc.host.lifecycle as a hook's script does, and writes down when its steps were.

As a program: traced_hook.py FILE -I -B -m slurm_colloc.host.lifecycle COMMAND ... A line of FILE is
one run: moments on the monotonic clock, which all processes of a machine share, and for each step
its name, begin and end. Children of the hook write nothing.
"""

# ruff: noqa: E402, PTH123 - the first line is timed, and pathlib is felt
from __future__ import annotations

import time

FIRST_LINE_S = time.monotonic()

import os
import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_BEGINNING = ["-I", "-B", "-m", "slurm_colloc.host.lifecycle"]
_PACKAGE = "slurm_colloc.host."
# By module: what it defines, and the step's name in the figures. What is not there has no figure.
_STEPS = {
    "hooks.audit_log": {"write_audit": "audit line"},
    "hooks.epilog": {"run_epilog": "work"},
    "hooks.node_policy": {"read_policy": "policy"},
    "hooks.prepare_mps": {
        "MpsPreparation.claim": "claim",
        "find_owner": "groups of the user",
        "MpsPreparation._make_groups": "control groups and limits",
        "MpsPreparation._make_directory": "directory and its tmpfs",
        "MpsPreparation.tell": "setup.json",
    },
    "hooks.prolog": {"run_prolog": "work"},
    "hooks.recover_jobs": {"recover": "look for dead jobs"},
    "hooks.run_directory": {"RunDirectory.remove_directory": "removal"},
    "hooks.undo_checkpoint": {
        "JobUndo._end_groups": "end of the daemon's group",
        "JobUndo._check_gpus": "check of the GPUs",
    },
    "mps.start_daemon": {
        "start_daemon": "daemon",
        "_start_child": "daemon: process",
        "_prove": "daemon: proof",
        "start_server": "request for a server",
    },
    "nvml.nvml_query": {
        "NvmlQuestion.__init__": "NVML's process",
        "NvmlQuestion.ask": "wait for NVML",
    },
}
STEPS: list[list[Any]] = []


def note_times(function: Callable[..., Any], name: str) -> Any:
    """The same function, whose times are noted."""

    def noted(*arguments: Any, **options: Any) -> Any:
        begin = time.monotonic()
        try:
            return function(*arguments, **options)
        finally:
            STEPS.append([name, begin, time.monotonic()])

    return noted


def note_module(module: ModuleType) -> None:
    """Note the times of a module that has just been loaded."""
    for path, step in _STEPS[module.__name__.removeprefix(_PACKAGE)].items():
        *holders, name = path.split(".")
        place: Any = getattr(module, holders[0], None) if holders else module
        if hasattr(place, name):
            setattr(place, name, note_times(getattr(place, name), step))


class Noting:
    """Finds the hook's modules as they are found anyway, and notes times once each is loaded.

    Nothing is loaded earlier than the hook does by itself.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module is; None for those that are not traced."""
        if not name.startswith(_PACKAGE) or name.removeprefix(_PACKAGE) not in _STEPS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def load_and_note(module: ModuleType) -> None:
                load(module)
                note_module(module)

            loader.exec_module = load_and_note
        return spec


def main() -> None:
    """Run the hook."""
    trace, *words = sys.argv[1:]
    assert words[:4] == _BEGINNING
    sys.meta_path.insert(0, Noting())
    sys.argv[1:] = words[4:]
    pid = os.getpid()
    try:
        runpy.run_module(words[3], run_name="__main__", alter_sys=True)
    finally:
        if os.getpid() == pid:
            # Not before the hook itself needs it.
            import json

            line = {
                "command": words[4],
                "first_line_s": FIRST_LINE_S,
                "end_s": time.monotonic(),
                "steps": STEPS,
            }
            with open(trace, "a", encoding="ascii") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
