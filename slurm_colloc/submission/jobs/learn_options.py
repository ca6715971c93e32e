"""Options that only the site's sbatch knows are learned where one of them is met, and kept."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from slurm_colloc.slurm.options import SBATCH_OPTIONS, Argument, Concern, Option, UnknownOption

_KEPT_S = 24 * 3600.0
_Parsed = TypeVar("_Parsed")


@dataclasses.dataclass(frozen=True)
class SiteAnswer:
    """Which options the site's sbatch has besides, and their arguments."""

    options: tuple[tuple[str, str], ...]


class SiteOptions:
    """What plug-ins add to sbatch, once it is needed.

    Args:
        environ: The environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._options: Sequence[Option] = ()
        self._is_asked = False

    def parse(self, parse: Callable[[Sequence[Option]], _Parsed]) -> _Parsed:
        """Parse with what is known of the site, and once more when all of it is.

        Args:
            parse: Parses, with these options besides Slurm's and csub's own.

        Raises:
            UsageProblem: As `parse` does; of an unknown option if the site has none of that name.
        """
        try:
            return parse(self._options)
        except UnknownOption as problem:
            if self._is_asked or not problem.name:
                raise
            self._is_asked = True
            self._options = learn_site_options(problem.name, self._environ)
            if not self._options:
                raise
        return parse(self._options)


def learn_site_options(wanted: str, environ: Mapping[str, str]) -> tuple[Option, ...]:
    """What plug-ins add to sbatch: as it was kept if that has the wanted one, else asked again.

    Args:
        wanted: The option that is not known, perhaps shortened.
        environ: The environment.

    Raises:
        UsageProblem: The settings are wrong.
    """
    # Imported here: hardly a call needs any of it.
    from slurm_colloc.errors import SlurmError
    from slurm_colloc.settings import load_settings
    from slurm_colloc.slurm.real_command import find_real_command
    from slurm_colloc.slurm.site_options import ask_site_options
    from slurm_colloc.store.learned.kept_answers import keep, read_kept

    root = load_settings().state_path
    command = find_real_command("sbatch", environ.get("PATH"))
    if command is None:
        return ()
    installation = _describe_installation(command, environ)
    kept = read_kept(root, "site-options", installation, SiteAnswer, _KEPT_S)
    if kept is not None and any(name.startswith(wanted) for name, _ in kept.options):
        return tuple(
            Option(name, None, Argument(text), Concern.GROUP) for name, text in kept.options
        )
    try:
        found = ask_site_options("sbatch", [option.name for option in SBATCH_OPTIONS])
    except SlurmError:
        return ()
    told = SiteAnswer(tuple((option.name, option.argument.value) for option in found))
    keep(root, "site-options", installation, told)
    return found


def _describe_installation(command: str, environ: Mapping[str, str]) -> str:
    """What the answer depends on: the program, and the list of plug-ins next to slurm.conf."""
    conf = environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    parts = []
    for path in (command, conf, os.path.join(os.path.dirname(conf), "plugstack.conf")):
        try:
            found = os.stat(path)
            parts.append(f"{path} {found.st_mtime_ns} {found.st_size}")
        except OSError:
            parts.append(f"{path} -")
    return "; ".join(parts)
