"""Which way to Slurm a call takes: its commands or pyslurm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slurm_colloc.errors import SlurmUnreachable, UsageProblem
from slurm_colloc.model.setting_values import ACCESS_CHOICES
from slurm_colloc.ownership import is_of_another
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess

if TYPE_CHECKING:
    from slurm_colloc.slurm.pyslurm_backend import PyslurmStatus

VARIABLE = "SLURM_COLLOC_SLURM_ACCESS"
"""Goes before the setting `slurm_access`."""


def open_slurm(
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    *,
    asks_often: bool = False,
    uid: int | None = None,
) -> SlurmAccess:
    """Open the way to Slurm that is set; `auto` takes pyslurm where that is quicker.

    `import pyslurm` costs as much as several commands, so `auto` uses it only in calls that ask
    again and again. A submission never even looks for it.

    Args:
        settings: The settings; `slurm_access` chooses.
        environ: The environment; SLURM_COLLOC_SLURM_ACCESS goes before the setting.
        asks_often: This call follows jobs until they end.
        uid: Whose jobs are asked for; None for the caller's.

    Raises:
        SlurmUnreachable: pyslurm is demanded, and cannot be used here.
        UsageProblem: The variable holds something else.
    """
    environ = os.environ if environ is None else environ
    wanted = read_choice(settings, environ)
    if wanted == "commands" or (wanted == "auto" and not asks_often):
        return SlurmAccess(uid=uid)
    finding = _find(settings, environ)
    if finding.obstacle:
        if wanted == "auto":
            return SlurmAccess(uid=uid)
        raise SlurmUnreachable(
            f"slurm_access is pyslurm, which cannot be used: {finding.obstacle}",
            hint="install the pyslurm of the Slurm release that runs, or set slurm_access to auto",
        )
    import pyslurm

    from slurm_colloc.slurm.pyslurm_backend import PyslurmAccess

    return PyslurmAccess(pyslurm, uid=uid)


def describe_access(settings: Settings, environ: Mapping[str, str] | None = None) -> str:
    """Say which way is taken and why: `commands (pyslurm is not installed)`.

    A demand that cannot be met is described too, not raised.

    Raises:
        UsageProblem: SLURM_COLLOC_SLURM_ACCESS holds something else than a choice.
    """
    environ = os.environ if environ is None else environ
    wanted = read_choice(settings, environ)
    if wanted == "commands":
        return "commands"
    finding = _find(settings, environ)
    if wanted == "pyslurm":
        obstacle = finding.obstacle
        return f"none ({obstacle})" if obstacle else f"pyslurm {finding.pyslurm}"
    if finding.obstacle:
        return f"commands ({finding.obstacle})"
    return f"pyslurm {finding.pyslurm} (calls that ask once use the commands)"


def read_choice(settings: Settings, environ: Mapping[str, str]) -> str:
    """What is set: `auto`, `commands` or `pyslurm`.

    Raises:
        UsageProblem: SLURM_COLLOC_SLURM_ACCESS holds something else.
    """
    wanted = environ.get(VARIABLE) or settings.slurm_access
    if wanted not in ACCESS_CHOICES:
        raise UsageProblem(f"{VARIABLE}={wanted} must be {', '.join(ACCESS_CHOICES)}")
    return wanted


def _find(settings: Settings, environ: Mapping[str, str]) -> PyslurmStatus:
    from slurm_colloc.slurm.pyslurm_backend import find_pyslurm

    # Nothing is written into another user's state.
    is_own = not is_of_another(settings.state_path)
    return find_pyslurm(environ, str(settings.state_path / "pyslurm.json") if is_own else "")
