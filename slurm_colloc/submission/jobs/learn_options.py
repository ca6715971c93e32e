"""Options that only the site's sbatch knows are learned where one of them is met, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from slurm_colloc.slurm.options import SBATCH_OPTIONS, Argument, Concern, Option, UnknownOption

_Parsed = TypeVar("_Parsed")


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
    from slurm_colloc.store.learned.kept_site_options import (
        describe_installation,
        keep_options,
        read_kept_options,
    )

    root = load_settings().state_path
    command = find_real_command("sbatch", environ.get("PATH"))
    if command is None:
        return ()
    installation = describe_installation(command, environ)
    kept = read_kept_options(root, installation)
    if any(name.startswith(wanted) for name, _ in kept):
        return tuple(Option(name, None, Argument(text), Concern.GROUP) for name, text in kept)
    try:
        found = ask_site_options("sbatch", [option.name for option in SBATCH_OPTIONS])
    except SlurmError:
        return ()
    keep_options(root, installation, [(option.name, option.argument.value) for option in found])
    return found
