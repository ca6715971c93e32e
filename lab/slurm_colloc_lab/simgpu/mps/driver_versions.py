"""In what the drivers' MPS programs differ, and which driver a simulation has.

550: observed with NVIDIA's daemon 550.163.01. 580: measured on an H200 with 580.159.04. Where 580
was not looked at, it is as 550.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MpsProfile:
    """One driver's MPS.

    Args:
        driver: The driver's major number.
        binary_version: What the programs write to their logs as `binary version`.
        daemon_words: Options that make it a daemon, apart from -d and -f.
        has_device_query: The control program knows `device_query`.
        names_version: The daemon writes its binary version to the log.
        needs_driver: The control program ends with 244 and no word where there is no driver, and
            as a daemon with 100 where it sees no GPU.
        limits_by_uuid: Default pinned limits can be set and read by UUID. Without, a UUID is read
            as ordinal 0 with no value, so it removes that GPU's limit.
        takes_limits_from_environment: A server takes over the pinned limits in its environment,
            which is the daemon's.
        server_ends_with_daemon: A server ends when its daemon does.
        wedges: A daemon that is started while the one before has not quite ended hangs for ever.
        clients_per_device: Beyond, 808.
        tells_failed_setuid: The log says why a server cannot become its user.
        owner_words: The middle of the refusal to change a daemon's settings.
        start_refusal: The end of the refusal to start another user's server.
        shutdown_refusal: Likewise, to shut one down.
    """

    driver: int
    binary_version: int
    daemon_words: tuple[str, ...]
    has_device_query: bool
    names_version: bool
    needs_driver: bool
    limits_by_uuid: bool
    takes_limits_from_environment: bool
    server_ends_with_daemon: bool
    wedges: bool
    clients_per_device: int
    tells_failed_setuid: bool
    owner_words: str
    start_refusal: str
    shutdown_refusal: str

    @property
    def settings_refusal(self) -> str:
        """The end of the refusal to change a daemon's settings."""
        return (
            f"Control deamon settings can only be modified by {self.owner_words} or by the "
            "root user."
        )


_OWNERS_580 = "the user who started it"
_REFUSAL_580 = f"Control deamon settings can only be modified by {_OWNERS_580} or by the root user."

DRIVER_550 = MpsProfile(
    driver=550,
    binary_version=12040,
    daemon_words=(),
    has_device_query=False,
    names_version=False,
    needs_driver=False,
    limits_by_uuid=False,
    takes_limits_from_environment=True,
    server_ends_with_daemon=False,
    wedges=True,
    clients_per_device=48,
    tells_failed_setuid=True,
    owner_words="the user started it",
    start_refusal="Only the root user may start server for another user.",
    shutdown_refusal="Only the root user may shutdown another user's server.",
)

DRIVER_580 = MpsProfile(
    driver=580,
    binary_version=13000,
    daemon_words=("--daemon", "--forground"),
    has_device_query=True,
    names_version=True,
    needs_driver=True,
    limits_by_uuid=True,
    takes_limits_from_environment=False,
    server_ends_with_daemon=True,
    wedges=False,
    clients_per_device=48,
    tells_failed_setuid=False,
    owner_words=_OWNERS_580,
    start_refusal=_REFUSAL_580,
    shutdown_refusal=_REFUSAL_580,
)


def choose_profile(driver_version: str) -> MpsProfile:
    """The profile of a driver: 550 for all before 580."""
    major = driver_version.partition(".")[0]
    return DRIVER_550 if major.isdigit() and int(major) < 580 else DRIVER_580


def read_profile(environ: Mapping[str, str]) -> MpsProfile | None:
    """The profile of the simulation that an environment names; None where it names none."""
    root = environ.get("SIMGPU_ROOT", "")
    try:
        with open(os.path.join(root, "driver"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    pairs = dict(line.split("=", 1) for line in lines if "=" in line)
    return choose_profile(pairs.get("driver_version", ""))
