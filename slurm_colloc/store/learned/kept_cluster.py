"""The name of the cluster as Slurm has told it, kept for an hour: every call needs it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import make_directory, write_json
from slurm_colloc.store.record_files import read_record

KEPT_S = 3600.0
"""How long an answer of Slurm's stands."""
KEPT_FOLDER = "waits"


@dataclasses.dataclass(frozen=True)
class KeptCluster:
    """The name of the cluster that Slurm's commands belong to (waits/cluster-of-HOST.json).

    Attributes:
        client: Which commands on which host (slurm.cluster_name.describe_client).
        name: The cluster's name.
        made_at: When Slurm said so, in seconds since the epoch.
    """

    client: str
    name: str
    made_at: float

    @property
    def is_fresh(self) -> bool:
        """Slurm need not be asked again."""
        return 0 <= time.time() - self.made_at <= KEPT_S


def _cluster_path(root: Path, client: str) -> Path:
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", client.partition(":")[0])[:100]
    return root / KEPT_FOLDER / f"cluster-of-{host}.json"


def read_kept_cluster(root: Path, client: str) -> KeptCluster | None:
    """What was kept of the commands here; None where that is damaged or not there."""
    with contextlib.suppress(StateError):
        kept = read_record(_cluster_path(root, client), KeptCluster)
        if kept is not None and kept.client == client:
            return kept
    return None


def keep_cluster(root: Path, client: str, name: str) -> None:
    """Keep the name of the cluster; where that cannot be, it is asked for again."""
    with contextlib.suppress(StateError):
        # Before the first submission the state directory may not be there yet, and it is private.
        make_directory(root)
        make_directory(root / KEPT_FOLDER)
        kept = KeptCluster(client, name, time.time())
        write_json(_cluster_path(root, client), dataclasses.asdict(kept))
