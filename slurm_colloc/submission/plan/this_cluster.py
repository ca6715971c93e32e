"""The name of the cluster on which csub is called, at the price of one question an hour."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.slurm.cluster_name import ask_cluster_name, describe_client, read_cluster_name
from slurm_colloc.store.learned.kept_cluster import keep_cluster, read_kept_cluster


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
    kept = read_kept_cluster(root, client)
    if kept is not None and kept.is_fresh:
        return kept.name
    if name := ask_cluster_name():
        keep_cluster(root, client, name)
        return name
    # These commands do not change their cluster; only that they answer is not certain.
    return "" if kept is None else kept.name
