"""What a member's environment needs so that its Pythons count their progress."""

from __future__ import annotations

import os
from collections.abc import Mapping

import slurm_colloc.instrument
from slurm_colloc.instrument.layout import VARIABLE

SITE_DIRECTORY = os.path.join(os.path.dirname(slurm_colloc.instrument.__file__), "site")
"""Where the injected sitecustomize lies, in a checkout and in an installed wheel."""


def injected_environment(
    environment: Mapping[str, str], directory: str, site: str = SITE_DIRECTORY
) -> dict[str, str]:
    """The variables to set for one start of a member.

    Args:
        environment: The member's, complete but for these.
        directory: Where its counter files go; made by the caller, 0700, empty.
        site: The directory of the injected sitecustomize, as the member sees it.

    Returns:
        Nothing where PYTHONPATH cannot name the directory, because there is a colon in it.
    """
    if os.pathsep in site:
        return {}
    path = environment.get("PYTHONPATH", "")
    # An empty entry is the working directory, so nothing is added to an empty variable.
    others = [entry for entry in path.split(os.pathsep) if entry != site] if path else []
    return {"PYTHONPATH": os.pathsep.join([site, *others]), VARIABLE: directory}
