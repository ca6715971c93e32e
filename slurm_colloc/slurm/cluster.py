"""The name of the cluster that Slurm's commands here talk to, without asking anybody."""

from __future__ import annotations

import os
from collections.abc import Mapping

_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where it lies by default, and where slurmd keeps it on configless clusters (slurm.conf(5))."""


def read_cluster_name(environ: Mapping[str, str]) -> str:
    """ClusterName of slurm.conf; empty where it cannot be read.

    A home directory may serve several clusters, whose job ids mean different jobs.

    Args:
        environ: The environment; SLURM_CONF names the file.
    """
    named = environ.get("SLURM_CONF")
    for path in (named,) if named else _CONFIGURATIONS:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs a submission 3 ms
                for line in file:
                    name, separator, value = line.partition(b"=")
                    if separator and name.strip().lower() == b"clustername":
                        return os.fsdecode(value.split(b"#")[0].strip())
        except OSError:
            continue
    return ""
