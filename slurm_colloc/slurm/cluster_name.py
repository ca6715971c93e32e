"""Which Slurm cluster this machine's commands belong to.

A home directory may serve several clusters, whose job ids mean different jobs.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping

from slurm_colloc.errors import SlurmError
from slurm_colloc.slurm.run_command import run_slurm

_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where it lies by default, and where slurmd keeps it on configless clusters (slurm.conf(5))."""


def read_cluster_name(environ: Mapping[str, str]) -> str:
    """ClusterName of slurm.conf, in small letters as Slurm itself has it.

    Args:
        environ: The environment; SLURM_CONF names the file.

    Returns:
        Empty where it cannot be read: a site may have built Slurm with another place for it.
    """
    named = environ.get("SLURM_CONF")
    for path in (named,) if named else _CONFIGURATIONS:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs a submission 3 ms
                for line in file:
                    name, separator, value = line.partition(b"=")
                    if separator and name.strip().lower() == b"clustername":
                        return os.fsdecode(value.split(b"#")[0].strip()).lower()
        except OSError:
            continue
    return ""


def describe_client(environ: Mapping[str, str]) -> str:
    """What the answer of Slurm's commands here depends on: the host and which commands they are.

    Returns:
        Empty where there are none.
    """
    program = shutil.which("scontrol", path=environ.get("PATH"))
    if program is None:
        return ""
    return f"{socket.gethostname()}:{os.path.realpath(program)}:{environ.get('SLURM_CONF', '')}"


def ask_cluster_name() -> str:
    """ClusterName as the controller says it; empty where it does not answer."""
    try:
        lines = run_slurm(["scontrol", "show", "config"]).stdout.split("\n")
    except SlurmError:
        return ""
    for name, _, value in (line.partition("=") for line in lines):
        if name.strip() == "ClusterName":
            return value.strip().lower()
    return ""
