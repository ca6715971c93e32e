"""Which Slurm is installed here, and under which names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.host.system.child_programs import run_program

DAEMON_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin", "/opt/slurm/sbin", "/sbin")
_OLDEST = (22, 5)


@dataclass(frozen=True)
class Installation:
    """The programs of one Slurm.

    Args:
        version: Release, as (22, 5).
        version_text: What `slurmd -V` says, as `slurm-wlm 22.05.8`.
        munged: Path of munged, likewise the next ones.
        plugin_directory: For slurm.conf, or None where the built-in one is right.
        slurmstepd: To be told to slurmd, or None where it finds it by itself.
    """

    version: tuple[int, int]
    version_text: str
    munged: str
    slurmctld: str
    slurmd: str
    commands: Path
    plugin_directory: str | None = None
    slurmstepd: str | None = None

    def command(self, name: str) -> str:
        """Path of a user command such as `sinfo`."""
        return str(self.commands / name)


def parse_version(text: str) -> tuple[int, int] | None:
    """Read `slurm 23.11.4` or `slurm-wlm 22.05.8` as (23, 11) or (22, 5)."""
    match = re.search(r"\b(\d{2})\.(\d{2})\.", text + ".")
    return (int(match[1]), int(match[2])) if match else None


def find_installation(environment: Mapping[str, str]) -> Installation:
    """Look for Slurm and munge in PATH and in the usual places.

    Raises:
        SlurmUnreachable: Something is missing, or the release is too old.
    """
    path = os.pathsep.join((environment.get("PATH", os.defpath), *DAEMON_DIRECTORIES))
    found: dict[str, str] = {}
    for name in ("munged", "slurmctld", "slurmd", "slurmstepd", "scontrol"):
        # Debian's packages hold slurmd-wlm; the plain name is an alternative made at installation.
        program = shutil.which(name, path=path) or shutil.which(f"{name}-wlm", path=path)
        if program is not None:
            found[name] = program
    missing = [name for name in ("munged", "slurmctld", "slurmd", "scontrol") if name not in found]
    if missing:
        raise SlurmUnreachable(
            f"no {', '.join(missing)} on this machine, so there is nothing to start",
            hint="install Slurm and munge (Debian, Ubuntu: slurmctld slurmd slurm-client munge; "
            "Fedora, EPEL: slurm-slurmctld slurm-slurmd slurm munge), "
            "or share the GPU without Slurm with 'csub --local'",
        )
    version_text = _ask_version(found["slurmd"], environment)
    version = parse_version(version_text)
    if version is None or version < _OLDEST:
        raise SlurmUnreachable(
            f"{found['slurmd']} is '{version_text}', and the sandbox needs Slurm 22.05 or newer"
        )
    plugins = find_plugin_directory(Path(found["slurmd"]))
    plain = Path(found["slurmd"]).name == "slurmd" and plugins is None
    return Installation(
        version=version,
        version_text=version_text,
        munged=found["munged"],
        slurmctld=found["slurmctld"],
        slurmd=found["slurmd"],
        commands=Path(found["scontrol"]).parent,
        plugin_directory=plugins,
        slurmstepd=None if plain else found.get("slurmstepd"),
    )


def find_plugin_directory(slurmd: Path) -> str | None:
    """The plugins next to a slurmd that was unpacked outside the system's directories."""
    prefix = slurmd.resolve().parent.parent
    if prefix in (Path("/"), Path("/usr")):
        return None
    for pattern in ("lib/*/slurm-wlm", "lib/slurm", "lib64/slurm", "lib/*/slurm"):
        for directory in sorted(prefix.glob(pattern)):
            if (directory / "auth_munge.so").exists():
                return str(directory)
    return None


def _ask_version(slurmd: str, environment: Mapping[str, str]) -> str:
    try:
        answer = run_program([slurmd, "-V"], environment, timeout_s=20)
    except OSError as error:
        raise SlurmUnreachable(f"{slurmd} -V does not run: {error}") from error
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SlurmUnreachable(f"{slurmd} -V does not run: {reason}")
    return answer.stdout.strip()
