"""What other distributions bring for csub: commands, and rules of others for who shares a GPU.

They are found by entry points, which are read only where one of these is asked for: that takes as
long as a submission. Nothing else here knows `slurm-colloc-lab`, which is in lab/ of this
repository.
"""

from __future__ import annotations

from typing import Any

from slurm_colloc.errors import UsageProblem

COMMANDS = "slurm_colloc.commands"
"""By a command's name: a function of the words behind it that returns the exit status."""

RULES = "slurm_colloc.rules"
"""By a rule's name: a `slurm_colloc.planning.known_packs.PackingRule`."""


def load_extension(group: str, name: str, what: str) -> Any:
    """Load one that slurm-colloc-lab has.

    Args:
        group: `COMMANDS` or `RULES`.
        name: Its name.
        what: What the user has asked for, at the begin of a sentence.

    Raises:
        UsageProblem: It is not installed.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise UsageProblem(
        f"{what} is in the package slurm-colloc-lab, which is not installed",
        hint="pip install ./lab in a checkout of csub",
    )
