"""The name of the cluster on which csub is called, at the price of one question an hour."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.slurm.cluster_name import ask_cluster_name, describe_client, read_cluster_name
from slurm_colloc.store.learned.kept_answers import keep, read_kept


@dataclasses.dataclass(frozen=True)
class ClusterName:
    """As Slurm has told it."""

    name: str


def find_cluster(root: Path, environ: Mapping[str, str] | None = None) -> str:
    """The cluster's name; empty where it is not known, and then no pack is taken for one of it.

    Args:
        root: The state directory, where the answer is kept.
        environ: The environment; None for this process's.
    """
    environ = os.environ if environ is None else environ
    if name := read_cluster_name(environ):
        return name
    client = describe_client(environ)
    if not client:
        return ""
    place = f"cluster-of-{client.partition(':')[0]}"
    if kept := read_kept(root, place, client, ClusterName):
        return kept.name
    if name := ask_cluster_name():
        keep(root, place, client, ClusterName(name))
        return name
    # These commands do not change their cluster; only that they answer is not certain.
    old = read_kept(root, place, client, ClusterName, math.inf)
    return "" if old is None else old.name
