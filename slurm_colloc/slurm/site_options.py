"""Options that a site's SPANK plug-ins add to sbatch and srun, as the installed commands tell them.

Their help lists the names below one line (`spank_print_options` in plugstack.c, 22.05 to 26.05).
Whether an option needs a value is not told there, so the command is asked with the option before
`--version`: where it takes that word as its value, no version is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_colloc.errors import SlurmError, SlurmUnreachable
from slurm_colloc.slurm.option_definition import Argument, Concern, Option
from slurm_colloc.slurm.run_command import run_slurm

_BELOW = "Options provided by plugins:"
_NAME = re.compile(r"\s*--([A-Za-z0-9][\w.-]*)(\[?=.*)?")
_VERSION = re.compile(r"slurm\S* \d")


def ask_site_options(command: str, known: Sequence[str]) -> tuple[Option, ...]:
    """What plug-ins add to a command.

    Jobs share a pack only where the values are equal: what an option does is not known.

    Args:
        command: `sbatch` or `srun`, or a path.
        known: Names that are Slurm's own.

    Raises:
        SlurmUnreachable: The command is not installed.
    """
    try:
        text = run_slurm([command, "--help"]).stdout
    except SlurmUnreachable:
        raise
    except SlurmError:
        return ()
    names = [name for name in parse_names(text) if name not in known]
    return tuple(
        Option(name, None, argument, Concern.GROUP)
        for name in names
        if (argument := ask_argument(command, name)) is not None
    )


def parse_names(text: str) -> list[str]:
    """The names of plug-ins' options in the help of a command."""
    _, found, listed = text.partition(_BELOW)
    names = []
    for line in listed.splitlines() if found else ():
        match = _NAME.match(line)
        if match is not None:
            names.append(match[1])
        elif line.strip() and not line[:1].isspace():
            # The next heading.
            break
    return names


def ask_argument(command: str, name: str) -> Argument | None:
    """Whether an option of this command needs a value; None where it knows no such option.

    Where it may be left out, or is not taken, it can only be attached: that is one case here.
    """
    trial = ["--test-only"] if command.rpartition("/")[2] == "sbatch" else []
    # Nothing can start: without its --version, sbatch only tests an empty script, srun has none.
    if _tells_version([command, *trial, f"--{name}", "--version"]):
        return Argument.OPTIONAL
    is_known = _tells_version([command, *trial, f"--{name}=", "--version"]) or _tells_version(
        [command, *trial, f"--{name}=1", "--version"]
    )
    return Argument.REQUIRED if is_known else None


def _tells_version(argv: Sequence[str]) -> bool:
    try:
        return _VERSION.match(run_slurm(argv).stdout) is not None
    except SlurmError:
        return False
