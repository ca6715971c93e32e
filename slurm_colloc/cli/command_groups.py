"""csub's commands by what one wants to do, and `csub --help`; light, so that both are quick."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from typing import Any

from slurm_colloc.errors import UsageProblem

OF_LAB = frozenset({"calibrate", "sandbox", "tutorial"})
"""Those of the package slurm-colloc-lab, which is in lab/ of this repository."""

ENTRY_POINTS = "slurm_colloc.commands"
"""By the name of a command of the lab: a function of the words behind it that returns the exit
status."""

GROUPS: dict[str, dict[str, str]] = {
    "Submit": {
        "submit": "Submit a script, as sbatch does; the word may be left out.",
        "pack": "Submit several scripts that share a GPU: csub pack [OPTIONS] a.sh 'b.sh --lr "
        "0.1' ...",
        "sweep": "Submit a script once for each of many values: csub sweep SCRIPT --lr 0.1,0.2 "
        "--seed 0:5.",
        "batch": "Submit the rows of a table as jobs: csub batch jobs.csv; also a list of "
        "commands.",
        "retry": "Retry members that did not complete: csub retry ID [--failed] [OPTIONS].",
        "probe": "Run a script alone until its usage profile is known: csub probe [OPTIONS] "
        "SCRIPT.",
        "notebook": "Start a Jupyter server as a member; it ends when no longer used.",
    },
    "Before you submit": {
        "plan": "Show which jobs would share, how and why; submit nothing: csub plan [OPTIONS] "
        "SCRIPT.",
        "check": "Say what in a script would collide on a shared GPU: csub check [OPTIONS] SCRIPT.",
        "doctor": "Check whether csub works on this machine and on a node, with one job of a few "
        "seconds.",
        "calibrate": "Measure how trainings share this GPU, for csub's plans on GPUs of its model.",
        "profile": "Usage profiles: what jobs use when they run alone.",
    },
    "Look": {
        "queue": "Show the members that wait or run.",
        "why": "Say in one line for each member what it waits for, what it shares with, or how "
        "it ended.",
        "explain": "Explain a member's state, or a word: what it means, what comes next, what you "
        "can do.",
        "show": "Show everything about a submission or a member.",
        "logs": "Print the output of members.",
        "top": "Show live what running members do; q ends it, arrows scroll.",
    },
    "Afterwards": {
        "history": "Show the members that have ended, newest first; Slurm is not needed for it.",
        "report": "Show what members used, how fast they were, and what sharing gained; last by "
        "default.",
        "compare": "Compare two submissions: the same script before and after, or alone and "
        "shared.",
        "track": "Give members' figures to MLflow or W&B: into the runs that they have opened, or "
        "new ones.",
        "wait": "Wait until members have ended; exit with the worst one's status, and name it.",
    },
    "Change": {
        "cancel": "End members: SIGTERM, and SIGKILL after Slurm's KillWait.",
        "hold": "Keep waiting members from starting.",
        "release": "Let held members start.",
        "requeue": "Start running members again; a whole pack goes back into Slurm's queue.",
        "shell": "Open a shell inside a running member: its CPUs, memory limit, GPU and "
        "environment.",
    },
    "Set up": {
        "config": "Show the settings and where each comes from, or change your own.",
        "clean": "Remove csub's own files of packs that are over; never your output.",
        "tutorial": "Try csub for five minutes on a private Slurm, which is removed at the end.",
        "sandbox": "Run a private Slurm cluster on this machine: up, status, env, down.",
        "admin": "For administrators: install, test, show and remove hooks on the nodes.",
    },
}  # fmt: skip
"""Titles, and under each the commands and what they do."""

_WIDTH_LEAST, _WIDTH_MOST = 50, 78
_ABOUT = """\
Share a GPU between jobs inside one ordinary Slurm allocation.
csub [SBATCH OPTIONS] SCRIPT [ARGUMENTS] submits as sbatch does; csub submit --help lists \
the options.
csub --install-completion makes your shell complete commands, options and ids; csub --man \
prints the manual page.
"""
_OPTIONS = {"-V, --version": "Print the version.", "-h, --help": "Show this message and exit."}


def list_groups(installed: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Titles, and the commands that are there; those of the lab only if they are installed."""
    absent = OF_LAB.difference(installed)
    for title, group in GROUPS.items():
        yield title, {name: said for name, said in group.items() if name not in absent}


def render_help(installed: Collection[str]) -> str:
    """The text of `csub --help`, as wide as the terminal allows.

    Args:
        installed: The commands of the lab that are there.
    """
    import shutil
    import textwrap

    width = max(min(shutil.get_terminal_size().columns - 2, _WIDTH_MOST), _WIDTH_LEAST)
    lines = ["Usage: csub [OPTIONS] COMMAND [ARGS]..."]
    for text in _ABOUT.splitlines():
        filled = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")
        lines += ["", *filled]
    for title, rows in (("Options", _OPTIONS), *list_groups(installed)):
        lines += ["", f"{title}:"]
        column = max(map(len, rows)) + 2
        for name, said in rows.items():
            first, *others = textwrap.wrap(said, width - column - 2)
            lines.append(f"  {name:<{column}}{first}")
            lines += [f"  {'':<{column}}{other}" for other in others]
    return "\n".join(lines) + "\n"


def load_command(name: str) -> Any:
    """Load a command of the lab; that takes as long as a submission.

    Raises:
        UsageProblem: The lab is not installed.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        return entry.load()
    raise UsageProblem(
        f"csub {name} is in the package slurm-colloc-lab, which is not installed",
        hint="pip install ./lab in a checkout of csub",
    )


def list_installed() -> frozenset[str]:
    """The commands of the lab that are there, without what knows of all distributions."""
    found: set[str] = set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if name.endswith((".dist-info", ".egg-info")):
                    found.update(_read_names(f"{folder or '.'}/{name}/entry_points.txt"))
    return frozenset(found)


def _read_names(path: str) -> Iterator[str]:
    """The names of commands in such a file; none where there is no file."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        heading = ""
        for line in map(str.strip, file):
            if line.startswith("["):
                heading = line
            elif heading == f"[{ENTRY_POINTS}]" and line and not line.startswith("#"):
                yield line.partition("=")[0].strip()
